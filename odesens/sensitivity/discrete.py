"""`DiscreteAdjoint`: the derivative of the discrete solution on its frozen mesh.

With S_i the map of the recorded step i and V_j the dense output at the saved time t_j within step r(j),

    tangent   z_(i+1) = S_i(z_i),                                      result_j = V_j(z_r(j))
    adjoint   lam_i = (dS_i/dz)^T lam_(i+1) + sum_(r(j)=i) (dV_j/dz)^T w_j
              p_bar = sum_i (dS_i/dp)^T lam_(i+1) + sum_j (dV_j/dp)^T w_j

where z carries the tangents of order k (see `augment`). Owns: these two passes. Must not know: how steps were chosen.
"""

import jax
import jax.numpy as jnp

from ..extension import count_down
from ..integrate.loop import direction
from ..integrate.record import Place, locate
from ..methods import explicit
from . import jacobians
from .augment import Flow, initial_blocks, replace, select, with_tangents


def tangent(flow: Flow):
    """D^k Phi along the directions of `flow` (at order 0 the dense output), at every saved time: ([lanes], m, n)."""
    place = places(flow)
    z = flow.lanes.gather(mesh_states(flow), place.row)
    out = dense_map(flow)(z, flow.params, flow.lanes.gather(flow.record.times, place.row), place.theta, flow.t1)
    return jnp.where(place.inside[..., None], out, jnp.nan)


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> with respect to u0 ([lanes], n) and the wanted parameter leaves; and a code."""
    place = places(flow)
    w = poison(w, place.inside)
    rows = mesh_states(flow)
    z = flow.lanes.gather(rows, place.row)
    times = flow.lanes.gather(flow.record.times, place.row)
    code = jnp.zeros_like(flow.record.code)
    if jacobians.applies(flow, wanted):
        u_bar, p_bar = jacobians.adjoint(flow, wanted, rows, one_step(flow), one_dense(flow), place, times, z, w)
        return u_bar, p_bar, code
    u_bar, p_bar = pull_in_sequence(flow, wanted, rows, place, times, z, w)
    return u_bar, p_bar, code


def pull_in_sequence(flow: Flow, wanted: list[int], rows, place: Place, times, z, w):
    """The adjoint for many states or parameters: one vjp of a step after the other."""
    p = select(flow.p, wanted)
    dense = dense_map(flow)
    _, pull = jax.vjp(lambda z, p: dense(z, replace(flow.params, wanted, p), times, place.theta, flow.t1), z, p)
    z_bar, p_bar = pull(w)
    impulses = flow.lanes.scatter(jnp.zeros_like(rows), place.row, z_bar)
    step = step_map(flow)

    def body(i, carry):
        lam, p_bar = carry
        times = flow.lanes.row(flow.record.times, i)
        idle = (times[..., 2] == 0)[..., None, None]
        at_row = lambda z, p: step(z, replace(flow.params, wanted, p), times, flow.t1)
        _, pull = jax.vjp(at_row, flow.lanes.row(rows, i), p)
        z_bar, dp = pull(jnp.where(idle, 0, lam))
        lam = jnp.where(idle, lam, z_bar) + flow.lanes.row(impulses, i)
        return lam, jax.tree.map(jnp.add, p_bar, dp)

    size = jnp.max(flow.record.size)
    lam, p_bar = count_down(size, body, (flow.lanes.row(impulses, size), p_bar))
    return lam[..., 0, :], p_bar


# ---------------------------------------------------------------- the maps


def one_step(flow: Flow):
    """One recorded step of one lane as a map of z (2^k, n), params, times (3,) and the end time."""

    def one(z, params, times, t1):
        def step(u, p):
            k = _stages(flow, params["aux"], u, p, times, t1)
            return explicit.advance(flow.settings.tableau, u, times[2], k)

        return with_tangents(step, flow.order)(z, params["p"], params["xs"])

    return one


def step_map(flow: Flow):
    return flow.lanes.map(one_step(flow), (0, flow.params_axes, 0, 0))


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


def dense_map(flow: Flow):
    """The same for all saved times: z ([lanes], m, 2^k, n), theta ([lanes], m) -> ([lanes], m, n)."""
    return flow.lanes.map(jax.vmap(one_dense(flow), (0, None, 0, 0, None)), (0, flow.params_axes, 0, 0, 0))


def _stages(flow: Flow, aux, u, p, times, t1):
    t, t_lo, dt = times
    f = lambda t, u: flow.field(t, u, p, aux)
    return explicit.stages(flow.settings.tableau, f, t, t_lo, u, dt, f(t, u), t1, roll=flow.settings.roll)


# ---------------------------------------------------------------- the mesh


def mesh_states(flow: Flow):
    """The augmented states on the recorded mesh: (rows, [lanes], 2^k, n)."""
    return replay(flow) if flow.order else flow.record.states[..., None, :]


def replay(flow: Flow):
    """The tangents pushed through every recorded step."""
    record, lanes = flow.record, flow.lanes
    step = step_map(flow)
    z0 = initial_blocks(flow)
    rows = jnp.zeros((record.states.shape[0], *z0.shape), z0.dtype)
    size = jnp.max(record.size)

    def body(back, carry):
        z, rows = carry
        i = size - 1 - back
        times = lanes.row(record.times, i)
        idle = (times[..., 2] == 0)[..., None, None]
        rows = jax.lax.dynamic_update_index_in_dim(rows, z, i, 0)
        z1 = step(z, flow.params, times, flow.t1)
        z = jnp.where(idle, z, z1)
        return z.at[..., 0, :].set(lanes.row(record.states, i + 1)), rows

    z, rows = count_down(size, body, (z0, rows))
    return jax.lax.dynamic_update_index_in_dim(rows, z, size, 0)


def places(flow: Flow) -> Place:
    """The recorded steps that hold the saved times."""
    find = lambda times, size, ts, t0, t1: locate(times, size, ts, direction(t0, t1))
    in_axes = (1, 0, 0, 0, 0)
    return flow.lanes.map(find, in_axes)(flow.record.times, flow.record.size, flow.ts, flow.t0, flow.t1)


def poison(w, inside):
    """Cotangents of values that were never reached become NaN, unless they are zero."""
    return jnp.where(inside[..., None] | (w == 0), w, jnp.nan)
