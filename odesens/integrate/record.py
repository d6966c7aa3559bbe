"""The record of a solve: checkpoints of bounded number, from which every accepted step can be had again.

Owns: the buffers, their layout, writing rows, doubling the stride. Must not know: methods, adjoints.

Row j holds the lanes' states as they were before iteration `j * stride`: the time (a head and a small tail, so that
float32 times do not stall), the step size proposed there, the memory of the controller and of the switch between
methods, and u. Row `size` holds the last state. All lanes share the row number; an iteration counts where any lane
accepted a step. When the rows are full, every second one is kept and the stride doubles: memory does not grow with the
number of steps.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..extension import while_loop
from ..methods.bdf import PERIOD
from .lanes import Lanes

FIELDS = 6  # t, t_lo, dt, err1, err2, auto
MOST_ROWS = 1024
LEAST_ROWS = 64
MOST_ENTRIES = 2**20  # of one lane's states, above which the rows become fewer


class Record(NamedTuple):
    """times (rows, [lanes], 6); states (rows, [lanes], n); extent (2,): size and stride; code per lane."""

    times: Any
    states: Any
    extent: Any
    code: Any

    @property
    def size(self):
        return self.extent[0]

    @property
    def stride(self):
        return self.extent[1]


def rows_for(max_steps: int, n: int) -> int:
    """How many rows a record has: never more than the steps, a multiple of `PERIOD` where it may have to be thinned."""
    most = min(MOST_ROWS, max(LEAST_ROWS, MOST_ENTRIES // max(n, 1) // PERIOD * PERIOD))
    return min(most, max_steps + 1)


class Writer(NamedTuple):
    """A record in the making: the state goes to `row`, which is final `stride` iterations after the one before."""

    times: Any
    states: Any
    row: Any
    since: Any
    stride: Any
    first: Any  # the stride after one

    def write(self, lane) -> "Writer":
        """Put the lanes' state where it belongs now; written again until its iteration is the row's own."""
        put = lambda buffer, value: jax.lax.dynamic_update_index_in_dim(buffer, value, self.row, 0)
        return self._replace(times=put(self.times, row_times(lane)), states=put(self.states, lane.u))

    def advance(self, accepted) -> "Writer":
        """Count an iteration in which any lane accepted a step."""
        one = jnp.any(accepted).astype(jnp.int32)
        full = (self.since == self.stride) & (one == 1)
        return self._replace(
            row=self.row + full.astype(jnp.int32), since=jnp.where(full, 1, self.since + one).astype(jnp.int32)
        )

    def halve(self) -> "Writer":
        """Keep every second row where all are taken, in place; the stride doubles, from one on it becomes `first`."""
        rows = self.times.shape[0]

        def thin(w: "Writer") -> "Writer":
            by = jnp.where(w.stride == 1, w.first, 2)

            def keep(j, buffers):
                pick = lambda b: jax.lax.dynamic_index_in_dim(b, by * j, 0, keepdims=True)
                return [jax.lax.dynamic_update_slice_in_dim(b, pick(b), j, 0) for b in buffers]

            times, states = jax.lax.fori_loop(1, rows // by, keep, [w.times, w.states])
            return w._replace(
                times=times, states=states, row=rows // by, since=w.since + (by - 1) * w.stride, stride=w.stride * by
            )

        return while_loop(lambda w: w.row >= rows, thin, self)

    def finish(self, lane, code) -> Record:
        """The record, with the last state as its last row."""
        done = self.write(lane)
        return Record(done.times, done.states, jnp.stack([self.row, self.stride]), code)


def row_times(lane):
    """The time-like part of a row ([lanes], 6)."""
    parts = (lane.t, lane.t_lo, lane.dt, lane.err1, lane.err2, lane.auto)
    return jnp.stack([x.astype(lane.t.dtype) for x in parts], axis=-1)


def writer(rows: int, lanes: Lanes, t, n: int, dtype, stride=1, first: int = 2) -> Writer:
    """Empty buffers for `rows` rows of states (n,), a multiple of `first` where they may have to be thinned."""
    axis = () if lanes.size is None else (lanes.size,)
    zero, stride, later = (jnp.asarray(x, jnp.int32) for x in (0, stride, first))
    times = jnp.zeros((rows, *axis, FIELDS), t.dtype)
    return Writer(times, jnp.zeros((rows, *axis, n), dtype), zero, stride, stride, later)


class Steps(NamedTuple):
    """Consecutive accepted steps: times (rows, [lanes], 4) as t, t_lo, dt, auto; states (rows, [lanes], N) before them.

    The first `count` rows are used. A lane has dt = 0 where it was rejected or had finished, and in rows not used.
    `last` is the state after them all, of methods whose steps need it.
    """

    times: Any
    states: Any
    count: Any
    last: Any = None

    def after(self, i):
        """The state after step i, None where no step needs it."""
        if self.last is None:
            return None
        following = jax.lax.dynamic_index_in_dim(self.states, jnp.minimum(i + 1, self.states.shape[0] - 1), 0, False)
        return jnp.where(i + 1 < self.count, following, self.last)


def steps_between(times, states, count, stop, last=None) -> Steps:
    """The steps that lead from each row to the next one, the last to `stop` ([lanes], 2), a time and its tail."""
    used = (jnp.arange(times.shape[0], dtype=jnp.int32) < count).reshape(-1, *(1,) * (times.ndim - 1))
    start = jnp.where(used, times[..., :2], stop)
    end = jnp.concatenate([start[1:], stop[None]])
    return Steps(jnp.concatenate([start, elapsed(start, end)[..., None], times[..., 5:]], axis=-1), states, count, last)


def elapsed(start, end):
    """The time between two instants (.., 2 or more), each a head and its tail."""
    return (end[..., 0] - start[..., 0]) + (end[..., 1] - start[..., 1])
