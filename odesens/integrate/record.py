"""The record of a solve: the accepted mesh and the states on it, and looking things up in it.

Owns: the buffers, their layout, finding the step that holds a time. Must not know: methods, adjoints.

Row i holds the time t_i (a head and a small tail, so that float32 times do not stall), the step dt_i taken from there,
and the state u_i. Row `size` is the last state, with dt = 0. All lanes share the row number: a lane that was rejected
or had finished has dt = 0 there, which every reader treats as "stay".
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .lanes import Lanes


class Record(NamedTuple):
    """times (rows, [lanes], 3) as t, t_lo, dt; states (rows, [lanes], n); size: rows before the last; code per lane."""

    times: Any
    states: Any
    size: Any
    code: Any


def empty(rows: int, lanes: Lanes, t1, n: int, dtype) -> Record:
    """Buffers for `rows` rows; unused rows hold the end time, so that times stay sorted."""
    axis = () if lanes.size is None else (lanes.size,)
    zero = jnp.zeros_like(t1)
    blank = jnp.stack([t1, zero, zero], axis=-1)
    times = jnp.broadcast_to(blank, (rows, *blank.shape))
    states = jnp.zeros((rows, *axis, n), dtype)
    return Record(times, states, jnp.zeros((), jnp.int32), jnp.zeros(axis, jnp.int32))


class Place(NamedTuple):
    """Where a saved time lies: its row, theta in [0, 1] within the step from there, whether it lies on the record."""

    row: Any
    theta: Any
    inside: Any


def locate(times, size, ts, direction) -> Place:
    """The steps of one lane's mesh, times (rows, 3), that hold the times ts (m,)."""
    t, t_lo, dt = times[:, 0], times[:, 1], times[:, 2]
    found = jnp.searchsorted(direction * t, direction * ts, side="right") - 1
    row = jnp.clip(found, 0, size)
    step = dt[row]
    offset = (ts - t[row]) - t_lo[row]
    theta = offset / jnp.where(step == 0, 1, step)
    slack = 4 * jnp.finfo(ts.dtype).eps * jnp.abs(ts)
    inside = (direction * offset >= -slack) & (direction * (offset - step) <= slack)
    return Place(row, jnp.where(step == 0, 0, jnp.clip(theta, 0, 1)), inside)
