"""Events and jumps as a user describes them.

Owns: the callbacks as data, their checks, the functions and the `EventSystem` that a solve makes of them. Must not
know: how events are located or differentiated.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .checks import check_signature
from .events import CONTINUOUS, DISCRETE, SCHEDULED, EventSystem, Kind
from .field import Field

SAMPLES = 4  # of each step at which continuous conditions are seen, its end included


class Callback:
    """Base of the callbacks."""

    terminate: bool
    affect: Callable | None


@dataclass(frozen=True, eq=False)
class ContinuousCallback(Callback):
    """An event where condition(t, u, p) = 0, located to rounding on the solution itself.

    Parameters
    ----------
    condition : callable
        condition(t, u, p) -> real number, or a vector (c,) of which each component is a condition of its own. A truth
        value is located in the same way, but its time has no derivative: a warning says so when one is taken.
    affect : callable, optional
        affect(t, u, p) -> u, or (u, p) with new parameters for the rest of the solve; affect(t, u, p, i) where the
        condition is a vector, i the component. Default: nothing changes.
    direction : int or sequence of c ints
        1: only where the condition rises through zero along the integration, -1: only where it falls, 0: both.
    terminate : bool
        Whether the solve ends there: `sol.retcode` is then `Terminated`.

    Raises
    ------
    TypeError, ValueError
        For a condition or an affect that takes other arguments, a direction that is not -1, 0 or 1.

    Notes
    -----
    Conventions. A condition that is zero at t0, or just after its own event, is at the start of its next excursion: its
    sign is that of its derivative along the solution, and that zero is no event. Each step is sampled at its quarters,
    so that two crossings within a step are seen. Events of one instant happen in the order in which the callbacks were
    given. A jump of the state across another condition's zero is no crossing. The condition is differentiated in
    forward mode, which a `custom_vjp` function in it does not have. Saved values are right-continuous: a save
    at an event's time is the state after it. Saves after a terminating event hold the state after it, and their times
    in `sol.t` are inf (-inf backwards in time).

    Derivatives of every order go through the event's time, t_e = root of condition(t, u(t), p), by the implicit
    function theorem with the field f itself (saltation); see `odesens.segments`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, odesens as ode
    >>> fall = ode.ContinuousCallback(lambda t, u, p: u[0], terminate=True, direction=-1)
    >>> f = lambda t, u, p: jnp.stack([u[1], -p])
    >>> ball = ode.ODEProblem(f, [5.0, 0.0], (0.0, 9.0), 10.0, callback=fall, max_events=1)
    >>> time = lambda p: ode.solve(ball, p=p, saveat=[9.0]).events.t[0]
    >>> print(f"{time(10.0):.4f} {jax.grad(time)(10.0):.4f}")  # sqrt(2 h / p), -1/2 sqrt(2 h / p^3)
    1.0000 -0.0500
    """

    condition: Callable
    affect: Callable | None = None
    direction: Any = 0
    terminate: bool = False

    def __post_init__(self):
        check_signature(self.condition, "condition")
        _check_affect(self, (3, 4))
        for d in np.atleast_1d(np.asarray(self.direction)):
            if d not in (-1, 0, 1):
                raise ValueError(f"direction must be -1, 0 or 1, got {self.direction!r}")


@dataclass(frozen=True, eq=False)
class DiscreteCallback(Callback):
    """An event at the end of each accepted step at which condition(t, u, p) is true.

    Which steps these are depends on the step sizes, so the event's time counts as fixed in derivatives.

    Parameters
    ----------
    condition : callable
        condition(t, u, p) -> truth value.
    affect : callable, optional
        affect(t, u, p) -> u, or (u, p) with new parameters for the rest of the solve. Default: nothing changes.
    terminate : bool
        Whether the solve ends there: `sol.retcode` is then `Terminated`.

    Raises
    ------
    TypeError, ValueError
        For a condition or an affect that takes other arguments.

    Examples
    --------
    >>> import odesens as ode
    >>> stop = ode.DiscreteCallback(lambda t, u, p: u < 0.5, terminate=True)
    >>> decay = ode.ODEProblem(lambda t, u, p: -u, 1.0, (0.0, 9.0), callback=stop, max_events=1)
    >>> ode.solve(decay, saveat=[9.0]).retcode.name
    'Terminated'
    """

    condition: Callable
    affect: Callable | None = None
    terminate: bool = False

    def __post_init__(self):
        check_signature(self.condition, "condition")
        _check_affect(self, (3,))


@dataclass(frozen=True, eq=False)
class PresetTimeCallback(Callback):
    """A jump at each of the times, which are differentiable.

    A step ends at each of them. Times before t0 and after t1 are left out; one at t0 happens before anything else.

    Parameters
    ----------
    times : array (m,), or function of p
        In the units of tspan; an array, or times(p) of the parameters.
    affect : callable, optional
        affect(t, u, p), or affect(t, u, p, i) with the number i of the time, -> u, or (u, p) with new parameters for
        the rest of the solve. Default: nothing changes.
    terminate : bool
        Whether the solve ends there: `sol.retcode` is then `Terminated`.

    Raises
    ------
    TypeError, ValueError
        For an affect that takes other arguments, or times that are not real.

    Notes
    -----
    Of a time s, with a(t, u, p) the state after the jump and f-, f+ the field before and after it, the derivative of
    the state after it is du+/ds = a_u f- + a_t - f+.

    Examples
    --------
    >>> import jax, odesens as ode
    >>> dose = ode.PresetTimeCallback(lambda p: p, lambda t, u, p: u + 1.0)  # the times are the parameters
    >>> body = ode.ODEProblem(lambda t, u, p: -u, 0.0, (0.0, 2.0), callback=dose, max_events=2)
    >>> level = lambda p: ode.solve(body, p=p, saveat=[2.0]).u[0]
    >>> print(jax.grad(level)(jax.numpy.array([0.0, 1.0])).round(4))  # exp(-2), exp(-1)
    [0.1353 0.3679]
    """

    times: Any
    affect: Callable | None = None
    terminate: bool = False

    def __post_init__(self):
        _check_affect(self, (3, 4))
        object.__setattr__(self, "times", _as_times(self.times, "times"))


@dataclass(frozen=True, eq=False)
class PeriodicCallback(Callback):
    """A jump every dt, first at t0 + dt, as long as the solve goes on.

    Parameters
    ----------
    dt : number, or function of p
        Positive, in the units of tspan; differentiable.
    affect : callable, optional
        affect(t, u, p), or affect(t, u, p, i) with the number i of the time, -> u, or (u, p) with new parameters for
        the rest of the solve. Default: nothing changes.
    terminate : bool
        Whether the solve ends there: `sol.retcode` is then `Terminated`.

    Raises
    ------
    TypeError, ValueError
        For a dt that is known not to be a positive number, or an affect that takes other arguments.

    Examples
    --------
    >>> import odesens as ode
    >>> dose = ode.PeriodicCallback(1.0, lambda t, u, p: u + 1.0)
    >>> body = ode.ODEProblem(lambda t, u, p: -u, 0.0, (0.0, 2.5), callback=dose, max_events=2)
    >>> print(ode.solve(body, saveat=[2.5]).events.t)
    [1. 2.]
    """

    dt: Any
    affect: Callable | None = None
    terminate: bool = False

    def __post_init__(self):
        _check_affect(self, (3, 4))
        if not callable(self.dt):
            known = None if isinstance(self.dt, Tracer) else np.asarray(self.dt)
            if known is not None and not (known.ndim == 0 and known.dtype.kind in "if" and known > 0):
                raise ValueError(f"dt must be a positive number, or a function dt(p), got {self.dt!r}")


class CallbackSet:
    """Several callbacks; events of one instant happen in this order. Sets may hold sets.

    Parameters
    ----------
    *callbacks : callbacks, sets or sequences of them

    Attributes
    ----------
    callbacks : tuple
        All of them, in order; `sol.events.which` are numbers in it.

    Examples
    --------
    >>> import odesens as ode
    >>> tick = ode.PeriodicCallback(1.0, lambda t, u, p: u + 1.0)
    >>> end = ode.ContinuousCallback(lambda t, u, p: u - 2.0, terminate=True)
    >>> len(ode.CallbackSet(tick, end).callbacks)
    2
    """

    def __init__(self, *callbacks: Any):
        self.callbacks = tuple(flat_callbacks(callbacks))

    def __repr__(self) -> str:
        return f"CallbackSet({', '.join(map(repr, self.callbacks))})"


@dataclass(frozen=True, eq=False)
class Stops(Callback):
    """Times at which a step ends, and where f may have a jump if `open`."""

    times: Any
    open: bool
    affect: Callable | None = None
    terminate: bool = False


def flat_callbacks(given) -> list[Callback]:
    """The callbacks of `callback=`: one, a set, a sequence of them, or None."""
    if given is None:
        return []
    if isinstance(given, Callback):
        return [given]
    if isinstance(given, CallbackSet):
        return list(given.callbacks)
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [c for x in given for c in flat_callbacks(x)]
    hint = f": write {given.__name__}(...)" if isinstance(given, type) else ""
    raise TypeError(f"callback must be a ContinuousCallback or another callback, or a CallbackSet, got {given!r}{hint}")


def collect(callback, tstops, discontinuities) -> list[Callback]:
    """All callbacks of a solve, stops first, so that a jump of f at an event's time is known before the event."""
    stops: list[Callback] = []
    if discontinuities is not None:
        stops.append(Stops(_as_times(discontinuities, "discontinuities"), True))
    if tstops is not None:
        stops.append(Stops(_as_times(tstops, "tstops"), False))
    return [*stops, *flat_callbacks(callback)]


def programs(callbacks: list[Callback]) -> dict[str, Callable]:
    """The functions to trace, by name."""
    found: dict[str, Callable] = {}
    for i, callback in enumerate(callbacks):
        if isinstance(callback, ContinuousCallback):
            found[f"condition:{i}"] = callback.condition
        elif isinstance(callback, DiscreteCallback):
            found[f"when:{i}"] = callback.condition
        elif isinstance(callback, PeriodicCallback):
            found[f"times:{i}"] = _times_function(callback.dt)
        elif isinstance(callback, (PresetTimeCallback, Stops)):
            found[f"times:{i}"] = _times_function(callback.times)
        if callback.affect is not None:
            found[f"affect:{i}"] = _affect_function(callback.affect)
    return found


def make_system(callbacks: list[Callback], field: Field, max_events: int) -> EventSystem | None:
    """The kinds of events of a solve; None where nothing can happen."""
    kinds: list[Kind] = []
    for name, program in field.others:
        if name.startswith("stops:"):
            size = program.results[0].size
            kinds.append(Kind(SCHEDULED, name, None, -1, open=name.split(":")[1] == "jump", size=size))
    number = 0
    for i, callback in enumerate(callbacks):
        affect = None if callback.affect is None else f"affect:{i}"
        if isinstance(callback, Stops):
            size = field.companion(f"times:{i}").results[0].size
            kinds.append(Kind(SCHEDULED, f"times:{i}", None, -1, open=callback.open, size=size))
            continue
        kinds += _kinds_of(callback, field, i, affect, number, max_events)
        number += 1
    kinds = [kind for kind in kinds if kind.callback >= 0 or kind.size]
    if not kinds:
        return None
    stops = sum(kind.size for kind in kinds if kind.callback < 0)
    return EventSystem(tuple(kinds), max_events * (number > 0) + stops, SAMPLES)


def _kinds_of(callback: Callback, field: Field, i: int, affect, number: int, max_events: int) -> list[Kind]:
    end = callback.terminate
    if isinstance(callback, ContinuousCallback):
        name = f"condition:{i}"
        result = field.companion(name).results[0]
        direction = np.asarray(callback.direction)
        if direction.shape not in ((), (result.size,)):
            raise ValueError(f"direction must be one number or {result.size}, as the condition has components")
        direction = np.broadcast_to(direction, (result.size,))
        boolean = result.dtype == jnp.bool_
        each = range(result.size)
        return [Kind(CONTINUOUS, name, affect, number, c, int(direction[c]), end, boolean) for c in each]
    if isinstance(callback, DiscreteCallback):
        return [Kind(DISCRETE, f"when:{i}", affect, number, terminate=end)]
    name = f"times:{i}"
    size = field.companion(name).results[0].size
    if not isinstance(callback, PeriodicCallback):
        return [Kind(SCHEDULED, name, affect, number, terminate=end, size=size)]
    if size != 1:
        raise ValueError(f"dt of a PeriodicCallback must be one number, got {size}")
    return [Kind(SCHEDULED, name, affect, number, terminate=end, periodic=True, size=max_events + 1)]


def _times_function(times) -> Callable:
    if callable(times):
        return lambda t, u, p: times(p)
    return lambda t, u, p: times


def _affect_function(affect: Callable) -> Callable:
    if _arguments(affect) == 4:
        return affect
    return lambda t, u, p, i: affect(t, u, p)


def _as_times(times, name: str):
    """Times as an array, or as the function of p that gives them."""
    if callable(times):
        if _arguments(times, 1) != 1:
            raise TypeError(f"{name} must be an array of times, or a function of p that gives it")
        return times
    x = times if isinstance(times, jax.Array) else np.asarray(times)
    if x.dtype.kind not in "if" or x.ndim > 1:
        raise TypeError(f"{name} must be real, a number or a vector of them, got {times!r}")
    if not isinstance(x, Tracer) and np.any(np.isnan(x)):
        raise ValueError(f"{name} holds NaN")
    return x if isinstance(x, jax.Array) else jnp.asarray(x, jnp.result_type(float) if x.dtype.kind == "i" else None)


def _arguments(f: Callable, default: int = 3) -> int:
    """The number of positional arguments that must be given; `default` where that cannot be told."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return default
    positional = [q for q in parameters if q.kind in (q.POSITIONAL_ONLY, q.POSITIONAL_OR_KEYWORD)]
    needed = len([q for q in positional if q.default is q.empty])
    return default if any(q.kind is q.VAR_POSITIONAL for q in parameters) and needed < default else needed


def _check_affect(callback, counts: tuple[int, ...]) -> None:
    """Refuse an affect of other arguments, and a `terminate` that is no truth value."""
    affect = callback.affect
    if not isinstance(callback.terminate, (bool, np.bool_)):
        raise TypeError(f"terminate must be True or False, got {callback.terminate!r}")
    if affect is None:
        return
    if not callable(affect):
        raise TypeError(f"affect must be a function affect(t, u, p), got {type(affect).__name__}: {affect!r}")
    if _arguments(affect) not in counts:
        shown = "(t, u, p) or (t, u, p, i)" if 4 in counts else "(t, u, p)"
        raise TypeError(
            f"affect must take {shown}, got {_arguments(affect)} arguments; "
            "return the state after the event, or (u, p), instead of writing into an argument"
        )
