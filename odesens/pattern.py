"""Which entry of a Jacobian can be nonzero, read off a program.

Entry (i, j) of a pattern says whether output i of a jaxpr depends on input j. Owns: the pattern of a jaxpr. Must not
know: fields, methods, loops.
Source: A. Griewank, A. Walther, Evaluating Derivatives (2008), chapter 7.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.core import Tracer

MOST_ENTRIES = 2**25  # of a pattern; one that has more is as good as dense


class TooDense(ValueError):
    """A pattern with more than `MOST_ENTRIES` entries."""


Rows = Any  # a boolean csr_array (entries of a value, entries of all inputs)


class _Value(NamedTuple):
    """What is known of an array: on which inputs each of its entries depends (None: on none), and its value."""

    rows: Rows | None = None
    known: np.ndarray | None = None


def pattern(closed_jaxpr, inputs: Sequence[int], known: Mapping[int, Any] | None = None) -> sp.csr_array:
    """Which entry of the outputs depends on which entry of some inputs: never less than the truth.

    Parameters
    ----------
    closed_jaxpr : the program
    inputs : the arguments with respect to which to differentiate, as indices into `closed_jaxpr.jaxpr.invars`
    known : values of other arguments, by index; the pattern then holds for these values only

    Returns
    -------
    bool, (entries of all outputs, entries of all `inputs`), each flattened and concatenated
    """
    jaxpr = closed_jaxpr.jaxpr
    args = [_constant(x) for x in map((known or {}).get, range(len(jaxpr.invars)))]
    sizes = [jaxpr.invars[k].aval.size for k in inputs]
    everything: Any = sp.eye_array(sum(sizes), dtype=bool, format="csr")
    start = 0
    for k, size in zip(inputs, sizes, strict=True):
        args[k] = _Value(everything[start : start + size])
        start += size
    with jax.ensure_compile_time_eval():
        outs = _interpret(closed_jaxpr, args, False)
    empty = lambda v: sp.csr_array((v.aval.size, start), dtype=bool)
    parts = [empty(v) if x.rows is None else x.rows for v, x in zip(jaxpr.outvars, outs, strict=True)]
    out = sp.csr_array(sp.vstack(parts, format="csr", dtype=bool)) if parts else sp.csr_array((0, start), dtype=bool)
    out.sum_duplicates()
    return out


# ---------------------------------------------------------------- programs


def _constant(x) -> _Value:
    opaque = x is None or isinstance(x, Tracer) or jnp.issubdtype(jax.typeof(x).dtype, jax.dtypes.extended)
    return _Value() if opaque else _Value(None, np.asarray(x))


def _interpret(closed, args: list[_Value], every: bool) -> list[_Value]:
    """The results of a jaxpr; `every`: also what has no derivative counts, as a custom rule may give it one."""
    jaxpr = getattr(closed, "jaxpr", closed)
    consts = [_constant(c) for c in getattr(closed, "consts", ())]
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    read = lambda v: _constant(v.val) if hasattr(v, "val") else values[v]
    for eqn in jaxpr.eqns:
        outs = _equation(eqn, [read(v) for v in eqn.invars], every)
        values.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _equation(eqn, args: list[_Value], every: bool) -> list[_Value]:
    name = eqn.primitive.name
    if name in _CALLS:
        inner = next(eqn.params[k] for k in ("call_jaxpr", "fun_jaxpr", "jaxpr") if k in eqn.params)
        return _interpret(inner, args, every or name.startswith("custom"))
    if all(x.rows is None for x in args):
        return _evaluated(eqn, args)
    if name == "cond" and not (every and args[0].rows is not None):
        return _cond(eqn, args, every)
    if name == "scan" and 0 < eqn.params["length"] * len(eqn.params["jaxpr"].jaxpr.eqns) <= _UNROLLED:
        return _scan(eqn, args, every)
    if not every and name in _FLAT:
        return [_Value()] * len(eqn.outvars)
    outs = _rule(name, args, every)(eqn, args)
    has_derivative = [every or jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars]
    return [_Value(rows if used else None) for rows, used in zip(outs, has_derivative, strict=True)]


def _rule(name: str, args: list[_Value], every: bool) -> Callable:
    """The function (eqn, args) -> rows of each result that is right for an operation with these arguments."""
    if name in _MOVES:
        moved = _MOVES[name]
        fixed = [x for i, x in enumerate(args) if i not in range(len(args))[moved]]
        if all(x.known is not None for x in fixed):
            return functools.partial(_moved, which=moved)
        if name == "select_n":
            return _elementwise if every else lambda eqn, xs: _elementwise(eqn, xs[1:])
    if name in _ELEMENTWISE:
        return _elementwise
    if name in _REDUCTIONS:
        return _reduced
    if name.startswith("scatter") and args[1].known is not None:
        return _scattered
    if name == "conv_general_dilated" and args[1].rows is None:
        return _convolved
    if name in _IDENTITIES:
        return lambda eqn, xs: [x.rows for x in xs]
    return _multiplied if name == "dot_general" else _dense


def _evaluated(eqn, args: list[_Value]) -> list[_Value]:
    """Results that depend on no input, computed where all arguments are known."""
    unknown = [_Value()] * len(eqn.outvars)
    large = max((v.aval.size for v in eqn.outvars if hasattr(v.aval, "size")), default=0) > MOST_ENTRIES
    if large or eqn.effects or any(x.known is None for x in args):
        return unknown
    try:
        return [_constant(x) for x in _bind(eqn, *(x.known for x in args))]
    except Exception:  # whatever cannot be computed here is not known
        return unknown


def _bind(eqn, *args, **params) -> list:
    outs = eqn.primitive.bind(*map(jnp.asarray, args), **{**eqn.params, **params})
    return list(outs) if eqn.primitive.multiple_results else [outs]


def _cond(eqn, args: list[_Value], every: bool) -> list[_Value]:
    index, branches = args[0].known, eqn.params["branches"]
    if index is not None:
        branches = [branches[int(np.clip(index, 0, len(branches) - 1))]]
    outs = [_interpret(b, args[1:], every) for b in branches]
    if len(outs) == 1:
        return outs[0]
    return [_Value(functools.reduce(_union, [x.rows for x in xs])) for xs in zip(*outs, strict=True)]


def _scan(eqn, args: list[_Value], every: bool) -> list[_Value]:
    """A loop of few operations, one iteration after the other."""
    p = eqn.params
    length, n_carry, start = p["length"], p["num_carry"], p["num_consts"] + p["num_carry"]
    consts, carry, xs = args[: p["num_consts"]], args[p["num_consts"] : start], args[start:]
    sizes = [v.aval.size for v in p["jaxpr"].jaxpr.invars[start:]]
    ys: list = [None] * length
    for i in reversed(range(length)) if p["reverse"] else range(length):
        part = lambda x, n, i=i: _Value(
            None if x.rows is None else x.rows[i * n : (i + 1) * n], None if x.known is None else x.known[i]
        )
        outs = _interpret(p["jaxpr"], [*consts, *carry, *map(part, xs, sizes)], every)
        carry, ys[i] = outs[:n_carry], outs[n_carry:]
    width = next(x.rows.shape[1] for x in args if x.rows is not None)
    stacked = []
    for v, parts in zip(p["jaxpr"].jaxpr.outvars[n_carry:], zip(*ys, strict=True), strict=True):
        empty = sp.csr_array((v.aval.size, width), dtype=bool)
        rows = [empty if y.rows is None else y.rows for y in parts]
        stacked.append(_Value(None if all(y.rows is None for y in parts) else sp.vstack(rows, format="csr")))
    return [*carry, *stacked]


# ---------------------------------------------------------------- operations


def _union(a, b):
    return b if a is None or a is b else a if b is None else a + b


def _take(rows: Rows, index) -> Rows:
    """The rows with the given numbers, an empty one for each negative number."""
    index = np.asarray(index).ravel()
    counts = np.append(np.diff(rows.indptr), 0)
    index = np.where(index < 0, rows.shape[0], index)
    if counts[index].sum() > MOST_ENTRIES:
        raise TooDense(f"a pattern with more than {MOST_ENTRIES} entries is as good as dense")
    empty = sp.csr_array((1, rows.shape[1]), dtype=bool)
    return sp.csr_array(sp.vstack([rows, empty], format="csr"))[index]


def _gathered(targets, sources, size: int, rows: Rows) -> Rows:
    """Row k of the result, of `size` ones: the union of the rows sources[i] over all i with targets[i] = k."""
    targets, sources = np.ravel(targets), np.ravel(sources)
    ones = np.ones(targets.size, bool)
    return sp.csr_array((ones, (targets, sources)), shape=(size, rows.shape[0]), dtype=bool) @ rows


def _numbers(shape, start: int = 0) -> np.ndarray:
    return np.arange(start, start + int(np.prod(shape, dtype=int)), dtype=np.int32).reshape(shape)


def _moved(eqn, args: list[_Value], which: slice) -> list:
    """An operation that only moves entries about: done on the numbers of the entries, it tells where each one goes."""
    operands, rows, start = [x.known for x in args], [], 0
    for i in range(len(args))[which]:
        shape = eqn.invars[i].aval.shape
        operands[i] = np.full(shape, -1, np.int32)
        if args[i].rows is not None:
            operands[i] = _numbers(shape, start)
            rows.append(args[i].rows)
            start += rows[-1].shape[0]
    stacked = rows[0] if len(rows) == 1 else sp.csr_array(sp.vstack(rows, format="csr"))
    special = {"fill_value": -1} if eqn.primitive.name == "gather" else {}
    return [_take(stacked, x) for x in _bind(eqn, *operands, **special)]


def _elementwise(eqn, args: list[_Value]) -> list:
    shape, fit = eqn.outvars[0].aval.shape, []
    for v, x in zip(eqn.invars[-len(args) :], args, strict=True):  # a selection's first operand may be left out
        own = v.aval.shape
        if x.rows is not None:
            fit.append(x.rows if own == shape else _take(x.rows, np.broadcast_to(_numbers(own), shape)))
    return [functools.reduce(_union, fit, None)] * len(eqn.outvars)


def _reduced(eqn, args: list[_Value]) -> list:
    """Sums and the like over some axes; cumulative ones depend on the whole axis here."""
    p, shape = eqn.params, eqn.invars[0].aval.shape
    axes = p["axes"] if "axes" in p else (p["axis"],)
    kept = [1 if i in axes else n for i, n in enumerate(shape)]
    target = np.broadcast_to(_numbers(kept), shape)
    rows = _gathered(target, _numbers(shape), int(np.prod(kept, dtype=int)), args[0].rows)
    return [rows if "axes" in p else _take(rows, target)]


def _multiplied(eqn, args: list[_Value]) -> list:
    """`dot_general`, with the zeros of a factor that is known."""
    (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]

    def arranged(array, batch, contracted):  # (batch, free, contracted)
        free = [d for d in range(array.ndim) if d not in (*batch, *contracted)]
        sizes = [int(np.prod([array.shape[d] for d in dims], dtype=int)) for dims in (batch, free, contracted)]
        return array.transpose(*batch, *free, *contracted).reshape(sizes)

    specs = [(x_batch, x_sum), (y_batch, y_sum)]
    numbers = [arranged(_numbers(v.aval.shape), *s) for v, s in zip(eqn.invars, specs, strict=True)]
    values = [None if x.known is None else arranged(x.known, *s) for x, s in zip(args, specs, strict=True)]
    shape = (*numbers[0].shape[:2], numbers[1].shape[1])
    out = _numbers(shape)
    total = None
    for own, other, result in ((0, 1, out), (1, 0, out.swapaxes(1, 2))):
        rows, factor = args[own].rows, values[other]
        if rows is None:
            continue
        if factor is None:  # every contracted entry of (batch, free) counts, for all of the other factor's rows
            batch, free, _ = numbers[own].shape
            group = _numbers((batch, free, 1))
            sums = _gathered(np.broadcast_to(group, numbers[own].shape), numbers[own], batch * free, rows)
            back = np.empty(out.size, int)
            back[result] = group  # the number of the group that each result belongs to
            total = _union(total, _take(sums, back))
        else:
            b, j, k = np.nonzero(factor)
            total = _union(total, _gathered(result[b, :, j], numbers[own][b, :, k], out.size, rows))
    return [total]


def _scattered(eqn, args: list[_Value]) -> list:
    """Each update where it lands; an array written into is kept elsewhere only, one added to is kept."""
    array, index, updates = args
    shape, p = eqn.invars[0].aval.shape, eqn.params
    add = lambda x: jax.lax.scatter_add(
        jnp.zeros(shape), jnp.asarray(index.known), x, p["dimension_numbers"], mode=p["mode"]
    )
    numbers = jnp.asarray(_numbers(shape, 1), jnp.zeros(()).dtype)
    (found,) = jax.vjp(add, jnp.zeros(eqn.invars[2].aval.shape))[1](numbers)  # each update's place, 0 for none
    target = np.asarray(found).astype(int).ravel() - 1
    landed, total = np.flatnonzero(target >= 0), array.rows
    update = p.get("update_jaxpr")
    if total is not None and eqn.primitive.name == "scatter" and not getattr(update, "eqns", ()):
        kept = np.arange(total.shape[0])
        kept[target[landed]] = -1
        total = _take(total, kept)
    if updates.rows is not None:
        total = _union(total, _gathered(target[landed], landed, eqn.outvars[0].aval.size, updates.rows))
    return [total]


def _convolved(eqn, args: list[_Value]) -> list:
    """A convolution, with the zeros of a kernel that is known: done with each tap of the kernel alone."""
    kernel, spec = eqn.invars[1].aval, eqn.params["dimension_numbers"]
    inner = spec.rhs_spec[1:]  # input features and space
    sizes = [kernel.shape[d] for d in inner]
    if np.prod(sizes) > _TAPS:
        return _dense(eqn, args)
    numbers = np.asarray(_numbers(eqn.invars[0].aval.shape, 1), jnp.zeros(()).dtype)
    out, total = _numbers(eqn.outvars[0].aval.shape), None
    for tap in np.ndindex(*sizes):
        where: list = [slice(None)] * kernel.ndim
        for d, i in zip(inner, tap, strict=True):
            where[d] = i
        one = np.zeros(kernel.shape, numbers.dtype)
        one[tuple(where)] = 1
        (source,) = _bind(eqn, numbers, one, precision=jax.lax.Precision.HIGHEST, preferred_element_type=None)
        source = np.rint(np.asarray(source)).astype(int) - 1  # the entry that this tap reads, -1 for padding
        if args[1].known is not None:
            weights = args[1].known[tuple(where)]
            source = np.where(np.expand_dims(weights != 0, _others(spec.out_spec)), source, -1)
        read = source >= 0
        total = _union(total, _gathered(out[read], source[read], out.size, args[0].rows))
    return [total]


def _others(out_spec) -> tuple:
    """The dimensions of a convolution's result other than its features."""
    return tuple(d for d in range(len(out_spec)) if d != out_spec[1])


def _dense(eqn, args: list[_Value]) -> list:
    """Every result depends on all that any argument depends on."""
    rows = [x.rows for x in args if x.rows is not None]
    columns = np.unique(np.concatenate([r.indices for r in rows]))
    one = sp.csr_array((np.ones(columns.size, bool), columns, [0, columns.size]), shape=(1, rows[0].shape[1]))
    return [_take(one, np.zeros(v.aval.size, int)) for v in eqn.outvars]


_UNROLLED = 20_000  # equations of a scan, over all iterations, that are followed one by one
_TAPS = 512  # of a convolution that are followed one by one
_ALL = slice(None)
_IDENTITIES = set(  # up to the shape
    "copy copy_p device_put expand_dims name optimization_barrier pcast pvary reshape sharding_constraint "
    "squeeze".split()
)
_CALLS = set(
    "jit pjit closed_call core_call remat remat2 checkpoint custom_jvp_call custom_vjp_call "
    "custom_vjp_call_jaxpr".split()
)
# operations that move entries: which of their operands these are; the others must be known
_MOVES: dict[str, slice] = {
    "dynamic_slice": slice(0, 1),
    "dynamic_update_slice": slice(0, 2),
    "gather": slice(0, 1),
    "select_n": slice(1, None),
} | dict.fromkeys(
    "broadcast_in_dim concatenate pad rev slice split stack tile transpose unstack".split(),
    _ALL,
)
_FLAT = set(  # of derivative zero
    "sign floor ceil round is_finite eq ne lt le gt ge and or xor not stop_gradient argmax argmin".split()
)
_ELEMENTWISE = _FLAT - {"argmax", "argmin"} | set(
    "abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clamp complex conj "
    "convert_element_type cos cosh digamma div erf erf_inv erfc exp exp2 expm1 igamma igamma_grad_a igammac imag "
    "integer_pow lgamma log log1p logistic max min mul neg nextafter polygamma pow "
    "random_gamma_grad real reduce_precision regularized_incomplete_beta rem rsqrt sin sinh sqrt square sub tan tanh "
    "zeta".split()
)
_REDUCTIONS = set(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor "
    "cumsum cumprod cummax cummin cumlogsumexp".split()
)
