"""The time loop of a solve with events: step, look for a sign change, go back to the root, jump, start anew.

Owns: stops at known times, the order of events, jumps, the log of what happened. Must not know: how a root is found
(`localise`), derivatives, primitives, user types.

Each iteration makes one attempt in every lane; a step in which a condition changes its sign is taken again, exactly up
to the root. Events of one instant are kept pending and happen in one iteration each, between which the lane takes steps
of no length. Written for lanes, as `loop` is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..events import CONTINUOUS, DISCRETE, SCHEDULED, EventSystem, Functions, rates
from ..extension import compiled_whole, vary, varying_axes, while_loop
from ..status import ReturnCode
from . import localise
from .lanes import Lanes
from .loop import (
    RUNNING,
    Lane,
    Options,
    Settings,
    Task,
    direction,
    in_order,
    save,
    start,
    stepper,
    two_sum,
    velocity_of,
)

ENTRY = 4  # t, t_lo, kind, index of the known time


class Log(NamedTuple):
    """Events of each lane: entries ([lanes], E, 4), the states before and after ([lanes], E, n), how many ([lanes])."""

    entries: Any
    before: Any
    after: Any
    count: Any


class State(NamedTuple):
    """The carry of the loop, lanes leading.

    new : the changed parameter leaves. signs (c,) of the conditions. pending (kinds,): what is to happen at this time.
    next : the number of the next known time. index : that of the one that is pending. mesh: times of accepted steps.
    """

    lane: Lane
    us: Any
    new: list
    signs: Any
    pending: Any
    next: Any
    index: Any
    log: Log
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
    opens = np.asarray(system.table("open"))[functions.kind_of_time]
    ahead = jnp.where(opens, since > 0, since >= 0) & (sign * (t1 - times) >= 0)
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
) -> Result:
    """Integrate every lane of `task` through its events.

    settle(params, u, t) makes the state after a jump obey the algebraic equations and says whether it does. With
    `rows`, the times of the accepted steps are kept in so many.
    """
    changed = functions.changed
    own = lambda i: task.p["p"][i] if task.p_axes["p"][i] == 0 else lanes.spread(task.p["p"][i])
    p_axes = {**task.p_axes, "p": [0 if i in changed else a for i, a in enumerate(task.p_axes["p"])]}
    task = task._replace(p_axes=p_axes)
    run = Run(settings, task, options, options_axes, lanes, system, functions, settle)
    new = [own(i) for i in changed]
    params = run.params(new)
    plans = lanes.map(lambda p, t0, u0, t1: run.plan(p, t0, u0, t1), (p_axes, 0, 0, 0))(
        params, task.t0, task.u0, task.t1
    )
    lane = run.start(params, task.u0, task.t0)
    code = jnp.where(lane.code == ReturnCode.Success, RUNNING, lane.code)
    zero = jnp.zeros_like(lane.saved)
    lane = lane._replace(saved=zero, code=code.astype(jnp.int32))
    m, n, most = task.ts.shape[-1], task.u0.shape[-1], system.most
    full = lambda shape, value, dtype: lanes.spread(jnp.full(shape, value, dtype))
    log = Log(
        full((most, ENTRY), -1, task.t0.dtype),
        full((most, n), 0, task.u0.dtype),
        full((most, n), 0, task.u0.dtype),
        zero,
    )
    state = State(
        lane,
        full((m, n), jnp.nan, task.u0.dtype),
        new,
        run.signs(params, lane, full(len(system.of(CONTINUOUS)), True, bool)),
        full(len(system.kinds), False, bool),
        zero,
        zero,
        log,
        jnp.where(jnp.arange(rows) == 0, task.t0[..., None], jnp.nan),
    )
    state = vary(state, varying_axes(*jax.tree.leaves((state, task.p, task.t1, plans))))
    running = lambda s: jnp.any(s.lane.code == RUNNING)
    state = compiled_whole(lambda s: while_loop(running, lambda s: run.iteration(s, plans), s), state)
    lane = state.lane
    if not m:
        return Result(state.us, state.log, lane, state.mesh)
    # what was not written by a step: saves at an event at the very end, and those after a solve that was ended
    rest = (jnp.arange(m, dtype=jnp.int32) >= lane.saved[..., None]) & (lane.code <= 1)[..., None]
    us = jnp.where(rest[..., None], lane.u[..., None, :], state.us)
    us = jnp.where(lanes.map(in_order)(task.ts, task.t0, task.t1)[..., None], us, jnp.nan)
    return Result(us, state.log, lane, state.mesh)


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
        p = list(self.task.p["p"])
        for i, x in zip(self.functions.changed, new, strict=True):
            p[i] = x
        return {**self.task.p, "p": p}

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

    def conditions(self, params) -> Callable:
        return lambda t, u: self.functions.conditions(t, u, params["p"], params["aux"])

    def signs(self, params, lane: Lane, at_root):
        """The conditions' signs, those of a zero `at_root` (c,) by where the solution goes from there."""

        def one(p, lane, at_root):
            g, rate = rates(self.conditions(p), velocity_of(self.settings, self.task, p), lane.t, lane.u)
            return localise.signs_after(g, rate, at_root, lane.t, lane.dt)

        return self.lanes.map(one, (self.task.p_axes, 0, 0))(params, lane, at_root)

    # ---- one iteration

    def iteration(self, s: State, plans: Plan) -> State:
        lanes, task = self.lanes, self.task
        params = self.params(s.new)
        waiting = jnp.any(s.pending, axis=-1)
        stop, stop_lo, planned = lanes.map(self.next_stop)(s.lane, waiting, s.next, plans, task.t0, task.t1)
        step = stepper(self.settings, task, self.options_axes, lanes)
        trial, new = step(params, s.lane, stop, self.options, stop_lo)
        trial, new, signs, fired = self.locate(step, params, s, trial, new, waiting)
        event = jnp.any(fired, axis=-1)
        arrived = trial.accepted & (new.code == ReturnCode.Success) & ~event
        due = arrived & planned & ~waiting
        pending, signs = self.happening(params, s, plans, trial, new, signs, fired, due, waiting)
        waits = jnp.any(pending, axis=-1)
        final = arrived & ~planned & ~waiting & ~waits
        code = jnp.where((new.code == ReturnCode.Success) & ~final, RUNNING, new.code).astype(jnp.int32)
        idle = (trial.accepted & (trial.dt == 0)).astype(jnp.int32)
        new = new._replace(code=code, naccept=new.naccept - idle)
        us = s.us
        if task.ts.shape[-1]:  # a save at the time of an event is the state after it
            sign = lanes.map(direction)(task.t0, task.t1)
            hair = jnp.finfo(trial.t.dtype).eps ** 2 * jnp.maximum(jnp.abs(trial.t), jnp.finfo(trial.t.dtype).tiny)
            seen = trial._replace(t_lo=jnp.where(waits, trial.t_lo - sign * hair, trial.t_lo))
            us, new = save(self.settings, lanes, task._replace(p=params), us, s.lane, seen, new)
        mesh = s.mesh
        if mesh.shape[-1]:
            moved = trial.accepted & (trial.dt != 0)
            place = jnp.clip(new.naccept, 0, mesh.shape[-1] - 1)
            kept = jnp.where(moved, trial.t, lanes.map(lambda mesh, i: mesh[i])(mesh, place))
            mesh = lanes.put(mesh[..., None], place, kept[..., None], jnp.ones_like(moved))[..., 0]
        index = (
            lanes.map(lambda plan, i: jnp.take(plan.index, i, mode="clip"))(plans, s.next) if self.known else s.index
        )
        index = jnp.where(due, index, s.index)
        after = State(new, us, s.new, signs, pending, s.next + due.astype(jnp.int32), index, s.log, mesh)
        return self.jumps(after)

    @property
    def known(self) -> bool:
        return len(self.functions.kind_of_time) > 0

    def next_stop(self, lane: Lane, waiting, number, plan: Plan, t0, t1):
        """Where the next step of one lane may go at most, a time and its tail; whether something is planned there."""
        if not self.known:
            wait = lambda here, there: jnp.where(waiting, here, there)
            return wait(lane.t, t1), wait(lane.t_lo, 0), jnp.zeros((), bool)
        sign = direction(t0, t1)
        pick = lambda x: jnp.take(x, number, mode="clip")
        target = pick(plan.times)
        planned = (number < plan.times.shape[0]) & jnp.isfinite(target)
        opens = jnp.take(self.system.table("open"), pick(plan.kinds), mode="clip")
        target = jnp.where(opens, jnp.nextafter(target, -sign * jnp.inf), target)
        stop = jnp.where(planned, target, t1)
        stay = waiting | (sign * ((stop - lane.t) - lane.t_lo) < 0)
        return jnp.where(stay, lane.t, stop), jnp.where(stay, lane.t_lo, 0), planned

    def locate(self, step: Callable, params, s: State, trial, new, waiting):
        """The attempt, taken again up to the first root within it; the conditions' signs after it, and which fired."""
        if not self.system.of(CONTINUOUS):
            none = jnp.zeros((*waiting.shape, 0), bool)
            return trial, new, s.signs, none
        lanes, task = self.lanes, self.task
        looks = trial.accepted & ~waiting & (trial.dt != 0)

        def look(p, lane, trial, t1, signs):
            return localise.look(self.settings, task, p, self.conditions(p), self.system, lane, trial, t1, signs)

        k, found = lanes.map(look, (task.p_axes, 0, 0, 0, 0))(params, s.lane, trial, task.t1, s.signs)
        event = found.any & looks
        ends = jnp.where(looks[..., None], found.signs, s.signs)
        nowhere = jnp.zeros_like(found.which)

        def back():
            def root(p, lane, trial, k, found, options, t_stop):
                tol = options.abstol, options.reltol
                return localise.root(
                    self.settings, task, p, self.conditions(p), self.system, lane, trial, k, found, tol, t_stop
                )

            axes = (task.p_axes, 0, 0, 0, 0, self.options_axes, 0)
            h, count = lanes.map(root, axes)(params, s.lane, trial, k, found, self.options, task.t1)
            stop, stop_lo = two_sum(s.lane.t, s.lane.t_lo + h)
            tried = s.lane._replace(dt=jnp.where(event, h, s.lane.dt))
            again, after = step(params, tried, stop, self.options, stop_lo, event)
            extra = new.nf - s.lane.nf + count * self.settings.tableau.stages
            after = after._replace(nf=after.nf + extra)

            def fired(p, lane, found, h):
                g, rate = rates(self.conditions(p), velocity_of(self.settings, task, p), lane.t, lane.u)
                return localise.at_root(g, rate, found, lane.t, h)

            which = lanes.map(fired, (task.p_axes, 0, 0, 0))(params, after, found, h)
            which = which & (event & again.accepted)[..., None]
            pick = lambda a, b: jnp.where(event.reshape(*event.shape, *(1,) * (a.ndim - event.ndim)), a, b)
            return jax.tree.map(pick, (again, after), (trial, new)), which

        (trial, new), fired = jax.lax.cond(jnp.any(event), back, lambda: ((trial, new), nowhere))
        stays = event & ~trial.accepted  # the shorter step failed: nothing was seen
        return trial, new, jnp.where(stays[..., None], s.signs, ends), fired

    def happening(self, params, s: State, plans: Plan, trial, new, signs, fired, due, waiting):
        """What is to happen at the end of this step ([lanes], kinds)."""
        lanes, kinds = self.lanes, self.system.kinds
        columns: list[Any] = [None] * len(kinds)
        for j, i in enumerate(self.system.of(CONTINUOUS)):
            columns[i] = fired[..., j]
        if self.system.of(DISCRETE):
            whens = lanes.map(lambda p, t, u: self.functions.whens(t, u, p["p"], p["aux"]), (self.task.p_axes, 0, 0))(
                params, new.t, new.u
            )
            asks = trial.accepted & (trial.dt != 0) & ~waiting
            for j, i in enumerate(self.system.of(DISCRETE)):
                columns[i] = whens[..., j] & asks
        if self.known:
            here = lanes.map(lambda plan, i: jnp.take(plan.kinds, i, mode="clip"))(plans, s.next)
            for i in self.system.of(SCHEDULED):
                columns[i] = due & (here == i)
        pending = jnp.stack(columns, axis=-1)
        return jnp.where(waiting[..., None], s.pending, pending), signs

    def jumps(self, s: State) -> State:
        """The first thing that is pending happens, in every lane in which there is one."""

        def fires(s: State, done):
            return jnp.any(s.pending, axis=-1) & (s.lane.code == RUNNING) & ~done

        def body(state):
            s, done = state
            now = fires(s, done)
            params = self.params(s.new)
            kind = jnp.argmax(s.pending.astype(jnp.int32), axis=-1).astype(jnp.int32)
            lane, new, pending, entry = self.jump(params, s, kind)
            full = s.log.count >= self.system.most
            lane = lane._replace(code=jnp.where(full, ReturnCode.EventLimit, lane.code).astype(jnp.int32))
            happens = now & ~full
            pick = lambda a, b: jnp.where(happens.reshape(*happens.shape, *(1,) * (a.ndim - happens.ndim)), a, b)
            put = lambda buffer, x: self.put(buffer, s.log.count, x, happens)
            log = Log(
                put(s.log.entries, entry),
                put(s.log.before, s.lane.u),
                put(s.log.after, lane.u),
                s.log.count + happens.astype(jnp.int32),
            )
            code = jnp.where(now & full, ReturnCode.EventLimit, s.lane.code).astype(jnp.int32)
            own = jax.tree.map(pick, (lane, new, pending), (s.lane._replace(code=code), s.new, s.pending))
            roots = self.components(s.pending)
            signs = jnp.where(happens[..., None], self.signs(self.params(own[1]), own[0], roots), s.signs)
            return s._replace(lane=own[0], new=own[1], pending=own[2], signs=signs, log=log), done | now

        done = jnp.zeros_like(s.lane.code, dtype=bool)
        return while_loop(lambda state: jnp.any(fires(*state)), body, (s, done))[0]

    def put(self, buffer, index, values, where):
        """Write rows of a log, only in the lanes `where`."""
        index = jnp.minimum(index, buffer.shape[-2] - 1)
        old = self.lanes.map(lambda b, i: jax.lax.dynamic_index_in_dim(b, i, keepdims=False))(buffer, index)
        return self.lanes.put(buffer, index, jnp.where(where[..., None], values, old), where)

    def components(self, pending):
        """Which continuous conditions ([lanes], c) are at a root that is pending."""
        own = self.system.of(CONTINUOUS)
        return jnp.stack([pending[..., i] for i in own], axis=-1) if own else pending[..., :0]

    def jump(self, params, s: State, kind):
        """The lanes after the event of their kind, changed parameters, what is still pending, the entry for the log."""
        task, table = self.task, self.system.table

        def one(p, lane, kind, index, pending, t0, t1):
            pick = lambda name: jnp.take(table(name), kind, mode="clip")
            beyond = jnp.nextafter(lane.t, direction(t0, t1) * jnp.inf)
            t = jnp.where(pick("open"), beyond, lane.t)
            u, new = self.functions.affect(kind, lane.t, lane.u, p["p"], p["aux"])
            ok = jnp.ones((), bool)
            if self.settle is not None:
                u, ok = self.settle({**p, "p": self.replaced(p["p"], new)}, u, t)
            entry = jnp.stack([x.astype(lane.t.dtype) for x in (lane.t, lane.t_lo, kind, index)])
            left = pending & (jnp.arange(pending.shape[0]) != kind)
            return t, u, new, ok, entry, left & ~pick("terminate"), pick("terminate")

        axes = (task.p_axes, 0, 0, 0, 0, 0, 0)
        t, u, new, ok, entry, left, ends = self.lanes.map(one, axes)(
            params, s.lane, kind, s.index, s.pending, task.t0, task.t1
        )
        begun = self.start(self.params(new), u, t)
        code = jnp.where(begun.code == ReturnCode.NonFinite, ReturnCode.NonFinite, RUNNING)
        code = jnp.where(ok, code, ReturnCode.InitialisationFailure)
        code = jnp.where(ends, ReturnCode.Terminated, code).astype(jnp.int32)
        old = s.lane
        lane = begun._replace(
            t_lo=jnp.where(t == old.t, old.t_lo, 0),
            saved=old.saved,
            naccept=old.naccept,
            nreject=old.nreject,
            nf=old.nf + begun.nf,
            nfactor=old.nfactor,
            code=code,
        )
        return lane, new, left, entry

    def replaced(self, p: list, new: list) -> list:
        out = list(p)
        for i, x in zip(self.functions.changed, new, strict=True):
            out[i] = x
        return out
