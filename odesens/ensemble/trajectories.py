"""From an ensemble problem to arrays with a leading axis, and a function from one row of them to an `ODEProblem`.

Owns: tracing `prob_func`, calling it in Python where it cannot be traced, stacking. Must not know: solves, batches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..extension import hoist, jaxpr_key
from ..inputs import as_params, as_state
from ..problem import ODEProblem, check_tspan, remake
from ..saveat import concrete
from ..trace import is_array
from .checkpoint import fingerprint
from .problem import EnsembleProblem


class Trajectories(NamedTuple):
    """`problem(shared, x)` is the problem of the row x of `rows`, whose arrays have the leading axis `count`."""

    count: int
    shared: Any
    rows: dict
    problem: Callable[[Any, dict], ODEProblem]


class Static(NamedTuple):
    """What is not an array in a pytree, or a mapping by name: its structure, and the leaves, None for arrays."""

    keys: tuple | None
    tree: Any
    rest: tuple

    def joined(self, arrays: list):
        """The pytree of these arrays."""
        given = iter(arrays)
        tree = jax.tree.unflatten(self.tree, [next(given) if x is None else x for x in self.rest])
        return tree if self.keys is None else dict(zip(self.keys, tree, strict=True))


def _split(value, by_name: bool) -> tuple[list, Static]:
    """The arrays of a pytree, or of a mapping by name whose keys need have no order; and the rest."""
    keys = tuple(value) if by_name and type(value) is dict else None
    leaves, tree = jax.tree.flatten(value if keys is None else [value[k] for k in keys])
    rest = tuple(None if is_array(x) else x for x in leaves)
    return [jnp.asarray(x) for x in leaves if is_array(x)], Static(keys, tree, rest)


CONVERTED: dict[str, Callable] = {"u0": as_state, "p": as_params}


def _values(prob: ODEProblem, given: dict) -> tuple[dict, dict]:
    """Arrays, and the rest, of values that a problem takes under these names."""
    convert = lambda k: CONVERTED[k] if k in CONVERTED and not prob.named else lambda x: x
    parts = {k: _split(convert(k)(x), prob.named) for k, x in given.items()}
    return {k: arrays for k, (arrays, _) in parts.items()}, {k: static for k, (_, static) in parts.items()}


def trajectories(eprob: EnsembleProblem, count: int | None) -> Trajectories:
    """The trajectories of an ensemble problem; `count` where its arrays do not tell."""
    prob = eprob.prob
    given = {k: getattr(eprob, k) for k in ("u0", "p") if getattr(eprob, k) is not None}
    rows, varying = _values(prob, given)
    span = prob.tspan if eprob.tspan is None else check_tspan(eprob.tspan)
    if eprob.tspan is not None:
        rows["tspan"] = {j: jnp.asarray(t) for j, t in enumerate(span) if jnp.ndim(t)}
    count = _count(rows, count)
    rows["i"] = jnp.arange(max(count, 1), dtype=jnp.int32)[:count]
    shared, same = _values(prob, {k: x for k, x in prob.values.items() if k not in given})

    def of_arrays(shared, x) -> ODEProblem:
        made = prob.with_values(**{k: static.joined(shared[k]) for k, static in same.items()})
        tspan = tuple(x.get("tspan", {}).get(j, t) for j, t in enumerate(span))
        return remake(made, tspan=tspan, **{k: static.joined(x[k]) for k, static in varying.items()})

    if eprob.prob_func is None:
        return Trajectories(count, shared, rows, of_arrays)
    own = eprob.prob_func
    of_function = lambda shared, x: _checked(own(of_arrays(shared, x), x["i"], 0))
    if count == 0 or _is_traceable(of_function, shared, rows):
        return Trajectories(count, shared, rows, of_function)
    pick = lambda i: {k: jax.tree.map(lambda a: a[i], v) for k, v in rows.items()}
    untouched = not any(k in rows for k in ("u0", "p", "tspan"))
    problems = [_checked(own(prob if untouched else of_arrays(shared, pick(i)), i, 0)) for i in range(count)]
    return _stacked(problems, prob)


def _count(rows: dict, count: int | None) -> int:
    """The number of trajectories: the length of every leading axis."""
    leaves = jax.tree_util.tree_leaves_with_path(rows)
    lengths = {jax.tree_util.keystr(path): (x.shape[0] if x.ndim else None) for path, x in leaves}
    if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0):
        raise ValueError(f"trajectories must be an integer >= 0, got {count!r}")
    if not lengths and count is None:
        raise ValueError("give trajectories=N, the number of trajectories: the ensemble problem has no batched arrays")
    expected = int(count) if count is not None else next((n for n in lengths.values() if n is not None), None)
    if expected is None or any(n != expected for n in lengths.values()):
        shown = ", ".join(f"{k}: {'no axis' if n is None else n}" for k, n in lengths.items())
        raise ValueError(
            f"every array of the batched u0, p and tspan needs a leading axis of one length, the number of "
            f"trajectories{'' if count is None else f' ({count})'}; got lengths {shown}"
        )
    return expected


def _checked(prob) -> ODEProblem:
    if not isinstance(prob, ODEProblem):
        raise TypeError(
            f"prob_func must return an ODEProblem, e.g. remake(prob, p=...), got {type(prob).__name__}: {prob!r}"
        )
    return prob


def _is_traceable(of_function: Callable, shared, rows: dict) -> bool:
    """Whether the problem of a traced i can be had, the same one each time.

    A function that draws random numbers from outside JAX gives other values at each call: traced once, it would give
    all trajectories the same ones.
    """

    def values(shared, x):
        prob = of_function(shared, x)
        return _values(prob, prob.values)[0], [jnp.asarray(t) for t in prob.tspan]

    x = jax.tree.map(lambda a: a[0], rows)
    try:
        # of two functions, or JAX would remember the first trace
        first, second = (hoist(lambda *args: values(*args), shared, x) for _ in range(2))
    except Exception:  # whatever it is, it shows again where the function is called in Python
        return False
    if jaxpr_key(first.jaxpr) != jaxpr_key(second.jaxpr):
        return False
    return all(_same(a, b) for a, b in zip(first.consts, second.consts, strict=True))


def _same(a, b) -> bool:
    if a is b:
        return True
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return False
    return fingerprint([], [a]) == fingerprint([], [b])


def _stacked(problems: list[ODEProblem], prob: ODEProblem) -> Trajectories:
    """Problems that differ in values only as arrays with a leading axis."""
    first = problems[0]
    parts = [_values(q, q.values) for q in problems]
    for i, (q, (_, static)) in enumerate(zip(problems, parts, strict=True)):
        same = q.functions == first.functions and q.f == first.f and q.pattern == first.pattern
        same = same and static == parts[0][1]
        same = same and q.mass_matrix is first.mass_matrix and q.jac_sparsity is first.jac_sparsity
        if not same or not _same_options(q.options, first.options):
            raise ValueError(
                f"prob_func made problems 0 and {i} that differ in more than the values of u0, p and tspan (in f, an "
                "option or the structure of p), and it cannot be traced with an integer array i: put what varies into "
                "u0, p or tspan, or index JAX arrays by i"
            )
    arrays, static = [x for x, _ in parts], parts[0][1]
    shapes = [[jnp.shape(x) for x in jax.tree.leaves(x)] for x in arrays]
    for i in range(len(parts)):
        if shapes[i] != shapes[0]:
            raise ValueError(f"prob_func made problems 0 and {i} whose u0 or p have different structures or shapes")
    rows = _stack(arrays)
    rows["i"] = jnp.arange(len(parts), dtype=jnp.int32)
    spans = [[q.tspan[j] for q in problems] for j in range(2)]
    varying = [j for j, ts in enumerate(spans) if any(t is not ts[0] and not _equal(t, ts[0]) for t in ts)]
    rows["tspan"] = {j: jnp.stack([jnp.asarray(t) for t in spans[j]]) for j in varying}

    def problem(_, x) -> ODEProblem:
        tspan = tuple(x["tspan"].get(j, t) for j, t in enumerate(first.tspan))
        return remake(first.with_values(**{k: s.joined(x[k]) for k, s in static.items()}), tspan=tspan)

    return Trajectories(len(parts), {}, rows, problem)


def _stack(trees: list):
    def stack(*xs):
        if any(isinstance(x, Tracer) for x in xs):
            return jnp.stack(xs)
        return jnp.asarray(np.stack([np.asarray(x) for x in xs]))

    return jax.tree.map(stack, *trees)


def _equal(a, b) -> bool:
    a, b = concrete(jnp.asarray(a)), concrete(jnp.asarray(b))
    return a is not None and b is not None and bool(a == b)


def _same_options(a: dict, b: dict) -> bool:
    if a.keys() != b.keys():
        return False
    return all(x is b[k] or (np.shape(x) == np.shape(b[k]) and bool(np.all(x == b[k]))) for k, x in a.items())
