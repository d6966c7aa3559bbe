"""The one door to JAX's extension points (`jax.extend`, `jax.interpreters`) and to what differs between JAX versions.

Owns: registering a primitive with its rules; hoisting a function to a jaxpr without constants, and a key by which two
such jaxprs are the same program; varying manual axes and shardings of abstract values.
Must not know: differential equations, solvers, user types.
"""

import collections
import contextlib
import functools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

Zero = ad.Zero
is_undefined_primal = ad.is_undefined_primal


def zero_tangent(x) -> Zero:
    """The symbolic zero tangent of a primal value."""
    return Zero(jax.typeof(x).to_tangent_aval())


def make_primitive(name: str, *, impl, abstract_eval, lower, jvp, transpose, batch) -> Callable[..., list]:
    """A primitive with several results and its five rules; returns its `bind`.

    `abstract_eval` returns `(avals, effects)`; the others have the signatures of `jax.interpreters`.
    """
    primitive = jex.Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(impl)
    primitive.def_effectful_abstract_eval(abstract_eval)
    mlir.register_lowering(primitive, mlir.lower_fun(lower, multiple_results=True))
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    return primitive.bind


# ---------------------------------------------------------------- hoisted functions


class Hoisted(NamedTuple):
    """A function as a jaxpr whose every captured array is an operand: `jaxpr(*consts, *flat arguments)`."""

    jaxpr: Any
    consts: list


def hoist(fun: Callable, *args, axes: frozenset = frozenset()) -> Hoisted:
    """Trace `fun(*args)` once; captured arrays and tracers, of any outer transformation, become `consts`.

    The arguments are taken to vary along the manual mesh axes `axes`.
    """
    abstract = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
    shapes = vary(args, axes) if axes else jax.tree.map(abstract, args)
    with _automatic_mesh():
        closed = jax.make_jaxpr(fun)(*shapes)
    return Hoisted(_without_consts(closed), list(closed.consts))


def _automatic_mesh():
    """Explicit mesh axes made automatic: the program is the same on every mesh, loops run it under automatic axes."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = tuple(getattr(mesh, "axis_types", None) or ())
    if jax.sharding.AxisType.Explicit not in kinds:
        return contextlib.nullcontext()
    auto = tuple(jax.sharding.AxisType.Auto if k == jax.sharding.AxisType.Explicit else k for k in kinds)
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh(mesh.axis_sizes, mesh.axis_names, auto))


def _no_names(jaxpr):
    """Debug information that fits the widened argument list (names of arguments no longer match it)."""
    return jaxpr.debug_info._replace(arg_names=None) if jaxpr.debug_info is not None else None


def evaluate(closed, *operands) -> list:
    """The results of a hoisted jaxpr, under whatever transformation and mesh is active.

    The mesh and the manual axes at the time of tracing do not matter: casts to varying are redone for the operands at
    hand, and nested `jit`s are evaluated in place.
    """
    jaxpr = closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *operands], strict=True))

    def read(atom):
        return atom.val if isinstance(atom, jex.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(v) for v in eqn.invars]
        name = eqn.primitive.name
        if name in ("jit", "pjit"):
            outs = evaluate(eqn.params["jaxpr"], *inputs)
        elif name == "dot_general" and _small_dot(eqn):
            outs = [_multiply_and_sum(eqn, *inputs)]
        elif name in ("pvary", "pcast") and "axes" in eqn.params:
            outs = [vary(x, frozenset(eqn.params["axes"])) for x in inputs]
        else:
            outs = _bind(eqn, inputs)
        values.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]


_SMALL_DOT = 1024  # multiplications


def _small_dot(eqn) -> bool:
    """Whether a product of arrays is so small that elementwise work is no slower: it keeps loops free of libraries."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    lhs, out = eqn.invars[0].aval, eqn.outvars[0].aval
    count = out.size
    for d in contracted:
        count *= lhs.shape[d]
    plain = {v.aval.dtype for v in (*eqn.invars, *eqn.outvars)} == {out.dtype}
    return 0 < count <= _SMALL_DOT and plain


def _multiply_and_sum(eqn, x, y):
    """`dot_general` by multiplications and one sum; dimensions of the result: batch, free of x, free of y."""
    (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    free = lambda a, taken: [d for d in range(a.ndim) if d not in taken]
    x_free, y_free = free(x, (*x_sum, *x_batch)), free(y, (*y_sum, *y_batch))
    x = jnp.transpose(x, (*x_batch, *x_free, *x_sum))
    y = jnp.transpose(y, (*y_batch, *y_free, *y_sum))
    n = len(x_batch)
    x = jnp.expand_dims(x, range(n + len(x_free), n + len(x_free) + len(y_free)))
    y = jnp.expand_dims(y, range(n, n + len(x_free)))
    x, y = vary((x, y), varying_axes(x, y))
    return jnp.sum(x * y, axis=tuple(range(n + len(x_free) + len(y_free), x.ndim)))


def _bind(eqn, inputs) -> list:
    """The results of one equation on new inputs, which then vary along the same manual axes."""
    inputs = vary(inputs, varying_axes(*inputs))
    bound = eqn.primitive.get_bind_params(eqn.params)
    subfuns, params = bound if isinstance(bound, tuple) else ((), bound)  # newer JAX has them among the parameters
    outs = eqn.primitive.bind(*subfuns, *inputs, **params)
    return list(outs) if eqn.primitive.multiple_results else [outs]


def exchanged(closed, name: str, replace: Callable) -> Callable[..., list]:
    """A jaxpr as a function in which `replace(params, inputs)` gives the results of each equation of a primitive.

    Also of those in nested jaxprs, but for the rules of `custom_jvp` and `custom_vjp` functions. What `replace` returns
    must have the shapes of the results it stands for.
    """

    def run(closed, *operands) -> list:
        jaxpr = closed.jaxpr
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *operands], strict=True))
        read = lambda atom: atom.val if isinstance(atom, jex.Literal) else values[atom]
        for eqn in jaxpr.eqns:
            inputs = [read(v) for v in eqn.invars]
            if eqn.primitive.name == name:
                outs = replace(eqn.params, inputs)
            elif eqn.primitive.name in ("jit", "pjit"):
                outs = run(eqn.params["jaxpr"], *inputs)
            else:
                outs = _bind(_traced_again(eqn), inputs)
            values.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _traced_again(eqn):
        rules = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_linear_solve")
        if eqn.primitive.name in rules:
            return eqn
        return eqn.replace(params={k: again(v) for k, v in eqn.params.items()})

    def again(v):
        if type(v) is tuple:
            return tuple(again(x) for x in v)
        inner = jex.ClosedJaxpr(v, ()) if isinstance(v, jex.Jaxpr) else v
        if not isinstance(inner, jex.ClosedJaxpr) or not contains_primitive(inner.jaxpr, name):
            return v
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in inner.in_avals]
        new = jax.make_jaxpr(functools.partial(run, inner))(*shapes)
        return new if inner is v else new.jaxpr

    return functools.partial(run, closed)


def restricted(closed, start: int, stop: int):
    """The jaxpr of the results start .. stop - 1 alone, without the equations that only the others need."""
    jaxpr = closed.jaxpr.replace(outvars=closed.jaxpr.outvars[start:stop], debug_info=_no_names(closed.jaxpr))
    return jex.ClosedJaxpr(jaxpr.replace(eqns=_live(jaxpr)), closed.consts)


def dependent(closed, varied: Sequence[bool]) -> list[bool]:
    """Which results of a jaxpr depend on any of the arguments that are `varied`."""
    jaxpr = closed.jaxpr
    moved = {v for v, yes in zip(jaxpr.invars, varied, strict=True) if yes}
    reads = lambda atoms: any(v in moved for v in atoms if not isinstance(v, jex.Literal))
    for eqn in jaxpr.eqns:
        if reads(eqn.invars):
            moved.update(eqn.outvars)
    return [reads([v]) for v in jaxpr.outvars]


_PROGRAMS: collections.OrderedDict = collections.OrderedDict()  # compiled ones, most recently used last
_PROGRAMS_MAX = 128


def compiled(closed, **options) -> Callable[..., list]:
    """`jax.jit` of a jaxpr without constants, with its options; the same object for the same program traced anew."""
    key = (jaxpr_key(closed), tuple(sorted(options.items())))
    run = _PROGRAMS.pop(key, None) or jax.jit(jex.jaxpr_as_fun(closed), **options)
    _PROGRAMS[key] = run
    if len(_PROGRAMS) > _PROGRAMS_MAX:
        _PROGRAMS.popitem(last=False)
    return run


def contains_primitive(jaxpr, name: str) -> bool:
    """Whether a jaxpr, or one nested in it, has an equation of this primitive."""
    return any(e.primitive.name == name for e in jaxpr.eqns) or any(
        contains_primitive(inner, name) for inner in subjaxprs(jaxpr)
    )


def subjaxprs(jaxpr) -> list:
    """The jaxprs in the parameters of a jaxpr's equations, one level deep; of a linear solve, the one that it runs."""
    params = [_solve_alone(e.params) if e.primitive.name == "custom_linear_solve" else e.params for e in jaxpr.eqns]
    values = [v for q in params for p in q.values() for v in (p if isinstance(p, (list, tuple)) else [p])]
    return [
        v.jaxpr if isinstance(v, jex.ClosedJaxpr) else v for v in values if isinstance(v, (jex.Jaxpr, jex.ClosedJaxpr))
    ]


def _solve_alone(params: dict) -> dict:
    return {"solve": params["jaxprs"].solve}


def jaxpr_effects(jaxpr) -> frozenset:
    return frozenset(jaxpr.effects)


@functools.cache
def debug_effects() -> frozenset:
    """The effects of a `jax.debug.callback`, which every transformation lets pass."""
    return jaxpr_effects(jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().jaxpr)


class _Identity:
    """A key by identity that keeps its object alive, so that an address is never reused for another one."""

    def __init__(self, obj):
        self.obj = obj

    def __eq__(self, other):
        return isinstance(other, _Identity) and self.obj is other.obj

    def __hash__(self):
        return id(self.obj)


_CUSTOM_RULES = ("custom_jvp_call", "custom_vjp_call")
_RULE_DEPTH = 6  # custom rules within custom rules are compared this deep, then by what they compute undifferentiated


def jaxpr_key(closed, depth: int = _RULE_DEPTH) -> Hashable:
    """A hashable key: equal keys mean the same program, also for functions traced anew.

    Functions held by an equation (custom derivative rules) have no value to compare, so a custom rule is compared by
    the jaxpr of what it computes; any other function by identity.
    """
    jaxpr = closed.jaxpr
    number = {v: i for i, v in enumerate([*jaxpr.constvars, *jaxpr.invars])}

    def atom(v):
        if isinstance(v, jex.Literal):
            value = np.asarray(v.val)
            return ("literal", str(v.aval), value.dtype.str, value.tobytes())
        return number[v]

    eqns = []
    for eqn in _live(jaxpr):
        inputs = tuple(atom(v) for v in eqn.invars)
        for v in eqn.outvars:
            number[v] = len(number)
        outs = tuple(v.aval for v in eqn.outvars)
        eqns.append((eqn.primitive, inputs, outs, _params_key(eqn, depth)))
    return (
        tuple(v.aval for v in jaxpr.invars),
        tuple(eqns),
        tuple(atom(v) for v in jaxpr.outvars),
        tuple(_value_key(c, depth) for c in closed.consts),
    )


def _live(jaxpr) -> list:
    """The equations that the results or an effect need."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, jex.Literal)}
    live = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or any(v in needed for v in eqn.outvars):
            live.append(eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, jex.Literal))
    return live[::-1]


def _params_key(eqn, depth: int) -> Hashable:
    params = eqn.params
    if eqn.primitive.name in _CUSTOM_RULES:
        value = jaxpr_key(params["call_jaxpr"], depth)
        if depth == 0:
            return value
        rule = None if params["symbolic_zeros"] else _rule_jaxpr(eqn)  # such a rule may ask which tangents are zero
        if rule is not None:
            return (value, jaxpr_key(rule, depth - 1), params["symbolic_zeros"])
    return tuple((k, _value_key(v, depth)) for k, v in sorted(params.items()))


def _rule_jaxpr(eqn):
    """What the custom rule of `eqn` computes, as a jaxpr of its own; None where it cannot be traced here."""
    avals = [v.aval for v in eqn.invars]
    args = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    if not all(jnp.issubdtype(a.dtype, jnp.inexact) for a in avals):
        return None

    def call(*xs):
        return _bind(eqn, xs)

    def forward(xs, tangents):
        return jax.jvp(call, xs, tangents)[1]

    def reverse(xs, cotangents):
        return jax.vjp(call, *xs)[1](cotangents)

    try:
        if eqn.primitive.name == "custom_jvp_call":
            rule = jax.make_jaxpr(forward)(tuple(args), tuple(args))
        else:
            outs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
            rule = jax.make_jaxpr(reverse)(tuple(args), outs)
    except Exception:  # a rule that fails to trace will fail where it is used, with its own message
        return None
    if any(isinstance(c, Tracer) for c in rule.consts):
        raise TypeError(
            "a custom_jvp or custom_vjp function called by f captures a traced value in its derivative rule, where it "
            "cannot be differentiated: pass that value to the function as an argument"
        )
    return rule


def _value_key(v, depth: int) -> Hashable:
    if isinstance(v, jex.ClosedJaxpr):
        return jaxpr_key(v, depth)
    if isinstance(v, jex.Jaxpr):
        return jaxpr_key(jex.ClosedJaxpr(v, []), depth) if not v.constvars else _Identity(v)
    if isinstance(v, np.ndarray):
        return ("array", v.dtype.str, v.shape, v.tobytes())
    if isinstance(v, (list, tuple)):
        return (type(v), tuple(_value_key(x, depth) for x in v))
    if isinstance(v, dict):
        return tuple((k, _value_key(x, depth)) for k, x in sorted(v.items(), key=lambda kv: str(kv[0])))
    if isinstance(v, jax.Array):
        return _Identity(v)
    if isinstance(v, types.FunctionType):  # made anew at each trace, with the same code on the same values
        cells = [c.cell_contents for c in v.__closure__ or ()]
        parts = (cells, v.__defaults__, v.__kwdefaults__)
        return (v.__code__, _Identity(v.__globals__), *(_value_key(x, depth) for x in parts))
    try:
        hash(v)
    except TypeError:
        return _Identity(v)
    return (type(v), v)


# ---------------------------------------------------------------- abstract values


def _varying_kind(axes: frozenset) -> dict:
    """The keyword by which an abstract value says that it varies along `axes`; its name is not the same in all JAX."""
    if not axes:
        return {}
    manual = getattr(jax.sharding, "ManualAxisType", None)
    return {"vma": axes} if manual is None else {"manual_axis_type": manual(varying=axes)}


def varying_axes(*values) -> frozenset:
    """The manual mesh axes (of `shard_map`) along which any of the values varies."""
    axes: frozenset = frozenset()
    for x in values:
        aval = x if hasattr(x, "weak_type") and not isinstance(x, jax.Array) else jax.typeof(x)
        manual = getattr(aval, "manual_axis_type", None)
        axes |= manual.varying if manual is not None else getattr(aval, "vma", frozenset())
    return axes


def vary(tree, axes: frozenset):
    """Cast every array of `tree` to vary along `axes`: loop carries must have one type from the first iteration on."""

    def cast(x):
        missing = tuple(sorted(axes - varying_axes(x), key=str))
        if not missing:
            return x
        if hasattr(jax.lax, "pcast"):
            return jax.lax.pcast(x, missing, to="varying")
        return jax.lax.pvary(x, missing)  # pyright: ignore[reportAttributeAccessIssue]

    return jax.tree.map(cast, tree) if axes else tree


def while_loop(cond, body, init):
    """`jax.lax.while_loop` whose carry varies along every manual axis that any part of it varies along."""
    return jax.lax.while_loop(cond, body, vary(init, varying_axes(*jax.tree.leaves(init))))


def compiled_whole(fun: Callable, *args, otherwise: Callable | None = None):
    """`fun(*args)`; on a CPU, compiled to one native function where that is known to work, else `otherwise(*args)`.

    XLA:CPU runs a loop as one function only where an iteration touches less than about 1 KB; otherwise each fusion is
    a call of its own, which costs small problems a factor of 3 to 12. A call that carries the attribute by which XLA
    marks such loops itself is compiled in the same way, whatever its size. XLA cannot do this for every operation, and
    ends the process where it cannot, so only programs made of `_WHOLE` operations on small arrays are marked; all
    others, and those of a JAX newer than what was tested, run as they always do.
    """
    otherwise = fun if otherwise is None else otherwise
    leaves, tree = jax.tree.flatten(args)
    here = _WHOLE_TESTED and jax.default_backend() == "cpu" and not _divided_by_xla(jax.sharding.get_abstract_mesh())
    if not here or varying_axes(*leaves):
        return otherwise(*args)
    closed, shape = jax.make_jaxpr(lambda *xs: fun(*jax.tree.unflatten(tree, xs)), return_shape=True)(*leaves)
    if not can_be_whole(closed.jaxpr) or count_equations(closed.jaxpr) > _WHOLE_EQUATIONS:
        return otherwise(*args)
    run = jex.jaxpr_as_fun(_without_consts(closed))
    operands = [*closed.consts, *leaves]
    full = [i for i, x in enumerate(operands) if jnp.size(x)]  # what is empty cannot be used, and is made inside

    def with_empty(*xs):
        values = [jnp.zeros(jnp.shape(x), jnp.result_type(x)) for x in operands]
        for i, x in zip(full, xs, strict=True):
            values[i] = x
        return [*run(*values), _touch(xs)]

    # XLA expects the function to use each of its parameters: no constant may be moved into it, and none be dropped
    inputs = jax.lax.optimization_barrier([jnp.asarray(operands[i]) for i in full])
    outs = _whole.bind(*inputs, closed=jax.make_jaxpr(with_empty)(*inputs))[:-1]
    return jax.tree.unflatten(jax.tree.structure(shape), outs)


def _divided_by_xla(mesh) -> bool:
    """Whether any axis of a mesh is not manual, so that XLA divides the program and may add communication."""
    return any(kind != jax.sharding.AxisType.Manual for kind in getattr(mesh, "axis_types", None) or ())


def _touch(xs):
    """A number that depends on every one of the arrays."""
    firsts = [jnp.real(x.reshape(-1)[0] if x.ndim else x).astype(jnp.float32) for x in xs]
    return sum(firsts, jnp.zeros((), jnp.float32))


def _without_consts(closed):
    """A jaxpr whose constants are its first arguments."""
    jaxpr = closed.jaxpr
    pure = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars], debug_info=_no_names(jaxpr))
    return jex.ClosedJaxpr(pure, [])


_WHOLE_TESTED = jax.__version_info__ < (0, 11)
_WHOLE_EQUATIONS = 7000  # above, one function of all of them takes long to compile, 240 s at 11 000
_WHOLE_SIZE = 2**14  # entries of arrays in elementwise arithmetic
_WHOLE_REDUCED = 2**11  # entries of arrays that are reduced: XLA hands larger reductions to a library
_WHOLE_ANY_SIZE = set(
    "broadcast_in_dim cond copy copy_p dynamic_slice dynamic_update_slice expand_dims gather jit pjit reshape scan "
    "slice squeeze while".split()
)
# without reduce_max and reduce_min: their derivative asks which entry equals the result, and a fused program may
# compute the entry once more, with other roundings
_WHOLE = _WHOLE_ANY_SIZE | set(
    "abs acos acosh add add_any and argmax asin asinh atan atan2 atanh cbrt ceil clamp concatenate conj "
    "convert_element_type cos cosh custom_jvp_call custom_linear_solve custom_vjp_call div empty empty2 eq erf erfc "
    "exp exp2 expm1 floor ge gt imag integer_pow iota is_finite le lgamma log log1p logistic lt max min "
    "mul ne neg nextafter not or pad pow real reduce_and reduce_or reduce_prod reduce_sum rem rev round rsqrt "
    "select_n sign sin sinh split sqrt square stack stop_gradient sub tan tanh tile transpose unstack xor".split()
)


def count_equations(jaxpr) -> int:
    """The number of equations of a jaxpr, those of nested jaxprs included."""
    return len(jaxpr.eqns) + sum(count_equations(inner) for inner in subjaxprs(jaxpr))


def can_be_whole(jaxpr) -> bool:
    """Whether XLA:CPU is known to compile this program to one native function."""
    if jaxpr.effects:
        return False
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name not in _WHOLE:
            return False
        sizes = [getattr(v.aval, "size", 0) for v in (*eqn.invars, *eqn.outvars)]
        # not over axes of length one
        reduces = name == "argmax" or (name.startswith("reduce_") and sizes[0] != sizes[-1])
        most = _WHOLE_REDUCED if reduces else _WHOLE_SIZE
        if name not in _WHOLE_ANY_SIZE and max(sizes, default=0) > most:
            return False
    return all(can_be_whole(inner) for inner in subjaxprs(jaxpr))


_whole = jex.Primitive("compiled_whole")
_whole.multiple_results = True
_whole.def_impl(lambda *operands, closed: jax.jit(jex.jaxpr_as_fun(closed))(*operands))
_whole.def_abstract_eval(lambda *avals, closed: closed.out_avals)


def _lower_whole(ctx, *operands, closed):
    outs = mlir.lower_fun(jax.jit(jex.jaxpr_as_fun(closed)), multiple_results=True)(ctx, *operands)
    devices = ctx.module_context.axis_context
    alone = isinstance(devices, mlir.ShardingContext) and devices.num_devices == 1
    manual = isinstance(devices, mlir.SPMDAxisContext) and devices.manual_axes == frozenset(devices.mesh.axis_names)
    if not alone and not manual:
        return outs  # XLA may put communication into the function, which cannot be compiled in this way
    text = mlir.ir.StringAttr.get
    marks: dict = {"inlineable": text("false"), "xla_cpu_small_call": text("true")}
    for value in (v for out in outs for v in (out if isinstance(out, (tuple, list)) else [out])):
        call: Any = value.owner
        if getattr(call, "name", "") == "func.call":
            call.attributes["mhlo.frontend_attributes"] = mlir.ir.DictAttr.get(marks)
    return outs


mlir.register_lowering(
    _whole, mlir.lower_fun(lambda *operands, closed: jex.jaxpr_as_fun(closed)(*operands), multiple_results=True)
)
mlir.register_lowering(_whole, _lower_whole, platform="cpu")


def _batch_whole(operands, dims, *, closed):
    """A batched program is no longer small: it runs as any other."""
    outs = jax.vmap(jex.jaxpr_as_fun(closed), dims)(*operands)
    return outs, [0] * len(outs)


batching.primitive_batchers[_whole] = _batch_whole


def count_down(count, body, init):
    """`carry = body(i, carry)` for i = count - 1, .., 0; `count` may be traced."""
    axes = varying_axes(count, *jax.tree.leaves(init))
    start = vary((jnp.asarray(count, jnp.int32) - 1, init), axes)
    return jax.lax.while_loop(lambda s: s[0] >= 0, lambda s: (s[0] - 1, body(s[0], s[1])), start)[1]


class Typing:
    """Shardings and manual axes of a call's operands, and the abstract results that agree with them."""

    def __init__(self, avals: Sequence):
        self._avals = avals
        self._axes = varying_axes(*avals)
        meshes = [a.sharding.mesh for a in avals if not a.sharding.mesh.empty]
        self.mesh = meshes[0] if meshes else None

    def spec(self, i: int, axis: int):
        """The mesh axis along which operand `i` is sharded in dimension `axis`."""
        spec = self._avals[i].sharding.spec
        return spec[axis] if axis < len(spec) else None

    def result(self, shape, dtype, spec=()):
        """The abstract value of a result with this shape and dtype, sharded as `spec` says."""
        kind: dict[str, Any] = _varying_kind(self._axes)
        if self.mesh is not None:
            kind["sharding"] = self.sharding(spec, len(shape))
        return ShapedArray(tuple(shape), dtype, **kind)

    def sharding(self, spec, ndim: int):
        full = tuple(spec) + (None,) * (ndim - len(tuple(spec)))
        assert self.mesh is not None
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*full))

    @property
    def explicit(self) -> bool:
        """Whether shardings are part of types here; loops then run under automatic axes."""
        return self.mesh is not None and any(
            t == jax.sharding.AxisType.Explicit for t in getattr(self.mesh, "axis_types", None) or ()
        )


def automatic(fun: Callable, operands, out_shardings) -> Any:
    """Run `fun(*operands)` with explicit mesh axes made automatic; results get the given shardings."""
    return jax.sharding.auto_axes(lambda *xs: list(fun(*xs)), out_sharding=list(out_shardings))(*operands)
