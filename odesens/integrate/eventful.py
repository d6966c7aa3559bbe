"""The time loop of a solve with events: step, look for a sign change, go back to the root, jump, start anew.

Owns: stops at known times, the order of events, jumps, the log of what happened. Must not know: how a root is found
(`localise`), derivatives, primitives, user types.

Steps are taken in every lane until something is to happen in any; one in which a condition changes its sign is taken
again, exactly up to the root. Then all that is pending happens, and the steps go on. Written for lanes, as `loop` is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..events import CONTINUOUS, DISCRETE, SCHEDULED, EventSystem, Functions, beyond, rates
from ..extension import compiled_whole, vary, varying_axes, while_loop
from ..methods import step as one_step
from ..status import ReturnCode
from . import localise
from .lanes import Lanes, choose
from .loop import (
    Lane,
    Options,
    Settings,
    Task,
    direction,
    in_order,
    restart,
    save,
    start,
    stepper,
    two_sum,
    velocity_of,
)
from .pace import RUNNING, in_pieces

BOLD = 8  # times the first guess of a step that a step after an event may be
ENTRY = 4  # t, t_lo, kind, index of the known time


class Log(NamedTuple):
    """Events of each lane: entries ([lanes], E, 4), the states before and after ([lanes], E, n), how many ([lanes])."""

    entries: Any
    before: Any
    after: Any
    count: Any


class Walk(NamedTuple):
    """The carry of the steps between events, lanes leading.

    signs (c,) of the conditions. pending (kinds,): what is to happen at this time. next : the number of the next known
    time. index : that of the one that is pending. mesh : times of accepted steps.
    """

    lane: Lane
    us: Any
    signs: Any
    pending: Any
    next: Any
    index: Any
    mesh: Any


class Result(NamedTuple):
    us: Any
    log: Log
    lane: Lane
    mesh: Any


class Plan(NamedTuple):
    """Known times of one lane in order (K,), those that do not come up last; their kinds, and numbers within those."""

    times: Any
    kinds: Any
    index: Any


def plan(system: EventSystem, functions: Functions, times, t0, t1) -> Plan:
    """The known times of one lane, those of one instant in the order of their kinds."""
    sign = direction(t0, t1)
    kinds, index = jnp.asarray(functions.kind_of_time), jnp.asarray(functions.index_of_time)
    since = sign * (times - t0)
    ahead = (since >= 0) & (sign * (t1 - times) >= 0)
    order = jnp.lexsort((kinds, jnp.where(ahead, since, jnp.inf)))
    take = lambda x: jnp.take(x, order, mode="clip")
    return Plan(jnp.where(take(ahead), take(times), sign * jnp.inf), take(kinds), take(index))


def integrate(
    settings: Settings,
    task: Task,
    options: Options,
    options_axes: Any,
    lanes: Lanes,
    system: EventSystem,
    functions: Functions,
    settle: Callable | None = None,
    rows: int = 0,
    progress: bool = False,
) -> Result:
    """Integrate every lane of `task` through its events.

    settle(params, u, t) makes the state after a jump obey the algebraic equations and says whether it does. With
    `rows`, the times of the accepted steps are kept in so many; with `progress`, the host hears how far the loop is.
    """
    changed = functions.changed
    own = lambda i: task.p["p"][i] if task.p_axes["p"][i] == 0 else lanes.spread(task.p["p"][i])
    p_axes = {**task.p_axes, "p": [0 if i in changed else a for i, a in enumerate(task.p_axes["p"])]}
    new = [own(i) for i in changed]
    task = task._replace(p_axes=p_axes)
    run = Run(settings, task, options, options_axes, lanes, system, functions, settle)
    params = run.params(new)
    plans = lanes.map(lambda p, t0, u0, t1: run.plan(p, t0, u0, t1), (p_axes, 0, 0, 0))(
        params, task.t0, task.u0, task.t1
    )
    lane = run.start(params, task.u0, task.t0)
    code = jnp.where(lane.code == ReturnCode.Success, RUNNING, lane.code)
    zero = jnp.zeros_like(lane.saved)
    lane = run.begun(params, lane._replace(saved=zero, code=code.astype(jnp.int32)))
    m, n, most = task.ts.shape[-1], task.u0.shape[-1], system.most
    full = lambda shape, value, dtype: lanes.spread(jnp.full(shape, value, dtype))
    log = Log(
        full((most, ENTRY), -1, task.t0.dtype),
        full((most, n), 0, task.u0.dtype),
        full((most, n), 0, task.u0.dtype),
        zero,
    )
    nowhere = full(len(system.of(CONTINUOUS)), False, bool)  # at t0 a zero is what is exactly zero
    nothing = full(len(system.of(CONTINUOUS)), 0, jnp.finfo(task.u0.dtype).dtype)
    walk = Walk(
        lane,
        full((m, n), jnp.nan, task.u0.dtype),
        run.signs(params, lane, nowhere, nothing),
        full(len(system.kinds), False, bool),
        zero,
        zero,
        jnp.where(jnp.arange(rows) == 0, task.t0[..., None], jnp.nan),
    )
    state = vary((walk, new, log), varying_axes(*jax.tree.leaves((walk, new, task.p, task.t1, plans))))

    def pieces(going, state):
        def piece(state):
            """Steps until something is to happen in any lane, and all that then happens."""
            walk, new, log = state
            alone = lambda w: going(w.lane) & ~jnp.any(run.fires(w))
            walk = while_loop(alone, lambda w: run.iteration(w, new, plans), walk)
            return run.jumps(walk, new, log)

        return compiled_whole(lambda state: while_loop(lambda s: going(s[0].lane), piece, state), state)

    lane_of = lambda state: state[0].lane
    walk, new, log = in_pieces(progress, pieces, state, lane_of, lanes, task, settings.max_steps)
    lane = walk.lane._replace(u=run.state(walk.lane.u))
    if not m:
        return Result(walk.us, log, lane, walk.mesh)
    # what was not written by a step: saves at an event at the very end, and those after a solve that was ended
    rest = (jnp.arange(m, dtype=jnp.int32) >= lane.saved[..., None]) & (lane.code <= 1)[..., None]
    us = jnp.where(rest[..., None], lane.u[..., None, :], walk.us)
    us = jnp.where(lanes.map(in_order)(task.ts, task.t0, task.t1)[..., None], us, jnp.nan)
    return Result(us, log, lane, walk.mesh)


class Run(NamedTuple):
    """One eventful solve: what the iterations share."""

    settings: Settings
    task: Task
    options: Options
    options_axes: Any
    lanes: Lanes
    system: EventSystem
    functions: Functions
    settle: Callable | None

    def params(self, new: list) -> dict:
        """The parameters, some leaves of which events have changed."""
        return {**self.task.p, "p": self.functions.exchanged(self.task.p["p"], new)}

    def plan(self, params, t0, u0, t1) -> Plan:
        times = self.functions.times(t0, u0, params["p"], params["aux"], direction(t0, t1))
        return plan(self.system, self.functions, times, t0, t1)

    def start(self, params, u, t) -> Lane:
        """The state of the lanes before a first step from (t, u)."""
        task = self.task

        def one(p, u, t, t1, ts, options):
            return start(self.settings, velocity_of(self.settings, task, p), u, t, t1, ts, options)

        return self.lanes.map(one, (task.p_axes, 0, 0, 0, 0, self.options_axes))(
            params, u, t, task.t1, task.ts, self.options
        )

    def state(self, z):
        """The states (.., n) of what a method carries."""
        return one_step.present(self.settings.method, z, self.task.u0.shape[-1])

    def begun(self, params, lane: Lane) -> Lane:
        """The lanes that `start` gives, ready for a first step."""
        if not self.settings.method.multistep:
            return lane
        one = lambda p, lane: restart(self.settings, self.task, p, lane)
        return self.lanes.map(one, (self.task.p_axes, 0))(params, lane)

    def conditions(self, params) -> Callable:
        return lambda t, u: self.functions.conditions(t, u, params["p"], params["aux"])

    def values(self, params, lane: Lane):
        """The conditions' values ([lanes], c)."""
        one = lambda p, t, z: self.conditions(p)(t, self.state(z))
        return self.lanes.map(one, (self.task.p_axes, 0, 0))(params, lane.t, lane.u)

    def signs(self, params, lane: Lane, at_root, known):
        """The conditions' signs, those of a zero `at_root` (c,) by where the solution goes from there.

        known : values that are zero but for rounding, those before the event.
        """

        def one(p, lane, at_root, known):
            g, rate = rates(self.conditions(p), velocity_of(self.settings, self.task, p), lane.t, self.state(lane.u))
            return localise.signs_after(g, rate, at_root, known, lane.t, lane.dt)

        return self.lanes.map(one, (self.task.p_axes, 0, 0, 0))(params, lane, at_root, known)

    # ---- one iteration

    def iteration(self, s: Walk, new_p: list, plans: Plan) -> Walk:
        """One attempt in every lane, up to the first root in it."""
        lanes, task = self.lanes, self.task
        params = self.params(new_p)
        stop, stop_lo, planned = lanes.map(self.next_stop)(s.lane, s.next, plans, task.t0, task.t1)
        step = stepper(self.settings, task, self.options_axes, lanes)
        trial, new = step(params, s.lane, stop, self.options, stop_lo)
        trial, new, signs, fired, short = self.locate(step, params, s, trial, new)
        arrived = trial.accepted & (new.code == ReturnCode.Success) & ~short
        due = arrived & planned
        pending = self.happening(params, s, plans, trial, new, fired, due)
        waits = jnp.any(pending, axis=-1)
        done = (arrived & ~planned & ~waits) | (s.lane.code != RUNNING)
        unfinished = (new.code == ReturnCode.Success) & ~done
        idle = (trial.accepted & (trial.dt == 0)).astype(jnp.int32)
        code = jnp.where(unfinished, RUNNING, new.code).astype(jnp.int32)
        new = new._replace(code=code, naccept=new.naccept - idle)
        us, mesh = s.us, s.mesh
        if task.ts.shape[-1]:  # a save at the time of an event is the state after it
            sign = lanes.map(direction)(task.t0, task.t1)
            info = jnp.finfo(trial.t.dtype)
            span = jnp.maximum(jnp.abs(trial.t), jnp.abs(task.t1 - task.t0))
            hair = jnp.maximum(info.eps**2 * span, info.tiny)
            seen = trial._replace(t_lo=jnp.where(waits, trial.t_lo - sign * hair, trial.t_lo))
            us, new = save(self.settings, lanes, task._replace(p=params), us, s.lane, seen, new)
        if mesh.shape[-1]:
            mesh = self.marked(mesh, trial, new)
        index = s.index
        if self.known:
            here = lanes.map(lambda plan, i: jnp.take(plan.index, i, mode="clip"))(plans, s.next)
            index = jnp.where(due, here, index)
        return Walk(new, us, signs, pending, s.next + due.astype(jnp.int32), index, mesh)

    def marked(self, mesh, trial, new: Lane):
        """The times of accepted steps with that of this one; just after it where the time has a tail."""
        sign = self.lanes.map(direction)(self.task.t0, self.task.t1)
        t = jnp.where(sign * trial.t_lo > 0, jnp.nextafter(trial.t, sign * jnp.inf), trial.t)
        place = jnp.clip(new.naccept, 0, mesh.shape[-1] - 1)
        old = self.lanes.map(lambda mesh, i: mesh[i])(mesh, place)
        kept = jnp.where(trial.accepted & (trial.dt != 0), t, old)
        return self.lanes.put(mesh[..., None], place, kept[..., None], jnp.ones_like(trial.accepted))[..., 0]

    @property
    def known(self) -> bool:
        return len(self.functions.kind_of_time) > 0

    def next_stop(self, lane: Lane, number, plan: Plan, t0, t1):
        """Where the next step of one lane may go at most, a time and its tail; whether something is planned there."""
        if not self.known:
            return t1, jnp.zeros_like(t1), jnp.zeros((), bool)
        sign = direction(t0, t1)
        pick = lambda x: jnp.take(x, number, mode="clip")
        target = pick(plan.times)
        planned = (number < plan.times.shape[0]) & jnp.isfinite(target)
        opens = self.system.look_up("open", pick(plan.kinds))
        target = jnp.where(opens, jnp.nextafter(target, -sign * jnp.inf), target)
        stop = jnp.where(planned, target, t1)
        stay = sign * ((stop - lane.t) - lane.t_lo) < 0
        return jnp.where(stay, lane.t, stop), jnp.where(stay, lane.t_lo, 0), planned

    def locate(self, step: Callable, params, s: Walk, trial, new):
        """The attempt, taken again up to its first root; the signs after it, which fired, whether it is cut short."""
        if not self.system.of(CONTINUOUS):
            return trial, new, s.signs, s.signs.astype(bool), jnp.zeros_like(trial.accepted)
        lanes, task = self.lanes, self.task
        # in a step of a few units of rounding only rounding would be seen; what it crosses is seen in the next one
        looks = trial.accepted & (jnp.abs(trial.dt) > localise.RESTART * localise.rounding_of(trial.t, trial.dt))

        def look(p, lane, trial, t1, signs):
            return localise.look(self.settings, task, p, self.conditions(p), self.system, lane, trial, t1, signs)

        k, found = lanes.map(look, (task.p_axes, 0, 0, 0, 0))(params, s.lane, trial, task.t1, s.signs)
        event = found.any & looks
        ends = jnp.where(looks[..., None], found.signs, s.signs)
        nowhere = jnp.zeros_like(found.which)

        def back():
            again, after = self.refine(step, params, s, trial, new, k, found, event)

            def fired(p, lane, found, h):
                g, rate = rates(self.conditions(p), velocity_of(self.settings, task, p), lane.t, self.state(lane.u))
                return localise.at_root(g, rate, found, lane.t, h)

            which = lanes.map(fired, (task.p_axes, 0, 0, 0))(params, after, found, again.dt)
            which = which & (event & again.accepted)[..., None]
            # a root at the very end of a step that has reached its stop is at the stop's instant
            close = localise.ROUNDING * localise.rounding_of(trial.t, trial.dt)
            at_stop = (new.code == ReturnCode.Success) & (jnp.abs(again.dt - trial.dt) <= close) & again.accepted
            short = event & ~at_stop
            return choose(short, (again, after), (trial, new)), which, short

        (trial, new), fired, short = jax.lax.cond(
            jnp.any(event), back, lambda: ((trial, new), nowhere, jnp.zeros_like(event))
        )
        stays = event & ~trial.accepted  # the shorter step failed: nothing was seen
        return trial, new, jnp.where(stays[..., None], s.signs, ends), fired, short

    def refine(self, step: Callable, params, s: Walk, trial, new, k, found, event):
        """The step of each lane with an `event` taken up to its first root; the attempt and the lanes after it."""
        lanes, task = self.lanes, self.task
        boolean = localise.kinds_of(self.system, "boolean")
        begin = lambda p, *args: localise.begin(self.settings.method, self.conditions(p), *args)
        search = lanes.map(begin, (task.p_axes, 0, 0, 0, 0))(params, s.lane, trial, k, found)
        search = search._replace(h=jnp.where(event, search.h, trial.dt), done=~event)

        def improve(p, found, search, t, u):
            velocity = velocity_of(self.settings, task, p)
            return localise.improve(self.conditions(p), velocity, boolean, found, search, t, u)

        def body(state):
            search, _, last, count = state
            tried = s.lane._replace(dt=search.h)
            stop, stop_lo = two_sum(s.lane.t, s.lane.t_lo + search.h)
            again, after = step(params, tried, stop, self.options, stop_lo, event)
            better = lanes.map(improve, (task.p_axes, 0, 0, 0, 0))(params, found, search, again.t, self.state(again.u1))
            better = better._replace(done=better.done | search.done | ~again.accepted)
            return better, again, after._replace(nf=last.nf + (after.nf - s.lane.nf)), count + 1

        def going(state):
            most = localise.HALVINGS if np.any(boolean) else localise.POLISH
            return jnp.any(~state[0].done) & (state[3] < most)

        state = (search, trial, new, jnp.zeros((), jnp.int32))
        _, again, after, _ = while_loop(going, body, state)
        # of a full step's error more is known about the next one than of a part's
        return again, after._replace(dt=jnp.where(again.accepted, new.dt, after.dt))

    def happening(self, params, s: Walk, plans: Plan, trial, new, fired, due):
        """What is to happen at the end of this step ([lanes], kinds)."""
        lanes, kinds = self.lanes, self.system.kinds
        columns: list[Any] = [jnp.zeros_like(trial.accepted)] * len(kinds)
        for j, i in enumerate(self.system.of(CONTINUOUS)):
            columns[i] = fired[..., j]
        if self.system.of(DISCRETE):
            when = lambda p, t, u: self.functions.whens(t, u, p["p"], p["aux"])
            whens = lanes.map(when, (self.task.p_axes, 0, 0))(params, new.t, self.state(new.u))
            for j, i in enumerate(self.system.of(DISCRETE)):
                columns[i] = whens[..., j] & trial.accepted & (trial.dt != 0)
        if self.known:
            here = lanes.map(lambda plan, i: jnp.take(plan.kinds, i, mode="clip"))(plans, s.next)
            for i in self.system.of(SCHEDULED):
                columns[i] = due & (here == i)
        return jnp.stack(columns, axis=-1)

    def fires(self, s: Walk):
        """The lanes in which something is to happen."""
        return jnp.any(s.pending, axis=-1) & (s.lane.code == RUNNING)

    def jumps(self, s: Walk, new: list, log: Log) -> tuple[Walk, list, Log]:
        """All that is pending happens, one thing after the other."""

        def body(state):
            lane, new, signs, pending, log = state
            now = jnp.any(pending, axis=-1) & (lane.code == RUNNING)
            kind = jnp.argmax(pending.astype(jnp.int32), axis=-1).astype(jnp.int32)
            after, after_new, left, entry = self.jump(self.params(new), lane, s.index, pending, kind)
            full = now & ((log.count >= self.system.most) | self.recurs(log, lane, kind))
            happens = now & ~full
            put = lambda buffer, x: self.put(buffer, log.count, x, happens)
            log = Log(
                put(log.entries, entry),
                put(log.before, self.state(lane.u)),
                put(log.after, self.state(after.u)),
                log.count + happens.astype(jnp.int32),
            )
            code = jnp.where(full, ReturnCode.EventLimit, lane.code).astype(jnp.int32)
            roots, known = self.components(pending), self.values(self.params(new), lane)
            old = lane._replace(code=code), new, pending
            lane, new, pending = choose(happens, (after, after_new, left), old)
            signs = jnp.where(happens[..., None], self.signs(self.params(new), lane, roots, known), signs)
            return lane, new, signs, pending, log

        def going(state):
            return jnp.any(jnp.any(state[3], axis=-1) & (state[0].code == RUNNING))

        lane, new, signs, pending, log = while_loop(going, body, (s.lane, new, s.signs, s.pending, log))
        return s._replace(lane=lane, signs=signs, pending=pending), new, log

    def recurs(self, log: Log, lane: Lane, kind):
        """Whether a root is the one before it but for rounding: the end of a series of events that does not end."""

        def one(entries, count, lane, kind):
            t, t_lo, last, _ = jax.lax.dynamic_index_in_dim(entries, jnp.maximum(count - 1, 0), keepdims=False)
            since = jnp.abs((lane.t - t) + (lane.t_lo - t_lo))
            close = since <= localise.RESTART * localise.rounding_of(lane.t, 0)
            return close & (last == kind) & (count > 0) & self.system.look_up("continuous", kind)

        return self.lanes.map(one)(log.entries, log.count, lane, kind)

    def put(self, buffer, index, values, where):
        """Write rows of a log, only in the lanes `where`."""
        index = jnp.minimum(index, buffer.shape[-2] - 1)
        old = self.lanes.map(lambda b, i: jax.lax.dynamic_index_in_dim(b, i, keepdims=False))(buffer, index)
        return self.lanes.put(buffer, index, jnp.where(where[..., None], values, old), where)

    def components(self, pending):
        """Which continuous conditions ([lanes], c) are at a root that is pending."""
        own = self.system.of(CONTINUOUS)
        return jnp.stack([pending[..., i] for i in own], axis=-1) if own else pending[..., :0]

    def jump(self, params, old: Lane, index, pending, kind):
        """The lanes after the event of their kind, changed parameters, what is still pending, the entry for the log."""
        task = self.task

        def one(p, lane, kind, index, pending, t0, t1):
            ends = self.system.look_up("terminate", kind)
            t = jnp.where(self.system.look_up("open", kind), beyond(lane.t, t1, direction(t0, t1)), lane.t)
            u, new = self.functions.affect(kind, index, lane.t, self.state(lane.u), p["p"], p["aux"])
            ok = jnp.ones((), bool)
            if self.settle is not None:
                u, ok = self.settle({**p, "p": self.functions.exchanged(p["p"], new)}, u, t)
            entry = jnp.stack([x.astype(lane.t.dtype) for x in (lane.t, lane.t_lo, kind, index)])
            left = pending & (jnp.arange(pending.shape[0]) != kind)
            return t, u, new, ok, entry, left & ~ends, ends

        axes = (task.p_axes, 0, 0, 0, 0, 0, 0)
        t, u, new, ok, entry, left, ends = self.lanes.map(one, axes)(
            params, old, kind, index, pending, task.t0, task.t1
        )
        begun = self.start(self.params(new), u, t)
        code = jnp.where(begun.code == ReturnCode.NonFinite, ReturnCode.NonFinite, RUNNING)
        code = jnp.where(ok, code, ReturnCode.InitialisationFailure)
        code = jnp.where(ends, ReturnCode.Terminated, code).astype(jnp.int32)
        # the step before the event, where the state after it allows that: first guesses are cautious ones
        size = jnp.clip(jnp.abs(old.dt), jnp.abs(begun.dt), BOLD * jnp.abs(begun.dt))
        lane = begun._replace(
            dt=jnp.sign(begun.dt) * size if self.settings.adaptive else begun.dt,
            t_lo=jnp.where(t == old.t, old.t_lo, 0),
            saved=old.saved,
            naccept=old.naccept,
            nreject=old.nreject,
            nf=old.nf + begun.nf,
            nfactor=old.nfactor,
            code=code,
        )
        lane = self.begun(self.params(new), lane)
        if lane.work is not None:
            lane = lane._replace(work=lane.work._replace(njacs=old.work.njacs))
        return lane, new, left, entry
