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
from ..methods import step


class Flow(NamedTuple):
    """What an engine is given: one call of the primitive with flat states, lanes leading, p as a list of leaves.

    xs holds, for each direction, its part in u0 ([lanes], n) and a dict from parameter index to that leaf's direction.
    """

    field: Callable  # field(t, u, p, aux)
    matrix: Callable | None  # its Jacobian (n, n), where the user gave it
    parts: tuple | None  # its implicit and explicit parts, each like field
    has_forward_mode: bool
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
        method = self.settings.method
        method = replace_fields(method, operations=method.operations * factor * 2**self.order)
        return replace_fields(self.settings, method=method)

    @property
    def params(self) -> dict:
        """Everything the field depends on besides t and z, in one tree."""
        tol = self.options.abstol, self.options.reltol
        return {"p": self.p, "aux": self.aux, "xs": [x for _, x in self.xs], "tol": tol}

    @property
    def params_axes(self) -> dict:
        tol = self.axes["options"].abstol, self.axes["options"].reltol
        return {"p": self.axes["p"], "aux": self.axes["aux"], "xs": self.axes["xs"], "tol": tol}

    def system(self, p: list, aux: list, tol) -> step.System:
        """The system of one lane."""
        at = lambda field: lambda t, u: field(t, u, p, aux)
        matrix = None if self.matrix is None else at(self.matrix)
        parts = None if self.parts is None else (at(self.parts[0]), at(self.parts[1]))
        return step.make_system(at(self.field), tol=tol, matrix=matrix, parts=parts)

    def stages(self, p: list, aux: list, tol, t, t_lo, u, dt, t_stop, mode, known=None):
        """The stages k (stages, n) of one lane's step, as a differentiable function of u and p."""
        return step.stages(self.settings.method, self.system(p, aux, tol), t, t_lo, u, dt, known, t_stop, mode).k


def with_tangents(fn: Callable, order: int, *, has_aux: bool = False) -> Callable:
    """`fn(u, p) -> y` as `g(z, p, xs) -> blocks of y`, z (2^order, n), by nested `jax.jvp`.

    With `has_aux`, fn returns (y, aux) and g (blocks of y, aux).
    """
    if order == 0:

        def once(z, p, xs):
            out = fn(z[0], p)
            return (out[0][None], out[1]) if has_aux else out[None]

        return once
    inner = with_tangents(fn, order - 1, has_aux=has_aux)
    half = 2 ** (order - 1)

    def g(z, p, xs):
        index = sorted(xs[-1])
        x = [xs[-1][i].astype(p[i].dtype) for i in index]

        def along(z, values):
            moved = list(p)
            for i, v in zip(index, values, strict=True):
                moved[i] = v
            return inner(z, moved, xs[:-1])

        y, dy, *aux = jax.jvp(along, (z[:half], [p[i] for i in index]), (z[half:], x), has_aux=has_aux)
        both = jnp.concatenate([y, dy])
        return (both, *aux) if has_aux else both

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
    """The initial value problem of the augmented state; tolerances of u hold for each block.

    An explicit method steps the augmented field. An implicit one has its stages differentiated instead: the same
    method applied to the augmented equation, by the one factorisation of the primal.
    """
    z0 = initial_blocks(flow)
    z0 = z0.reshape(*z0.shape[:-2], -1)
    field, blocks = augmented_field(flow), 2**flow.order
    task = Task(field, z0, flow.params, flow.params_axes, flow.t0, flow.t1, flow.ts, blocks=blocks)
    if flow.order == 0:
        task = task._replace(system=lambda params, tol: flow.system(params["p"], params["aux"], tol))
    elif flow.settings.method.implicit:
        base = lambda params, tol: flow.system(params["p"], params["aux"], tol)
        task = task._replace(stages=augmented_stages(flow), velocity=augmented_velocity(flow), system=base)
    repeat = lambda tol: tol if tol.shape[-1:] != flow.u0.shape[-1:] else jnp.tile(tol, 2**flow.order)
    options = flow.options._replace(reltol=repeat(flow.options.reltol), abstol=repeat(flow.options.abstol))
    return task, options


def augmented_stages(flow: Flow) -> Callable:
    """The stages of an augmented state's step (stages, 2^k n), by differentiating those of the primal."""
    method = flow.settings.method

    def stages(params, t, t_lo, z, dt, t_stop, mode, tol, known):
        def of(u, p):
            system = flow.system(p, params["aux"], params["tol"])
            out = step.stages(method, system, t, t_lo, u, dt, known, t_stop, mode)
            err = step.error_estimate(method, dt, out, mode)
            return jnp.concatenate([out.k, err[None]]), out._replace(k=None, err=None)

        rows, out = with_tangents(of, flow.order, has_aux=True)(z.reshape(2**flow.order, -1), params["p"], params["xs"])
        rows = jnp.moveaxis(rows, 0, 1).reshape(rows.shape[1], -1)
        return out._replace(k=rows[:-1], err=rows[-1])

    return stages


def augmented_velocity(flow: Flow) -> Callable:
    """z' of the augmented state."""
    n, method = flow.u0.shape[-1], flow.settings.method

    def velocity(t, z, params):
        of = lambda u, p: step.velocity(method, lambda t, u: flow.field(t, u, p, params["aux"]), t, u)
        z = z.reshape(2**flow.order, n)
        return with_tangents(of, flow.order)(z, params["p"], params["xs"]).reshape(-1)

    return velocity


def select(p: list, index: list) -> list:
    return [p[i] for i in index]


def replace(params: dict, index: list, values: list) -> dict:
    """`params` with the parameter leaves at `index` exchanged."""
    p = list(params["p"])
    for i, v in zip(index, values, strict=True):
        p[i] = v
    return {**params, "p": p}
