"""Roots of conditions within a step of one lane: found on the dense output, polished with the true step.

Owns: samples of a step, the first sign change, bisection, Newton's method on the step's own length. Must not know: what
happens at a root, lanes.

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
from .loop import Lane, Settings, Task, Trial, system_of, velocity_of

HALVINGS = 80
POLISH = 8  # most steps of Newton's method
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
    """All stages of a step, and the first sign change in it; signs (c,) at its start, 0 where not known."""
    method = settings.method
    f = lambda t, u: task.f(t, u, p)
    k = one_step.extra_stages(method, f, lane.t, lane.t_lo, lane.u, trial.dt, trial.k, t1)
    thetas = np.arange(1, system.samples + 1) / system.samples

    def at(theta):
        u = one_step.interpolate(method, lane.u, trial.dt, k, theta, trial.mode)
        return jnp.where(theta == 1, trial.u1, u)

    ts = [jnp.where(x == 1, trial.t, lane.t + (lane.t_lo + x * trial.dt)) for x in thetas]
    g = jax.vmap(conditions)(jnp.stack(ts), jnp.stack([at(jnp.asarray(x, trial.dt.dtype)) for x in thetas]))
    wanted = kinds_of(system, "direction")
    known = signs
    zero = jnp.zeros((), trial.dt.dtype)
    found = Found(jnp.zeros((), bool), jnp.zeros(known.shape, bool), known, zero, zero, known)
    for j, theta in enumerate(thetas):
        here = sign_of(g[j])
        crossed = (g[j] == 0) | (here == -known)
        here = jnp.where(g[j] == 0, -known, jnp.where(here == 0, known, here))
        crosses = crossed & (known != 0) & ((wanted == 0) | (here == wanted))
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


def root(
    settings: Settings,
    task: Task,
    p,
    conditions,
    system: EventSystem,
    lane: Lane,
    trial: Trial,
    k,
    found: Found,
    tol,
    t1,
):
    """The length of the step that ends at the first root found, and how many steps were tried for it."""
    method = settings.method

    def changed(g):
        return found.which & ((g == 0) | (sign_of(g) == -found.before))

    def on_dense(theta):
        u = one_step.interpolate(method, lane.u, trial.dt, k, theta, trial.mode)
        return changed(conditions(lane.t + (lane.t_lo + theta * trial.dt), u))

    _, high = bisect(lambda x: jnp.any(on_dense(x)), found.low, found.high, jnp.zeros((), bool))
    which = jnp.argmax(jnp.where(on_dense(high), 1, 0) + jnp.where(found.which, 1, 0)).astype(jnp.int32)
    system_here = system_of(task, p, tol)
    k1 = lane.f0 if settings.tableau.fsal else None

    def step(h):
        out = one_step.stages(method, system_here, lane.t, lane.t_lo, lane.u, h, k1, t1, trial.mode, exact=False)
        return lane.t + (lane.t_lo + h), one_step.advance(method, lane.u, h, out.k, trial.mode)

    boolean = jnp.take(kinds_of(system, "boolean"), which, mode="clip")
    velocity = velocity_of(settings, task, p)
    margin = 0.01 * (found.high - found.low)
    ends = [x * trial.dt for x in (jnp.maximum(found.low - margin, 0), jnp.minimum(found.high + margin, 1))]
    least, most = jnp.minimum(*ends), jnp.maximum(*ends)

    def polish(state):
        h, last, count = state
        g, rate = rates(conditions, velocity, *step(h))
        pick = lambda x: jnp.take(x, which, mode="clip")
        slope = pick(rate)
        change = jnp.where(slope == 0, 0, -pick(g) / jnp.where(slope == 0, 1, slope)).astype(h.dtype)
        change = jnp.where(jnp.isfinite(change), change, 0)
        better = jnp.abs(change) < 0.5 * last
        return jnp.where(better, jnp.clip(h + change, least, most), h), jnp.where(better, jnp.abs(change), 0), count + 1

    def going(state):
        h, last, count = state
        return (last > jnp.finfo(h.dtype).eps * jnp.abs(h)) & (count < POLISH) & ~boolean

    zero = jnp.zeros((), jnp.int32)
    h, _, count = jax.lax.while_loop(going, polish, (high * trial.dt, jnp.abs(trial.dt), zero))
    if not np.any(kinds_of(system, "boolean")):
        return h, count
    exact = lambda x: jnp.any(changed(conditions(*step(x * trial.dt))))
    low, high = (x / jnp.where(trial.dt == 0, 1, trial.dt) for x in ends)
    _, theta = bisect(exact, low, high, ~boolean)
    return jnp.where(boolean, theta * trial.dt, h), count


def bisect(changed: Callable, low, high, skip):
    """The ends of an interval of theta shrunk to rounding around the first place where changed(theta) holds."""

    def body(state):
        low, high, count = state
        middle = low + (high - low) / 2
        here = changed(middle)
        return jnp.where(here, low, middle), jnp.where(here, middle, high), count + 1

    def going(state):
        low, high, count = state
        return (high - low > jnp.finfo(high.dtype).eps * high) & (count < HALVINGS) & ~skip

    return jax.lax.while_loop(going, body, (low, high, jnp.zeros((), jnp.int32)))[:2]


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


def signs_after(g, rate, at_root, t, dt):
    """The signs at the start of a smooth piece: a zero `at_root` (c,) takes that of the derivative."""
    near = jnp.abs(g) <= RESTART * rounding_of(t, dt).astype(g.dtype) * jnp.abs(rate)
    forward = sign_of(rate) * jnp.where(dt < 0, -1, 1)
    return jnp.where((at_root & near) | (g == 0), forward, sign_of(g))
