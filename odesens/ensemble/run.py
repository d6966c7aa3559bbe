"""`solve_ensemble`: batch after batch, as one compiled program or, with a checkpoint, file by file.

Owns: the defaults, the order of batches, the reduction. Must not know: how a batch is solved or mapped to devices.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import __name__ as package
from ..extension import compiled, dependent, hoist
from ..problem import check_options
from ..saveat import concrete
from ..solve import solve
from . import checkpoint as saved
from .batch import Solver, mapped, pad, width_of
from .failure import raise_failures
from .problem import EnsembleAlgorithm, EnsembleProblem, EnsembleSharded, EnsembleVectorized
from .progress import reporter
from .solution import EnsembleSolution, Operands
from .trajectories import Trajectories
from .trajectories import trajectories as rows_of

BATCH = 1024  # trajectories of each device, where results are reduced, reported or written batch by batch
_tokens = itertools.count()


@solve.register
def solve_ensemble(
    eprob: EnsembleProblem,
    alg=None,
    ensemblealg: EnsembleAlgorithm | None = None,
    *,
    trajectories: int | None = None,
    batch_size: int | None = None,
    progress: bool | Callable = False,
    checkpoint: Any = None,
    **options,
) -> EnsembleSolution:
    """Solve an ensemble: `solve(eprob, alg, ensemblealg, trajectories=N)`.

    Differentiable to any order, in both modes, like the solve of one problem: with respect to what trajectories share,
    what each has of its own, and whatever `prob_func`, `output_func`, `reduction` and f capture; under every
    transformation. Gradients are accumulated batch by batch, in memory bounded by the batch.

    Parameters
    ----------
    eprob : EnsembleProblem
    alg : algorithm, optional
        As for one problem; `Tsit5()` by default, also where a single eager solve would find the problem to be stiff.
    ensemblealg : EnsembleVectorized() (default), EnsembleSerial() or EnsembleSharded()
        The results are the same: numbers of steps, and values but for rounding.
    trajectories : int
        Their number N; may be left out where the ensemble problem has batched arrays. 0 gives empty results.
    batch_size : int, optional
        How many trajectories are solved, put out and differentiated at a time, on all devices together. Default: all,
        but 1024 for each device with an `output_func`, a `reduction`, `progress` or `checkpoint`.
    progress : bool or callable
        Show a bar (tqdm's where it is installed), or call progress(done, N), after each batch, also under `jit`. It is
        no part of derivatives.
    checkpoint : path, optional
        A folder to which each finished batch is written, whole or not at all. The same call goes on from there, in a
        new process too, and ends with the same bits. It needs an eager call that is not being differentiated. Several
        processes need a folder that all of them see.
    **options
        Those of `solve`, for all trajectories. `saveat=None` saves both ends of each span. `dense` has no effect:
        `sol[i](t)` solves again.

    Returns
    -------
    EnsembleSolution

    Raises
    ------
    EnsembleError
        An eager solve in which trajectories failed (`throw=True`): which, and why. The others are not disturbed.
    TypeError, ValueError
        For input that is wrong.
    """
    check_options(options, "solve")
    algorithm = EnsembleVectorized() if ensemblealg is None else ensemblealg
    if not isinstance(algorithm, EnsembleAlgorithm):
        raise TypeError(
            "the third argument must be EnsembleSerial(), EnsembleVectorized() or EnsembleSharded(), "
            f"got {ensemblealg!r}"
        )
    found = rows_of(eprob, trajectories)
    report = reporter(progress)
    batched = any(x is not None for x in (eprob.output_func, eprob.reduction, report, checkpoint))
    plan = make_plan(found.count, batch_size, algorithm, batched, exact=eprob.reduction is not None)
    throw = {**eprob.prob.options, **options}.get("throw") is not False
    solver = Solver(found, alg, options, width_of(algorithm, plan.size), eprob.output_func)
    job = Job(eprob, solver, algorithm, plan, report)
    sol = job.run() if checkpoint is None else job.resume(checkpoint)
    codes = concrete(sol.retcodes) if throw else None
    if codes is not None:
        raise_failures(codes, sol)
    return sol


class Plan(NamedTuple):
    """`batches` batches of `size` trajectories, the last one filled up, then one of `rest`."""

    count: int
    batches: int
    size: int
    rest: int


def make_plan(count: int, batch_size, algorithm: EnsembleAlgorithm, batched: bool, *, exact: bool) -> Plan:
    """How the trajectories are divided; into batches of exactly the size asked for, or of about that size."""
    if batch_size is None:
        devices = algorithm.devices().size if isinstance(algorithm, EnsembleSharded) else 1
        batch_size = BATCH * devices if batched else max(count, 1)
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise ValueError(f"batch_size must be an integer >= 1, got {batch_size!r}")
    size = min(int(batch_size), max(count, 1))
    if exact:
        return Plan(count, count // size, size, count % size)
    batches = max(-(-count // size), 1)
    return Plan(count, batches, -(-max(count, 1) // batches), 0)


class Job(NamedTuple):
    """All that an ensemble solve is made of."""

    eprob: EnsembleProblem
    solver: Solver
    algorithm: EnsembleAlgorithm
    plan: Plan
    report: Callable | None

    @property
    def found(self) -> Trajectories:
        return self.solver.trajectories

    @property
    def keeps_states(self) -> bool:
        return self.eprob.output_func is None and self.eprob.reduction is None

    # ---- one batch
    def batch(self, shared, u, rows):
        """The next u, and what is put out: outputs where they are not reduced, codes, counts."""
        out, *ended = mapped(self.algorithm, self.solver)(shared, rows)
        if self.eprob.reduction is None:
            return u, (out, *ended)
        return self.eprob.reduction(u, out, rows["i"]), (None, *ended)

    def tick(self, token, done, codes) -> None:
        """Report, once `codes` are known."""
        if self.report is not None:
            last = jax.lax.stop_gradient(jnp.sum(codes))
            jax.debug.callback(_without_last(self.report), token, done, self.plan.count, last)

    def first(self, shared, rows):
        """u_init with the dtypes that the reduction gives it."""
        reduction, plan = self.eprob.reduction, self.plan
        if reduction is None:
            return ()
        u = jax.tree.map(jnp.asarray, self.eprob.u_init)
        if not plan.batches:
            return u
        some = _slice(rows, 0, plan.size)
        for _ in range(2):  # the second time with the dtypes of the first
            got = jax.eval_shape(lambda u: self.batch(shared, u, some)[0], u)
            if _shapes(got) != _shapes(u):
                raise ValueError(
                    f"reduction must return a u with the structure and shapes of u_init, {_shapes(u)}; "
                    f"it returned {_shapes(got)}"
                )
            u = jax.tree.map(lambda x, y: x.astype(y.dtype), u, got)
        return u

    # ---- all of them, in one program
    def run(self) -> EnsembleSolution:
        rows = self.found.rows if self.plan.count else _blank(self.found.rows)
        token = np.int32(next(_tokens) % 2**31)
        u, ended, operands, varied, call, u_tree = _compiled(
            self.everything, self.algorithm, self.found.shared, rows, token
        )
        kept = None if call is None else Operands(tuple(operands), varied, call, u_tree)
        return EnsembleSolution(u, *ended, kept, self.eprob.reduction is not None)

    def everything(self, shared, rows, token):
        """(u, codes and counts, operands) as arrays, and how the operands are to be read."""
        plan, reduced = self.plan, self.eprob.reduction is not None
        one = lambda u, rows: self.batch(shared, u, rows)
        if not self.keeps_states and plan.batches + bool(plan.rest) > 1:
            one = jax.checkpoint(one)  # else all that a nonlinear output needs would be kept for all trajectories
        u, first = self.first(shared, rows), plan.batches * plan.size
        ys: list = []
        if plan.batches == 1:
            u, y = one(u, pad(_slice(rows, 0, first), first - _length(rows)))
            self.tick(token, min(first, plan.count), y[1])
            ys.append(y)
        elif plan.batches:

            def body(carry, inputs):
                k, some = inputs
                u, y = one(carry, some)
                self.tick(token, jnp.minimum((k + 1) * plan.size, plan.count), y[1])
                return u, y

            whole = pad(_slice(rows, 0, first), max(0, first - _length(rows)))
            split = jax.tree.map(lambda x: x.reshape(plan.batches, plan.size, *x.shape[1:]), whole)
            u, y = jax.lax.scan(body, u, (jnp.arange(plan.batches, dtype=jnp.int32), split))
            ys.append(jax.tree.map(lambda x: x.reshape(first, *x.shape[2:]), y))
        if plan.rest:
            u, y = one(u, _slice(rows, first, plan.count))
            self.tick(token, plan.count, y[1])
            ys.append(y)
        out, *ended = jax.tree.map(lambda *xs: jnp.concatenate(xs)[: plan.count], *ys) if ys else _nothing()
        return (u if reduced else out, ended, *self.operands(shared, rows))

    def operands(self, shared, rows):
        """The operands of each trajectory's call, those that differ with a leading axis; which; the call."""
        if not self.keeps_states:
            return [], (), None, None
        known: list = []

        def values(shared, x):
            call, operands, _, u_tree, _ = self.solver.prepared(shared, x)
            known[:] = replace(call, spec=replace(call.spec, width=None)), u_tree
            return [jnp.asarray(v) for v in operands]

        jaxpr, consts = hoist(values, shared, jax.tree.map(lambda x: x[0], rows))
        same = len(consts) + len(jax.tree.leaves(shared))
        varied = dependent(jaxpr, [False] * same + [True] * len(jax.tree.leaves(rows)))
        arrays = jax.vmap(values, (None, 0), [0 if v else None for v in varied])(shared, rows)
        cut = lambda x, v: x[: self.plan.count] if v else x
        return [cut(x, v) for x, v in zip(arrays, varied, strict=True)], tuple(varied), *known

    # ---- file by file
    def resume(self, path) -> EnsembleSolution:
        """The same with each batch in a file; those that are there are read."""
        plan, found = self.plan, self.found
        arrays = [*jax.tree.leaves((found.shared, found.rows)), *jax.tree.leaves(self.eprob.u_init)]
        if any(isinstance(x, jax.core.Tracer) for x in arrays):
            raise TypeError(
                "checkpoint= writes files, which needs an eager call that is not being transformed: leave it out under "
                "jit, grad and vmap"
            )
        if not plan.count:
            return self.run()
        u = self.first(found.shared, found.rows)
        token, ys, sizes = next(_tokens), [], [plan.size] * plan.batches + [plan.rest] * bool(plan.rest)
        folder = None
        begun, ready = 0, 0
        for k, size in enumerate(sizes):
            some = _slice(found.rows, begun, begun + size)
            some = pad(some, size - _length(some))
            program = _Program(self.batch, self.algorithm, found.shared, u, some)
            if folder is None:
                folder = saved.Folder(path, self.fingerprint(program, arrays))
                ready = folder.finished()
            leaves = folder.read(k) if k < ready else program.run()
            if k >= ready:
                folder.write(k, leaves)
            u, y = jax.tree.unflatten(program.tree, [jnp.asarray(x) for x in leaves])
            ys.append(y)
            begun += size
            if self.report is not None:
                self.report(token, min(begun, plan.count), plan.count)
        out, *ended = jax.tree.map(lambda *xs: jnp.concatenate(xs)[: plan.count], *ys)
        values, varied, call, u_tree = self.operands(found.shared, found.rows)
        kept = None if call is None else Operands(tuple(values), varied, call, u_tree)
        reduced = self.eprob.reduction is not None
        return EnsembleSolution(u if reduced else out, *ended, kept, reduced)

    def fingerprint(self, program: "_Program", arrays: list) -> str:
        call = self.solver.prepared(self.found.shared, jax.tree.map(lambda x: x[0], self.found.rows)).call
        programs = [program.jaxpr, call.spec.field.program.jaxpr]
        return saved.fingerprint(programs, [*arrays, *program.consts], self.plan, jax.__version__, package)


class _Program:
    """A function of arrays as one compiled program; functions that trace to the same share it."""

    def __init__(self, fun: Callable, algorithm: EnsembleAlgorithm, *args):
        def flat(*leaves):
            out, self.tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, leaves)))
            return out

        self.args, tree = jax.tree.flatten(args)
        self.jaxpr, self.consts = hoist(flat, *self.args)
        self.algorithm = algorithm

    def run(self) -> list:
        operands, options = [*self.consts, *self.args], {}
        if isinstance(self.algorithm, EnsembleSharded):
            mesh = self.algorithm.devices()
            everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            operands = [jax.device_put(x, everywhere) for x in operands]
            if jax.process_count() > 1:  # each process gets all results
                options["out_shardings"] = everywhere
        return compiled(self.jaxpr, **options)(*operands)


class _Static(NamedTuple):
    """What tracing finds out besides arrays."""

    varied: tuple
    call: Any
    u_tree: Any


def _compiled(fun: Callable, algorithm: EnsembleAlgorithm, shared, rows, token):
    """`fun` as one compiled program; as it is where it is called inside a mesh, whose axes the program depends on."""
    if not jax.sharding.get_abstract_mesh().empty:
        return fun(shared, rows, token)
    found: list = []

    def arrays(*args):
        *out, varied, call, u_tree = fun(*args)
        found[:] = [_Static(varied, call, u_tree)]
        return out

    program = _Program(arrays, algorithm, shared, rows, token)
    return (*jax.tree.unflatten(program.tree, program.run()), *found[0])


def _without_last(report: Callable) -> Callable:
    return lambda token, done, total, _: report(token, done, total)


def _shapes(tree):
    return jax.tree.map(lambda x: list(x.shape), tree)


def _slice(rows, begin: int, end: int):
    return jax.tree.map(lambda x: x[begin:end], rows)


def _length(rows) -> int:
    return jax.tree.leaves(rows)[0].shape[0]


def _blank(rows):
    """One row of zeros in place of none: its results are cut off."""
    return jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), rows)


def _nothing():
    return None, jnp.zeros(0, jnp.int32), jnp.zeros((0, 4), jnp.int32)
