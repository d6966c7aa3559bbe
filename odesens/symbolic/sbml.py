"""Models in SBML as systems of equations.

Owns: `from_sbml`, what the elements of a document mean together: which quantities are unknowns and which parameters,
their equations, their values. Must not know: libsbml, MathML, how events are located.

Source: M. Hucka et al., The Systems Biology Markup Language (SBML): Language Specification for Level 3 Version 2 Core,
J. Integr. Bioinform. 16 (2019).
"""

import os
import warnings
from collections.abc import Iterator
from typing import Any

import sympy as sp

from . import structure
from .sbml_events import Change, events, switch
from .sbml_math import Ident, RateOf
from .sbml_read import Document, Quantity, free_name, read
from .symbols import D, Parameter, Unknown, t
from .system import System


def from_sbml(source: str | bytes | os.PathLike, *, name: str | None = None) -> System:
    """The model of an SBML document, Level 2 or 3, as a `System`.

    Symbols have the ids of the document: `model.S1`, or `model["lambda"]` for names that are odd in Python; an id t
    becomes t_, the local parameter k of a reaction J becomes J_k. The name of a species means its concentration, or its
    amount where it has `hasOnlySubstanceUnits`; that of a reaction its rate. Values of the document are defaults, so
    that `ODEProblem(model, {}, (0, 100))` needs nothing more. Quantities that nothing changes, or only events, are
    parameters; those of compartments, of species and of stoichiometries are not `tunable`. Names and units of the
    document are `description` and `unit` of the symbols. Where the size of a compartment changes, the states are the
    amounts of its species S, called S_amount.

    Read are compartments, species, parameters, function definitions, initial assignments, rules of all kinds,
    reactions with conversion factors and variable stoichiometries, and events. Events happen where their trigger
    becomes true, those with `initialValue="false"` at t = 0 too; one that makes the trigger of another true is followed
    by that one at once.

    Parameters
    ----------
    source : str, bytes or path
        A path, or the XML itself.
    name : str, optional
        Of the system; by default the id of the model.

    Returns
    -------
    System

    Warns
    -----
    UserWarning
        For constraints, which are not watched, and for algebraic rules that leave a choice of what they determine.

    Raises
    ------
    ImportError
        Without python-libsbml, `pip install 'odesens[sbml]'`.
    FileNotFoundError
        Where there is no such file.
    NotImplementedError
        For what is not supported, naming the element: Level 1, required packages (`comp`, say), fast reactions,
        delays, priorities that are no numbers.
    ValueError
        For invalid documents, with what libsbml says, reactions without a rate, algebraic rules that determine nothing.

    Examples
    --------
    >>> import libsbml  # python-libsbml
    >>> import odesens as ode
    >>> from odesens.symbolic import from_sbml
    >>> law = libsbml.writeMathMLToString(libsbml.parseL3Formula("-k * x")).partition("?>")[2]
    >>> model = from_sbml(
    ...     '<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core" level="3" version="1"><model id="decay">'
    ...     '<listOfParameters><parameter id="k" value="2" constant="true"/>'
    ...     '<parameter id="x" value="1" constant="false"/></listOfParameters>'
    ...     f'<listOfRules><rateRule variable="x">{law}</rateRule></listOfRules></model></sbml>'
    ... )
    >>> model
    System decay: 1 equation, 1 unknown, 1 parameter
    >>> sol = ode.solve(ode.ODEProblem(model, {}, (0.0, 1.0)), p={"k": 1.0}, saveat=[1.0], reltol=1e-8)
    >>> print(f"{sol[model.x][0]:.5f}")  # exp(-1)
    0.36788
    """
    return _Building(read(source)).system(name)


class _Building:
    """One document on its way to a system."""

    def __init__(self, document: Document):
        self.document = document
        self.quantities = document.quantities
        self.changed = {name for event in document.events for name in event.affect}
        self.ruled = document.assignments.keys() | document.rates.keys()
        self.reacting = self._reacting()
        self.solved_for = self._solved_for()
        self.symbols: dict[str, Any] = {}
        self.amounts: dict[str, Any] = {}  # of species in compartments that change their size
        self.defaults: dict[Any, Any] = {}
        self.equations: list[tuple[Any, Any]] = []
        self.explicit: dict[Any, Any] = {}  # unknowns that are equal to an expression
        self._make_symbols()
        self.meaning: dict[Any, Any] = {Ident(name): symbol for name, symbol in self.symbols.items()}
        order = {"compartment": 0, "parameter": 1, "stoichiometry": 1, "species": 2}
        for quantity in sorted(self.quantities.values(), key=lambda q: order[q.kind]):
            self._determine(quantity)
        for reaction in document.reactions:
            self._equal(self.symbols[reaction.id], self.translated(reaction.rate))
        for _, expr in document.algebraic:
            self.equations.append((sp.S.Zero, self.translated(expr)))
        self._leave_unset()

    def system(self, name: str | None) -> System:
        changes = [
            Change(x.title, self.translated(x.trigger), x.was, self._affect(x.affect), x.priority, x.at_trigger)
            for x in self.document.events
        ]
        return System(
            self.equations,
            t,
            symbols=[*self.symbols.values(), *self.amounts.values()],
            defaults=self.defaults,
            guesses={self.symbols[x]: 1.0 for x in self.solved_for if self.symbols[x] not in self.defaults},
            events=events(changes, self.explicit, self.defaults),
            discontinuities=self._switches({x for change in changes for x in change.affect}),
            name=self.document.id if name is None else name,
        )

    def _switches(self, variable: set) -> list:
        """The times at which a piecewise expression of time changes, as far as they are known beforehand."""
        pieces = {x for _, expr in self.equations for x in sp.sympify(expr).atoms(sp.Piecewise)}
        relations = {r for x in pieces for _, condition in x.args for r in condition.atoms(sp.Rel)}
        times = {switch(r, variable)[0] for r in relations} - {None}
        return sorted(times, key=sp.default_sort_key)

    # ------------------------------------------------------------ which quantity is what

    def _reacting(self) -> dict[str, list[tuple[str, sp.Expr]]]:
        """(reaction, stoichiometry) of the species that reactions change."""
        found: dict[str, list] = {}
        for reaction in self.document.reactions:
            for species, count in reaction.changes:
                quantity = self.quantities[species]
                if not quantity.boundary and not quantity.constant and species not in self.ruled:
                    found.setdefault(species, []).append((reaction.id, count))
        return found

    def _solved_for(self) -> set[str]:
        """The quantities that the algebraic rules determine: those that may change and that nothing else does."""
        rules = self.document.algebraic
        mentioned = [self._mentioned(expr) for _, expr in rules]
        fixed = self.ruled | self.reacting.keys() | self.changed
        free = [q for q in self.quantities.values() if not q.constant and q.id not in fixed]
        free = [q.id for q in free if any(q.id in names for names in mentioned)]
        rows = [[j for j, name in enumerate(free) if name in names] for names in mentioned]
        unset = [self.quantities[x].value is None and x not in self.document.initial for x in free]
        match = structure.matching(rows, len(free), [float(x) for x in unset])
        for (title, expr), names, j in zip(rules, mentioned, match, strict=True):
            if j < 0:
                raise ValueError(
                    f"{title}, 0 = {expr}, determines nothing: all of {', '.join(sorted(names)) or 'it'} is constant, "
                    "or determined by reactions, other rules or events"
                )
        chosen = {free[j] for j in match}
        if len(chosen) < len(free):
            warnings.warn(
                f"{', '.join(title for title, _ in rules)} may determine any of {', '.join(free)}; taken is "
                f"{', '.join(sorted(chosen))}, the others are constant",
                UserWarning,
                stacklevel=5,
            )
        return chosen

    def _mentioned(self, expr) -> set[str]:
        """The names in an expression, and in the assignment rules of these."""
        found: set[str] = set()
        pending = [expr]
        while pending:
            for symbol in pending.pop().atoms(Ident):
                if symbol.name not in found:
                    found.add(symbol.name)
                    pending += [self.document.assignments[x] for x in (symbol.name,) if x in self.document.assignments]
        return found

    def _varies(self, compartment: str) -> bool:
        return compartment in self.ruled or compartment in self.changed or compartment in self.solved_for

    def _has_amount(self, q: Quantity) -> bool:
        """Whether a species is an amount divided by a size that changes."""
        apart = q.id in self.ruled or q.id in self.solved_for
        return q.kind == "species" and not q.is_amount and not apart and self._varies(q.compartment)

    def _is_unknown(self, q: Quantity) -> bool:
        if q.id in self.ruled or q.id in self.solved_for or self._has_amount(q):
            return True
        return q.kind == "species" and (q.id in self.reacting or q.id in self.changed)

    def _make_symbols(self) -> None:
        taken = {*self.quantities, *(x.id for x in self.document.reactions)}
        for q in self.quantities.values():
            own = free_name("t_", taken) if q.id == "t" else q.id
            said = dict(unit=q.unit, description=q.name)
            made = Unknown(own, **said) if self._is_unknown(q) else Parameter(own, tunable=q.tunable, **said)
            self.symbols[q.id] = made
            if self._has_amount(q):
                apart, moves = free_name(f"{own}_amount", taken), q.id in self.reacting or q.id in self.changed
                taken.add(apart)
                self.amounts[q.id] = Unknown(apart) if moves else Parameter(apart, tunable=False)
        for x in self.document.reactions:
            own = free_name("t_", taken) if x.id == "t" else x.id
            self.symbols[x.id] = Unknown(own, unit=x.unit, description=x.name)

    # ------------------------------------------------------------ equations and values

    def translated(self, expr) -> Any:
        """An expression of the document in symbols."""
        for call in expr.atoms(RateOf):
            symbol = self.meaning[call.args[0]]
            self.meaning[call] = D(symbol) if isinstance(symbol, Unknown) else sp.S.Zero
        return expr.xreplace(self.meaning)

    def _equal(self, unknown, expr) -> None:
        self.equations.append((unknown, expr))
        self.explicit[unknown] = expr

    def _determine(self, q: Quantity) -> None:
        """The equation of a quantity, where it has one, and its value at the start."""
        symbol, value = self.symbols[q.id], self._value(q)
        if q.id in self.document.assignments:
            self._equal(symbol, self.translated(self.document.assignments[q.id]))
            return
        if q.id in self.document.rates:
            self.equations.append((D(symbol), self.translated(self.document.rates[q.id])))
        elif q.id in self.amounts:
            amount, size = self.amounts[q.id], self.symbols[q.compartment]
            self._equal(symbol, amount / size)
            symbol, value = amount, None if value is None else value * size
            if isinstance(amount, Unknown):
                self.equations.append((D(amount), self._production(q)))
        elif isinstance(symbol, Unknown) and q.id not in self.solved_for:
            size = 1 if q.is_amount else self.symbols[q.compartment]
            self.equations.append((D(symbol), self._production(q) / size))
        if value is not None:
            self.defaults[symbol] = value

    def _leave_unset(self) -> None:
        """Compartments without a size that nothing reads, as of species that are amounts, need none."""
        read = {
            x for pair in [*self.equations, *self.defaults.items()] for e in pair for x in sp.sympify(e).free_symbols
        }
        for event in self.document.events:
            read |= {self.symbols[x.name] for e in (event.trigger, *event.affect.values()) for x in e.atoms(Ident)}
        for q in self.quantities.values():
            if q.kind == "compartment" and self.symbols[q.id] not in {*read, *self.defaults}:
                self.defaults[self.symbols[q.id]] = float("nan")

    def _production(self, q: Quantity) -> Any:
        """The amount per time that all reactions make of a species."""
        terms = [self.translated(count) * self.symbols[reaction] for reaction, count in self.reacting.get(q.id, ())]
        return sp.Add(*terms) * (self.symbols[q.factor] if q.factor else 1)

    def _value(self, q: Quantity) -> Any:
        """The value at the start, in what the name means; None where the document has none."""
        if q.id in self.document.initial:
            return self.translated(self.document.initial[q.id])
        if q.value is None or q.kind != "species" or q.of_amount == q.is_amount:
            return q.value
        size = self.symbols[q.compartment]
        return q.value / size if q.of_amount else q.value * size

    # ------------------------------------------------------------ events

    def _affect(self, given: dict[str, sp.Expr]) -> dict[Any, Any]:
        """The assignments of an event to states and parameters; sizes that change leave amounts as they are."""
        values = {name: self.translated(expr) for name, expr in given.items()}
        affect = {}
        for name, value in values.items():
            if name in self.amounts:
                place = self.quantities[name].compartment
                affect[self.amounts[name]] = value * values.get(place, self.symbols[place])
            else:
                affect[self.symbols[name]] = value
        for q in self._concentrations(values):
            size = self.symbols[q.compartment]
            affect[self.symbols[q.id]] = self.symbols[q.id] * size / values[q.compartment]
        return affect

    def _concentrations(self, values) -> Iterator[Quantity]:
        """The species in compartments that are resized whose state is a concentration."""
        for q in self.quantities.values():
            if q.kind == "species" and q.compartment in values and q.id not in values:
                if q.id in self.document.rates and not q.is_amount:
                    yield q
