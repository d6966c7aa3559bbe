"""The flow as one JAX primitive, closed under differentiation at every order.

With r = (u0, p, t0, ts) the differentiable inputs, Phi(r) = u(ts), x_i tangents of r and w a cotangent of u(ts):

    T_k(r; x_1..x_k)     = D^k Phi(r)[x_1, .., x_k]                  (T_0 is the solve itself)
    A_k(r; x_1..x_k; w)  = grad_r < w, T_k(r; x_1..x_k) >            (A_0 is the adjoint)

Both are symmetric and multilinear in the slots x_i, and A_k is linear in w. So

    jvp of T_k in r along d              T_(k+1)(r; x.., d)
    jvp of T_k in slot x_i along d       T_k with x_i replaced by d
    jvp of A_k in r along d              A_(k+1)(r; x.., d; w)
    jvp of A_k in x_i or w along d       A_k with that slot replaced by d
    transpose of T_k in x_i, given w     A_(k-1)(r; x.. without x_i; w)
    transpose of A_k in w, given v       T_(k+1)(r; x.., v)
    transpose of A_k in x_i, given v     A_k(r; x.. without x_i, v; w)
    vmap                                 the same call with one more axis of lanes

Owns: the call's static description, its five rules. Must not know: numerics (`evaluate`), user types (`solve`).
"""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from . import batches, evaluate, progress
from .call import LANE, NONE, RECORD, SHARED, Call
from .extension import Typing, Zero, automatic, debug_effects, is_undefined_primal, make_primitive, zero_tangent
from .integrate.loop import COUNTS
from .integrate.record import FIELDS


def flow(call: Call, *operands) -> list:
    """Bind the primitive: T_0, T_k or A_k as `call` says, on its flat operands."""
    return _bind(*operands, call=call)


# ---------------------------------------------------------------- evaluation


@functools.lru_cache(maxsize=1024)
def _compiled(call: Call) -> Callable:
    return jax.jit(functools.partial(batches.evaluate, call, flow))


def _impl(*operands, call: Call):
    """Eagerly: run the compiled program, kept for the next call; a failure raises here, where it can."""
    with progress.closing() if call.reports else contextlib.nullcontext():
        outs = _compiled(call)(*operands)
        evaluate.raise_failure(call, operands, outs)
    return outs


def _lower(*operands, call: Call):
    typing = Typing([jax.typeof(x) for x in operands])
    if not typing.explicit:
        return _compiled(call)(*operands)
    specs = [typing.sharding(spec, len(shape)) for shape, _, spec in _results(call, operands, typing)]
    return automatic(functools.partial(batches.evaluate, call, flow), operands, specs)


def _abstract(*avals, call: Call):
    """By shape logic alone: nothing is traced, so a field that has no jvp may still be differentiated backwards."""
    typing = Typing(avals)
    results = [typing.result(shape, dtype, spec) for shape, dtype, spec in _results(call, avals, typing)]
    return results, call.spec.field.effects | (debug_effects() if call.reports else frozenset())


def _results(call: Call, operands, typing: Typing) -> list:
    """(shape, dtype, sharding) of each result."""
    state = call.spec.field.state
    lane_shape = () if call.lanes is None else (call.lanes,)
    mapped = [i for i, m in enumerate(call.mapped) if m] if call.lanes is not None else []
    lane_spec = tuple(next((s for i in mapped if (s := typing.spec(i, call.lane_axis(i)))), None) for _ in lane_shape)

    def own_spec(i: int):
        skip = 1 if call.is_mapped(i) else 0
        ndim = operands[i].ndim
        return tuple(typing.spec(i, a) for a in range(skip, ndim))

    if call.adjoint:
        out = []
        for i in call.wanted:
            x = operands[i]
            shape = x.shape[1:] if call.is_mapped(i) else x.shape
            lead = (lane_shape, lane_spec) if call.kinds[i] == LANE else ((), ())
            out.append(((*lead[0], *shape), x.dtype, (*lead[1], *own_spec(i))))
        return [*out, ((*lane_shape, 1 + COUNTS), jnp.int32, lane_spec)]

    m, time = operands[call.i_ts].shape[-1], operands[call.i_t0].dtype
    states = list(zip(state.shapes, state.dtypes, map(own_spec, range(call.n_u)), strict=True))

    def rows_of(n: int) -> list:
        return [((*lane_shape, n, *shape), dtype, (*lane_spec, None, *spec)) for shape, dtype, spec in states]

    out = rows_of(m)
    events = call.spec.events
    if events is not None:
        out += [((*lane_shape, events.most), time, lane_spec), *rows_of(events.most), *rows_of(events.most)]
    if call.has_info:
        out += [(lane_shape, jnp.int32, lane_spec), ((*lane_shape, COUNTS), jnp.int32, lane_spec)]
        out += [(lane_shape, time, lane_spec), (lane_shape, time, lane_spec)]
        out += [((*lane_shape, *shape), dtype, (*lane_spec, *spec)) for shape, dtype, spec in states]
        if events is not None:
            out += [
                ((*lane_shape, events.most), jnp.int32, lane_spec),
                ((*lane_shape, call.rows or 0), time, lane_spec),
            ]
    if call.emit_record:
        rows = call.record_rows(m)
        out += [
            ((rows, *lane_shape, FIELDS), operands[call.i_t0].dtype, (None, *lane_spec)),
            ((rows, *lane_shape, call.row_size), state.dtype, (None, *lane_spec)),
            ((2,), jnp.int32, (None,)),
            (lane_shape, jnp.int32, lane_spec),
        ]
    return out


# ---------------------------------------------------------------- jvp


def _jvp(primals, tangents, *, call: Call):
    """Each term is one bind, linear in its tangent, apart from the primal bind, so that reverse mode can split them."""
    live = [i for i, d in enumerate(tangents) if type(d) is not Zero]
    outs, record = _primal_with_record(call, primals)
    terms = []

    in_r = [i for i in live if i < call.n_r]
    if in_r:  # D(T_k) = T_(k+1), D(A_k) = A_(k+1) with the direction as one more slot
        with_record, operands = _give_record(call, primals, record)
        mask = tuple(i in in_r for i in range(call.n_r))
        terms.append(
            _bind_with_slot(with_record, operands, mask, [tangents[i] for i in in_r], [call.is_mapped(i) for i in in_r])
        )

    for group in (*call.slot_ranges, call.w_range):
        moved = [i for i in group if i in live]
        if not moved:
            continue
        if group is call.w_range:  # A_k is linear in w
            new = [tangents[i] if i in live else jnp.zeros_like(primals[i]) for i in group]
            operands = [*primals[: group[0]], *new]
            terms.append(flow(call, *operands))
        else:  # T_k and A_k are linear in each slot: the slot becomes the direction, in its live components only
            terms.append(_replace_slot(call, primals, group, moved, [tangents[i] for i in moved]))

    n_tangent = call.n_linear_results
    if not terms:
        return outs, [zero_tangent(x) for x in outs]
    dots = [functools.reduce(jnp.add, column) for column in zip(*(t[:n_tangent] for t in terms), strict=True)]
    return outs, [*dots, *(zero_tangent(x) for x in outs[n_tangent:])]


def _primal_with_record(call: Call, primals):
    """The primal results, and the record of the solve where this call makes one: the residual of its derivatives."""
    if call.order or call.adjoint or call.given_record:
        return flow(call, *primals), None
    outs = flow(replace(call, emit_record=True), *primals)
    record = outs[-RECORD:]
    return (outs if call.emit_record else outs[:-RECORD]), record


def _give_record(call: Call, operands, record) -> tuple[Call, list]:
    """The call and its operands with the record as an operand."""
    if record is None:
        return call, list(operands)
    head = call.n_fixed
    mapped = (*call.mapped[:head], *_record_mapped(call.lanes), *call.mapped[head:])
    given = replace(silent(call), given_record=True, emit_record=False, mapped=mapped)
    return given, [*operands[:head], *record, *operands[head:]]


def silent(call: Call) -> Call:
    """The call without reports: derivatives and later uses of a solution are the same with and without them."""
    return replace(call, spec=replace(call.spec, progress=False)) if call.spec.progress else call


def _record_mapped(lanes) -> tuple[bool, ...]:
    return (False,) * RECORD if lanes is None else (True, True, False, True)


def _bind_with_slot(call: Call, operands, mask, values, mapped) -> list:
    """The call of one order more, with one more slot after the others."""
    at = call.n_fixed + call.n_record + sum(sum(s) for s in call.slots)
    new = replace(
        call,
        slots=(*call.slots, mask),
        emit_record=False,
        mapped=(*call.mapped[:at], *mapped, *call.mapped[at:]),
    )
    return flow(new, *operands[:at], *values, *operands[at:])


def _replace_slot(call: Call, operands, group, moved, values) -> list:
    number = call.slot_ranges.index(group)
    components = call.slot_components(number)
    mask = tuple(any(components[i - group[0]] == c and i in moved for i in group) for c in range(call.n_r))
    keep = [i for i in range(len(operands)) if i not in group or i in moved]
    new_values = dict(zip(moved, values, strict=True))
    slots = tuple(mask if j == number else s for j, s in enumerate(call.slots))
    new = replace(call, slots=slots, mapped=tuple(call.mapped[i] for i in keep))
    return flow(new, *(new_values.get(i, operands[i]) for i in keep))


# ---------------------------------------------------------------- transpose


def _transpose(cotangents, *operands, call: Call):
    unknown = [i for i, x in enumerate(operands) if is_undefined_primal(x)]
    results: list[Any] = [None] * len(operands)
    cts = [_instantiate(ct) for ct in cotangents[: call.n_linear_results]]

    if call.adjoint and unknown[0] in call.w_range:  # A_k in w, given v: T_(k+1)(r; x.., v)
        mask, mapped = _as_slot(call)
        known = operands[: call.w_range[0]]
        tangent = replace(call, want=None, mapped=call.mapped[: len(known)])
        outs = _bind_with_slot(tangent, known, mask, cts, mapped)
        for i, ct in zip(call.w_range, outs, strict=True):
            results[i] = ct
        return results

    number, group = next((j, g) for j, g in enumerate(call.slot_ranges) if unknown[0] in g)
    components = dict(zip(group, call.slot_components(number), strict=True))
    want = [NONE] * call.n_r
    for i in unknown:
        want[components[i]] = LANE if call.is_mapped(i) or call.lanes is None else SHARED
    rest = [i for i in range(len(operands)) if i not in group and i not in call.w_range]
    w = [operands[i] for i in call.w_range]
    slots = tuple(s for j, s in enumerate(call.slots) if j != number)
    lane = call.lanes is not None
    new = replace(call, slots=slots, want=tuple(want), mapped=tuple(call.mapped[i] for i in rest))
    if call.adjoint:  # A_k in x_i, given v: A_k(r; x.. without x_i, v; w)
        new = replace(new, mapped=(*new.mapped, *(lane for _ in w)))
        mask, mapped = _as_slot(call)
        outs = _bind_with_slot(new, [*(operands[i] for i in rest), *w], mask, cts, mapped)
    else:  # T_k in x_i, given w: A_(k-1)(r; x.. without x_i; w)
        new = replace(new, mapped=(*new.mapped, *(lane for _ in cts)))
        outs = flow(new, *(operands[i] for i in rest), *cts)
    by_component = dict(zip([c for c, kind in enumerate(want) if kind != NONE], outs[:-1], strict=True))
    for i in unknown:
        results[i] = by_component[components[i]]
    return results


def _as_slot(call: Call) -> tuple[tuple[bool, ...], list[bool]]:
    """The wanted components as the mask of a slot, and which of them have lanes."""
    mask = tuple(kind != NONE for kind in call.kinds)
    return mask, [call.kinds[c] == LANE and call.lanes is not None for c in call.wanted]


def _instantiate(ct: Any):
    if type(ct) is not Zero:
        return ct
    aval: Any = ct.aval
    return jnp.zeros(aval.shape, aval.dtype)


# ---------------------------------------------------------------- vmap


def _batch(operands, dims, *, call: Call):
    """One more axis of lanes. Operands that no lane shares get a leading axis (the record's buffers a second one)."""
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    inner = call.lanes
    new, mapped = [], []
    for i, (x, d) in enumerate(zip(operands, dims, strict=True)):
        axis, is_mapped = call.lane_axis(i), call.is_mapped(i)
        if d is not None:
            x = jnp.moveaxis(x, d, axis)
        elif is_mapped or i in call.w_range:  # cotangents always carry every lane
            x = jnp.broadcast_to(jnp.expand_dims(x, axis), (*x.shape[:axis], size, *x.shape[axis:]))
        else:
            new.append(x)
            mapped.append(False)
            continue
        if inner is not None:
            if not is_mapped:
                x = jnp.expand_dims(x, axis + 1)
                x = jnp.broadcast_to(x, (*x.shape[: axis + 1], inner, *x.shape[axis + 2 :]))
            x = x.reshape(*x.shape[:axis], size * inner, *x.shape[axis + 2 :])
        new.append(x)
        mapped.append(True)

    want = call.want and tuple(LANE if kind != NONE else NONE for kind in call.want)
    batched = replace(call, lanes=size * (inner or 1), mapped=tuple(mapped), want=want)
    outs = flow(batched, *new)
    axes = batched.result_axes()
    out, out_dims = [], []
    kinds = [call.kinds[c] for c in call.wanted]
    for j, (x, axis) in enumerate(zip(outs, axes, strict=True)):
        if axis is None:
            out.append(x)
            out_dims.append(None)
            continue
        if inner is not None:
            x = x.reshape(*x.shape[:axis], size, inner, *x.shape[axis + 1 :])
            if j < len(kinds) and kinds[j] == SHARED:
                x = jnp.sum(x, axis=axis + 1)
        out.append(x)
        out_dims.append(axis)
    return out, out_dims


_bind = make_primitive(
    "ode_flow", impl=_impl, abstract_eval=_abstract, lower=_lower, jvp=_jvp, transpose=_transpose, batch=_batch
)
