"""`DiscreteAdjoint`: the derivative of the discrete solution on its frozen mesh.

With S_i the map of the recorded step i and V_j the dense output at the saved time t_j within step r(j),

    tangent   z_(i+1) = S_i(z_i),                                      result_j = V_j(z_r(j))
    adjoint   lam_i = (dS_i/dz)^T lam_(i+1) + sum_(r(j)=i) (dV_j/dz)^T w_j
              p_bar = sum_i (dS_i/dp)^T lam_(i+1) + sum_j (dV_j/dp)^T w_j

where z carries the tangents of order k (see `augment`). A Runge-Kutta step commutes with differentiation, so the
tangent is the method applied to the augmented field on the steps of the solve. Owns: these two passes. Must not know:
how steps are chosen, recorded or replayed.
"""

from dataclasses import replace as replace_fields

import jax
import jax.numpy as jnp
import numpy as np

from ..extension import compiled_whole, count_down, vary, varying_axes, while_loop
from ..integrate.loop import COUNTS, Result, direction, integrate, with_counts
from ..integrate.record import Record, Steps, rows_for
from ..integrate.replay import Replay, backwards, reached, steps_at, theta_in
from ..methods import bdf
from ..methods import step as one_step
from ..methods.step import mode_of
from . import jacobians
from .augment import Flow, augmented_task, replace, select, with_tangents

FEW = 64  # entries of a parameter leaf


def tangent(flow: Flow):
    """D^k Phi along the directions of `flow`, at every saved time: ([lanes], m, n)."""
    return augmented(flow).us[..., -flow.u0.shape[-1] :]


def interpolant(flow: Flow):
    """The dense output on the record at the times ts, in any order: ([lanes], m, n), NaN outside."""
    assert flow.record is not None
    times, states, inside, after = steps_at(replay_of(flow, flow.record), flow.ts)
    dense = flow.lanes.map(jax.vmap(dense_map(flow), (0, None, 0, 0, None, 0)), (0, flow.params_axes, 0, 0, 0, 0))
    out = dense(states[..., None, :], flow.params, times, theta_in(times, flow.ts), flow.t1, after)
    here = one_step.present(flow.settings.method, states, flow.u0.shape[-1])
    out = jnp.where(times[..., 2:3] == 0, here, out)  # the end itself
    return jnp.where(inside[..., None], out, jnp.nan)


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> with respect to u0 ([lanes], n) and the wanted parameter leaves; and how it ended.

    One vjp of a step after the other, which is compiled to one native function where it can be; where it cannot, few
    states and parameters have their steps linearised side by side.
    """
    record = augmented(flow, record=True).record if flow.order else flow.record
    assert record is not None
    inside = reached(record, flow.lanes, flow.ts, flow.t0, flow.t1)
    failed = jnp.any((w != 0) & ~inside[..., None], axis=(-2, -1))
    w = poison(w, inside)
    one_by_one = lambda record, w: sweep(flow, record, w, InSequence(flow, wanted))
    at_once = None
    if jacobians.applies(flow, wanted):
        engine = jacobians.SideBySide(flow, wanted, step_map(flow), dense_map(flow))
        at_once = lambda record, w: sweep(flow, record, w, engine)
    u_bar, p_bar = compiled_whole(one_by_one, record, w, otherwise=at_once)
    none = jnp.zeros((*record.code.shape, COUNTS), jnp.int32)  # no solve of its own
    return *mark_failed(flow, wanted, failed, u_bar, p_bar), with_counts(jnp.zeros_like(record.code), none)


def sweep(flow: Flow, record: Record, w, engine):
    """u_bar and p_bar by an engine that pulls cotangents through chunks of steps."""
    lanes, m = flow.lanes, flow.ts.shape[-1]
    blocks, n = 2**flow.order, flow.u0.shape[-1]
    size = flow.settings.method.memory(n)
    # saves at the very end are values of the last state itself
    sign = lanes.map(direction)(flow.t0, flow.t1)[..., None]
    t_end = lanes.row(record.times, record.size)[..., :1]
    inner = sign * (flow.ts - t_end) < 0
    last = jnp.sum(jnp.where(inner[..., None], 0, w), axis=-2) if m else jnp.zeros_like(flow.u0)
    last = jnp.pad(last, [(0, 0)] * (last.ndim - 1) + [(0, size - n)])
    lam = jnp.concatenate([jnp.zeros((*last.shape[:-1], blocks - 1, size), last.dtype), last[..., None, :]], axis=-2)
    left = jnp.sum(inner, axis=-1, dtype=jnp.int32)

    def visit(carry, steps: Steps):
        steps = steps._replace(states=steps.states.reshape(*steps.states.shape[:-1], blocks, size))
        if steps.last is not None:
            steps = steps._replace(last=steps.last.reshape(*steps.last.shape[:-1], blocks, size))
        lam, *rest = engine.pull(steps, w, *carry)
        if steps.last is not None:
            end = jnp.maximum(steps.count - 1, 0)
            here = lanes.row(steps.states, end), lanes.row(steps.times, end)[..., 2], steps.last
            ok = lanes.map(bdf.follows)(*here) | (steps.count == 0)
            lam = jnp.where(ok[..., None, None], lam, jnp.nan)
        return lam, *rest

    carry = (lam, engine.zero(), left)
    carry = vary(carry, varying_axes(*jax.tree.leaves((carry, w, flow.params))))
    lam, p_bar, _ = backwards(replay_of(flow, record), visit, carry)
    return lam[..., 0, :n], engine.leaves(p_bar)


class InSequence:
    """One vjp of a step's stages after the other, whatever the number of saves within the step.

    With k the stages of a step from z, the next state is z + dt sum_i b_i k_i and a save in it z + dt sum_i b_i(theta)
    k_i: both are linear in (z, k), so their cotangents add up to one of (z, k).
    """

    def __init__(self, flow: Flow, wanted: list[int]):
        self.flow, self.wanted = flow, wanted
        # few parameters that lanes share: a gradient for each lane, summed at the end, costs less than a sum each step
        lanes, axes = flow.lanes, flow.axes["p"]
        few = lambda i: lanes.size is not None and axes[i] is None and flow.p[i].size <= FEW
        self.summed = [few(i) for i in wanted]
        self.p = [lanes.spread(flow.p[i]) if few(i) else flow.p[i] for i in wanted]
        self.axes = {**flow.params_axes, "p": [0 if i in wanted and few(i) else a for i, a in enumerate(axes)]}

    def zero(self):
        return jax.tree.map(jnp.zeros_like, self.p)

    def leaves(self, p_bar) -> list:
        return [jnp.sum(g, axis=0) if summed else g for g, summed in zip(p_bar, self.summed, strict=True)]

    def pull(self, steps: Steps, w, lam, p_bar, left):
        flow, method, tableau = self.flow, self.flow.settings.method, self.flow.settings.tableau
        lanes, m = flow.lanes, flow.ts.shape[-1]
        extra = tableau.n_extra if m else 0
        last = jnp.asarray(np.arange(2**flow.order) == 2**flow.order - 1, lam.dtype)  # a save is of the last block

        def due(ts, left, times, t0, t1):
            late = (ts[jnp.maximum(left - 1, 0)] - times[0]) - times[1]
            return (left > 0) & (direction(t0, t1) * late >= 0)

        def save(state, ts, w, times, is_due, z):
            """Add the cotangents of one save to those of z and of its stages."""
            z_bar, k_bar, left = state
            j = jnp.maximum(left - 1, 0)
            if method.multistep:
                here = last[:, None] * jnp.where(is_due, w[j], 0)
                pulled = pulled_value(method, z, times, here, theta_in(times, ts[j]))
                return z_bar + pulled[0], k_bar + pulled[1], left - is_due.astype(jnp.int32)
            weights = one_step.dense_weights(method, theta_in(times, ts[j]), k_bar.dtype, mode_of(times[3]))
            here = jnp.where(is_due, w[j], 0)
            in_k = times[2].astype(k_bar.dtype) * weights[:, None] * here[None]
            return (
                z_bar + last[:, None] * here[None],
                k_bar + last[:, None, None] * in_k[None],
                left - is_due.astype(jnp.int32),
            )

        def start(lam, times):
            """The cotangents of z and of its stages (2^k, stages, n) that come from the next state."""
            if method.multistep:
                return pulled_value(method, jnp.zeros_like(lam), times, lam, None)
            b = jnp.asarray(one_step.weights(method, lam.dtype, mode_of(times[3]))) * times[2].astype(lam.dtype)
            k_bar = b[None, :, None] * jnp.where(times[2] == 0, 0, lam)[:, None, :]
            return lam, jnp.pad(k_bar, [(0, 0), (0, extra), (0, 0)])

        def body(i, carry):
            lam, p_bar, left = carry
            times, z, after = lanes.row(steps.times, i), lanes.row(steps.states, i), steps.after(i)
            after = None if after is None else after[..., 0, :]
            z_bar, k_bar = lanes.map(start)(lam, times)
            if m:
                is_due = lambda left: lanes.map(due)(flow.ts, left, times, flow.t0, flow.t1)
                add = lambda s: lanes.map(save)(s, flow.ts, w, times, is_due(s[2]), z)
                any_due = jnp.any(is_due(left))
                z_bar, k_bar, left = while_loop(lambda s: jnp.any(is_due(s[2])), add, (z_bar, k_bar, left))

            def pulled(extra, k_bar):
                stages = lanes.map(all_stages(flow, extra), (0, self.axes, 0, 0, 0))
                at = lambda z, p: stages(z, replace(flow.params, self.wanted, p), times, flow.t1, after)
                return jax.vjp(at, z, self.p)[1](k_bar)

            main = k_bar[..., : tableau.stages, :]
            if extra:  # they are zero, and not evaluated, where no lane has a save
                dz, dp = jax.lax.cond(any_due, lambda: pulled(True, k_bar), lambda: pulled(False, main))
            else:
                dz, dp = pulled(False, main)
            idle = (times[..., 2] == 0)[..., None, None]
            return z_bar + jnp.where(idle, 0, dz), jax.tree.map(jnp.add, p_bar, dp), left

        return count_down(steps.count, body, (lam, p_bar, left))


def pulled_value(method, z, times, bar, theta):
    """The cotangents of z (2^k, N) and of a BDF step's solution (2^k, 1, n) for that of its dense output at theta, or
    of the next z where theta is None."""
    blocks, axes = z.shape[0], varying_axes(z, times, bar)
    dt, k = times[2], jnp.zeros((1, blocks * method.states(z.shape[1])), z.dtype)
    z, k = vary((z, k), axes)  # else the cotangents of constants would be summed over devices, within this loop

    def value(z, k):
        if theta is None:
            return one_step.advance(method, z, dt, k, mode_of(times[3]))
        return one_step.interpolate(method, z, dt, k, theta, mode_of(times[3]))

    z_bar, k_bar = (x.reshape(blocks, -1) for x in jax.vjp(value, z.reshape(-1), k)[1](bar.reshape(-1)))
    stays = (dt == 0) & (theta is None)
    return jnp.where(stays, bar if theta is None else 0, z_bar), jnp.where(stays, 0, k_bar)[:, None, :]


# ---------------------------------------------------------------- the maps


def step_map(flow: Flow):
    """One recorded step of one lane as a map of z (2^k, n), params, times (4,) and the end time."""

    def one(z, params, times, t1):
        def step(u, p):
            k = _stages(flow, params, u, p, times, t1, extra=False)
            return one_step.advance(flow.settings.method, u, times[2], k, mode_of(times[3]))

        return with_tangents(step, flow.order)(z, params["p"], params["xs"])

    return one


def dense_map(flow: Flow):
    """The last block of one lane's dense output at theta within the step from z (2^k, n)."""

    def one(z, params, times, theta, t1, after=None):
        def value(u, p):
            k = _stages(flow, params, u, p, times, t1, after, extra=True)
            return one_step.interpolate(flow.settings.method, u, times[2], k, theta, mode_of(times[3]))

        return with_tangents(value, flow.order)(z, params["p"], params["xs"])[-1]

    return one


def all_stages(flow: Flow, extra: bool):
    """The stages of one lane's step as a map of z (2^k, n), params, times (4,) and the end time: (2^k, stages, n)."""

    def one(z, params, times, t1, after=None):
        stages = lambda u, p: _stages(flow, params, u, p, times, t1, after, extra=extra)
        return with_tangents(stages, flow.order)(z, params["p"], params["xs"])

    return one


def _stages(flow: Flow, params, u, p, times, t1, after=None, *, extra: bool):
    """The stages of a recorded step, with `extra` those that only dense output needs too.

    after (N,): the recorded state after a BDF step, which has its solution.
    """
    t, t_lo, dt, auto = times
    known = None if after is None else after[: flow.settings.method.states(after.size)]
    k = flow.stages(p, params["aux"], params["tol"], t, t_lo, u, dt, t1, mode_of(auto), known)
    if not extra:
        return k
    f = lambda t, u: flow.field(t, u, p, params["aux"])
    return one_step.extra_stages(flow.settings.method, f, t, t_lo, u, dt, k, t1)


# ---------------------------------------------------------------- the mesh


def augmented(flow: Flow, *, record: bool = False) -> Result:
    """The augmented state on the steps of the solve itself."""
    task, _ = augmented_task(flow)
    settings = replace_fields(flow.settings_for(), controlled=flow.u0.shape[-1])
    if record:  # the saves are not needed
        task = task._replace(ts=task.ts[..., :0])
    rows = rows_for(settings.max_steps, task.u0.shape[-1]) if record else 0
    return integrate(settings, task, flow.options, flow.axes["options"], flow.lanes, record=rows, mesh=flow.record)


def replay_of(flow: Flow, record: Record) -> Replay:
    """The solve of the augmented state on the steps of the solve itself, as it was recorded."""
    task, _ = augmented_task(flow)
    settings = replace_fields(flow.settings_for(), controlled=flow.u0.shape[-1])
    return Replay(settings, task, flow.options, flow.axes["options"], flow.lanes, record)


def mark_failed(flow: Flow, wanted: list[int], failed, u_bar, p_bar: list):
    """The gradient with NaN where a lane `failed` ([lanes]); in what the lanes share, where any did."""
    u_bar = jnp.where(failed[..., None], jnp.nan, u_bar)

    def mark(g, axis):
        own = axis == 0 and flow.lanes.size is not None
        return jnp.where(failed.reshape(-1, *(1,) * (g.ndim - 1)) if own else jnp.any(failed), jnp.nan, g)

    return u_bar, [mark(g, axis) for g, axis in zip(p_bar, select(flow.axes["p"], wanted), strict=True)]


def poison(w, inside):
    """Cotangents of values that were never reached become NaN, unless they are zero."""
    return jnp.where(inside[..., None] | (w == 0), w, jnp.nan)
