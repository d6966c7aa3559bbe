"""Stiff methods: orders, damping, mass matrices, linear solvers, switching, failure, derivatives of the step itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import odesens as ode
from odesens.extension import can_be_whole
from odesens.inputs import make_linear
from odesens.methods import linear
from odesens.trace import trace_field

from . import ivp
from .problems import close

STIFF = [
    ode.Rosenbrock23(),
    ode.Rodas4(),
    ode.Rodas5P(),
    ode.TRBDF2(),
    ode.Kvaerno3(),
    ode.Kvaerno5(),
    ode.KenCarp4(),
    ode.KenCarp5(),
]
FEW = [ode.Rodas5P(), ode.Kvaerno5()]


def name(alg):
    return type(alg).__name__


methods = pytest.mark.parametrize("alg", STIFF, ids=name)
both = pytest.mark.parametrize("alg", FEW, ids=name)


# ---------------------------------------------------------------- orders and damping


def forced(t, u, p):
    """u' = -u^2 + g(t) with the exact solution 1 / (1 + t) + sin(t): nonlinear, and not autonomous."""
    exact, slope = 1 / (1 + t) + jnp.sin(t), -1 / (1 + t) ** 2 + jnp.cos(t)
    return -(u**2) + exact**2 + slope


def linear_stiff(t, u, p):
    """Rates 1 and 2 k, with the solution (e^-t + a sin t, e^-t - a sin t) whatever k, for p = (k, a)."""
    k, a = p
    slow, forcing, fast = -(u[0] + u[1]) / 2, a * jnp.cos(t), k * (u[0] - u[1] - 2 * a * jnp.sin(t))
    return jnp.stack([slow + forcing - fast, slow - forcing + fast])


def algebraic(t, u, p):
    """x' = -x + y - sin t, 0 = y - sin t + x (x - e^-t) with the solution (e^-t, sin t): index 1."""
    x, y = u
    return jnp.stack([-x + (y - jnp.sin(t)) * (1 + x), y - jnp.sin(t) + x * (x - jnp.exp(-t))])


SMOOTH = ode.ODEProblem(forced, 1.0, (0.0, 2.0))
DAE = ode.ODEProblem(algebraic, jnp.array([1.0, 0.0]), (0.0, 1.0), mass_matrix=[1.0, 0.0])


def observed_order(prob, alg, counts, exact, tol=1e-11):
    @jax.jit
    def error(dt):
        t1 = prob.tspan[1]
        sol = ode.solve(prob, alg, adaptive=False, dt0=dt, saveat=jnp.array([t1]), reltol=tol, abstol=tol)
        return jnp.max(jnp.abs(sol.u[-1] - exact(t1)))

    err = np.array([error(prob.tspan[1] / n) for n in counts])
    return np.polyfit(np.log(1.0 / np.array(counts)), np.log(err), 1)[0], err


COUNTS = {2: (64, 128, 256), 3: (32, 64, 128), 4: (16, 32, 64), 5: (24, 36, 54)}


@methods
def test_observed_order_on_a_smooth_problem(alg):
    order, err = observed_order(SMOOTH, alg, COUNTS[alg.order], lambda t: 1 / (1 + t) + np.sin(t))
    assert alg.order - 0.2 < order < alg.order + 1.2, err


@methods
def test_observed_order_on_a_dae(alg):
    order, err = observed_order(DAE, alg, COUNTS[alg.order], lambda t: np.array([np.exp(-t), np.sin(t)]))
    assert order > min(alg.order, alg.tableau.order) - 0.2, err


@functools.cache
def linear_end(alg):
    """u(1) of `linear_stiff` by fixed steps, one compiled program for both orders."""
    prob = ode.ODEProblem(linear_stiff, jnp.ones(2), (0.0, 1.0), jnp.ones(2))

    @jax.jit
    def end(p, dt, tol):
        return ode.solve(prob, alg, p=p, adaptive=False, dt0=dt, saveat=[1.0], reltol=tol, abstol=tol).u[-1]

    return end


def order_of_linear(alg, p, counts, tol):
    want = np.exp(-1.0) + p[1] * np.sin(1.0) * np.array([1, -1])
    err = [np.max(np.abs(linear_end(alg)(p, 1.0 / n, tol) - want)) for n in counts]
    return np.polyfit(np.log(1.0 / np.array(counts)), np.log(err), 1)[0], err


@methods
def test_observed_order_on_a_stiff_problem(alg):
    """Rates 1 and 2e5, from the slow eigenvector: the full order."""
    counts = {2: (16, 32, 64), 3: (8, 16, 32), 4: (4, 8, 16), 5: (3, 5, 8)}[alg.order]
    # rounding in f, |J| |u| eps, is what Newton's iteration cannot get below
    order, err = order_of_linear(alg, jnp.array([1e5, 0.0]), counts, 1e-9)
    assert alg.order - 0.2 < order < alg.order + 1.2, err


@methods
def test_order_that_stiffness_leaves(alg):
    """Forced, a stiff system reduces the order (Prothero and Robinson): to 2, or errors are far below the others."""
    order, err = order_of_linear(alg, jnp.array([1e4, 1.0]), (16, 32, 64), 1e-11)
    assert (order > 1.8 and err[-1] < 3e-5) or err[-1] < 1e-7, err


@methods
def test_damping_at_infinity(alg):
    """One step of u' = -1e12 (u - 1) from u = 2: an L-stable method lands on 1."""
    prob = ode.ODEProblem(lambda t, u, p: -1e12 * (u - 1), 2.0, (0.0, 1.0))
    sol = ode.solve(prob, alg, adaptive=False, dt0=1.0, saveat=jnp.array([1.0]))
    assert abs(sol.u[-1] - 1) < 1e-9
    assert alg.tableau.l_stable


@methods
def test_dense_output_between_steps(alg):
    ts = jnp.linspace(0.0, 2.0, 23)
    sol = ode.solve(SMOOTH, alg, saveat=ts, reltol=1e-9, abstol=1e-9, max_steps=400_000)
    close(sol.u, 1 / (1 + ts) + jnp.sin(ts), 1e-6)


def test_reversed_time_and_an_empty_span():
    prob = ode.ODEProblem(lambda t, u, p: -p * u, jnp.array([2.0]), (1.0, 0.0), 3.0)
    sol = ode.solve(prob, ode.Rodas5P(), saveat=jnp.array([0.5, 0.0]), reltol=1e-10, abstol=1e-10)
    close(sol.u[:, 0], 2 * np.exp([1.5, 3.0]), 1e-8)
    empty = jax.grad(lambda u0: ode.solve(prob, ode.Rodas5P(), u0=u0, tspan=(0.0, 0.0), saveat=jnp.zeros(1)).u.sum())
    assert empty(jnp.array([2.0])) == 1.0


def test_no_states_and_single_precision():
    nothing = ode.ODEProblem(lambda t, u, p: u, jnp.zeros(0), (0.0, 1.0))
    assert ode.solve(nothing, ode.Rodas5P(), saveat=0.5).u.shape == (3, 0)
    prob = ode.ODEProblem(lambda t, u, p: -p * (u - jnp.cos(t)), jnp.ones(1, jnp.float32), (0.0, 1.0), jnp.float32(1e4))
    for alg in FEW:
        sol = ode.solve(prob, alg, saveat=jnp.array([1.0]))
        assert sol.u.dtype == jnp.float32
        close(sol.u[-1], [np.cos(1.0) + 1e-4 * np.sin(1.0)], 1e-4)


# ---------------------------------------------------------------- derivatives


def decay(t, u, p):
    return jnp.stack([-p[0] * u[0] + u[1] ** 2, p[1] * (jnp.cos(t) - u[1]) * u[0]])


def dae(t, u, p):
    x, y, z = u
    return jnp.stack([-p[0] * x + y * z, y**3 + y - p[1] * x - t, z + jnp.sin(z) - y * x])


PAIRED = {
    "ode": ode.ODEProblem(decay, jnp.array([1.0, 0.4]), (0.0, 1.0), jnp.array([0.7, 30.0])),
    "regular mass": ode.ODEProblem(
        decay, jnp.array([1.0, 0.4]), (0.0, 1.0), jnp.array([0.7, 30.0]), mass_matrix=[[2.0, 0.5], [0.1, 1.0]]
    ),
    "dae": ode.ODEProblem(
        dae, jnp.array([1.0, 0.4, 0.3]), (0.0, 1.0), jnp.array([0.7, 2.0]), mass_matrix=[1.0, 0.0, 0.0]
    ),
    "complex": ode.ODEProblem(
        lambda t, u, p: p[0] * 1j * u - p[1] * jnp.conj(u) + u * u[::-1],
        jnp.array([1.0 + 0.2j, 0.3j]),
        (0.0, 1.0),
        jnp.array([0.7, 3.0]),
    ),
}


PAIRS = [(kind, alg) for kind in PAIRED for alg in (STIFF if kind == "ode" else FEW)]


@pytest.mark.parametrize(("kind", "alg"), PAIRS, ids=lambda x: x if isinstance(x, str) else name(x))
def test_tangent_and_adjoint_are_transposes(kind, alg):
    """<w, T x> = <A w, x> for the discrete engine, to rounding: an ODE by each method, the other kinds by two."""
    prob = PAIRED[kind]
    ts = jnp.array([0.0, 0.31, 0.62, 1.0])

    def us(u0, p):
        sol = ode.solve(prob, alg, u0=u0, p=p, saveat=ts, reltol=1e-5, abstol=1e-7, sensealg=ode.DiscreteAdjoint())
        return sol.u

    rng = np.random.default_rng(3)
    draw = lambda x: jnp.asarray(
        rng.normal(size=x.shape) + (1j * rng.normal(size=x.shape) if jnp.iscomplexobj(x) else 0)
    )
    x = jax.tree.map(draw, (prob.u0, prob.p))
    value, tangent = jax.jvp(us, (prob.u0, prob.p), x)
    w = draw(value)
    bars = jax.vjp(us, prob.u0, prob.p)[1](w)
    pair = lambda a, b: sum(jnp.sum(jnp.real(i * j)) for i, j in zip(a, b, strict=True))
    left, right = pair([w], [tangent]), pair(bars, x)
    assert abs(left - right) <= 1e-11 * max(abs(left), 1.0)


@pytest.mark.parametrize("alg", [ode.Kvaerno5()], ids=name)  # Rodas5P: test_stiff_gradients.py, all four nestings too
def test_second_order_agrees_with_the_exact_solution(alg):
    """u' = -p u^2: u = u0 / (1 + p u0 t), all four nestings."""
    prob = ode.ODEProblem(lambda t, u, p: -p * u**2, 1.5, (0.0, 1.0), 2.0)

    def at_end(x):
        return ode.solve(prob, alg, u0=x[0], p=x[1], saveat=jnp.array([1.0]), reltol=1e-10, abstol=1e-12).u[-1]

    x = jnp.array([1.5, 2.0])
    want = jax.hessian(lambda x: x[0] / (1 + x[0] * x[1]))(x)
    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            close(outer(inner(at_end))(x), want, 1e-7)


@pytest.mark.parametrize("alg", [*STIFF, ode.FBDF()], ids=name)
def test_gradients_by_every_method(alg):
    """Lotka-Volterra, and u' = p u beside it in closed form."""
    p, u0 = jnp.array([1.5, 1.0, 3.0, 1.0, 0.6, 0.4, 0.2]), jnp.array([1.0, 1.0, 3.0, 2.0, 1.0])

    def f(t, u, p):
        x, y = u[:2]
        return jnp.concatenate([jnp.stack([p[0] * x - p[1] * x * y, p[3] * x * y - p[2] * y]), p[4:] * u[2:]])

    tol = 1e-8 if alg in (ode.Rosenbrock23(), ode.TRBDF2(), ode.Kvaerno3()) else 1e-10
    prob = ode.ODEProblem(f, u0, (0.0, 10.0), saveat=1.0, reltol=tol, abstol=tol)
    gradient = jax.grad(lambda p: jnp.sum(ode.solve(prob, alg, p=p).u))(p)
    t, rates = np.arange(11.0)[:, None], np.array(p[4:])
    close(gradient[:4], [-7.555862073981286, -16.824915246868326, 5.111403856979906, -37.335193444966734], 1e-5)
    close(gradient[4:], np.sum(u0[2:] * t * np.exp(rates * t), axis=0), 1e-5)


@pytest.mark.parametrize(("alg", "tol"), [(ode.Rodas4(), 1e-10), (ode.Rodas5P(), 1e-10), (ode.TRBDF2(), 1e-7)], ids=str)
def test_the_derivative_of_a_decay_in_its_start(alg, tol):
    prob = ode.ODEProblem(lambda t, u, p: -u / 2, 1.0, (0.0, 1.0), saveat=[1.0], reltol=1e-12, abstol=1e-12)
    close(jax.grad(lambda u0: ode.solve(prob, alg, u0=u0).u[-1])(1.0), np.exp(-0.5), tol)


def test_derivatives_in_time_of_a_dae():
    """u(t1) and its derivatives in t0, t1 of the DAE with the solution (e^-t, sin t)."""

    def end(t0, t1):
        u0 = jnp.stack([jnp.exp(-t0), jnp.sin(t0)])
        return ode.solve(DAE, ode.Rodas5P(), u0=u0, tspan=(t0, t1), saveat=t1[None], reltol=1e-10, abstol=1e-10).u[-1]

    t0, t1 = jnp.array(0.2), jnp.array(0.9)
    close(end(t0, t1), [np.exp(-0.9), np.sin(0.9)], 1e-8)
    close(jax.jacfwd(end, 1)(t0, t1), [-np.exp(-0.9), np.cos(0.9)], 1e-7)
    close(jax.jacrev(end, 1)(t0, t1), [-np.exp(-0.9), np.cos(0.9)], 1e-7)
    assert jnp.max(jnp.abs(jax.jacrev(end, 0)(t0, t1))) < 1e-7  # the same solution wherever it starts


# of the DAE not Kvaerno5: whether its Newton iteration needs a shorter step may turn on rounding
LANES = [("ode", ode.Rodas5P()), ("ode", ode.Kvaerno5()), ("dae", ode.Rodas5P())]


@pytest.mark.parametrize(("kind", "alg"), LANES, ids=lambda x: x if isinstance(x, str) else name(x))
def test_lanes_get_what_they_get_alone(kind, alg):
    prob = PAIRED[kind]
    ps = jnp.array([[0.7, 30.0], [0.1, 3000.0], [5.0, 0.3]]) if kind == "ode" else jnp.array([[0.7, 2.0], [40.0, 1.0]])
    loss = lambda p: jnp.sum(ode.solve(prob, alg, p=p, saveat=0.25, reltol=1e-7, abstol=1e-9).u ** 2)
    together = jax.vmap(jax.value_and_grad(loss))(ps)
    for i, p in enumerate(ps):
        alone = jax.value_and_grad(loss)(p)
        close(together[0][i], alone[0], 1e-12)
        close(together[1][i], alone[1], 1e-11)


def test_a_field_without_forward_mode_is_refused():
    @jax.custom_vjp
    def g(x):
        return -x

    g.defvjp(lambda x: (-x, None), lambda _, w: (-w,))
    prob = ode.ODEProblem(lambda t, u, p: g(u), 1.0, (0.0, 1.0))
    with pytest.raises(TypeError, match="custom_jvp"):
        ode.solve(prob, ode.Rodas5P())


# ---------------------------------------------------------------- linear algebra


@pytest.mark.parametrize("n", [1, 3, 7, 20, 40, 45])
def test_dense_solves(n):
    rng = np.random.default_rng(n)
    a = rng.normal(size=(n, n)) * 10.0 ** rng.uniform(-6, 6, size=(n, 1))
    np.fill_diagonal(a, 0.0 if n > 1 else 2.0)  # pivots are needed
    b = rng.normal(size=n)
    solver = jax.jit(lambda a, b: linear.of_matrix(a)._replace(solve=None, transposed=None).ok)(a, b)
    assert solver
    close(jax.jit(lambda a, b: linear.of_matrix(a).solve(b))(a, b), np.linalg.solve(a, b), 1e-9)
    close(jax.jit(lambda a, b: linear.of_matrix(a).transposed(b))(a, b), np.linalg.solve(a.T, b), 1e-9)
    assert not linear.of_matrix(jnp.asarray(a * (np.arange(n) > 0)[:, None])).ok
    if n <= linear.SMALL:
        assert can_be_whole(jax.make_jaxpr(lambda a, b: linear.of_matrix(a).solve(b))(a, b).jaxpr)


BRUSS = ivp.brusselator(40)  # 80 states
DENSE = ode.ODEProblem(BRUSS.f, BRUSS.u0, (0.0, 2.0), BRUSS.p, jac_sparsity=False)
CASES = {
    "banded": (ode.ODEProblem(BRUSS.f, BRUSS.u0, (0.0, 2.0), BRUSS.p), ode.Rodas5P()),
    "krylov": (ode.ODEProblem(BRUSS.f, BRUSS.u0, (0.0, 2.0), BRUSS.p), ode.Rodas5P(linsolve=ode.GMRES(rtol=1e-12))),
    "coloured": (
        ode.ODEProblem(
            BRUSS.f,
            BRUSS.u0,
            (0.0, 2.0),
            BRUSS.p,
            jac_sparsity=np.abs(jax.jacfwd(lambda u: BRUSS.f(0.3, u, BRUSS.p))(jnp.asarray(BRUSS.u0) + 0.1)) > 0,
        ),
        ode.Kvaerno5(),
    ),
    "given": (
        ode.ODEProblem(
            BRUSS.f, BRUSS.u0, (0.0, 2.0), BRUSS.p, jac=lambda t, u, p: jax.jacfwd(lambda u: BRUSS.f(t, u, p))(u)
        ),
        ode.Rodas5P(),
    ),
}


def end_of_diffusion(prob, alg, p):
    options = {"reltol": 1e-9, "abstol": 1e-9, "sensealg": ode.DiscreteAdjoint()}
    return jnp.sum(ode.solve(prob, alg, p=p, saveat=jnp.array([2.0]), **options).u ** 2)


@pytest.fixture(scope="module")
def dense_diffusion():
    return jax.value_and_grad(lambda p: end_of_diffusion(DENSE, ode.Rodas5P(), p))(jnp.asarray(BRUSS.p))


@pytest.mark.parametrize("kind", CASES)
def test_every_way_to_solve_gives_the_same(kind, dense_diffusion):
    prob, alg = CASES[kind]
    value, gradient = jax.value_and_grad(lambda p: end_of_diffusion(prob, alg, p))(jnp.asarray(BRUSS.p))
    tol = 1e-7 if kind == "coloured" else 1e-9
    close(value, dense_diffusion[0], tol)
    close(gradient, dense_diffusion[1], 10 * tol)


def test_the_pattern_is_found_and_used():
    field, *_ = trace_field(BRUSS.f, jnp.asarray(BRUSS.u0), jnp.asarray(BRUSS.p))
    found = make_linear(ode.Rodas5P(), field, None, None)
    assert found.kind == "banded" and found.sparsity.n_colours <= 6
    assert found.sparsity.lower <= 3 and found.sparsity.upper <= 3


def test_ten_thousand_states_with_products_alone():
    """u_t = d u_xx - u^3 + g on 10^4 points, rates up to 4 000: GMRES, which forms no matrix, and the band, found."""
    n = 10_000
    x = np.arange(1, n + 1) / (n + 1)
    shape, mode = np.sin(np.pi * x), 2e-5 * (2 * n * np.sin(np.pi / (2 * n + 2))) ** 2

    def heat(t, u, p):
        second = jnp.pad(u, (0, 1))[1:] - 2 * u + jnp.pad(u, (1, 0))[:-1]
        exact = jnp.exp(-mode * t) * shape
        return 2e-5 * n**2 * second - u**3 + exact**3

    prob = ode.ODEProblem(heat, jnp.asarray(shape), (0.0, 1.0))
    options = {"reltol": 1e-4, "abstol": 1e-4, "saveat": jnp.array([1.0])}
    for linsolve in (ode.GMRES(rtol=1e-6), None):
        sol = ode.solve(prob, ode.Rodas4(linsolve=linsolve), **options)
        close(sol.u[-1], np.exp(-mode) * shape, 1e-3)


def test_one_jacobian_and_one_factorisation_a_step():
    for alg in FEW:
        stats = ode.solve(ivp.ROBER_40.ode(), alg, saveat=jnp.array([40.0])).stats
        assert stats.njacs == stats.nfactor == stats.naccept + stats.nreject
    assert stats.nf > 0


def test_a_wrong_jacobian_is_found():
    prob = ode.ODEProblem(decay, jnp.array([1.0, 0.4]), (0.0, 1.0), jnp.array([0.7, 30.0]))
    right = lambda t, u, p: jax.jacfwd(lambda u: decay(t, u, p))(u)
    assert ode.check_jacobian(ode.remake(prob, jac=right)) < 1e-12
    with pytest.raises(ValueError, match=r"entry \[0, 1\].*its transpose is right"):
        ode.check_jacobian(ode.remake(prob, jac=lambda t, u, p: right(t, u, p).T), rtol=1e-8)
    with pytest.raises(ValueError, match=r"df\[1\]/du\[0\]"):
        ode.check_jacobian(ode.remake(prob, jac_sparsity=np.eye(2)))
    with pytest.raises(ValueError, match="neither"):
        ode.check_jacobian(prob)
    with pytest.raises(ValueError, match="shape"):
        ode.solve(ode.remake(prob, jac=lambda t, u, p: jnp.ones(3)), ode.Rodas5P())


# ---------------------------------------------------------------- switching, splitting


def test_a_solve_switches_and_comes_back():
    """Robertson is not stiff at first; a decay whose rate comes and goes makes it switch both ways."""
    auto = ode.AutoTsit5(ode.Rodas5P())
    sol = ode.solve(ivp.ROBER_40.ode(), auto, saveat=jnp.array([40.0]), reltol=1e-8, abstol=ivp.ROBER_40.atol)
    close(
        sol.u[-1],
        ode.solve(ivp.ROBER_40.ode(), ode.Rodas5P(), saveat=jnp.array([40.0]), reltol=1e-9, abstol=1e-14).u[-1],
        1e-7,
    )
    assert 0 < sol.stats.nfactor < sol.stats.naccept < 1000
    assert sol.alg == auto and "AutoTsit5" in repr(sol.alg)

    rate = lambda t: 1e4 * jnp.exp(-((t - 1) ** 2) / 0.02)
    pulse = ode.ODEProblem(lambda t, u, p: -(1 + rate(t)) * (u - jnp.cos(t)) - jnp.sin(t), 1.0, (0.0, 3.0))
    sol = ode.solve(pulse, auto, reltol=1e-7, abstol=1e-9)
    mode = np.asarray(sol._record[0])[: len(sol) - 1, 5] >= 1024
    assert np.sum(np.diff(mode.astype(int)) == 1) >= 1 and np.sum(np.diff(mode.astype(int)) == -1) >= 1
    close(sol.u, np.cos(sol.t), 1e-5)


def test_gradients_through_a_switch():
    g = ivp.ROBER_40_GRADIENT
    problem = g.problem

    def loss(k, sensealg):
        options = {"saveat": g.saveat, "reltol": 1e-9, "abstol": problem.atol, "sensealg": sensealg}
        return g.loss(ode.solve(problem.ode(), ode.AutoTsit5(ode.Rodas5P()), p=k, **options).u)

    k = jnp.asarray(problem.p)
    for sensealg in (ode.DiscreteAdjoint(), ode.GaussAdjoint(alg=ode.Rodas5P())):
        close(jax.grad(loss)(k, sensealg) * k, g.p * k, 1e-5)


def test_a_problem_that_is_not_stiff_never_switches():
    prob = ode.ODEProblem(lambda t, u, p: jnp.stack([u[1], -u[0]]), jnp.array([1.0, 0.0]), (0.0, 20.0))
    sol = ode.solve(prob, ode.AutoTsit5(ode.Rodas5P()), saveat=jnp.array([20.0]), reltol=1e-8, abstol=1e-8)
    assert sol.stats.nfactor == 0
    close(sol.u[-1], [np.cos(20.0), -np.sin(20.0)], 1e-6)


@pytest.mark.parametrize("alg", [ode.KenCarp4(), ode.KenCarp5(), ode.Rodas5P(), ode.Tsit5()], ids=name)
def test_a_split_problem(alg):
    """u' = A u (stiff) + g(t) u (explicit): values, order and gradient; the implicit part alone is iterated."""
    a = jnp.array([[-500.0, 499.0], [499.0, -500.0]])
    stiff, slow = lambda t, u, p: p * (a @ u), lambda t, u, p: jnp.cos(t) * u
    prob = ode.SplitODEProblem(stiff, slow, jnp.array([1.0, 0.5]), (0.0, 1.0), 1.0)
    exact = lambda p: scipy.linalg.expm(np.asarray(p * a)) @ np.array([1.0, 0.5]) * np.exp(np.sin(1.0))

    def end(p):
        return ode.solve(prob, alg, p=p, saveat=jnp.array([1.0]), reltol=1e-9, abstol=1e-11).u[-1]

    close(end(1.0), exact(1.0), 1e-6)
    close(jax.jacrev(end)(1.0), (exact(1 + 1e-5) - exact(1 - 1e-5)) / 2e-5, 1e-5)
    assert isinstance(ode.remake(prob, p=2.0), ode.SplitODEProblem)


# ---------------------------------------------------------------- mass matrices and failure


def test_a_regular_mass_matrix_is_the_same_problem_for_every_method():
    m = np.array([[2.0, 0.5], [0.1, 1.0]])
    prob = PAIRED["regular mass"]
    plain = ode.ODEProblem(lambda t, u, p: jnp.linalg.inv(m) @ decay(t, u, p), prob.u0, prob.tspan, prob.p)
    end = lambda prob, alg, p, sensealg: jnp.sum(
        ode.solve(prob, alg, p=p, saveat=jnp.array([0.4, 1.0]), reltol=1e-10, abstol=1e-11, sensealg=sensealg).u ** 2
    )
    want = jax.value_and_grad(lambda p: end(plain, ode.Vern7(), p, None))(prob.p)
    for alg, sensealg in [
        (ode.Tsit5(), ode.GaussAdjoint()),
        (ode.Rodas5P(), ode.InterpolatingAdjoint()),
        (ode.Rodas5P(), ode.GaussAdjoint()),
        (ode.Kvaerno5(), ode.DiscreteAdjoint()),
        (ode.Rodas5P(), ode.ForwardSensitivity()),
        (ode.AutoTsit5(ode.Rodas5P()), None),
    ]:
        given = ode.remake(prob, jac=lambda t, u, p: jax.jacfwd(lambda u: decay(t, u, p))(u))
        which = given if isinstance(alg, ode.algorithms.AutoAlgorithm) else prob
        got = jax.value_and_grad(lambda p, w=which, alg=alg, s=sensealg: end(w, alg, p, s))(prob.p)
        close(got[0], want[0], 1e-7)
        close(got[1], want[1], 1e-6)


def test_the_default_method():
    """By the mass matrix, and by what an eager solve comes up against."""
    assert ode.solve(DAE, saveat=jnp.array([1.0])).alg == ode.Rodas5P()
    assert ode.solve(SMOOTH, saveat=jnp.array([1.0])).alg == ode.Tsit5()
    g = ivp.ROBER_1E4_GRADIENT
    prob = ode.remake(ivp.ROBER_1E4.ode(), max_steps=3000, reltol=1e-8, abstol=ivp.ROBER_1E4.atol, saveat=g.saveat)
    for throw in (True, False):
        sol = ode.solve(prob, throw=throw)
        assert sol.success and sol.alg == ode.AutoTsit5(ode.Rodas5P())
        close(g.loss(sol.u), g.value, 1e-6)
    k = jnp.asarray(prob.p)
    close(jax.grad(lambda p: g.loss(ode.solve(prob, p=p).u))(k) * k, g.p * k, 1e-5)
    growing = ode.ODEProblem(lambda t, u, p: u**2, 1.0, (0.0, 2.0), max_steps=100)
    with pytest.raises(ode.SolveError, match="MaxSteps"):  # no stiffness: nothing else is tried
        ode.solve(growing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mass_matrix": np.ones((3, 3))}, r"shape \(2, 2\)"),
        ({"mass_matrix": [1.0, np.nan]}, "finite"),
        ({"mass_matrix": [1j, 1.0]}, "real"),
        ({"jac_sparsity": np.eye(3)}, "jac_sparsity"),
        ({"initializealg": "brown", "mass_matrix": [1.0, 0.0]}, "BrownBasic"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        prob = ode.ODEProblem(decay, jnp.array([1.0, 0.4]), (0.0, 1.0), jnp.ones(2), **options)
        ode.solve(prob, ode.Rodas5P())


def test_methods_that_cannot_are_refused():
    with pytest.raises(ValueError, match="Rodas5P"):
        ode.solve(DAE, ode.Tsit5())
    with pytest.raises(ValueError, match="BacksolveAdjoint"):
        ode.solve(DAE, ode.Rodas5P(), sensealg=ode.BacksolveAdjoint())
    with pytest.raises(TypeError, match="instance"):
        ode.solve(DAE, ode.Rodas5P)
    with pytest.raises(TypeError, match="LU"):
        ode.Rodas5P(linsolve="gmres")
    with pytest.raises(ValueError, match="cannot switch"):
        ode.solve(SMOOTH, ode.algorithms.AutoAlgorithm(nonstiff=ode.Vern7(), stiff=ode.Rodas5P()))


def test_algebraic_equations_that_determine_nothing_are_refused():
    """Index 2, and an equation 0 = 0."""
    for f in (lambda t, u, p: jnp.stack([u[1], u[0] - 1.0]), lambda t, u, p: 0 * u):
        prob = ode.ODEProblem(f, jnp.array([1.0, 0.0]), (0.0, 1.0), mass_matrix=[1.0, 0.0])
        for initializealg in (ode.BrownBasic(), ode.CheckInit()):
            sol = ode.solve(prob, ode.Rodas5P(), throw=False, saveat=jnp.array([1.0]), initializealg=initializealg)
            assert sol.retcode == ode.ReturnCode.InitialisationFailure and np.all(np.isnan(sol.u))
        with pytest.raises(ode.SolveError, match="index"):
            ode.solve(prob, ode.Rodas5P(), saveat=jnp.array([1.0]))


def test_a_singular_iteration_matrix_has_its_code():
    """u' = p u with p dt = 1 / gamma at a fixed step of 1/4."""
    p = 4 / ode.Rodas5P().tableau.GAMMA
    prob = ode.ODEProblem(lambda t, u, p: p * u, jnp.ones(2), (0.0, 1.0), p)
    sol = ode.solve(prob, ode.Rodas5P(), throw=False, saveat=jnp.array([1.0]), dt0=0.25, adaptive=False)
    assert sol.retcode == ode.ReturnCode.SingularMatrix and np.all(np.isnan(sol.u))


def test_newtons_failure_has_its_code():
    """A fixed step too long for Newton's iteration to meet a tight tolerance."""
    options = {"adaptive": False, "dt0": 1 / 16, "saveat": jnp.array([1.0]), "reltol": 1e-13, "abstol": 1e-14}
    sol = ode.solve(DAE, ode.KenCarp4(), throw=False, **options)
    assert sol.retcode == ode.ReturnCode.NewtonFailure and np.all(np.isnan(sol.u))
    with pytest.raises(ode.SolveError, match="check_jacobian"):
        ode.solve(DAE, ode.KenCarp4(), **options)


def test_an_explicit_method_that_fails_names_the_remedy():
    with pytest.raises(ode.SolveError, match="Rodas5P"):
        ode.solve(ivp.ROBER_1E4.ode(), ode.Tsit5(), max_steps=3000, saveat=jnp.array([1e4]))


# ---------------------------------------------------------------- what a hostile user found


@pytest.mark.parametrize("sensealg", [None, ode.GaussAdjoint()], ids=["default", "gauss"])
def test_a_dae_of_many_states_at_its_end(sensealg):
    """A save at t1 lies in a step of no length, whose matrix M / gamma is singular: u' = -p u + v, v = u / 2."""
    m = 33

    def f(t, u, p):
        return jnp.concatenate([-p * u[:m] + u[m:], u[m:] - 0.5 * u[:m]])

    prob = ode.ODEProblem(f, jnp.ones(2 * m), (0.0, 1.0), 1.0, mass_matrix=np.r_[np.ones(m), np.zeros(m)])
    loss = lambda p: ode.solve(prob, p=p, saveat=[1.0], sensealg=sensealg, dense=True)(1.0).sum()
    close(jax.grad(loss)(1.0), -m * 1.5 * np.exp(-0.5), 1e-5)


def test_a_full_mass_matrix_leaves_no_pattern_to_a_method_that_divides_by_it():
    n = 41
    x = np.linspace(0, 1, n)
    m = np.eye(n) + 0.45 * np.diag(np.ones(n - 1), 1) + 0.45 * np.diag(np.ones(n - 1), -1)
    f = lambda t, u, p: p * 100 * (jnp.pad(u, (0, 1))[1:] + jnp.pad(u, (1, 0))[:-1] - 2 * u) - u**3
    prob = ode.ODEProblem(f, jnp.asarray(np.sin(np.pi * x) + 0.3 * x), (0.0, 1.0), 1.0, mass_matrix=m)
    gradient = lambda alg: jax.grad(lambda p: ode.solve(prob, alg, p=p, saveat=[1.0]).u.sum())(1.0)
    close(gradient(ode.AutoTsit5(ode.KenCarp4())), gradient(ode.Rodas5P()), 1e-4)


@pytest.mark.parametrize("sensealg", [ode.GaussAdjoint(), ode.InterpolatingAdjoint()], ids=lambda s: type(s).__name__)
def test_a_complex_dae_whose_algebraic_equation_is_not_holomorphic(sensealg):
    def f(t, u, p):
        algebraic = u[1] + 0.3j * jnp.conj(u[1]) - p[1] * jnp.conj(u[0]) + 0.1 * jnp.cos(t)
        return jnp.stack([-p[0] * u[0] * (1 + 0.2j) + 0.5 * u[1], algebraic])

    def reduced(t, u, p):  # v + 0.3i conj(v) = r, so v = (r - 0.3i conj(r)) / (1 - 0.09)
        r = p[1] * jnp.conj(u) - 0.1 * jnp.cos(t)
        return -p[0] * u * (1 + 0.2j) + 0.5 * (r - 0.3j * jnp.conj(r)) / 0.91

    p, ts, w = jnp.array([1.0, 0.7]), jnp.array([0.0, 0.5, 0.5, 1.0]), jnp.array([1 - 2j, 0.5 + 3j])
    options = {"saveat": ts, "reltol": 1e-8, "abstol": 1e-10}

    def loss(p, full):
        if full:
            prob = ode.ODEProblem(f, jnp.array([1.0 + 0.5j, 0.2]), (0.0, 1.0), p, mass_matrix=[1.0, 0.0])
            u, v = ode.solve(prob, ode.Rodas5P(), sensealg=sensealg, **options).u.T
        else:
            u = ode.solve(ode.ODEProblem(reduced, 1.0 + 0.5j, (0.0, 1.0), p), ode.Vern9(), **options).u
            r = p[1] * jnp.conj(u) - 0.1 * jnp.cos(ts)
            v = (r - 0.3j * jnp.conj(r)) / 0.91
        return jnp.sum(jnp.real(w[0] * u + w[1] * v) * jnp.arange(1.0, 5.0))

    close(jax.grad(loss)(p, True), jax.grad(loss)(p, False), 1e-6)


def test_a_start_refused_by_check_init_has_no_derivative():
    prob = ode.ODEProblem(
        lambda t, u, p: jnp.stack([-p * u[0] + u[1], u[1] - u[0] ** 2]),
        jnp.array([1.0, 5.0]),
        (0.0, 1.0),
        mass_matrix=[1.0, 0.0],
        initializealg=ode.CheckInit(),
    )
    for sensealg in (ode.ForwardSensitivity(), ode.DiscreteAdjoint()):
        end = lambda p, s=sensealg: ode.solve(prob, ode.Rodas5P(), p=p, saveat=[1.0], sensealg=s).u.sum()
        assert np.all(np.isnan(jax.jit(jax.value_and_grad(end))(0.3)))
        assert np.all(np.isnan(jax.jit(lambda p, f=end: jax.jvp(f, (p,), (1.0,)))(0.3)))


def test_gmres_that_gives_up_is_no_success():
    upwind = lambda t, u, p: 2e4 * p * (jnp.roll(u, 1) - u) + jnp.cos(t)
    prob = ode.ODEProblem(upwind, jnp.asarray(np.eye(64)[0]), (0.0, 1.0), 1.0)
    options = {"saveat": [1.0], "adaptive": False, "dt0": 0.1, "throw": False}
    right = ode.solve(prob, ode.Rodas5P(), **options)
    close(right.u[0, :3], (1 / 64 + np.sin(1.0)) * np.ones(3), 1e-6)
    sol = ode.solve(prob, ode.Rodas5P(linsolve=ode.GMRES(restart=3)), **options)
    assert sol.retcode == ode.ReturnCode.NewtonFailure and np.all(np.isnan(sol.u))


def test_switching_with_every_engine_and_with_no_states():
    auto = ode.AutoTsit5(ode.Rodas5P())
    assert ode.solve(ode.ODEProblem(lambda t, u, p: u, jnp.zeros(0), (0.0, 1.0)), auto, saveat=[1.0]).u.shape == (1, 0)
    prob = ode.ODEProblem(lambda t, u, p: -p * u, jnp.ones(3), (0.0, 1.0))
    for sensealg in (ode.InterpolatingAdjoint(), ode.QuadratureAdjoint(), ode.ForwardSensitivity()):
        end = lambda p, s=sensealg: ode.solve(prob, auto, p=p, saveat=[1.0], sensealg=s, reltol=1e-8).u.sum()
        p = jnp.array([1.0, 2.0, 400.0])
        close(jax.grad(end)(p), -jnp.exp(-p), 1e-6)


def test_no_tolerance_for_a_state_that_is_zero():
    prob = ode.ODEProblem(
        lambda t, u, p: {"a": -u["a"], "b": u["a"]}, {"a": jnp.ones(1), "b": jnp.zeros(1)}, (0.0, 1.0)
    )
    sol = ode.solve(prob, ode.Kvaerno5(), abstol={"a": 1e-9, "b": 0.0}, saveat=[1.0], dt0=1e-3)
    close(sol.u["b"], [[1 - np.exp(-1.0)]], 1e-5)


def test_a_slope_in_time_that_is_not_finite_is_named():
    prob = ode.ODEProblem(lambda t, u, p: jnp.sqrt(t) - u, 1.0, (0.0, 1.0))
    with pytest.raises(ode.SolveError, match=r"df/dt.*Kvaerno5"):
        ode.solve(prob, ode.Rodas5P(), saveat=[1.0])
    assert ode.solve(prob, ode.Kvaerno5(), saveat=[1.0]).success
