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

from ..extension import count_down, vary, varying_axes, while_loop
from ..integrate.loop import direction
from ..integrate.record import Steps
from ..integrate.replay import theta_in
from .augment import Flow, replace, select

DIRECTIONS_MAX = 24  # directions (2^k n + wanted parameters) up to which this is used
LANES_MAX = 32  # lanes up to which it is used: many lanes fill a vector by themselves
CHUNK = 64  # steps or saves linearised at once, over all lanes


def applies(flow: Flow, wanted: list[int]) -> bool:
    """Whether the problem is real and small, with few lanes and a forward mode."""
    leaves = select(flow.p, wanted)
    real = all(jnp.issubdtype(x.dtype, jnp.floating) for x in [flow.u0, *leaves])
    small = (flow.lanes.size or 1) <= LANES_MAX and _directions(flow, wanted) <= DIRECTIONS_MAX
    return real and small and flow.has_forward_mode and not flow.settings.method.multistep


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


class SideBySide:
    """The steps of a chunk linearised side by side; p_bar is one vector ([lanes], P) until the end."""

    def __init__(self, flow: Flow, wanted: list[int], step, dense):
        self.flow, self.wanted = flow, wanted
        self.n = 2**flow.order * flow.u0.shape[-1]
        at_saves = jax.vmap(transposed_jacobian(flow, wanted, dense), (0, None, 0, 0, None))
        self.dense = flow.lanes.map(at_saves, (0, flow.params_axes, 0, 0, 0))
        at_rows = flow.lanes.map(transposed_jacobian(flow, wanted, step), (0, flow.params_axes, 0, 0))
        self.step = jax.vmap(at_rows, (0, None, 0, None))

    def zero(self):
        return self.flow.lanes.spread(jnp.zeros(sum(_sizes(self.flow, self.wanted)), self.flow.u0.dtype))

    def leaves(self, p_bar) -> list:
        return _split(self.flow, self.wanted, p_bar)

    def pull(self, steps: Steps, w, lam, p_bar, left):
        impulses = jnp.zeros((*steps.states.shape[:-2], self.n), lam.dtype)
        if self.flow.ts.shape[-1]:
            impulses, p_bar, left = self._saves(steps, w, impulses, p_bar, left)
        lam, p_bar = self._steps(steps, lam, impulses, p_bar)
        return lam, p_bar, left

    def _saves(self, steps: Steps, w, impulses, p_bar, left):
        """Pull the cotangents of the saves within these steps, the last of the `left` ones still to be pulled."""
        flow, lanes = self.flow, self.flow.lanes
        block = max(1, min(CHUNK // (lanes.size or 1), flow.ts.shape[-1]))
        sign = lanes.map(direction)(flow.t0, flow.t1)[..., None]
        first, first_lo = steps.times[0, ..., :1], steps.times[0, ..., 1:2]
        since = (steps.times[..., 0] - first[..., 0]) + steps.times[..., 1]

        def pick(left):
            """The next saves to pull ([lanes], block), and which of them lie within these steps."""
            j = left[..., None] - 1 - jnp.arange(block, dtype=jnp.int32)
            at = jnp.maximum(j, 0)
            ts = jnp.take_along_axis(flow.ts, at, axis=-1)
            return at, ts, (j >= 0) & (sign * ((ts - first) - first_lo) >= 0)

        def body(state):
            impulses, p_bar, left = state
            at, ts, due = pick(left)
            find = lambda rows, ts, sign: jnp.searchsorted(sign * rows, sign * ts, side="right").astype(jnp.int32) - 1
            row = lanes.map(find, (1, 0, 0))(since, ts - first, sign)
            row = jnp.clip(row, 0, jnp.maximum(steps.count - 1, 0))
            times, z = lanes.gather(steps.times, row), lanes.gather(steps.states, row)
            w_due = jnp.where(due[..., None], jnp.take_along_axis(w, at[..., None], axis=-2), 0)
            g = self.dense(z, flow.params, times, theta_in(times, ts), flow.t1)
            bar = jnp.where(jnp.any(w_due != 0, axis=-1, keepdims=True), _apply(g, w_due), 0)
            impulses = lanes.scatter(impulses, row, bar[..., : self.n])
            left = left - jnp.sum(due, axis=-1, dtype=jnp.int32)
            return impulses, p_bar + jnp.sum(bar[..., self.n :], axis=-2), left

        return while_loop(lambda s: jnp.any(pick(s[2])[2]), body, (impulses, p_bar, left))

    def _steps(self, steps: Steps, lam, impulses, p_bar):
        n, rows, dtype = self.n, steps.states.shape[0], lam.dtype
        shape = lam.shape
        lam = lam.reshape(*shape[:-2], n)
        at_once = max(1, min(CHUNK // (self.flow.lanes.size or 1), rows))
        stay = jnp.concatenate([jnp.eye(n, dtype=dtype), jnp.zeros((p_bar.shape[-1], n), dtype)])

        def body(c, carry):
            lam, p_bar = carry
            first = c * at_once
            # the last part may reach beyond the rows; it then starts earlier, and rows done already stay put
            start = jnp.minimum(first, rows - at_once)
            part = lambda x: jax.lax.dynamic_slice_in_dim(x, start, at_once)
            times = part(steps.times)
            index = start + jnp.arange(at_once, dtype=jnp.int32)
            mine = (index >= first) & (index < steps.count)
            idle = (times[..., 2] == 0) | ~mine.reshape(-1, *(1,) * (times.ndim - 2))
            g = self.step(part(steps.states), self.flow.params, times, self.flow.t1)
            g = jnp.where(idle[..., None, None], stay, g)
            kick = jnp.where(mine.reshape(-1, *(1,) * (times.ndim - 1)), part(impulses), 0)

            def pull(lam, inputs):
                g, kick = inputs
                bar = _apply(g, lam)
                return bar[..., :n] + kick, bar[..., n:]

            lam, shares = jax.lax.scan(pull, lam, (g, kick), reverse=True)
            return lam, p_bar + jnp.sum(shares, axis=0)

        lam, p_bar = count_down((steps.count + at_once - 1) // at_once, body, (lam, p_bar))
        return lam.reshape(shape), p_bar


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
