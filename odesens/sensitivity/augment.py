"""Tangents of any order by nesting: a map of (u, p) as a map of all its directional derivatives together.

Owns: the block layout of augmented states, the augmented field. Must not know: which engine asks.

With directions x_0 .. x_(k-1), an augmented state z has 2^k blocks of n entries; block b is the derivative along the
directions whose bits are set in b: block 0 is u, block 2^i is D u[x_i], the last block D^k u[x_0, .., x_(k-1)].
"""

from collections.abc import Callable
from dataclasses import replace as replace_fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..integrate.lanes import Lanes
from ..integrate.loop import Options, Settings, Task
from ..integrate.record import Record


class Flow(NamedTuple):
    """What an engine is given: one call of the primitive with flat states, lanes leading, p as a list of leaves.

    xs holds, for each direction, its part in u0 ([lanes], n) and a dict from parameter index to that leaf's direction.
    """

    field: Callable  # field(t, u, p, aux)
    sensealg: Any
    settings: Settings
    lanes: Lanes
    u0: Any
    p: list
    aux: list
    t0: Any
    t1: Any
    ts: Any
    options: Options
    xs: list
    axes: dict  # of p, aux, options, and of each x's dict
    record: Record | None

    @property
    def order(self) -> int:
        return len(self.xs)

    def settings_for(self, factor: int = 1) -> Settings:
        """The settings with the operations of the augmented field, `factor` times as many."""
        return replace_fields(self.settings, operations=self.settings.operations * factor * 2**self.order)

    @property
    def params(self) -> dict:
        """Everything the field depends on besides t and z, in one tree."""
        return {"p": self.p, "aux": self.aux, "xs": [x for _, x in self.xs]}

    @property
    def params_axes(self) -> dict:
        return {"p": self.axes["p"], "aux": self.axes["aux"], "xs": self.axes["xs"]}


def with_tangents(fn: Callable, order: int) -> Callable:
    """`fn(u, p) -> y` as `g(z, p, xs) -> blocks of y`, z (2^order, n), by nested `jax.jvp`."""
    if order == 0:
        return lambda z, p, xs: fn(z[0], p)[None]
    inner = with_tangents(fn, order - 1)
    half = 2 ** (order - 1)

    def g(z, p, xs):
        index = sorted(xs[-1])
        x = [xs[-1][i].astype(p[i].dtype) for i in index]

        def along(z, values):
            moved = list(p)
            for i, v in zip(index, values, strict=True):
                moved[i] = v
            return inner(z, moved, xs[:-1])

        y, dy = jax.jvp(along, (z[:half], [p[i] for i in index]), (z[half:], x))
        return jnp.concatenate([y, dy])

    return g


def initial_blocks(flow: Flow):
    """The augmented initial state ([lanes], 2^k, n)."""
    blocks = [jnp.zeros_like(flow.u0)] * 2**flow.order
    blocks[0] = flow.u0
    for i, (x_u, _) in enumerate(flow.xs):
        blocks[2**i] = x_u
    return jnp.stack(blocks, axis=-2)


def augmented_field(flow: Flow) -> Callable:
    """F(t, z, params) on the flat augmented state (2^k n,)."""
    n = flow.u0.shape[-1]

    def f(t, z, params):
        at_t = with_tangents(lambda u, p: flow.field(t, u, p, params["aux"]), flow.order)
        return at_t(z.reshape(2**flow.order, n), params["p"], params["xs"]).reshape(-1)

    return f


def augmented_task(flow: Flow) -> tuple[Task, Options]:
    """The initial value problem of the augmented state; tolerances of u hold for each block."""
    z0 = initial_blocks(flow)
    z0 = z0.reshape(*z0.shape[:-2], -1)
    task = Task(augmented_field(flow), z0, flow.params, flow.params_axes, flow.t0, flow.t1, flow.ts)
    repeat = lambda tol: tol if tol.shape[-1:] != flow.u0.shape[-1:] else jnp.tile(tol, 2**flow.order)
    options = flow.options._replace(reltol=repeat(flow.options.reltol), abstol=repeat(flow.options.abstol))
    return task, options


def select(p: list, index: list) -> list:
    return [p[i] for i in index]


def replace(params: dict, index: list, values: list) -> dict:
    """`params` with the parameter leaves at `index` exchanged."""
    p = list(params["p"])
    for i, v in zip(index, values, strict=True):
        p[i] = v
    return {**params, "p": p}
