"""The right-hand side f(t, u, p) and its companions, as programs without captured values.

Owns: the flat state vector, `Program`, `Field`. Must not know: how they are traced (`trace`), methods, loops.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .extension import contains_primitive, evaluate, jaxpr_key
from .pattern import pattern


class Flat:
    """A list of arrays as one vector, and back; real leaves of a complex vector give and take their real parts.

    Attributes
    ----------
    shapes, dtypes : of the leaves
    size : total number of entries n
    dtype : the vector's dtype, the common one of the leaves (the default float where there are none)
    """

    def __init__(self, leaves: Sequence):
        self.shapes = tuple(tuple(x.shape) for x in leaves)
        self.dtypes = tuple(np.dtype(x.dtype) for x in leaves)
        self.sizes = tuple(int(np.prod(s, dtype=int)) for s in self.shapes)
        self.size = sum(self.sizes)
        self.dtype = np.dtype(_common(self.dtypes))

    @property
    def real_dtype(self) -> np.dtype:
        return np.dtype(jnp.finfo(self.dtype).dtype)

    def pack(self, leaves: Sequence, leading: tuple = ()) -> jax.Array:
        """The vector (*leading, n) of leaves that share the leading axes."""
        if not leaves:
            return jnp.zeros((*leading, 0), self.dtype)
        parts = [jnp.reshape(x, (*leading, n)).astype(self.dtype) for x, n in zip(leaves, self.sizes, strict=True)]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)

    def unpack(self, vector) -> list:
        """The leaves of a vector, or of an array whose last axis is that vector (leading axes are kept)."""
        out, start = [], 0
        for shape, dtype, n in zip(self.shapes, self.dtypes, self.sizes, strict=True):
            x = vector if len(self.sizes) == 1 else vector[..., start : start + n]
            out.append(_cast(x, dtype).reshape(*vector.shape[:-1], *shape))
            start += n
        return out


def _common(dtypes) -> Any:
    out = None
    for d in dtypes:
        out = d if out is None else jnp.promote_types(out, d)
    return jnp.result_type(float) if out is None else out


def _cast(x, dtype):
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = jnp.real(x)
    return x.astype(dtype)


@dataclass(frozen=True, eq=False)
class Program:
    """A traced function of (t, u, p): its jaxpr, and where each operand besides (t, *u) comes from, captured first.

    changed : where in p the results after the state's leaves go, of a function that gives new parameters.
    """

    jaxpr: Any
    kinds: tuple[tuple[str, int], ...]
    n_consts: int
    changed: tuple[int, ...] = ()

    def __call__(self, state: Flat, t, u, p, aux, *extra) -> list:
        pools = {"p": p, "aux": aux}
        values = [pools[kind][i] for kind, i in self.kinds]
        t = t.astype(state.real_dtype)
        return evaluate(self.jaxpr, *values[: self.n_consts], t, *state.unpack(u), *values[self.n_consts :], *extra)

    @property
    def results(self) -> list:
        """The abstract values of the results."""
        return [v.aval for v in self.jaxpr.jaxpr.outvars]

    @property
    def key(self):
        return jaxpr_key(self.jaxpr), self.kinds, self.n_consts, self.changed


@dataclass(frozen=True, eq=False)
class Field:
    """A traced field; two traces of the same program are the same object, so that compiled code is shared.

    Call it as `field(t, u, p, aux)` with the flat state u (n,), the differentiable parameter leaves p (captured values
    first) and the other array operands aux; it returns f (n,). `matrix` is the user's Jacobian (n, n) and `parts` are
    the implicit and the explicit part of f, each None where not given.
    """

    program: Program
    others: tuple[tuple[str, Program], ...]
    layout: tuple[tuple[str, int], ...]  # where the captured values of all programs, then the leaves of p, go
    state: Flat
    n_p: int
    n_aux: int
    effects: frozenset = dataclass_field(default_factory=frozenset)

    def __call__(self, t, u, p, aux):
        return self.state.pack(self.program(self.state, t, u, p, aux))

    def companion(self, name: str) -> Program | None:
        """The traced function of this name besides f, where there is one."""
        return dict(self.others).get(name)

    @functools.cached_property
    def matrix(self) -> Callable | None:
        jac, n = self.companion("jac"), self.state.size
        if jac is None:
            return None
        return lambda t, u, p, aux: jac(self.state, t, u, p, aux)[0].reshape(n, n)

    @functools.cached_property
    def parts(self) -> tuple[Callable, Callable] | None:
        programs = dict(self.others)
        if "implicit" not in programs:
            return None
        part = lambda name: lambda t, u, p, aux: self.state.pack(programs[name](self.state, t, u, p, aux))
        return part("implicit"), part("explicit")

    @functools.cached_property
    def sparsity(self):
        """The pattern of f_u, found from the program."""
        start = self.program.n_consts + 1
        return pattern(self.program.jaxpr, range(start, start + len(self.state.shapes)))

    @functools.cached_property
    def has_forward_mode(self) -> bool:
        """False where a `jax.custom_vjp` function is called: such a field can be differentiated backwards only."""
        return not contains_primitive(self.program.jaxpr.jaxpr, "custom_vjp_call")

    @property
    def n_eqns(self) -> int:
        return len(self.program.jaxpr.jaxpr.eqns)

    def __deepcopy__(self, memo):
        return self

    def __repr__(self) -> str:
        return f"<field of {self.state.size} states, {self.n_eqns} operations>"
