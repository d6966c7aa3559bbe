"""The adjoint of the discrete map for few states and parameters: steps linearised at once, then a tiny recursion.

With G_i the matrix whose row e is D S_i(z_i, p)[e], e running over the unit vectors of (z, wanted parameters),

    lam_i = (G_i lam_(i+1))_z + impulse_i,     p_bar = sum_i (G_i lam_(i+1))_p

The G_i of a chunk of recorded steps do not depend on each other: they are computed side by side, in forward mode, which
for few directions runs faster than one reverse pass after the other and compiles several times faster. Owns: this
evaluation. Must not know: how the maps are built (`discrete`).
"""

import math

import jax
import jax.numpy as jnp

from ..extension import count_down, vary, varying_axes
from .augment import Flow, replace, select

DIRECTIONS_MAX = 24  # directions (2^k n + wanted parameters) up to which this is used
CHUNK = 64  # steps linearised at once, over all lanes


def applies(flow: Flow, wanted: list[int]) -> bool:
    """Whether the problem is real, small, and has a forward mode."""
    leaves = select(flow.p, wanted)
    real = all(jnp.issubdtype(x.dtype, jnp.floating) for x in [flow.u0, *leaves])
    return real and flow.field.has_forward_mode and _directions(flow, wanted) <= DIRECTIONS_MAX


def _sizes(flow: Flow, wanted: list[int]) -> list[int]:
    axes = select(flow.axes["p"], wanted)
    return [math.prod(x.shape if a is None else x.shape[1:]) for x, a in zip(select(flow.p, wanted), axes, strict=True)]


def _directions(flow: Flow, wanted: list[int]) -> int:
    return 2**flow.order * flow.u0.shape[-1] + sum(_sizes(flow, wanted))


def transposed_jacobian(flow: Flow, wanted: list[int], fn):
    """fn(z, params, *args) of one lane as a function with the same arguments that returns G (directions, size of y)."""
    n = 2**flow.order * flow.u0.shape[-1]
    sizes = _sizes(flow, wanted)
    eye = vary(jnp.eye(n + sum(sizes), dtype=flow.u0.dtype), varying_axes(flow.u0))
    starts = [n + sum(sizes[:i]) for i in range(len(sizes))]

    def jacobian(z, params, *args):
        p = select(params["p"], wanted)
        e_z = eye[:, :n].reshape(eye.shape[0], *z.shape)
        e_p = [
            eye[:, s : s + k].reshape(eye.shape[0], *x.shape).astype(x.dtype)
            for s, k, x in zip(starts, sizes, p, strict=True)
        ]

        def along(e_z, e_p):
            at = lambda z, p: fn(z, replace(params, wanted, p), *args)
            return jax.jvp(at, (z, p), (e_z, e_p))[1].reshape(-1)

        return jax.vmap(along)(e_z, e_p)

    return jacobian


def adjoint(flow: Flow, wanted: list[int], rows, step, dense, place, times, z, w):
    """u_bar ([lanes], n) and p_bar: step and dense are the one-lane maps, rows (rows, [lanes], 2^k, n) the states."""
    lanes = flow.lanes
    n = rows.shape[-2] * rows.shape[-1]

    # saved times: impulses on their rows, and their own share of the parameters' gradient
    at_saves = jax.vmap(transposed_jacobian(flow, wanted, dense), (0, None, 0, 0, None))
    g = lanes.map(at_saves, (0, flow.params_axes, 0, 0, 0))(z, flow.params, times, place.theta, flow.t1)
    bar = _apply(g, w)
    impulses = jnp.zeros((rows.shape[0], *rows.shape[1:-2], n), rows.dtype)
    impulses = lanes.scatter(impulses, place.row, bar[..., :n])
    p_bar = jnp.sum(bar[..., n:], axis=-2)

    chunk = max(1, min(CHUNK // (lanes.size or 1), rows.shape[0]))
    linearise = jax.vmap(
        lanes.map(transposed_jacobian(flow, wanted, step), (0, flow.params_axes, 0, 0)), (0, None, 0, None)
    )
    stay = jnp.concatenate([jnp.eye(n, dtype=rows.dtype), jnp.zeros((g.shape[-2] - n, n), rows.dtype)])
    size = jnp.max(flow.record.size)

    def body(c, carry):
        lam, p_bar = carry
        first = c * chunk
        # the last chunk may reach beyond the buffers; its rows then start earlier, and those done already stay put
        start = jnp.minimum(first, rows.shape[0] - chunk)
        part = lambda x: jax.lax.dynamic_slice_in_dim(x, start, chunk)
        steps = part(flow.record.times)
        index = start + jnp.arange(chunk, dtype=jnp.int32)
        mine = (index >= first) & (index < size)
        idle = (steps[..., 2] == 0) | ~mine.reshape(-1, *(1,) * (steps.ndim - 2))
        g = linearise(part(rows), flow.params, steps, flow.t1)
        g = jnp.where(idle[..., None, None], stay, g)
        kick = jnp.where(mine.reshape(-1, *(1,) * (steps.ndim - 1)), part(impulses), 0)

        def pull(lam, inputs):
            g, kick = inputs
            bar = _apply(g, lam)
            return bar[..., :n] + kick, bar[..., n:]

        lam, shares = jax.lax.scan(pull, lam, (g, kick), reverse=True)
        return lam, p_bar + jnp.sum(shares, axis=0)

    last = lanes.row(impulses, size)
    chunks = (size + chunk - 1) // chunk
    lam, p_bar = count_down(chunks, body, vary((last, p_bar), varying_axes(last, p_bar)))
    return lam.reshape(*lam.shape[:-1], *rows.shape[-2:])[..., 0, :], _split(flow, wanted, p_bar)


def _apply(g, lam):
    """sum_i G_ei lam_i as elementwise work, which small loops keep native."""
    return jnp.sum(g * lam[..., None, :], axis=-1)


def _split(flow: Flow, wanted: list[int], p_bar) -> list:
    """The parameters' gradient ([lanes], P) as leaves; shared ones summed over the lanes."""
    out, start = [], 0
    axes = select(flow.axes["p"], wanted)
    for x, axis, size in zip(select(flow.p, wanted), axes, _sizes(flow, wanted), strict=True):
        g = p_bar[..., start : start + size].astype(x.dtype)
        start += size
        if axis is None and flow.lanes.size is not None:
            g = jnp.sum(g, axis=0)
        out.append(g.reshape(x.shape))
    return out
