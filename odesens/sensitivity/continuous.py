"""What the continuous adjoints that use the dense record have in common.

Owns: the augmented problem's record, u(t) within a row, the pullback of the augmented field, impulses. Must not know:
how the parameter integral is taken.

With F the augmented field and z its state, M^T lam' = -F_z^T lam backwards, lam += nu_j at each saved time, u_bar =
M^T lam(t0) and p_bar = int F_p^T lam dt, where nu_j = M^(-T) w_j on the last block. Where M is singular, z at t_j is
bound by the algebraic equations N^T F = 0, N the null space of M^T: a change of z obeys B dz = M dz - N N^T F_p dp
with B = M + N N^T F_z, so that nu_j = B^(-T) w_j, and p_bar has -F_p^T N N^T nu_j besides. lam must obey
V^T F_z^T lam = 0, V the null space of M, of which M^T lam alone is free: (M^T + V V^T F_z^T) lam = M^T lam restores
that after an impulse. Source: Cao, Li, Petzold, Serban, SIAM J. Sci. Comput. 24 (2003), section 2, for index 1.
"""

from collections.abc import Callable
from dataclasses import replace as dataclass_replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..extension import count_down
from ..integrate.loop import Options, Settings, integrate, system_of
from ..integrate.record import Steps, rows_for
from ..integrate.replay import Replay, backwards, reached, steps_at, theta_in
from ..methods import step as one_step
from ..methods.linear import DENSE, Jacobian, Mass, of_map, parts_of
from ..methods.step import mode_of
from .augment import Flow, augmented_task, replace, select
from .backward import Sweep
from .discrete import mark_failed, poison
from .forward import settings_of, tolerances


class Step(NamedTuple):
    """One recorded step of one lane: its times (4,), state z, and all stages k."""

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
    mass: Mass | None = None  # M of the augmented problem
    saves: Any = None  # z at the saved times ([lanes], m, N), where M is singular

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
    mass, size = settings.method.mass, task.u0.shape[-1]
    mass = None if mass is None else mass.blocks(2**flow.order)
    adj = Adjoint(
        flow,
        wanted,
        task.f,
        task.p,
        task.p_axes,
        Replay(settings, task, options, axes, flow.lanes, record),
        poison(w, inside),
        backward_settings(settings_of(flow, 3), mass, size, 2**flow.order),
        scalars,
        size,
        mass,
    )
    return adj._replace(saves=states_at(adj, flow.ts)) if mass is not None and mass.singular else adj


def backward_settings(settings: Settings, mass: Mass | None, size: int, blocks: int) -> Settings:
    """The settings of M^T lam' = -F_z^T lam; the pattern of F_z is that of f_u where no tangents are carried along."""
    method = settings.method
    lin = dataclass_replace(method.linear, lead=size)
    if blocks > 1:
        lin = dataclass_replace(lin, sparsity=None, kind="krylov" if lin.kind == "krylov" else "dense")
    method = dataclass_replace(method, mass=None if mass is None else mass.transposed, linear=lin)
    return dataclass_replace(settings, method=method)


def states_at(adj: Adjoint, ts):
    """z at the times ts ([lanes], m), from the record."""
    assert adj.replay is not None
    times, states, _, after = steps_at(adj.replay, ts)

    def one(params, times, z, t, t1, after):
        step = Step(times, z, stages_of(adj, params, times, z, t1, after))
        here = one_step.present(adj.flow.settings.method, z, adj.size)
        return jnp.where(times[2] == 0, here, state_at(adj, step, t))

    at = adj.flow.lanes.map(jax.vmap(one, (None, 0, 0, 0, None, 0)), (adj.params_axes, 0, 0, 0, 0, 0))
    return at(adj.params, times, states, ts, adj.flow.t1, after)


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
            step = lambda i: recorded_step(adj, row(steps.times, i), row(steps.states, i), steps.after(i))
            return count_down(steps.count, lambda i, carry: one_row(*step(i), carry), carry)

        return backwards(replay, visit, carry)

    return rows


def recorded_step(adj: Adjoint, times, z, after) -> tuple[Any, Step]:
    """The time at which a row starts, and the step taken from there with its stages evaluated again."""
    one = lambda params, times, z, t1, after: stages_of(adj, params, times, z, t1, after)
    k = adj.flow.lanes.map(one, (adj.params_axes, 0, 0, 0, 0))(adj.params, times, z, adj.flow.t1, after)
    return times[..., 0], Step(times, z, k)


def stages_of(adj: Adjoint, params, times, z, t1, after):
    """All stages of one lane's recorded step; the one of a BDF step is in the state after it."""
    assert adj.replay is not None
    method, task = adj.flow.settings_for().method, adj.replay.task
    if method.multistep:
        return one_step.present(method, after, adj.size)[None]
    t, t_lo, dt, auto = times
    if task.stages is not None:
        return task.stages(params, t, t_lo, z, dt, t1, mode_of(auto), params["tol"], None).k
    system = system_of(task, params, params["tol"])
    k = one_step.stages(method, system, t, t_lo, z, dt, None, t1, mode_of(auto), exact=False).k
    return one_step.extra_stages(method, system.f, t, t_lo, z, dt, k, t1)


def state_at(adj: Adjoint, step: Step, t):
    """z(t) within a recorded step of one lane."""
    theta, mode = theta_in(step.times, t), mode_of(step.times[3])
    return one_step.interpolate(adj.flow.settings.method, step.z, step.times[2], step.k, theta, mode)


def pullback(adj: Adjoint, t, z, params, lam):
    """(F_z^T lam, F_p^T lam) of one lane at t; the parameter part as a list of leaves."""
    at = lambda z, p: adj.f(t, z, replace(params, adj.wanted, p))
    return jax.vjp(at, z, select(params["p"], adj.wanted))[1](lam)


def state_pullback(adj: Adjoint, t, z, params, lam):
    """F_z^T lam of one lane at t."""
    return jax.vjp(lambda z: adj.f(t, z, params), z)[1](lam)[0]


def impulses(adj: Adjoint):
    """nu_j ([lanes], m, N), and what the algebraic equations at the saved times add to p_bar (None where nothing)."""
    n, mass = adj.flow.u0.shape[-1], adj.mass
    w = jnp.pad(adj.w, [(0, 0)] * (adj.w.ndim - 1) + [(adj.size - n, 0)])
    if mass is None:
        return w, None
    if not mass.singular:
        return adj.flow.lanes.map(jax.vmap(mass.transposed.solve))(w), None

    def nu(params, t, z, w):
        f_z = lambda x: jax.jvp(lambda z: adj.f(t, z, params), (z,), (x,))[1]
        # the pairing Re <w, dz> has -Im w for the imaginary part of dz, hence the conjugates
        split, join = parts_of(w.dtype)
        times = lambda x: mass.times(x) + mass.project(f_z(x))
        b = split(jnp.conj(w))
        solver = of_map(DENSE, lambda x: split(times(join(x))), b)
        return jnp.conj(join(solver.transposed(b)))

    at = adj.flow.lanes.map(jax.vmap(nu, (None, 0, 0, 0)), (adj.params_axes, 0, 0, 0))
    nus = at(adj.params, adj.flow.ts, adj.saves, w)
    if not adj.wanted:
        return nus, None
    return nus, p_integral(adj, adj.params, adj.flow.ts, adj.saves, -adj.flow.lanes.map(jax.vmap(mass.project))(nus))


def add_impulse(adj: Adjoint):
    """lam + nu_j in the leading part of y, as a function of (params, j, y, data) with `impulse_data`."""
    size, mass = adj.size, adj.mass

    def impulse(params, j, y, data):
        nu, ts, saves = data
        lam = y[:size] + nu[j].astype(y.dtype)
        if saves is not None:
            back = lambda x: state_pullback(adj, ts[j], saves[j], params, x)
            m = mass.transposed
            split, join = parts_of(lam.dtype)
            times = lambda x: m.times(x) + m.project(back(x))
            b = split(m.times(lam))
            lam = join(of_map(DENSE, lambda x: split(times(join(x))), b).solve(b))
        return jnp.concatenate([lam, y[size:]])

    return impulse


def impulse_data(adj: Adjoint, nu):
    return nu, adj.flow.ts, adj.saves


def jacobian(adj: Adjoint, t, step: Step, params, tail: Callable | None = None) -> Jacobian:
    """The Jacobian -F_z^T of the backward field of one lane."""
    z = state_at(adj, step, t)
    return Jacobian(lambda x: jax.jvp(lambda z: adj.f(t, z, params), (z,), (x,))[1], adjoint=True, tail=tail)


def lam_sweep(adj: Adjoint, accumulate) -> tuple[Sweep, Any]:
    """The backward sweep of lam alone, `accumulate` seeing each step taken; and where p_bar starts."""

    def rhs(t, lam, step, params):
        return -state_pullback(adj, t, state_at(adj, step, t), params, lam)

    nu, p_bar = impulses(adj)
    sweep = Sweep(
        adj.settings,
        adj.flow.lanes,
        adj.options,
        adj.flow.axes["options"],
        adj.params,
        adj.params_axes,
        rhs,
        recorded_rows(adj),
        add_impulse(adj),
        impulse_data(adj, nu),
        accumulate,
        lambda t, lam, step, params: jacobian(adj, t, step, params),
    )
    return sweep, [jnp.zeros_like(x) for x in adj.p] if p_bar is None else p_bar


def lam_stages(adj: Adjoint, params, t, t_lo, lam, dt, k, t_stop, step: Step):
    """All stages of a backward step of one lane, from its main ones."""
    f = lambda t, lam: -state_pullback(adj, t, state_at(adj, step, t), params, lam)
    return one_step.extra_stages(adj.settings.method, f, t, t_lo, lam, dt, k, t_stop)


def p_integral(adj: Adjoint, params, ts, z, lam):
    """sum over lanes and nodes g of F_p(t_g, z_g)^T lam_g, lam_g holding its weight: one vjp of the batched field.

    ts ([lanes], g), z and lam ([lanes], g, N); leaves shared by the lanes get the sum over them.
    """

    def batched(p):
        one = lambda params, t, z: adj.f(t, z, params)
        nodes = jax.vmap(one, (None, 0, 0))
        return adj.flow.lanes.map(nodes, (adj.params_axes, 0, 0))(replace(params, adj.wanted, p), ts, z)

    return jax.vjp(batched, select(params["p"], adj.wanted))[1](lam)[0]


def outputs(adj: Adjoint, lam, p_bar: list, ended):
    """u_bar, p_bar and how it ended; NaN where the backward solve failed."""
    u_bar = lam[..., : adj.flow.u0.shape[-1]]
    mass = adj.flow.settings.method.mass
    if mass is not None:
        u_bar = adj.flow.lanes.map(mass.transposed.times)(u_bar)
    return *mark_failed(adj.flow, adj.wanted, ended[..., 0] != 0, u_bar, p_bar), ended
