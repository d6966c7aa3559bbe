"""A system with its subsystems as one list of equations in absolute names.

Owns: `Flat`, `flatten`: the walk through a tree of systems, precedence of defaults, names of functions, expansion of
connections. Must not know: how a system is given (`system`), simplification, JAX.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import sympy

from .connect import expand
from .namespace import Namespace, merge
from .symbols import Parameter, TimeDerivative, Unknown

SHOWN = 20  # equations in a notebook's view


@dataclass(frozen=True, eq=False)
class Flat:
    """All that a model says, in absolute names; the root's own names have no prefix.

    Symbols of one name may differ in metadata within expressions: go by names; `unknowns` and `parameters` have all
    that is said of each.

    Attributes
    ----------
    name : str
        Of the root.
    equations, initial : tuple of (lhs, rhs)
        Those that hold always, those that hold at t0. Own equations come first, then those of the subsystems in order,
        then those of connections.
    unknowns, parameters : dict from str to Unknown, Parameter
        In order of first appearance, those of equations first.
    defaults, guesses : dict from str, or (str, order) for time derivatives, to number or expression
        The outer systems' go before those of inner systems, these before those of symbols.
    observed : tuple of (Unknown, expression)
    events : tuple
    discontinuities : tuple of expressions in parameters
    functions : dict from str to callable
        Of undefined functions, by the names they have in the equations.
    """

    name: str
    equations: tuple[tuple[sympy.Expr, sympy.Expr], ...]
    initial: tuple[tuple[sympy.Expr, sympy.Expr], ...]
    unknowns: dict[str, Unknown]
    parameters: dict[str, Parameter]
    defaults: dict[Any, Any]
    guesses: dict[Any, Any]
    observed: tuple[tuple[Unknown, sympy.Expr], ...]
    events: tuple
    discontinuities: tuple
    functions: dict[str, Callable]

    def key(self, symbol) -> Any:
        """The name, or (name, order) for a time derivative, of a symbol or a name; the root's name may be before it.

        Raises
        ------
        KeyError
            For a name that the model does not have, with near ones.
        """
        if isinstance(symbol, TimeDerivative):
            return self.key(symbol.unknown), symbol.order
        name = symbol if isinstance(symbol, str) else getattr(symbol, "name", str(symbol))
        for given in (name, name.removeprefix(self.name + ".")):
            if given in self.unknowns or given in self.parameters:
                return given
        raise KeyError(f"{title(self.name)} has no {name}{near(name, [*self.unknowns, *self.parameters])}")


def title(name: str) -> str:
    return f"System {name}" if name else "System"


def escaped(text: str) -> str:
    return text.replace("_", r"\_")


def aligned(rows: list[str], more: int, text: str) -> str:
    """A notebook's view of rows of LaTeX, of which there are more; the text where there are none."""
    if more or not rows:
        rows = [*rows, rf"&\text{{{f'and {more} more' if more else escaped(text)}}}"]
    body = r" \\ ".join(rows)
    return rf"$\displaystyle \begin{{aligned}} {body} \end{{aligned}}$"


def near(name: str, known: Iterable[str]) -> str:
    """The end of a message: what may have been meant, or what there is."""
    known = list(known)
    found = get_close_matches(name, known, n=3, cutoff=0.5)
    if found:
        return f"; did you mean {' or '.join(found)}?"
    shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    return f"; there is {shown or 'nothing'}"


def flatten(root) -> Flat:
    """The equations of a system and its subsystems. The time it takes is linear in their size.

    Raises
    ------
    TypeError, ValueError
        For functions without a callable, names with contradicting metadata, and unknowns observed twice.
    """
    functions: dict[str, Callable] = {}
    places = list(_walk(root, "", {}, functions))
    table: dict[str, Any] = {}

    def enter(names: Iterable, space: Namespace) -> None:
        for symbol in names:
            here = space.symbols.get(symbol, symbol)
            merge(table, here.name, here, title(root.name))

    for system, space in places:
        enter(system.names_in_equations.variants, space)
    connected = [
        _absolute(connection, system, space.prefix) for system, space in places for connection in system.connections
    ]
    for connection, _, names in connected:
        for member, absolute in zip(connection.members, names, strict=True):
            for unknown, name in zip(member.values(), absolute, strict=True):
                merge(table, name, unknown.renamed(name), title(root.name))
    for system, space in places:
        enter(system.names.variants, space)
    flows = [name for name, symbol in table.items() if isinstance(symbol, Unknown) and symbol.connect == "flow"]

    everywhere = lambda part: tuple((s(a), s(b)) for system, s in places for a, b in getattr(system, part))
    observed = everywhere("observed")
    for name, count in Counter(unknown.name for unknown, _ in observed).items():
        if count > 1:
            raise ValueError(f"{title(root.name)}: {name} is observed twice")
    return Flat(
        name=root.name,
        equations=everywhere("equations") + tuple(expand(connected, flows, table)),
        initial=everywhere("initial"),
        unknowns={name: symbol for name, symbol in table.items() if isinstance(symbol, Unknown)},
        parameters={name: symbol for name, symbol in table.items() if isinstance(symbol, Parameter)},
        defaults=_values("default", "defaults", places, table),
        guesses=_values("guess", "guesses", places, table),
        observed=observed,
        events=tuple(event.rewritten(space) for system, space in places for event in system.events),
        discontinuities=tuple(space(x) for system, space in places for x in system.discontinuities),
        functions=functions,
    )


def _walk(system, prefix: str, known: dict[str, str], functions: dict[str, Callable]):
    """Each system with its namespace, outer ones first; `functions` is filled on the way."""
    known = dict(known)
    for name, function in system.functions.items():
        known[name] = name if functions.get(name, function) is function else prefix + name
        functions[known[name]] = function
    missing = [call for name, call in system.names.calls.items() if name not in known]
    if missing:
        shown, first = ", ".join(map(str, missing)), missing[0].func
        raise TypeError(
            f"{title((prefix or system.name).rstrip('.'))}: no callable is given for {shown}; give "
            f'functions={{{first}: callable}} to the system, or make an unknown of it, unknowns("{first}")'
        )
    yield system, Namespace(prefix, system.names, known)
    for inner in system.systems.values():
        yield from _walk(inner, f"{prefix}{inner.name}.", known, functions)


def _values(key: str, keys: str, places: list[tuple[Any, Namespace]], table: dict) -> dict:
    """Values from symbols, then from systems, the inner ones first so that the outer ones stay."""
    out = {name: symbol.metadata[key] for name, symbol in table.items() if key in symbol.metadata}
    for system, space in places:
        for name, symbol in system.names.table.items():
            if key in symbol.metadata:
                out[space.prefix + name] = space(symbol.metadata[key])
    for system, space in reversed(places):
        for symbol, value in getattr(system, keys):
            out[space.key(symbol)] = space(value)
    return out


def _absolute(connection, system, prefix: str):
    """The connection, which members are the system's own connectors, the absolute names of the members' unknowns."""
    first = connection.members[0]
    own = [system.systems[name.partition(".")[0]].is_connector for name in connection.names]
    names = [[prefix + member[key].name for key in first] for member in connection.members]
    return connection, own or [False] * len(names), names
