"""Interpolation of data: values against SciPy, forced solves against closed forms, derivatives in values and knots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate as si

import odesens as ode
from odesens.interpolation import ConstantInterpolation, CubicHermiteInterpolation, LinearInterpolation

from .problems import DISCRETE, GAUSS, close, engines

rng = np.random.default_rng(0)
X = np.cumsum(rng.uniform(0.2, 1, 7))
Y, D = rng.normal(size=(2, 7, 2))
T = np.sort(np.concatenate([rng.uniform(X[0], X[-1], 50), X]))
OUTSIDE = np.array([X[0] - 1, X[-1] + 1])
KNOTS, VALUES = jnp.array([0.0, 1.0, 2.5, 3.0]), jnp.array([1.0, 3.0, -1.0, 2.0])  # of the forcing
K, END, U0 = 0.5, 4.0, 0.3
TIGHT = {"reltol": 1e-10, "abstol": 1e-10}


# ---------------------------------------------------------------- values


def test_values_are_those_of_scipy():
    close(ConstantInterpolation(X, Y)(T), si.interp1d(X, Y, axis=0, kind="previous")(T), 0)
    between = T[~np.isin(T, X)]
    close(ConstantInterpolation(X, Y, side="right")(between), si.interp1d(X, Y, axis=0, kind="next")(between), 0)
    close(LinearInterpolation(X, Y)(T), si.interp1d(X, Y, axis=0)(T), 1e-15)
    given = si.CubicHermiteSpline(X, Y, D)
    cubic = CubicHermiteInterpolation(X, Y, D)
    close(cubic(T), given(T), 1e-15)
    close(cubic.derivative(T), given(T, 1), 1e-14)
    own = si.CubicHermiteSpline(X, Y, np.gradient(Y, X, axis=0, edge_order=2))
    close(CubicHermiteInterpolation(X, Y)(T), own(T), 1e-15)
    close(CubicHermiteInterpolation(X, Y).derivative(T), own(T, 1), 1e-14)


def test_data_are_met_exactly_and_steps_are_right_continuous():
    for kind in (ConstantInterpolation, LinearInterpolation, CubicHermiteInterpolation):
        assert np.array_equal(kind(X, Y)(X), Y)
    assert np.array_equal(ConstantInterpolation(X, Y)(np.nextafter(X[1:], 0)), Y[:-1])
    after = ConstantInterpolation(X, Y, side="right")
    assert np.array_equal(after(X[:-1]), Y[1:])
    assert np.array_equal(after(np.nextafter(X[1:], 0)), Y[1:])


def test_outside_the_knots():
    for kind in (ConstantInterpolation, LinearInterpolation, CubicHermiteInterpolation):
        held = kind(X, Y)
        assert np.array_equal(held(OUTSIDE), Y[[0, -1]])
        assert np.array_equal(held(jnp.array([-jnp.inf, jnp.inf])), Y[[0, -1]])
    assert np.all(LinearInterpolation(X, Y).derivative(OUTSIDE) == 0)
    line = si.interp1d(X, Y, axis=0, fill_value="extrapolate")
    close(LinearInterpolation(X, Y, extrapolate="extend")(OUTSIDE), line(OUTSIDE), 1e-14)
    cubic = si.CubicHermiteSpline(X, Y, D)
    close(CubicHermiteInterpolation(X, Y, D, extrapolate="extend")(OUTSIDE), cubic(OUTSIDE), 1e-14)


def test_pytrees_shapes_and_dtypes():
    data = {"a": [1, 2, 4], "b": np.array([[1.0, 2], [3, 4], [5, 8]], np.float32) * (1 + 1j)}
    interp = LinearInterpolation([0, 1, 3], data)
    out = interp(2)
    assert out["a"] == 3 and out["b"].dtype == jnp.complex64
    close(out["b"], [4 + 4j, 6 + 6j], 1e-7)
    assert interp(jnp.zeros((2, 5)))["b"].shape == (2, 5, 2)
    single = LinearInterpolation(np.float32([0, 1]), np.float32([0, 1]))
    assert single(np.float32(0.25)).dtype == jnp.float32
    close(jax.jit(jax.vmap(lambda interp, t: interp(t)["a"], (None, 0)))(interp, T), interp(T)["a"], 1e-15)


def test_derivatives_are_finite_at_repeated_and_padded_knots():
    x, y = jnp.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0]), jnp.array([5.0, 0.0, 1.0, 4.0, 6.0, 6.0, 6.0])
    ts = jnp.array([-1.0, 0.0, 0.3, 1.0, 1.5, 2.0, 3.0])
    close(LinearInterpolation(x, y)(ts), [5.0, 0.0, 0.3, 4.0, 5.0, 6.0, 6.0], 1e-15)
    for kind in (ConstantInterpolation, LinearInterpolation, CubicHermiteInterpolation):
        for extrapolate in ({},) if kind is ConstantInterpolation else ({}, {"extrapolate": "extend"}):
            at = lambda x, y, t: kind(x, y, **extrapolate)(t)
            for order in (jax.jacrev(at, (0, 1, 2)), jax.jacfwd(jax.jacrev(at, (0, 1)), (0, 1))):
                assert all(np.all(np.isfinite(g)) for t in ts for g in jax.tree.leaves(order(x, y, t)))
    # padding changes nothing
    cubic, padded = CubicHermiteInterpolation(x[3:5], y[3:5]), CubicHermiteInterpolation(x[3:], y[3:])
    close(padded(ts[3:]), cubic(ts[3:]), 1e-15)


def test_wrong_data():
    with pytest.raises(ValueError, match="must not decrease, got 2 followed by 1"):
        LinearInterpolation([0.0, 2.0, 1.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="hold NaN"):
        LinearInterpolation([0.0, np.nan], [1.0, 2.0])
    with pytest.raises(ValueError, match="leading axis of 3"):
        LinearInterpolation([0.0, 1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="at least 2 knots, got 1"):
        LinearInterpolation([0.0], [1.0])
    assert ConstantInterpolation([0.0], [7.0])(3.0) == 7
    with pytest.raises(TypeError, match="vector of real times"):
        LinearInterpolation(np.zeros((2, 2)), [1.0, 2.0])
    with pytest.raises(TypeError, match="real or complex"):
        LinearInterpolation([0.0, 1.0], ["a", "b"])
    with pytest.raises(ValueError, match="structure and shapes of values"):
        CubicHermiteInterpolation([0.0, 1.0], [1.0, 2.0], np.zeros((2, 3)))
    with pytest.raises(ValueError, match="extrapolate"):
        LinearInterpolation([0.0, 1.0], [1.0, 2.0], extrapolate="periodic")
    with pytest.raises(ValueError, match="side"):
        ConstantInterpolation([0.0, 1.0], [1.0, 2.0], side="middle")
    with pytest.raises(TypeError, match="real times"):
        LinearInterpolation([0.0, 1.0], [1.0, 2.0])(1j)


# ---------------------------------------------------------------- as forcing: u' = w(t) - K u on (0, END)


def forced(make, x, y, alg=None, span=(0.0, END), u0=U0, k=K, **options):
    f = lambda t, u, p: p(t) - k * u
    options = {**TIGHT, **options}
    return ode.solve(ode.ODEProblem(f, u0, span, make(x, y)), alg or ode.Tsit5(), saveat=[span[1]], **options)


def exact(kind, x, y, k=K):
    """u(END) of u' = w - k u, piece by piece; the last value is held from the last knot on."""
    total = U0 * jnp.exp(-k * END)
    pieces = [(x[i], x[i + 1], y[i], (y[i + 1] - y[i]) / (x[i + 1] - x[i])) for i in range(len(x) - 1)]
    for a, b, value, slope in [*pieces, (x[-1], END, y[-1], 0.0)]:
        slope = 0.0 if kind is ConstantInterpolation else slope
        at = lambda s: jnp.exp(-k * (END - s)) * ((value + slope * (s - a)) / k - slope / k**2)
        total = total + at(b) - at(a)
    return total


KINDS = pytest.mark.parametrize("kind", [ConstantInterpolation, LinearInterpolation], ids=lambda k: k.__name__)


def inner(x):
    """All knots, the first at the start of the span."""
    return jnp.concatenate([KNOTS[:1], x])


@KINDS
@engines(DISCRETE, GAUSS)
def test_gradients_in_values_and_knots(kind, engine):
    got = lambda x, y: forced(kind, inner(x), y, sensealg=engine).u[0]
    want = lambda x, y: exact(kind, inner(x), y)
    value, gradient = jax.value_and_grad(got, (0, 1))(KNOTS[1:], VALUES)
    close(value, want(KNOTS[1:], VALUES), 1e-9)
    for a, b in zip(gradient, jax.grad(want, (0, 1))(KNOTS[1:], VALUES), strict=True):
        close(a, b, 1e-8)


HESSIANS = {"fr": lambda f: jax.jacfwd(jax.jacrev(f)), "rf": lambda f: jax.jacrev(jax.jacfwd(f))}


@pytest.mark.parametrize("kind, modes", [(ConstantInterpolation, "fr"), (LinearInterpolation, "rf")])
def test_hessian_in_values_and_knots(kind, modes):
    """One moving knot, at which f has a jump or a kink: the second derivative has that of the first at its sides."""
    x, y = jnp.array([0.0, 1.5, 4.0]), VALUES[:3]
    v = jnp.array([1.5, *y])
    got = lambda v: forced(kind, jnp.stack([x[0], v[0], x[2]]), v[1:]).u[0]
    want = lambda v: exact(kind, jnp.stack([x[0], v[0], x[2]]), v[1:])
    close(HESSIANS[modes](got)(v), jax.hessian(want)(v), 1e-8)


@pytest.mark.parametrize("alg", [ode.Tsit5(), ode.Vern7(), ode.Rodas5P()], ids=lambda a: type(a).__name__)
def test_steps_end_at_the_knots(alg):
    """A piecewise polynomial is then integrated to rounding at any tolerance, and no step is rejected."""
    pieces = {
        ConstantInterpolation: jnp.sum(jnp.diff(KNOTS) * VALUES[:-1]) + VALUES[-1],
        LinearInterpolation: jnp.sum(jnp.diff(KNOTS) * (VALUES[1:] + VALUES[:-1]) / 2) + VALUES[-1],
        CubicHermiteInterpolation: si.CubicHermiteSpline(
            KNOTS, VALUES, np.gradient(VALUES, KNOTS, edge_order=2)
        ).integrate(0, 3)
        + VALUES[-1],
    }
    for kind, want in pieces.items():
        sol = forced(kind, KNOTS, VALUES, alg, u0=0.0, k=0.0, reltol=1e-2, abstol=1e-2)
        close(sol.u[0], want, 1e-14)
        assert sol.stats.nreject == 0


def test_wherever_the_module_lives():
    interp = LinearInterpolation(KNOTS, VALUES)
    prob = ode.ODEProblem(lambda t, u, p: interp(t), 0.0, (0.0, END))
    loose = {"saveat": [END], "reltol": 1e-2, "abstol": 1e-2}
    want = jnp.sum(jnp.diff(KNOTS) * (VALUES[1:] + VALUES[:-1]) / 2) + VALUES[-1]
    captured = ode.solve(prob, ode.Tsit5(), **loose).u[0]
    close(captured, want, 1e-14)
    inside = ode.ODEProblem(lambda t, u, p: p["w"](t) * p["k"], 0.0, (0.0, END), {"w": interp, "k": 1.0})
    assert ode.solve(inside, ode.Tsit5(), **loose).u[0] == captured
    for _ in range(2):  # a jitted function is traced once, but declares its knots each time
        jitted = ode.ODEProblem(JITTED, 0.0, (0.0, END))
        assert ode.solve(jitted, ode.Tsit5(), **loose).u[0] == captured
    branching = lambda t, u, p: jax.lax.cond(u > 0.5, lambda: interp(t), lambda: interp(t))
    assert ode.solve(ode.ODEProblem(branching, 0.0, (0.0, END)), ode.Tsit5(), **loose).u[0] == captured

    def of_captured(y):
        own = LinearInterpolation(KNOTS, y)
        return ode.solve(ode.ODEProblem(lambda t, u, p: own(t), 0.0, (0.0, END)), ode.Tsit5(), **loose).u[0]

    h = np.diff(KNOTS)
    close(jax.jit(jax.grad(of_captured))(VALUES), np.append(h, 2) / 2 + np.append(0, h) / 2 + [0, 0, 0, 0], 1e-14)


GLOBAL = LinearInterpolation(KNOTS, VALUES)
JITTED = jax.jit(lambda t, u, p: GLOBAL(t))


def test_knots_that_depend_on_the_state():
    moving = lambda t, u, p: LinearInterpolation(KNOTS + u, VALUES)(t)
    with pytest.raises(TypeError, match="must not depend on t or u"):
        ode.solve(ode.ODEProblem(moving, 0.0, (0.0, END)))


def test_lanes_with_their_own_knots():
    xs = jnp.stack([KNOTS[1:], KNOTS[1:] + 0.3, KNOTS[1:] * 1.2])
    got = lambda x: forced(ConstantInterpolation, inner(x), VALUES).u[0]
    want = lambda x: exact(ConstantInterpolation, inner(x), VALUES)
    for a, b in zip(jax.vmap(jax.value_and_grad(got))(xs), jax.vmap(jax.value_and_grad(want))(xs), strict=True):
        close(a, b, 1e-8)


def test_branching_field():
    """u' = a(t) u with a constant between jumps at 1, 2, 3: u(4) = exp(sum of a h)."""
    jumps, a = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, -0.3, 0.8, -0.6])

    def end(jumps, a):
        p = ConstantInterpolation(jnp.concatenate([jnp.zeros(1), jumps]), a)
        prob = ode.ODEProblem(lambda t, u, p: p(t) * u, 1.0, (0.0, 4.0), p)
        return ode.solve(prob, ode.Tsit5(), saveat=[4.0], **TIGHT).u[0]

    want = lambda jumps, a: jnp.exp(jnp.sum(a * jnp.diff(jumps, prepend=0.0, append=4.0)))
    for x, y in zip(jax.grad(end, (0, 1))(jumps, a), jax.grad(want, (0, 1))(jumps, a), strict=True):
        close(x, y, 1e-9)


def test_single_precision():
    sol = forced(
        ConstantInterpolation, np.float32(KNOTS), np.float32(VALUES), u0=np.float32(U0), reltol=1e-4, abstol=1e-5
    )
    assert sol.u.dtype == jnp.float32 and sol.stats.nreject == 0
    close(sol.u[0], exact(ConstantInterpolation, KNOTS, VALUES), 1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("span", [(0.0, 3.0), (3.0, 0.0), (2.5, 0.0), (1.0, 3.0)])
def test_either_direction_and_ends_at_knots(side, span):
    """f has the wrong side's value at a knot for one of the directions: it is never taken there."""
    values = np.asarray(VALUES[:-1] if side == "left" else VALUES[1:])
    want = sum(
        v * (np.clip(b, *sorted(span)) - np.clip(a, *sorted(span)))
        for v, a, b in zip(values, KNOTS[:-1], KNOTS[1:], strict=True)
    ) * np.sign(span[1] - span[0])
    make = lambda x, y: ConstantInterpolation(x, y, side=side)
    sol = forced(make, KNOTS, VALUES, span=span, u0=0.0, k=0.0, reltol=1e-2, abstol=1e-2)
    close(sol.u[0], want, 1e-14)
    assert sol.stats.nreject == 0
