"""What the continuous adjoints that use the dense record have in common.

Owns: the augmented problem's record, u(t) within a row, the pullback of the augmented field, impulses. Must not know:
how the parameter integral is taken.

With F the augmented field and z its state, lam' = -F_z^T lam backwards, lam += w_j (last block) at each saved time,
and p_bar = int F_p^T lam dt.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..extension import count_down
from ..integrate.loop import Options, Settings, integrate
from ..integrate.record import Steps, rows_for
from ..integrate.replay import Replay, backwards, reached, theta_in
from ..methods import explicit
from .augment import Flow, augmented_task, replace, select
from .backward import Sweep
from .discrete import mark_failed, poison
from .forward import settings_of, tolerances


class Step(NamedTuple):
    """One recorded step of one lane: its times (3,), state z, and all stages k."""

    times: Any
    z: Any
    k: Any


class Adjoint(NamedTuple):
    """The augmented problem with its record, ready to be swept backwards."""

    flow: Flow
    wanted: list
    f: Any
    params: Any
    params_axes: Any
    replay: Replay | None
    w: Any  # cotangents, NaN where no value was reached
    settings: Settings
    options: Options
    size: int  # of z

    @property
    def p(self) -> list:
        return select(self.params["p"], self.wanted)


def prepare(flow: Flow, w, wanted: list[int]) -> Adjoint:
    """The record of the augmented problem: the primal's own at order 0, an augmented solve above."""
    task, options = augmented_task(flow)
    settings, axes = flow.settings_for(), flow.axes["options"]
    record = flow.record
    if flow.order:
        rows = rows_for(settings.max_steps, task.u0.shape[-1])
        record = integrate(settings, task, options, axes, flow.lanes, record=rows).record
    assert record is not None
    inside = reached(record, flow.lanes, flow.ts, flow.t0, flow.t1)
    scalars = tolerances(flow, options._replace(reltol=smallest(flow, "reltol"), abstol=smallest(flow, "abstol")))
    return Adjoint(
        flow,
        wanted,
        task.f,
        task.p,
        task.p_axes,
        Replay(settings, task, options, axes, flow.lanes, record),
        poison(w, inside),
        settings_of(flow, 3),
        scalars,
        task.u0.shape[-1],
    )


def smallest(flow: Flow, name: str):
    """One tolerance for lam and p_bar, whose components are not those of u: the smallest of those given."""
    axis = getattr(flow.axes["options"], name)
    tol = getattr(flow.options, name)
    return flow.lanes.map(jnp.min)(tol) if axis == 0 else jnp.min(tol)


def recorded_rows(adj: Adjoint):
    """The rows of the record, the last first, for `Sweep.rows`."""
    assert adj.replay is not None
    replay, row = adj.replay, adj.flow.lanes.row

    def rows(one_row, carry):
        def visit(carry, steps: Steps):
            one = lambda i, carry: one_row(*recorded_step(adj, row(steps.times, i), row(steps.states, i)), carry)
            return count_down(steps.count, one, carry)

        return backwards(replay, visit, carry)

    return rows


def recorded_step(adj: Adjoint, times, z) -> tuple[Any, Step]:
    """The time at which a row starts, and the step taken from there with its stages evaluated again."""
    tableau, roll = adj.flow.settings.tableau, adj.flow.settings_for().roll

    def one(params, times, z, t1):
        t, t_lo, dt = times
        f = lambda t, z: adj.f(t, z, params)
        k = explicit.stages(tableau, f, t, t_lo, z, dt, f(t, z), t1, roll=roll)
        return explicit.extra_stages(tableau, f, t, t_lo, z, dt, k, t1, roll=roll)

    k = adj.flow.lanes.map(one, (adj.params_axes, 0, 0, 0))(adj.params, times, z, adj.flow.t1)
    return times[..., 0], Step(times, z, k)


def state_at(adj: Adjoint, step: Step, t):
    """z(t) within a recorded step of one lane."""
    theta = theta_in(step.times, t)
    return explicit.interpolate(adj.flow.settings.tableau, step.z, step.times[2], step.k, theta)


def pullback(adj: Adjoint, t, z, params, lam):
    """(F_z^T lam, F_p^T lam) of one lane at t; the parameter part as a list of leaves."""
    at = lambda z, p: adj.f(t, z, replace(params, adj.wanted, p))
    return jax.vjp(at, z, select(params["p"], adj.wanted))[1](lam)


def state_pullback(adj: Adjoint, t, z, params, lam):
    """F_z^T lam of one lane at t."""
    return jax.vjp(lambda z: adj.f(t, z, params), z)[1](lam)[0]


def add_impulse(adj: Adjoint):
    """y + w_j on the last block of lam, the leading part of y."""
    n, size = adj.flow.u0.shape[-1], adj.size

    def impulse(j, y, w):
        return y + jnp.pad(w[j].astype(y.dtype), (size - n, y.size - size))

    return impulse


def lam_sweep(adj: Adjoint, accumulate) -> Sweep:
    """The backward sweep of lam alone; `accumulate` sees each step taken."""

    def rhs(t, lam, step, params):
        return -state_pullback(adj, t, state_at(adj, step, t), params, lam)

    return Sweep(
        adj.settings,
        adj.flow.lanes,
        adj.options,
        adj.flow.axes["options"],
        adj.params,
        adj.params_axes,
        rhs,
        recorded_rows(adj),
        add_impulse(adj),
        adj.w,
        accumulate,
    )


def lam_stages(adj: Adjoint, params, t, t_lo, lam, dt, k, t_stop, step: Step):
    """All stages of a backward step of one lane, from its main ones."""
    f = lambda t, lam: -state_pullback(adj, t, state_at(adj, step, t), params, lam)
    return explicit.extra_stages(adj.settings.tableau, f, t, t_lo, lam, dt, k, t_stop, roll=adj.settings.roll)


def p_integral(adj: Adjoint, params, ts, z, lam):
    """sum over lanes and nodes g of F_p(t_g, z_g)^T lam_g, lam_g holding its weight: one vjp of the batched field.

    ts ([lanes], g), z and lam ([lanes], g, N); leaves shared by the lanes get the sum over them.
    """

    def batched(p):
        one = lambda params, t, z: adj.f(t, z, params)
        nodes = jax.vmap(one, (None, 0, 0))
        return adj.flow.lanes.map(nodes, (adj.params_axes, 0, 0))(replace(params, adj.wanted, p), ts, z)

    return jax.vjp(batched, select(params["p"], adj.wanted))[1](lam)[0]


def outputs(adj: Adjoint, lam, p_bar: list, code):
    """u_bar, p_bar and the code; NaN where the backward solve failed."""
    u_bar = lam[..., : adj.flow.u0.shape[-1]]
    return *mark_failed(adj.flow, adj.wanted, code != 0, u_bar, p_bar), code
