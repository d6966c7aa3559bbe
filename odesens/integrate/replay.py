"""The accepted steps of a recorded solve, backwards in chunks or at given times, from its checkpoints.

Owns: replaying the steps between two rows of a record, going through all steps from the last to the first, finding the
steps that hold given times. Must not know: adjoints, what is done with a step.

While the record's stride is one, its rows are the steps. Otherwise the steps between two rows are made again, with the
controller's memory kept in the row, and end exactly at the next row. Where rounding makes a replayed step differ (the
compiler may order operations differently), that is in the last digit; should a rejection turn on it, the steps are
others of the same accuracy, and still end there.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..extension import vary, varying_axes, while_loop
from ..methods.step import no_work
from ..status import ReturnCode
from .lanes import Lanes
from .loop import RUNNING, Lane, Options, Settings, Task, direction, in_order, stepper, system_of
from .record import Record, elapsed, steps_between, writer

CHUNK = 128  # steps replayed and handed out at once


class Replay(NamedTuple):
    """A solve that was recorded: its task (whose u0 and ts are not used), settings and record."""

    settings: Settings
    task: Task
    options: Options
    options_axes: Any
    lanes: Lanes
    record: Record

    @property
    def chunk(self) -> int:
        return min(CHUNK, self.record.times.shape[0])

    @property
    def strided(self) -> bool:
        """Whether the record's stride can be more than one."""
        return self.settings.max_steps >= self.record.times.shape[0]


def cursor(replay: Replay, times, states, stop) -> Lane:
    """The lanes as they were at a row, about to go to `stop` ([lanes], 2)."""
    fsal, method = replay.settings.tableau.fsal, replay.settings.method

    def one(p, times, u, stop):
        t, t_lo, dt, err1, err2, auto = times
        real = jnp.finfo(u.dtype).dtype
        f0 = replay.task.f(t, u, p) if fsal else jnp.zeros_like(u)
        zero = jnp.zeros((), jnp.int32)
        code = jnp.where((t == stop[0]) & (t_lo == stop[1]), ReturnCode.Success, RUNNING).astype(jnp.int32)
        auto = auto.astype(jnp.int32)
        errors = err1.astype(real), err2.astype(real)
        work = None
        if method.multistep:
            n = method.states(u.size // replay.task.blocks)
            work = no_work(method, system_of(replay.task, p, (1.0, 1.0)), t, u[:n])
        return Lane(t, t_lo, u, f0, dt, *errors, zero, zero, zero, zero, zero, auto, code, work)

    return replay.lanes.map(one, (replay.task.p_axes, 0, 0, 0))(replay.task.p, times, states, stop)


def between(replay: Replay, times, states, stop, stride):
    """Rows at every `stride`-th iteration from a row ([lanes], ..) to `stop`: times, states, and how many."""
    step = stepper(replay.settings, replay.task, replay.options_axes, replay.lanes)
    lane = cursor(replay, times, states, stop)
    rows = writer(replay.chunk, replay.lanes, stop, states.shape[-1], states.dtype, stride)

    exactly = replay.settings.method.multistep

    def body(state):
        lane, rows = state
        trial, new = onward(step, replay.task.p, lane, stop, replay.task.t1, replay.options, exactly)
        return new, rows.write(lane).advance(trial.accepted)

    def going(state):
        # a step more than there is room for would be one that rounding added: the last row then goes all the way
        return jnp.any(state[0].code == RUNNING) & (state[1].row < replay.chunk)

    axes = varying_axes(*jax.tree.leaves((lane, stop, stride, replay.task.p)))
    _, rows = while_loop(going, body, vary((lane, rows), axes))
    return rows.times, rows.states, rows.row


def onward(step, p, lane: Lane, stop, t1, options: Options, exactly: bool):
    """A step towards `stop`, cut there; or, where steps have to be the recorded ones `exactly`, towards the end t1.

    One that was rejected before the step to `stop` must be rejected again, as that may have changed the order.
    """
    if not exactly:
        return step(p, lane, stop[..., 0], options, stop[..., 1])
    trial, new = step(p, lane, t1, options, jnp.zeros_like(t1))
    left = (stop[..., 0] - new.t) + (stop[..., 1] - new.t_lo)
    there = trial.accepted & (left * jnp.sign(trial.dt) <= 1e-6 * jnp.abs(trial.dt))
    return trial, new._replace(code=jnp.where(there, ReturnCode.Success, new.code).astype(jnp.int32))


class Stack(NamedTuple):
    """Rows between rows, the last one on top, each with the number of iterations that it stands for."""

    times: Any
    states: Any
    gaps: Any
    top: Any


def backwards(replay: Replay, visit, carry):
    """carry = visit(carry, steps) for all chunks of steps, the last steps first."""
    record, chunk, lanes = replay.record, replay.chunk, replay.lanes
    row = lambda buffer, i: lanes.row(buffer, i)
    levels = _levels(replay)
    empty = writer(max(levels * chunk, 1), lanes, record.times, record.states.shape[-1], record.states.dtype)
    stack = Stack(empty.times, empty.states, jnp.zeros(max(levels * chunk, 1), jnp.int32), jnp.zeros((), jnp.int32))

    def rows_of_record(first, j):
        part = lambda buffer: jax.lax.dynamic_slice_in_dim(buffer, first, chunk)
        return part(record.times), part(record.states), j + 1 - first

    def body(state):
        j, stop, last, stack, carry = state
        if not replay.strided:
            first = jnp.maximum(j + 1 - chunk, 0)
            times, states, count = rows_of_record(first, j)
            carry = visit(carry, steps_between(times, states, count, stop, last))
            return first - 1, times[0, ..., :2], before(states, last, True), stack, carry

        # the steps to go through now: from the row on top of the stack, else from as many rows as fill a chunk
        stacked = stack.top > 0
        first = jnp.maximum(j + 1 - jnp.maximum(chunk // record.stride, 1), 0)
        above = lambda ours, theirs: jnp.where(stacked, row(ours, stack.top - 1), row(theirs, first))
        source = above(stack.times, record.times), above(stack.states, record.states)
        gap = jnp.where(stacked, stack.gaps[stack.top - 1], record.stride)
        stride = jnp.ones((), jnp.int32)
        for level in range(1, levels + 1):  # the largest power of the chunk below the gap
            stride = jnp.where(gap > chunk**level, chunk**level, stride)
        direct = ~stacked & (record.stride == 1)
        times, states, count = jax.lax.cond(
            direct,
            lambda: vary(rows_of_record(first, j), axes),
            lambda: vary(between(replay, *source, stop, stride), axes),
        )
        ready = stride == 1
        carry = visit(carry, steps_between(times, states, jnp.where(ready, count, 0), stop, last))
        j = jnp.where(stacked, j, first - 1)
        top = stack.top - stacked.astype(jnp.int32)
        if levels:
            put = lambda buffer, rows: jax.lax.dynamic_update_slice_in_dim(buffer, rows, top, 0)
            gaps = jnp.broadcast_to(stride, (chunk,)).astype(jnp.int32)
            push = lambda s: Stack(put(s.times, times), put(s.states, states), put(s.gaps, gaps), top + count)
            stack = jax.lax.cond(ready, lambda s: s._replace(top=top), push, stack)
        return j, jnp.where(ready, times[0, ..., :2], stop), before(states, last, ready), stack, carry

    def before(states, last, ready):
        return None if last is None else jnp.where(ready, states[0], last)

    stop = row(record.times, record.size)[..., :2]
    last = row(record.states, record.size) if replay.settings.method.multistep else None
    state = (record.size - 1, stop, last, stack, carry)
    axes = varying_axes(*jax.tree.leaves((state, record, replay.task.p)))
    return while_loop(lambda s: (s[0] >= 0) | (s[3].top > 0), body, vary(state, axes))[4]


def _levels(replay: Replay) -> int:
    """How often the steps between two rows may have to be divided before they fit into a chunk."""
    if not replay.strided:
        return 0
    rows = replay.record.times.shape[0]
    # halving leaves at least half of the rows in use
    gap = max(1, 2 * replay.settings.max_steps / rows)
    return max(0, math.ceil(math.log(gap) / math.log(replay.chunk) - 1e-9) - 1)


def reached(record: Record, lanes: Lanes, ts, t0, t1):
    """Whether each saved time ([lanes], m) was reached, in the order in which it was asked for."""

    def one(ts, t0, t1, t_end):
        if ts.shape[0] == 0:
            return jnp.zeros(0, bool)
        return in_order(ts, t0, t1) & (direction(t0, t1) * (ts - t_end) <= 0)

    return lanes.map(one)(ts, t0, t1, lanes.row(record.times, record.size)[..., 0])


def steps_at(replay: Replay, ts) -> tuple[Any, Any, Any, Any]:
    """The steps that hold the times ts ([lanes], m), in any order: times ([lanes], m, 4), states, whether inside, and
    the states after the steps, None where no step needs them."""
    record, lanes = replay.record, replay.lanes
    out = lanes.map(
        lambda *args: _steps_at_one(replay, *args), (replay.task.p_axes, 0, 1, 1, 0, 0, replay.options_axes)
    )
    return out(replay.task.p, ts, record.times, record.states, replay.task.t0, replay.task.t1, replay.options)


def _steps_at_one(replay: Replay, p, ts, times, states, t0, t1, options):
    """The same for one lane: one cursor for each time."""
    record, sign = replay.record, direction(t0, t1)
    rows = jnp.arange(times.shape[0], dtype=jnp.int32)
    # times since t0: where t0 is far from zero, only these tell rows apart that differ in their tails
    since = sign * ((times[:, 0] - t0) + times[:, 1])
    known = jnp.where(rows <= record.size, since, jnp.inf)
    row = jnp.clip(jnp.searchsorted(known, sign * (ts - t0), side="right").astype(jnp.int32) - 1, 0, record.size)
    after = jnp.minimum(row + 1, record.size)
    stop = times[after, :2]
    start = times[row]
    found_times = jnp.concatenate([start[:, :2], elapsed(start, stop)[:, None], start[:, 5:]], axis=1)
    multistep = replay.settings.method.multistep
    found, following = states[row], states[after] if multistep else None
    if replay.strided:
        one = replay._replace(lanes=Lanes(ts.shape[0]), task=replay.task._replace(p=p, p_axes=None))
        step = stepper(replay.settings, one.task, None, one.lanes)
        axes = varying_axes(*jax.tree.leaves((start, states, ts, p)))
        lane = cursor(one, start, states[row], stop)
        lane = lane._replace(code=jnp.where(record.stride == 1, ReturnCode.Success, lane.code).astype(jnp.int32))

        def body(state):
            lane, at, u, end = state
            trial, new = onward(step, p, lane, stop, jnp.broadcast_to(t1, stop[:, 0].shape), options, multistep)
            here = jnp.stack([lane.t, lane.t_lo, trial.dt, lane.auto.astype(lane.t.dtype)], axis=-1)
            passed = trial.accepted & (sign * ((ts - trial.t) - trial.t_lo) <= 0)
            at = jnp.where(trial.accepted[:, None], here, at)
            u = jnp.where(trial.accepted[:, None], lane.u, u)
            end = None if end is None else jnp.where(trial.accepted[:, None], trial.u1, end)
            code = jnp.where(passed, ReturnCode.Success, new.code).astype(jnp.int32)
            return new._replace(code=code), at, u, end

        state = vary((lane, found_times, found, following), axes)
        _, found_times, found, following = while_loop(lambda s: jnp.any(s[0].code == RUNNING), body, state)
    t_end = times[record.size, 0]
    slack = 4 * jnp.finfo(ts.dtype).eps * jnp.abs(ts)
    inside = (sign * (ts - t0) >= -slack) & (sign * (ts - t_end) <= slack)
    return found_times, found, inside, following


def theta_in(times, ts):
    """theta in [0, 1] of times ts within steps (.., 4); 0 in a step of no length."""
    t, t_lo, dt = times[..., 0], times[..., 1], times[..., 2]
    theta = ((ts - t) - t_lo) / jnp.where(dt == 0, 1, dt)
    return jnp.where(dt == 0, 0, jnp.clip(theta, 0, 1))
