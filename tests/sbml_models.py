"""SBML documents for tests, written as text: elements of Level 3 from a few words, formulas as MathML by libsbml."""

import re

CORE3 = "http://www.sbml.org/sbml/level3/version{}/core"
MATHML = "http://www.w3.org/1998/Math/MathML"


def math(formula: str) -> str:
    """The MathML of a formula in libsbml's infix notation; XML is left as it is."""
    import libsbml

    if formula.startswith("<"):
        return formula
    text = libsbml.writeMathMLToString(libsbml.parseL3Formula(formula))
    return re.sub(r"<\?xml.*?\?>", "", text).strip()


def attributes(**given) -> str:
    shown = lambda x: str(x).lower() if isinstance(x, bool) else x
    return " ".join(f'{key}="{shown(value)}"' for key, value in given.items() if value is not None)


def compartment(id="C", size=1.0, constant=True, dimensions=3) -> str:
    return f"<compartment {attributes(id=id, size=size, spatialDimensions=dimensions, constant=constant)}/>"


def species(id, conc=None, amount=None, place="C", only=False, boundary=False, constant=False, factor=None) -> str:
    given = dict(id=id, compartment=place, initialConcentration=conc, initialAmount=amount)
    given |= dict(hasOnlySubstanceUnits=only, boundaryCondition=boundary, constant=constant, conversionFactor=factor)
    return f"<species {attributes(**given)}/>"


def parameter(id, value=None, constant=True, **more) -> str:
    return f"<parameter {attributes(id=id, value=value, constant=constant, **more)}/>"


def references(side: str, ids: dict) -> str:
    """References of "2 A + B"; `ids` names those whose stoichiometry has an id, {species: (id, constant)}."""
    out = ""
    for term in filter(None, map(str.strip, side.split("+"))):
        *count, name = term.split()
        id, constant = ids.get(name, (None, True))
        count = (count or ["1"])[0]
        given = dict(id=id, species=name, stoichiometry=None if count == "?" else count, constant=constant)
        out += f"<speciesReference {attributes(**given)}/>"
    return out


def reaction(id, equation, law, modifiers=(), local=None, ids=None, more='fast="false"') -> str:
    """A reaction "2 A + E -> B" with a kinetic law."""
    sides = [references(side, ids or {}) for side in equation.split("->")]
    named = ["listOfReactants", "listOfProducts"]
    lists = [f"<{n}>{x}</{n}>" for n, x in zip(named, sides, strict=True) if x]
    if modifiers:
        inner = "".join(f'<modifierSpeciesReference species="{m}"/>' for m in modifiers)
        lists.append(f"<listOfModifiers>{inner}</listOfModifiers>")
    if law is not None:
        own = "".join(f'<localParameter id="{k}" value="{v}"/>' for k, v in (local or {}).items())
        own = f"<listOfLocalParameters>{own}</listOfLocalParameters>" if own else ""
        lists.append(f"<kineticLaw>{math(law)}{own}</kineticLaw>")
    return f'<reaction id="{id}" reversible="false" {more}>{"".join(lists)}</reaction>'


def function(id, arguments: str, body: str) -> str:
    """A function definition; its lambda by hand around the body's MathML."""
    inner = re.sub(r"</?math.*?>", "", math(body))
    bound = "".join(f"<bvar><ci>{a}</ci></bvar>" for a in arguments.split())
    tree = f'<math xmlns="{MATHML}"><lambda>{bound}{inner}</lambda></math>'
    return f'<functionDefinition id="{id}">{tree}</functionDefinition>'


def initial(symbol, formula) -> str:
    return f'<initialAssignment symbol="{symbol}">{math(formula)}</initialAssignment>'


def assignment(variable, formula) -> str:
    return f'<assignmentRule variable="{variable}">{math(formula)}</assignmentRule>'


def rate(variable, formula) -> str:
    return f'<rateRule variable="{variable}">{math(formula)}</rateRule>'


def algebraic(formula, id="rule") -> str:
    return f'<algebraicRule metaid="{id}">{math(formula)}</algebraicRule>'


def event(id, trigger, affect: dict, was=True, at_trigger=True, priority=None, delay=None) -> str:
    given = attributes(id=id, useValuesFromTriggerTime=at_trigger)
    inner = f'<trigger initialValue="{str(was).lower()}" persistent="true">{math(trigger)}</trigger>'
    inner += "" if priority is None else f"<priority>{math(priority)}</priority>"
    inner += "" if delay is None else f"<delay>{math(delay)}</delay>"
    each = "".join(f'<eventAssignment variable="{k}">{math(v)}</eventAssignment>' for k, v in affect.items())
    return f"<event {given}>{inner}<listOfEventAssignments>{each}</listOfEventAssignments></event>"


LISTS = {  # in the order that SBML wants
    "functionDefinition": "listOfFunctionDefinitions",
    "unitDefinition": "listOfUnitDefinitions",
    "compartment": "listOfCompartments",
    "species": "listOfSpecies",
    "parameter": "listOfParameters",
    "initialAssignment": "listOfInitialAssignments",
    "Rule": "listOfRules",
    "constraint": "listOfConstraints",
    "reaction": "listOfReactions",
    "event": "listOfEvents",
}


def document(*elements: str, id="model", version=1, more="", root="") -> str:
    """A document of Level 3 of elements in any order."""
    kind = lambda x: re.match(r"<(\w+)", x).group(1)  # pyright: ignore[reportOptionalMemberAccess]
    of = {
        name: [x for x in elements if kind(x) == name or (name == "Rule" and kind(x).endswith("Rule"))]
        for name in LISTS
    }
    body = "".join(f"<{LISTS[name]}>{''.join(found)}</{LISTS[name]}>" for name, found in of.items() if found)
    head = f'<sbml xmlns="{CORE3.format(version)}" level="3" version="{version}" {root}>'
    return f'<?xml version="1.0" encoding="UTF-8"?>{head}<model id="{id}" {more}>{body}</model></sbml>'
