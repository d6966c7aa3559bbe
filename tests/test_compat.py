"""Doors for programs written for SciPy and `jax.experimental.ode`: values against those, gradients in closed form."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from jax.experimental import ode as jax_ode

import odesens as ode
from odesens.compat import odeint, solve_ivp
from tests.problems import close

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
TS = np.linspace(0.0, 5.0, 11)
METHODS = ["RK45", "RK23", "DOP853", "Radau", "BDF", "LSODA"]


def oscillator(t, y, w):  # y[0] = cos(w t)
    return [y[1], -(w**2) * y[0]]


def both(*args, **options):
    """Our result and SciPy's of one call."""
    return solve_ivp(*args, **options), scipy.integrate.solve_ivp(*args, **options)


# ---------------------------------------------------------------- jax.experimental.ode


def pendulum(y, t, g, k):
    return {"angle": y["speed"], "speed": -g * jnp.sin(y["angle"]) - k["drag"] * y["speed"]}


PENDULUM = ({"angle": jnp.array([0.5, 1.0]), "speed": jnp.zeros(2)}, jnp.linspace(0.0, 2.0, 5), 9.8, {"drag": 0.3})


def test_odeint_has_the_signature_of_jax():
    ours, theirs = inspect.signature(odeint).parameters, inspect.signature(jax_ode.odeint).parameters
    assert {k: (v.kind, v.default) for k, v in ours.items()} == {k: (v.kind, v.default) for k, v in theirs.items()}


def test_odeint_values_and_gradients():
    got, want = odeint(pendulum, *PENDULUM), jax_ode.odeint(pendulum, *PENDULUM)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: close(a, b, 1e-6), got, want)
    loss = lambda solver: lambda *args: jnp.sum(jnp.sin(solver(pendulum, *args, rtol=1e-10, atol=1e-10)["angle"]))
    got = jax.grad(loss(odeint), argnums=(0, 1, 2, 3))(*PENDULUM)
    want = jax.grad(loss(jax_ode.odeint), argnums=(0, 1, 2, 3))(*PENDULUM)
    jax.tree.map(lambda a, b: close(a, b, 1e-6), got, want)


def test_odeint_in_closed_form():
    f = lambda y, t, a: -a * y
    t = jnp.array([0.5, 1.0, 2.0])
    run = lambda y0, t, a: jax.jit(odeint, static_argnums=0)(f, y0, t, a)[-1]
    y0, a, e = 2.0, 0.7, np.exp(-0.7 * 1.5)
    gradient = jax.grad(run, argnums=(0, 1, 2))(y0, t, a)
    close(gradient[0], e, 1e-7)
    close(gradient[1], 2 * 0.7 * e * np.array([1.0, 0.0, -1.0]), 1e-7)
    close(gradient[2], -2 * 1.5 * e, 1e-7)
    close(jax.hessian(run, argnums=2)(y0, t, a), 2 * 1.5**2 * e, 1e-6)  # JAX's own has no forward mode
    back = odeint(f, 2.0, t[::-1], a)
    close(back, 2.0 * np.exp(0.7 * (2.0 - np.asarray(t[::-1]))), 1e-7)
    assert odeint(f, 2.0, t[:1], a).shape == (1,)


def test_odeint_options_and_wrong_input():
    f = lambda y, t: -y
    close(odeint(f, 1.0, TS, hmax=0.01), np.exp(-TS), 1e-7)
    with pytest.raises(ode.SolveError):
        odeint(f, 1.0, TS, mxstep=1)
    with pytest.raises(TypeError, match="floats"):
        odeint(f, 1.0, jnp.arange(3))
    with pytest.raises(ValueError, match="m >= 1"):
        odeint(f, 1.0, jnp.zeros((0,)))
    with pytest.raises(TypeError, match=r"jax\.numpy"):
        odeint(lambda y, t: np.sin(y), 1.0, TS)


# ---------------------------------------------------------------- SciPy: values


def test_solve_ivp_has_the_signature_of_scipy():
    ours, theirs = (inspect.signature(f).parameters for f in (solve_ivp, scipy.integrate.solve_ivp))
    assert {k: (v.kind, v.default) for k, v in ours.items()} == {k: (v.kind, v.default) for k, v in theirs.items()}
    result = solve_ivp(oscillator, (0, 1), [1.0, 0.0], args=(2.0,))
    want = scipy.integrate.solve_ivp(oscillator, (0, 1), [1.0, 0.0], args=(2.0,))
    assert set(result.keys()) == set(want.keys())
    assert result["y"] is result.y and "success: True" in repr(result)


@pytest.mark.parametrize("method", METHODS)
def test_methods(method):
    options = {"rtol": 1e-3, "atol": 1e-6} if method == "RK23" else TIGHT
    got, want = both(oscillator, (0, 5), [1.0, 0.0], method, TS, args=(2.0,), **options)
    exact = np.stack([np.cos(2 * TS), -2 * np.sin(2 * TS)])
    error = lambda y: np.max(np.abs(y - exact))
    assert error(got.y) < max(5 * error(want.y), 1e-6)
    assert (got.status, got.success, got.message) == (want.status, want.success, want.message)
    np.testing.assert_array_equal(got.t, want.t)
    assert got.y.shape == want.y.shape and got.sol is None and got.t_events is None
    assert got.nfev > 0 and (got.nlu > 0) == (method in ("Radau", "BDF"))


def test_robertson_with_the_default_tolerances():
    f = lambda t, y: [
        -0.04 * y[0] + 1e4 * y[1] * y[2],
        0.04 * y[0] - 1e4 * y[1] * y[2] - 3e7 * y[1] ** 2,
        3e7 * y[1] ** 2,
    ]
    want = scipy.integrate.solve_ivp(f, (0, 1e4), [1.0, 0.0, 0.0], "Radau", [1e2, 1e4], rtol=1e-10, atol=1e-13)
    for method in ("Radau", "BDF", "LSODA"):
        got = solve_ivp(f, (0, 1e4), [1.0, 0.0, 0.0], method, [1e2, 1e4], rtol=1e-5, atol=1e-9)
        close(got.y, want.y, 1e-3)


def test_accepted_steps_and_dense_output():
    got, want = both(oscillator, (0, 5), [1.0, 0.0], dense_output=True, args=(2.0,), **TIGHT)
    assert got.t[0] == 0 and got.t[-1] == 5 and np.all(np.diff(got.t) > 0) and got.y.shape == (2, got.t.size)
    for t in (0.0, 1.234, np.array([0.1, 4.9, 2.0]), np.zeros(0)):
        if np.size(t):
            close(got.sol(t), want.sol(t), 1e-7)
        else:
            assert got.sol(t).shape == (2, 0)
    assert (got.sol.t_min, got.sol.t_max) == (0, 5)


def test_reversed_complex_and_single():
    f = lambda t, y: 1j * t * y
    got, want = both(f, (2.0, -1.0), [1.0 + 0j, 2j], t_eval=[1.5, 0.0, -1.0], **TIGHT)
    close(got.y, want.y, 1e-6)
    close(got.y[0], np.exp(0.5j * (np.array([1.5, 0.0, -1.0]) ** 2 - 4)), 1e-7)
    single = solve_ivp(oscillator, (0, 5), np.array([1, 0], np.float32), args=(2.0,), t_eval=[5.0])
    assert single.y.dtype == np.float32
    close(single.y[0, -1], np.cos(10.0), 2e-2)
    np.testing.assert_allclose(solve_ivp(lambda t, y: t, (0, 1), [0]).y[0, -1], 0.5, atol=1e-6)  # integers, a scalar


def test_vectorized_and_options():
    a = jnp.array([[-1.0, 0.5], [0.2, -2.0]])
    f = lambda t, y: a @ y
    base = scipy.integrate.solve_ivp(f, (0, 3), [1.0, 2.0], "Radau", [3.0], vectorized=True, **TIGHT).y
    for options in (
        {"vectorized": True},
        {"jac": lambda t, y: a, "method": "Radau"},
        {"jac": np.asarray(a), "method": "BDF"},
        {"jac_sparsity": np.ones((2, 2)), "method": "Radau"},
        {"lband": 1, "uband": 1, "method": "LSODA", "min_step": 1e-12},
        {"first_step": 1e-3, "max_step": 0.1},
        {"method": ode.Vern7(), "max_steps": 10_000},
    ):
        close(solve_ivp(f, (0, 3), [1.0, 2.0], t_eval=[3.0], **options, **TIGHT).y, base, 1e-6)
    few = solve_ivp(f, (0, 3), [1.0, 2.0], max_step=0.1)
    assert np.max(np.diff(few.t)) <= 0.1 * (1 + 1e-6)


def event_of(terminal=None, direction=0, level=0.0):
    def event(t, y, *args):
        return y[0] - level

    if terminal is not None:
        event.terminal = terminal
    event.direction = direction
    return event


@pytest.mark.parametrize(
    "terminal, direction, t_eval",
    [(None, 0, TS), (False, 1, None), (True, 0, TS), (1, -2.0, None), (3, 0, TS), (3, 0, None), (2, 1, TS)],
)
def test_events(terminal, direction, t_eval):
    events = [event_of(None, 0, 0.5), event_of(terminal, direction)]
    options = {"t_eval": t_eval, "args": (2.0,), "dense_output": True, **TIGHT}
    got, want = both(oscillator, (0, 5), [1.0, 0.0], events=events, **options)
    assert (got.status, got.message) == (want.status, want.message)
    for ours, theirs in zip(got.t_events, want.t_events, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7)
    for ours, theirs in zip(got.y_events, want.y_events, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert float(got.t[-1]) == pytest.approx(want.t[-1], rel=1e-7)
    assert float(got.sol.t_max) == pytest.approx(want.sol.t_max, rel=1e-7)
    if t_eval is not None:
        np.testing.assert_array_equal(got.t, want.t)
        close(got.y, want.y, 1e-6)


def test_events_backwards_and_none():
    event = event_of(2)
    got, want = both(oscillator, (0, -5), [1.0, 0.0], events=event, args=(2.0,), t_eval=-TS, **TIGHT)
    np.testing.assert_allclose(got.t_events[0], want.t_events[0], rtol=1e-7)
    np.testing.assert_array_equal(got.t, want.t)
    got, want = both(oscillator, (0, 1), [1.0, 0.0], events=event_of(True, 0, 7.0), args=(2.0,))
    assert got.t_events[0].shape == want.t_events[0].shape == (0,) and got.status == want.status == 0
    assert solve_ivp(oscillator, (0, 1), [1.0, 0.0], events=[], args=(2.0,)).t_events == []


def test_failure_is_told_not_raised():
    blow_up = lambda t, y: y**2  # y = 1 / (1 - t)
    got, want = both(blow_up, (0, 2), [1.0])
    assert (
        (got.status, got.success, got.message) == (want.status, want.success, want.message) == (-1, False, got.message)
    )
    assert got.t[-1] == pytest.approx(1.0, abs=1e-3) and not np.any(np.isnan(got.y))
    got, want = both(blow_up, (0, 2), [1.0], t_eval=[0.0, 0.5, 1.5], **TIGHT)
    np.testing.assert_array_equal(got.t, want.t)
    close(got.y, want.y, 1e-6)
    few = solve_ivp(oscillator, (0, 5), [1.0, 0.0], args=(2.0,), max_steps=3)
    assert few.status == -1 and "MaxSteps" in few.message and "raise max_steps" in few.message
    many = solve_ivp(oscillator, (0, 50), [1.0, 0.0], args=(2.0,), events=event_of(20), max_events=5, t_eval=[50.0])
    assert many.status == -1 and "max_events" in many.message


# ---------------------------------------------------------------- SciPy: derivatives


def test_gradients_in_closed_form():
    last = lambda w, **options: solve_ivp(oscillator, (0, 5.0), [1.0, 0.0], args=(w,), **options, **TIGHT).y[0, -1]
    want, second = -5 * np.sin(10.0), -25 * np.cos(10.0)
    close(jax.grad(last)(2.0), want, 1e-6)  # over every accepted step
    for method in ("DOP853", "Radau"):
        run = lambda w, m=method: last(w, method=m, t_eval=[5.0])
        close(jax.jit(jax.grad(run))(2.0), want, 1e-5)
    close(jax.hessian(lambda w: last(w, t_eval=[5.0]))(2.0), second, 1e-5)
    close(jax.vmap(jax.grad(lambda w: last(w, t_eval=[5.0])))(jnp.array([2.0, 1.0])), [want, -5 * np.sin(5.0)], 1e-6)
    ends = lambda t0, t1: solve_ivp(oscillator, (t0, t1), [1.0, 0.0], args=(2.0,), **TIGHT).y[0, -1]
    close(jnp.stack(jax.grad(ends, (0, 1))(0.0, 5.0)), np.array([2.0, -2.0]) * np.sin(10.0), 1e-6)
    start = lambda y0: solve_ivp(oscillator, (0, 5), y0, args=(2.0,), dense_output=True, **TIGHT).sol(3.0)[0]
    close(jax.grad(start)(jnp.array([1.0, 0.0])), [np.cos(6.0), np.sin(6.0) / 2], 1e-6)


@pytest.mark.parametrize("terminal", [True, 2])
def test_event_times_are_differentiable(terminal):
    """The k-th zero of cos(w t) is at (2 k - 1) pi / (2 w)."""

    def run(w):
        return solve_ivp(
            oscillator, (0, 5), [1.0, 0.0], args=(w,), events=event_of(terminal), t_eval=TS, max_events=8, **TIGHT
        )

    k = int(terminal)
    time = (2 * k - 1) * np.pi / 4
    close(jax.grad(lambda w: run(w).t_events[0][k - 1])(2.0), -time / 2, 1e-6)
    traced = jax.jit(run)(2.0)
    assert traced.t_events[0].shape == (8,) and np.all(np.isinf(traced.t_events[0][k:]))
    assert traced.status == 1 and traced.success and traced.message == "A termination event occurred."
    np.testing.assert_array_equal(np.isinf(traced.t), time < TS)
    close(traced.y[0][TS < time], np.cos(2 * TS[TS < time]), 1e-7)
    lanes = jax.vmap(run)(jnp.array([2.0, 0.1]))
    np.testing.assert_array_equal(lanes.status, [1, 0])
    assert "status" in lanes.message


# ---------------------------------------------------------------- wrong input


def numpy_array(t, y):
    out = np.zeros(2)
    out[0] = y[1]
    return out


NUMPY_ONLY = {
    "ufunc": lambda t, y: np.sin(y),
    "array": lambda t, y: np.array([y[1], -y[0]]),
    "entries": numpy_array,
    "if": lambda t, y: y if y[0] > 0 else -y,
    "float": lambda t, y: [float(y[0]), 0.0],
}


@pytest.mark.parametrize("name", NUMPY_ONLY)
def test_functions_for_numpy_are_told(name):
    with pytest.raises(TypeError, match=r"fun is not written for JAX.*jax\.numpy"):
        solve_ivp(NUMPY_ONLY[name], (0, 1), [1.0, 0.0])


def test_an_event_for_numpy_and_errors_of_the_user_alone():
    with pytest.raises(TypeError, match="an event is not written for JAX"):
        solve_ivp(lambda t, y: -y, (0, 1), [1.0], events=lambda t, y: np.sin(y[0]))

    def wrong(t, y):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        solve_ivp(wrong, (0, 1), [1.0])


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"method": "RK4"}, ValueError, "RK45"),
        ({"rtoll": 1e-3}, TypeError, "unknown options"),
        ({"args": 2.0}, TypeError, r"args=\(2.0,\)"),
        ({"t_eval": [[0.0]]}, ValueError, "t_eval"),
        ({"t_eval": [2.0]}, ValueError, "within"),
        ({"events": event_of(1.5)}, ValueError, "terminal"),
        ({"events": [3]}, TypeError, "events"),
        ({"jac": lambda t, y: np.sin(y), "method": "Radau"}, TypeError, "jac is not written for JAX"),
    ],
)
def test_wrong_input(options, error, match):
    with pytest.raises(error, match=match):
        solve_ivp(lambda t, y, *args: -y, (0, 1), [1.0], **options)


def test_wrong_states():
    with pytest.raises(ValueError, match="shape"):
        solve_ivp(lambda t, y: -y, (0, 1), 1.0)
    with pytest.raises(ValueError, match="2 numbers"):
        solve_ivp(lambda t, y: [1.0, 2.0, 3.0], (0, 1), [1.0, 2.0])
    with pytest.raises(TypeError, match="complex y0"):
        solve_ivp(lambda t, y: 1j * y, (0, 1), [1.0])
    with pytest.raises(TypeError, match="must be a function"):
        solve_ivp(3, (0, 1), [1.0])
