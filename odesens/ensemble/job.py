"""All batches of an ensemble as one compiled program.

Owns: the order of batches, the reduction, reporting from within the program. Must not know: how a batch is solved or
mapped to devices.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..extension import compiled, dependent, hoist
from ..integrate.loop import COUNTS
from ..progress import tokens
from .batch import Solver, mapped, pad
from .problem import EnsembleAlgorithm, EnsembleProblem, EnsembleSharded
from .solution import EnsembleSolution, Operands


class Plan(NamedTuple):
    """`batches` batches of `size` trajectories, the last one filled up, then one of `rest`."""

    count: int
    batches: int
    size: int
    rest: int


class Job(NamedTuple):
    """All that an ensemble solve is made of; report(token, done, total) is called after each batch."""

    eprob: EnsembleProblem
    solver: Solver
    algorithm: EnsembleAlgorithm
    plan: Plan
    report: Callable | None

    def batch(self, shared, u, rows):
        """The next u, and what is put out: outputs where they are not reduced, codes, counts."""
        out, *ended = mapped(self.algorithm, self.solver)(shared, rows)
        if self.eprob.reduction is None:
            return u, (out, *ended)
        return self.eprob.reduction(u, out, rows["i"]), (None, *ended)

    def first(self, shared, rows):
        """u_init with the dtypes that the reduction gives it."""
        if self.eprob.reduction is None:
            return ()
        u = jax.tree.map(jnp.asarray, self.eprob.u_init)
        if not self.plan.batches:
            return u
        some = part(rows, 0, self.plan.size)
        for _ in range(2):  # the second time with the dtypes of the first
            got = jax.eval_shape(lambda u: self.batch(shared, u, some)[0], u)
            if _shapes(got) != _shapes(u):
                raise ValueError(
                    f"reduction must return a u with the structure and shapes of u_init, {_shapes(u)}; "
                    f"it returned {_shapes(got)}"
                )
            u = jax.tree.map(lambda x, y: x.astype(y.dtype), u, got)
        return u

    def solution(self, shared, rows, u, ys: list) -> EnsembleSolution:
        """The solution from the last u and what the batches put out."""
        if not ys:
            ys = [(None, jnp.zeros(0, jnp.int32), jnp.zeros((0, COUNTS), jnp.int32))]
        out, codes, counts = jax.tree.map(lambda *xs: jnp.concatenate(xs)[: self.plan.count], *ys)
        reduced = self.eprob.reduction is not None
        return EnsembleSolution(u if reduced else out, codes, counts, self.operands(shared, rows), reduced)

    def operands(self, shared, rows) -> Operands | None:
        """The operands of the trajectories' calls, where trajectories are kept."""
        if self.eprob.output_func is not None or self.eprob.reduction is not None:
            return None
        known: list = []

        def values(shared, x):
            prepared = self.solver.prepared(shared, x)
            labels, tree = jax.tree.flatten(prepared.labels)
            known[:] = prepared.call, prepared.u_tree, tree
            return [jnp.asarray(v) for v in (*prepared.operands, *labels)]

        jaxpr, consts = hoist(values, shared, jax.tree.map(lambda x: x[0], rows))
        same = len(consts) + len(jax.tree.leaves(shared))
        varied = dependent(jaxpr, [False] * same + [True] * len(jax.tree.leaves(rows)))
        arrays = jax.vmap(values, (None, 0), [0 if v else None for v in varied])(shared, rows)
        arrays = [x[: self.plan.count] if v else x for x, v in zip(arrays, varied, strict=True)]
        call, u_tree, labels = known
        call = replace(call, spec=replace(call.spec, width=None))
        return Operands(tuple(arrays), tuple(varied), call, u_tree, labels)

    def tick(self, token, done, codes) -> None:
        """Report from within the program, once `codes` are known."""
        if self.report is not None:
            known = jax.lax.stop_gradient(jnp.sum(codes))
            jax.debug.callback(_without_last(self.report), token, done, self.plan.count, known)

    def everything(self, shared, rows, token) -> EnsembleSolution:
        plan = self.plan
        one = lambda u, rows: self.batch(shared, u, rows)
        if plan.batches + bool(plan.rest) > 1 and (self.eprob.output_func or self.eprob.reduction):
            one = jax.checkpoint(one)  # else all that a nonlinear output needs would be kept for all trajectories
        u, end, ys = self.first(shared, rows), plan.batches * plan.size, []
        filled = pad(part(rows, 0, end), max(0, end - length(rows)))
        if plan.batches == 1:
            u, y = one(u, filled)
            self.tick(token, min(end, plan.count), y[1])
            ys.append(y)
        elif plan.batches:

            def body(u, inputs):
                k, some = inputs
                u, y = one(u, some)
                self.tick(token, jnp.minimum((k + 1) * plan.size, plan.count), y[1])
                return u, y

            split = jax.tree.map(lambda x: x.reshape(plan.batches, plan.size, *x.shape[1:]), filled)
            u, y = jax.lax.scan(body, u, (jnp.arange(plan.batches, dtype=jnp.int32), split))
            ys.append(jax.tree.map(lambda x: x.reshape(end, *x.shape[2:]), y))
        if plan.rest:
            u, y = one(u, part(rows, end, plan.count))
            self.tick(token, plan.count, y[1])
            ys.append(y)
        return self.solution(shared, rows, u, ys)

    def run(self) -> EnsembleSolution:
        found = self.solver.trajectories
        rows = found.rows if self.plan.count else _blank(found.rows)
        token = np.int32(next(tokens) % 2**31)
        if not jax.sharding.get_abstract_mesh().empty:  # the program would depend on its axes
            return self.everything(found.shared, rows, token)
        return Program(self.everything, self.algorithm, found.shared, rows, token).run()


class Program:
    """A function of arrays as one compiled program; functions that trace to the same share it."""

    def __init__(self, fun: Callable, algorithm: EnsembleAlgorithm, *args):
        self.args, tree = jax.tree.flatten(args)
        self.algorithm = algorithm
        self.tree: Any = None

        def flat(*leaves):
            out, self.tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, leaves)))
            return out

        self.jaxpr, self.consts = hoist(flat, *self.args)

    def run(self):
        return jax.tree.unflatten(self.tree, self.leaves())

    def leaves(self) -> list:
        operands, options = [*self.consts, *self.args], {}
        if isinstance(self.algorithm, EnsembleSharded):
            mesh = self.algorithm.devices()
            everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            operands = [x if isinstance(x, Tracer) else jax.device_put(x, everywhere) for x in operands]
            if jax.process_count() > 1:  # each process gets all results
                options["out_shardings"] = everywhere
        return compiled(self.jaxpr, **options)(*operands)


def _without_last(report: Callable) -> Callable:
    return lambda token, done, total, _: report(token, done, total)


def _shapes(tree):
    return jax.tree.map(lambda x: list(x.shape), tree)


def part(rows, begin: int, end: int):
    return jax.tree.map(lambda x: x[begin:end], rows)


def length(rows) -> int:
    return jax.tree.leaves(rows)[0].shape[0]


def _blank(rows):
    """One row of zeros in place of none: its results are cut off."""
    return jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), rows)
