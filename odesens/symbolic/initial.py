"""Consistent initial values: a system of its own, solved once for each set of values and differentiated implicitly.

At t0 the states, and parameters without a value, obey

    given values, initial equations, algebraic equations, constraints that index reduction found:  0 = r(v; values)

What can be had in sequence is substituted; what is left is a square system for few unknowns, solved by Newton's method
from the guesses. Equations beyond those that determine the unknowns are checked. Owns: which equation determines what,
the program that does it. Must not know: problems, solves.

Source: the choice of equations is a maximum matching that takes equations in the order in which they are listed above
(a transversal matroid's greedy basis); derivatives are those of the implicit function theorem.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..extension import vary, varying_axes
from ..methods.initial import ITERATIONS, search
from ..methods.linear import DENSE, of_map, parts_of, solve_exactly
from . import structure
from .generate import Generated, generate
from .model import SimplifiedSystem, by_name
from .simplify import Reduced, solve_blocks
from .terms import Terms

POOLS = ("tunable", "fixed", "initial", "guess")


class InitialValueError(ValueError):
    """Initial values or parameters that are missing; the message names them.

    Examples
    --------
    >>> import odesens as ode
    >>> from odesens.symbolic import D, InitialValueError, System, t, unknowns
    >>> x = unknowns("x")
    >>> try:
    ...     ode.ODEProblem(System([(D(x), -x)], t), {}, (0.0, 1.0))
    ... except InitialValueError as error:
    ...     print("x" in str(error))
    True
    """


class UndeterminedWarning(UserWarning):
    """A guess was taken as an initial value, because no equation determines it.

    Examples
    --------
    Where that is what is wanted:

    >>> import warnings
    >>> from odesens.symbolic import UndeterminedWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", UndeterminedWarning)
    """


@dataclass(frozen=True)
class Given:
    """What is known of the leaves of a model: numbers by their place in a vector, or expressions.

    tunable, fixed : parameters with a number
    initial : unknowns, or derivatives, with a number
    guess : leaves with a number to start from
    values : (leaf, node) of what is given by an expression
    default : leaves, among these, that yield where equations determine them
    guesses : (leaf, node) of guesses by an expression
    """

    tunable: tuple[int, ...]
    fixed: tuple[int, ...]
    initial: tuple[int, ...]
    guess: tuple[int, ...]
    values: tuple[tuple[int, int], ...] = ()
    default: frozenset[int] = frozenset()
    guesses: tuple[tuple[int, int], ...] = ()

    @property
    def numbers(self) -> dict[int, tuple[str, int]]:
        """Where the number of a leaf is; guesses apart."""
        return {leaf: (pool, i) for pool in POOLS[:3] for i, leaf in enumerate(getattr(self, pool))}


class Start(NamedTuple):
    """The initial state (n,), the parameters by pool, whether all equations hold, and what is left of them."""

    u: Any
    p: dict
    ok: Any
    residuals: Any


class Initialisation:
    """The program for one model and one pattern of what is given; called with vectors by pool and the time."""

    def __init__(self, model: SimplifiedSystem, given: Given):
        terms = model.terms
        plan = _plan(model, given)
        self._written = plan.written
        self.pools = {pool: len(leaves) for pool, leaves in plan.parameters.items()}
        self.trivial = plan.trivial
        where: dict[int, tuple[str, int | None]] = {**given.numbers, **plan.data}
        where |= {leaf: ("w", i) for i, leaf in enumerate(plan.unknowns)}  # not the defaults that yield to equations
        where[terms.time()] = ("t", None)
        where |= plan.guess_data({leaf: ("guess", i) for i, leaf in enumerate(given.guess)})
        make = lambda nodes, places: generate(terms, nodes, places)
        self.states = make(plan.states, where)
        self.parameters = {pool: make(nodes, where) for pool, nodes in plan.parameters.items()}
        self.residual = make(plan.residuals, where)
        self.checks = make(plan.checks, where)
        self.sizes = make([_size(terms, e) for e in plan.checks], where)
        self.guess = make(plan.guesses, where)
        self.n_unknowns = len(plan.unknowns)

    @property
    def texts(self) -> list[str]:
        """The equations of `Start.residuals`, for messages."""
        return [write() for write in self._written]

    def __call__(self, pools: Mapping[str, Any], functions: Mapping) -> Start:
        """Differentiable to any order in everything but the guesses, on which the result does not depend."""
        dtype = jnp.result_type(*(pools[k] for k in POOLS))
        given = {**pools, "functions": functions, "w": jnp.zeros(0, dtype)}
        ok, left = jnp.asarray(True), jnp.zeros(0, dtype)
        if self.n_unknowns:
            w, ok = _root(self.residual, given, self.guess(given))
            given["w"] = w
            left = jax.lax.stop_gradient(self.residual(given))
        checks = jax.lax.stop_gradient(self.checks(given))
        sizes = jax.lax.stop_gradient(self.sizes(given))
        eps = float(jnp.finfo(dtype).eps)
        holds = jnp.abs(checks) <= 30 * eps**0.5 * (jnp.abs(sizes) + eps**0.5)
        p = {pool: program(given) for pool, program in self.parameters.items()}
        unset = jnp.any(jnp.array([jnp.any(jnp.isnan(x)) for x in (*p.values(), pools["initial"])]))
        ok = (ok & jnp.all(holds)) | unset  # what was never set is found by the solve
        return Start(self.states(given), p, ok, jnp.concatenate([left, checks]))


def _root(residual: Generated, given: dict, guess):
    """w with residual(w) = 0 by Newton's method from the guess, and whether it was found."""
    split, join = parts_of(guess.dtype)
    of = lambda x, given=given: split(residual({**given, "w": join(x)}))
    still = jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, given)
    x0 = jax.lax.stop_gradient(split(guess))
    x0 = vary(x0, varying_axes(of(x0, still)))
    weight = lambda x: 1e-6 * (jnp.abs(x) + 1e-3)
    norm = lambda x, change: jnp.sqrt(jnp.mean(jnp.square(change / weight(x))))
    enough = 8 * float(jnp.finfo(x0.dtype).eps) / 1e-6
    again = lambda x: search(lambda x: of(x, still), x, norm, enough, ITERATIONS)  # no derivative goes through it
    good = lambda found: found.regular & (found.change <= 1e-2)
    aside = x0 + 0.1 * (1 + jnp.abs(x0)) * jnp.linspace(1, 0.5, x0.size, dtype=x0.dtype)  # where the guess is singular
    found = again(again(x0).y)  # the second says whether the root, rather than a point on the way, is regular
    found = jax.lax.cond(good(found), lambda: found, lambda: again(again(aside).y))
    found = jax.lax.stop_gradient(found)

    def linearised(times, b):
        return solve_exactly(times, of_map(DENSE, times, b), b)

    x = jax.lax.custom_root(of, found.y, lambda g, x: search(g, x, norm, enough, ITERATIONS).y, linearised)
    return join(x), good(found)


# ---------------------------------------------------------------- which equation determines what


class _Plan(NamedTuple):
    states: list[int]
    parameters: dict[str, list[int]]
    unknowns: list[int]
    guesses: list[int]
    residuals: list[int]
    checks: list[int]
    written: list[Callable[[], str]]
    data: dict[int, tuple[str, int]]
    started: dict[int, int]
    trivial: bool

    def guess_data(self, start: dict) -> dict:
        """Where the guesses' numbers are: `started` maps a stand-in for the guess of a leaf to the leaf."""
        return {stand_in: start[leaf] for stand_in, leaf in self.started.items()}


def _plan(model: SimplifiedSystem, given: Given) -> _Plan:
    terms, numbers = model.terms, given.numbers
    states = set(model.states)
    direct = {x for x in numbers if x in states or terms.nodes[x][0] == "parameter"} - given.default
    soft = {x for x in numbers if x in states and x in given.default}
    unknowns = [x for x in (*model.states, *model.parameter_leaves) if x not in direct]
    data: dict[int, tuple[str, int]] = {}

    def datum(leaf: int) -> int:
        """A stand-in for the number that is given for a leaf."""
        stand_in = terms.parameter(f"value of {model.show(leaf)}")
        data[stand_in] = numbers[leaf]
        return stand_in

    firm: list[int] = []
    yielding: list[int] = []
    texts: dict[int, Callable[[], str]] = {}  # of the equations, in a user's words; SymPy takes long to write

    def add(equation: int, given_to: int, text: Callable[[], str]) -> None:
        (yielding if given_to in given.default else firm).append(equation)
        texts[equation] = text

    for leaf in numbers:
        if leaf not in direct:
            own = lambda x=leaf: f"{model.show(model.express(x))} = the value given for {model.show(x)}"
            add(terms.sub(model.express(leaf), datum(leaf)), leaf, own)
    for leaf, value in given.values:
        text = lambda x=leaf, y=value: f"{model.show(x)} = {model.show(y)}"
        add(terms.sub(model.express(leaf), model.express(value)), leaf, text)
    always = (*model.residuals, *model.constraints)
    texts |= {e: lambda e=e: f"0 = {model.show(e)}" for e in always}
    initial = _initial_equations(model)
    texts |= initial
    equations = [*firm, *initial, *always]
    n_firm = len(equations)
    equations += yielding
    place = {x: i for i, x in enumerate(unknowns)}
    of_equation = [[place[x] for x in terms.leaves(e) if x in place] for e in equations]
    of_unknown: list[list[int]] = [[] for _ in unknowns]
    for i, row in enumerate(of_equation):
        for j in row:
            of_unknown[j].append(i)
    priority = -np.arange(len(equations), dtype=float)
    match = structure.matching(of_unknown, len(equations), priority)
    free = [unknowns[j] for j in np.flatnonzero(np.asarray(match) < 0)]
    guesses = _guess_nodes(model, given, soft, datum)
    _check_free(model, free, guesses)
    chosen = sorted(int(i) for i in match if i >= 0)
    used = set(chosen)
    kept = [x for x in unknowns if x not in set(free)]
    tears, residuals, explicit = solve_blocks(terms, Reduced([equations[i] for i in chosen], kept, [], []))
    values = {x: guesses[x][0] for x in free}
    for leaf, node in explicit:
        values[leaf] = terms.shared(_inserted(terms, node, values))
    insert = lambda nodes: [_inserted(terms, node, values) for node in nodes]
    checks = insert(equations[i] for i in range(n_firm) if i not in used)
    missing = [x for x in tears if x not in guesses]
    if missing:
        raise InitialValueError(_missing(model, missing))
    parameters = {pool: [x for x in model.parameter_leaves if model.pool(x) == pool] for pool in POOLS[:2]}
    trivial = not tears and not checks and not values and tuple(model.states) == given.initial
    trivial = trivial and all(tuple(parameters[pool]) == getattr(given, pool) for pool in parameters)
    remaining = insert(residuals)
    return _Plan(
        insert(model.states),
        {pool: insert(leaves) for pool, leaves in parameters.items()},
        tears,
        [guesses[x][0] for x in tears],
        remaining,
        checks,
        [texts[e] for e in (*residuals, *(equations[i] for i in range(n_firm) if i not in used))],
        data,
        {stand_in: leaf for stand_in, leaf in guesses.values() if leaf is not None},
        trivial,
    )


def _inserted(terms: Terms, node: int, values: Mapping[int, int]) -> int:
    exchange = {leaf: values[leaf] for leaf in terms.leaves(node) if leaf in values}
    return terms.substitute([node], exchange)[0] if exchange else node


def _initial_equations(model: SimplifiedSystem) -> dict[int, Callable[[], str]]:
    """The equations that hold at t0 only, and as they are written."""
    node = lambda a, b: model.express(model.terms.sub(model.parse(a), model.parse(b)))
    return {node(a, b): lambda a=a, b=b: f"{a} = {b}" for a, b in model.flat.initial}


def _guess_nodes(model: SimplifiedSystem, given: Given, soft: set[int], datum) -> dict[int, tuple[int, int | None]]:
    """The node of the guess of each leaf that has one, and the leaf whose guess it is; defaults serve too."""
    terms = model.terms
    guesses: dict[int, tuple[int, int | None]] = {x: (datum(x), None) for x in soft}
    guesses |= {x: (model.express(node), None) for x, node in given.values if x in given.default}
    guesses |= {x: (model.express(node), None) for x, node in given.guesses}
    guesses |= {x: (terms.parameter(f"guess of {model.show(x)}"), x) for x in given.guess}
    return guesses


def _check_free(model: SimplifiedSystem, free: list[int], guesses: Mapping) -> None:
    missing = [x for x in free if x not in guesses]
    if missing:
        raise InitialValueError(_missing(model, missing))
    if free:
        shown = ", ".join(by_name(model.flat, model.terms, free))
        warnings.warn(
            f"no equation determines the initial value of {shown}: the guess is taken for it; give it in u0 (p for a "
            "parameter), or an initial equation",
            UndeterminedWarning,
            stacklevel=2,
        )


def _missing(model: SimplifiedSystem, leaves: list[int]) -> str:
    terms = model.terms
    values = by_name(model.flat, terms, [x for x in leaves if terms.nodes[x][0] == "parameter"])
    states = by_name(model.flat, terms, [x for x in leaves if terms.nodes[x][0] != "parameter"])
    few = lambda names: ", ".join(names[:12]) + (", .." if len(names) > 12 else "")
    said = []
    if states:
        said.append(
            f"no initial value for {few(states)}: give it in u0, e.g. {{{states[0]}: 1.0}}, or, where the equations "
            "determine it, a guess in guesses="
        )
    if values:
        said.append(
            f"no value for the parameter{'s' * (len(values) > 1)} {few(values)}: give it in p, e.g. "
            f"{{{values[0]}: 1.0}} (NaN if it is set later), or, where initial equations determine it, a guess"
        )
    return "; ".join(said)


def _size(terms: Terms, e: int) -> int:
    """The sum of the absolute values of the terms of e."""
    kind = terms.nodes[e]
    pairs, constant = (kind[2], kind[1]) if kind[0] == "add" else ([(e, 1)], 0)
    return terms.add([(terms.call("abs", n), abs(c)) for n, c in pairs], abs(constant))


@functools.lru_cache(maxsize=256)
def initialisation(model: SimplifiedSystem, given: Given) -> Initialisation:
    """The program, made once."""
    return Initialisation(model, given)


@eqx.filter_jit
def start(program: Initialisation, pools: dict, functions: dict) -> Start:
    """The initial state and parameters; one equation of a traced program whatever the size of the model."""
    return program(pools, functions)
