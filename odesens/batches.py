"""A call of many lanes where the loop holds fewer of them: a queue forwards, batches of like cost in derivatives.

Owns: what `Spec.width` means. Must not know: rules, engines, steps.

Such a solve keeps no steps for its derivatives, only their number for each lane. A derivative takes the lanes in the
order of that number, `width` at a time, and solves them once more, now with a record. So memory is bounded by the width
whatever the number of lanes, records are as long as their batch needs, and lanes that step together take about as many
steps: the cost is near that of the sum of all steps. Sums over lanes are accumulated batch by batch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from . import evaluate as plain
from .call import RECORD, SHARED, Call
from .extension import vary, varying_axes
from .integrate.record import FIELDS


def evaluate(call: Call, bind: Callable, *operands) -> list:
    """`evaluate.evaluate` for calls with and without a width."""
    if call.spec.width is None:
        return plain.evaluate(call, bind, *operands)
    if not call.has_info:
        return _derivative(call, bind, list(operands))
    outs = plain.evaluate(replace(call, emit_record=False), bind, *operands)
    return [*outs, *_numbers_of_steps(call, outs)] if call.emit_record else outs


def _numbers_of_steps(call: Call, outs: list) -> list:
    """The residual of such a solve in the form of a record of one row: attempted steps of each lane, nothing else."""
    code, counts, t = outs[call.n_values : call.n_values + 3]
    attempts = (counts[..., 0] + counts[..., 1]).astype(t.dtype)
    times = jnp.broadcast_to(attempts[None, ..., None], (1, *attempts.shape, FIELDS))
    states = jnp.zeros((1, *attempts.shape, call.spec.field.state.size), call.spec.field.state.dtype)
    return vary([times, states, jnp.zeros(2, jnp.int32), code], varying_axes(code, t))


def _derivative(call: Call, bind: Callable, operands: list) -> list:
    """A call that has the numbers of steps as its record."""
    width, first = call.spec.width, call.n_fixed
    assert width is not None
    whole = replace(call, spec=replace(call.spec, width=None))
    if call.lanes is None or call.lanes <= width:
        return _solved_again(whole, bind, operands)
    batches = -(-call.lanes // width)
    size = -(-call.lanes // batches)
    steps = operands[first][0, :, 0] if call.is_mapped(first) else jnp.zeros(call.lanes)
    order = jnp.argsort(steps).astype(jnp.int32)
    padded = jnp.pad(order, (0, batches * size - call.lanes), mode="edge")
    used = jnp.arange(batches * size) < call.lanes
    narrow = replace(whole, lanes=size)
    shared = [j for j, c in enumerate(call.wanted) if call.kinds[c] == SHARED]

    def body(sums, inputs):
        index, used = inputs
        xs = [jnp.take(x, index, call.lane_axis(i)) if call.is_mapped(i) else x for i, x in enumerate(operands)]
        for i in call.w_range:  # a lane that fills up the last batch adds nothing to sums
            xs[i] = jnp.where(used.reshape(-1, *(1,) * (xs[i].ndim - 1)), xs[i], 0)
        outs = _solved_again(narrow, bind, xs)
        sums = [s + outs[j] for s, j in zip(sums, shared, strict=True)]
        return sums, [x for j, x in enumerate(outs) if j not in shared]

    zeros = [jnp.zeros_like(operands[call.wanted[j]]) for j in shared]
    axes = varying_axes(*operands)
    split = lambda x: x.reshape(batches, size)
    sums, own = jax.lax.scan(body, vary(zeros, axes), vary((split(padded), split(used)), axes))
    place = jnp.argsort(order)
    rows: list[Any] = [x.reshape(batches * size, *x.shape[2:])[place] for x in own]
    for s, j in zip(sums, shared, strict=True):
        rows.insert(j, s)
    return rows


def _solved_again(call: Call, bind: Callable, operands: list) -> list:
    """The results of a derivative call after one more solve, which makes the record that it needs."""
    first, rest = call.n_fixed, call.n_fixed + RECORD
    lanes = call.lanes if any(call.mapped[:first]) else None
    mapped = call.mapped[:first] if lanes is not None else (False,) * first
    primal = Call(call.spec, emit_record=True, rows=call.rows, lanes=lanes, mapped=mapped)
    record = plain.evaluate(primal, bind, *operands[:first])[-RECORD:]
    own = (False,) * RECORD if lanes is None else (True, True, False, True)
    given = replace(call, mapped=(*call.mapped[:first], *own, *call.mapped[rest:]))
    return plain.evaluate(given, bind, *operands[:first], *record, *operands[rest:])
