"""One batch of trajectories: the three ensemble algorithms as three ways to map one trajectory's solve.

Owns: a trajectory's solve as a function of arrays, mapping it. Must not know: how batches follow one another.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..primitive import flow
from ..problem import ODEProblem
from ..solve import Prepared, labelled, prepare, wrap
from .problem import EnsembleAlgorithm, EnsembleSerial, EnsembleSharded, EnsembleVectorized
from .trajectories import Trajectories

LANES_ON_CPU = 32  # so many are compiled to one native loop; more cost as much for each step, and wait for each other
LANES = 4096


class Solver(NamedTuple):
    """How one trajectory is solved: method, options of `solve`, lanes in a loop, and what is kept of its solution."""

    trajectories: Trajectories
    alg: Any
    options: dict
    width: int | None
    output_func: Callable | None

    def prepared(self, shared, x: dict) -> Prepared:
        prob = self.trajectories.problem(shared, x)
        return prepare(prob, self.alg, None, None, None, self.own_options(prob), self.width)

    def own_options(self, prob: ODEProblem) -> dict:
        """The options of `solve`; without `saveat`, both ends of the span are saved."""
        options = {**self.options, "throw": False, "dense": False, "progress": False}
        if {**prob.options, **{k: v for k, v in options.items() if v is not None}}.get("saveat") is None:
            ends = prob.tspan
            traced = any(isinstance(t, (Tracer, jax.Array)) for t in ends)
            options["saveat"] = jnp.stack([jnp.asarray(t) for t in ends]) if traced else np.asarray(ends)
        return options

    def __call__(self, shared, x: dict):
        """What is kept of the trajectory x, its return code, its counts of steps."""
        call, operands, _, u_tree, _, labels, ok = self.prepared(shared, x)
        outs = flow(call, *operands)
        n = call.n_values
        sol = wrap(call, operands, None, jnp.asarray(operands[call.i_ts]), outs[:n], outs[n:], u_tree)
        sol = labelled(sol, labels, ok)
        out = sol.u if self.output_func is None else jax.tree.map(jnp.asarray, self.output_func(sol, x["i"]))
        return out, sol._code, sol._counts


def width_of(algorithm: EnsembleAlgorithm, size: int) -> int | None:
    """`Spec.width` for batches of `size` trajectories; None where all of them fit into the loop."""
    if isinstance(algorithm, EnsembleSerial):
        return 1
    assert isinstance(algorithm, (EnsembleVectorized, EnsembleSharded))
    on_cpu = jax.default_backend() == "cpu"
    lanes = algorithm.lanes or (LANES_ON_CPU if on_cpu else LANES)
    each = -(-size // algorithm.devices().size) if isinstance(algorithm, EnsembleSharded) else size
    return lanes if each > lanes else None


def mapped(algorithm: EnsembleAlgorithm, one: Callable) -> Callable:
    """`one(shared, x)` as a function of rows with a leading axis, on what the ensemble algorithm says."""
    if isinstance(algorithm, EnsembleSerial):
        return lambda shared, rows: jax.lax.map(lambda x: one(shared, x), rows)
    lanes = jax.vmap(one, (None, 0))
    if not isinstance(algorithm, EnsembleSharded):
        return lanes
    mesh = algorithm.devices()
    along = jax.sharding.PartitionSpec(mesh.axis_names)
    none = jax.sharding.PartitionSpec()
    # without the check of varying axes: it would refuse loops in a user's function that mix traced and constant values
    shards = jax.shard_map(lanes, mesh=mesh, in_specs=(none, along), out_specs=along, check_vma=False)

    def run(shared, rows):
        size = jax.tree.leaves(rows)[0].shape[0]
        rows = pad(rows, -size % mesh.size)
        return jax.tree.map(lambda x: x[:size], shards(shared, rows))

    return run


def pad(rows, more: int):
    """Rows with the last one repeated `more` times."""
    if not more:
        return rows
    extend = lambda x: jnp.concatenate([x, jnp.broadcast_to(x[-1:], (more, *x.shape[1:]))])
    return jax.tree.map(extend, rows)
