"""Derivatives of a solve with events: a chain of smooth solves between jumps, each the flow primitive itself.

With the events' times T_k and kinds known from the solve, and held fixed,

    u_k^-  = Phi(u_(k-1)^+, p_(k-1); T_(k-1), T_k)                       the flow, up to T_k
    tau_k  = root of g_k(T_k + tau, N(T_k, u_k^-, tau), p) = 0           how far the event's time moves from T_k
    b_k    = N(T_k, u_k^-, tau_k),   (a_k, p_k) = affect(T_k + tau_k, b_k, p_(k-1))
    u_k^+  = N(T_k + tau_k, a_k, -tau_k)                                 with the field after the event

where N is the flow over a vanishing time (`taylor.nudge`) and tau_k = 0 wherever it is evaluated. Each map has the
derivatives of the true solution, of every order, so the chain has: differentiating it gives saltation matrices at first
order, and what belongs to them at the second. A known time s_k has tau_k = s_k - T_k; a time without derivative has
tau_k = 0. Source: Galan, Feehery, Barton, Parametric sensitivity functions for hybrid discrete/continuous systems,
Appl. Numer. Math. 31 (1999), for the first order.

Owns: this chain, its derivatives T_k and A_k. Must not know: the primitive's rules, how events are found, engines.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .call import LANE, SHARED, Call
from .events import Functions, beyond, functions
from .extension import vary, varying_axes
from .integrate.lanes import Lanes, choose
from .integrate.loop import COUNTS, Options, direction
from .methods import initial
from .methods.linear import Mass
from .methods.step import velocity
from .taylor import along, nudge


class BooleanConditionWarning(UserWarning):
    """A derivative was taken through an event whose condition is a truth value: its time counts as fixed.

    Examples
    --------
    Where that is what is wanted:

    >>> import warnings
    >>> import odesens as ode
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", ode.BooleanConditionWarning)
    """


def derivative(call: Call, bind: Callable, operands) -> list:
    """T_k or A_k, k > 0 or adjoint, of a solve with events, by the chain; `bind(call, *operands)` is the primitive."""
    system = call.spec.events
    assert system is not None
    if any(kind.boolean for kind in system.kinds):
        warnings.warn(
            "the condition of a ContinuousCallback is a truth value: derivatives take its time as fixed; return a real "
            "number that changes its sign there to have the time differentiated",
            BooleanConditionWarning,
            stacklevel=2,
        )
    chain = Chain(call, bind, operands)
    phi = chain
    for number, group in enumerate(call.slot_ranges):
        phi = along(phi, {c: chain.as_lanes(i, c) for c, i in zip(call.slot_components(number), group, strict=True)})
    if not call.adjoint:
        return [jnp.where(_wide(chain.unreached(j), x), jnp.nan, x) for j, x in enumerate(phi(chain.r))]
    w = [operands[i] for i in call.w_range]

    def of_wanted(values):
        moved = list(chain.r)
        for c, v in zip(call.wanted, values, strict=True):
            moved[c] = v
        return phi(moved)

    bad = [jnp.any((x != 0) & _wide(chain.unreached(j), x), axis=chain.own_axes(x)) for j, x in enumerate(w)]
    failed = functools.reduce(jnp.logical_or, bad)
    grads = jax.vjp(of_wanted, [chain.r[c] for c in call.wanted])[1](w)[0]
    out = []
    for c, g in zip(call.wanted, grads, strict=True):
        if call.lanes is not None and call.kinds[c] == SHARED and chain.spread[c]:
            g = jnp.sum(g, axis=0)
        own = call.lanes is not None and call.kinds[c] == LANE
        out.append(jnp.where(_wide(failed, g) if own or call.lanes is None else jnp.any(failed), jnp.nan, g))
    return [*out, jnp.zeros((*failed.shape, 1 + COUNTS), jnp.int32)]


def _wide(x, like):
    """x with trailing axes of length one, as many as `like` has."""
    return x.reshape(*x.shape, *(1,) * (like.ndim - x.ndim))


class Row(NamedTuple):
    """One event of each lane: its time and tail, kind (-1: none) and index, where the next segment starts."""

    t: Any
    t_lo: Any
    kind: Any
    index: Any
    next: Any


class Chain:
    """The values of a solve with events as a function of r, on its events as they were; lanes leading."""

    def __init__(self, call: Call, bind: Callable, operands):
        spec, field = call.spec, call.spec.field
        assert spec.events is not None
        self.call, self.bind, self.operands = call, bind, operands
        self.lanes, self.lead = Lanes(call.lanes), () if call.lanes is None else (call.lanes,)
        self.system, self.field, self.state = spec.events, field, field.state
        self.functions: Functions = functions(spec.events, field)
        self.order = call.order + call.adjoint
        self.moves_saves = any(s[call.i_ts] for s in call.slots) or bool(call.kinds and call.kinds[call.i_ts])
        self.spread = [self._spread(c) for c in range(call.n_r)]
        self.r = [self.as_lanes(c, c) for c in range(call.n_r)]
        fixed = range(call.n_r, call.n_fixed)
        self.aux = [operands[i] for i in fixed[: field.n_aux]]
        self.aux_axes = [0 if call.is_mapped(i) else None for i in fixed[: field.n_aux]]
        self.t1 = self._per_lane(call.i_t1)
        self.bounds = Options(*(operands[i] for i in fixed[field.n_aux + 1 :]))
        self.bounds_axes = Options(*(0 if call.is_mapped(i) else None for i in fixed[field.n_aux + 1 :]))
        entries, _, _, self.code = operands[call.n_fixed : call.n_fixed + call.n_record]
        if call.lanes is not None and not call.is_mapped(call.n_fixed):
            entries = jnp.broadcast_to(entries[:, None], (entries.shape[0], call.lanes, *entries.shape[1:]))
            self.code = self.lanes.spread(self.code)
        self.reached = entries[0, ..., 4]
        self.t0 = jax.lax.stop_gradient(self.r[call.i_t0])
        self.ts = jax.lax.stop_gradient(self.r[call.i_ts])
        self.sign = self.lanes.map(direction)(self.t0, self.t1)
        self.begin = jax.lax.stop_gradient(self.state.pack(self.r[: call.n_u], self.lead))
        self.rows = self._rows(entries)
        self.count = jnp.sum(entries[..., 2] >= 0, axis=0, dtype=jnp.int32)

    # ---- operands, for every lane where anything about them is per lane

    def _spread(self, c: int) -> bool:
        call = self.call
        if call.lanes is None:
            return False
        slots = zip(call.slot_ranges, map(call.slot_components, range(call.order)), strict=True)
        moved = any(call.is_mapped(i) for group, own in slots for i, d in zip(group, own, strict=True) if d == c)
        own = call.adjoint and call.kinds[c] == LANE
        return call.is_mapped(c) or moved or own or not call.n_u <= c < call.i_t0

    def as_lanes(self, i: int, c: int):
        """Operand i, which belongs to the component c of r, for every lane where that component is."""
        return self._per_lane(i) if self.spread[c] else self.operands[i]

    def _per_lane(self, i: int):
        return self.operands[i] if self.call.is_mapped(i) else self.lanes.spread(self.operands[i])

    @property
    def mass(self) -> Mass:
        mass = self.call.spec.settings.method.mass
        assert mass is not None
        return mass

    def own_axes(self, x) -> tuple[int, ...]:
        return tuple(range(len(self.lead), x.ndim))

    def _rows(self, entries) -> Row:
        t, t_lo, kind, index = (entries[..., j] for j in range(4))
        kind = kind.astype(jnp.int32)
        t = jnp.where(kind >= 0, t, self.t1)
        after = jnp.where(self.system.look_up("open", kind), beyond(t, self.t1, self.sign), t)
        return Row(t, t_lo, kind, index.astype(jnp.int32), after)

    def unreached(self, j: int):
        """Which rows of the values' part j ([lanes], rows) were never reached by a solve that failed."""
        if j >= self.call.n_u:
            return jnp.zeros((*self.lead, self.system.most), bool)
        late = self.sign[..., None] * (self.ts - self.reached[..., None]) > 0
        return late & (self.code > 1)[..., None]

    # ---- the chain

    def __call__(self, r) -> list:
        call, state, lanes = self.call, self.state, self.lanes
        lead, m, n = self.lead, self.ts.shape[-1], state.size
        u = state.pack(r[: call.n_u], lead)
        p = list(r[call.n_u : call.i_t0])
        p_axes = [0 if call.lanes is not None and self.spread[call.n_u + i] else None for i in range(call.n_p)]
        new = [p[i] if p_axes[i] == 0 else lanes.spread(p[i]) for i in self.functions.changed]
        schedule = self._schedule(p, p_axes, u, r[call.i_t0])
        if call.spec.initialise is not None:
            u = self._consistent(u, p, p_axes, r[call.i_t0])
        us = jnp.full((*lead, m, n), jnp.nan, u.dtype)
        t0, ts = r[call.i_t0], r[call.i_ts]

        def body(carry, k):
            """The solve up to event k, or to the end, and that event."""

            def go():
                us, u, new = carry
                us, u = self._segment(us, u, p, p_axes, new, t0, ts, k)
                u, new, happened = self._jump(u, p, p_axes, new, schedule, self._row(k))
                return (us, u, new), happened

            def stay():
                return carry, (jnp.full_like(self.t0, jnp.inf), jnp.zeros_like(u), jnp.zeros_like(u))

            return jax.lax.cond(jnp.any(k <= self.count), go, stay)

        axes = varying_axes(*jax.tree.leaves((us, u, new, p, self.rows)))
        ks = jnp.arange(self.system.most + 1, dtype=jnp.int32)
        (us, _, _), happened = jax.lax.scan(jax.checkpoint(body), vary((us, u, new), axes), ks)
        t, before, after = (x[:-1] for x in happened)  # nothing happens after the last segment
        rows_last = lambda x: jnp.moveaxis(x, 0, len(lead))
        return [
            *state.unpack(us),
            rows_last(t),
            *state.unpack(rows_last(before)),
            *state.unpack(rows_last(after)),
        ]

    def _row(self, k) -> Row:
        """Row k of the events; of what is beyond them, one in which nothing happens."""
        row = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, k, keepdims=False), self.rows)
        return row._replace(kind=jnp.where(k < self.count, row.kind, -1))

    def _consistent(self, u, p, p_axes, t0):
        """Initial states that obey the algebraic equations."""
        mass, check = self.mass, self.call.spec.initialise == "check"

        def one(p, aux, u, t, bounds):
            f = lambda t, u: self.field(t, u, p, aux)
            return initial.consistent(mass, f, t, u, (bounds.abstol, bounds.reltol), check=check)[0]

        axes = (p_axes, self.aux_axes, 0, 0, self.bounds_axes)
        return self.lanes.map(one, axes)(p, self.aux, u, t0, self.bounds)

    def _schedule(self, p, p_axes, u, t0):
        """The known times ([lanes], K), as functions of r."""
        one = lambda p, aux, t0, u, sign: self.functions.times(t0, u, p, aux, sign)
        return self.lanes.map(one, (p_axes, self.aux_axes, 0, 0, 0))(p, self.aux, t0, u, self.sign)

    def _segment(self, us, u, p, p_axes, new, t0, ts, k):
        """The smooth solve that ends at event k, or at the end: us with its saves, the state at its end."""
        call, lanes, m = self.call, self.lanes, self.ts.shape[-1]
        here, last = self._row(jnp.minimum(k, self.system.most - 1)), self._row(jnp.maximum(k - 1, 0))
        first, more = k == 0, k < self.count
        ended = (self._ends(last) & ~first) | (k > self.count)
        begin = jnp.where(first, self.t0, last.next)
        begin_lo = jnp.where(first | (last.next != last.t), 0, last.t_lo)
        end, end_lo = jnp.where(more, here.t, self.t1), jnp.where(more, here.t_lo, 0)
        end, end_lo = jnp.where(ended, begin, end), jnp.where(ended, begin_lo, end_lo)
        wide = lambda x: x[..., None]
        since = lambda t, t_lo: wide(self.sign) * ((self.ts - wide(t)) - wide(t_lo))
        started = since(jnp.where(first, begin, last.t), jnp.where(first, begin_lo, last.t_lo)) >= 0
        before_end = jnp.where(wide(more), since(end, end_lo) < 0, since(end, end_lo) <= 0)
        mine = started & before_end & ~wide(ended)
        place = jnp.sum(~started | before_end, axis=-1, dtype=jnp.int32)  # of the end among the saves

        def with_end(ts, sign, place, begin, end):
            """The saves with the segment's end at its place, those before its start moved there.

            Those after its end are not reached, which costs nothing; but where saved times are differentiated they are
            moved to the end, as their values must be numbers then.
            """
            j = jnp.arange(m + 1, dtype=jnp.int32)
            moved = jnp.where(sign * (ts - begin) >= 0, ts, begin)
            if self.moves_saves:
                moved = jnp.where(j[:m] >= place, end, moved)
            padded = jnp.concatenate([moved, end[None]])
            earlier = jnp.concatenate([end[None], moved])
            return jnp.where(j < place, padded, jnp.where(j == place, end, earlier))

        saves = lanes.map(with_end)(ts, self.sign, place, begin, end)
        own = self.functions.exchanged(p, new)
        changed = self.functions.changed
        axes = [0 if i in changed and call.lanes is not None else a for i, a in enumerate(p_axes)]
        values = self._flow(u, own, axes, jnp.where(first, t0, begin), saves, end)
        us = jnp.where(mine[..., None], values[..., :m, :], us)
        held = ended & (k == self.count) & self._ends(last)  # a solve that was ended keeps its state
        us = jnp.where((wide(held) & started)[..., None], u[..., None, :], us)
        at_end = lanes.map(lambda v, j: jax.lax.dynamic_index_in_dim(v, j, keepdims=False))(values, place)
        return us, jnp.where(wide(ended), u, at_end)

    def _ends(self, row: Row):
        return (row.kind >= 0) & self.system.look_up("terminate", row.kind)

    def _flow(self, u, p, p_axes, t0, ts, t1):
        """The smooth solve T_0 by the primitive, as ([lanes], m + 1, n)."""
        call = self.call
        spec = replace(call.spec, events=None, initialise=None, throw=False, progress=False)
        lane = call.lanes is not None
        fixed = range(call.n_r, call.n_fixed)
        n_aux = self.field.n_aux
        mapped = [*[lane] * call.n_u, *(a == 0 for a in p_axes), lane, lane]
        mapped += [call.is_mapped(i) for i in fixed[:n_aux]] + [lane] + [call.is_mapped(i) for i in fixed[n_aux + 1 :]]
        base = Call(spec, lanes=call.lanes, mapped=tuple(mapped) if lane else (False,) * len(mapped))
        outs = self.bind(base, *self.state.unpack(u), *p, t0, ts, *self.aux, t1, *self.bounds)
        return self.state.pack(outs[: call.n_u], (*self.lead, ts.shape[-1]))

    def _jump(self, u, p, p_axes, new, schedule, row: Row):
        """The event of this row: state and changed parameters after it; its time, the states before and after."""
        own = self.functions.exchanged(p, new)
        changed, lane = self.functions.changed, self.call.lanes is not None
        axes = [0 if i in changed and lane else a for i, a in enumerate(p_axes)]
        none = row.kind < 0
        one = self.lanes.map(self._jump_one, (0, axes, self.aux_axes, 0, 0, self.bounds_axes))
        # where nothing happens u may not be finite, and zero times NaN would reach what is differentiated
        given = choose(none, self.begin, u)
        t, before, after, plus, changed_p = one(given, own, self.aux, schedule, row, self.bounds)
        after_it = choose(self._ends(row), after, plus)
        u, new, t = choose(none, (u, new, jnp.full_like(t, jnp.inf)), (after_it, changed_p, t))
        return u, new, (t, before, after)

    def _jump_one(self, u, p, aux, schedule, row: Row, bounds):
        method, order, system = self.call.spec.settings.method, self.order, self.system

        def velocity_with(p):
            return lambda t, u: velocity(method, lambda t, u: self.field(t, u, p, aux), t, u)

        happens = row.kind >= 0
        real = system.table("continuous") & ~system.table("boolean")
        located = jnp.take(jnp.asarray(real), row.kind, mode="clip") & happens
        place = jnp.take(np.cumsum(system.table("continuous")) - 1, row.kind, mode="clip")  # among the conditions
        shift = jnp.zeros_like(row.t)
        if schedule.shape[-1]:
            sizes = system.table("size")
            first = jnp.take(np.cumsum(sizes) - sizes, row.kind, mode="clip")  # of the kind's own among all
            s = jnp.take(schedule, first + row.index, mode="clip")
            shift = jnp.where(system.look_up("scheduled", row.kind) & happens, s - jax.lax.stop_gradient(s), 0)
        ahead = velocity_with(p)
        start = row.t

        def residual(tau):
            if not np.any(real):
                return tau - shift
            moved = nudge(ahead, start, u, tau, order)
            g = self.functions.conditions(start + tau, moved, p, aux)
            return jnp.where(located, jnp.take(g, place, mode="clip").astype(tau.dtype), tau - shift)

        zero = row.t - row.t  # of each lane: a constant would have fewer axes under vmap than its tangent
        tau = jax.lax.custom_root(residual, zero, lambda f, x: x, lambda g, y: y / g(jnp.ones_like(y)))
        t = start + tau
        before = nudge(ahead, start, u, tau, order)
        after, new = self.functions.affect(row.kind, row.index, t, before, p, aux)
        later = self.functions.exchanged(p, new)
        if self.call.spec.initialise is not None:
            f = lambda t, u: self.field(t, u, later, aux)
            after, _ = initial.consistent(self.mass, f, t, after, (bounds.abstol, bounds.reltol), check=False)
        moving = row.next if order == 1 else row.next + tau
        plus = nudge(velocity_with(later), moving, after, -tau, order)
        return t, before, after, plus, new
