"""The time loop: attempt, decide, save, record, until every lane has reached its end or failed.

Owns: adaptive and fixed stepping, saving at given times, writing the record, stopping conditions. Must not know:
adjoints, primitives, user types. It sees a flat field `f(t, u, p)` of one lane and a method.

The loop is written for lanes (see `lanes`): arithmetic is mapped over them, buffers are not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..extension import compiled_whole, vary, varying_axes, while_loop
from ..methods import step as one_step
from ..methods.controller import PIDController, initial_step, log_error
from ..methods.step import Method, Stages, mode_of, steady
from ..status import ReturnCode
from . import multistep
from .lanes import Lanes
from .pace import RUNNING, in_pieces
from .record import Record, elapsed, writer


@dataclass(frozen=True)
class Settings:
    """What is fixed when the loop is compiled."""

    method: Method
    controller: PIDController
    adaptive: bool
    first_step_given: bool
    max_steps: int
    controlled: int | None = None  # leading components that the error control sees; all of them where None

    @property
    def tableau(self):
        return self.method.tableau


class Options(NamedTuple):
    """What may change without compiling again: tolerances () or (n,), step sizes ()."""

    reltol: Any
    abstol: Any
    dt0: Any
    dtmin: Any
    dtmax: Any


class Task(NamedTuple):
    """One lane's problem, or all lanes' along leading axes: M u' = f(t, u, p) from (t0, u0) to t1, saved at ts (m,).

    system(p, tol) is the system of one lane, by default that of f. For states that carry tangents along, `stages(p, t,
    t_lo, u, dt, t_stop, mode, tol, known)` are the stages of a step and `velocity(t, u, p)` is u'.
    """

    f: Callable
    u0: Any
    p: Any
    p_axes: Any
    t0: Any
    t1: Any
    ts: Any
    system: Callable | None = None
    stages: Callable | None = None
    velocity: Callable | None = None
    blocks: int = 1  # of the size of u, in a state that carries tangents along


def system_of(task: Task, p, tol):
    """The system of one lane."""
    if task.system is not None:
        return task.system(p, tol)
    return one_step.make_system(lambda t, u: task.f(t, u, p), tol=tol)


class Lane(NamedTuple):
    """The state of one lane; err1 and err2 are logarithms of the errors of the last two accepted steps.

    auto is the mode of a method that switches, and for how many steps in a row the other one would have been right; of
    a BDF method the order, and for how many steps. For that u holds the past too, and work is what its steps keep.
    """

    t: Any
    t_lo: Any
    u: Any
    f0: Any
    dt: Any
    err1: Any
    err2: Any
    saved: Any
    naccept: Any
    nreject: Any
    nf: Any
    nfactor: Any
    auto: Any
    code: Any
    work: Any = None


COUNTS = 5


def counts(lane: Lane):
    """Accepted and rejected steps, evaluations of f, factorisations, Jacobians ([lanes], COUNTS)."""
    njacs = lane.nfactor if lane.work is None else lane.work.njacs
    return jnp.stack([lane.naccept, lane.nreject, lane.nf, lane.nfactor, njacs], axis=-1)


def with_counts(code, counts):
    """How a backward solve ended: its code and its counts ([lanes], 1 + COUNTS)."""
    return jnp.concatenate([code[..., None].astype(jnp.int32), counts], axis=-1)


class Trial(NamedTuple):
    """A step tried from a lane's state, and what it decided."""

    dt: Any
    k: Any
    u1: Any
    t: Any
    t_lo: Any
    mode: Any
    accepted: Any


class Result(NamedTuple):
    """us ([lanes], m, n) with NaN where not reached; the record, if asked for; how each lane ended."""

    us: Any
    record: Record | None
    lane: Lane


def two_sum(a, b):
    """a + b as a rounded head and its exact tail (Knuth, TAOCP vol. 2, section 4.2.2, theorem B)."""
    s = a + b
    c = s - a
    return s, (a - (s - c)) + (b - c)


def direction(t0, t1):
    return jnp.where(t1 >= t0, 1, -1).astype(t0.dtype)


def in_order(ts, t0, t1):
    """Whether each saved time comes no earlier than t0 and those before it: others cannot be had in one pass."""
    sign = direction(t0, t1)
    slack = 4 * jnp.finfo(ts.dtype).eps * jnp.abs(ts)
    return (sign * ts >= jax.lax.cummax(sign * ts)) & (sign * (ts - t0) >= -slack)


def start(settings: Settings, f, u0, t0, t1, ts, options: Options) -> Lane:
    """The state of a lane before its first step; f(t, u) is u'."""
    real = jnp.finfo(u0.dtype).dtype
    need_f0 = settings.tableau.fsal or settings.method.multistep or not settings.first_step_given
    f0 = f(t0, u0) if need_f0 else jnp.zeros_like(u0)
    if settings.first_step_given:
        dt = direction(t0, t1) * jnp.abs(options.dt0)
    else:
        seen = settings.controlled
        dt = initial_step(f, t0, u0, f0, t1, settings.method.error_order - 1, options.abstol, options.reltol, seen)
    seen = slice(settings.controlled)
    finite = jnp.all(jnp.isfinite(f0[seen])) & jnp.all(jnp.isfinite(u0[seen]))
    code = jnp.where(t0 == t1, ReturnCode.Success, jnp.where(finite, RUNNING, ReturnCode.NonFinite))
    even = jnp.zeros((), real)  # log of an error of one
    later = jnp.concatenate([(ts != t0).astype(jnp.int32), jnp.ones(1, jnp.int32)])
    saved = jnp.argmax(later).astype(jnp.int32)  # the saves at t0 itself are done
    count = jnp.zeros((), jnp.int32)
    nf = jnp.asarray(int(need_f0) + int(not settings.first_step_given), jnp.int32)
    zero = jnp.zeros_like(t0)
    auto = count + steady(1 if settings.method.multistep else one_step.NONSTIFF)
    return Lane(t0, zero, u0, f0, dt, even, even, saved, count, count, nf, count, auto, code.astype(jnp.int32))


def attempt(
    settings: Settings, task: Task, p, lane: Lane, t_stop, options: Options, stop_lo=0, forced=False, known=None
):
    """Try one step towards t_stop + stop_lo; returns it and the lane's next state (unchanged where it had finished).

    A step that is `forced` is accepted whatever its error; `known` is the recorded solution of a BDF step.
    """
    method, seen = settings.method, slice(settings.controlled)
    dt, hit = next_step(lane, t_stop, options, stop_lo)
    mode, tol = mode_of(lane.auto), (options.abstol, options.reltol)
    if method.multistep:
        leading = lambda tol: tol if jnp.ndim(tol) == 0 else tol[: method.states(lane.u.size // task.blocks)]
        system = system_of(task, p, tuple(map(leading, tol)))
        out = multistep.attempt(method, task, system, p, lane, dt, t_stop, tol, known)
    elif task.stages is not None:
        out = task.stages(p, lane.t, lane.t_lo, lane.u, dt, t_stop, mode, tol, None)
    else:
        k1 = lane.f0 if settings.tableau.fsal else None
        system = system_of(task, p, tol)
        out = one_step.stages(method, system, lane.t, lane.t_lo, lane.u, dt, k1, t_stop, mode, exact=False)
    u1 = one_step.advance(method, lane.u, dt, out.k, mode)
    end = out.k[0] if method.multistep else u1
    finite = jnp.all(jnp.isfinite(end[seen])) & (out.code == 0)
    plan = None
    if method.multistep:
        plan = multistep.judge(settings, lane, dt, out, options)
        err = jnp.where(forced, jnp.minimum(plan.err, 1), plan.err) if settings.adaptive else jnp.zeros_like(plan.err)
    elif settings.adaptive:
        err = one_step.error_norm(method, lane.u, u1, dt, out, options.abstol, options.reltol, seen, mode)
        err = jnp.where(forced, jnp.minimum(err, 1), err)
    else:
        err = jnp.zeros_like(lane.err1)
    active = lane.code == RUNNING
    accepted = active & (err <= 1) & finite

    t, t_lo = two_sum(lane.t, lane.t_lo + dt)
    t, t_lo = jnp.where(hit, t_stop, t), jnp.where(hit, stop_lo, t_lo)
    trial = Trial(dt, out.k, u1, t, t_lo, mode, accepted)
    new = _decide(settings, lane, trial, out, err, finite, hit, active, options, plan)
    return trial, new if plan is None else multistep.after(settings, lane, new, out, plan, accepted)


def next_step(lane: Lane, t_stop, options: Options, stop_lo=0):
    """The step to try, and whether it ends at t_stop + stop_lo."""
    remaining = (t_stop - lane.t) + (stop_lo - lane.t_lo)
    dt = jnp.clip(lane.dt, -options.dtmax, options.dtmax)
    hit = jnp.abs(dt) * (1 + 1e-6) >= jnp.abs(remaining)
    return jnp.where(hit, remaining, dt), hit


def _switch(settings: Settings, lane: Lane, rate, dt, accepted):
    """lane.auto after a step at which the system's largest rate was `rate`: count, and switch where that is enough."""
    tableau = settings.tableau
    mode, count = mode_of(lane.auto), lane.auto % one_step.AUTO
    stiff = jnp.abs(dt).astype(rate.dtype) * rate > tableau.part * tableau.limit
    other = jnp.where(mode == one_step.STIFF, ~stiff, stiff)
    # where stability holds the steps they swing about its limit: a step to the contrary takes back one, not all
    count = jnp.where(other, count + 1, jnp.maximum(count - 1, 0))
    enough = count > jnp.where(mode == one_step.STIFF, tableau.nonstiff_after, tableau.stiff_after)
    new = jnp.where(enough, steady(1 - mode), steady(mode) + count).astype(jnp.int32)
    return jnp.where(accepted, new, lane.auto)


def _decide(settings: Settings, lane: Lane, trial: Trial, out: Stages, err, finite_u, hit, active, options, plan=None):
    """Accept or reject, propose the next step size, and find out whether the lane has ended."""
    accepted = trial.accepted
    rejected = active & ~accepted
    finite = jnp.isfinite(err)
    ran = active.astype(jnp.int32)
    if settings.adaptive:
        err = jnp.where(finite_u, err, jnp.inf)
        log_err = log_error(err)
        if plan is None:
            factor = settings.controller.factor(settings.method.error_order, log_err, lane.err1, lane.err2, accepted)
        else:
            factor = jnp.where(accepted, plan.factor, plan.retry)
        proposed = trial.dt * factor.astype(trial.dt.dtype)
        # a step cut short by its stop says nothing against the size proposed before it
        dt = jnp.where(accepted & hit & (jnp.abs(proposed) < jnp.abs(lane.dt)), lane.dt, proposed)
        dt = jnp.where(accepted, jnp.sign(dt) * jnp.maximum(jnp.abs(dt), options.dtmin), dt)
        limit = jnp.maximum(options.dtmin, jnp.finfo(trial.dt.dtype).eps * 2.0**-12 * jnp.abs(lane.t))
        stuck = rejected & ((jnp.abs(dt) < limit) | (dt == 0))
        dt = jnp.where(active, dt, lane.dt)
    else:
        dt, stuck, log_err = lane.dt, rejected, lane.err1
    naccept = lane.naccept + accepted.astype(jnp.int32)
    nreject = lane.nreject + rejected.astype(jnp.int32)
    failed = jnp.where(finite & settings.adaptive, ReturnCode.DtTooSmall, ReturnCode.NonFinite)
    failed = jnp.where(out.code != 0, out.code, failed)
    spent = naccept + nreject >= settings.max_steps
    code = jnp.where(spent, ReturnCode.MaxSteps, RUNNING)
    code = jnp.where(stuck, failed, code)
    code = jnp.where(accepted & hit, ReturnCode.Success, code).astype(jnp.int32)
    keep = jnp.where(accepted, 1, 0).astype(bool)
    return Lane(
        t=jnp.where(keep, trial.t, lane.t),
        t_lo=jnp.where(keep, trial.t_lo, lane.t_lo),
        u=jnp.where(keep, trial.u1, lane.u),
        f0=jnp.where(keep, trial.k[-1], lane.f0) if settings.tableau.fsal else lane.f0,
        dt=dt,
        err1=jnp.where(keep, log_err, lane.err1),
        err2=jnp.where(keep, lane.err1, lane.err2),
        saved=lane.saved,
        naccept=naccept,
        nreject=nreject,
        nf=lane.nf + out.nf * ran,
        nfactor=lane.nfactor + out.nfactor * ran,
        auto=lane.auto if out.rate is None else _switch(settings, lane, out.rate, trial.dt, accepted),
        code=jnp.where(active, code, lane.code),
    )


def save(settings: Settings, lanes: Lanes, task: Task, us, old: Lane, trial: Trial, new: Lane):
    """Write the dense output at every saved time that the step just accepted has passed."""
    method, n_extra = settings.method, settings.tableau.n_extra
    m = task.ts.shape[-1]

    def next_save(lane_saved, t0, t1, ts, accepted, t, t_lo):
        target = ts[jnp.minimum(lane_saved, m - 1)]
        passed = direction(t0, t1) * ((target - t) - t_lo) <= 0
        return target, accepted & (lane_saved < m) & passed

    find = lanes.map(next_save)

    def pending(saved):
        return find(saved, task.t0, task.t1, task.ts, trial.accepted, trial.t, trial.t_lo)

    def dense(p, old, trial, t1):
        f = lambda t, u: task.f(t, u, p)
        return one_step.extra_stages(method, f, old.t, old.t_lo, old.u, trial.dt, trial.k, t1)

    any_pending = jnp.any(pending(new.saved)[1])
    if n_extra:
        evaluate = lanes.map(dense, (task.p_axes, 0, 0, 0))
        pad = [(0, 0)] * (trial.k.ndim - 2) + [(0, n_extra), (0, 0)]
        k = jax.lax.cond(
            any_pending,
            lambda: evaluate(task.p, old, trial, task.t1),
            lambda: jnp.pad(trial.k, pad),
        )
        extra = n_extra * pending(new.saved)[1].astype(jnp.int32)
        new = new._replace(nf=new.nf + extra)
    else:
        k = trial.k

    def value(target, old, trial, k):
        offset = (target - old.t) - old.t_lo
        theta = jnp.clip(offset / jnp.where(trial.dt == 0, 1, trial.dt), 0, 1)
        inside = one_step.interpolate(method, old.u, trial.dt, k, theta, trial.mode)
        at_end = one_step.present(method, trial.u1, inside.shape[-1])
        return jnp.where((target == trial.t) & (trial.t_lo == 0), at_end, inside)

    def emit(state):
        us, saved = state
        target, due = pending(saved)
        us = lanes.put(us, saved, lanes.map(value)(target, old, trial, k), due)
        return us, saved + due.astype(jnp.int32)

    us, saved = while_loop(lambda s: jnp.any(pending(s[1])[1]), emit, (us, new.saved))
    return us, new._replace(saved=saved)


def integrate(
    settings: Settings,
    task: Task,
    options: Options,
    options_axes,
    lanes: Lanes,
    *,
    record: int = 0,
    mesh: Record | None = None,
    progress: bool = False,
) -> Result:
    """Integrate every lane of `task`; with `record`, keep checkpoints of the accepted steps in so many rows.

    With `progress`, the host hears from time to time how far the loop has come.

    With `mesh`, the record of a solve whose rows are its steps, take those steps; where its stride is more than one,
    the steps are found anew, which are the same but for rounding.
    """
    with_field = lanes.map(
        lambda p, *args: start(settings, velocity_of(settings, task, p), *args), (task.p_axes, 0, 0, 0, 0, options_axes)
    )
    lane = with_field(task.p, task.u0, task.t0, task.t1, task.ts, options)
    step = stepper(settings, task, options_axes, lanes)
    m, n = task.ts.shape[-1], task.u0.shape[-1]
    if settings.method.multistep:
        if mesh is not None:
            lane = lane._replace(dt=lanes.row(mesh.times, 0)[..., 2])
        lane = lanes.map(lambda p, lane: restart(settings, task, p, lane), (task.p_axes, 0))(task.p, lane)
    at_start = (task.ts == task.t0[..., None])[..., None]
    us = jnp.where(at_start, task.u0[..., None, :], jnp.asarray(jnp.nan, task.u0.dtype))
    first = multistep.PERIOD if settings.method.multistep else 2
    rec = writer(record, lanes, task.t1, lane.u.shape[-1], task.u0.dtype, first=first) if record else None

    def body(state):
        lane, us, rec, i = state
        if mesh is None:
            trial, new = step(task.p, lane, task.t1, options, jnp.zeros_like(task.t1))
        else:
            tried, idle = follow(mesh, lanes, lane, i)
            forced = lanes.spread(mesh.stride == 1)
            known = multistep.solution(mesh, lanes, i, n // task.blocks) if settings.method.multistep else None
            trial, new = step(task.p, tried, task.t1, options, jnp.zeros_like(task.t1), forced, known)
            code = jnp.where(i >= mesh.size - 1, mesh.code, lane.code)
            new = new._replace(code=jnp.where(idle, code, new.code))
        if m:
            us, new = save(settings, lanes, task, us, lane, trial, new)
        if rec is not None:
            rec = rec.write(lane).advance(trial.accepted)
        return new, us, rec, i + 1

    axes = varying_axes(*jax.tree.leaves((lane, task.t0, task.t1, mesh)))
    state = vary((lane, us, rec, jnp.zeros((), jnp.int32)), axes)

    def run(going, state):
        if rec is None or record > settings.max_steps:
            return compiled_whole(lambda state: while_loop(lambda s: going(s[0]), body, state), state)
        full = lambda state: state[2].row >= record

        def fill(state):
            state = (*state[:2], state[2].halve(), state[3])
            return while_loop(lambda s: going(s[0]) & ~full(s), body, state)

        return compiled_whole(lambda state: while_loop(lambda s: going(s[0]) | full(s), fill, state), state)

    lane, us, rec, _ = in_pieces(progress, run, state, lambda state: state[0], lanes, task, settings.max_steps)
    if m:
        us = jnp.where(lanes.map(in_order)(task.ts, task.t0, task.t1)[..., None], us, jnp.nan)
    rec = None if rec is None else rec.finish(lane, lane.code)
    return Result(us, rec, lane._replace(u=one_step.present(settings.method, lane.u, n)))


def restart(settings: Settings, task: Task, p, lane: Lane) -> Lane:
    """A lane of a BDF method at a start or after a jump: u and f0 are the state and u' there, dt the step to try."""
    system = system_of(task, p, (1.0, 1.0))
    u, auto, work = multistep.restart(settings.method, system, lane.u, lane.f0, lane.dt, lane.t, task.blocks)
    return lane._replace(u=u, f0=lane.f0[:0], auto=auto, work=work)


def velocity_of(settings: Settings, task: Task, p):
    """u' as a function of (t, u) for one lane."""
    if task.velocity is not None:
        own = task.velocity
        return lambda t, u: own(t, u, p)
    f = lambda t, u: task.f(t, u, p)
    return lambda t, u: one_step.velocity(settings.method, f, t, u, exact=False)


def follow(mesh: Record, lanes: Lanes, lane: Lane, i):
    """The lanes about to take step i of a mesh, and which of them stay."""
    frozen = mesh.stride == 1
    here, there = (lanes.row(mesh.times, jnp.minimum(j, mesh.size)) for j in (i, i + 1))
    dt = elapsed(here, there)
    idle = frozen & (dt == 0)
    code = jnp.where(idle & (lane.code == RUNNING), int(ReturnCode.Success), lane.code)
    auto = jnp.where(frozen, here[..., 5].astype(jnp.int32), lane.auto)
    tried = lane._replace(dt=jnp.where(frozen, dt, lane.dt), auto=auto, code=code.astype(jnp.int32))
    return tried, idle


def stepper(settings: Settings, task: Task, options_axes, lanes: Lanes):
    """`attempt` for all lanes, as a function of (p, lane, t_stop, options, stop_lo, forced=False, known=None)."""
    method = settings.method

    def one(p, lane, t_stop, options, stop_lo, forced, known):
        return attempt(settings, task, p, lane, t_stop, options, stop_lo, forced, known)

    def ahead(p, t_stop, options, stop_lo, lane):
        system = system_of(task, p, (1.0, 1.0))
        return system, lane.u[: lane.u.size // task.blocks], next_step(lane, t_stop, options, stop_lo)[0], t_stop

    mapped = lanes.map(one, (task.p_axes, 0, 0, options_axes, 0, 0, 0))

    def step(p, lane, t_stop, options, stop_lo, forced=None, known=None):
        forced = lanes.spread(jnp.asarray(False)) if forced is None else forced
        if not method.multistep:
            return mapped(p, lane, t_stop, options, stop_lo, forced, known)
        axes, args = (task.p_axes, 0, options_axes, 0), (p, t_stop, options, stop_lo)
        lane = multistep.renewed(method, ahead, lanes, axes, args, lane, known)
        return multistep.counted(*mapped(p, lane, t_stop, options, stop_lo, forced, known))

    return step
