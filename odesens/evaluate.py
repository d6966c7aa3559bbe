"""What a call of the flow primitive computes: operands in, results out, all of it numerics.

Owns: unpacking operands into an engine's `Flow`, choosing solve, record or engine, derivatives in times. Must not know:
the primitive's rules.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from . import diagnosis, segments
from .call import LANE, NONE, RECORD, SHARED, Call
from .events import functions
from .extension import vary, varying_axes
from .integrate import eventful
from .integrate.lanes import Lanes
from .integrate.loop import COUNTS, Lane, Options, counts, integrate
from .integrate.queue import integrate_queued
from .integrate.record import FIELDS, Record
from .methods import initial
from .methods.linear import Mass
from .methods.step import velocity
from .sensitivity import ENGINES, discrete
from .sensitivity.augment import Flow, augmented_task
from .status import ReturnCode
from .taylor import along, nudge


def evaluate(call: Call, bind: Callable, *operands) -> list:
    """The results of one call; `bind(call, *operands)` is the primitive itself, for calls in terms of simpler ones."""
    operands = vary(operands, varying_axes(*operands))
    if call.spec.events is not None:
        differentiated = call.order or call.adjoint
        return segments.derivative(call, bind, operands) if differentiated else _solve_events(call, operands)
    through_start = call.spec.initialise is not None and bool(call.order or call.adjoint)
    if through_start or _times_active(call):
        return _composed(call, bind, operands)
    flow = unpack(call, operands)
    if call.adjoint:
        return _adjoint(call, flow, operands)
    if call.order:
        return _leaves(call, ENGINES[type(call.spec.sensealg)].tangent(flow))
    if call.given_record and call.spec.sensealg.residual == "mesh":
        return _leaves(call, discrete.interpolant(flow))
    return _solve(call, flow)


# ---------------------------------------------------------------- operands


def unpack(call: Call, operands) -> Flow:
    """The operands as an engine wants them: flat states for every lane, parameter leaves shared or per lane."""
    lanes = Lanes(call.lanes)
    lead = () if call.lanes is None else (call.lanes,)
    state = call.spec.field.state
    axis = lambda i: 0 if call.is_mapped(i) else None

    def per_lane(i):
        return operands[i] if call.is_mapped(i) else lanes.spread(operands[i])

    def flat(indices):
        return state.pack([per_lane(i) for i in indices], lead)

    field, settings = call.spec.field, call.spec.settings
    method = settings.method
    if method.mass is not None and not method.implicit_only:  # an explicit method solves u' = M^(-1) f
        regular = method.mass
        settings = replace(settings, method=replace(method, mass=None))

        def divided(f, *, columns=False):
            solve = jax.vmap(regular.solve, 1, 1) if columns else regular.solve
            return lambda t, u, p, aux: solve(f(t, u, p, aux))
    else:
        divided = lambda f, **_: f
    p, p_axes = [], []
    for i in range(call.n_u, call.i_t0):
        own = call.adjoint and call.kinds[i] == LANE  # its gradient is per lane, so its value is too
        p.append(per_lane(i) if own else operands[i])
        p_axes.append(0 if call.lanes is not None and (own or call.is_mapped(i)) else None)
    fixed = range(call.n_r, call.n_fixed)
    n_aux = call.spec.field.n_aux
    aux, options = fixed[:n_aux], fixed[n_aux + 1 :]
    record = None
    if call.given_record:
        record = Record(*operands[call.n_fixed : call.n_fixed + RECORD])
        if call.lanes is not None:
            record = _record_of_lanes(call, record, lanes)

    xs, x_axes = [], []
    for number, group in enumerate(call.slot_ranges):
        parts = dict(zip(call.slot_components(number), group, strict=True))
        x_u = [per_lane(parts[c]) if c in parts else jnp.zeros_like(per_lane(c)) for c in range(call.n_u)]
        in_p = {c - call.n_u: i for c, i in parts.items() if call.n_u <= c < call.i_t0}
        xs.append((state.pack(x_u, lead), {c: operands[i] for c, i in in_p.items()}))
        x_axes.append({c: axis(i) for c, i in in_p.items()})
    axes = {
        "p": p_axes,
        "aux": [axis(i) for i in aux],
        "xs": x_axes,
        "options": Options(*(axis(i) for i in options)),
    }
    return Flow(
        field=divided(field),
        matrix=None if field.matrix is None else divided(field.matrix, columns=True),
        parts=None if field.parts is None else (divided(field.parts[0]), divided(field.parts[1])),
        has_forward_mode=field.has_forward_mode,
        sensealg=call.spec.sensealg,
        settings=settings,
        lanes=lanes,
        u0=flat(range(call.n_u)),
        p=p,
        aux=[operands[i] for i in aux],
        t0=per_lane(call.i_t0),
        t1=per_lane(call.i_t1),
        ts=per_lane(call.i_ts),
        options=Options(*(operands[i] for i in options)),
        xs=xs,
        axes=axes,
        record=record,
    )


def _record_of_lanes(call: Call, record: Record, lanes: Lanes) -> Record:
    """A record that lanes share, given to each; one whose extent differs between lanes, as long as the longest."""
    times, states, extent, code = (call.is_mapped(call.n_fixed + i) for i in range(RECORD))
    spread = lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], call.lanes, *x.shape[1:]))
    record = record._replace(
        times=record.times if times else spread(record.times),
        states=record.states if states else spread(record.states),
        code=record.code if code else lanes.spread(record.code),
    )
    if not extent or not record.times.shape[0]:
        return record if not extent else record._replace(extent=record.extent[0])
    rows = jnp.minimum(jnp.arange(record.times.shape[0])[:, None], record.extent[:, 0])
    take = lambda buffer: jnp.take_along_axis(buffer, rows[..., None], axis=0)
    return record._replace(times=take(record.times), states=take(record.states), extent=jnp.max(record.extent, axis=0))


def _leaves(call: Call, us) -> list:
    return call.spec.field.state.unpack(us)


# ---------------------------------------------------------------- solve and adjoint


def _solve(call: Call, flow: Flow) -> list:
    """T_0 by integration, with how it ended and its record as the call wants them."""
    consistent = None
    if call.spec.initialise is not None:
        flow, consistent = initialised(call, flow)
    task, options = augmented_task(flow)
    residual = call.spec.sensealg.residual
    on_mesh = call.emit_record and residual == "mesh"
    rows = call.record_rows(flow.ts.shape[-1]) if on_mesh else 0
    problem, width = (flow.settings, task, options, flow.axes["options"], flow.lanes), call.spec.width
    queued = width is not None and flow.lanes.size is not None and flow.lanes.size > width
    if queued and not flow.settings.method.multistep:  # what a BDF method carries is not exchanged
        assert width is not None
        result = integrate_queued(*problem, width)
    else:
        result = integrate(*problem, record=rows, progress=call.reports)
    out = _leaves(call, result.us)
    lane = _if_consistent(result.lane, consistent)
    if call.has_info:
        out += _ended(call, lane)
    if call.emit_record:
        record = result.record if on_mesh else _saves_record(call, flow, result)
        assert record is not None
        out += [*record]
    return out


def _ended(call: Call, lane: Lane) -> list:
    """How a solve ended: code, counts, t, dt, u leaves."""
    return [lane.code, counts(lane), lane.t, lane.dt, *_leaves(call, lane.u)]


def _if_consistent(lane: Lane, consistent) -> Lane:
    """The lanes after a solve, those whose initial states were not consistent marked."""
    if consistent is None:
        return lane
    code = jnp.where(consistent, lane.code, int(ReturnCode.InitialisationFailure))
    return lane._replace(code=code.astype(jnp.int32))


def _solve_events(call: Call, operands) -> list:
    """T_0 of a solve with events; its record is their list, the time reached in each row's fifth place."""
    flow, consistent, settle = unpack(call, operands), None, None
    if call.spec.initialise is not None:
        flow, consistent = initialised(call, flow)
        settle = functools.partial(_consistent, call, flow, "solve")
    system, field = call.spec.events, call.spec.field
    assert system is not None
    task, options = augmented_task(flow)
    axes, found = flow.axes["options"], functions(system, field)
    how = {"settle": settle, "rows": call.rows or 0, "progress": call.reports}
    result = eventful.integrate(flow.settings, task, options, axes, flow.lanes, system, found, **how)
    lane, log = _if_consistent(result.lane, consistent), result.log
    kinds = log.entries[..., 2].astype(jnp.int32)
    happened = kinds >= 0
    out = _leaves(call, result.us)
    out += [jnp.where(happened, log.entries[..., 0], jnp.inf), *_leaves(call, log.before), *_leaves(call, log.after)]
    if call.has_info:
        out += [*_ended(call, lane), kinds, result.mesh]
    if call.emit_record:
        reached = jnp.broadcast_to(lane.t[..., None, None], (*kinds.shape, 1))
        pad = jnp.zeros((*kinds.shape, FIELDS - 5), reached.dtype)
        entries = jnp.concatenate([log.entries, reached, pad], axis=-1)
        rows_first = lambda x: jnp.moveaxis(x, -2, 0)
        extent = jnp.asarray([system.most, 1], jnp.int32)
        out += [rows_first(entries), rows_first(log.before), extent, lane.code]
    return out


def mass_of(call: Call) -> Mass:
    mass = call.spec.settings.method.mass
    assert mass is not None
    return mass


def initialised(call: Call, flow: Flow) -> tuple[Flow, Any]:
    """`flow` from consistent initial states, and which lanes have one."""
    one = functools.partial(_consistent, call, flow, call.spec.initialise)
    u0, ok = flow.lanes.map(one, (flow.params_axes, 0, 0))(flow.params, flow.u0, flow.t0)
    return flow._replace(u0=jnp.where(ok[..., None], u0, jnp.nan)), ok


def _consistent(call: Call, flow: Flow, how: str | None, params, u, t):
    """One lane's state made consistent at t, or checked, and whether it is."""
    f = lambda t, u: flow.field(t, u, params["p"], params["aux"])
    return initial.consistent(mass_of(call), f, t, u, params["tol"], check=how == "check")


def _saves_record(call: Call, flow: Flow, result) -> Record:
    """The residual of engines without a mesh: the states at the saved times and at the end, or nothing."""
    states = jnp.concatenate([result.us, result.lane.u[..., None, :]], axis=-2)
    states = jnp.moveaxis(states, -2, 0)
    rows = call.record_rows(flow.ts.shape[-1])
    times = jnp.zeros((rows, *flow.t0.shape, FIELDS), flow.t0.dtype)
    return Record(times, states[:rows], jnp.zeros(2, jnp.int32), result.lane.code)


def _adjoint(call: Call, flow: Flow, operands) -> list:
    """A_k: the wanted components of the gradient, shared ones summed over the lanes."""
    lead = () if call.lanes is None else (call.lanes,)
    m = flow.ts.shape[-1]
    w = call.spec.field.state.pack([operands[i] for i in call.w_range], (*lead, m))
    wanted = [c - call.n_u for c in call.wanted if call.n_u <= c < call.i_t0]
    flow, unused = without_unused_lanes(flow, w)
    u_bar, p_bar, ended = ENGINES[type(call.spec.sensealg)].adjoint(flow, w, wanted)
    ended = jnp.where(unused[..., None], 0, ended)
    if call.lanes is None:  # nothing is asked of this solve, so its gradient is zero however it ended
        u_bar, p_bar = jax.tree.map(lambda g: jnp.where(unused, 0, g), (u_bar, p_bar))
    else:
        u_bar = jnp.where(unused[:, None], 0, u_bar)
    grads = dict(enumerate(_leaves(call, u_bar)))
    grads |= {call.n_u + j: g for j, g in zip(wanted, p_bar, strict=True)}
    per_lane = lambda c: c < call.n_u or flow.axes["p"][c - call.n_u] == 0
    out = []
    for c in call.wanted:
        g = grads[c].astype(operands[c].dtype)
        out.append(jnp.sum(g, 0) if call.kinds[c] == SHARED and per_lane(c) else g)
    return [*out, ended]


def without_unused_lanes(flow: Flow, w):
    """`flow` with each failed lane of zero cotangent made a copy of a lane that is used, and which lanes are unused.

    Such a lane adds nothing, but its states may not be finite, and zero times NaN would reach what the lanes share.
    """
    unused = jnp.all(w == 0, axis=(-2, -1))
    if flow.lanes.size is None:
        return flow, unused
    finite = jnp.all(jnp.isfinite(flow.u0), axis=-1)
    failed = ~finite if flow.record is None else ~finite | (flow.record.code > 1)
    dead, other = unused & failed, jnp.argmax(~unused)
    here = lambda x, axis: jnp.where(dead.reshape(-1, *(1,) * (x.ndim - axis - 1)), jnp.take(x, other[None], axis), x)

    def exchanged(flow):
        mapped = lambda xs, axes: [x if a is None else here(x, 0) for x, a in zip(xs, axes, strict=True)]
        xs = [
            (here(x, 0), {i: v if a[i] is None else here(v, 0) for i, v in xp.items()})
            for (x, xp), a in zip(flow.xs, flow.axes["xs"], strict=True)
        ]
        new = flow._replace(u0=here(flow.u0, 0), p=mapped(flow.p, flow.axes["p"]), xs=xs)
        if flow.record is None or not flow.record.states.shape[0]:
            return new
        times, states = here(flow.record.times, 1), here(flow.record.states, 1)
        ends = {name: here(getattr(flow, name), 0) for name in ("t0", "t1", "ts")}
        return new._replace(record=flow.record._replace(times=times, states=states), **ends)

    arrays = lambda f: (f.u0, f.p, f.xs, f.t0, f.t1, f.ts, f.record)
    values = jax.lax.cond(jnp.any(dead), lambda: arrays(exchanged(flow)), lambda: arrays(flow))
    names = ("u0", "p", "xs", "t0", "t1", "ts", "record")
    return flow._replace(**dict(zip(names, values, strict=True))), unused


# ---------------------------------------------------------------- derivatives in times and through initialisation


def _times_active(call: Call) -> bool:
    """Whether t0 or ts is perturbed, or its gradient wanted."""
    times = slice(call.i_t0, call.n_r)
    return any(any(s[times]) for s in call.slots) or any(call.kinds[times])


def _composed(call: Call, bind: Callable, operands) -> list:
    """A call that moves times, as one on fixed times between two short exact flows; one that initialises, after that.

        Phi(u0, p; t0 + d0, ts + d) = N(ts, Phi(N(t0 + d0, I(u0), -d0), p; t0, ts), d)

    where N(t, u, d) is the flow over a vanishing time d, a polynomial in d whose derivatives at d = 0 are those of the
    true flow up to the order that the call needs, and I solves the algebraic equations at t0 + d0. At first order this
    is u_dot(ts) = T_1(u0_dot - f t0_dot) + f ts_dot.
    """
    if call.lanes is None:
        return _composed_one(call, bind, *operands)
    one = replace(
        call,
        lanes=None,
        mapped=(False,) * len(operands),
        want=call.want and tuple(LANE if k else NONE for k in call.want),
    )
    in_axes = [call.lane_axis(i) if call.is_mapped(i) else None for i in range(len(operands))]
    outs = list(jax.vmap(functools.partial(_composed_one, one, bind), in_axes, axis_size=call.lanes)(*operands))
    for j, c in enumerate(call.wanted):
        if call.kinds[c] == SHARED:
            outs[j] = jnp.sum(outs[j], axis=0)
    return outs


def _composed_one(call: Call, bind: Callable, *operands) -> list:
    state, field = call.spec.field.state, call.spec.field
    head = list(operands[: call.n_fixed + call.n_record])
    aux = operands[call.n_r : call.n_r + field.n_aux]
    t0, ts = operands[call.i_t0], operands[call.i_ts]
    order = call.order + call.adjoint
    moves, initialise = _times_active(call), call.spec.initialise is not None
    spec, method = replace(call.spec, initialise=None), call.spec.settings.method
    base = replace(call, spec=spec, slots=(), want=None, mapped=(False,) * len(head))

    def fixed_times(r):
        u_leaves, p = r[: call.n_u], r[call.n_u : call.i_t0]
        right = lambda t, u: field(t, u, p, aux)
        f = lambda t, u: velocity(method, right, t, u)
        u = state.pack(u_leaves)
        if initialise:
            options = head[call.i_t1 + 1 :]
            at_t0 = mass_of(call), right, r[call.i_t0], u, (options[1], options[0])
            u, ok = initial.consistent(*at_t0, check=False)
            if call.spec.initialise == "check":
                ok = initial.consistent(*at_t0, check=True)[1]
            u = u + jnp.where(ok, 0, jnp.nan)
        if not moves:
            return state.pack(bind(base, *state.unpack(u), *p, t0, ts, *head[call.n_r :])[: call.n_u], ts.shape)
        # at first order f need not be differentiated in time, which a field like sqrt(t) at t0 = 0 could not bear
        start = t0 if order == 1 else r[call.i_t0]
        u = nudge(f, start, u, -(r[call.i_t0] - t0), order)
        us = bind(base, *state.unpack(u), *p, t0, ts, *head[call.n_r :])[: call.n_u]
        us = state.pack(us, ts.shape)
        return jax.vmap(lambda t, u, d: nudge(f, t, u, d, order))(ts, us, r[call.i_ts] - ts)

    phi = fixed_times
    for number, group in enumerate(call.slot_ranges):
        phi = along(phi, dict(zip(call.slot_components(number), (operands[i] for i in group), strict=True)))
    r = head[: call.n_r]
    if not call.adjoint:
        return state.unpack(phi(r))
    wanted = call.wanted
    w = state.pack([operands[i] for i in call.w_range], ts.shape)

    def of_wanted(values):
        moved = list(r)
        for c, v in zip(wanted, values, strict=True):
            moved[c] = v
        return phi(moved)

    grads = jax.vjp(of_wanted, [r[c] for c in wanted])[1](w)[0]
    return [*grads, jnp.zeros(1 + COUNTS, jnp.int32)]


# ---------------------------------------------------------------- failure


def raise_failure(call: Call, operands, outs) -> None:
    """Raise `SolveError` where an eager call of one lane failed and the problem asks for it."""
    if not call.spec.throw or call.lanes is not None:
        return
    if call.adjoint:
        diagnosis.check_adjoint(int(outs[-1][0]))
    elif call.has_info and int(outs[call.n_values]) > 1:
        flow = unpack(call, operands)
        code, _, t, dt, *u = outs[call.n_values : call.n_values + 4 + call.n_u]
        u = call.spec.field.state.pack(u)
        diagnosis.raise_solve(call.spec, flow, int(code), t, dt, u)
