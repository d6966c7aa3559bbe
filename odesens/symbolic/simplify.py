"""From the equations of a system to states, their rates, algebraic equations and observed values.

Owns: `simplify`, elimination of aliases and constants, order lowering, index reduction, tearing, on the graph of
expressions. Must not know: SymPy's expressions but at the door, JAX, initial values.

Sources: C. C. Pantelides, SIAM J. Sci. Stat. Comput. 9 (1988); J. D. Pryce, BIT 41 (2001), whose offsets say how often
an equation is differentiated; S. E. Mattsson, G. Soederlind, SIAM J. Sci. Comput. 14 (1993): dummy derivatives;
J. Baumgarte, Comput. Methods Appl. Mech. Eng. 1 (1972): stabilization.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from . import structure
from .exchange import from_sympy, to_sympy
from .flat import Flat
from .model import SimplifiedSystem, entries, unknown_leaves
from .symbols import Unknown, t
from .system import System
from .tearing import Tearing, tear
from .terms import Terms

LARGEST_GROWTH = 1e4  # of errors, within a block that is solved in sequence
LARGEST_SOLVED = 50  # equations of a block with one unknown left, up to which that is solved for symbolically


class StructureError(ValueError):
    """A system whose equations do not determine its unknowns: it names both.

    Examples
    --------
    >>> from odesens.symbolic import D, StructureError, System, simplify, t, unknowns
    >>> x, y = unknowns("x y")
    >>> try:
    ...     simplify(System([(D(x), y)], t))  # nothing determines y
    ... except StructureError as error:
    ...     print("y" in str(error))
    True
    """


class Text(NamedTuple):
    """An equation as the user wrote it; SymPy takes long to write, so only what is shown is written."""

    lhs: Any
    rhs: Any

    def __str__(self) -> str:
        return f"{self.lhs} = {self.rhs}"


class Reduced(NamedTuple):
    """A square set of equations for the unknown leaves, given the differential states.

    constraints : equations that hold beside these, at all times if at the first
    """

    equations: list[int]
    unknowns: list[int]
    states: list[int]
    constraints: list[int]


def simplify(
    system: System | SimplifiedSystem, *, stabilization: float | None = None, at: Mapping | None = None
) -> SimplifiedSystem:
    """The system as M du/dt = f(t, u, p) with as few unknowns as follow from its structure.

    Aliases (x = y, x = -y) and constants are eliminated, derivatives of higher order become states (`x_t`), equations
    are matched with unknowns and ordered; what can be solved for explicitly becomes observed, what cannot stays as an
    algebraic equation. Where the equations constrain states (index above 1) they are differentiated.

    Parameters
    ----------
    system : System
    stabilization : float, optional
        A rate r > 0. Instead of choosing dummy derivatives, all states are kept, and a constraint g that was
        differentiated k times becomes (d/dt + r)^k g = 0, whose solutions return to the constraint (Baumgarte). No
        choice of states that could become singular on the way is made; the constraint holds within the tolerances.
    at : mapping, optional
        Values of unknowns and parameters, besides defaults and guesses, at which dummy derivatives are chosen so that
        the rest is well determined.

    Returns
    -------
    SimplifiedSystem

    Raises
    ------
    StructureError
        For equations that do not determine the unknowns, or that hold no unknown; it names them.
    TypeError, ValueError
        Where `system` is none, or `stabilization` is not a rate > 0.

    Notes
    -----
    Sources: C. C. Pantelides, SIAM J. Sci. Stat. Comput. 9 (1988); S. E. Mattsson, G. Soederlind, SIAM J. Sci. Comput.
    14 (1993): dummy derivatives; J. Baumgarte, Comput. Methods Appl. Mech. Eng. 1 (1972): stabilization.

    Examples
    --------
    >>> from odesens.symbolic import D, System, simplify, t, unknowns
    >>> x, y = unknowns("x y")
    >>> simplify(System([(D(x), -y), (y, 2 * x)], t)).observed
    [Eq(y, 2*x)]
    """
    if isinstance(system, SimplifiedSystem):
        return system
    if not isinstance(system, System):
        raise TypeError(f"simplify needs a System, got {type(system).__name__}")
    if stabilization is not None and not (isinstance(stabilization, (int, float)) and stabilization > 0):
        raise ValueError(f"stabilization must be a rate > 0, got {stabilization!r}")
    flat = system.flatten()
    terms, memory = Terms(), {}
    node = lambda e: from_sympy(terms, e, t, memory)
    pairs = [*flat.equations, *flat.observed]
    texts = [Text(*pair) for pair in pairs]
    equations = [terms.sub(node(a), node(b)) for a, b in pairs]
    changing = [(terms.parameter(name), terms.unknown(name)) for name in _changed_parameters(flat)]
    equations = terms.substitute(equations, dict(changing)) + [terms.unknown(terms.nodes[y][1], 1) for _, y in changing]
    texts += [Text(f"D({terms.nodes[y][1]})", 0) for _, y in changing]
    unknowns = {**flat.unknowns, **{terms.nodes[y][1]: Unknown(terms.nodes[y][1]) for _, y in changing}}
    eliminated, kept = _eliminate(terms, equations, texts, unknowns)
    names = [name for name in unknowns if name not in eliminated]
    equations, texts = [equations[i] for i in kept], [texts[i] for i in kept]
    numbers = _known_values(terms, flat, at)
    reduced = _reduce(terms, equations, texts, names, unknowns, stabilization, numbers)
    algebraic, residuals, explicit = solve_blocks(terms, reduced)
    definitions = [*explicit, *((terms.unknown(name), eliminated[name]) for name in reversed(list(eliminated)))]
    return SimplifiedSystem(
        system,
        flat,
        terms,
        memory,
        tuple(reduced.states),
        tuple(algebraic),
        tuple(residuals),
        tuple(definitions),
        tuple(reduced.constraints),
        tuple(changing),
    )


def _changed_parameters(flat: Flat) -> list[str]:
    """The parameters that events change: states whose rate is zero."""
    names = (getattr(symbol, "name", None) for event in flat.events for symbol in event.affect)
    return [name for name in dict.fromkeys(names) if name in flat.parameters]


# ---------------------------------------------------------------- aliases, constants


def _eliminate(
    terms: Terms, equations: list[int], texts: list[Text], unknowns: Mapping
) -> tuple[dict[str, int], list[int]]:
    """What aliases and constants are equal to, by name in the order of elimination, and which equations are left.

    `equations` are rewritten in place.
    """
    index = {name: i for i, name in enumerate(unknowns)}
    holding: dict[str, set[int]] = {name: set() for name in unknowns}
    orders: Counter[str] = Counter()
    for i, e in enumerate(equations):
        for leaf in unknown_leaves(terms, e):
            _, name, order = terms.nodes[leaf]
            holding[name].add(i)
            orders[name] = max(orders[name], order)
    eliminated: dict[str, int] = {}
    left = dict.fromkeys(range(len(equations)))
    pending = list(left)[::-1]
    rank = lambda name: (unknowns[name].state_priority, orders[name], -index[name])
    while pending:
        i = pending.pop()
        if i not in left:
            continue
        found = _trivial(terms, equations[i], rank)
        if found is None:
            continue
        del left[i]
        if not found:
            _check_empty(terms, equations[i], texts[i])
            continue
        name, value = found
        eliminated[name] = value
        for j in sorted(holding[name]):
            if j in left:
                leaves = [x for x in unknown_leaves(terms, equations[j]) if terms.nodes[x][1] == name]
                exchange = {x: _derivative(terms, value, terms.nodes[x][2]) for x in leaves}
                equations[j] = terms.substitute([equations[j]], exchange)[0]
                for leaf in unknown_leaves(terms, equations[j]):
                    holding[terms.nodes[leaf][1]].add(j)
                    orders[terms.nodes[leaf][1]] = max(orders[terms.nodes[leaf][1]], terms.nodes[leaf][2])
                pending.append(j)
    return eliminated, list(left)


def _derivative(terms: Terms, node: int, order: int) -> int:
    for _ in range(order):
        node = terms.time_derivative(node)
    return node


def _trivial(terms: Terms, e: int, rank) -> tuple | None:
    """(name, value) of an unknown that the equation e = 0 makes an alias or a constant; () if it holds no unknown."""
    leaves = terms.leaves(e)
    if len(leaves) > 8:  # the usual case, quickly
        return None
    unknowns = unknown_leaves(terms, e)
    if not unknowns:
        return ()
    if any(terms.nodes[x][2] for x in unknowns) or len(unknowns) > 2:
        return None
    if len(unknowns) == 1:
        (x,) = unknowns
        parts = terms.linear(e, x)
        if parts is None or not terms.value(parts[0]) or any(terms.nodes[k][0] == "time" for k in leaves):
            return None
        return terms.nodes[x][1], terms.mul([(parts[1], 1)], _divided(-1, terms.value(parts[0])))
    kind = terms.nodes[e]
    if kind[0] != "add" or kind[1] != 0 or {n for n, _ in kind[2]} != set(unknowns) or len(leaves) != 2:
        return None
    (x, a), (y, b) = sorted(kind[2], key=lambda pair: rank(terms.nodes[pair[0]][1]))
    if a not in (b, -b):
        return None
    return terms.nodes[x][1], terms.add([(y, -1 if a == b else 1)])


def _divided(a, b):
    return Fraction(a) / b if isinstance(b, (int, Fraction)) else a / b


def _check_empty(terms: Terms, e: int, text: Text) -> None:
    value = terms.value(e)
    if value == 0:
        return
    if value is not None:
        raise StructureError(f"the equation {text} contradicts the others: with them it says {value} = 0")
    raise StructureError(
        f"the equation {text} has no unknown in it: give a relation between parameters as their defaults, or, where it "
        "determines a parameter at t0, in initial="
    )


# ---------------------------------------------------------------- index reduction


def _known_values(terms: Terms, flat: Flat, at: Mapping | None) -> dict[int, Any]:
    """Numbers of leaves, as far as they are known before a problem is made."""
    values: dict[int, Any] = {}
    own = [
        {leaf: value for leaf, value in entries(flat, terms, given)}
        for given in (flat.guesses, flat.defaults, at or {})
    ]
    for given in own:
        for leaf, value in given.items():
            try:
                number = complex(value)
            except TypeError:  # an expression, or a traced value
                continue
            values[leaf] = number.real if number.imag == 0 else number
    return values


def _reduce(
    terms: Terms,
    equations: list[int],
    texts: list[Text],
    names: list[str],
    unknowns: Mapping[str, Unknown],
    stabilization: float | None,
    numbers: Mapping[int, Any],
) -> Reduced:
    """Equations differentiated until they determine the highest derivatives, and a choice of states."""
    index = {name: j for j, name in enumerate(names)}
    signature: list[dict[int, int]] = []
    for e in equations:
        row: dict[int, int] = {}
        for leaf in unknown_leaves(terms, e):
            _, name, order = terms.nodes[leaf]
            row[index[name]] = max(row.get(index[name], 0), order)
        signature.append(row)
    match = structure.matching([list(row) for row in signature], len(names))
    if len(names) != len(equations) or (len(match) and min(match) < 0):
        raise StructureError(_singular(signature, texts, names, match))
    c, d, _ = structure.offsets(signature, len(names))
    tower = [[_derivative(terms, e, k) for k in range(int(c[i]) + 1)] for i, e in enumerate(equations)]
    leaf = lambda j, k: terms.unknown(names[j], k)
    highest = [leaf(j, int(d[j])) for j in range(len(names))]
    dummies: set[tuple[int, int]] = set()
    constraints: list[int] = []
    if stabilization is not None:
        rate = stabilization
        binomial = lambda n, k: math.comb(n, k) * rate ** (n - k)
        flattened = [terms.add([(e, binomial(len(row) - 1, k)) for k, e in enumerate(row)]) for row in tower]
        constraints = [e for row in tower for e in row[:-1]]
    else:
        flattened = [e for row in tower for e in row]
        if max(c, default=0) > 0:
            priority = [float(unknowns[name].state_priority) for name in names]
            weights = _weights(terms, [row[-1] for row in tower], signature, c, d, highest, numbers)
            dummies = set(structure.dummies(signature, c, d, priority, weights))
    pairs = [(k, j) for j in range(len(names)) for k in range(int(d[j]))]
    states = [leaf(j, k) for k, j in sorted(pairs) if (j, k + 1) not in dummies]
    chosen = set(states)
    others = [leaf(j, k) for j in range(len(names)) for k in range(int(d[j]) + 1) if leaf(j, k) not in chosen]
    return Reduced(flattened, others, states, constraints)


def _weights(terms, tops, signature, c, d, highest, numbers) -> dict | None:
    """The size of each derivative of a differentiated equation in a highest derivative, where all values are known."""
    weights = {}
    for i, row in enumerate(signature):
        for j, order in row.items():
            if c[i] > 0 and order == d[j] - c[i]:
                value = terms.evaluate(terms.diff(tops[i], highest[j]), numbers)
                if value is None:
                    return None
                weights[i, j] = abs(value)
    return weights


def _singular(signature, texts: list[Text], names: list[str], match) -> str:
    over, under = structure.singular([list(row) for row in signature], len(names), match)
    few = lambda items, shown: ", ".join(str(shown[i]) for i in items[:8]) + (", .." if len(items) > 8 else "")
    said = [f"{len(texts)} equations do not determine {len(names)} unknowns (structurally singular)"]
    if over.equations:
        unknowns = few(over.variables, names)
        said.append(f"too many equations, [{few(over.equations, texts)}], for the unknowns [{unknowns}]")
    if under.variables:
        equations = few(under.equations, texts)
        said.append(f"too few equations, [{equations}], for the unknowns [{few(under.variables, names)}]")
    return "; ".join(said)


# ---------------------------------------------------------------- order of solution


def solve_blocks(terms: Terms, reduced: Reduced) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Algebraic unknowns that stay, their equations, and (leaf, value) of the others in an order of evaluation."""
    place = {leaf: z for z, leaf in enumerate(reduced.unknowns)}
    rows = [sorted(place[x] for x in terms.leaves(e) if x in place) for e in reduced.equations]
    match = structure.matching(rows, len(place))
    if len(match) and min(match) < 0:
        raise StructureError("the differentiated equations do not determine the highest derivatives")
    algebraic: list[int] = []
    residuals: list[int] = []
    explicit: list[tuple[int, int]] = []
    for block in structure.blocks(rows, match):
        own = {int(match[i]) for i in block}
        inner = [[z for z in rows[i] if z in own] for i in block]
        equations = [reduced.equations[i] for i in block]
        _solve_block(terms, equations, inner, reduced.unknowns, algebraic, residuals, explicit)
    return algebraic, residuals, explicit


def _solve_block(
    terms: Terms,
    equations: Sequence[int],
    rows: list[list[int]],
    unknowns: Sequence[int],
    algebraic: list[int],
    residuals: list[int],
    explicit: list[tuple[int, int]],
) -> None:
    """One strongly connected block: what can be solved for in sequence, and what must be solved for together."""
    own = {unknowns[z] for row in rows for z in row}
    slopes = [{z: terms.diff(e, unknowns[z]) for z in row} for e, row in zip(equations, rows, strict=True)]
    solvable = [{z for z, a in row.items() if _is_constant(terms, a, own)} for row in slopes]
    torn = _torn(terms, rows, slopes, solvable)
    sequence = [(unknowns[z], _solved(terms, equations[i], unknowns[z])) for i, z in torn.order]
    if len(torn.tears) == 1 and len(equations) <= LARGEST_SOLVED:
        torn_leaf = unknowns[torn.tears[0]]
        values: dict[int, int] = {}
        for leaf, value in sequence:
            values[leaf] = terms.substitute([value], values)[0]
        left = terms.substitute([equations[torn.residuals[0]]], values)[0]
        if torn_leaf not in terms.leaves(left):
            raise StructureError(_dependent(terms, equations, sorted(own), left))
        value = _solved(terms, left, torn_leaf)
        if value is not None:
            explicit.append((torn_leaf, value))
            explicit += sequence
            return
    algebraic += [unknowns[z] for z in torn.tears]
    residuals += [equations[i] for i in torn.residuals]
    explicit += sequence


def _is_constant(terms: Terms, a: int, unknowns: set[int]) -> bool:
    """Whether a factor is known and does not change in time."""
    return terms.value(a) != 0 and all(terms.nodes[x][0] == "parameter" and x not in unknowns for x in terms.leaves(a))


def _torn(terms: Terms, rows: list[list[int]], slopes: list[dict[int, int]], solvable: list[set[int]]) -> Tearing:
    """Few variables from which the others follow, without rounding errors that grow along the way.

    x[i + 1] = 4 x[i] - x[i - 1] gives all from two, and an error 3.7 times as large at each step. Where errors may grow
    much, an equation gives only a variable whose factor in it is at least as large as the others together.
    """
    torn = tear(rows, solvable)
    size = lambda a: 1.0 if terms.value(a) is None else float(abs(terms.value(a)))  # pyright: ignore[reportArgumentType]
    sizes = [{z: size(a) for z, a in row.items()} for row in slopes]
    growth = dict.fromkeys(torn.tears, 1.0)
    for i, z in torn.order:
        growth[z] = sum(a * growth[x] for x, a in sizes[i].items() if x != z) / sizes[i][z]
    if max(growth.values(), default=0.0) <= LARGEST_GROWTH:
        return torn
    return tear(
        rows, [{z for z in own if 2 * row[z] >= sum(row.values())} for own, row in zip(solvable, sizes, strict=True)]
    )


def _dependent(terms: Terms, equations: Sequence[int], unknowns: Sequence[int], left: int) -> str:
    """The message about a block of which one equation follows from the others, but for a rest without its unknowns."""
    show = lambda nodes: [str(to_sympy(terms, n, {}, t)) for n in nodes[:8]]
    more = ", .." if len(equations) > 8 else ""
    return (
        f"the equations 0 = {', '.join(show(equations))}{more} do not determine {', '.join(show(unknowns))}{more}: "
        f"together they say 0 = {show([left])[0]}, so that one follows from the others, contradicts them, or is a "
        "relation between states in disguise"
    )


def _solved(terms: Terms, e: int, leaf: int) -> Any:
    """The value of the leaf where e = 0; None where e is not linear in it."""
    parts = terms.linear(e, leaf)
    if parts is None or terms.value(parts[0]) == 0:
        return None
    known = terms.value(parts[0])
    if known is not None:
        return terms.mul([(parts[1], 1)], _divided(-1, known))
    return terms.mul([(parts[1], 1), (parts[0], -1)], -1)
