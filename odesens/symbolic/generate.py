"""Nodes of a graph of expressions as one JAX function.

The size of the traced function grows with the number of distinct shapes of expressions, not with their number: see
`templates` for how shapes are found. Everything is evaluated in loops over data; no expression is too deep.

Owns: `generate`, `Generated`, `sparsity`, what each function of the vocabulary is in JAX. Must not know: systems,
SymPy.
"""

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax import lax

from .access import entry, take
from .templates import CONSTANTS, FEW, Combination, Group, Places, Plan, Source, plan, special

MOST_PIECES = 8  # that the result is joined from, else it is one permutation
MOST_ALONE = 64  # pieces of scalars in it
SHORT = 8  # terms of combinations that are evaluated one by one


def generate(terms, roots: Sequence[int], where: Mapping[int, tuple[str, int | None]]) -> "Generated":
    """A JAX function that gives the values of nodes.

    Parameters
    ----------
    terms : a `Terms`; only its `nodes` are read, each of which is made of nodes before it
    roots : the nodes wanted, in the order wanted; any nodes, also leaves, numbers and the same one several times
    where : for each leaf below the roots (pool, index), the entry `index` of the vector `pool`, or (pool, None), the
        scalar `pool` itself; more leaves than occur may be given

    Raises
    ------
    ValueError : a leaf has no place

    Notes
    -----
    Subexpressions that are used more than once are evaluated once unless they are cheaper than being read. A "select"
    evaluates both branches and takes one: its value is right where the other branch is not finite, but a derivative is
    not, as everywhere in JAX: zero times infinity is NaN.
    """
    return Generated(plan(terms.nodes, roots, where))


@dataclass(frozen=True, eq=False)
class Generated:
    """A function of pools of values, made by `generate`; equal to one with the same plan: programs are kept by it."""

    plan: Plan

    @cached_property
    def _content(self) -> Hashable:
        return _content(self.plan)

    def __eq__(self, other):
        return isinstance(other, Generated) and (self is other or self._content == other._content)

    def __hash__(self):
        return hash(self._content)

    @property
    def n_templates(self) -> int:
        """How many different expressions are evaluated, each for all of its instances at once."""
        return len(self.plan.groups)

    @property
    def functions(self) -> frozenset[str]:
        """The names of the user's functions that are called."""
        return self.plan.functions

    def __call__(self, pools: Mapping[str, Any], functions: Mapping[str, Callable] | None = None) -> jax.Array:
        """The values of the roots.

        Parameters
        ----------
        pools : vectors and scalars by name; integers and booleans are taken as the default float
        functions : the user's functions by name, of scalars, giving a scalar; pools["functions"] where not given

        Returns
        -------
        (number of roots,), of the common dtype of the pools (numbers in the expressions do not change it)

        Raises
        ------
        KeyError : a pool or a function is missing
        ValueError : a pool is too short or has more than one axis; a complex number in a real system
        """
        functions = dict(pools.get("functions") or {}) if functions is None else dict(functions)
        missing = self.functions - set(functions)
        if missing:
            raise KeyError(f"no function for {sorted(missing)}: give `functions` with these names")
        return _Evaluation(pools, functions).of(self.plan)


def _content(x) -> Hashable:
    """The values of a tree of dataclasses, tuples and arrays, to be compared and hashed."""
    if is_dataclass(x):
        return (type(x), *(_content(getattr(x, field.name)) for field in fields(x)))
    if isinstance(x, np.ndarray):
        return x.shape, x.dtype.str, x.tobytes()
    return tuple(map(_content, x)) if isinstance(x, tuple) else (type(x), x)


class _Evaluation:
    """One call: the values that are known so far, by source; each a scalar, a vector, or a list of a few scalars."""

    def __init__(self, pools: Mapping[str, Any], functions: Mapping[str, Callable]):
        self.functions = functions
        known = {name: x for name, x in pools.items() if name != "functions"}
        inexact = [x for x in known.values() if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
        self.dtype = np.dtype(jnp.result_type(*inexact) if inexact else jnp.result_type(float))
        self.real = np.dtype(jnp.finfo(self.dtype).dtype)
        self.values: dict[Source, Any] = {}
        self.known: dict[tuple, Any] = {}  # what has been read
        for name, x in known.items():
            x = jnp.asarray(x)
            if x.ndim > 1:
                raise ValueError(f"pool {name!r} has shape {x.shape}: give a vector or a scalar")
            self.values[name] = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(self.real)

    def of(self, plan: Plan) -> jax.Array:
        self.values[CONSTANTS] = jnp.asarray(self.constants(plan.constants))
        for i, group in enumerate(plan.groups):
            self.values[i] = self._combination(group) if isinstance(group, Combination) else self._group(group)
        return self._roots(plan.roots)

    # ------------------------------------------------------------ numbers and values

    def constants(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers in the precision of the pools, real where they are."""
        if not np.iscomplexobj(numbers):
            return numbers.astype(self.real)
        if self.dtype.kind != "c":
            raise ValueError(f"complex numbers in the expressions, but the pools are {self.dtype}: give complex ones")
        return numbers.astype(self.dtype)

    def vector(self, source: Source, last: int) -> jax.Array:
        """All values of a source as a vector of the common dtype, of which position `last` will be read."""
        value = self._known(source, last)
        if isinstance(value, list):
            return jnp.stack([jnp.asarray(x, self.dtype) for x in value])
        return jnp.reshape(value, -1).astype(self.dtype)

    def read(self, source: Source, positions: np.ndarray) -> jax.Array:
        """Values at positions (k,): a scalar where it is one for all, else (k,)."""
        value, last = self._known(source, positions.max()), positions[-1]
        same = bool(np.all(positions == last))
        key = source, int(last) if same else positions.tobytes()
        if key not in self.known:
            if same:
                self.known[key] = value[last] if isinstance(value, list) else entry(value, last)
            else:
                self.known[key] = take(self.vector(source, last) if isinstance(value, list) else value, positions)
        return self.known[key]

    def _known(self, source: Source, last: int):
        if source not in self.values:
            names = [name for name in self.values if isinstance(name, str)]
            raise KeyError(f"the expressions need the pool {source!r}; given are {names}")
        value = self.values[source]
        if isinstance(source, str) and last >= value.size:
            raise ValueError(f"pool {source!r} has {value.size} entries; the expressions need {last + 1} or more")
        return value

    # ------------------------------------------------------------ groups

    def _group(self, group: Group):
        if group.size >= FEW:
            value = self._run(group, [self.read(s, at) for s, at in group.leaves], group.numbers)
            return jnp.broadcast_to(value, (group.size,))
        out = []
        for i in range(group.size):
            leaves = [self.read(s, at[i : i + 1]) for s, at in group.leaves]
            out.append(self._run(group, leaves, [n[i : i + 1] for n in group.numbers]))
        return out

    def _run(self, group: Group, leaves, numbers):
        """The template's value for all instances, or for one."""
        stack: list[Any] = []
        leaf, number = iter(leaves), iter(numbers)
        for name, *of in group.program:
            match name:
                case "leaf":
                    stack.append(next(leaf))
                case "number":
                    stack.append(self._literal(next(number)))
                case "add":
                    count, constant = of
                    below = _popped(stack, count)
                    coefs = [self._factor(next(number)) for _ in below]
                    start = self._factor(next(number)) if constant else None
                    stack.append(self._sum(below, coefs, start))
                case "mul":
                    below = _popped(stack, len(of[0]))
                    exponents = [e if e is not None else self._factor(next(number)) for e in of[0]]
                    stack.append(_product([self._number(x) for x in below], exponents))
                case "power":
                    base, exponent = _popped(stack, 2)
                    stack.append(jnp.power(self._number(base), self._number(exponent)))
                case "call":
                    stack.append(self._call(of[0], _popped(stack, of[1])))
        return stack.pop()

    def _factor(self, numbers: np.ndarray):
        """Numbers of all instances: one that never promotes where they are the same."""
        numbers = self.constants(numbers)
        return numbers[0].item() if np.all(numbers == numbers[0]) else numbers

    def _literal(self, numbers: np.ndarray):
        """Numbers of all instances as an argument, in the precision of the pools."""
        numbers = self.constants(numbers)
        return numbers[0] if np.all(numbers == numbers[0]) else numbers

    def _number(self, x):
        """A truth value as a number."""
        return x.astype(self.real) if x.dtype == bool else x

    def _sum(self, below, coefs, start):
        total = start
        order = sorted(range(len(below)), key=lambda i: isinstance(coefs[i], float) and coefs[i] == -1)
        for i in order:
            x, k = self._number(below[i]), coefs[i]
            minus = not isinstance(k, np.ndarray) and k == -1
            if isinstance(k, np.ndarray) or abs(k) != 1 or isinstance(k, complex):
                x = x * k
            if total is None:
                total = -x if minus else x
            else:
                total = total - x if minus else total + x
        return total

    def _call(self, name: str, args):
        if name.startswith("user:"):
            return self._user(name.removeprefix("user:"), args)
        if name in _OF_TRUTH:
            return _OF_TRUTH[name](*args)
        args = [args[0], *map(self._number, args[1:])] if name == "select" else [self._number(x) for x in args]
        if name in _OF_REAL:
            return _OF_REAL[name](*(x.real for x in args))
        if name not in _ELEMENTARY:
            raise ValueError(f"no function {name!r}; a function of one's own is given as `user:{name}`")
        return _ELEMENTARY[name](*args)

    def _user(self, name: str, args):
        """A user's function, or its derivative in arguments: "f@0@1" is that in the first and then in the second."""
        name, *slots = name.split("@")
        given = self.functions[name]

        def function(*args):
            value = jnp.asarray(given(*args))
            if value.shape != ():
                raise ValueError(f"function {name!r} gave shape {value.shape} for scalars: it must give a scalar")
            return value

        for slot in slots:
            function = _derivative(function, int(slot))
        args = [jnp.asarray(self._number(x)) for x in args]
        if all(x.ndim == 0 for x in args):
            return function(*args)
        return jax.vmap(function, in_axes=[0 if x.ndim else None for x in args])(*args)

    # ------------------------------------------------------------ many sources

    def _combination(self, group: Combination):
        if group.size < FEW and len(group.coefs) <= SHORT:
            return [self._single(group, i) for i in range(group.size)]
        values, at = self._joined(group.terms)
        coefs, constants = self.constants(group.coefs), self.constants(group.constants)
        if group.size > 1 and np.all(at == at[:, :1]):  # all of the same terms: a dense matrix
            total = jnp.matmul(coefs.T, take(values, at[:, 0]), precision=lax.Precision.HIGHEST)
        else:
            terms = take(values, at.ravel()).reshape(at.shape)
            total = jnp.sum(terms * coefs if np.any((coefs != 1) & (coefs != 0)) else terms, axis=0)
        return total + constants if np.any(constants) else total

    def _single(self, group: Combination, i: int):
        at = group.terms
        terms = np.flatnonzero(group.coefs[:, i])
        below = [self.read(at.sources[at.which[j, i]], at.positions[j : j + 1, i]) for j in terms]
        coefs = [self._factor(group.coefs[j : j + 1, i]) for j in terms]
        constant = group.constants[i : i + 1]
        return self._sum(below, coefs, self._factor(constant) if constant[0] else None)

    def _joined(self, places: Places) -> tuple[jax.Array, np.ndarray]:
        """All the sources as one vector, and the positions in it."""
        lasts = [places.positions[places.which == i].max() for i in range(len(places.sources))]
        parts = [self.vector(s, last) for s, last in zip(places.sources, lasts, strict=True)]
        starts = np.cumsum([0] + [len(p) for p in parts])
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts), starts[places.which] + places.positions

    def _roots(self, places: Places) -> jax.Array:
        """The values of the roots in their order: few pieces joined, else a permutation of all sources."""
        which, positions = places.which, places.positions
        if not len(which):
            return jnp.zeros(0, self.dtype)
        ends = np.append(np.flatnonzero(np.diff(which)) + 1, len(which))
        pieces = [(places.sources[which[i - 1]], p) for i, p in zip(ends, np.split(positions, ends[:-1]), strict=True)]
        alone = sum(len(p) <= FEW for s, p in pieces if isinstance(self.values.get(s), list))
        if len(pieces) - alone > MOST_PIECES or alone > MOST_ALONE:
            values, at = self._joined(places)
            return take(values, at)
        parts = []
        for source, at in pieces:
            if len(at) <= FEW:
                parts += [jnp.reshape(self.read(source, at[i : i + 1]), 1).astype(self.dtype) for i in range(len(at))]
            else:
                parts.append(take(self.vector(source, at.max()), at))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


# ---------------------------------------------------------------- arithmetic and functions


def _popped(stack: list, count: int) -> list:
    """The last values of a stack, taken off it."""
    top = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return top


def _product(factors, exponents):
    """The product of powers, those of negative exponents as one divisor; scalars are multiplied first."""
    above, under = [], []
    for x, e in sorted(zip(factors, exponents, strict=True), key=lambda pair: np.ndim(pair[0])):
        if isinstance(e, np.ndarray) or not special(e):
            above.append(jnp.power(x, e))
            continue
        root = abs(e) == 0.5
        size = 1 if root else int(abs(e))
        x = jnp.sqrt(x) if root else x if size == 1 else lax.integer_pow(x, size)
        (above if e > 0 else under).append(x)
    product = reduce(operator.mul, above) if above else 1.0
    return product / reduce(operator.mul, under) if under else product


def _derivative(function: Callable, slot: int) -> Callable:
    """The derivative of a function of scalars in one of them."""

    def derivative(*args):
        x = args[slot]
        along = lambda x: function(*args[:slot], x, *args[slot + 1 :])
        return jax.jvp(along, (x,), (jnp.ones_like(x),))[1]

    return derivative


def _heaviside(x, at_zero=0.5):
    return jnp.where(x > 0, 1, jnp.where(x < 0, 0, at_zero)).astype(x.dtype)


_special = jax.scipy.special
_same = ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "log", "sqrt", "abs", "sign")
_arc = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
_ELEMENTARY: dict[str, Callable] = {
    **{name: getattr(jnp, name) for name in _same},
    **{name: getattr(jnp, long) for name, long in _arc.items()},
    "erf": _special.erf,
    "gamma": _special.gamma,
    "loggamma": _special.gammaln,
    "digamma": _special.digamma,
    "trigamma": lambda x: _special.polygamma(1, x),
    "re": jnp.real,
    "im": jnp.imag,
    "conj": jnp.conj,
    "conjugate": jnp.conj,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "select": jnp.where,
    "share": lambda x: x,
}
_OF_REAL: dict[str, Callable] = {  # functions of real parts
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "mod": jnp.mod,
    "atan2": jnp.arctan2,
    "max": lambda *args: reduce(jnp.maximum, args),
    "min": lambda *args: reduce(jnp.minimum, args),
    "heaviside": _heaviside,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
_OF_TRUTH: dict[str, Callable] = {
    "true": lambda: np.True_,
    "false": lambda: np.False_,
    "not": jnp.logical_not,
    "and": lambda *args: reduce(jnp.logical_and, args),
    "or": lambda *args: reduce(jnp.logical_or, args),
}


def sparsity(terms, roots: Sequence[int], columns: Sequence[int]) -> sp.csr_array:
    """Which roots depend on which leaves.

    Parameters
    ----------
    terms : a `Terms`
    roots : nodes, a row each
    columns : leaves, all different, a column each; other leaves are left out

    Returns
    -------
    boolean (len(roots), len(columns)): where a leaf occurs in the expression, also if its derivative is zero
    """
    column = {leaf: j for j, leaf in enumerate(columns)}
    rows = [sorted(column[leaf] for leaf in terms.leaves(root) if leaf in column) for root in roots]
    starts = np.cumsum([0] + [len(r) for r in rows])
    indices = np.array([j for r in rows for j in r], dtype=np.int32)
    return sp.csr_array((np.ones(len(indices), bool), indices, starts), shape=(len(roots), len(columns)))
