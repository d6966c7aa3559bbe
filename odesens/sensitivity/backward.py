"""The backward sweep that the continuous adjoints share.

Owns: stepping an adjoint state from the end to the start, row by row of a mesh, stopping at each saved time to add its
impulse. Must not know: what the adjoint state is, nor how parameters are accumulated.

Within a row, u(t) is one polynomial; backward steps end at each row's start, so none straddles a kink of the dense
output and the backward method keeps its order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..extension import compiled_whole, vary, varying_axes, while_loop
from ..integrate.lanes import Lanes
from ..integrate.loop import RUNNING, Lane, Options, Settings, Task, attempt, counts, direction, with_counts
from ..methods.step import make_system
from ..status import ReturnCode


class Sweep(NamedTuple):
    """A backward problem; everything per lane is mapped by the caller's `lanes`.

    rhs(t, y, context, params) is the backward field of one lane; rows(one_row, carry) calls carry = one_row(t_row,
    context, carry) for each row, the last first, with the time ([lanes]) at which it starts; impulse(params, j, y,
    data) is the state of one lane after the impulse of saved time j. accumulate(acc, lane, trial, context) is called
    for all lanes after each attempt. jacobian(t, y, context, params) is that of rhs, by default found by
    differentiating it.
    """

    settings: Settings
    lanes: Lanes
    options: Options
    options_axes: Any
    params: Any
    params_axes: Any
    rhs: Callable
    rows: Callable
    impulse: Callable
    impulse_data: Any
    accumulate: Callable | None = None
    jacobian: Callable | None = None


def run(sweep: Sweep, y1, t0, t1, ts, acc=None):
    """Sweep from t1 to t0 over all rows; returns the state at t0, the accumulated value, how it ended."""
    lanes = sweep.lanes
    m = ts.shape[-1]
    sign = direction(t0, t1)
    lane = _start(sweep, y1, t0, t1, m)

    def target_save(saved, ts, t, t_lo, sign):
        """Whether the next saved time is due at t, and that time."""
        next_t = ts[jnp.maximum(saved, 0)]
        return (saved >= 0) & (sign * ((next_t - t) - t_lo) >= 0), next_t

    find = lanes.map(target_save)

    def due(lane):
        if m == 0:
            return jnp.zeros_like(lane.code, bool)
        return find(lane.saved, ts, lane.t, lane.t_lo, sign)[0] & (lane.code <= 0)

    def give_impulses(lane):
        if m == 0:
            return lane

        def body(lane):
            now = due(lane)
            impulse = lanes.map(sweep.impulse, (sweep.params_axes, 0, 0, 0))
            y = impulse(sweep.params, jnp.maximum(lane.saved, 0), lane.u, sweep.impulse_data)
            return lane._replace(u=jnp.where(now[..., None], y, lane.u), saved=lane.saved - now.astype(jnp.int32))

        return while_loop(lambda lane: jnp.any(due(lane)), body, lane)

    def one_row(t_row, context, carry):
        lane, acc = carry
        lane = lane._replace(code=jnp.where(lane.code > 0, lane.code, jnp.where(lane.t == t_row, 0, RUNNING)))

        def body(carry):
            lane, acc = carry
            stop = t_row
            if m:
                _, next_t = find(lane.saved, ts, lane.t, lane.t_lo, sign)
                stop = jnp.where((lane.saved >= 0) & (sign * (next_t - t_row) > 0), next_t, t_row)
            trial, new = _attempt(sweep, lane, stop, context)
            if sweep.accumulate is not None:
                acc = sweep.accumulate(acc, lane, trial, context)
            arrived = (new.code == ReturnCode.Success) & (new.t != t_row)
            new = give_impulses(new._replace(code=jnp.where(arrived, RUNNING, new.code)))
            return new, acc

        return while_loop(lambda c: jnp.any(c[0].code == RUNNING), body, (lane, acc))

    axes = varying_axes(*jax.tree.leaves((lane, sweep.params, t0)))
    lane = give_impulses(vary(lane, axes))
    lane, acc = compiled_whole(lambda lane, acc: sweep.rows(one_row, (lane, acc)), lane, acc)
    return lane.u, acc, with_counts(jnp.where(lane.code > 0, lane.code, 0), counts(lane))


def _start(sweep: Sweep, y1, t0, t1, m: int) -> Lane:
    def one(y, t0, t1):
        real = jnp.finfo(y.dtype).dtype
        even, zero = jnp.zeros((), real), jnp.zeros((), jnp.int32)
        saved = jnp.full((), m - 1, jnp.int32)
        f0 = jnp.zeros_like(y)
        return Lane(t1, jnp.zeros_like(t1), y, f0, t0 - t1, even, even, saved, zero, zero, zero, zero, zero, zero)

    return sweep.lanes.map(one)(y1, t0, t1)


def _attempt(sweep: Sweep, lane: Lane, stop, context):
    def one(params, lane, stop, context, options):
        f = lambda t, y: sweep.rhs(t, y, context, params)
        if sweep.settings.tableau.fsal:  # impulses and row changes break the chain from the last stage to the first
            lane = lane._replace(f0=f(lane.t, lane.u))

        def system(_, tol):
            plain = make_system(f, tol=tol)
            if sweep.jacobian is None:
                return plain
            given = sweep.jacobian
            return plain._replace(jacobian=lambda t, y: given(t, y, context, params))

        task = Task(lambda t, y, _: f(t, y), None, None, None, None, None, None, system)
        return attempt(sweep.settings, task, None, lane, stop, options)

    axes = (sweep.params_axes, 0, 0, 0, sweep.options_axes)
    return sweep.lanes.map(one, axes)(sweep.params, lane, stop, context, sweep.options)
