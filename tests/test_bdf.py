"""FBDF: coefficients, orders, values of the IVP test set, DAEs, lanes, linear solvers, derivatives of every kind."""

import functools
from fractions import Fraction
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode
from odesens.methods import bdf
from odesens.methods.tableaus import RODAS5P, BdfTableau

from . import ivp
from .problems import DISCRETE, FORWARD, close, engines
from .test_stiff_gradients import relative_loss

FBDF = ode.FBDF()
TABLEAU = BdfTableau(5, RODAS5P)
DECAY = ode.ODEProblem(lambda t, u, p: -p * u, jnp.array([2.0, 1.0]), (0.0, 1.0), 3.0)
TIMES = jnp.array([0.3, 1.0])


def decay(p, times=TIMES, engine=None, u0=None, **options):
    options = {"reltol": 1e-7, "abstol": 1e-9, **options}
    return ode.solve(DECAY, FBDF, p=p, u0=u0, saveat=times, sensealg=engine, **options).u


# ---------------------------------------------------------------- coefficients and orders


@pytest.mark.parametrize("q", range(1, 6))
def test_coefficients_for_equal_steps(q):
    """The next state of equal steps is that of sum_j nabla^j u / j = h f, in exact fractions."""
    backward = [Fraction(0)] * (q + 1)  # of u_n+1, u_n, ..
    for j in range(1, q + 1):
        for i in range(j + 1):
            binomial = Fraction(factorial(j), factorial(i) * factorial(j - i))
            backward[i] += (-1) ** i * binomial / j
    assert backward[0] == TABLEAU.leading()[q]
    base = [float(-c / backward[0]) for c in backward[1:]]
    ages = jnp.arange(1.0, 6.0) * 0.1
    got = []
    for i in range(6):
        z = jnp.concatenate([jnp.eye(6)[i], ages])
        got.append(float(bdf.equation(TABLEAU, z, 1, jnp.asarray(0.1), q).base[0]))
    np.testing.assert_allclose(got, [*base, *[0.0] * (6 - q)], atol=1e-13)


@pytest.mark.parametrize("q", range(1, 6))
def test_polynomials_of_the_order_are_exact_on_any_mesh(q):
    """Degree q: the equation holds and the estimate vanishes; degree q + 1: the estimate is its error constant."""
    ages, dt = jnp.array([0.13, 0.2, 0.35, 0.41, 0.6]), jnp.asarray(0.17)
    at = jnp.concatenate([jnp.array([dt, 0.0]), -ages])
    for degree in range(q + 1):
        values, slope = at**degree, degree * dt ** max(degree - 1, 0)
        z = jnp.concatenate([values[1:], ages])
        eq = bdf.equation(TABLEAU, z, 1, dt, q)
        assert abs(eq.base[0] - values[0] + eq.c * slope) < 1e-12
        assert abs(bdf.estimates(TABLEAU, z, dt, values[None, :1], jnp.asarray(q))[1][0]) < 1e-11
        middle = bdf.interpolate(z, dt, values[None, :1], jnp.asarray(0.4), q)
        assert abs(middle[0] - (0.4 * dt) ** degree) < 1e-12
    values = at ** (q + 1)
    z = jnp.concatenate([values[1:], ages])
    got = bdf.estimates(TABLEAU, z, dt, values[None, :1], jnp.asarray(q))[1][0]
    want = factorial(q) / float(TABLEAU.leading()[q]) * dt ** (q + 1)
    np.testing.assert_allclose(got, want, rtol=1e-8)


@pytest.mark.parametrize("q", range(1, 6))
def test_observed_order(q):
    """u' = -u^2 with exact states before the start: errors fall as h^q."""

    @functools.partial(jax.jit, static_argnums=0)
    def error(count):
        h = jnp.asarray(1.0) / count
        exact = lambda t: 1 / (1.5 + t)
        z = jnp.concatenate([exact(-h * jnp.arange(6.0)), h * jnp.arange(1.0, 6.0)])

        def step(z, _):
            eq = bdf.equation(TABLEAU, z, 1, h, q)
            v = eq.guess
            for _ in range(6):
                v = v - (eq.base - v - eq.c * v**2) / (-1 - 2 * eq.c * v)
            return bdf.advance(z, h, v[None]), None

        return jnp.abs(jax.lax.scan(step, z, None, length=count)[0][0] - exact(1.0))

    order = float(jnp.log2(error(40) / error(80)))
    assert abs(order - q) < 0.2, order


def test_error_follows_the_tolerance():
    exact = 2 * np.exp(-3.0)
    tols = [1e-4, 1e-6, 1e-8, 1e-10]
    run = jax.jit(lambda tol: decay(3.0, reltol=tol, abstol=tol)[-1, 0])
    errors = [abs(float(run(tol)) - exact) for tol in tols]
    assert all(e < 30 * tol for e, tol in zip(errors, tols, strict=True)), errors


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("problem", "bound"),
    [(ivp.HIRES, 1e-6), (ivp.ROBER, 1e-6), (ivp.OREGO, 1e-5), (ivp.VDPOL, 1e-6), (ivp.CHEMAKZO, 1e-6)],
    ids=lambda x: getattr(x, "name", None),
)
def test_end_values(problem, bound):
    u = problem.end(FBDF, reltol=1e-8, max_steps=20_000)
    close(problem.pick(u) / problem.values, np.ones(len(problem.values)), bound)


def test_factorisations_are_few():
    """Of M - c J below a fifth of the steps, of J itself half of that."""
    sol = ode.solve(ivp.HIRES.ode(), FBDF, saveat=[321.8122], reltol=1e-6, abstol=1e-9)
    nf, njacs, nfactor, naccept, _ = (int(x) for x in sol.stats)
    assert 0 < njacs < nfactor < naccept / 4
    assert njacs < naccept / 10
    assert nf < 2.5 * naccept


def test_reversed_time_single_precision_and_an_empty_span():
    back = ode.ODEProblem(lambda t, u, p: -p * u, jnp.array([2.0]), (1.0, 0.0), 3.0)
    sol = ode.solve(back, FBDF, saveat=jnp.array([0.5, 0.0]), reltol=1e-9, abstol=1e-9)
    close(sol.u[:, 0], 2 * np.exp([1.5, 3.0]), 1e-7)
    single = ode.ODEProblem(
        lambda t, u, p: -p * (u - jnp.cos(t)), jnp.ones(1, jnp.float32), (0.0, 1.0), jnp.float32(1e4)
    )
    u = ode.solve(single, FBDF, saveat=jnp.array([1.0])).u
    assert u.dtype == jnp.float32
    close(u[-1], [np.cos(1.0) + 1e-4 * np.sin(1.0)], 1e-4)
    nothing = ode.ODEProblem(lambda t, u, p: u, jnp.zeros(0), (0.0, 1.0))
    assert ode.solve(nothing, FBDF, saveat=0.5).u.shape == (3, 0)


def test_dense_output_and_every_step():
    ts = jnp.linspace(0.0, 1.0, 13)
    sol = ode.solve(DECAY, FBDF, reltol=1e-8, abstol=1e-8)
    exact = lambda ts: jnp.exp(-3 * ts)[:, None] * jnp.array([2.0, 1.0])
    close(sol.u, exact(sol.t), 1e-6)
    close(sol(ts), exact(ts), 1e-6)
    close(sol(ts, deriv=1), -3 * exact(ts), 1e-6)
    close(decay(3.0, ts, reltol=1e-8, abstol=1e-8), sol(ts), 1e-12)


def test_lanes_equal_single_solves():
    """Each lane has an order, a step and a matrix of its own."""
    ps = jnp.array([1.0, 3.0, 30.0, 1000.0])
    close(jax.vmap(decay)(ps), jnp.stack([decay(p) for p in ps]), 1e-10)
    loss = lambda p: jnp.sum(jnp.sin(decay(p)))
    close(jax.vmap(jax.grad(loss))(ps), jnp.stack([jax.grad(loss)(p) for p in ps]), 1e-10)


def test_failures_have_codes():
    codes = ode.ReturnCode
    run = lambda prob, **options: ode.solve(prob, FBDF, saveat=[prob.tspan[1]], throw=False, **options).retcode
    assert run(DECAY, max_steps=5) == codes.MaxSteps
    assert run(ode.ODEProblem(lambda t, u, p: u**2, jnp.array([1.0]), (0.0, 2.0))) != codes.Success
    with pytest.raises(ValueError, match="1 to 5"):
        ode.FBDF(max_order=6)
    with pytest.raises(TypeError, match="stiff algorithm"):
        ode.AutoTsit5(FBDF)


def test_fixed_steps_and_a_lower_order():
    exact = 2 * np.exp(-3.0)
    for alg in (FBDF, ode.FBDF(max_order=2)):
        end = lambda h, alg=alg: ode.solve(DECAY, alg, saveat=[1.0], adaptive=False, dt0=h).u[0, 0]
        assert 1.7 < np.log2(abs(end(0.01) - exact) / abs(end(0.005) - exact)) < 2.3


# ---------------------------------------------------------------- linear solvers


def test_every_jacobian_takes_the_same_steps():
    """Dense, banded by its pattern, given by the user: one solution to rounding; GMRES: to the tolerance."""
    n = 60

    def heat(t, u, p):
        padded = jnp.concatenate([jnp.zeros(1), u, jnp.zeros(1)])
        return p * (n + 1) ** 2 * (padded[2:] - 2 * u + padded[:-2]) - u**3

    u0 = np.sin(np.pi * np.arange(1, n + 1) / (n + 1))
    base = {"saveat": [0.1], "reltol": 1e-6, "abstol": 1e-8}
    problem = functools.partial(ode.ODEProblem, heat, u0, (0.0, 0.1), 1.0)
    banded = ode.solve(problem(), FBDF, **base)
    dense = ode.solve(problem(jac_sparsity=False), FBDF, **base)
    given = ode.solve(problem(jac=jax.jacfwd(heat, 1)), FBDF, **base)
    close(banded.u, dense.u, 1e-11)
    close(given.u, dense.u, 1e-11)
    krylov = ode.solve(problem(), ode.FBDF(linsolve=ode.GMRES()), **base)
    close(krylov.u, dense.u, 1e-5)
    assert krylov.stats.nfactor == 0 < banded.stats.nfactor < banded.stats.naccept


# ---------------------------------------------------------------- derivatives


@engines()
def test_decay_by_every_engine(engine):
    loss = lambda p: jnp.sum(decay(p, engine=engine)[:, 0])
    want = -2 * np.sum(TIMES * np.exp(-3.0 * TIMES))
    close(jax.grad(loss)(3.0), want, 1e-5)
    if engine in (DISCRETE, FORWARD):  # the others share the forward mode of the latter
        close(jax.jvp(loss, (3.0,), (1.0,))[1], want, 1e-5)


KINDS = {
    "ode": (lambda t, u, p: jnp.stack([-p[0] * u[0] + u[1] ** 2, p[1] * (jnp.cos(t) - u[1]) * u[0]]), None, 1.0),
    "dae": (lambda t, u, p: jnp.stack([-p[0] * u[0] + u[1], u[1] ** 3 + u[1] - p[1] * u[0] - t]), [1.0, 0.0], 1.0),
    "complex": (lambda t, u, p: p[0] * 1j * u - p[1] * jnp.conj(u) + u * u[::-1], None, 1.0 + 0.3j),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tangent_and_adjoint_are_transposes(kind):
    """<w, T x> = <A w, x> to rounding, with saves inside of steps."""
    f, mass, unit = KINDS[kind]
    prob = ode.ODEProblem(f, jnp.array([1.0, 0.4]) * unit, (0.0, 1.0), jnp.array([0.7, 3.0]), mass_matrix=mass)

    def us(u0, p):
        return ode.solve(prob, FBDF, u0=u0, p=p, saveat=[0.0, 0.31, 0.62, 1.0], reltol=1e-5, abstol=1e-7).u

    check_pairing(us, prob.u0, prob.p)


def check_pairing(us, u0, p):
    rng = np.random.default_rng(3)
    draw = lambda x: jnp.asarray(
        rng.normal(size=x.shape) + (1j * rng.normal(size=x.shape) if jnp.iscomplexobj(x) else 0)
    )
    x = jax.tree.map(draw, (u0, p))
    value, tangent = jax.jvp(us, (u0, p), x)
    w = draw(value)
    bars = jax.vjp(us, u0, p)[1](w)
    pair = lambda a, b: sum(jnp.sum(jnp.real(i * j)) for i, j in zip(a, b, strict=True))
    left, right = pair([w], [tangent]), pair(bars, x)
    assert abs(left - right) <= 1e-11 * max(abs(left), 1.0), (left, right)


def test_transposes_of_a_record_with_checkpoints():
    """More steps than the record has rows: they are made again, and are the same."""
    problem = ivp.OREGO_30
    us = lambda u0, p: ode.solve(problem.ode(), FBDF, u0=u0, p=p, saveat=[15.0, 30.0], reltol=1e-9, abstol=1e-10).u
    stats = ode.solve(problem.ode(), FBDF, saveat=[30.0], reltol=1e-9, abstol=1e-10).stats
    assert stats.naccept > 1100
    u0, p = jnp.asarray(problem.u0), jnp.asarray(problem.p)
    scaled = lambda s, r: us(u0 * s, p * r) / jnp.array([1.0, 1e3, 1e2])
    value, tangent = jax.jvp(scaled, (jnp.ones(3), jnp.ones(3)), (jnp.ones(3), jnp.ones(3)))
    bars = jax.vjp(scaled, jnp.ones(3), jnp.ones(3))[1](jnp.ones_like(value))
    close(sum(jnp.sum(b) for b in bars), jnp.sum(tangent), 1e-8)


def test_all_nestings_of_a_hessian():
    loss = lambda p: jnp.sum(decay(p)[:, 0] ** 2)
    forward, reverse = jax.jacfwd, jax.jacrev
    got = [a(b(loss))(3.0) for a in (forward, reverse) for b in (forward, reverse)]
    close(got, [got[0]] * 4, 1e-10)
    want = np.sum(4 * (2 * TIMES) ** 2 * np.exp(-6.0 * TIMES))
    close(got[0], want, 1e-5)


@pytest.mark.parametrize("gradient", [ivp.ROBER_40_SAVES, ivp.ROBER_DAE_SAVES], ids=lambda g: g.problem.name)
def test_gradients_of_robertson(gradient):
    """In the rate constants and the start, against forward sensitivities by other methods: 100 times the tolerance."""
    k = np.asarray(gradient.problem.p)
    loss = relative_loss(gradient, alg="FBDF")
    in_p, in_u0 = jax.grad(loss, argnums=(0, 1))(jnp.ones(k.shape), jnp.asarray(gradient.problem.u0))
    close(in_p, k * gradient.p, 1e-6)
    if gradient.u0 is not None:
        close(in_u0, gradient.u0, 1e-6)
