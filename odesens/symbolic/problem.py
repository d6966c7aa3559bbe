"""`SymbolicProblem`: an `ODEProblem` made from a system of named equations, with values by name.

Owns: values given by name and their vectors, `remake`, tunables, the field as a program. Must not know: how a system is
simplified, initialised or evaluated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jax.core import Tracer

from ..fingerprint import Frozen
from ..methods.linear import SMALL
from ..problem import ODEProblem, Resolved, check_options, check_tspan
from ..status import ReturnCode, SolveError
from .events import callbacks
from .generate import Generated, generate, sparsity
from .initial import POOLS, Given, Start, initialisation, start
from .labels import Labels, Parameters, Tunables
from .model import SimplifiedSystem, entries
from .simplify import simplify
from .system import System


class Vectors(NamedTuple):
    """The numbers of a problem, in the order of `Given`'s leaves.

    precision : the real dtype of what was given with one; Python's numbers take that
    """

    tunable: Any
    fixed: Any
    initial: Any
    guess: Any
    precision: Any = None


@dataclass(frozen=True, eq=False)
class Program(Frozen):
    """A generated function as f(t, u, p) of a problem."""

    generated: Generated
    name: str = "f"
    shape: tuple | None = None

    def __call__(self, t, u, p: Parameters):
        out = self.generated({"t": t, "u": u, **p._asdict()})
        return out if self.shape is None else out.reshape(self.shape)

    @property
    def __name__(self) -> str:
        return self.name


class SymbolicProblem(ODEProblem):
    """The initial value problem of a system of named equations, M du/dt = f(t, u, p).

    `ODEProblem(system, ..)` makes one.

    Parameters
    ----------
    system : System or SimplifiedSystem
        A system that was not simplified is: see `simplify`.
    u0 : mapping, optional
        Initial values {x: 1.0, "y": 2.0, D(x): 0.0}: of unknowns, of time derivatives, of arrays of unknowns; numbers,
        traced values, or expressions in unknowns, parameters and t. They are firm; system defaults yield to equations.
    tspan : (t0, t1)
    p : mapping, optional
        Values of parameters, as above; NaN for one that is set later by `remake`. Where a parameter has a guess in
        place of a value, the initial equations determine it.
    guesses : mapping, optional
        Where the search for what the equations determine starts.
    stabilization : float, optional
        See `simplify`.
    jac : bool
        Whether df/du is generated from symbolic derivatives; by default it is computed in forward mode. The pattern of
        df/du is handed over either way.
    **options
        Any option of `solve`.

    Attributes
    ----------
    system : SimplifiedSystem
    u0, p : the initial state (n,) in the order of `system.unknowns`, and `Parameters`
    tunables : Tunables

    Raises
    ------
    StructureError, InitialValueError, KeyError, TypeError, ValueError
        For equations that do not determine the unknowns, values that are missing, names that the system does not have.

    Initial values are computed when the problem is solved, so that they follow whatever is exchanged by `remake` or
    `solve(prob, u0=.., p=..)`; a solve fails with `InitialisationFailure` where they contradict each other.
    """

    system: SimplifiedSystem
    given: Given
    vectors: Vectors
    calls: dict
    own_sparsity: Any

    def __init__(
        self,
        system: System | SimplifiedSystem,
        u0: Mapping | None = None,
        tspan: Any = None,
        p: Any = None,
        *,
        guesses: Mapping | None = None,
        stabilization: float | None = None,
        jac: bool = False,
        jac_sparsity: Any = None,
        **options,
    ):
        if tspan is None:
            raise ValueError("ODEProblem(system, u0, tspan, p) needs tspan=(t0, t1)")
        check_options(options, "ODEProblem")
        known = {k: v for given in (u0, p) if isinstance(given, Mapping) for k, v in given.items()}
        model = simplify(system, stabilization=stabilization, at=known)
        empty = Vectors(**{pool: np.zeros(0) for pool in POOLS})
        given, vectors = _exchanged(model, Given((), (), (), ()), empty, _defaults(model), True)
        given, vectors = _exchanged(model, given, vectors, _changes(model, given, u0, p, guesses), False)
        initialisation(model, given)  # what is missing is found here
        self._fill(model, given, vectors, model.flat.functions, check_tspan(tspan), jac, jac_sparsity, options)

    def _fill(self, model, given, vectors, calls, tspan, jac, jac_sparsity, options) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)
        put("system", model)
        put("given", given)
        put("vectors", vectors)
        put("calls", calls)  # the undefined functions of the equations, by name
        put("tspan", tspan)
        put("options", options)
        put("f", _field(model))
        put("jac", _jacobian(model) if jac else None)
        put("own_sparsity", jac_sparsity)
        put("jac_sparsity", _pattern(model) if jac_sparsity is None and not jac else jac_sparsity)
        mass = [1.0] * len(model.differential) + [0.0] * len(model.algebraic)
        put("mass_matrix", tuple(mass) if model.algebraic else None)

    # ------------------------------------------------------------ values

    def start(self) -> Start:
        """The initial state, the parameters, and whether they are consistent."""
        program = initialisation(self.system, self.given)
        v = settled(self.vectors)
        dtype = jnp.result_type(v.initial)
        if program.trivial:
            return Start(jnp.asarray(v.initial), {"tunable": v.tunable, "fixed": v.fixed}, True, jnp.zeros(0, dtype))
        t0 = jnp.asarray(self.tspan[0], jnp.finfo(dtype).dtype)
        pools = {pool: getattr(v, pool) for pool in POOLS}
        return start(program, {**pools, "t": t0}, self.calls)

    @property
    def u0(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.resolved().u0

    @property
    def p(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.resolved().p

    @property
    def tunables(self) -> Tunables:
        """The tunable parameters that have a number, by name; give a changed copy as p to `remake` or `solve`."""
        nodes = self.system.terms.nodes
        return Tunables(
            tuple(nodes[leaf][1] for leaf in self.given.tunable), jnp.asarray(settled(self.vectors).tunable)
        )

    @property
    def ps(self):
        """`ps[k]`: parameters by name, at t0."""
        return Labels(self.system, self.p).ps

    def resolved(self, u0=None, p=None, tspan=None) -> Resolved:
        if u0 is not None or p is not None or tspan is not None:
            changes = {k: v for k, v in dict(u0=u0, p=p, tspan=tspan).items() if v is not None}
            return self.remade(**changes).resolved()
        made = self.start()
        p = Parameters(made.p["tunable"], made.p["fixed"], self.calls)
        _check_start(self, made)
        ok = made.ok if isinstance(made.ok, Tracer) else True
        u = made.u if ok is True else jnp.where(ok, made.u, jnp.nan)
        return Resolved(u, p, self.tspan, Labels(self.system, p), ok)

    named = True

    @property
    def pattern(self) -> Given:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.given

    @property
    def values(self) -> dict:
        return {"vectors": settled(self.vectors), "calls": self.calls}

    def with_values(self, *, vectors: Vectors, calls: dict) -> "SymbolicProblem":  # pyright: ignore[reportIncompatibleMethodOverride]
        problem = object.__new__(type(self))
        vectors = vectors._replace(precision=self.vectors.precision)
        vars(problem).update(vars(self), vectors=vectors, calls=calls)
        return problem

    def remade(self, **changes) -> "SymbolicProblem":
        model = self.system
        own = {k: changes.pop(k) for k in ("u0", "p", "guesses") if k in changes}
        parts = {k: changes.pop(k) for k in ("functions", "tspan", "jac", "jac_sparsity") if k in changes}
        check_options(changes, "remake (besides u0, p, guesses, functions, tspan, jac, jac_sparsity)")
        calls = self.calls if not isinstance(own.get("p"), Parameters) else own["p"].functions
        calls = _functions(calls, parts.get("functions", {}))
        new = _changes(model, self.given, own.get("u0"), own.get("p"), own.get("guesses"))
        given, vectors = _exchanged(model, self.given, self.vectors, new, False)
        if given is not self.given:
            initialisation(model, given)
        problem = object.__new__(type(self))
        tspan = check_tspan(parts.get("tspan", self.tspan))
        jac = bool(parts.get("jac", self.jac is not None))
        sparsity = parts.get("jac_sparsity", self.own_sparsity)
        problem._fill(model, given, vectors, calls, tspan, jac, sparsity, {**self.options, **changes})
        return problem

    @property
    def functions(self) -> dict:
        return {} if self.jac is None else {"jac": self.jac}

    @property
    def callbacks(self) -> list:
        return callbacks(self.system)

    def __repr__(self) -> str:
        t0, t1 = self.tspan
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        return f"ODEProblem({self.system!r}, tspan=({t0}, {t1}){options})"


# ---------------------------------------------------------------- programs


def _made(model: SimplifiedSystem, key: str, make) -> Any:
    if key not in model.made:
        model.made[key] = make()
    return model.made[key]


def _field(model: SimplifiedSystem) -> Program:
    roots = (*model.rates, *model.residuals)
    return _made(model, "f", lambda: Program(generate(model.terms, roots, model.places), model.name or "system"))


def _pattern(model: SimplifiedSystem):
    if len(model.states) <= SMALL:
        return None
    return _made(model, "pattern", lambda: sparsity(model.terms, (*model.rates, *model.residuals), model.states))


def _jacobian(model: SimplifiedSystem) -> Program:
    def make():
        terms, n = model.terms, len(model.states)
        rows = (*model.rates, *model.residuals)
        nodes = [terms.diff(f, x) for f in rows for x in model.states]
        return Program(generate(terms, nodes, model.places), "jac", (n, n))

    return _made(model, "jac", make)


# ---------------------------------------------------------------- values by name


def _defaults(model: SimplifiedSystem) -> dict:
    """{(pool or "guess", leaf): value} of what the system says."""
    flat, terms = model.flat, model.terms
    new = {("value", leaf): value for leaf, value in entries(flat, terms, flat.defaults)}
    new |= {("value", state): model.show(parameter) for parameter, state in model.changing}
    return new | {("guess", leaf): value for leaf, value in entries(flat, terms, flat.guesses)}


def _changes(model: SimplifiedSystem, given: Given, u0, p, guesses) -> dict:
    """The same of what a user says; u0 and p may be vectors."""
    flat, terms = model.flat, model.terms
    new: dict = {}
    if u0 is not None and not isinstance(u0, Mapping):
        if np.shape(u0) != (len(model.states),):
            raise ValueError(
                f"u0 must be a mapping by name, or a vector of the {len(model.states)} states "
                f"{', '.join(model.names[:8])}, got {type(u0).__name__} of shape {np.shape(u0)}"
            )
        u0 = {leaf: u0[i] for i, leaf in enumerate(model.states)}
        new |= {("value", leaf): None for leaf in given.initial} | {("value", leaf): None for leaf, _ in given.values}
        new |= {("value", leaf): x for leaf, x in u0.items()}
        u0 = None
    if isinstance(p, Parameters):
        pools = {"tunable": p.tunable, "fixed": p.fixed}
        new |= {("value", x): pools[pool][i] for x in model.parameter_leaves for pool, i in [model.places[x]]}
        p = None
    if isinstance(p, Tunables):
        p = dict(zip(p.names, p.array, strict=True)) if p.names != _names(model, given) else p.array
    if p is not None and not isinstance(p, Mapping):
        if np.shape(p) != (len(given.tunable),):
            raise ValueError(
                f"p must be a mapping by name, the tunables, or a vector of the {len(given.tunable)} tunable "
                f"parameters, got {type(p).__name__} of shape {np.shape(p)}"
            )
        new["vector"] = p
        p = None
    for what, values in (("u0", u0), ("p", p)):
        for leaf, value in () if values is None else entries(flat, terms, values):
            is_parameter = terms.nodes[leaf][0] == "parameter"
            if is_parameter != (what == "p"):
                other = "p" if is_parameter else "u0"
                raise ValueError(f"{model.show(leaf)} is given in {what}: give it in {other}")
            new["value", leaf] = value
    if guesses is not None:
        new |= {("guess", leaf): value for leaf, value in entries(flat, terms, guesses)}
    return new


def _functions(known: dict, new: Mapping) -> dict:
    """The functions of a model, by name, with some exchanged."""
    calls = {getattr(key, "__name__", key): function for key, function in new.items()}
    for name, function in calls.items():
        if name not in known:
            raise KeyError(f"the system has no function {name}; there is {', '.join(known) or 'none'}")
        if not callable(function):
            raise TypeError(f"the function {name} must be a callable on numbers, got {function!r}")
    return {**known, **calls} if calls else known


def _names(model: SimplifiedSystem, given: Given) -> tuple[str, ...]:
    return tuple(model.terms.nodes[leaf][1] for leaf in given.tunable)


def _exchanged(model, given: Given, vectors: Vectors, changes: dict, soft: bool) -> tuple[Given, Vectors]:
    """What is given, and the vectors, after changes; the same `Given` where only numbers change."""
    changes = dict(changes)
    if "vector" in changes:
        vector = _as_vector(changes.pop("vector"))
        vectors = vectors._replace(tunable=vector, precision=_precision(vectors.precision, vector))
    if not changes:
        return given, vectors
    terms = model.terms
    places = {("value", leaf): place for leaf, place in given.numbers.items()}
    places |= {("guess", leaf): ("guess", i) for i, leaf in enumerate(given.guess)}
    numbers: dict = {}
    nodes: dict = {}
    for key, value in changes.items():
        found, is_node = (None, True) if value is None else _as_node(model, key[1], value)
        (nodes if is_node else numbers)[key] = found
    firm = given.default.isdisjoint(leaf for kind, leaf in changes if kind == "value")
    if not nodes and firm and all(key in places for key in numbers):
        return given, _updated(vectors, {places[key]: value for key, value in numbers.items()})
    kept = {key: place for key, place in places.items() if key not in changes}
    order: dict[str, list[int]] = {pool: [] for pool in POOLS}
    for kind, leaf in (*kept, *numbers):
        pool = "guess" if kind == "guess" else model.pool(leaf) if terms.nodes[leaf][0] == "parameter" else "initial"
        order[pool].append(leaf)
    rank = {leaf: i for i, leaf in enumerate((*model.parameter_leaves, *model.states))}
    for leaves in order.values():
        leaves.sort(key=lambda leaf: (rank.get(leaf, len(rank)), leaf))
    values = {leaf: node for leaf, node in given.values if ("value", leaf) not in changes}
    values |= {leaf: node for (kind, leaf), node in nodes.items() if kind == "value" and node is not None}
    guesses = {leaf: node for leaf, node in given.guesses if ("guess", leaf) not in changes}
    guesses |= {leaf: node for (kind, leaf), node in nodes.items() if kind == "guess" and node is not None}
    named = {leaf for kind, leaf in changes if kind == "value"}
    default = frozenset(named) if soft else given.default - named
    leaves = {pool: tuple(order[pool]) for pool in POOLS}
    new = Given(**leaves, values=tuple(values.items()), default=default, guesses=tuple(guesses.items()))
    return new, _assembled(vectors, kept, numbers, order)


def _assembled(vectors: Vectors, kept: dict, numbers: dict, order: dict) -> Vectors:
    """Vectors in a new order: entries of the old ones, and new numbers."""
    parts = []
    for pool, leaves in order.items():
        kind = "guess" if pool == "guess" else "value"
        old = [kept.get((kind, leaf), (None, 0)) for leaf in leaves]
        index = np.array([i for _, i in old], int)
        source = getattr(vectors, pool)
        base = source[index] if source.shape[0] else np.zeros(len(leaves))
        new = {(pool, i): numbers[kind, leaf] for i, leaf in enumerate(leaves) if (kind, leaf) in numbers}
        parts.append((base, new))
    made = Vectors(**{pool: base for pool, (base, _) in zip(POOLS, parts, strict=True)}, precision=vectors.precision)
    return _updated(made, {place: value for _, new in parts for place, value in new.items()})


def _updated(vectors: Vectors, new: dict) -> Vectors:
    """The vectors with numbers written at places (pool, i)."""
    made = {}
    for pool in POOLS:
        vector = getattr(vectors, pool)
        own = {i: value for (name, i), value in new.items() if name == pool}
        made[pool] = _written(vector, own) if own else vector
    return Vectors(**made, precision=_precision(vectors.precision, *new.values()))


def _written(vector, values: dict):
    """The vector with other numbers at some places; NumPy where all is known."""
    index, new = np.array(list(values), int), list(values.values())
    kept = [vector.dtype] if len(index) < len(vector) else []
    vector = vector if kept else np.zeros(len(vector))
    dtype = jnp.result_type(complex if any(map(jnp.iscomplexobj, new)) else float, *kept)
    if isinstance(vector, np.ndarray) and not any(isinstance(x, jax.Array) for x in new):
        out = np.array(vector, dtype)
        out[index] = new
        return out
    return jnp.asarray(vector, dtype).at[index].set(jnp.stack([jnp.asarray(x, dtype) for x in new]))


def _precision(known, *values):
    """The real dtype of those numbers that have a precision of their own, which Python's have not; None: none has."""
    dtypes = [x.dtype for x in values if hasattr(x, "dtype") and not getattr(x, "weak_type", False)]
    dtypes = [jnp.finfo(d).dtype for d in dtypes if jnp.issubdtype(d, jnp.inexact)]
    dtypes += [] if known is None else [known]
    return jnp.result_type(*dtypes) if dtypes else None


def settled(vectors: Vectors) -> Vectors:
    """The vectors in one precision; the initial values are complex where any value is."""
    real = jnp.result_type(float) if vectors.precision is None else vectors.precision
    whole = {pool: jnp.iscomplexobj(getattr(vectors, pool)) for pool in POOLS}
    whole["initial"] = any(whole.values())
    dtype = lambda pool: jnp.result_type(real, complex) if whole[pool] else real
    cast = lambda x, dtype: x if x.dtype == dtype else x.astype(dtype)
    return Vectors(**{pool: cast(getattr(vectors, pool), dtype(pool)) for pool in POOLS})


def _as_vector(x):
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.result_type(float))


def _as_node(model: SimplifiedSystem, leaf: int, value) -> tuple[Any, bool]:
    """(node, True) of a value that is an expression, (number, False) of a number."""
    if isinstance(value, sp.Basic):
        node = model.parse(value)
        number = model.terms.value(node)
        if number is None:
            return node, True
        return (number if isinstance(number, complex) else float(number)), False
    is_number = isinstance(value, (int, float, complex, np.generic, np.ndarray, jax.Array))
    is_number = is_number and jnp.result_type(value).kind in "biufcV"  # V: JAX's small floats
    if is_number and np.ndim(value) == 0:
        return value, False
    raise ValueError(
        f"the value of {model.show(leaf)} must be a number or an expression, got {type(value).__name__}"
        + (f" of shape {np.shape(value)}" if is_number else f": {value!r}")
    )


def _check_start(problem: SymbolicProblem, made: Start) -> None:
    """Raise where initial values are known to contradict each other."""
    if isinstance(made.ok, Tracer) or bool(made.ok):
        return
    program = initialisation(problem.system, problem.given)
    left = np.abs(np.asarray(made.residuals))
    order = np.argsort(-np.nan_to_num(left, nan=np.inf))[:6]
    shown = "; ".join(f"{program.texts[i]}, off by {left[i]:.3g}" for i in order if not left[i] <= 1e-12)
    raise SolveError(
        f"InitialisationFailure at t = {float(problem.tspan[0]):g}: the initial values do not obey the equations: "
        f"{shown}. Give fewer of them in u0, so that the equations can determine the others, or better guesses.",
        ReturnCode.InitialisationFailure,
        float(problem.tspan[0]),
    )
