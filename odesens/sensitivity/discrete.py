"""`DiscreteAdjoint`: the derivative of the discrete solution on its frozen mesh.

With S_i the map of the recorded step i and V_j the dense output at the saved time t_j within step r(j),

    tangent   z_(i+1) = S_i(z_i),                                      result_j = V_j(z_r(j))
    adjoint   lam_i = (dS_i/dz)^T lam_(i+1) + sum_(r(j)=i) (dV_j/dz)^T w_j
              p_bar = sum_i (dS_i/dp)^T lam_(i+1) + sum_j (dV_j/dp)^T w_j

where z carries the tangents of order k (see `augment`). A Runge-Kutta step commutes with differentiation, so the
tangent is the method applied to the augmented field, with the error control looking at u alone: the steps are those of
the solve. Owns: these two passes. Must not know: how steps are chosen, recorded or replayed.
"""

from dataclasses import replace as replace_fields

import jax
import jax.numpy as jnp

from ..extension import count_down, vary, varying_axes, while_loop
from ..integrate.loop import Result, direction, integrate
from ..integrate.record import Record, Steps, rows_for
from ..integrate.replay import Replay, backwards, reached, steps_at, theta_in
from ..methods import explicit
from . import jacobians
from .augment import Flow, augmented_task, replace, select, with_tangents

SAVES_AT_ONCE = 64  # over all lanes


def tangent(flow: Flow):
    """D^k Phi along the directions of `flow`, at every saved time: ([lanes], m, n)."""
    return augmented(flow).us[..., -flow.u0.shape[-1] :]


def interpolant(flow: Flow):
    """The dense output on the record at the times ts, in any order: ([lanes], m, n), NaN outside."""
    assert flow.record is not None
    times, states, inside = steps_at(replay_of(flow, flow.record), flow.ts)
    dense = flow.lanes.map(jax.vmap(one_dense(flow), (0, None, 0, 0, None)), (0, flow.params_axes, 0, 0, 0))
    out = dense(states[..., None, :], flow.params, times, theta_in(times, flow.ts), flow.t1)
    return jnp.where(inside[..., None], out, jnp.nan)


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> with respect to u0 ([lanes], n) and the wanted parameter leaves; and a code."""
    lanes, m = flow.lanes, flow.ts.shape[-1]
    record = augmented(flow, record=True).record if flow.order else flow.record
    assert record is not None
    w = poison(w, reached(record, lanes, flow.ts, flow.t0, flow.t1))
    kind = jacobians.Pullback if jacobians.applies(flow, wanted) else Pullback
    engine = kind(flow, wanted, one_step(flow), one_dense(flow))
    blocks, n = 2**flow.order, flow.u0.shape[-1]

    # saves at the very end are values of the last state itself
    sign = lanes.map(direction)(flow.t0, flow.t1)[..., None]
    t_end = lanes.row(record.times, record.size)[..., :1]
    inner = sign * (flow.ts - t_end) < 0
    last = jnp.sum(jnp.where(inner[..., None], 0, w), axis=-2) if m else jnp.zeros_like(flow.u0)
    lam = jnp.zeros((*flow.u0.shape[:-1], blocks, n), last.dtype).at[..., -1, :].set(last)
    left = jnp.sum(inner, axis=-1, dtype=jnp.int32)

    def visit(carry, steps: Steps):
        lam, p_bar, left = carry
        steps = steps._replace(states=steps.states.reshape(*steps.states.shape[:-1], blocks, n))
        impulses = jnp.zeros_like(steps.states, dtype=lam.dtype)
        if m:
            impulses, p_bar, left = pull_saves(flow, engine, steps, w, impulses, p_bar, left)
        lam, p_bar = engine.steps(steps, lam, impulses, p_bar)
        return lam, p_bar, left

    carry = (lam, engine.zero(), left)
    carry = vary(carry, varying_axes(*jax.tree.leaves((carry, w, flow.params))))
    lam, p_bar, _ = backwards(replay_of(flow, record), visit, carry)
    return lam[..., 0, :], engine.leaves(p_bar), jnp.zeros_like(record.code)


def pull_saves(flow: Flow, engine, steps: Steps, w, impulses, p_bar, left):
    """Pull the cotangents of the saves within these steps, the last of the `left` ones that are still to be pulled."""
    lanes, m = flow.lanes, flow.ts.shape[-1]
    block = max(1, min(SAVES_AT_ONCE // (lanes.size or 1), m))
    sign = lanes.map(direction)(flow.t0, flow.t1)[..., None]
    first = steps.times[0, ..., 0][..., None]
    backward = jnp.arange(block, dtype=jnp.int32)

    def pick(left):
        """The next saves to pull ([lanes], block), and which of them lie within these steps."""
        j = left[..., None] - 1 - backward
        at = jnp.maximum(j, 0)
        ts = jnp.take_along_axis(flow.ts, at, axis=-1)
        return at, ts, (j >= 0) & (sign * (ts - first) >= 0)

    def body(state):
        impulses, p_bar, left = state
        at, ts, due = pick(left)
        find = lambda rows, ts, sign: jnp.searchsorted(sign * rows, sign * ts, side="right") - 1
        row = lanes.map(find, (1, 0, 0))(steps.times[..., 0], ts, sign)
        row = jnp.clip(row, 0, jnp.maximum(steps.count - 1, 0))
        times, z = lanes.gather(steps.times, row), lanes.gather(steps.states, row)
        w_due = jnp.where(due[..., None], jnp.take_along_axis(w, at[..., None], axis=-2), 0)
        z_bar, p_bar = engine.saves(z, times, theta_in(times, ts), w_due, p_bar)
        impulses = lanes.scatter(impulses, row, jnp.where(due[..., None, None], z_bar, 0))
        return impulses, p_bar, left - jnp.sum(due, axis=-1, dtype=jnp.int32)

    return while_loop(lambda s: jnp.any(pick(s[2])[2]), body, (impulses, p_bar, left))


class Pullback:
    """One vjp of a step after the other: for many states or parameters."""

    def __init__(self, flow: Flow, wanted: list[int], step, dense):
        self.flow, self.wanted = flow, wanted
        self.p = select(flow.p, wanted)
        self.dense = flow.lanes.map(jax.vmap(dense, (0, None, 0, 0, None)), (0, flow.params_axes, 0, 0, 0))
        self.step = flow.lanes.map(step, (0, flow.params_axes, 0, 0))

    def zero(self):
        return jax.tree.map(jnp.zeros_like, self.p)

    def leaves(self, p_bar) -> list:
        return p_bar

    def saves(self, z, times, theta, w, p_bar):
        """Cotangents of the states ([lanes], m, 2^k, n) that saves within steps from there start from."""
        at = lambda z, p: self.dense(z, replace(self.flow.params, self.wanted, p), times, theta, self.flow.t1)
        z_bar, dp = jax.vjp(at, z, self.p)[1](w)
        return z_bar, jax.tree.map(jnp.add, p_bar, dp)

    def steps(self, steps: Steps, lam, impulses, p_bar):
        row = self.flow.lanes.row

        def body(i, carry):
            lam, p_bar = carry
            times = row(steps.times, i)
            idle = (times[..., 2] == 0)[..., None, None]
            at = lambda z, p: self.step(z, replace(self.flow.params, self.wanted, p), times, self.flow.t1)
            z_bar, dp = jax.vjp(at, row(steps.states, i), self.p)[1](jnp.where(idle, 0, lam))
            lam = jnp.where(idle, lam, z_bar) + row(impulses, i)
            return lam, jax.tree.map(jnp.add, p_bar, dp)

        return count_down(steps.count, body, (lam, p_bar))


# ---------------------------------------------------------------- the maps


def one_step(flow: Flow):
    """One recorded step of one lane as a map of z (2^k, n), params, times (3,) and the end time."""

    def one(z, params, times, t1):
        def step(u, p):
            k = _stages(flow, params["aux"], u, p, times, t1)
            return explicit.advance(flow.settings.tableau, u, times[2], k)

        return with_tangents(step, flow.order)(z, params["p"], params["xs"])

    return one


def one_dense(flow: Flow):
    """The last block of one lane's dense output at theta within the step from z (2^k, n)."""
    tableau = flow.settings.tableau

    def one(z, params, times, theta, t1):
        def value(u, p):
            t, t_lo, dt = times
            k = _stages(flow, params["aux"], u, p, times, t1)
            f = lambda t, u: flow.field(t, u, p, params["aux"])
            k = explicit.extra_stages(tableau, f, t, t_lo, u, dt, k, t1, roll=flow.settings.roll)
            return explicit.interpolate(tableau, u, dt, k, theta)

        return with_tangents(value, flow.order)(z, params["p"], params["xs"])[-1]

    return one


def _stages(flow: Flow, aux, u, p, times, t1):
    t, t_lo, dt = times
    f = lambda t, u: flow.field(t, u, p, aux)
    return explicit.stages(flow.settings.tableau, f, t, t_lo, u, dt, f(t, u), t1, roll=flow.settings.roll)


# ---------------------------------------------------------------- the mesh


def augmented(flow: Flow, *, record: bool = False) -> Result:
    """The augmented state on the steps of the solve itself."""
    task, _ = augmented_task(flow)
    settings = replace_fields(flow.settings_for(), controlled=flow.u0.shape[-1])
    if record:  # the saves are not needed
        task = task._replace(ts=task.ts[..., :0])
    rows = rows_for(settings.max_steps, task.u0.shape[-1]) if record else 0
    return integrate(settings, task, flow.options, flow.axes["options"], flow.lanes, record=rows)


def replay_of(flow: Flow, record: Record) -> Replay:
    """The solve of the augmented state on the steps of the solve itself, as it was recorded."""
    task, _ = augmented_task(flow)
    settings = replace_fields(flow.settings_for(), controlled=flow.u0.shape[-1])
    return Replay(settings, task, flow.options, flow.axes["options"], flow.lanes, record)


def poison(w, inside):
    """Cotangents of values that were never reached become NaN, unless they are zero."""
    return jnp.where(inside[..., None] | (w == 0), w, jnp.nan)
