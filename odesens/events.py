"""Events of a solve as static data, and as functions of one lane's flat state.

Owns: `Kind`, `EventSystem`, `functions`, from a traced field's programs. Must not know: how events are located, their
derivatives, user types (`callbacks`).

A kind is one thing that can happen: one component of a continuous condition, one discrete condition, or one list of
known times. Kinds are numbered in the order in which the callbacks were given, which is the order in which those of
one instant happen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .field import Field

CONTINUOUS, DISCRETE, SCHEDULED = "continuous", "discrete", "scheduled"


@dataclass(frozen=True)
class Kind:
    """One thing that can happen.

    how : continuous, discrete or scheduled
    program : the name of the program that gives the condition, or the times
    affect : the name of the program that gives the state after, None where nothing changes
    callback, component : the number of the callback (-1: a stop), the component of its condition
    direction : of the sign change, 0 for both
    boolean : the condition has no value but a truth value, so its time has no derivative
    open : f may jump there, so it is approached from the left and left to the right
    periodic : times are counted from t0 on, in the direction of the span
    size : how many times there are
    """

    how: str
    program: str
    affect: str | None
    callback: int
    component: int = 0
    direction: int = 0
    terminate: bool = False
    boolean: bool = False
    open: bool = False
    periodic: bool = False
    size: int = 0

    @property
    def continuous(self) -> bool:
        return self.how == CONTINUOUS

    @property
    def scheduled(self) -> bool:
        return self.how == SCHEDULED


@dataclass(frozen=True)
class EventSystem:
    """All kinds of a solve, how many events there may be, and the samples of a step at which conditions are seen."""

    kinds: tuple[Kind, ...]
    most: int
    samples: int

    def of(self, how: str) -> list[int]:
        return [i for i, kind in enumerate(self.kinds) if kind.how == how]

    def table(self, name: str) -> np.ndarray:
        """An attribute of all kinds as an array."""
        return np.asarray([getattr(kind, name) for kind in self.kinds])

    def look_up(self, name: str, kind):
        """That attribute of a kind whose number is traced."""
        return jnp.take(jnp.asarray(self.table(name)), kind, mode="clip")


class Functions(NamedTuple):
    """The events' functions of one lane, on the flat state u (n,), parameter leaves p and other operands aux.

    conditions(t, u, p, aux) : (c,) for the continuous kinds, +-1 for truth values
    whens(t, u, p, aux) : (d,) truth values of the discrete kinds
    affect(kind, index, t, u, p, aux) : the state after, and the new values of the leaves `changed` of p; index is that
        of a known time
    times(t0, u0, p, aux, sign) : (K,) times of the scheduled kinds, one after the other
    kind_of_time, index_of_time : (K,) which kind they belong to, and their number within it
    """

    conditions: Callable
    whens: Callable
    affect: Callable
    times: Callable
    changed: tuple[int, ...]
    kind_of_time: np.ndarray
    index_of_time: np.ndarray

    def exchanged(self, p: list, new: list) -> list:
        """The parameter leaves with the `changed` ones exchanged."""
        out = list(p)
        for i, x in zip(self.changed, new, strict=True):
            out[i] = x
        return out


def functions(system: EventSystem, field: Field) -> Functions:
    """The functions of the events whose programs `field` holds."""
    state, programs = field.state, dict(field.others)
    real = state.real_dtype
    kinds = system.kinds

    def results(how: str, t, u, p, aux) -> list:
        names = list(dict.fromkeys(kinds[i].program for i in system.of(how)))
        return [jnp.asarray(programs[name](state, t, u, p, aux)[0]).reshape(-1) for name in names]

    def conditions(t, u, p, aux):
        number = lambda x: jnp.where(x, 1, -1).astype(real) if x.dtype == jnp.bool_ else x.astype(real)
        found = [number(x) for x in results(CONTINUOUS, t, u, p, aux)]
        return jnp.concatenate(found) if found else jnp.zeros(0, real)

    def whens(t, u, p, aux):
        found = results(DISCRETE, t, u, p, aux)
        return jnp.concatenate(found) if found else jnp.zeros(0, bool)

    affects = list(dict.fromkeys(kind.affect for kind in kinds if kind.affect is not None))
    changed = tuple(sorted({i for name in affects for i in programs[name].changed}))

    def branch(name: str) -> Callable:
        program, n_u = programs[name], len(state.shapes)

        def run(t, u, p, aux, component):
            out = program(state, t, u, p, aux, component)
            new = dict(zip(program.changed, out[n_u:], strict=True))
            return state.pack(out[:n_u]), [new.get(i, p[i]) for i in changed]

        return run

    branches = [lambda t, u, p, aux, component: (u, [p[i] for i in changed]), *map(branch, affects)]
    number = np.asarray([0 if kind.affect is None else 1 + affects.index(kind.affect) for kind in kinds], np.int32)

    def affect(kind, index, t, u, p, aux):
        i = jnp.where(system.look_up("scheduled", kind), index, system.look_up("component", kind)).astype(jnp.int32)
        return jax.lax.switch(jnp.take(number, kind, mode="clip"), branches, t, u, p, aux, i)

    scheduled = system.of(SCHEDULED)
    sizes = [kinds[i].size for i in scheduled]

    def times(t0, u0, p, aux, sign):
        def one(kind: Kind):
            x = programs[kind.program](state, t0, u0, p, aux)[0].astype(t0.dtype)
            if not kind.periodic:
                return x
            return t0 + sign * x[0] * jnp.arange(1, kind.size + 1, dtype=t0.dtype)

        found = [one(kinds[i]) for i in scheduled]
        return jnp.concatenate(found) if found else jnp.zeros(0, t0.dtype)

    kind_of_time = np.repeat(np.asarray(scheduled, np.int32), sizes)
    index = np.concatenate([np.arange(n, dtype=np.int32) for n in sizes]) if sizes else np.zeros(0, np.int32)
    return Functions(conditions, whens, affect, times, changed, kind_of_time, index)


def beyond(t, t1, sign):
    """Where a solve goes on after a time t just before which it stopped as f may jump: just after it, t1 at most.

    f is never taken at the time itself: whose value it has there is unknown.
    """
    end = sign * jnp.inf
    after = jnp.nextafter(jnp.nextafter(t, end), end)
    return jnp.where(sign * (after - t1) > 0, t1, after)


def rates(conditions: Callable, velocity: Callable, t, u) -> tuple[Any, Any]:
    """g (c,) and dg/dt along u' = velocity(t, u), for conditions g(t, u)."""
    return jax.jvp(conditions, (t, u), (jnp.ones_like(t), velocity(t, u)))
