"""`solve`: from a user's problem to one call of the flow primitive, and back to a solution.

Owns: the options' defaults, the order of things, every step as saved times. Must not know: numerics, derivative rules.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from . import algorithms
from .call import RECORD, Call, Spec
from .callbacks import collect, make_system, programs
from .extension import vary, varying_axes
from .inputs import (
    as_params,
    as_state,
    as_time,
    check_initialisation,
    check_max_events,
    check_sensealg,
    choose_algorithm,
    make_mass,
    make_settings,
    numbers,
    time_dtype,
)
from .methods.controller import PIController
from .primitive import flow, silent
from .problem import BrownBasic, ODEProblem, check_options
from .saveat import concrete, saved_times
from .sensealg import DiscreteAdjoint, choose
from .solution import ODESolution, listed
from .status import ReturnCode, SolveError
from .trace import trace_field

DEFAULTS = {
    "saveat": None,
    "dense": False,
    "reltol": None,
    "abstol": None,
    "dt0": None,
    "dtmin": 0.0,
    "dtmax": math.inf,
    "adaptive": None,
    "controller": PIController(),
    "max_steps": 100_000,
    "sensealg": None,
    "initializealg": BrownBasic(),
    "callback": None,
    "max_events": 100,
    "tstops": None,
    "discontinuities": None,
    "progress": False,
    "throw": True,
}


@functools.singledispatch
def solve(
    prob: ODEProblem, alg: Any = None, *, u0: PyTree = None, p: PyTree = None, tspan: Any = None, **options: Any
) -> ODESolution:
    """Solve M du/dt = f(t, u, p) from u(t0) = u0 over tspan = (t0, t1).

    Differentiable to any order, in forward and reverse mode, with respect to u0, p, t0, t1, each saved time, and
    whatever floating arrays f captures; under `jit`, `vmap`, `scan`, `shard_map` and any nesting of them. For an
    `EnsembleProblem` see `odesens.ensemble.solve_ensemble`.

    Parameters
    ----------
    prob : ODEProblem, SteadyStateProblem or EnsembleProblem
    alg : algorithm, optional
        `Tsit5()`, `Vern7()`, `Rodas5P()`, `AutoTsit5(Rodas5P())`, ... By default `Rodas5P()` where the mass matrix is
        singular, else `Tsit5()`; an eager call, or eager gradient, that this fails because the problem is stiff is
        done again by `AutoTsit5(Rodas5P())`. Under `jit` and `vmap` nothing can be seen to fail: name the method there.
        `sol.alg` says which one it was.
    u0, p, tspan : optional
        Override the problem's. Gradients are the same to the last bit whichever way a value is given.
    **options
        Those that follow, which may be given to the problem too.
    saveat : float, array (m,) or None
        A step h > 0: saves at t0, t0 + h, .. and t1 (needs a span that is not traced). An array: exactly those times,
        in the direction of the span, repeats allowed, empty allowed. None: every accepted step; under a transform,
        max_steps + 1 rows whose tail repeats the final state.
    dense : bool
        Keep the accepted steps, so that `sol(t)` interpolates; otherwise `sol(t)` solves again.
    reltol, abstol : float or pytree like u0
        A step is accepted where the root mean square of err / (abstol + reltol |u|) is at most 1. Default 1e-6 and
        1e-9 for states of double precision, 1e-4 and 1e-6 below that.
    dt0 : float
        The first step, or the step where `adaptive=False`; its sign is ignored. Default: chosen from f.
    dtmin, dtmax : float
        Bounds of the step size.
    adaptive : bool
        Fixed steps where False. Default: whether the method has an error estimate.
    controller : PIDController
        How step sizes follow the error estimates; `PIController()` by default.
    max_steps : int
        The largest number of attempted steps (100 000). It costs nothing where it is not used: the record that
        derivatives need keeps at most 1024 checkpoints, between which steps are made again.
    sensealg : sensitivity algorithm
        How derivatives are computed. Default: `GaussAdjoint()` for adaptive explicit solves of more than 64 states with
        at most four times as many entries in p and in what f captures, else `DiscreteAdjoint()`; see
        `odesens.sensealg`.
    initializealg : BrownBasic() or CheckInit()
        Where the mass matrix is singular: solve the algebraic equations at t0 for the part of u0 that they determine
        (the default), differentiably, or refuse a u0 that does not obey them.
    callback : ContinuousCallback, DiscreteCallback, PresetTimeCallback, PeriodicCallback or CallbackSet
        Events and jumps, differentiable like all else; what happened is in `sol.events`. Saved values are
        right-continuous, saves after a terminating event hold the state there, at times inf.
    max_events : int
        The largest number of events (100); one more ends the solve with `ReturnCode.EventLimit`. Memory and, in
        derivatives, time grow with it.
    tstops : array (m,) or function of p
        Times at which a step ends, for fields with kinks there.
    discontinuities : array (m,) or function of p
        Times at which f(t, u, p) jumps as a function of t: steps end just before them and start anew at them, and
        derivatives with respect to these times are right.
    progress : bool
        Show a bar of the part of the span that is done and the number of steps: tqdm's, in a terminal or a notebook,
        or lines on stderr where tqdm is not installed (`pip install 'odesens[progress]'`). Also under `jit`, `vmap`
        (the slowest lane), `scan` and in the forward pass of a derivative, of which it is no part. Values, gradients
        and steps are the same to the bit; some 200 reports at most are made, however many steps there are.
    throw : bool
        Whether an eager call that fails raises `SolveError`. Under a transform nothing can raise: values that were not
        reached are NaN, `sol.retcode` says why, gradients are NaN.

    Returns
    -------
    ODESolution

    Raises
    ------
    SolveError
        An eager solve failed: with the code, the time reached, the offending component and the likely cause.
    TypeError, ValueError
        For input that is wrong, before anything is traced.

    Examples
    --------
    >>> import jax, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, reltol=1e-8)
    >>> end = lambda p: ode.solve(prob, ode.Tsit5(), p=p, saveat=[0.5, 1.0]).u[-1]
    >>> print(f"{end(2.0):.5f} {jax.grad(end)(2.0):.5f}")  # exp(-p), -exp(-p)
    0.13534 -0.13534
    """
    if not isinstance(prob, ODEProblem):
        if hasattr(prob, "_solve"):  # a problem that brings its own
            return prob._solve(alg, u0=u0, p=p, tspan=tspan, **options)
        raise TypeError(
            f"solve needs an ODEProblem or EnsembleProblem first, got {type(prob).__name__}: write "
            "solve(ODEProblem(f, ...), ..)"
        )
    try:
        sol = _solve(prob, alg, u0, p, tspan, options)
    except SolveError as error:
        if alg is not None or not error.stiff:
            raise
        return _solve(prob, SWITCHING, u0, p, tspan, options)
    if alg is None and sol.alg == algorithms.Tsit5() and sol.retcode is ReturnCode.MaxSteps and _has_forward_mode(sol):
        switched = _solve(prob, SWITCHING, u0, p, tspan, options)
        return switched if switched.success else sol
    return sol


SWITCHING = algorithms.AutoTsit5(algorithms.Rodas5P())


def _has_forward_mode(sol: ODESolution) -> bool:
    return sol._call.spec.field.has_forward_mode


def _solve(prob: ODEProblem, alg, u0, p, tspan, options: dict) -> ODESolution:
    """`solve` with the method that is named, or one by what can be told without solving."""
    call, head, t1, u_tree, every_step, labels, ok = prepare(prob, alg, u0, p, tspan, options)
    try:
        return labelled(_solved(call, head, t1, u_tree, every_step), labels, ok)
    except SolveError as error:
        unset = () if labels is None else labels.unset
        if not unset:
            raise
        more = f"\n  parameters that are NaN, as if never set: {', '.join(unset)}"
        raise SolveError(f"{error}{more}", error.retcode, error.t, stiff=error.stiff) from None


def labelled(sol: ODESolution, labels, ok) -> ODESolution:
    """The solution with what it knows of names, failed where its initial values are not consistent."""
    if ok is not True:
        sol._code = jnp.where(ok, sol._code, jnp.asarray(ReturnCode.InitialisationFailure, sol._code.dtype))
    sol._labels = labels
    return sol


def _solved(call: Call, head: list, t1, u_tree, every_step: bool) -> ODESolution:
    if every_step and call.spec.events is not None:
        return _solve_event_steps(call, head, u_tree)
    if every_step:
        return _solve_steps(call, head, t1, u_tree)
    outs = flow(call, *head)
    n = call.n_values
    record = outs[-RECORD:] if call.emit_record else None
    return wrap(call, head, record, jnp.asarray(head[call.i_ts]), outs[:n], outs[n:], u_tree)


class Prepared(NamedTuple):
    """A problem as a call of the primitive and its operands; the structure of u; whether every step is to be saved.

    labels, ok : see `Resolved`
    """

    call: Call
    operands: list
    t1: Any
    u_tree: Any
    every_step: bool
    labels: Any
    ok: Any


def prepare(prob: ODEProblem, alg, u0, p, tspan, options: dict, width: int | None = None) -> Prepared:
    """The call of the primitive that solves the problem; `width` is that of `Spec`."""
    check_options(options, "solve")
    given = {**prob.options, **options}
    merged = {**DEFAULTS, **{name: value for name, value in given.items() if value is not None}}
    for name in ("dense", "adaptive", "progress", "throw"):
        if not isinstance(merged[name], (bool, np.bool_, type(None))):
            raise TypeError(f"{name} must be True or False, got {merged[name]!r}")
    given_u0, given_p, span, labels, ok = prob.resolved(u0, p, tspan)
    u, params = as_state(given_u0), as_params(given_p)

    times = [x for x in jax.tree.leaves((span, merged["saveat"])) if isinstance(x, Tracer)]
    callbacks = collect([*prob.callbacks, merged["callback"]], merged["tstops"], merged["discontinuities"])
    others = {**prob.functions, **programs(callbacks)} if callbacks else prob.functions
    field, p_leaves, aux = trace_field(prob.f, u, params, varying_axes(*times), others)
    events = make_system(callbacks, field, check_max_events(merged["max_events"]))
    dtype = time_dtype(field.state.real_dtype, *span, merged["saveat"])
    t0, t1 = (as_time(t, dtype, name) for t, name in zip(span, ("t0", "t1"), strict=True))
    ts = saved_times(merged["saveat"], t0, t1, dtype)
    mass = make_mass(prob.mass_matrix, field.state)
    alg = choose_algorithm(alg, mass)
    settings = make_settings(alg, field, merged, mass, prob.jac_sparsity)
    sensealg = check_sensealg(merged["sensealg"], settings)
    if sensealg is None:
        sensealg = choose(settings, field.state.size, sum(math.prod(np.shape(x)) for x in p_leaves))
    u_leaves, u_tree = jax.tree.flatten(u)
    names = tuple(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(u))
    initialise = check_initialisation(merged["initializealg"]) if mass is not None and mass.singular else None
    width = width if events is None else None  # the queue has no events
    own = () if labels is None else labels.names
    shown = bool(merged["progress"])
    spec = Spec(field, settings, sensealg, bool(merged["throw"]), alg, names, initialise, events, width, own, shown)

    bounds = numbers(merged, u, field.state, dtype)
    empty = np.zeros(0, dtype)
    end = jax.lax.stop_gradient(t1) if isinstance(t1, Tracer) else t1
    head = [*u_leaves, *p_leaves, t0, empty if ts is None else ts, *aux, end, *bounds]  # NumPy where values are known
    traced = [x for x in (*head, t1) if isinstance(x, Tracer)]
    head = vary(head, varying_axes(*traced)) if traced else head
    head = head if traced else _placed(head)
    keeps = ts is not None and bool(merged["dense"]) and sensealg.residual == "mesh" and events is None
    return Prepared(_call(spec, len(head), keeps), head, t1, u_tree, ts is None, labels, ok)


@functools.lru_cache(maxsize=512)
def _call(spec: Spec, operands: int, emit_record: bool) -> Call:
    """The call T_0; the same object for equal calls, so that finding its compiled program is quick."""
    return Call(spec, mapped=(False,) * operands, emit_record=emit_record)


def _placed(head: list) -> list:
    """Known values as arrays of the device, those met before without a transfer."""
    if not jax.sharding.get_abstract_mesh().empty:
        return head
    return [x if isinstance(x, jax.Array) or x.nbytes > 4096 else _constant(x) for x in head]


def _constant(x: np.ndarray) -> jax.Array:
    key = (x.dtype, x.shape, x.tobytes())
    made = _on_device(*key)
    if made.is_deleted():  # somebody donated it
        _on_device.cache_clear()
        made = _on_device(*key)
    return made


@functools.lru_cache(maxsize=1024)
def _on_device(dtype, shape: tuple, data: bytes) -> jax.Array:
    with jax.ensure_compile_time_eval():
        return jax.device_put(np.frombuffer(data, dtype).reshape(shape))


def _solve_steps(call: Call, head: list, t1, u_tree) -> ODESolution:
    """Every accepted step: one solve for the mesh, then the states on it, whose interior times do not move."""
    spec = call.spec
    if spec.sensealg.residual != "mesh":
        meshed = dataclasses.replace(spec, sensealg=DiscreteAdjoint())
    else:
        meshed = spec
    recorded, outs = _recorded(dataclasses.replace(call, spec=meshed, emit_record=True), head)
    call = dataclasses.replace(call, rows=recorded.rows)
    n = call.n_u
    record, info = outs[-RECORD:], outs[n:-RECORD]
    if not any(isinstance(x, Tracer) for x in (*head, *outs, t1)):
        return _rows(call, head, t1, u_tree, record, info)
    code, t_end = info[0], info[2]
    times, size = jax.lax.stop_gradient((record[0], record[2][0]))
    row = jnp.arange(times.shape[0], dtype=jnp.int32)
    after = times[jnp.minimum(row + 1, size)]
    moves = (row < size) & jnp.any(after[:, :2] != times[:, :2], axis=1)
    order = jnp.argsort(~moves, stable=True)  # lanes share rows; those where this one stayed go to the end
    count = jnp.sum(moves, dtype=jnp.int32)
    ok = code <= 1
    end = jnp.where(ok, t1, jax.lax.stop_gradient(t_end))
    tail = jnp.where(ok, t1, jnp.nan)
    ts = jnp.where(row < count, times[order, 0], jnp.where(row == count, end, tail))
    ts = jnp.where((row == 0) & (count > 0), head[call.i_t0], ts)
    known = concrete(count)
    if known is None:  # the last row of a solve that failed is never taken for the end
        ts = ts.at[-1].set(jnp.where(ok, ts[-1], jnp.nan))
        rows = ts.shape[0]
    else:
        rows = int(known) + 1
    head = list(head)
    head[call.i_ts] = ts
    if known is not None:  # a length rounded up, so that another number of steps seldom compiles again
        ts = head[call.i_ts] = ts[: min(2 ** (rows - 1).bit_length(), ts.shape[0])]
    if spec.sensealg.residual == "mesh":
        given = dataclasses.replace(silent(call), given_record=True, mapped=(False,) * (len(head) + RECORD))
        us = flow(given, *head, *record)
    else:
        us, record = flow(call, *head)[:n], None
    return wrap(call, head, record, ts[:rows], [x[:rows] for x in us], info, u_tree)


def _solve_event_steps(call: Call, head: list, u_tree) -> ODESolution:
    """Every accepted step of a solve with events: one solve for their times, and one with these as saved times."""
    traced = any(isinstance(x, Tracer) and concrete(x) is None for x in head)
    most = call.spec.settings.max_steps + 1
    rows = most if traced else min(1024, most)
    while True:
        call = dataclasses.replace(call, rows=rows)
        outs = flow(call, *head)
        mesh = jax.lax.stop_gradient(outs[-1])
        known = None if traced else concrete(mesh)
        if known is None or not np.isfinite(known[-1]) or rows == most:
            break
        rows = min(4 * rows, most)
    end = jax.lax.stop_gradient(head[call.i_t1])
    ts = jnp.where(jnp.isnan(mesh), end, mesh)
    if known is not None:  # a length rounded up, so that another number of steps seldom compiles again
        rows = int(np.sum(np.isfinite(known)))
        ts = ts[: min(2 ** (rows - 1).bit_length(), most)]
    ts = jnp.concatenate([jnp.asarray(head[call.i_t0])[None], ts[1:]])
    head = list(head)
    head[call.i_ts] = ts
    call = dataclasses.replace(call, rows=None)
    outs = flow(call, *head)
    sol = wrap(call, head, None, ts, outs[: call.n_values], outs[call.n_values :], u_tree)
    if known is None:
        return sol
    sol.t, sol.u = sol.t[:rows], jax.tree.map(lambda x: x[:rows], sol.u)
    return sol


def _recorded(call: Call, head: list) -> tuple[Call, list]:
    """The call whose record has every step as a row, and its results."""
    most = call.spec.settings.max_steps + 1
    if any(isinstance(x, Tracer) and concrete(x) is None for x in head):
        call = dataclasses.replace(call, rows=most)
        return call, flow(call, *head)
    outs = flow(call, *head)
    extent = concrete(outs[-2])
    assert extent is not None
    size, stride = (int(x) for x in extent)
    if stride == 1:
        return call, outs
    call = dataclasses.replace(call, rows=min(2 ** (size * stride).bit_length(), most))
    return call, flow(call, *head)


def _rows(call: Call, head: list, t1, u_tree, record, info) -> ODESolution:
    """The same from plain numbers: the rows themselves."""
    size = int(record[2][0])
    times, states = np.asarray(record[0])[: size + 1], np.asarray(record[1])
    moves = np.any(times[1:, :2] != times[:-1, :2], axis=1)  # lanes share rows: in some of them this one stayed
    rows = np.append(np.flatnonzero(moves), size)
    ts = times[rows, 0]
    ts[-1] = t1 if int(info[0]) <= 1 else info[2]
    if len(ts) > 1:
        ts[0] = head[call.i_t0]
    us = [jax.device_put(x) for x in call.spec.field.state.unpack(states[rows, : call.spec.field.state.size])]
    head = list(head)
    head[call.i_ts] = ts = jax.device_put(ts)
    given = record if call.spec.sensealg.residual == "mesh" else None
    return wrap(call, head, given, ts, us, info, u_tree)


def wrap(call: Call, head, record, ts, values, info, u_tree) -> ODESolution:
    """The solution from the results of a call: those that have derivatives, and those that say how it ended."""
    code, counts = info[0], info[1]
    tree = functools.partial(jax.tree.unflatten, u_tree)
    n, system = call.n_u, call.spec.events
    events = None
    if system is not None:
        events = listed(system, values[n], info[-2], tree(values[n + 1 : 2 * n + 1]), tree(values[2 * n + 1 :]))
        sign = jnp.where(head[call.i_t1] >= head[call.i_t0], 1, -1)
        beyond = sign * (ts - jnp.nextafter(jax.lax.stop_gradient(info[2]), sign * jnp.inf)) > 0
        ts = jnp.where(beyond & (code == ReturnCode.Terminated), sign * jnp.inf, ts)
    call = _call(silent(call).spec, len(head), False)
    record = None if record is None else tuple(record)
    return ODESolution(ts, tree(values[:n]), code, counts, tuple(head), record, call, u_tree, events)
