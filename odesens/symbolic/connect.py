"""Connections: which unknowns are equal, which flows sum to zero.

Owns: `connect`, `Connection`, the union of connections over a whole model. Must not know: systems (a connector is what
has an `interface`), equations, JAX.

Unknowns that are connected, directly or through others, form a set. A set of k equal ones gives k - 1 equations, a set
of flows one. A flow counts into its component: as it is in a set of the system around, and with the other sign in a set
of the system itself, where it is what comes in from outside. So one flow is in two sets, one of each kind; where
nothing is connected from around, its set is itself alone: it is zero.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import sympy

from .symbols import SymbolArray, Unknown


@dataclass(frozen=True, eq=False)
class Connection:
    """What one `connect` says: for each member the unknowns by their names within the member.

    names : of the members, in the namespace of the system that holds the connection; () for plain unknowns
    members : alike mappings, from the name within the member to the unknown
    """

    names: tuple[str, ...]
    members: tuple[dict[str, Unknown], ...]

    def __str__(self):
        shown = self.names or tuple(", ".join(u.name for u in member.values()) for member in self.members)
        return f"connect({', '.join(shown)})"


def connect(*members: Any) -> Connection:
    """Connect unknowns or connectors.

    Parameters
    ----------
    *members : Unknown, array of unknowns, or System
        Two or more of a kind. Unknowns are equated. A connector is a system whose unknowns have `connect="equal"` or
        `connect="flow"`: equal ones are equated, flows sum to zero over all that is connected. A flow counts into its
        component: with a plus for `motor.pin`, with a minus for a connector that is itself a subsystem of the system in
        which the connection is written.

    Returns
    -------
    Connection
        To be put among the equations of a system.

    Raises
    ------
    TypeError, ValueError
        Where members are not of one kind, have not the same unknowns, or have different units.

    Examples
    --------
    >>> from odesens.symbolic import connect, unknowns
    >>> a, b = unknowns("a b")
    >>> print(connect(a, b))
    connect(a, b)
    """
    if len(members) < 2:
        raise ValueError(f"connect needs two members or more, got {len(members)}")
    plain = [isinstance(member, (Unknown, np.ndarray)) for member in members]
    if any(plain) and not all(plain):
        shown = ", ".join(type(m).__name__ if isinstance(m, np.ndarray) else str(m) for m in members)
        raise TypeError(f"connect takes unknowns or connectors, not both: {shown}")
    faces = tuple(_unknowns_of(m) if plain[0] else _interface(m) for m in members)
    connection = Connection(() if plain[0] else tuple(m.name for m in members), faces)
    _check(connection)
    return connection


def _unknowns_of(member) -> dict[str, Unknown]:
    array = np.asarray(member, object) if isinstance(member, SymbolArray) else np.full((), member, object)
    out = {}
    for index in np.ndindex(*array.shape):
        unknown = array[index]
        if not isinstance(unknown, Unknown):
            raise TypeError(f"connect takes unknowns or connectors, got {unknown}; for expressions write an equation")
        if unknown.connect == "flow":
            raise ValueError(f"connect got the flow {unknown} alone; connect the connectors that hold it")
        out[str(list(index))] = unknown
    return out


def _interface(member) -> dict[str, Unknown]:
    interface = getattr(type(member), "interface", None)
    if interface is None:
        raise TypeError(f"connect takes unknowns or connectors, got {type(member).__name__}: {member}")
    found = interface(member)
    name = member.name
    if not name:
        raise ValueError(f"connect got a system without a name: {member}; a connector is a subsystem with a name")
    if not found:
        raise ValueError(f"connect got {name}, which has no unknowns; a connector has some with connect set")
    for unknown in found.values():
        if unknown.connect is None:
            raise ValueError(
                f'connect got {name}, whose unknown {unknown} has neither connect="equal" nor connect="flow"; '
                "connect its connectors"
            )
    return found


def _check(connection: Connection) -> None:
    first = connection.members[0]
    for other in connection.members[1:]:
        if first.keys() != other.keys():
            raise ValueError(
                f"members of {connection} must have the same unknowns, got {_listed(first)} and {_listed(other)}"
            )
        for a, b in zip(first.values(), (other[key] for key in first), strict=True):
            if a.connect != b.connect and connection.names:
                raise ValueError(f"{connection}: {a} has connect={a.connect!r}, but {b} has connect={b.connect!r}")
            if a.unit is not None and b.unit is not None and a.unit != b.unit:
                raise ValueError(f"{connection}: {a} has the unit {a.unit}, but {b} has the unit {b.unit}")


def _listed(member: Mapping[str, Unknown]) -> str:
    return ", ".join(unknown.name for unknown in member.values())


class _Sets:
    """Disjoint sets of anything, each in order of entry."""

    def __init__(self):
        self.parent: dict = {}

    def root(self, x):
        self.parent.setdefault(x, x)
        while self.parent[x] != x:
            self.parent[x] = x = self.parent[self.parent[x]]
        return x

    def union(self, a, b) -> None:
        a, b = self.root(a), self.root(b)
        self.parent[b] = a

    def all(self) -> list[list]:
        out: dict = {}
        for x in self.parent:
            out.setdefault(self.root(x), []).append(x)
        return list(out.values())


def expand(connections: Iterable[tuple[Connection, list[bool], list[list[str]]]], flows: Iterable[str], symbol) -> list:
    """The equations of all connections of a model.

    Parameters
    ----------
    connections : of (connection, own, names)
        `own` says which members are connectors of the very system that holds the connection; `names` has the absolute
        names of each member's unknowns, in the order of the first member's.
    flows : of str
        Absolute names of all flows of the model.
    symbol : mapping
        From an absolute name to the unknown.

    Returns
    -------
    list of (lhs, rhs)
    """
    equal, flow = _Sets(), _Sets()
    for connection, own, names in connections:
        for column, unknown in enumerate(connection.members[0].values()):
            row = [each[column] for each in names]
            if connection.names and unknown.connect == "flow":
                row, sets = list(zip(row, own, strict=True)), flow
            else:
                sets = equal
            for a, b in pairwise(row):
                sets.union(a, b)
    for name in flows:
        flow.root((name, False))
    out: list[tuple[Any, Any]] = [(symbol[first], symbol[other]) for first, *others in equal.all() for other in others]
    for members in flow.all():
        total = sympy.Add(*[-symbol[name] if own else symbol[name] for name, own in members])
        out.append((total, sympy.S.Zero))
    return out
