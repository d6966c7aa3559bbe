"""Tracing: the functions f(t, u, p) of a problem to programs whose captured values are operands, each traced once.

Owns: taking user pytrees apart (differentiable leaves, other arrays, static leaves), hoisting, times declared while f
is traced, the memory of what was traced before. Must not know: methods, loops, derivatives.
"""

import collections
import contextlib
import dataclasses
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .checks import check_results, check_signature
from .extension import dependent, hoist, jaxpr_effects, restricted, varying_axes
from .field import Field, Flat, Program
from .fingerprint import Fingerprint, Unknown


def is_array(x) -> bool:
    """A leaf that is traced: numeric arrays of NumPy and JAX, tracers, Python floats. All others are static."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.kind not in "OUSMmV"
    return isinstance(x, (jax.Array, float, complex))


def is_inexact(x) -> bool:
    """Whether a leaf has a derivative: floating point or complex."""
    dtype = jnp.result_type(x) if isinstance(x, (float, complex)) else x.dtype
    return jnp.issubdtype(dtype, jnp.inexact)


_JIT = type(jax.jit(lambda: None))
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
    t0, number = jnp.zeros((), state.real_dtype), jnp.zeros((), jnp.int32)
    stops = {}

    def hoisted(name, function):
        role = name.split(":")[0]
        if isinstance(function, _JIT):  # its memory of traces would keep `declare_stops` from being reached
            function = function.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
        if role in ("f", "jac", "implicit", "explicit"):
            check_signature(function, name)
        changed: list[int] = []

        def flat(t, us, ps, *extra):
            full = list(p_leaves)
            for i, x in zip(dynamic, ps, strict=True):
                full[i] = x
            given = jax.tree.unflatten(p_tree, full)
            with declared_stops() as declared:
                out = _called(function, t, jax.tree.unflatten(u_tree, us), given, *extra)
            leaves, new = check_results(role, out, name, u_tree, us, p_tree, full)
            if new is not None:
                _same_static(new, full, dynamic, name)
            changed[:] = [j for j, i in enumerate(dynamic) if new is not None and new[i] is not full[i]]
            if role == "f":
                stops["kinds"] = [kind for kind, _ in declared]
                return [*leaves, *(x for _, x in declared)]
            return [*leaves, *([] if new is None else [_like(new[dynamic[j]], ps[j], name) for j in changed])]

        extra = (number,) if role == "affect" else ()
        jaxpr, consts = hoist(flat, t0, u_leaves, values, *extra)
        all_axes = axes | varying_axes(*consts)
        if all_axes:  # inside shard_map: once more, as the program of arguments that vary
            jaxpr, consts = hoist(flat, t0, u_leaves, values, *extra, axes=all_axes)
        return jaxpr, list(consts), changed

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
    own |= {name: place(consts) for name, (_, consts, _) in traced.items() if name != "f"}

    def program(name, jaxpr, changed) -> Program:
        for j in changed:
            if shared[j][0] != "p":
                raise TypeError(f"{name} returned another value for a parameter that is not floating point: make it so")
        kinds = (*own[name], *shared)
        return Program(jaxpr, kinds, len(own[name]), tuple(shared[j][1] for j in changed))

    programs = {name: program(name, jaxpr, changed) for name, (jaxpr, _, changed) in traced.items()}
    layout = (*(kind for kinds in own.values() for kind in kinds), *shared)
    effects = frozenset().union(*(jaxpr_effects(q.jaxpr.jaxpr) for q in programs.values()))
    main = programs.pop("f")
    if stops["kinds"]:
        main, more = _split_stops(main, len(u_leaves), stops["kinds"])
        programs |= more
    new = Field(main, tuple(programs.items()), layout, state, count["p"], count["aux"], effects)
    return _intern(new), [c for _, consts, _ in traced.values() for c in consts]


def _same_static(new: list, old: list, dynamic: list[int], name: str) -> None:
    """Refuse another value of a leaf that is part of the program."""
    for i, (a, b) in enumerate(zip(new, old, strict=True)):
        if i not in dynamic and not (a is b or (type(a) is type(b) and a == b)):
            raise TypeError(f"{name} returned {a!r} for the static parameter {b!r}: make it a floating-point number")


def _like(x, old, name: str):
    """A parameter's new value with the shape and dtype of the old one."""
    x = jnp.asarray(x)
    if x.shape != old.shape:
        raise ValueError(f"{name} returned a parameter of shape {x.shape}, expected {old.shape} as it was")
    if jnp.promote_types(x.dtype, old.dtype) != old.dtype and not x.weak_type:
        raise TypeError(f"{name} returned a parameter of dtype {x.dtype}, expected {old.dtype} as it was")
    return x.astype(old.dtype)


# ---------------------------------------------------------------- times at which f is not smooth

_DECLARED: list[list] = []  # one list for each f that is being traced, the innermost last


@contextlib.contextmanager
def declared_stops():
    """Collect what is declared by `declare_stops` inside."""
    _DECLARED.append([])
    try:
        yield _DECLARED[-1]
    finally:
        _DECLARED.pop()


def declare_stops(times, kind: str) -> None:
    """Say, inside f, at which times (m,) it has a kink ("smooth": it is continuous) or a jump ("jump")."""
    if _DECLARED:
        known = [x for _, x in _DECLARED[-1]]
        if not any(times is x for x in known):
            _DECLARED[-1].append((kind, times))


def _split_stops(program: Program, n: int, kinds: list[str]) -> tuple[Program, dict]:
    """The program of f alone, and those of the times that it declared."""

    def part(start: int, stop: int) -> Program:
        return dataclasses.replace(program, jaxpr=restricted(program.jaxpr, start, stop))

    found = {}
    for j, kind in enumerate(kinds):
        one = part(n + j, n + j + 1)
        operands = range(len(one.jaxpr.jaxpr.invars))
        if any(dependent(one.jaxpr, [0 <= i - program.n_consts <= n for i in operands])):
            raise TypeError(
                "the times at which f is not smooth must not depend on t or u, only on p: build the interpolation "
                "from parameters or constants, outside of f or inside"
            )
        found[f"stops:{kind}:{j}"] = one
    return part(0, n), found


def _called(function: Callable, t, u, p, *extra):
    """function(t, u, p); where it fails for want of p, its error says so."""
    try:
        return function(t, u, p, *extra)
    except (TypeError, AttributeError) as error:
        if p is None and "None" in str(error):
            error.add_note("p is None: neither the problem nor solve was given parameters, p=...")
        raise


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
