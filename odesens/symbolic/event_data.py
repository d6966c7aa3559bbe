"""Events of a system as data: what must hold or when, and what is assigned then.

Owns: the four event classes, their checks, their rewriting into another namespace. Must not know: systems, how events
are located, JAX.

The affect of each is a mapping {symbol: value}; a symbol is an unknown, a time derivative of one, a parameter, or an
array of them. The values are expressions in what was there before the event.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import sympy
from sympy.logic.boolalg import Boolean, BooleanAtom

from .symbols import Parameter, SymbolArray, TimeDerivative, Unknown, scalar


def expression(value, what: str) -> sympy.Expr:
    """A number or an expression as SymPy's; `what` names it in the TypeError for anything else."""
    out = sympy.sympify(scalar(value, what))
    if not isinstance(out, sympy.Expr):
        raise TypeError(f"{what} must be a number or a SymPy expression, got {type(value).__name__}: {value!r}")
    return out


def assignments(values: Mapping | None, what: str) -> Iterator[tuple[Any, Any]]:
    """Pairs (symbol, value) of a mapping whose keys may be arrays of symbols, each symbol once.

    Raises
    ------
    TypeError
        Where a key is neither an unknown, a time derivative, a parameter nor an array of them.
    """
    if values is not None and not isinstance(values, Mapping):
        raise TypeError(f"{what} must be a mapping {{symbol: value}}, got {type(values).__name__}: {values!r}")
    seen = set()
    for key, value in (values or {}).items():
        for symbol, entry in _entries(key, value, what):
            if not isinstance(symbol, (Unknown, Parameter, TimeDerivative)):
                raise TypeError(
                    f"{what} assigns to {symbol}, which is neither an unknown, a time derivative of one nor "
                    "a parameter; solve for one of these"
                )
            if str(symbol) in seen:
                raise ValueError(f"{what} assigns to {symbol} twice")
            seen.add(str(symbol))
            yield symbol, entry


def _entries(key, value, what: str):
    if not isinstance(key, SymbolArray):
        return [(key, value)]
    try:
        return zip(key.flat, np.broadcast_to(np.asarray(value, object), key.shape).flat, strict=True)
    except ValueError:
        raise ValueError(f"{what}: an array of shape {key.shape} has values of shape {np.shape(value)}") from None


class _Event:
    """The first field of each class says when; it is an expression or a tuple of them."""

    affect: Any
    terminate: bool

    def __post_init__(self):
        name, when = type(self).__name__, self._when
        what = f"affect of {name}"
        affect = {key: expression(value, f"{what}, value of {key},") for key, value in assignments(self.affect, what)}
        for key, value in ((when, self._checked(getattr(self, when))), ("affect", affect)):
            object.__setattr__(self, key, value)
        if not affect and not self.terminate:
            raise ValueError(f"{name} does nothing: give an affect {{symbol: value}}, or terminate=True")

    @property
    def _when(self) -> str:
        this: Any = self
        return fields(this)[0].name

    @staticmethod
    def _checked(given) -> Any:
        raise NotImplementedError

    def expressions(self) -> Iterator[Any]:
        """All expressions, the symbols assigned to among them."""
        when = getattr(self, self._when)
        yield from when if isinstance(when, tuple) else (when,)
        for pair in self.affect.items():
            yield from pair

    def rewritten(self, rewrite: Callable) -> Any:
        """The event with each expression x as rewrite(x)."""
        when = getattr(self, self._when)
        new = tuple(map(rewrite, when)) if isinstance(when, tuple) else rewrite(when)
        affect = {rewrite(key): rewrite(value) for key, value in self.affect.items()}
        this: Any = self
        return replace(this, **{self._when: new, "affect": affect})


@dataclass(frozen=True, eq=False)
class ContinuousEvent(_Event):
    """Something happens where an expression crosses zero.

    Parameters
    ----------
    condition : expression, sympy.Eq, or sequence of them
        An equation stands for the difference of its sides. Kept as a tuple of expressions.
    affect : mapping {symbol: value}, optional
        What is assigned then: unknowns, derivatives of unknowns, parameters, or arrays of them, to expressions in what
        was there before.
    direction : {-1, 0, 1} or sequence of them
        Only crossings from above, all, only crossings from below; one for all conditions or one for each.
    terminate : bool
        The solve ends there.

    Raises
    ------
    TypeError, ValueError
        For what is not of these kinds, and for an event that does nothing.

    Examples
    --------
    >>> from odesens.symbolic import ContinuousEvent, D, unknowns
    >>> x = unknowns("x")
    >>> ContinuousEvent(x, {D(x): -0.9 * D(x)}, direction=-1).condition  # a bounce
    (x,)
    """

    condition: Any
    affect: Any = None
    direction: Any = 0
    terminate: bool = False

    def __post_init__(self):
        super().__post_init__()
        each = self.direction if isinstance(self.direction, (tuple, list, np.ndarray)) else [self.direction]
        if any(d not in (-1, 0, 1) for d in each):
            raise ValueError(f"direction of ContinuousEvent must be -1, 0 or 1, got {self.direction!r}")
        if each is self.direction:
            if len(each) != len(self.condition):
                raise ValueError(f"ContinuousEvent has {len(self.condition)} conditions but {len(each)} directions")
            object.__setattr__(self, "direction", tuple(map(int, each)))

    @staticmethod
    def _checked(given) -> tuple[sympy.Expr, ...]:
        each = given if isinstance(given, (tuple, list, np.ndarray)) else [given]
        if not len(each):
            raise ValueError("ContinuousEvent has no condition")
        return tuple(_crossing(x) for x in np.ravel(np.asarray(each, object)))


@dataclass(frozen=True, eq=False)
class DiscreteEvent(_Event):
    """Something happens after a step at whose end a condition holds.

    Parameters
    ----------
    condition : relational or Boolean of them
    affect : mapping {symbol: value}, optional
        What is assigned then: unknowns, derivatives of unknowns, parameters, or arrays of them, to expressions in what
        was there before.
    terminate : bool
        The solve ends there.

    Raises
    ------
    TypeError, ValueError
        For what is not of these kinds, and for an event that does nothing.

    Examples
    --------
    >>> from odesens.symbolic import DiscreteEvent, unknowns
    >>> x = unknowns("x")
    >>> DiscreteEvent(x > 1, terminate=True).condition
    x > 1
    """

    condition: Any
    affect: Any = None
    terminate: bool = False

    @staticmethod
    def _checked(given) -> Boolean:
        if not isinstance(given, Boolean) or isinstance(given, (BooleanAtom, sympy.Symbol)):
            raise TypeError(
                f"condition of DiscreteEvent must be a relation such as x > 1 (or And, Or, Not of some), got {given!r}"
            )
        return given


@dataclass(frozen=True, eq=False)
class PresetTimeEvent(_Event):
    """Something happens at given times.

    Parameters
    ----------
    times : number, expression in parameters, or sequence of them
        Kept as a tuple.
    affect : mapping {symbol: value}, optional
        What is assigned then: unknowns, derivatives of unknowns, parameters, or arrays of them, to expressions in what
        was there before.
    terminate : bool
        The solve ends there.

    Raises
    ------
    TypeError, ValueError
        For what is not of these kinds, and for an event that does nothing.

    Examples
    --------
    >>> from odesens.symbolic import PresetTimeEvent, parameters, unknowns
    >>> x, first = unknowns("x"), parameters("first")
    >>> PresetTimeEvent([first, first + 12], {x: x + 5}).times
    (first, first + 12)
    """

    times: Any
    affect: Any = None
    terminate: bool = False

    @staticmethod
    def _checked(given) -> tuple[sympy.Expr, ...]:
        times = np.ravel(np.asarray(given, object))
        return tuple(constant(x, "a time of PresetTimeEvent") for x in times)


@dataclass(frozen=True, eq=False)
class PeriodicEvent(_Event):
    """Something happens each `dt`, from t0 + dt on.

    Parameters
    ----------
    dt : number or expression in parameters
    affect : mapping {symbol: value}, optional
        What is assigned then: unknowns, derivatives of unknowns, parameters, or arrays of them, to expressions in what
        was there before.
    terminate : bool
        The solve ends there.

    Raises
    ------
    TypeError, ValueError
        For what is not of these kinds, and for an event that does nothing.

    Examples
    --------
    >>> from odesens.symbolic import PeriodicEvent, unknowns
    >>> x = unknowns("x")
    >>> PeriodicEvent(12, {x: x + 5}).dt
    12
    """

    dt: Any
    affect: Any = None
    terminate: bool = False

    @staticmethod
    def _checked(given) -> sympy.Expr:
        return constant(given, "dt of PeriodicEvent")


def _crossing(given) -> sympy.Expr:
    if isinstance(given, sympy.Eq):
        return given.lhs - given.rhs  # type: ignore[operator]
    if isinstance(given, Boolean) and not isinstance(given, sympy.Symbol):
        raise TypeError(
            f"condition of ContinuousEvent must be an expression that crosses zero, or an Eq, got {given}; "
            "for x > a write x - a with direction=1"
        )
    return expression(given, "condition of ContinuousEvent")


def constant(given, what: str) -> sympy.Expr:
    """A number or an expression in parameters; `what` names it in the TypeError for anything else."""
    out = expression(given, what)
    bad = sorted(str(s) for s in out.free_symbols if not isinstance(s, Parameter))
    if bad:
        raise TypeError(f"{what} must be a number or depend on parameters only, got {out} with {', '.join(bad)}")
    return out
