"""`BacksolveAdjoint`: u, lam and the parameter integral in one backward equation; no step is recorded.

    z' = F(t, z),   lam' = -F_z^T lam,   p_bar' = -F_p^T lam,   backwards from the end;

with `restart`, z is set to its saved value at each saved time, which keeps the growth of its error in check. Owns: the
joint state and the restarts. Must not know: the sweep's stepping.
"""

import jax.numpy as jnp

from . import backward
from .augment import Flow, augmented_task
from .continuous import Adjoint, backward_settings, outputs, pullback, smallest
from .discrete import poison
from .forward import settings_of, solve_augmented, tolerances
from .interpolating import Joint


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> with respect to u0 ([lanes], n) and the wanted leaves of p; and how it ended."""
    task, options = augmented_task(flow)
    saves, last = saved_states(flow)
    reached = jnp.all(jnp.isfinite(saves), axis=-1)
    n, size = flow.u0.shape[-1], task.u0.shape[-1]
    settings = backward_settings(settings_of(flow, 3), None, size, 2)
    scalars = tolerances(flow, options._replace(reltol=smallest(flow, "reltol"), abstol=smallest(flow, "abstol")))
    adj = Adjoint(flow, wanted, task.f, task.p, task.p_axes, None, poison(w, reached), settings, scalars, size)
    pack = Joint(flow, task.p_axes, wanted, size)

    def rhs(t, y, context, params):
        z, lam = pack.lam(y), pack.lam(y[size:])
        lam_dot, p_dot = pullback(adj, t, z, params, lam)
        return jnp.concatenate([adj.f(t, z, params).astype(y.dtype), -pack.join(lam_dot, p_dot)])

    def impulse(_, j, y, data):
        w, saves = data
        if flow.sensealg.restart:
            y = jnp.concatenate([saves[j].astype(y.dtype), y[size:]])
        return y + jnp.pad(w[j].astype(y.dtype), (2 * size - n, y.size - 2 * size))

    def rows(one_row, carry):
        return one_row(flow.t0, jnp.zeros_like(flow.t0), carry)

    sweep = backward.Sweep(
        adj.settings,
        flow.lanes,
        scalars,
        flow.axes["options"],
        task.p,
        task.p_axes,
        rhs,
        rows,
        impulse,
        (adj.w, saves),
    )
    zeros = flow.lanes.spread(jnp.zeros(pack.size, pack.dtype))
    y1 = jnp.concatenate([last.astype(pack.dtype), zeros], axis=-1)
    y, _, ended = backward.run(sweep, y1, flow.t0, flow.t1, flow.ts)
    lam, p_bar = pack.split(y[..., size:])
    return outputs(adj, lam, p_bar, ended)


def saved_states(flow: Flow):
    """The augmented states at the saved times ([lanes], m, N) and at the end ([lanes], N)."""
    if flow.order:
        result = solve_augmented(flow, record=False)
        return result.us, result.lane.u
    states = jnp.moveaxis(flow.record.states, 0, -2)
    return states[..., :-1, :], states[..., -1, :]
