"""SBML documents as plain data, read by libsbml.

Owns: opening and checking a document, what of it is supported, its elements as data whose expressions are in `Ident`s.
Must not know: what the elements mean together, systems. libsbml is imported when a document is read.
"""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import sympy as sp
from sympy.logic.boolalg import Boolean

from .sbml_math import Ident, MathReader, real

SHOWN = 5  # messages of libsbml
PURE_MATH = "l3v2extendedmath"  # a package that only adds operators, which are read


@dataclass
class Quantity:
    """A compartment, a species, a parameter, or the stoichiometry of a species reference.

    value : its number, None where the document has none
    of_amount : of a species: whether that number is an amount
    compartment : of a species: its id
    is_amount : of a species: whether its name means an amount in expressions, else a concentration
    boundary : of a species: whether reactions leave it alone
    factor : of a species: the id of its conversion factor
    tunable : whether it is a parameter to be fitted
    """

    id: str
    kind: str
    value: float | None
    constant: bool
    name: str = ""
    unit: str | None = None
    of_amount: bool = False
    compartment: str = ""
    is_amount: bool = False
    boundary: bool = False
    factor: str = ""
    tunable: bool = False


class Reaction(NamedTuple):
    """The rate, in extent per time, and (species, stoichiometry) of reactants, negative, and products."""

    id: str
    name: str
    unit: str | None
    rate: sp.Expr
    changes: tuple[tuple[str, sp.Expr], ...]


class Event(NamedTuple):
    """What happens when the trigger becomes true; `was` is what it counts as before the start."""

    title: str
    trigger: Boolean
    was: bool
    affect: dict[str, sp.Expr]
    priority: float | None
    at_trigger: bool


@dataclass
class Document:
    """All of a model, in the order of the document; expressions hold `Ident`s, `RateOf`s and `t`."""

    id: str
    quantities: dict[str, Quantity] = field(default_factory=dict)
    reactions: list[Reaction] = field(default_factory=list)
    initial: dict[str, sp.Expr] = field(default_factory=dict)
    assignments: dict[str, sp.Expr] = field(default_factory=dict)
    rates: dict[str, sp.Expr] = field(default_factory=dict)
    algebraic: list[tuple[str, sp.Expr]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def read(source) -> Document:
    """The document at a path, or in a string of XML.

    Raises
    ------
    ImportError, FileNotFoundError, ValueError, NotImplementedError
        See `from_sbml`.
    """
    try:
        import libsbml
    except ImportError:
        raise ImportError("from_sbml needs python-libsbml: pip install 'odesens[sbml]'") from None
    document, where = _opened(libsbml, source)
    _check_messages(libsbml, document, where)
    if document.getLevel() < 2:
        raise NotImplementedError(f"{where} is SBML Level 1; Levels 2 and 3 are read: convert it, e.g. by libsbml")
    _check_packages(document, where)
    document.setConsistencyChecks(libsbml.LIBSBML_CAT_UNITS_CONSISTENCY, False)
    document.setConsistencyChecks(libsbml.LIBSBML_CAT_SBO_CONSISTENCY, False)
    document.setConsistencyChecks(libsbml.LIBSBML_CAT_MODELING_PRACTICE, False)
    document.setConsistencyChecks(libsbml.LIBSBML_CAT_OVERDETERMINED_MODEL, False)  # found when rules are matched
    document.checkConsistency()
    _check_messages(libsbml, document, where)
    if document.getModel() is None:
        raise ValueError(f"{where} has no model")
    return _Reading(libsbml, document.getModel()).document


def _opened(libsbml: ModuleType, source) -> tuple[Any, str]:
    if isinstance(source, (bytes, bytearray)):
        source = bytes(source).decode()
    if isinstance(source, str) and "<" in source:
        return libsbml.readSBMLFromString(source.lstrip()), "the SBML string"
    try:
        path = os.fspath(source)
    except TypeError:
        raise TypeError(f"from_sbml takes a path or a string of XML, got {type(source).__name__}") from None
    if not os.path.isfile(path):
        raise FileNotFoundError(f"from_sbml: there is no file {path}; give a path, or the XML itself as a string")
    return libsbml.readSBMLFromFile(path), os.path.basename(path)


def _check_messages(libsbml: ModuleType, document, where: str) -> None:
    found = [document.getError(i) for i in range(document.getNumErrors())]
    harmless = (libsbml.MissingXMLDecl, libsbml.MissingXMLEncoding)  # UTF-8 then
    found = [e for e in found if e.getSeverity() >= libsbml.LIBSBML_SEV_ERROR and e.getErrorId() not in harmless]
    if not found:
        return
    said = [f"line {e.getLine()}: {' '.join(e.getMessage().split())}" for e in found[:SHOWN]]
    more = f"\n  .. and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise ValueError(f"{where} is not valid SBML; libsbml says\n  " + "\n  ".join(said) + more)


def _check_packages(document, where: str) -> None:
    if document.getLevel() < 3:  # there they are annotations
        return
    for name in (document.getPlugin(i).getPackageName() for i in range(document.getNumPlugins())):
        if name != PURE_MATH and document.getPackageRequired(name):
            hint = ": flatten it first, e.g. by libsbml's converter 'flatten comp'" if name == "comp" else ""
            raise NotImplementedError(f"{where} requires the SBML package {name}, which is not supported{hint}")


def _list(elements) -> Iterator[Any]:
    return (elements.get(i) for i in range(elements.size()))


class _Reading:
    """One model on its way to a `Document`."""

    def __init__(self, libsbml: ModuleType, model):
        self.libsbml, self.model = libsbml, model
        functions = {f.getId(): f.getMath() for f in _list(model.getListOfFunctionDefinitions()) if f.isSetMath()}
        self.math = MathReader(libsbml, functions)
        self.document = Document(model.getId())
        self._quantities()
        self._reactions()
        self._rules()
        self._events()
        self._constraints()

    def unit(self, element) -> str | None:
        derived = element.getDerivedUnitDefinition()
        if derived is None or not derived.getNumUnits() or element.containsUndeclaredUnits():
            return None
        return _unit(self.libsbml, derived)

    def _add(self, element, kind: str, value: float | None, **more) -> None:
        name, constant = element.getName(), element.getConstant()
        made = Quantity(element.getId(), kind, value, constant, name, self.unit(element), **more)
        self.document.quantities[made.id] = made

    def _quantities(self) -> None:
        points = set()
        for c in _list(self.model.getListOfCompartments()):
            if c.getSpatialDimensionsAsDouble() == 0:
                points.add(c.getId())
            self._add(c, "compartment", c.getSize() if c.isSetSize() else None)
        for s in _list(self.model.getListOfSpecies()):
            of_amount = s.isSetInitialAmount()
            is_set = of_amount or s.isSetInitialConcentration()
            self._add(
                s,
                "species",
                (s.getInitialAmount() if of_amount else s.getInitialConcentration()) if is_set else None,
                of_amount=of_amount,
                compartment=s.getCompartment(),
                is_amount=s.getHasOnlySubstanceUnits() or s.getCompartment() in points,
                boundary=s.getBoundaryCondition(),
                factor=s.getConversionFactor() or self.model.getConversionFactor(),
            )
        for p in _list(self.model.getListOfParameters()):
            self._add(p, "parameter", p.getValue() if p.isSetValue() else None, tunable=True)

    # ------------------------------------------------------------ reactions

    def _reactions(self) -> None:
        taken = {x.getId() for x in _list(self.model.getListOfReactions())} | set(self.document.quantities)
        for reaction in _list(self.model.getListOfReactions()):
            title = f"reaction {reaction.getId()}"
            if reaction.isSetFast() and reaction.getFast():
                raise NotImplementedError(f"{title} is fast, which is not supported: give it a finite rate")
            law = reaction.getKineticLaw()
            if law is None or not law.isSetMath():
                raise ValueError(f"{title} has no kinetic law, so its rate is not known")
            names = self._local_parameters(reaction.getId(), law, taken)
            rate = self.math.expression(law.getMath(), f"the kinetic law of {title}", names)
            sides = ((-1, reaction.getListOfReactants()), (1, reaction.getListOfProducts()))
            changes = tuple(
                (x.getSpecies(), sign * self._stoichiometry(x, title)) for sign, side in sides for x in _list(side)
            )
            made = Reaction(reaction.getId(), reaction.getName(), self.unit(law), rate, changes)
            self.document.reactions.append(made)

    def _local_parameters(self, reaction: str, law, taken: set[str]) -> dict[str, Ident]:
        """What the names of local parameters stand for: quantities J_k of reaction J."""
        names = {}
        local = law.getListOfLocalParameters() if law.getLevel() > 2 else law.getListOfParameters()
        for p in _list(local):
            name = free_name(f"{reaction}_{p.getId()}", taken)
            taken.add(name)
            names[p.getId()] = Ident(name)
            value = p.getValue() if p.isSetValue() else None
            made = Quantity(name, "parameter", value, True, p.getName(), self.unit(p), tunable=True)
            self.document.quantities[name] = made
        return names

    def _stoichiometry(self, reference, title: str) -> sp.Expr:
        """A number, an expression, or the name of a reference, which rules and events may change."""
        if reference.getLevel() == 2:
            math = reference.getStoichiometryMath()
            if math is not None and math.isSetMath():
                return self.math.expression(math.getMath(), f"a stoichiometry of {title}")
            return real(reference.getStoichiometry()) / sp.Integer(reference.getDenominator())
        value = reference.getStoichiometry() if reference.isSetStoichiometry() else None
        if not reference.getId():
            if value is None:
                raise ValueError(f"{title}: the stoichiometry of {reference.getSpecies()} is not given")
            return real(value)
        made = Quantity(reference.getId(), "stoichiometry", value, reference.getConstant(), reference.getName())
        self.document.quantities[made.id] = made
        return Ident(made.id)

    # ------------------------------------------------------------ rules, events

    def _rules(self) -> None:
        document, expression = self.document, self.math.expression
        for x in _list(self.model.getListOfInitialAssignments()):
            if x.isSetMath():
                document.initial[x.getSymbol()] = expression(x.getMath(), f"the initial assignment of {x.getSymbol()}")
        for number, rule in enumerate(_list(self.model.getListOfRules()), 1):
            if not rule.isSetMath():
                continue
            name = rule.getVariable()
            if rule.isAlgebraic():
                title = f"the algebraic rule {rule.getMetaId() or f'(rule {number})'}"
                document.algebraic.append((title, expression(rule.getMath(), title)))
            elif rule.isAssignment():
                document.assignments[name] = expression(rule.getMath(), f"the assignment rule of {name}")
            else:
                document.rates[name] = expression(rule.getMath(), f"the rate rule of {name}")

    def _events(self) -> None:
        for number, event in enumerate(_list(self.model.getListOfEvents()), 1):
            title = f"event {event.getId() or f'(number {number})'}"
            trigger = event.getTrigger()
            if trigger is None or not trigger.isSetMath():
                continue  # it never happens
            if event.isSetDelay() and event.getDelay().isSetMath():
                delay = self.math.expression(event.getDelay().getMath(), f"the delay of {title}")
                if delay != 0:
                    raise NotImplementedError(f"{title} has a delay, which is not supported; 0 is")
            priority = None
            if event.isSetPriority() and event.getPriority().isSetMath():
                value = self.math.expression(event.getPriority().getMath(), f"the priority of {title}")
                if not value.is_Number:
                    raise NotImplementedError(f"the priority of {title} is {value}: only numbers are supported")
                priority = float(value)
            affect = {
                x.getVariable(): self.math.expression(x.getMath(), f"the assignment to {x.getVariable()} of {title}")
                for x in _list(event.getListOfEventAssignments())
                if x.isSetMath()
            }
            when = self.math.condition(trigger.getMath(), f"the trigger of {title}")
            was = trigger.getInitialValue() if event.getLevel() > 2 else True
            at_trigger = event.getUseValuesFromTriggerTime()
            self.document.events.append(Event(title, when, was, affect, priority, at_trigger))

    def _constraints(self) -> None:
        constraints = list(_list(self.model.getListOfConstraints()))
        if constraints:
            shown = [x.getId() or x.getMetaId() or f"number {i}" for i, x in enumerate(constraints, 1)]
            warnings.warn(
                f"the model's constraints are not watched: {', '.join(shown)}; look at the solution",
                UserWarning,
                stacklevel=5,
            )


def free_name(name: str, taken) -> str:
    """The name, with underscores after it where it is taken."""
    while name in taken:
        name += "_"
    return name


def _unit(libsbml: ModuleType, definition) -> str:
    """A unit definition as text, such as "mole litre^-1 (60 second)^-1"."""
    parts = []
    for unit in (definition.getUnit(i) for i in range(definition.getNumUnits())):
        factor = unit.getMultiplier() * 10.0 ** unit.getScale()
        name = libsbml.UnitKind_toString(unit.getKind())
        name = name if factor == 1 else f"({factor:g} {name})"
        exponent = unit.getExponentAsDouble()
        parts.append(name if exponent == 1 else f"{name}^{exponent:g}")
    return " ".join(parts)
