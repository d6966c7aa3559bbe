"""Values by name: of parameters, and of anything that a solution determines.

Owns: `Parameters`, `Tunables`, `Labels` (what a solution knows of its model). Must not know: how problems are made.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jax.core import Tracer
from jaxtyping import PyTree

from ..trace import is_array
from .generate import Generated, generate
from .model import SimplifiedSystem


class Parameters(NamedTuple):
    """All parameters of a model as its field takes them.

    Attributes
    ----------
    tunable : array (n,)
        In the order of their first appearance in the system.
    fixed : array (m,)
        Those with `tunable=False`.
    functions : dict
        What was given for undefined functions, by name.

    Examples
    --------
    >>> import odesens as ode
    >>> from odesens.symbolic import D, System, parameters, t, unknowns
    >>> x, k = unknowns("x", default=1.0), parameters("k", default=2.0)
    >>> print(ode.ODEProblem(System([(D(x), -k * x)], t), {}, (0.0, 1.0)).p.tunable)
    [2.]
    """

    tunable: Any
    fixed: Any
    functions: dict


@jax.tree_util.register_pytree_node_class
class Tunables(Mapping):
    """The tunable parameters that have a value of their own, in the order of their first appearance in the system.

    A pytree with one leaf. Derivatives with respect to it have the same labels: `gradient[k]`, `jacobian[k]` with the
    axes of the value, `hessian[k][l]`, of which `hessian.array.array` is all.

    Parameters
    ----------
    names : tuple of str
    array : array (n,)

    Examples
    --------
    >>> import odesens as ode
    >>> from odesens.symbolic import D, System, parameters, t, unknowns
    >>> x, (k, r) = unknowns("x", default=1.0), parameters("k r", default=2.0)
    >>> tunables = ode.ODEProblem(System([(D(x), r - k * x)], t), {}, (0.0, 1.0)).tunables
    >>> sorted(tunables), float(tunables.replace({k: 3.0})[k])
    (['k', 'r'], 3.0)
    """

    def __init__(self, names: tuple[str, ...], array: PyTree):
        self.names = names
        self.array = array

    def tree_flatten(self) -> tuple[tuple, tuple[str, ...]]:
        return (self.array,), self.names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Sequence) -> "Tunables":
        return cls(names, *children)

    def __getitem__(self, key: Any) -> PyTree:
        """The value of a parameter, given by key, its symbol or its name."""
        name = getattr(key, "name", key)
        if name not in self.names:
            raise KeyError(f"{name} is not among the tunable parameters {', '.join(self.names)}")
        at = (..., self.names.index(name), *[slice(None)] * (self._depth - 1))
        return jax.tree.map(lambda x: x[at], self.array)

    @property
    def _depth(self) -> int:
        """How often the entries are derivatives with respect to tunables, and 1."""
        return 1 + self.array._depth if isinstance(self.array, Tunables) else 1

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other):
        return self is other

    def __hash__(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return id(self)

    def replace(self, values: Any) -> "Tunables":
        """A copy with other values.

        Parameters
        ----------
        values : mapping by name or symbol, or vector (n,)

        Returns
        -------
        Tunables

        Raises
        ------
        KeyError, ValueError
            For a name that is not there, or a vector of another length.
        """
        if not isinstance(values, Mapping):
            if jnp.shape(values) != (len(self),):
                raise ValueError(f"the tunable parameters are a vector of {len(self)}, got shape {jnp.shape(values)}")
            return Tunables(self.names, jnp.asarray(values))
        new = jnp.asarray(self.array)
        for key, value in values.items():
            self[key]  # a message for names that are not there
            new = new.at[self.names.index(getattr(key, "name", key))].set(value)
        return Tunables(self.names, new)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {self[name]}" for name in self.names[:12])
        return f"Tunables({shown}{', ..' if len(self) > 12 else ''})"


@jax.tree_util.register_pytree_node_class
class Labels:
    """What a solution knows of its model: the meaning of names, and the parameters at t0."""

    def __init__(self, model: SimplifiedSystem, p: Parameters):
        leaves, tree = jax.tree.flatten(p)
        self.model = model
        self._arrays = tuple(x for x in leaves if is_array(x))
        self._static = tree, tuple(None if is_array(x) else x for x in leaves)

    @property
    def p(self) -> Parameters:
        tree, rest = self._static
        arrays = iter(self._arrays)
        return jax.tree.unflatten(tree, [next(arrays) if x is None else x for x in rest])

    def tree_flatten(self):
        return self._arrays, (self.model, self._static)

    @classmethod
    def tree_unflatten(cls, static, children):
        self = object.__new__(cls)
        self.model, self._static = static
        self._arrays = tuple(children)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Of the entries of the state."""
        return self.model.names

    @property
    def unset(self) -> list[str]:
        """The names of the parameters that are known to be NaN."""
        pools = {"tunable": self.p.tunable, "fixed": self.p.fixed}
        known = {pool: np.isnan(np.asarray(x)) for pool, x in pools.items() if not isinstance(x, Tracer)}
        places = ((q.name, *self.model.places[self.model.leaf(q)]) for q in self.model.parameters)
        return [name for name, pool, i in places if pool in known and known[pool].ndim == 1 and known[pool][i or 0]]

    @staticmethod
    def handles(key) -> bool:
        """Whether a key is a name or an expression rather than a number of a saved time."""
        if isinstance(key, (str, sp.Basic)):
            return True
        if isinstance(key, np.ndarray):
            return key.dtype == object
        return isinstance(key, (list, tuple)) and len(key) > 0 and all(Labels.handles(k) for k in key)

    def at(self, t, u, key):
        """The value of a name, an expression, an array or a sequence of them, at times t (..) and states u (.., n)."""
        if isinstance(key, (list, tuple)):
            return jnp.stack([self.at(t, u, k) for k in key], axis=-1)
        if isinstance(key, np.ndarray):
            values = _observe(self._program(tuple(key.reshape(-1).tolist())), t, u, self.p)
            return values.reshape(*values.shape[:-1], *key.shape)
        leaf = self._state(key)
        return u[..., leaf] if leaf is not None else _observe(self._program((key,)), t, u, self.p)[..., 0]

    def _state(self, key) -> int | None:
        """The number of the state that a key is, which needs no program."""
        node = self._node(key)
        return self.model.states.index(node) if node in self.model.states else None

    def _node(self, key) -> int:
        return self.model.current(self.model.parse(key))

    def _program(self, keys: tuple) -> Generated:
        made = self.model.made
        nodes = tuple(self._node(key) for key in keys)
        if ("observe", nodes) not in made:
            made["observe", nodes] = generate(self.model.terms, nodes, self.model.places)
        return made["observe", nodes]

    @property
    def ps(self) -> "ParameterValues":
        return ParameterValues(self)


class ParameterValues:
    """`ps[k]`: parameters, or expressions of them, by name; at t0 for those that events change."""

    def __init__(self, labels: Labels):
        self._labels = labels

    def __getitem__(self, key):
        if isinstance(key, (list, tuple)):
            return jnp.stack([self[k] for k in key])
        model, p = self._labels.model, self._labels.p
        node = model.parse(key)
        if any(model.terms.nodes[x][0] != "parameter" for x in model.terms.leaves(node)):
            raise KeyError(f"{key} is not made of parameters alone: take sol[{key}]")
        made = model.made
        if ("ps", node) not in made:
            made["ps", node] = generate(model.terms, (node,), model.places)
        return _over_lanes(lambda p: made["ps", node](p._asdict())[0], p)(p)

    def __repr__(self) -> str:
        model, p = self._labels.model, self._labels.p
        pools = {"tunable": p.tunable, "fixed": p.fixed}
        shown = [f"{q.name}: {pools[k][i]}" for q in model.parameters[:12] for k, i in [model.places[model.leaf(q)]]]
        return f"{{{', '.join(shown)}{', ..' if len(model.parameters) > 12 else ''}}}"


@eqx.filter_jit
def _observe(program: Callable, t, u, p: Parameters):
    """The program's values at times t (..) and states u (.., n): (.., number of values); p may have leading axes."""

    def at(t, u, p):
        one = lambda t, u: program({"t": t, "u": u, **p._asdict()})
        shape = jnp.shape(t)
        values = jax.vmap(one)(jnp.reshape(t, (-1,)), jnp.reshape(u, (math.prod(shape), u.shape[-1])))
        return values.reshape(*shape, values.shape[-1])

    return _over_lanes(at, p)(t, u, p)


def _over_lanes(fun: Callable, p: Parameters) -> Callable:
    """The function over the leading axes that the parameters of a solution of many lanes have."""
    for _ in range(p.tunable.ndim - 1):
        fun = jax.vmap(fun)
    return fun
