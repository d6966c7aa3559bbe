"""The numbers of a problem as vectors, given and exchanged by name.

Owns: `Vectors`, what a system and a user say as changes of what is given, their precision. Must not know: problems,
how initial values follow from what is given.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp

from .initial import POOLS, Given
from .labels import Parameters, Tunables
from .model import Entry, SimplifiedSystem, apart, entries


class Vectors(NamedTuple):
    """The numbers of a problem, in the order of `Given`'s leaves.

    precision : the real dtype of what was given with one; Python's numbers take that
    """

    tunable: Any
    fixed: Any
    initial: Any
    guess: Any
    precision: Any = None


def of_system(model: SimplifiedSystem) -> dict:
    """{(pool or "guess", leaf): value} of what the system says."""
    flat, terms = model.flat, model.terms
    new = {("value", leaf): value for leaf, value in entries(flat, terms, flat.defaults)}
    new |= {("value", state): model.show(parameter) for parameter, state in model.changing}
    return new | {("guess", leaf): value for leaf, value in entries(flat, terms, flat.guesses)}


def of_user(model: SimplifiedSystem, given: Given, u0, p, guesses) -> dict:
    """The same of what a user says; u0 and p may be vectors."""
    flat, terms = model.flat, model.terms
    new: dict = {}
    if u0 is not None and not isinstance(u0, Mapping):
        if np.shape(u0) != (len(model.states),):
            raise ValueError(
                f"u0 must be a mapping by name, or a vector of the {len(model.states)} states "
                f"{', '.join(model.names[:8])}, got {type(u0).__name__} of shape {np.shape(u0)}"
            )
        new |= {("value", leaf): None for leaf in (*given.initial, *(leaf for leaf, _ in given.values))}
        new |= {("value", leaf): x for leaf, x in zip(model.states, apart(u0), strict=True)}
        u0 = None
    if isinstance(p, Parameters):
        pools = {"tunable": apart(p.tunable), "fixed": apart(p.fixed)}
        of = lambda pool, i: pools[pool][i or 0]
        new |= {("value", x): of(*model.places[x]) for x in model.parameter_leaves}
        p = None
    if isinstance(p, Tunables):
        p = dict(zip(p.names, apart(p.array), strict=True)) if p.names != _names(model, given) else p.array
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


def exchanged_functions(known: dict, new: Mapping) -> dict:
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


def exchanged(model, given: Given, vectors: Vectors, changes: dict, soft: bool) -> tuple[Given, Vectors]:
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
    """The vector with other numbers at some places; NumPy where all is known, else one operation for each array."""
    kept = [vector.dtype] if len(values) < len(vector) else []
    vector = vector if kept else np.zeros(len(vector))
    dtype = jnp.result_type(complex if any(map(jnp.iscomplexobj, map(_array_of, values.values()))) else float, *kept)
    scalars = [(place, x) for place, x in values.items() if not isinstance(x, Entry)]
    if isinstance(vector, np.ndarray) and not any(isinstance(_array_of(x), jax.Array) for x in values.values()):
        out = np.array(vector, dtype)
        out[np.array(list(values), int)] = list(values.values())
        return out
    sources: dict[int, list] = {}
    for place, x in values.items():
        if isinstance(x, Entry):
            sources.setdefault(id(x.array), [x.array, [], []])[1].append(place)
            sources[id(x.array)][2].append(x.i)
    if scalars:
        stacked = jnp.stack([jnp.asarray(x, dtype) for _, x in scalars])
        sources[0] = [stacked, [place for place, _ in scalars], list(range(len(scalars)))]
    out = jnp.asarray(vector, dtype)
    for array, places, index in sources.values():
        taken = jnp.reshape(jnp.asarray(array, dtype), -1)
        taken = taken if index == list(range(taken.size)) else taken[np.array(index)]
        out = taken if places == list(range(out.size)) else out.at[np.array(places)].set(taken)
    return out


def _array_of(x):
    return x.array if isinstance(x, Entry) else x


def _precision(known, *values):
    """The real dtype of those numbers that have a precision of their own, which Python's have not; None: none has."""
    arrays = [_array_of(x) for x in values]
    dtypes = {x.dtype for x in arrays if hasattr(x, "dtype") and not getattr(x, "weak_type", False)}
    real = [jnp.finfo(d).dtype for d in dtypes if jnp.issubdtype(d, jnp.inexact)]
    real += [] if known is None else [known]
    return jnp.result_type(*real) if real else None


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
    if isinstance(value, Entry):
        return value, False
    is_number = isinstance(value, (int, float, complex, np.generic, np.ndarray, jax.Array))
    is_number = is_number and jnp.result_type(value).kind in "biufcV"  # V: JAX's small floats
    if is_number and np.ndim(value) == 0:
        return value, False
    raise ValueError(
        f"the value of {model.show(leaf)} must be a number or an expression, got {type(value).__name__}"
        + (f" of shape {np.shape(value)}" if is_number else f": {value!r}")
    )
