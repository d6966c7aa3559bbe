"""`SimplifiedSystem`: the states of a model, their rates, and everything else as expressions of them.

Owns: what a name means, observed values by substitution. Must not know: how a system was simplified, generated
code.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sympy as sp
from jax.core import Tracer

from .exchange import from_sympy, to_sympy
from .flat import SHOWN, Flat, aligned
from .symbols import Parameter, TimeDerivative, Unknown, t
from .system import System
from .terms import Terms


class SimplifiedSystem:
    """M du/dt = f(t, u, p): what `simplify` makes of a `System`; immutable, and as such a static part of programs.

    Attributes
    ----------
    unknowns : tuple
        The states u in their order: unknowns, then derivatives D(x) that became states, then those that algebraic
        equations determine.
    parameters : tuple of Parameter
        In the order of their first appearance.
    equations : list of sympy.Eq
        D(x) = .. for the differential states, 0 = .. for the algebraic ones.
    observed : list of sympy.Eq
        What the other unknowns are equal to.
    names : tuple of str
        Of the states; a derivative D(x) is called x_t.

    Examples
    --------
    >>> from odesens.symbolic import D, System, simplify, t, unknowns
    >>> x, y = unknowns("x y")
    >>> model = simplify(System([(D(x), -y), (y, 2 * x)], t))
    >>> model.unknowns, model.equations, model.observed
    ((x,), [Eq(D(x), -2*x)], [Eq(y, 2*x)])
    """

    def __init__(
        self,
        system: System,
        flat: Flat,
        terms: Terms,
        memory: dict,
        differential: tuple[int, ...],
        algebraic: tuple[int, ...],
        residuals: tuple[int, ...],
        definitions: tuple[tuple[int, int], ...],
        constraints: tuple[int, ...],
        changing: tuple[tuple[int, int], ...] = (),
    ):
        self.system = system
        self.flat = flat
        self.terms = terms
        self.memory = memory
        self.differential = differential
        self.algebraic = algebraic
        self.states = (*differential, *algebraic)
        self.definitions = definitions
        self.changing = changing  # (parameter, state) of the parameters that events change
        self._chosen = frozenset(self.states)
        self.parameter_leaves = tuple(terms.parameter(name) for name in flat.parameters)
        self._values: dict[int, int] = {}
        self._resolve(residuals)
        self.rates = tuple(self.value(self._next(leaf)) for leaf in differential)
        self.residuals = tuple(self.express(e) for e in residuals)
        self.constraints = tuple(self.express(e) for e in constraints)
        self.made: dict = {}  # programs generated from this system, by what they are of
        self.places = self._places()  # where the value of each leaf is when the model runs

    def _places(self) -> dict[int, tuple[str, int | None]]:
        places: dict[int, tuple[str, int | None]] = {leaf: ("u", i) for i, leaf in enumerate(self.states)}
        count = {"tunable": 0, "fixed": 0}
        for leaf in self.parameter_leaves:
            pool = self.pool(leaf)
            places[leaf] = (pool, count[pool])
            count[pool] += 1
        places[self.terms.time()] = ("t", None)
        return places

    def pool(self, leaf: int) -> str:
        """Of which vector of parameters a leaf is an entry."""
        return "tunable" if self.flat.parameters[self.terms.nodes[leaf][1]].tunable else "fixed"

    def current(self, node: int) -> int:
        """The node in states, parameters and time, where parameters that events change have their value at the time."""
        exchange = {x: y for x, y in self.changing if x in self.terms.leaves(node)}
        return self.express(self.terms.substitute([node], exchange)[0] if exchange else node)

    def _next(self, leaf: int) -> int:
        _, name, order = self.terms.nodes[leaf]
        return self.terms.unknown(name, order + 1)

    def _resolve(self, residuals) -> None:
        """The values of what is not a state; what several use is one node, so that it is worked out once."""
        nodes = [node for _, node in self.definitions] + list(residuals)
        uses = Counter(leaf for node in nodes for leaf in unknown_leaves(self.terms, node))
        uses.update(map(self._next, self.differential))
        for leaf, node in self.definitions:
            value = self.express(node)
            self._values[leaf] = self.terms.shared(value) if uses[leaf] > 1 else value

    # ------------------------------------------------------------ expressions

    def value(self, leaf: int) -> int:
        """What a leaf is equal to, in states, parameters and time."""
        kind = self.terms.nodes[leaf]
        if kind[0] != "unknown" or leaf in self._chosen:
            return leaf
        if leaf not in self._values:
            _, name, order = kind
            if name not in self.flat.unknowns:
                raise KeyError(name)
            below = self.terms.unknown(name, order - 1)
            if order == 0 or below in self.algebraic:
                raise TypeError(
                    f"{self.show(leaf)} is not known: {self.show(below)} is determined by an algebraic equation, whose "
                    "time derivative is not part of the model; add an unknown equal to D of it"
                )
            self._values[leaf] = self.express(self.terms.time_derivative(self.value(below)))
        return self._values[leaf]

    def express(self, node: int) -> int:
        """The node in states, parameters and time."""
        exchange = {leaf: self.value(leaf) for leaf in unknown_leaves(self.terms, node) if leaf not in self._chosen}
        return self.terms.substitute([node], exchange)[0] if exchange else node

    def parse(self, expr: Any) -> int:
        """The node of a user's expression `expr`: a name, a symbol, or made of symbols.

        Raises
        ------
        KeyError
            For a symbol that the system does not have.
        """
        if isinstance(expr, str):
            return self.leaf(expr)
        inside = {symbol: self._inside(symbol) for symbol in getattr(expr, "free_symbols", ()) if symbol != t}
        renamed = {a: b for a, b in inside.items() if a.name != b.name}
        return from_sympy(self.terms, expr.xreplace(renamed) if renamed else expr, t, self.memory)

    def _inside(self, symbol):
        """The symbol under its own name, where that of the system is before it."""
        return symbol.renamed(self.terms.nodes[self.leaf(symbol)][1])

    def leaf(self, key: Any) -> int:
        """The leaf of a key: an unknown, a time derivative or a parameter, by symbol or name."""
        return find(self.flat, self.terms, key)

    def show(self, node: int) -> Any:
        """The SymPy expression of a node."""
        symbols = {**self.flat.unknowns, **self.flat.parameters}
        return to_sympy(self.terms, node, symbols, t)

    # ------------------------------------------------------------ what a user sees

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Of the states; a derivative D(x) is called x_t."""
        nodes = (self.terms.nodes[leaf] for leaf in self.states)
        return tuple(name + ("_" + "t" * order if order else "") for _, name, order in nodes)

    @property
    def name(self) -> str:
        """That of the system."""
        return self.system.name

    @property
    def unknowns(self) -> tuple:
        """The states u in their order."""
        return tuple(map(self.show, self.states))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """In the order of their first appearance."""
        return tuple(self.flat.parameters.values())

    @property
    def equations(self) -> list:
        """D(x) = .. for the differential states, 0 = .. for the algebraic ones."""
        eq = lambda a, b: sp.Eq(a, b, evaluate=False)
        named = dict(zip(self.states, self.names, strict=True))  # a rate that is a state goes by the state's name
        shown = lambda node: Unknown(named[node]) if node in named else self.show(node)
        rates = [eq(self.show(self._next(x)), shown(r)) for x, r in zip(self.differential, self.rates, strict=True)]
        return rates + [eq(sp.Integer(0), self.show(e)) for e in self.residuals]

    @property
    def observed(self) -> list:
        """What the other unknowns are equal to."""
        shown = [leaf for leaf in self._values if leaf not in map(self._next, self.differential)]
        return [sp.Eq(self.show(leaf), self.show(self._values[leaf]), evaluate=False) for leaf in shown]

    def _repr_latex_(self) -> str:
        """States' equations first, then observed; what says nothing, as D(x) = D(x) of a state D(x), is left out."""
        nodes = [(self._next(x), r) for x, r in zip(self.differential, self.rates, strict=True)]
        nodes = [(a, b) for a, b in nodes if a != b] + [(self.terms.number(0), e) for e in self.residuals]
        nodes += [(x, value) for x, value in self._values.items() if x not in map(self._next, self.differential)]
        shown = [(sp.latex(self.show(a)), sp.latex(self.show(b))) for a, b in nodes[:SHOWN]]
        return aligned([f"{a} &= {b}" for a, b in shown], len(nodes) - len(shown), repr(self))

    @property
    def _problem_type(self):
        return self.system._problem_type

    def __getattr__(self, key: str):
        if key.startswith("__") or "system" not in self.__dict__:
            raise AttributeError(key)
        return getattr(self.system, key)

    def __repr__(self) -> str:
        n, m = len(self.differential), len(self.algebraic)
        shown = ", ".join(self.names[:6]) + (", .." if len(self.names) > 6 else "")
        title = f"SimplifiedSystem {self.name}".strip()
        return f"<{title}: {n} differential and {m} algebraic states ({shown}), {len(self.parameters)} parameters>"


# ---------------------------------------------------------------- names


def unknown_leaves(terms: Terms, node: int) -> list[int]:
    """The unknowns and derivatives of unknowns that a node depends on."""
    return [leaf for leaf in terms.leaves(node) if terms.nodes[leaf][0] == "unknown"]


def find(flat: Flat, terms: Terms, key) -> int:
    """The leaf of a symbol, a time derivative, a name such as x, or x_t for D(x), or (name, order).

    Raises
    ------
    KeyError
        For one that the system does not have; the message names those that are near.
    """
    if isinstance(key, tuple):
        return terms.unknown(*key)
    if not isinstance(key, (str, Unknown, Parameter, TimeDerivative)):
        raise KeyError(f"{key!r} is not a symbol of the system: give an unknown, D of one, a parameter, or a name")
    try:
        found = flat.key(key)
    except KeyError:
        base, _, order = key.rpartition("_") if isinstance(key, str) else ("", "", "")
        if base in flat.unknowns and order and not order.strip("t"):
            return terms.unknown(base, len(order))
        raise
    if isinstance(found, tuple):
        return terms.unknown(*found)
    return terms.unknown(found) if found in flat.unknowns else terms.parameter(found)


def entries(flat: Flat, terms: Terms, given: Mapping) -> Iterator[tuple[int, Any]]:
    """(leaf, value) of a mapping from symbols, names or arrays of symbols to values or arrays of them."""
    if not isinstance(given, Mapping):
        raise TypeError(f"values by name must be a mapping such as {{x: 1.0}}, got {type(given).__name__}: {given!r}")
    for key, value in given.items():
        if not isinstance(key, np.ndarray):
            yield find(flat, terms, key), value
            continue
        value = np.asarray(value, object) if isinstance(value, (list, tuple)) else value
        shape = np.shape(value)
        if shape != key.shape and shape != ():
            raise ValueError(f"the value of an array of {key.shape} symbols must have that shape, got {shape}")
        values = apart(value) if shape else [value] * key.size
        for symbol, x in zip(key.reshape(-1), values, strict=True):
            yield find(flat, terms, symbol), x


class Entry(NamedTuple):
    """Entry i of a traced array, flattened: named rather than taken, so that one operation may take many."""

    array: Any
    i: int


def apart(array) -> list:
    """The entries of an array, in order."""
    if isinstance(array, Tracer):
        return [Entry(array, i) for i in range(array.size)]
    return list(np.reshape(np.asarray(array), -1))


def by_name(flat: Flat, terms: Terms, nodes: Sequence[int]) -> list[str]:
    """The nodes as the user wrote them, for messages."""
    symbols = {**flat.unknowns, **flat.parameters}
    return [str(to_sympy(terms, node, symbols, t)) for node in nodes]
