"""Doors for programs written for others: `odeint` as `jax.experimental.ode` has it, `solve_ivp` as SciPy has it.

Owns: their arguments in our words, their results from ours. Must not know: numerics. Each makes an `ODEProblem` and
calls `solve`, so that both are differentiable to any order, in forward and reverse mode, under every transformation.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, PyTree, Real

from .algorithms import BS3, DOP853, DP5, FBDF, Algorithm, AutoTsit5, Rodas5P
from .callbacks import CallbackSet, ContinuousCallback
from .problem import ODEProblem
from .saveat import concrete
from .solution import ODESolution
from .solve import solve
from .status import ReturnCode

__all__ = ["DenseOutput", "OdeResult", "odeint", "solve_ivp"]

MOST_STEPS = 2**31 - 4
NEED_VALUES = (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)


def odeint(
    func: Callable,
    y0: PyTree,
    t: Any,
    *args: PyTree,
    rtol: Any = 1.4e-8,
    atol: Any = 1.4e-8,
    mxstep: Any = math.inf,
    hmax: Any = math.inf,
) -> PyTree:
    """Solve dy/dt = func(y, t, *args) from y(t[0]) = y0: `jax.experimental.ode.odeint`, here with `DP5`.

    Parameters
    ----------
    func : callable
        func(y, t, *args) returns dy/dt with the structure and shapes of y; written with `jax.numpy`.
    y0 : pytree of arrays
    t : array (m,) of floats, m >= 1
        Monotone, rising or falling; values are returned at each, the first one y0.
    *args : pytrees
        Differentiable where they are floating, as y0, t and what func captures are.
    rtol, atol : float or pytree like y0
    mxstep : int
        The largest number of steps, on average, for each interval of t.
    hmax : float
        The largest step.

    Returns
    -------
    pytree like y0, with a leading axis m

    Raises
    ------
    SolveError
        Where an eager solve fails. (JAX's own does not tell.)
    TypeError, ValueError
        For input that is wrong.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from odesens.compat import odeint
    >>> end = lambda k: odeint(lambda y, t, k: -k * y, 1.0, jnp.array([0.0, 1.0]), k)[-1]
    >>> print(f"{end(2.0):.5f} {jax.grad(end)(2.0):.5f}")  # exp(-k), -exp(-k)
    0.13534 -0.13534
    """
    times = t if hasattr(t, "dtype") else np.asarray(t)
    if not jnp.issubdtype(times.dtype, jnp.floating):
        raise TypeError(f"odeint: t must be an array of floats, got dtype {times.dtype}")
    if times.ndim != 1 or not times.shape[0]:
        raise ValueError(f"odeint: t must have shape (m,) with m >= 1, got {times.shape}")
    f = _traceable("func", func)
    prob = ODEProblem(lambda t, y, args: f(y, t, *args), y0, (times[0], times[-1]), tuple(args))
    most = MOST_STEPS if math.isinf(mxstep) else min(int(mxstep) * max(times.shape[0] - 1, 1), MOST_STEPS)
    return solve(prob, DP5(), saveat=times, reltol=rtol, abstol=atol, dtmax=hmax, max_steps=most).u


# ---------------------------------------------------------------- SciPy

METHODS = {
    "RK45": DP5(),
    "RK23": BS3(),
    "DOP853": DOP853(),
    "Radau": Rodas5P(),
    "BDF": FBDF(),
    "LSODA": AutoTsit5(Rodas5P()),
}
OPTIONS = (
    "rtol atol first_step max_step min_step jac jac_sparsity lband uband max_steps max_events sensealg progress".split()
)
MESSAGES = {
    ReturnCode.Success: "The solver successfully reached the end of the integration interval.",
    ReturnCode.Terminated: "A termination event occurred.",
    ReturnCode.DtTooSmall: "Required step size is less than spacing between numbers.",
}


@jax.tree_util.register_pytree_node_class
class DenseOutput:
    """`OdeSolution` of SciPy: sol(t) is y (n,) for a scalar t and (n, k) for t (k,), within t_min and t_max.

    Attributes
    ----------
    t_min, t_max : real scalars

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from odesens.compat import solve_ivp
    >>> res = solve_ivp(lambda t, y: -2 * y, (0.0, 1.0), [1.0], t_eval=[0.5, 1.0], dense_output=True, rtol=1e-8)
    >>> print(res.sol(0.25).round(5), res.sol.t_max)
    [0.60653] 1.0
    """

    def __init__(self, sol: ODESolution, t0: Any, end: Any):
        self._sol, self._ends = sol, (t0, end)

    @property
    def t_min(self) -> Array:
        """The earliest time."""
        return jnp.minimum(*self._ends)

    @property
    def t_max(self) -> Array:
        """The latest time."""
        return jnp.maximum(*self._ends)

    def __call__(self, t: Real[ArrayLike, "..."]) -> Array:
        """y at the times t."""
        return jnp.moveaxis(self._sol(t), -1, 0)

    def tree_flatten(self) -> tuple[tuple, None]:
        return (self._sol, self._ends), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Sequence) -> "DenseOutput":
        new = object.__new__(cls)
        new._sol, new._ends = children
        return new


@jax.tree_util.register_pytree_node_class
class OdeResult:
    """What `solve_ivp` returns, by attribute or by key, `res.y` or `res["y"]`; a pytree.

    Attributes
    ----------
    t : array (m,)
    y : array (n, m)
    sol : DenseOutput, or None
    t_events, y_events : lists of arrays (k,) and (k, n), one for each event function, or None
    nfev, njev, nlu : int
    status : int
        0: the end was reached, 1: a terminal event occurred, -1: failed.
    message : str
    success : bool

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from odesens.compat import solve_ivp
    >>> res = solve_ivp(lambda t, y: -2 * y, (0.0, 1.0), [1.0], t_eval=[0.5, 1.0], dense_output=True, rtol=1e-8)
    >>> res["status"], res.t.shape, res.y.shape, res.t_events
    (0, (2,), (1, 2), None)
    """

    status: Any
    _fields = ("t", "y", "sol", "t_events", "y_events", "nfev", "njev", "nlu", "status")

    def __init__(self, **fields: Any):
        for name in self._fields:
            setattr(self, name, fields[name])
        self._code = fields["code"]

    @property
    def success(self) -> bool | Bool[Array, "..."]:
        """Whether the solve did not fail: a bool, or a boolean array under a transform."""
        ok = self.status >= 0
        known = None if jnp.ndim(ok) else concrete(ok)
        return ok if known is None else bool(known)

    @property
    def message(self) -> str:
        """How the solve ended, in words."""
        known = None if jnp.ndim(self._code) else concrete(self._code)
        if known is None:
            return "This result holds several solves, or is being traced: see status."
        code = ReturnCode(int(known))
        return MESSAGES.get(code, f"{code.name}: {code.cause}. To do: {code.remedy}.")

    def __getitem__(self, name: str) -> Any:
        """The attribute of that name."""
        return getattr(self, name)

    def keys(self) -> list[str]:
        """The names of all attributes."""
        return [*self._fields, "message", "success"]

    def tree_flatten(self) -> tuple[tuple, None]:
        return tuple(getattr(self, name) for name in (*self._fields, "_code")), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Sequence) -> "OdeResult":
        new = object.__new__(cls)
        for name, value in zip((*cls._fields, "_code"), children, strict=True):
            setattr(new, name, value)
        return new

    def __repr__(self) -> str:
        return "\n".join(f"{name:>8}: {getattr(self, name)!r}" for name in ("message", "success", "status", "t", "y"))


def solve_ivp(
    fun: Callable,
    t_span: Any,
    y0: Any,
    method: str | Algorithm = "RK45",
    t_eval: Any = None,
    dense_output: bool = False,
    events: Callable | Sequence[Callable] | None = None,
    vectorized: bool = False,
    args: Any = None,
    **options: Any,
) -> OdeResult:
    """Solve dy/dt = fun(t, y, *args) from y(t0) = y0: `scipy.integrate.solve_ivp`, differentiable.

    Parameters
    ----------
    fun : callable
        fun(t, y, *args), written with `jax.numpy`, returns dy/dt (n,): an array, or a list of numbers.
    t_span : (t0, t1)
    y0 : array (n,)
        Real or complex.
    method : str or algorithm
        "RK45": `DP5`, "RK23": `BS3`, "DOP853"; for the stiff methods ours that serve the same problems: "Radau":
        `Rodas5P`, "BDF": `FBDF`, "LSODA": `AutoTsit5(Rodas5P())`. Or any method of odesens, e.g. `Tsit5()`.
    t_eval : array (m,), optional
        Times at which y is wanted. None: every accepted step, and, under `jit` or `vmap`, max_steps + 1 columns, so
        name the times there.
    dense_output : bool
        Whether `sol` is there, a function of t.
    events : callable or list of callables
        event(t, y, *args) -> float, located where it crosses zero, with the attributes `terminal` (a bool, or after
        how many events the solve ends) and `direction` (only its sign counts).
    vectorized : bool
        Whether fun takes and returns arrays (n, k).
    args : tuple
        More arguments of fun, events and jac; floating ones are differentiable.
    **options
        Those that follow.
    rtol, atol : float or array (n,)
        1e-3 and 1e-6, as in SciPy.
    first_step, max_step, min_step : float
    jac : callable jac(t, y, *args) or array (n, n)
        By default found in forward mode, exactly.
    jac_sparsity : array (n, n); lband, uband : int
    max_steps, max_events, sensealg, progress
        Those of `odesens.solve`.

    Returns
    -------
    OdeResult
        A solve that fails has status -1, and the values up to there. Where values are traced (`jit`, `vmap`) lengths
        cannot depend on what happened: times that were not reached are inf with y held after a terminal event, y NaN
        after a failure, and t_events has `max_events` places, those unused inf.

    Raises
    ------
    TypeError, ValueError
        For input that is wrong, and for functions that only NumPy can run.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from odesens.compat import solve_ivp
    >>> res = solve_ivp(lambda t, y: -2 * y, (0.0, 1.0), [1.0], t_eval=[0.5, 1.0], dense_output=True, rtol=1e-8)
    >>> print(res.y.round(5), res.success)  # exp(-2 t)
    [[0.36788 0.13534]] True
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(f"solve_ivp got unknown options {unknown}; known are {', '.join(OPTIONS)}")
    t0, t1 = t_span
    y0 = _as_state(y0)
    p = _as_args(args)
    given = None if t_eval is None else _as_times(t_eval)
    prob = ODEProblem(
        _right_hand_side(fun, y0, vectorized), y0, (t0, t1), p, **_matrices(options, y0.shape[0]), **_options(options)
    )
    how = functools.partial(solve, prob, _method(method), throw=False)
    found = None if events is None else [_event(e) for e in ([events] if callable(events) else events)]
    if not found:
        sol = how(saveat=given, dense=bool(dense_output))
        return _result(sol, sol, (t0, t1), dense_output, None if found is None else [])
    callbacks = CallbackSet(*(ContinuousCallback(e.g, direction=e.direction, terminate=e.count == 1) for e in found))
    if all(e.count in (0, 1) for e in found):
        sol = how(saveat=given, callback=callbacks)
        return _result(sol, sol, (t0, t1), dense_output, found)
    return _until(how, found, callbacks, (t0, t1), given, dense_output)


class Event(NamedTuple):
    """An event function as condition(t, u, p); the number of events after which the solve ends, 0 for never."""

    g: Callable
    direction: int
    count: int


def _until(how: Callable, found: list[Event], callbacks, span, t_eval, dense) -> OdeResult:
    """A solve that ends at the k-th of some events: one solve for the events, one up to there. They change nothing."""
    t0, t1 = span
    first = how(saveat=jnp.stack([jnp.asarray(t1)]), callback=callbacks)
    times, _ = _split(first.events, len(found))
    sign = jnp.where(jnp.asarray(t1) >= jnp.asarray(t0), 1, -1)
    end, ended = jnp.asarray(t1), jnp.zeros((), bool)
    for e, t in zip(found, times, strict=True):
        if e.count and t.shape[0] >= e.count:
            at = t[e.count - 1]
            sooner = jnp.isfinite(at) & (sign * (end - at) >= 0)
            end, ended = jnp.where(sooner, at, end), ended | sooner
    saveat = t_eval
    if t_eval is not None:
        late = sign * (jnp.asarray(t_eval) - end) > 0
        known = concrete(late)
        saveat = jnp.where(late, end, jnp.asarray(t_eval)) if known is None else jnp.asarray(t_eval)[~known]
    second = how(tspan=(t0, end), saveat=saveat, dense=bool(dense))
    if t_eval is not None and concrete(late) is None:
        second.t = jnp.where(late, sign * jnp.inf, second.t)
    code = jnp.where(second._code > 1, second._code, jnp.where(ended, int(ReturnCode.Terminated), first._code))
    second._code = code.astype(first._code.dtype)
    return _result(second, first, (t0, end), dense, found, end=end)


def _result(sol: ODESolution, seen: ODESolution, span, dense, found, end=None) -> OdeResult:
    """The result from a solution and the one whose events it shows, up to the time `end`, where that is given."""
    t, y = _reached(sol)
    t_events = y_events = None
    if found is not None:
        t_events, y_events = [], []
        if found:
            t_events, y_events = _split(seen.events, len(found), end, span)
    if end is None and found and any(e.count for e in found):  # the last event is the one that ended the solve
        last = functools.reduce(jnp.maximum, [_last(t, span) for t in t_events or []])
        sign = jnp.where(jnp.asarray(span[1]) >= jnp.asarray(span[0]), 1, -1)
        span = (span[0], jnp.where(sol._code == ReturnCode.Terminated, sign * last, span[1]))
    stats = sol.stats
    status = _status(sol._code)
    known = None if jnp.ndim(status) else concrete(status)
    plain = lambda x: x if jnp.ndim(x) or (v := concrete(x)) is None else int(v)
    return OdeResult(
        t=t,
        y=y,
        sol=DenseOutput(sol, *span) if dense else None,
        t_events=t_events,
        y_events=y_events,
        nfev=plain(stats.nf),
        njev=plain(stats.njacs),
        nlu=plain(stats.nfactor),
        status=status if known is None else int(known),
        code=sol._code,
    )


def _last(t, span):
    """The latest time of an event, counted along the span."""
    sign = jnp.where(jnp.asarray(span[1]) >= jnp.asarray(span[0]), 1, -1)
    return jnp.max(jnp.where(jnp.isfinite(t), sign * t, -jnp.inf), initial=-jnp.inf)


def _status(code):
    return jnp.where(code <= ReturnCode.Terminated, code, -1).astype(jnp.int32)


def _reached(sol: ODESolution):
    """t (m,) and y (n, m), without what comes after the end where that is known."""
    t, y = sol.t, jnp.moveaxis(sol.u, 0, -1)
    times, values = concrete(t), concrete(y)
    if times is None or values is None or jnp.ndim(sol._code):
        return t, y
    keep = np.isfinite(times) & ~np.any(np.isnan(values), axis=0)
    return (t, y) if np.all(keep) else (t[keep], y[:, keep])


def _split(events, count: int, end=None, span=None) -> tuple[list, list]:
    """Times and states of the events of each of `count` functions, up to the time `end`."""
    times, states = [], []
    which = concrete(events.which)
    late = jnp.zeros(events.t.shape, bool)
    if end is not None:
        assert span is not None
        sign = jnp.where(jnp.asarray(end) >= jnp.asarray(span[0]), 1, -1)
        late = sign * (events.t - end) > 0
    for i in range(count):
        own = (events.which == i) & ~late
        known = None if which is None else concrete(own)
        if known is not None:
            times.append(events.t[known])
            states.append(events.before[known])
            continue
        order = jnp.argsort(~own, stable=True)
        times.append(jnp.where(own, events.t, jnp.inf)[order])
        states.append(jnp.where(own[:, None], events.before, jnp.nan)[order])
    return times, states


# ---------------------------------------------------------------- SciPy's arguments in our words


def _as_state(y0):
    y0 = jnp.asarray(y0)
    if y0.ndim != 1:
        raise ValueError(f"solve_ivp: y0 must have shape (n,), got {y0.shape}; for pytrees take odesens.solve")
    return y0 if jnp.issubdtype(y0.dtype, jnp.inexact) else y0.astype(jnp.result_type(float))


def _as_args(args) -> tuple:
    if args is None:
        return ()
    try:
        return tuple(args)
    except TypeError:
        raise TypeError(f"solve_ivp: args must be a tuple, got {args!r}: write args=({args!r},)") from None


def _as_times(t_eval):
    times = t_eval if hasattr(t_eval, "dtype") else jnp.asarray(t_eval)
    if times.ndim != 1:
        raise ValueError(f"solve_ivp: t_eval must have shape (m,), got {times.shape}")
    return times


def _method(given) -> Algorithm:
    if isinstance(given, Algorithm):
        return given
    if isinstance(given, str) and given in METHODS:
        return METHODS[given]
    raise ValueError(f"solve_ivp: method must be one of {', '.join(METHODS)} or an algorithm of odesens, got {given!r}")


def _options(given: dict) -> dict:
    """The options of `solve`, with SciPy's defaults."""
    names = {"first_step": "dt0", "max_step": "dtmax", "min_step": "dtmin"}
    same = ("max_steps", "max_events", "sensealg", "progress")
    out = {"reltol": given.get("rtol", 1e-3), "abstol": given.get("atol", 1e-6)}
    out |= {ours: given[name] for name, ours in names.items() if given.get(name) is not None}
    return out | {name: given[name] for name in same if given.get(name) is not None}


def _matrices(given: dict, n: int) -> dict:
    """`jac` and `jac_sparsity` of the problem."""
    out: dict[str, Any] = {"jac_sparsity": given.get("jac_sparsity")}
    jac = given.get("jac")
    if callable(jac):
        own = _traceable("jac", jac)
        out["jac"] = lambda t, y, p: jnp.asarray(own(t, y, *p), y.dtype)
    elif jac is not None:
        matrix = jnp.asarray(jac)
        out["jac"] = lambda t, y, p: matrix.astype(y.dtype)
    lower, upper = given.get("lband"), given.get("uband")
    if lower is not None or upper is not None:
        i, j = np.indices((n, n))
        out["jac_sparsity"] = (i - j <= (lower or 0)) & (j - i <= (upper or 0))
    return out


def _right_hand_side(fun: Callable, y0, vectorized: bool) -> Callable:
    own = _traceable("fun", fun)

    def f(t, y, args):
        out = jnp.asarray(own(t, y[:, None], *args) if vectorized else own(t, y, *args))
        if out.size != y.size:
            raise ValueError(f"solve_ivp: fun must return {y.size} numbers, one for each of y0, got shape {out.shape}")
        if jnp.iscomplexobj(out) and not jnp.iscomplexobj(y):
            raise TypeError("solve_ivp: fun returns complex values for a real y0: give a complex y0")
        return out.reshape(y.shape).astype(y.dtype)

    return f


def _event(event: Callable) -> Event:
    """An event function with its attributes, as SciPy reads them."""
    if not callable(event):
        raise TypeError(f"solve_ivp: events must be functions event(t, y, ..), got {event!r}")
    own, terminal = _traceable("an event", event), getattr(event, "terminal", None)
    count = 0 if terminal is None else terminal
    if count != int(count) or count < 0:
        raise ValueError(f"solve_ivp: terminal must be a bool or an integer >= 0, got {terminal!r}")
    direction = int(np.sign(getattr(event, "direction", 0)))
    return Event(lambda t, y, args: jnp.reshape(own(t, y, *args), ()), direction, int(count))


def _traceable(what: str, fun: Callable) -> Callable:
    """fun, with what to do where it needs the values of its arguments."""
    if not callable(fun):
        raise TypeError(f"{what} must be a function, got {type(fun).__name__}")

    @functools.wraps(fun)
    def traced(*args):
        try:
            return fun(*args)
        except (*NEED_VALUES, ValueError) as error:  # NumPy's own error where an entry of its array was to be set
            if not isinstance(error, NEED_VALUES) and not isinstance(error.__cause__, NEED_VALUES):
                raise
            raise TypeError(
                f"{what} is not written for JAX: it hands its arguments to NumPy, math or SciPy, or decides by them in "
                "Python. Write it with jax.numpy (np.sin -> jnp.sin, np.array([..]) -> jnp.stack([..]), x[i] = v -> "
                "x.at[i].set(v), if -> jnp.where); a function that cannot be, for want of its source, runs within "
                "jax.pure_callback, without derivatives"
            ) from error

    return traced
