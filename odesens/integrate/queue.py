"""A queue before the lanes: a lane that has finished takes the next trajectory, so that none waits for the slowest.

Owns: which lane works on which trajectory, when lanes are filled again, running the last ones in fewer lanes. Must not
know: how a step is made, recorded or differentiated (`loop`).

The cost is that of the sum of all steps, not of the longest trajectory times their number. Filling lanes costs about
as much as `PATIENCE` steps of all of them, so it waits until as many steps of idle lanes were wasted: that costs at
most twice what knowing the future would. When the queue is empty and few lanes still run, they go on alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..extension import compiled_whole, vary, varying_axes, while_loop
from .lanes import FEW, Lanes, choose
from .loop import RUNNING, Lane, Options, Result, Settings, Task, in_order, save, start, stepper, velocity_of

PATIENCE = 16


class Work(NamedTuple):
    """What the lanes are at: their states, their saved values (lanes, m, n), their trajectories (`count` for none)."""

    lane: Lane
    us: Any
    index: Any


class Done(NamedTuple):
    """Results of the trajectories, in their order: how each ended, its saved values (count, m, n)."""

    lane: Lane
    us: Any

    def put(self, work: Work, where) -> "Done":
        """The results of those lanes that are at `where` (lanes,); elsewhere it names no trajectory."""
        write = lambda out, x: out.at[where].set(x, mode="drop")
        return jax.tree.map(write, self, Done(work.lane, work.us))


class Queue(NamedTuple):
    """All trajectories of one loop: everything that `integrate` gets for `count` lanes."""

    settings: Settings
    task: Task
    options: Options
    options_axes: Any
    count: int

    def take(self, index) -> tuple[Task, Options]:
        """The problems of the trajectories `index` (lanes,)."""
        index = jnp.minimum(index, self.count - 1)
        own = lambda axis, x: x if axis is None else jnp.take(x, index, axis)
        some = lambda axes, tree: jax.tree.map(
            lambda a, x: jax.tree.map(lambda leaf: own(a, leaf), x), axes, tree, is_leaf=lambda a: a is None
        )
        task = self.task
        picked = {name: jnp.take(getattr(task, name), index, 0) for name in ("u0", "t0", "t1", "ts")}
        return task._replace(p=some(task.p_axes, task.p), **picked), some(self.options_axes, self.options)

    def begin(self, index) -> Work:
        """Lanes at the start of the trajectories `index`."""
        task, options = self.take(index)
        settings, lanes = self.settings, Lanes(index.shape[0])
        one = lambda p, *args: start(settings, velocity_of(settings, task, p), *args)
        lane = lanes.map(one, (task.p_axes, 0, 0, 0, 0, self.options_axes))(
            task.p, task.u0, task.t0, task.t1, task.ts, options
        )
        at_start = (task.ts == task.t0[..., None])[..., None]
        us = jnp.where(at_start, task.u0[..., None, :], jnp.asarray(jnp.nan, task.u0.dtype))
        return Work(lane, us, index)

    def run(self, work: Work, *, least: int, patience) -> Work:
        """Step all lanes until no more than `least` of them run, or `patience` steps of idle lanes were wasted."""
        task, options = self.take(work.index)
        size = work.index.shape[0]
        lanes = Lanes(size)
        step = stepper(self.settings, task, self.options_axes, lanes)
        still = jnp.zeros_like(task.t1)

        def body(state):
            lane, us, wasted = state
            trial, new = step(task.p, lane, task.t1, options, still)
            if task.ts.shape[-1]:
                us, new = save(self.settings, lanes, task, us, lane, trial, new)
            return new, us, wasted + jnp.sum(new.code != RUNNING, dtype=jnp.int32)

        def going(state):
            return (jnp.sum(state[0].code == RUNNING) > least) & (state[2] < patience)

        axes = varying_axes(*jax.tree.leaves((work, task.t1, task.p, patience)))
        state = vary((work.lane, work.us, jnp.zeros((), jnp.int32)), axes)
        loop = lambda state: while_loop(going, body, state)
        lane, us, _ = compiled_whole(loop, state) if size <= FEW else loop(state)
        return work._replace(lane=lane, us=us)


def integrate_queued(
    settings: Settings, task: Task, options: Options, options_axes, lanes: Lanes, width: int
) -> Result:
    """`integrate` of all `lanes`, without a record, where no more than `width` of them are in the loop at once."""
    assert lanes.size is not None
    count, width = lanes.size, min(width, lanes.size)
    queue = Queue(settings, task, options, options_axes, count)
    least = FEW if width > FEW else 0
    never = jnp.iinfo(jnp.int32).max
    work = queue.begin(jnp.arange(width, dtype=jnp.int32))
    empty = lambda x: jnp.zeros((count, *x.shape[1:]), x.dtype)
    done = jax.tree.map(empty, Done(work.lane, work.us))

    def fill(state):
        work, done, following = state
        more = following < count
        work = queue.run(work, least=least, patience=jnp.where(more, PATIENCE * width, never).astype(jnp.int32))
        free = work.lane.code != RUNNING
        done = done.put(work, jnp.where(free, work.index, count))
        rank = jnp.cumsum(free.astype(jnp.int32)) - 1
        index = jnp.where(free, jnp.minimum(following + rank, count), work.index).astype(jnp.int32)

        def again(work):
            fresh = queue.begin(index)
            lane, us = choose(free, (fresh.lane, fresh.us), (work.lane, work.us))
            return Work(lane, us, index)

        axes = varying_axes(*jax.tree.leaves(work))
        resume = lambda work: vary(again(work), axes)
        work = jax.lax.cond(more, resume, lambda work: work._replace(index=vary(index, axes)), vary(work, axes))
        return work, done, jnp.minimum(following + jnp.sum(free, dtype=jnp.int32), count)

    def unfinished(state):
        return (state[2] < count) | (jnp.sum(state[0].index < count) > least)

    axes = varying_axes(*jax.tree.leaves((work, task.p, task.t1)))
    state = vary((work, done, jnp.asarray(width, jnp.int32)), axes)
    work, done, _ = while_loop(unfinished, fill, state)
    if least:  # the last ones go on alone
        last = jnp.argsort(work.index >= count, stable=True)[:least]
        work = queue.run(jax.tree.map(lambda x: x[last], work), least=0, patience=never)
        done = done.put(work, work.index)
    us = done.us
    if task.ts.shape[-1]:
        us = jnp.where(lanes.map(in_order)(task.ts, task.t0, task.t1)[..., None], us, jnp.nan)
    return Result(us, None, done.lane)
