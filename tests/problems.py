"""Small problems with independent references, shared by the tests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

ENGINES = {
    "discrete": ode.DiscreteAdjoint(),
    "interpolating": ode.InterpolatingAdjoint(),
    "quadrature": ode.QuadratureAdjoint(),
    "gauss": ode.GaussAdjoint(),
    "backsolve": ode.BacksolveAdjoint(),
    "forward": ode.ForwardSensitivity(),
}

ALL_ENGINES = tuple(ENGINES.values())
DISCRETE, INTERPOLATING, QUADRATURE, GAUSS, BACKSOLVE, FORWARD = ALL_ENGINES


def engines(*chosen):
    """Parametrise a test over sensitivity algorithms, all six where none is named."""
    return pytest.mark.parametrize("engine", chosen or ALL_ENGINES, ids=lambda e: type(e).__name__)


def close(got, want, tol):
    """Assert that got equals want to tol, relative to want's largest entry."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    error = np.max(np.abs(got - want)) / np.max(np.abs(want))
    assert error <= tol, f"relative error {error:.2g} > {tol:g}: got {got}, want {want}"


def check_gradient(engine, loss, x, gradient, tol, value=None):
    """The gradient of loss at x and its value against right values; forward mode too where engines differ in it."""
    x = jnp.asarray(x)
    got, reverse = jax.value_and_grad(loss)(x)
    close(reverse, gradient, tol)
    if engine in (DISCRETE, FORWARD):
        close(jax.jacfwd(loss)(x), gradient, tol)
    if value is not None:
        close(got, value, tol)


METHODS = [
    ode.Euler(),
    ode.Midpoint(),
    ode.Heun(),
    ode.Ralston(),
    ode.RK4(),
    ode.BS3(),
    ode.DP5(),
    ode.Tsit5(),
    ode.Vern6(),
    ode.Vern7(),
    ode.Vern8(),
    ode.Vern9(),
    ode.DOP853(),
]


def lotka_volterra(t, u, p):
    x, y = u
    return jnp.stack([p[0] * x - p[1] * x * y, -p[2] * y + p[3] * x * y])


V0 = jnp.array([1.0, 1.2, 1.5, 1.0, 3.0, 1.1])  # u0, then p
TS = np.array([0.0, 0.3, 0.71, 1.0])
PROBLEM = ode.ODEProblem(lotka_volterra, V0[:2], (0.0, 1.0), V0[2:])


def saved(v, sensealg=None, ts=TS, **options):
    """The saved states of the Lotka-Volterra problem as a function of v = (u0, p)."""
    options = {"reltol": 1e-10, "abstol": 1e-10, **options}
    return ode.solve(PROBLEM, u0=v[:2], p=v[2:], saveat=ts, sensealg=sensealg, **options).u


def loss_of(us):
    return jnp.sum(jnp.sin(us) * jnp.arange(1.0, 1.0 + us.size).reshape(us.shape))


def rk4_saved(v, ts=TS, steps=600):
    """The same states by plain RK4 steps between the saves, differentiated by JAX itself: knows nothing of odesens."""
    u0, p = v[:2], v[2:]

    def segment(u, h):
        def step(u, _):
            k1 = lotka_volterra(0, u, p)
            k2 = lotka_volterra(0, u + h / 2 * k1, p)
            k3 = lotka_volterra(0, u + h / 2 * k2, p)
            k4 = lotka_volterra(0, u + h * k3, p)
            return u + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        u = jax.lax.scan(step, u, None, length=steps)[0]
        return u, u

    return jax.lax.scan(segment, u0, np.diff(ts, prepend=0.0) / steps)[1]
