"""`ForwardSensitivity`: tangents by the augmented equation, error control included; gradients from all directions.

Owns: the augmented forward solve, also used for the tangents of the continuous adjoints; the basis of directions and
the contraction with a cotangent. Must not know: adjoint equations.
"""

import math
from dataclasses import replace as dataclass_replace

import jax
import jax.numpy as jnp

from ..extension import vary, varying_axes
from ..integrate.loop import Result, Settings, Task, integrate
from .augment import Flow, augmented_task, replace, select


def settings_of(flow: Flow, factor: int = 1) -> Settings:
    """The loop's settings for the second equation: the sensitivity algorithm's own choices where it has any.

    `factor`: how many times the operations of the augmented field that equation has.
    """
    alg, max_steps = flow.sensealg.alg, flow.sensealg.max_steps
    settings = flow.settings_for(factor)
    if alg is not None:
        settings = dataclass_replace(settings, tableau=alg.tableau)
    if max_steps is not None:
        settings = dataclass_replace(settings, max_steps=max_steps)
    return settings


def tolerances(flow: Flow, options):
    """The tolerances of the second equation, the sensitivity algorithm's own where it has any."""
    own = flow.sensealg
    real = jnp.finfo(flow.u0.dtype).dtype
    pick = lambda mine, default: default if mine is None else jnp.full_like(default, mine, real)
    return options._replace(reltol=pick(own.reltol, options.reltol), abstol=pick(own.abstol, options.abstol))


def solve_augmented(flow: Flow, *, record: bool) -> Result:
    """Integrate the augmented state of `flow` with error control on all its blocks."""
    task, options = augmented_task(flow)
    options = tolerances(flow, options)
    return integrate(settings_of(flow), task, options, flow.axes["options"], flow.lanes, record=record)


def tangent(flow: Flow):
    """D^k Phi along the directions of `flow`, at every saved time: ([lanes], m, n)."""
    n = flow.u0.shape[-1]
    return solve_augmented(flow, record=False).us[..., -n:]


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> from one augmented solve along every direction of u0 and of the wanted leaves."""
    task, options = augmented_task(flow)
    basis = Basis(flow, wanted)
    n, big, count = flow.u0.shape[-1], task.u0.shape[-1], basis.count
    f = task.f

    def with_directions(t, y, params):
        z, s = y[:big], y[big:].reshape(count, big)
        p = select(params["p"], wanted)

        def along(s, x):
            at = lambda z, p: f(t, z, replace(params, wanted, p))
            return jax.jvp(at, (z, p), (s, x))

        dz, ds = jax.vmap(along, out_axes=(None, 0))(s, basis.leaves)
        return jnp.concatenate([dz, ds.reshape(-1)])

    s0 = jnp.zeros((count, big), task.u0.dtype).at[:, :n].set(basis.u)
    s0 = flow.lanes.spread(s0.reshape(-1))
    all_ = Task(
        with_directions,
        jnp.concatenate([task.u0, s0], axis=-1),
        task.p,
        task.p_axes,
        task.t0,
        task.t1,
        task.ts,
    )
    repeat = lambda tol: tol if tol.shape[-1:] != (big,) else jnp.tile(tol, count + 1)
    options = tolerances(flow, options._replace(reltol=repeat(options.reltol), abstol=repeat(options.abstol)))
    result = integrate(settings_of(flow, 2), all_, options, flow.axes["options"], flow.lanes, record=False)
    s = result.us[..., big:].reshape(*result.us.shape[:-1], count, big)[..., -n:]
    touched = (w != 0)[..., None, :]
    value = jnp.sum(jnp.where(touched, w[..., None, :] * s, 0), axis=(-3, -1))
    return *basis.gradient(jnp.real(value)), result.lane.code


class Basis:
    """All real directions of (u0, wanted leaves): unit vectors, and i times them for complex entries."""

    def __init__(self, flow: Flow, wanted: list[int]):
        self.p_axes = select(flow.axes["p"], wanted)
        shapes = [flow.u0.shape[-1:]]
        for x, axis in zip(select(flow.p, wanted), self.p_axes, strict=True):
            shapes.append(x.shape if axis is None else x.shape[1:])
        self.dtypes = [flow.u0.dtype, *(x.dtype for x in select(flow.p, wanted))]
        self.shapes = shapes
        self.sizes = [math.prod(s) for s in shapes]
        self.units = [2 if jnp.issubdtype(d, jnp.complexfloating) else 1 for d in self.dtypes]
        self.lanes = flow.lanes
        self.count = sum(n * k for n, k in zip(self.sizes, self.units, strict=True))
        parts, start = [], 0
        for shape, size, units, dtype in zip(shapes, self.sizes, self.units, self.dtypes, strict=True):
            block = jnp.zeros((self.count, size), dtype)
            for unit in (1, 1j)[:units]:
                eye = jnp.eye(size, dtype=dtype) * jnp.asarray(unit, dtype)
                block = block.at[start : start + size].set(eye)
                start += size
            parts.append(block.reshape(self.count, *shape))
        parts = vary(parts, varying_axes(flow.u0))
        self.u, self.leaves = parts[0], parts[1:]

    def gradient(self, value):
        """u_bar and the leaves' p_bar from Re <w, s_d> ([lanes], count); Re(c v) = Re <w, D[v]> defines the entry c."""
        out, start = [], 0
        for shape, size, units, dtype in zip(self.shapes, self.sizes, self.units, self.dtypes, strict=True):
            g = value[..., start : start + size]
            if units == 2:
                g = g - 1j * value[..., start + size : start + 2 * size]
            start += size * units
            out.append(g.astype(dtype).reshape(*value.shape[:-1], *shape))
        u_bar, leaves = out[0], out[1:]
        summed = [
            g if axis == 0 or self.lanes.size is None else jnp.sum(g, 0)
            for g, axis in zip(leaves, self.p_axes, strict=True)
        ]
        return u_bar, summed
