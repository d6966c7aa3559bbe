"""`solve`: from a user's problem to one call of the flow primitive, and back to a solution.

Owns: options and their defaults, validation before tracing, saved times. Must not know: numerics, derivative rules.
"""

import dataclasses
import functools
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from . import algorithms
from .call import RECORD, Call, Spec
from .extension import vary, varying_axes
from .field import trace_field
from .integrate.loop import Options, Settings
from .methods.controller import PIController, PIDController
from .primitive import flow
from .problem import ODEProblem, check_options, check_tspan
from .saveat import as_array, concrete, saved_times
from .sensealg import ContinuousAlgorithm, DiscreteAdjoint, SensitivityAlgorithm, choose
from .solution import ODESolution

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
    "throw": True,
}


def solve(
    prob: ODEProblem, alg=None, *, u0: PyTree = None, p: PyTree = None, tspan: Any = None, **options
) -> ODESolution:
    """Solve du/dt = f(t, u, p) from u(t0) = u0 over tspan = (t0, t1).

    Differentiable to any order, in forward and reverse mode, with respect to u0, p, t0, t1, each saved time, and
    whatever floating arrays f captures; under `jit`, `vmap`, `scan`, `shard_map` and any nesting of them.

    Parameters
    ----------
    prob : ODEProblem
    alg : algorithm, optional
        `Tsit5()` (the default), `Vern7()`, ...
    u0, p, tspan : optional
        Override the problem's. Gradients are the same to the last bit whichever way a value is given.
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
    max_steps : int
        The largest number of attempted steps (100 000). It costs nothing where it is not used: the record that
        derivatives need keeps at most 1024 checkpoints, between which steps are made again.
    sensealg : sensitivity algorithm
        How derivatives are computed. Default: `GaussAdjoint()` for adaptive solves of more than 64 states with at most
        four times as many entries in p and in what f captures, else `DiscreteAdjoint()`; see `odesens.sensealg`.
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
    """
    if not isinstance(prob, ODEProblem):
        raise TypeError(
            f"solve needs an ODEProblem first, got {type(prob).__name__}: write solve(ODEProblem(f, ...), ..)"
        )
    check_options(options, "solve")
    given = {**prob.options, **options}
    merged = {**DEFAULTS, **{name: value for name, value in given.items() if value is not None}}
    for name in ("dense", "adaptive", "throw"):
        if not isinstance(merged[name], (bool, np.bool_, type(None))):
            raise TypeError(f"{name} must be True or False, got {merged[name]!r}")
    u = as_state(prob.u0 if u0 is None else u0)
    params = as_params(prob.p if p is None else p)
    span = prob.tspan if tspan is None else check_tspan(tspan)

    times = [x for x in jax.tree.leaves((span, merged["saveat"])) if isinstance(x, Tracer)]
    field, p_leaves, aux = trace_field(prob.f, u, params, varying_axes(*times))
    dtype = time_dtype(field.state.real_dtype, *span, merged["saveat"])
    t0, t1 = (as_time(t, dtype, name) for t, name in zip(span, ("t0", "t1"), strict=True))
    ts = saved_times(merged["saveat"], t0, t1, dtype)
    settings = make_settings(alg, field, merged)
    sensealg = check_sensealg(merged["sensealg"], settings)
    if sensealg is None:
        sensealg = choose(settings, field.state.size, sum(math.prod(np.shape(x)) for x in p_leaves))
    u_leaves, u_tree = jax.tree.flatten(u)
    names = tuple(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(u))
    spec = Spec(field, settings, sensealg, bool(merged["throw"]), names)

    numbers = _numbers(merged, u, field.state, dtype)
    empty = np.zeros(0, dtype)
    end = jax.lax.stop_gradient(t1) if isinstance(t1, Tracer) else t1
    head = [*u_leaves, *p_leaves, t0, empty if ts is None else ts, *aux, end, *numbers]  # NumPy where values are known
    traced = [x for x in (*head, t1) if isinstance(x, Tracer)]
    head = vary(head, varying_axes(*traced)) if traced else head
    head = head if traced else _placed(head)
    call = _call(spec, len(head), ts is not None and bool(merged["dense"]) and sensealg.residual == "mesh")
    if ts is None:
        return _solve_steps(call, head, t1, u_tree)
    outs = flow(call, *head)
    n = call.n_u
    record = outs[-RECORD:] if call.emit_record else None
    return _wrap(call, head, record, jnp.asarray(head[call.i_ts]), outs[:n], outs[n:], u_tree)


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
        given = dataclasses.replace(call, given_record=True, mapped=(False,) * (len(head) + RECORD))
        us = flow(given, *head, *record)
    else:
        us, record = flow(call, *head)[:n], None
    return _wrap(call, head, record, ts[:rows], [x[:rows] for x in us], info, u_tree)


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
    us = [jax.device_put(x) for x in call.spec.field.state.unpack(states[rows])]
    head = list(head)
    head[call.i_ts] = ts = jax.device_put(ts)
    given = record if call.spec.sensealg.residual == "mesh" else None
    return _wrap(call, head, given, ts, us, info, u_tree)


def _wrap(call: Call, head, record, ts, us, info, u_tree) -> ODESolution:
    code, counts = info[0], info[1]
    u = jax.tree.unflatten(u_tree, us[: call.n_u])
    call = _call(call.spec, len(head), False)
    return ODESolution(ts, u, code, counts, tuple(head), None if record is None else tuple(record), call, u_tree)


# ---------------------------------------------------------------- values


def _is_number(x) -> bool:
    return isinstance(x, (int, float, complex, np.number)) and not isinstance(x, (bool, np.bool_))


def _number_list(x) -> bool:
    return isinstance(x, list) and len(x) > 0 and all(_is_number(v) for v in x)


def _dtype(x, what: str):
    """The dtype of a number or array, or an error that names what was expected to be one."""
    if hasattr(x, "dtype") or isinstance(x, (bool, int, float, complex)):
        try:
            return jnp.result_type(x)
        except TypeError:
            pass
    raise TypeError(f"{what} must hold numbers or arrays, got {type(x).__name__}: {x!r}")


def _real(x, name: str):
    """x, if it is a real number or array."""
    dtype = _dtype(x, name)
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise TypeError(f"{name} must be real, got dtype {dtype}: {x!r}")
    return x


def _floating(x, what: str):
    """A leaf as a floating or complex array; integers become the default float."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact) and not x.weak_type:
        return x
    dtype = _dtype(x, what)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(x, dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(x, jnp.result_type(float))
    raise TypeError(f"{what} must hold real or complex numbers, got dtype {dtype}")


def as_state(u0):
    """u0 as a pytree of floating or complex arrays."""
    if u0 is None:
        raise TypeError("u0 is None: give an initial state to ODEProblem or solve")
    u0 = np.asarray(u0) if _number_list(u0) else u0
    return jax.tree.map(lambda x: _floating(x, "u0"), u0)


def as_params(p):
    """p with a flat list of numbers turned into an array, integers into the default float."""
    return _floating(np.asarray(p), "p") if _number_list(p) else p


def time_dtype(real, *times):
    """The dtype of times: that of the state's real part, wider where times are given so, at least single precision."""
    dtype = real if jnp.finfo(real).bits >= 32 else jnp.dtype(jnp.float32)
    for t in times:
        own: Any = getattr(t, "dtype", None)
        if own is None or getattr(t, "weak_type", False):
            continue
        if jnp.issubdtype(own, jnp.floating):
            own = jax.dtypes.canonicalize_dtype(own)
            dtype = own if jnp.finfo(own).bits > jnp.finfo(dtype).bits else dtype
    return dtype


def as_time(t, dtype, name: str):
    if type(t) is float and math.isfinite(t):
        return np.asarray(t).astype(dtype)
    _real(t, f"tspan: {name}")
    if jnp.shape(t) != ():
        raise ValueError(f"tspan: {name} must be a real scalar, got shape {jnp.shape(t)}")
    t = as_array(t, dtype)
    known = concrete(t)
    if known is not None and not np.isfinite(known):
        raise ValueError(f"tspan: {name} must be finite, got {float(known)}")
    return t


# ---------------------------------------------------------------- options


def make_settings(alg, field, merged: dict) -> Settings:
    """The static choices, checked against each other."""
    alg = algorithms.Tsit5() if alg is None else alg
    if isinstance(alg, type) and issubclass(alg, algorithms.ExplicitRungeKutta):
        raise TypeError(f"alg must be an instance: write {alg.__name__}() instead of {alg.__name__}")
    if not isinstance(alg, algorithms.ExplicitRungeKutta):
        raise TypeError(f"alg must be a method such as Tsit5(), got {alg!r}")
    name = type(alg).__name__
    adaptive = alg.adaptive if merged["adaptive"] is None else bool(merged["adaptive"])
    if adaptive and not alg.adaptive:
        raise ValueError(f"{name} has no error estimate, so adaptive=True is not possible: give dt0, or take Tsit5()")
    if not adaptive and merged["dt0"] is None:
        raise ValueError(f"{name} with fixed steps needs dt0=, the step size")
    if not isinstance(merged["controller"], PIDController):
        raise TypeError(
            f"controller must be IController(), PIController() or PIDController(), got {merged['controller']!r}"
        )
    max_steps = merged["max_steps"]
    if isinstance(max_steps, bool) or not isinstance(max_steps, (int, np.integer)) or not 1 <= max_steps < 2**31 - 2:
        raise ValueError(f"max_steps must be an integer from 1 to 2**31 - 3, got {max_steps!r}")
    return Settings(
        tableau=alg.tableau,
        controller=merged["controller"],
        adaptive=adaptive,
        first_step_given=merged["dt0"] is not None,
        max_steps=int(max_steps),
        operations=field.n_eqns,
    )


def check_sensealg(sensealg, settings: Settings) -> SensitivityAlgorithm | None:
    if sensealg is None:
        return None
    if isinstance(sensealg, type) and issubclass(sensealg, SensitivityAlgorithm):
        raise TypeError(f"sensealg must be an instance: write {sensealg.__name__}() instead of {sensealg.__name__}")
    if not isinstance(sensealg, SensitivityAlgorithm):
        raise TypeError(f"sensealg must be a sensitivity algorithm such as DiscreteAdjoint(), got {sensealg!r}")
    if isinstance(sensealg, ContinuousAlgorithm) and sensealg.alg is not None:
        if not isinstance(sensealg.alg, algorithms.ExplicitRungeKutta):
            raise TypeError(f"sensealg: alg must be a method such as Tsit5(), got {sensealg.alg!r}")
        if settings.adaptive and not sensealg.alg.adaptive:
            raise ValueError(f"sensealg: {type(sensealg.alg).__name__} has no error estimate; take Tsit5()")
    return sensealg


_NUMBERS = ("reltol", "abstol", "dt0", "dtmin", "dtmax")


def _numbers(merged: dict, u, state, dtype) -> Options:
    """`make_options`, remembered for plain numbers that need no warning."""
    given = [merged[name] for name in _NUMBERS]
    plain = all(type(x) in (float, int, type(None)) for x in given)
    if plain and (given[0] is None or given[0] > 10 * jnp.finfo(state.real_dtype).eps):
        return _plain_options(state.real_dtype, dtype, *given)
    return make_options(merged, u, state.real_dtype, dtype)


@functools.lru_cache(maxsize=256, typed=True)
def _plain_options(real_dtype, dtype, *given) -> Options:
    return make_options(dict(zip(_NUMBERS, given, strict=True)), None, real_dtype, dtype)


def make_options(merged: dict, u, real_dtype, dtype) -> Options:
    """Tolerances in the state's real dtype, step sizes in the times' dtype, each checked where its value is known."""
    double = jnp.finfo(real_dtype).bits >= 64
    default = {"reltol": 1e-6 if double else 1e-4, "abstol": 1e-9 if double else 1e-6}
    tolerances = {}
    for name, value in default.items():
        given = merged[name]
        tolerances[name] = _tolerance(name, value if given is None else given, u, real_dtype)
    dt0 = 0.0 if merged["dt0"] is None else merged["dt0"]
    numbers = {"dt0": dt0, "dtmin": merged["dtmin"], "dtmax": merged["dtmax"]}
    steps = {}
    for name, value in numbers.items():
        array = as_array(_real(value, name), dtype)
        known = concrete(array)
        nonzero = merged[name] is not None and name != "dtmin"
        if array.shape != () or (known is not None and (np.isnan(known) or (nonzero and known == 0))):
            raise ValueError(f"{name} must be a {'nonzero ' * nonzero}real scalar, got {value!r}")
        if known is not None and known < 0 and name != "dt0":
            raise ValueError(f"{name} must not be negative, got {value!r}; steps are signed by tspan")
        steps[name] = array
    low, high = concrete(steps["dtmin"]), concrete(steps["dtmax"])
    if low is not None and high is not None and low > high:
        raise ValueError(f"dtmin must not exceed dtmax, got dtmin={low:g} and dtmax={high:g}")
    return Options(tolerances["reltol"], tolerances["abstol"], steps["dt0"], steps["dtmin"], steps["dtmax"])


def _tolerance(name: str, value, u, real_dtype):
    value = np.asarray(value) if _number_list(value) else value
    leaves, tree = jax.tree.flatten(value)
    u_leaves, u_tree = jax.tree.flatten(u)
    for x in leaves:
        _real(x, name)
    if jax.tree_util.treedef_is_leaf(tree) and jnp.shape(value) == ():
        out = as_array(value, real_dtype)
    elif tree == u_tree:
        try:
            parts = [as_array(x, real_dtype) for x in leaves]
            xp = jnp if any(isinstance(x, jax.Array) for x in parts) else np
            spread = [xp.broadcast_to(x, y.shape) for x, y in zip(parts, u_leaves, strict=True)]
        except ValueError:
            raise ValueError(f"{name} must have shapes that broadcast to those of u0, got {value!r}") from None
        out = xp.concatenate([x.reshape(-1) for x in spread])
    else:
        raise ValueError(f"{name} must be a scalar or have the structure of u0, {u_tree}; got {tree}")
    known = concrete(out)
    if known is not None:
        floor = 0.0 if name == "abstol" else -1.0
        if not np.all(np.isfinite(known)) or np.any(known < 0) or (name == "abstol" and np.all(known <= floor)):
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
        eps = float(jnp.finfo(real_dtype).eps)
        if name == "reltol" and np.any(known < 10 * eps):
            warnings.warn(
                f"reltol={np.min(known):.3g} is below what {real_dtype} delivers ({10 * eps:.3g}): rounding "
                "errors dominate; raise reltol, or give u0 in double precision (jax_enable_x64)",
                stacklevel=3,
            )
    return out
