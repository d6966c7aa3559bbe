"""Systems of equations between unknowns and parameters, and their composition.

Owns: `System`, `equations`; the checks of what a system is given. Must not know: simplification, JAX.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import sympy

from . import flat
from .connect import Connection
from .event_data import _Event, assignments, constant, expression
from .flat import SHOWN, Flat, aligned, escaped, near, title
from .namespace import Names, moved
from .symbols import Parameter, SymbolArray, Unknown, indexed, scalar
from .symbols import t as time

Pair = tuple[sympy.Expr, sympy.Expr]


def equations(lhs: Any, rhs: Any) -> list:
    """The equations lhs = rhs, entry by entry.

    `sympy.Eq(x, y)` tries to find whether it holds: it may be True or False, and takes milliseconds for a sum. Here
    nothing is evaluated. A system takes pairs (lhs, rhs) as well.

    Parameters
    ----------
    lhs, rhs : number, expression, or array of them
        Arrays are broadcast together.

    Returns
    -------
    list of sympy.Eq

    Raises
    ------
    ValueError
        For arrays that do not broadcast together.

    Examples
    --------
    >>> from odesens.symbolic import D, equations, unknowns
    >>> x, y = unknowns("x y")
    >>> equations([D(x), D(y)], [y, -x])
    [Eq(D(x), y), Eq(D(y), -x)]
    """
    return [sympy.Eq(a, b, evaluate=False) for a, b in _elementwise(lhs, rhs, "equations")]


class System:
    """Equations between unknowns and parameters; of subsystems too.

    `motor.speed` is the symbol of that name as it is seen from a system that has `motor` among its subsystems, and
    `plant.motor.speed` one further out; `motor["speed"]` is the same, for names that are those of attributes here. A
    system does not change.

    Parameters
    ----------
    equations : sympy.Eq, (lhs, rhs), `connect(...)`, arrays or nested sequences of them
        In any order of sides. What SymPy found to hold is dropped. See `equations` for a quick way to write many.
    t : Symbol
        `odesens.symbolic.t`.
    symbols : sequence, optional
        Unknowns and parameters, or arrays of them, that no equation has, such as those of a connector.
    defaults, guesses : mapping, optional
        From unknowns, their time derivatives, parameters or arrays of them to numbers or expressions. They go before
        those of symbols and of subsystems, whose keys are as in `{motor.k: 2.0}`.
    observed : sequence of sympy.Eq or (unknown, expression), or mapping, optional
        Unknowns that are given by an expression.
    events : sequence, optional
        Of `ContinuousEvent`, `DiscreteEvent`, `PresetTimeEvent`, `PeriodicEvent`.
    discontinuities : sequence, optional
        Times, numbers or expressions in parameters, at which equations have a jump, as those of a Piecewise in t: steps
        end there, and derivatives in them are right. Events do not change them.
    initial : as equations, optional
        What holds at t0 only.
    systems : sequence of System, optional
        Subsystems, each with a name of its own.
    functions : mapping, optional
        From `F = sympy.Function("F")`, or its name, to a callable on numbers. Subsystems see it too.
    name : str, optional
        An identifier. A system without a name can be no subsystem.

    Raises
    ------
    TypeError, ValueError
        For what is not an equation, or one that never holds; symbols that are neither unknowns nor parameters; a name
        used twice; symbols of no subsystem.

    Examples
    --------
    >>> import odesens as ode
    >>> from odesens.symbolic import D, System, parameters, t, unknowns
    >>> x, k = unknowns("x", default=1.0), parameters("k", default=2.0)
    >>> decay = System([(D(x), -k * x)], t, name="decay")
    >>> decay.x, decay.own
    (decay.x, ['x', 'k'])
    >>> sol = ode.solve(ode.ODEProblem(decay, {}, (0.0, 1.0)), saveat=[1.0], reltol=1e-8)
    >>> print(f"{sol[x][0]:.5f} {sol[x / k][0]:.5f}")  # exp(-2), and half of it
    0.13534 0.06767
    """

    name: str
    t: sympy.Symbol
    equations: tuple[Pair, ...]
    connections: tuple[Connection, ...]
    initial: tuple[Pair, ...]
    observed: tuple[tuple[Unknown, sympy.Expr], ...]
    events: tuple
    discontinuities: tuple[sympy.Expr, ...]
    defaults: tuple[tuple[Any, Any], ...]
    guesses: tuple[tuple[Any, Any], ...]
    systems: dict[str, "System"]
    functions: dict[str, Callable]
    names: Names
    names_in_equations: Names

    def __init__(
        self,
        equations: Any,
        t: sympy.Symbol,
        *,
        symbols: Iterable = (),
        defaults: Mapping | None = None,
        guesses: Mapping | None = None,
        observed: Any = (),
        events: Any = (),
        discontinuities: Any = (),
        initial: Any = (),
        systems: Iterable["System"] = (),
        functions: Mapping | None = None,
        name: str = "",
    ):
        where = title(name)
        if not isinstance(name, str) or (name and not name.isidentifier()):
            raise ValueError(f"the name of a system must be an identifier, got {name!r}")
        if t != time:
            raise TypeError(f"{where}: the independent variable must be odesens.symbolic.t, got {t!r}")
        given = list(_given(equations, f"{where}, equation"))
        found: dict[str, Any] = dict(
            name=name,
            t=time,
            equations=tuple(x for x in given if not isinstance(x, Connection)),
            connections=tuple(x for x in given if isinstance(x, Connection)),
            initial=tuple(_given(initial, f"{where}, initial equation")),
            observed=_observed(observed, where),
            events=_events(events, where),
            discontinuities=_times(discontinuities, f"{where}, a time of discontinuities"),
            defaults=_values(defaults, f"{where}, defaults"),
            guesses=_values(guesses, f"{where}, guesses"),
            systems=_subsystems(systems, where),
            functions=_functions(functions, where),
        )
        if any(isinstance(x, Connection) for x in found["initial"]):
            raise TypeError(f"{where}: a connection holds always; it cannot be an initial equation")
        vars(self).update(found)
        self._find_names(symbols, where)

    def _find_names(self, symbols, where: str) -> None:
        first, seen = Names(), set()
        for pair in self.equations:
            first.scan(pair, where, seen)
        names = Names(dict(first.table), dict(first.variants), dict(first.calls))
        for part in (self.initial, self.observed, self.defaults, self.guesses):
            for pair in part:
                names.scan(pair, where, seen)
        for event in self.events:
            names.scan(event.expressions(), where, seen)
        names.scan(self.discontinuities, where, seen)
        names.scan(_declared(symbols, where), where, seen)
        for connection in self.connections:
            if not connection.names:
                for member in connection.members:
                    names.scan(member.values(), where, seen)
        names.scan_values(where, seen)
        vars(self).update(names=names, names_in_equations=first)
        for symbol in names.table:
            head, dot, _ = symbol.partition(".")
            if dot:
                self._check_inner(symbol, where)
            elif head.partition("[")[0] in self.systems:
                raise ValueError(f"{where}: {symbol} has the name of a subsystem; name one of them differently")
        for connection in self.connections:
            for member in connection.members if connection.names else ():
                for unknown in member.values():
                    self._check_inner(unknown.name, f"{where}, {connection}")

    def _check_inner(self, name: str, where: str) -> None:
        """Refuse the name of a symbol that no subsystem has."""
        *path, last = name.split(".")
        system = self
        for head in path:
            if head not in system.systems:
                raise ValueError(
                    f"{where}: {name} is of no subsystem; pass the system {head} in systems=[...]"
                    f"{near(head, system.systems) if system.systems else ''}"
                )
            system = system.systems[head]
        if last not in system.names.table:
            raise ValueError(f"{where}: {title('.'.join(path))} has no {last}{near(last, system.own)}")

    @property
    def _problem_type(self):
        """What `odesens.ODEProblem(system, ..)` makes."""
        from .problem import SymbolicProblem

        return SymbolicProblem

    @property
    def own(self) -> list[str]:
        """The names of the unknowns and parameters that are not a subsystem's."""
        return [name for name in self.names.table if "." not in name]

    def _outside(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name else name

    def _renamed(self, name: str) -> "System":
        out = object.__new__(System)
        vars(out).update(vars(self), name=name)
        return out

    def __getitem__(self, key: str) -> Any:
        """The symbol, or the subsystem, of the name `key`, as it is seen from the system around."""
        head, dot, rest = key.partition(".")
        if head in self.systems:
            inner = self.systems[head]._renamed(self._outside(head))
            return inner[rest] if dot else inner
        if not dot and key in self.names.table:
            return moved(self.names.table[key], self._outside(key))
        entries = [name for name in self.own if name.startswith(key + "[")]
        if entries:
            return self._array(key, entries)
        raise KeyError(f"{title(self.name)} has no {key}{near(key, [*self.own, *self.systems])}")

    def _array(self, key: str, entries: list[str]) -> SymbolArray:
        indices = [tuple(map(int, name[len(key) + 1 : -1].split(","))) for name in entries]
        shape = tuple(int(n) + 1 for n in np.max(indices, axis=0))
        out = np.empty(shape, object).view(SymbolArray)
        for index, name in indexed(key, shape):
            out[index] = self[name]
        return out

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_") or "names" not in vars(self):  # not yet made, as while it is unpickled
            raise AttributeError(key)
        try:
            return self[key]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __setattr__(self, key: str, value) -> None:
        raise AttributeError(
            f"{title(self.name)} does not change: to give {key} a value, use defaults={{...}} of the system around it, "
            "or that of the problem"
        )

    def __dir__(self):
        return [*super().__dir__(), *self.own, *self.systems]

    def interface(self) -> dict[str, Unknown]:
        """The unknowns by their names from inside, under their names from outside: what is connected of a connector."""
        own = {name: self[name] for name in self.own}
        out = {name: symbol for name, symbol in own.items() if isinstance(symbol, Unknown)}
        for head in self.systems:
            out.update({f"{head}.{name}": unknown for name, unknown in self[head].interface().items()})
        return out

    @property
    def is_connector(self) -> bool:
        """Whether each unknown of its own says what a connection means for it.

        Or it has none, and neither equations nor connections, and its subsystems are connectors.
        """
        own = [symbol for name, symbol in self.names.table.items() if "." not in name and isinstance(symbol, Unknown)]
        if own:
            return all(unknown.connect is not None for unknown in own)
        inner = self.systems.values()
        return bool(inner) and not self.equations and not self.connections and all(x.is_connector for x in inner)

    def flatten(self) -> Flat:
        """All equations, of subsystems and connections too, in absolute names."""
        return flat.flatten(self)

    def __repr__(self):
        symbols = [self.names.table[name] for name in self.own]
        unknown = sum(isinstance(symbol, Unknown) for symbol in symbols)
        counts = {
            "equation": len(self.equations),
            "connection": len(self.connections),
            "unknown": unknown,
            "parameter": len(symbols) - unknown,
            "event": len(self.events),
        }
        parts = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items() if count]
        if self.systems:
            parts.append(f"subsystems {', '.join(self.systems)}")
        return f"{title(self.name)}: {', '.join(parts) or 'empty'}"

    def _repr_latex_(self) -> str:
        rows = [f"{sympy.latex(lhs)} &= {sympy.latex(rhs)}" for lhs, rhs in self.equations[:SHOWN]]
        rows += [rf"&\text{{{escaped(str(x))}}}" for x in self.connections[: SHOWN - len(rows)]]
        return aligned(rows, len(self.equations) + len(self.connections) - len(rows), repr(self))


def _is_side(x) -> bool:
    """Whether it can be a side of an equation: a number, an expression, or an array of them."""
    if isinstance(x, (np.ndarray, sympy.MatrixBase)):
        return all(_is_side(entry) for entry in np.ravel(np.asarray(x, object))[:1])
    return isinstance(x, (int, float, complex, np.number, sympy.Expr)) and not isinstance(x, bool)


def _given(items, where: str) -> Iterator[Any]:
    """Pairs and connections out of all that equations may be given as."""
    for number, item in enumerate(_leaves(items)):
        here = f"{where} {number}"
        if item is True or item is sympy.true or item is np.True_:
            continue
        if item is False or item is sympy.false or item is np.False_:
            raise ValueError(
                f"{here} is False: it never holds, or it was written with ==; write sympy.Eq(lhs, rhs) or (lhs, rhs)"
            )
        if isinstance(item, Connection):
            yield item
            continue
        if not isinstance(item, (sympy.Eq, tuple)):
            raise TypeError(
                f"{here} must be sympy.Eq(lhs, rhs), a pair (lhs, rhs) or connect(...), "
                f"got {type(item).__name__}: {item}"
            )
        lhs, rhs = item.args if isinstance(item, sympy.Eq) else item
        for a, b in _elementwise(lhs, rhs, here):
            if a == b:
                continue
            if a.is_Number and b.is_Number:
                raise ValueError(f"{here}, {a} = {b}, never holds")
            yield a, b


def _leaves(items) -> Iterator[Any]:
    pair = isinstance(items, tuple) and len(items) == 2 and all(map(_is_side, items))
    if pair or isinstance(items, (str, sympy.Basic, Connection, System)) or not isinstance(items, Iterable):
        yield items
        return
    for item in items.flat if isinstance(items, np.ndarray) else items:
        yield from _leaves(item)


def _elementwise(lhs, rhs, where: str) -> Iterator[Pair]:
    arrays = (np.ndarray, list, tuple, sympy.MatrixBase)
    if not isinstance(lhs, arrays) and not isinstance(rhs, arrays):
        yield expression(lhs, f"{where}, a side,"), expression(rhs, f"{where}, a side,")
        return
    a, b = np.asarray(lhs, object), np.asarray(rhs, object)
    try:
        a, b = np.broadcast_arrays(a, b)
    except ValueError:
        raise ValueError(f"{where}: sides of shapes {a.shape} and {b.shape} do not broadcast") from None
    for x, y in zip(a.flat, b.flat, strict=True):
        yield from _elementwise(x, y, where)


def _observed(given, where: str) -> tuple[tuple[Unknown, sympy.Expr], ...]:
    items = (
        [pair for key, value in given.items() for pair in _elementwise(key, value, where)]
        if isinstance(given, Mapping)
        else given
    )
    out = []
    for pair in _given(items, f"{where}, observed"):
        if not isinstance(pair, tuple) or not isinstance(pair[0], Unknown):
            raise TypeError(f"{where}: observed must be (unknown, expression), got {pair}")
        out.append(pair)
    return tuple(out)


def _events(given, where: str) -> tuple:
    events = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    for event in events:
        if not isinstance(event, _Event):
            raise TypeError(
                f"{where}: an event must be a ContinuousEvent, DiscreteEvent, PresetTimeEvent or PeriodicEvent, "
                f"got {type(event).__name__}: {event}"
            )
    return events


def _times(given, what: str) -> tuple[sympy.Expr, ...]:
    return tuple(constant(x, what) for x in np.ravel(np.asarray(given, object)))


def _values(given, where: str) -> tuple[tuple[Any, Any], ...]:
    return tuple((key, scalar(value, f"{where}, value of {key},")) for key, value in assignments(given, where))


def _subsystems(systems, where: str) -> dict[str, System]:
    out: dict[str, System] = {}
    for system in [systems] if isinstance(systems, System) else systems:
        if not isinstance(system, System):
            raise TypeError(f"{where}: a subsystem must be a System, got {type(system).__name__}: {system}")
        if not system.name.isidentifier():
            raise ValueError(f"{where}: a subsystem needs a name that is an identifier, got {system.name!r}")
        if system.name in out:
            raise ValueError(f"{where}: two subsystems have the name {system.name}; give each its own")
        out[system.name] = system
    return out


def _functions(given, where: str) -> dict[str, Callable]:
    out = {}
    for key, function in (given or {}).items():
        if not callable(function):
            raise TypeError(f"{where}: the function {key} must be a callable on numbers, got {function!r}")
        out[key if isinstance(key, str) else key.__name__] = function
    return out


def _declared(symbols, where: str) -> list:
    arrays = (np.ndarray, list, tuple)
    each = symbols if isinstance(symbols, arrays) else [symbols]
    out = [symbol for x in each for symbol in (np.ravel(np.asarray(x, object)) if isinstance(x, arrays) else [x])]
    for symbol in out:
        if not isinstance(symbol, (Unknown, Parameter)):
            raise TypeError(f"{where}: symbols must be unknowns and parameters, got {type(symbol).__name__}: {symbol}")
    return out
