"""The right-hand side f(t, u, p), traced once to a program without captured values.

Owns: taking user pytrees apart (differentiable leaves, other arrays, static leaves), the hoisted field, its checks, the
flat state vector, the memory of fields traced before. Must not know: methods, loops, derivatives.
"""

import collections
import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .extension import contains_primitive, evaluate, hoist, jaxpr_effects, jaxpr_key, varying_axes
from .fingerprint import Fingerprint, Unknown
from .pattern import pattern


def is_array(x) -> bool:
    """A leaf that is traced: numeric arrays of NumPy and JAX, tracers, Python floats. All others are static."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.kind not in "OUSMmV"
    return isinstance(x, (jax.Array, float, complex))


def is_inexact(x) -> bool:
    """Whether a leaf has a derivative: floating point or complex."""
    dtype = jnp.result_type(x) if isinstance(x, (float, complex)) else x.dtype
    return jnp.issubdtype(dtype, jnp.inexact)


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
    """A traced function of (t, u, p): its jaxpr, and where each operand besides (t, *u) comes from, captured first."""

    jaxpr: Any
    kinds: tuple[tuple[str, int], ...]
    n_consts: int

    def __call__(self, state: Flat, t, u, p, aux) -> list:
        pools = {"p": p, "aux": aux}
        values = [pools[kind][i] for kind, i in self.kinds]
        t = t.astype(state.real_dtype)
        return evaluate(self.jaxpr, *values[: self.n_consts], t, *state.unpack(u), *values[self.n_consts :])

    @property
    def key(self):
        return jaxpr_key(self.jaxpr), self.kinds, self.n_consts


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

    @functools.cached_property
    def matrix(self) -> Callable | None:
        programs, n = dict(self.others), self.state.size
        if "jac" not in programs:
            return None
        return lambda t, u, p, aux: programs["jac"](self.state, t, u, p, aux)[0].reshape(n, n)

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


_FIELDS: collections.OrderedDict = collections.OrderedDict()  # interned fields, most recently used last
_FIELDS_MAX = 512


def trace_field(
    f: Callable, u, p, axes: frozenset = frozenset(), others: dict | None = None
) -> tuple[Field, list, list]:
    """Trace `f(t, u, p)` once; returns the interned field and its operands p (differentiable) and aux (others).

    `others`: further functions of (t, u, p) by name: "jac", "implicit" and "explicit".
    Captured arrays and tracers become operands, floating ones in p, so that derivatives with respect to them are right.
    `axes` are the manual mesh axes along which the problem's other inputs vary. A function that is known to trace to
    what it did before, see `fingerprint`, is not traced again.
    """
    u_leaves, u_tree = jax.tree.flatten(u)
    p_leaves, p_tree = jax.tree.flatten(p)
    dynamic = [i for i, x in enumerate(p_leaves) if is_array(x)]
    values = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in (p_leaves[i] for i in dynamic)]
    axes = axes | varying_axes(*(x for x in (*u_leaves, *values) if isinstance(x, Tracer)))
    static = [x for x in p_leaves if not is_array(x)]
    functions = {"f": f, **(others or {})}
    seen = None if axes else _trace_fingerprint(functions, (u_tree, p_tree), (*u_leaves, *values), dynamic, static)
    known = None if seen is None else _TRACED.pop(seen.key, None)
    if seen is None or known is None:
        field, consts = _trace(functions, (u_tree, u_leaves), (p_tree, p_leaves), dynamic, values, axes)
        if seen is not None and not field.effects and not any(isinstance(c, Tracer) for c in consts):
            kept = [c if isinstance(c, jax.Array) else np.array(c, jnp.result_type(c)) for c in consts]
            _keep(_TRACED, seen.key, (field, kept, seen.alive), _TRACED_MAX)
        consts = [jnp.asarray(c) for c in consts]
    else:
        field, consts, _ = _keep(_TRACED, seen.key, known, _TRACED_MAX)
    pools: dict = {"p": [None] * field.n_p, "aux": [None] * field.n_aux}
    for (kind, i), x in zip(field.layout, (*consts, *values), strict=True):
        pools[kind][i] = x
    return field, pools["p"], pools["aux"]


def _trace(functions: dict, u, p, dynamic: list[int], values: list, axes: frozenset) -> tuple[Field, list]:
    """The interned field of the functions, and the values that they capture."""
    (u_tree, u_leaves), (p_tree, p_leaves) = u, p
    state = Flat(u_leaves)
    t0 = jnp.zeros((), state.real_dtype)

    def hoisted(name, function):
        check_signature(function, name)

        def flat(t, us, ps):
            full = list(p_leaves)
            for i, x in zip(dynamic, ps, strict=True):
                full[i] = x
            out = function(t, jax.tree.unflatten(u_tree, us), jax.tree.unflatten(p_tree, full))
            return [_checked_matrix(out, state)] if name == "jac" else _checked_result(out, u_tree, us, name)

        jaxpr, consts = hoist(flat, t0, u_leaves, values)
        all_axes = axes | varying_axes(*consts)
        if all_axes:  # inside shard_map: once more, as the program of arguments that vary
            jaxpr, consts = hoist(flat, t0, u_leaves, values, axes=all_axes)
        return jaxpr, list(consts)

    traced = {name: hoisted(name, function) for name, function in functions.items()}
    count = {"p": 0, "aux": 0}

    def place(xs) -> tuple:
        kinds = []
        for x in xs:
            kind = "p" if is_inexact(x) else "aux"
            kinds.append((kind, count[kind]))
            count[kind] += 1
        return tuple(kinds)

    own = {"f": place(traced["f"][1])}
    shared = place(values)
    own |= {name: place(consts) for name, (_, consts) in traced.items() if name != "f"}
    programs = {name: Program(jaxpr, (*own[name], *shared), len(own[name])) for name, (jaxpr, _) in traced.items()}
    layout = (*(kind for kinds in own.values() for kind in kinds), *shared)
    effects = frozenset().union(*(jaxpr_effects(q.jaxpr.jaxpr) for q in programs.values()))
    main = programs.pop("f")
    new = Field(main, tuple(programs.items()), layout, state, count["p"], count["aux"], effects)
    return _intern(new), [c for _, consts in traced.values() for c in consts]


def _intern(new: Field) -> Field:
    key = (new.program.key, tuple((name, q.key) for name, q in new.others))
    return _keep(_FIELDS, key, _FIELDS.pop(key, new), _FIELDS_MAX)


def _keep(memory: collections.OrderedDict, key, value, most: int):
    """Put a value in a memory that forgets what was not used for long."""
    memory[key] = value
    if len(memory) > most:
        memory.popitem(last=False)
    return value


_TRACED: collections.OrderedDict = collections.OrderedDict()  # (field, captured values, what the key needs alive)
_TRACED_MAX = 128
# what JAX's tracing depends on besides the arguments
_CONFIG = [
    name
    for name in (
        "enable_x64 explicit_x64_dtypes numpy_dtype_promotion numpy_rank_promotion default_dtype_bits "
        "default_matmul_precision default_prng_impl enable_custom_prng threefry_partitionable random_seed_offset "
        "softmax_custom_jvp debug_nans debug_infs disable_jit check_tracer_leaks debug_key_reuse default_device "
        "high_dynamic_range_gumbel use_direct_linearize auto_pcast dynamic_shapes no_tracing"
    ).split()
    if hasattr(jax.config, f"jax_{name}")
]
_CONTEXT = operator.attrgetter(*(f"jax_{name}" for name in _CONFIG))


def _trace_fingerprint(functions: dict, trees, arrays, dynamic: list[int], static: list) -> Fingerprint | None:
    """All that the trace of the functions depends on; None where that cannot be told, or it depends on a mesh."""
    if not jax.sharding.get_abstract_mesh().empty:
        return None
    seen = Fingerprint()
    try:
        for name, function in functions.items():
            seen.parts.append(name)
            seen.value(function)
        for x in (*dynamic, *static):
            seen.value(x)
        for tree in trees:
            seen.tree(tree)
    except (Unknown, RecursionError):
        return None
    for x in arrays:
        seen.parts += (x.shape, x.dtype, getattr(x, "weak_type", False))
    seen.parts.append(_CONTEXT(jax.config))
    return seen


def check_signature(f, name: str = "f") -> None:
    """Refuse what is not f(t, u, p), by the number of arguments and by a time that is not the first."""
    if not callable(f):
        raise TypeError(f"{name} must be a function {name}(t, u, p), got {type(f).__name__}: {f!r}")
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # builtins have no signature; tracing will tell
        return
    positional = [q for q in parameters if q.kind in (q.POSITIONAL_ONLY, q.POSITIONAL_OR_KEYWORD)]
    required = [q for q in positional if q.default is q.empty]
    variadic = any(q.kind is q.VAR_POSITIONAL for q in parameters)
    names = [q.name for q in positional]
    shown = f"{name}({', '.join(names)})"
    gives = "df/du" if name == "jac" else "du/dt"
    if len(required) > 3 or (len(positional) < 3 and not variadic):
        raise TypeError(
            f"{name} must take three arguments {name}(t, u, p), got {shown}; "
            f"write p even where it is unused, and return {gives} instead of writing into an argument"
        )
    if "t" in names[1:3] and names[0] != "t":
        raise TypeError(f"{name} must take its arguments in the order {name}(t, u, p), got {shown}: time comes first")


def _checked_matrix(jac, state: Flat):
    """The user's Jacobian as an array (n, n), or an error that says what it must return."""
    n = state.size
    leaves = jax.tree.leaves(jac)
    if len(leaves) != 1 or jnp.size(leaves[0]) != n * n:
        got = [jnp.shape(x) for x in leaves]
        raise ValueError(f"jac must return one array df/du of shape ({n}, {n}) for the {n} entries of u, got {got}")
    return jnp.asarray(leaves[0]).astype(state.dtype).reshape(n, n)


def _checked_result(du, u_tree, us, name: str) -> list:
    """The leaves of f's result cast to the state's dtypes, or an error that says what it must return."""
    leaves, tree = jax.tree.flatten(du)
    for x in leaves:
        if not hasattr(x, "dtype") and not isinstance(x, (bool, int, float, complex)):
            raise TypeError(f"{name} must return du/dt as numbers or arrays, got {type(x).__name__}: {x!r}")
    shapes = [jnp.shape(x) for x in leaves]
    want = [x.shape for x in us]
    if tree != u_tree:
        hint = "; return an array, e.g. jnp.stack([...])" if isinstance(du, (list, tuple)) and len(us) == 1 else ""
        raise TypeError(
            f"{name} must return du/dt with the structure of u: expected {u_tree} with shapes {want}, "
            f"got {tree} with shapes {shapes}{hint}"
        )
    if shapes != want:
        raise ValueError(f"{name} must return du/dt with the shapes of u: expected {want}, got {shapes}")
    out = []
    for x, u in zip(leaves, us, strict=True):
        dtype = jnp.result_type(x)
        if dtype == jnp.bool_:
            raise TypeError(f"{name} must return numbers, got booleans")
        weak = not isinstance(x, jax.Array) or jnp.asarray(x).weak_type
        if jnp.issubdtype(dtype, jnp.complexfloating) and not jnp.issubdtype(u.dtype, jnp.complexfloating):
            raise TypeError(
                f"{name} returned {dtype} for a state of dtype {u.dtype}: give a complex u0, or return the real part"
            )
        if not weak and jnp.issubdtype(dtype, jnp.inexact) and jnp.promote_types(dtype, u.dtype) != u.dtype:
            raise TypeError(
                f"{name} returned {dtype} for a state of dtype {u.dtype}: a parameter or constant of wider dtype is "
                f"mixed in; give u0 as {dtype}, or cast the parameters to {u.dtype}"
            )
        out.append(jnp.asarray(x).astype(u.dtype))
    return out
