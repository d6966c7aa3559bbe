"""Reports from within a time loop: the loop goes on in pieces, between which the host hears how far it has come.

Owns: when a report is due, what it says. Must not know: steps, how it is shown (`odesens.progress`).

Off, the loop is the one there would be without this module. On, it makes the same steps: a piece ends where the slowest
lane has passed another hundredth of its span, or every lane has tried `some` more steps, which are at least a thousand
and a hundredth of `max_steps`. So there are some 200 reports at most, whatever the number of steps.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from .. import progress
from ..extension import while_loop
from ..status import ReturnCode
from .lanes import Lanes

RUNNING = -1
PARTS = 100


def running(lane):
    """Whether any lane is not done."""
    return jnp.any(lane.code == RUNNING)


def in_pieces(on: bool, run: Callable, state, lane_of: Callable, lanes: Lanes, task, max_steps: int):
    """`run(going, state)` until all lanes have ended, where `going(lane)` says whether the loop is to go on."""
    if not on:
        return run(running, state)
    token = io_callback(_token, jax.ShapeDtypeStruct((), jnp.int32))
    some, t0, t1 = max(1000, max_steps // PARTS), task.t0, task.t1

    def piece(state):
        state = run(until(lane_of(state), t0, t1, some), state)
        _report(_say, token, lane_of(state), lanes, t0, t1)
        return state

    state = while_loop(lambda state: running(lane_of(state)), piece, state)
    _report(_end, token, lane_of(state), lanes, t0, t1)
    return state


def fractions(lane, t0, t1):
    """The part of its span that each lane has behind it, all of it where it has ended as it should."""
    t0, t1, t = (jax.lax.stop_gradient(x) for x in (t0, t1, lane.t))
    ended = (lane.code >= 0) & (lane.code <= ReturnCode.Terminated)
    return jnp.where(ended | (t0 == t1), 1, (t - t0) / jnp.where(t0 == t1, 1, t1 - t0))


def attempts(lane):
    return lane.naccept + lane.nreject


def until(lane, t0, t1, some: int) -> Callable:
    """Whether lanes go on towards the next report, counted from `lane`; each piece makes one step at least."""
    slowest = jnp.min(jnp.where(lane.code == RUNNING, fractions(lane, t0, t1), 1))
    mark = t0 + (t1 - t0) * ((jnp.floor(slowest * PARTS) + 1) / PARTS)
    sign = jnp.where(t1 >= t0, 1, -1)
    before = lambda lane: (lane.code == RUNNING) & (sign * (lane.t - mark) < 0)
    unseen = ~jnp.any(before(lane))  # a mark that rounding moves to where the slowest lane is
    begun = attempts(lane)

    def going(lane):
        tried = attempts(lane)
        waits = (before(lane) | unseen) & (tried < begun + some)
        return jnp.any((lane.code == RUNNING) & (waits | (tried == begun)))

    return going


def _report(say: Callable, token, lane, lanes: Lanes, t0, t1) -> None:
    """What the host hears: fraction and time of the slowest lane, the most steps of any, the worst code."""
    part, t = fractions(lane, t0, t1), lane.t
    if lanes.size is not None:
        slowest = jnp.argmin(part)
        part, t = part[slowest], t[slowest]
    jax.debug.callback(say, token, part, t, jnp.max(lane.naccept), jnp.max(lane.code))


def _token() -> np.ndarray:
    return np.asarray(next(progress.tokens) % 2**31, np.int32)


def _say(token, part, t, steps, code) -> None:
    _show(token, part, f"t = {float(t):.4g}, {int(steps)} steps", last=False)


def _end(token, part, t, steps, code) -> None:
    code = ReturnCode(int(code))
    how = "" if code is ReturnCode.Success else f", {code.name}"
    _show(token, part, f"t = {float(t):.4g}, {int(steps)} steps{how}", last=True)


def _show(token, part, note: str, *, last: bool) -> None:
    percent = 100 * float(np.clip(np.nan_to_num(part), 0, 1))
    progress.show(token, percent, 100, "solve", "%", note, last=last)
