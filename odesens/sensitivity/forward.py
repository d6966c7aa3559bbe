"""`ForwardSensitivity`: tangents by the augmented equation, error control included; gradients from all directions.

Owns: the augmented forward solve, also used for the tangents of the continuous adjoints; the basis of directions and
the contraction with a cotangent. Must not know: adjoint equations.
"""

import math
from dataclasses import replace as dataclass_replace

import jax
import jax.numpy as jnp

from ..extension import vary, varying_axes
from ..integrate.loop import Result, Settings, Task, counts, integrate, with_counts
from .augment import Flow, augmented_stages, augmented_task, augmented_velocity, replace, select


def with_own_choices(flow: Flow) -> Flow:
    """`flow` with the loop's settings for the second equation: the sensitivity algorithm's where it has any."""
    own, settings = flow.sensealg, flow.settings
    if own.alg is not None:
        method = dataclass_replace(
            settings.method, tableau=own.alg.tableau, linear=own.alg.linear(settings.method.linear)
        )
        settings = dataclass_replace(settings, method=method)
    if own.max_steps is not None:
        settings = dataclass_replace(settings, max_steps=own.max_steps)
    return flow._replace(settings=settings)


def settings_of(flow: Flow, factor: int = 1) -> Settings:
    """Those settings for a backward equation with `factor` times the operations of the augmented field.

    It is solved in pieces, each of which a method of several steps would have to begin anew: its companion takes those.
    """
    settings = with_own_choices(flow).settings_for(factor)
    if not settings.method.multistep:
        return settings
    method = dataclass_replace(settings.method, tableau=settings.tableau.companion)
    return dataclass_replace(settings, method=method)


def tolerances(flow: Flow, options):
    """The tolerances of the second equation, the sensitivity algorithm's own where it has any."""
    own = flow.sensealg
    real = jnp.finfo(flow.u0.dtype).dtype
    pick = lambda mine, default: default if mine is None else jnp.full_like(default, mine, real)
    return options._replace(reltol=pick(own.reltol, options.reltol), abstol=pick(own.abstol, options.abstol))


def solve_augmented(flow: Flow, *, record: bool) -> Result:
    """Integrate the augmented state of `flow` with error control on all its blocks."""
    flow = with_own_choices(flow)
    task, options = augmented_task(flow)
    options = tolerances(flow, options)
    return integrate(flow.settings_for(), task, options, flow.axes["options"], flow.lanes, record=record)


def tangent(flow: Flow):
    """D^k Phi along the directions of `flow`, at every saved time: ([lanes], m, n)."""
    n = flow.u0.shape[-1]
    return solve_augmented(flow, record=False).us[..., -n:]


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> from one augmented solve along every direction of u0 and of the wanted leaves."""
    flow = with_own_choices(flow)
    task, options = augmented_task(flow)
    basis = Basis(flow, wanted)
    n, big, count = flow.u0.shape[-1], task.u0.shape[-1], basis.count

    def with_directions(fn, y, params):
        """The rows (.., big) that fn(z, params) gives, with those of every direction after them; and what else."""
        y = y.reshape(count + 1, -1)
        z, s = y[0], y[1:]
        p = select(params["p"], wanted)

        def along(s, x):
            at = lambda z, p: fn(z, replace(params, wanted, p))
            return jax.jvp(at, (z, p), (s, x), has_aux=True)

        rows, directions, aux = jax.vmap(along, out_axes=(None, 0, None))(s, basis.leaves)
        directions = jnp.moveaxis(directions, 0, -2)
        return jnp.concatenate([rows, directions.reshape(*rows.shape[:-1], -1)], axis=-1), aux

    def field_of(f):
        return lambda t, y, params: with_directions(lambda z, params: (f(t, z, params), None), y, params)[0]

    inner = augmented_stages(flow)

    def stages(params, t, t_lo, y, dt, t_stop, mode, tol, known):
        def of(z, params):
            out = inner(params, t, t_lo, z, dt, t_stop, mode, tol, known)
            return jnp.concatenate([out.k, out.err[None]]), out._replace(k=None, err=None)

        rows, out = with_directions(of, y, params)
        return out._replace(k=rows[:-1], err=rows[-1])

    s0 = jnp.zeros((count, big), task.u0.dtype).at[:, :n].set(basis.u)
    s0 = flow.lanes.spread(s0.reshape(-1))
    all_ = Task(
        field_of(task.f),
        jnp.concatenate([task.u0, s0], axis=-1),
        task.p,
        task.p_axes,
        task.t0,
        task.t1,
        task.ts,
        task.system if flow.settings.method.implicit else None,
        blocks=task.blocks * (count + 1),
    )
    if flow.settings.method.implicit:
        all_ = all_._replace(stages=stages, velocity=field_of(augmented_velocity(flow)))
    repeat = lambda tol: tol if tol.shape[-1:] != (big,) else jnp.tile(tol, count + 1)
    options = tolerances(flow, options._replace(reltol=repeat(options.reltol), abstol=repeat(options.abstol)))
    result = integrate(flow.settings_for(2), all_, options, flow.axes["options"], flow.lanes, record=False)
    s = result.us[..., big:].reshape(*result.us.shape[:-1], count, big)[..., -n:]
    touched = (w != 0)[..., None, :]
    value = jnp.sum(jnp.where(touched, w[..., None, :] * s, 0), axis=(-3, -1))
    return *basis.gradient(jnp.real(value)), with_counts(result.lane.code, counts(result.lane))


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
