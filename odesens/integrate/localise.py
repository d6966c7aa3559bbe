"""Roots of conditions within a step of one lane: found on the dense output, polished with the true step.

Owns: samples of a step, the first sign change, bisection, Newton's method on the step's own length. Must not know: what
happens at a root, lanes, how a step is taken.

The dense output brackets the root; its time is then that h for which g(t + h, u(h)) = 0 with u(h) the method's own step
of length h, so that it is right to rounding and not to the interpolant's error.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..events import CONTINUOUS, EventSystem, rates
from ..methods import step as one_step
from ..methods.step import Method
from .loop import Lane, Settings, Task, Trial

HALVINGS = 80
POLISH = 8  # most steps of Newton's method; for truth values there are as many as HALVINGS
ROUNDING = 64  # units of rounding within which the times of two events are one instant
RESTART = 1000  # units of rounding within which a state just after its event is at the root


class Found(NamedTuple):
    """The first sign change within a step.

    any : whether there is one. which (c,): the conditions that changed in that part of the step, [low, high] in theta.
    before (c,): the signs at `low`. signs (c,): those at the end of the step.
    """

    any: Any
    which: Any
    before: Any
    low: Any
    high: Any
    signs: Any


def kinds_of(system: EventSystem, name: str) -> np.ndarray:
    return system.table(name)[system.of(CONTINUOUS)]


def sign_of(g):
    """-1, 0, 1; 0 for NaN."""
    return (g > 0).astype(jnp.int32) - (g < 0).astype(jnp.int32)


def look(
    settings: Settings, task: Task, p, conditions: Callable, system: EventSystem, lane: Lane, trial: Trial, t1, signs
):
    """All stages of a step, and the first sign change in it.

    signs (c,) at its start: 0 where not known, +-2 at a root that is about to be left in that direction.
    """
    method = settings.method
    f = lambda t, u: task.f(t, u, p)
    k = one_step.extra_stages(method, f, lane.t, lane.t_lo, lane.u, trial.dt, trial.k, t1)
    thetas = np.arange(1, system.samples + 1) / system.samples

    def at(theta):
        u = one_step.interpolate(method, lane.u, trial.dt, k, theta, trial.mode)
        return jnp.where(theta == 1, one_step.present(method, trial.u1, u.size), u)

    ts = [jnp.where(x == 1, trial.t, lane.t + (lane.t_lo + x * trial.dt)) for x in thetas]
    g = jax.vmap(conditions)(jnp.stack(ts), jnp.stack([at(jnp.asarray(x, trial.dt.dtype)) for x in thetas]))
    wanted = kinds_of(system, "direction")
    known = signs
    zero = jnp.zeros((), trial.dt.dtype)
    found = Found(jnp.zeros((), bool), jnp.zeros(known.shape, bool), known, zero, zero, known)
    for j, theta in enumerate(thetas):
        here = sign_of(g[j])
        side = jnp.sign(known)
        zero_here = (g[j] == 0) & (jnp.abs(known) == 1)  # at a root that it has left before, not at its last one
        here = jnp.where(zero_here, -side, here)
        crosses = (here != 0) & (here == -side) & ((wanted == 0) | (here == wanted))
        here = jnp.where(here == 0, known, here)
        first = jnp.any(crosses) & ~found.any
        pick = lambda a, b, first=first: jnp.where(first, a, b)
        found = Found(
            found.any | first,
            pick(crosses, found.which),
            pick(known, found.before),
            pick(jnp.asarray(theta - 1 / system.samples, trial.dt.dtype), found.low),
            pick(jnp.asarray(theta, trial.dt.dtype), found.high),
            here,
        )
        known = here
    return k, found


class Search(NamedTuple):
    """The search of one lane for the length h of the step that ends at the root, within [low, high] in its direction.

    which : the condition. last : the size of the last change of h. done : whether the step of length h is the one.
    """

    h: Any
    low: Any
    high: Any
    which: Any
    last: Any
    done: Any


def begin(method: Method, conditions: Callable, lane: Lane, trial: Trial, k, found: Found) -> Search:
    """The search from the root of the dense output, within the part of the step that holds it."""

    def on_dense(theta):
        u = one_step.interpolate(method, lane.u, trial.dt, k, theta, trial.mode)
        return has_changed(conditions(lane.t + (lane.t_lo + theta * trial.dt), u), found)

    high = bisect(lambda x: jnp.any(on_dense(x)), found.low, found.high)
    which = jnp.argmax(jnp.where(on_dense(high), 1, 0) + jnp.where(found.which, 1, 0)).astype(jnp.int32)
    margin = 0.01 * (found.high - found.low)
    low, most = jnp.maximum(found.low - margin, 0), jnp.minimum(found.high + margin, 1)
    dt = trial.dt
    return Search(high * dt, low * dt, most * dt, which, jnp.abs(dt), jnp.zeros((), bool))


def has_changed(g, found: Found):
    return found.which & ((g == 0) & (jnp.abs(found.before) == 1) | (sign_of(g) == -jnp.sign(found.before)))


def improve(conditions: Callable, velocity: Callable, boolean, found: Found, search: Search, t, u) -> Search:
    """One step of Newton's method from the state (t, u) at the end of the step of length h; for truth values a halving.

    The step is the one where the change would be rounding, or no longer gets smaller.
    """
    h, low, high = search.h, search.low, search.high
    eps = 2 * jnp.finfo(h.dtype).eps
    g, rate = rates(conditions, velocity, t, u)
    value, slope = (jnp.take(x, search.which, mode="clip") for x in (g, rate))
    change = jnp.where(slope == 0, 0, -value / jnp.where(slope == 0, 1, slope)).astype(h.dtype)
    size = jnp.where(jnp.isfinite(change), jnp.abs(change), 0)
    better = (size < 0.5 * search.last) & (size > eps * jnp.abs(h))
    clipped = jnp.clip(h + change, jnp.minimum(low, high), jnp.maximum(low, high))
    newton = search._replace(h=jnp.where(better, clipped, h), last=size, done=~better)
    if not np.any(boolean):
        return newton
    here = jnp.any(has_changed(g, found))
    low, high = jnp.where(here, low, h), jnp.where(here, h, high)
    small = jnp.abs(high - low) <= eps * jnp.abs(high)
    halved = Search(jnp.where(small, high, low + (high - low) / 2), low, high, search.which, size, small & here)
    return jax.tree.map(lambda a, b: jnp.where(jnp.take(boolean, search.which, mode="clip"), a, b), halved, newton)


def bisect(changed: Callable, low, high):
    """The first theta of [low, high], to rounding, where changed(theta) holds."""

    def body(state):
        low, high, count = state
        middle = low + (high - low) / 2
        here = changed(middle)
        return jnp.where(here, low, middle), jnp.where(here, middle, high), count + 1

    def going(state):
        low, high, count = state
        return (high - low > jnp.finfo(high.dtype).eps * high) & (count < HALVINGS)

    return jax.lax.while_loop(going, body, (low, high, jnp.zeros((), jnp.int32)))[1]


def rounding_of(t, dt):
    """How well times are known near t."""
    return jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t), jnp.abs(dt))


def at_root(g, rate, found: Found, t, h):
    """Which conditions (c,) are at their roots at the first event's time: its own, and those of the same instant."""
    away = jnp.where(found.which, jnp.abs(g), jnp.inf)
    slack = ROUNDING * rounding_of(t, h).astype(g.dtype)
    distance = jnp.where(rate == 0, jnp.where(away == 0, 0, jnp.inf), away / jnp.where(rate == 0, 1, jnp.abs(rate)))
    distance = jnp.where(found.which, distance, jnp.inf)
    first = jnp.arange(g.shape[0]) == jnp.argmax(-distance)
    return found.which & (first | (distance <= slack))


def signs_after(g, rate, at_root, known, t, dt):
    """The signs at the start of a smooth piece: a zero `at_root` (c,) takes twice that of the derivative.

    A value there is zero where it is rounding, or no larger than the one `known` to be zero, that before the event.
    """
    near = jnp.abs(g) <= jnp.maximum(RESTART * rounding_of(t, dt).astype(g.dtype) * jnp.abs(rate), 2 * jnp.abs(known))
    near = near & jnp.isfinite(rate)
    forward = sign_of(rate) * jnp.where(dt < 0, -1, 1)
    return jnp.where((at_root & near) | (g == 0), 2 * forward, sign_of(g))
