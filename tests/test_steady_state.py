"""Steady states: closed forms, derivatives of every order by the implicit function theorem, singular Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from .problems import close

BOTH = pytest.mark.parametrize("alg", [ode.SSRootfind(), ode.DynamicSS()], ids=lambda a: type(a).__name__)


def linear(t, u, p):
    return jnp.stack([p[0] + p[1] * u[0], p[2] * u[0] + p[3] * u[1]])


P = jnp.array([2.0, -2.0, 1.0, -4.0])
PROBLEM = ode.SteadyStateProblem(linear, [0.3, 0.4], P)
ROOT = ode.SteadyStateProblem(lambda t, u, p: p - u**2, 1.0)  # u = sqrt(p)


def conserving(t, u, p):
    """A <-> B: u1 + u2 is conserved, so f_u is singular everywhere."""
    r = p[0] * u[0] - p[1] * u[1]
    return jnp.stack([-r, r])


@BOTH
def test_reference(alg):
    sol = ode.solve(PROBLEM, alg)
    assert sol.success and sol.retcode is ode.ReturnCode.Success
    close(sol.u, [1.0, 0.25], 1e-8)
    assert np.max(np.abs(sol.resid)) < 1e-7

    def loss(p):
        u = ode.solve(PROBLEM, alg, p=p).u
        return jnp.sum((2 - u) ** 2) / 2 + jnp.sum(p**2) / 2

    close(jax.grad(loss)(P), [1.28125, -2.71875, 0.5625, -4.109375], 1e-8)
    close(jax.jacfwd(lambda p: ode.solve(PROBLEM, alg, p=p).u[0])(P), [0.5, 0.5, 0, 0], 1e-8)


def test_newton_is_exact_to_rounding_and_the_default():
    sol = ode.solve(PROBLEM)
    assert sol.alg == ode.SSRootfind()
    close(sol.u, [1.0, 0.25], 1e-15)
    close(ode.solve(ROOT, p=2.0).u, np.sqrt(2), 4e-16)


@pytest.mark.parametrize(("nesting", "jit"), [("ff", True), ("fr", False), ("rf", True), ("rr", False)])
def test_second_derivatives(nesting, jit):
    """u = (-p1/p2, p1 p3 / (p2 p4)), in closed form."""
    modes = {"f": jax.jacfwd, "r": jax.jacrev}
    got = lambda p: jnp.sum(jnp.sin(ode.solve(PROBLEM, p=p).u))
    want = lambda p: jnp.sin(-p[0] / p[1]) + jnp.sin(p[0] * p[2] / (p[1] * p[3]))
    hessian = modes[nesting[0]](modes[nesting[1]](got))
    close((jax.jit(hessian) if jit else hessian)(P), jax.hessian(want)(P), 1e-13)


def test_third_derivative():
    u = lambda p: ode.solve(ROOT, p=p).u
    close(jax.grad(jax.jacfwd(jax.grad(u)))(2.0), 3 / 8 * 2**-2.5, 1e-13)


@BOTH
def test_vmap_of_gradients(alg):
    ps = jnp.array([0.5, 2.0, 7.0])
    u, g = jax.vmap(jax.value_and_grad(lambda p: ode.solve(ROOT, alg, p=p).u))(ps)
    close(u, jnp.sqrt(ps), 1e-8)
    close(g, 0.5 / jnp.sqrt(ps), 1e-8)


def test_a_lane_that_fails_leaves_the_others():
    g, code = jax.vmap(jax.grad(lambda p: (s := ode.solve(ROOT, p=p), (s.u, s.retcode))[1], has_aux=True))(
        jnp.array([2.0, -1.0])
    )
    close(g[0], 0.5 / np.sqrt(2), 1e-14)
    assert np.isnan(g[1])
    assert code[0] == ode.ReturnCode.Success and code[1] > ode.ReturnCode.Terminated


@BOTH
def test_captured_values_have_gradients_and_the_guess_has_none(alg):
    def u(q, u0):
        f = lambda t, u, p: {"x": q * p - u["x"], "y": u["x"] - q * u["y"]}
        return ode.solve(ode.SteadyStateProblem(f, {"x": u0, "y": 1.0}, 3.0), alg).u["x"]

    gradient = jax.grad(u, (0, 1))(2.0, 0.5)
    close(gradient[0], 3.0, 1e-7)
    assert gradient[1] == 0


def test_complex_state_with_a_conjugate():
    """0 = p - 2 z - i conj(z): not holomorphic. z = a + i b: 2 a + b = Re p, 2 b + a = Im p."""
    prob = ode.SteadyStateProblem(lambda t, z, p: p - 2 * z - 1j * jnp.conj(z), 0j, 1.0 + 4j)
    want = np.linalg.solve([[2, 1], [1, 2]], [1, 4])
    for alg in (ode.SSRootfind(), ode.DynamicSS(reltol=1e-10)):  # the slower mode decays at the rate 1
        close(ode.solve(prob, alg).u, want[0] + 1j * want[1], 1e-9)
    real = lambda q: jnp.real(ode.solve(prob, p=q + 4j).u)
    close(jax.grad(real)(1.0), 2 / 3, 1e-14)
    close(jax.jacfwd(real)(1.0), 2 / 3, 1e-14)


def test_from_an_ode_problem_with_a_mass_matrix():
    f = lambda t, u, p: jnp.stack([p - u[0] * u[1], u[0] - u[1] ** 3])  # the second is algebraic
    dae = ode.ODEProblem(f, [1.0, 1.0], (0.0, 1.0), 2.0, mass_matrix=[3.0, 0.0])
    for alg in (ode.SSRootfind(), ode.DynamicSS()):
        close(ode.solve(ode.SteadyStateProblem(dae), alg).u, [2**0.75, 2**0.25], 1e-8)
    prob = ode.remake(ode.SteadyStateProblem(dae), p=16.0)
    close(ode.solve(prob).u, [8.0, 2.0], 1e-15)


def test_time_is_infinite_for_the_root_finder():
    f = lambda t, u, p: p * (1 + jnp.exp(-t)) - u
    close(ode.solve(ode.SteadyStateProblem(f, 0.0, 3.0)).u, 3.0, 1e-15)
    with pytest.raises(ode.SolveError, match="t = inf"):
        ode.solve(ode.SteadyStateProblem(lambda t, u, p: jnp.sin(t) - u, 0.0))


def test_stepping_finds_the_stable_state_of_its_basin():
    f = lambda t, u, p: u * (p - u**2)  # 0 is not stable
    prob = ode.SteadyStateProblem(f, 0.01, 4.0)
    close(ode.solve(prob, ode.DynamicSS()).u, 2.0, 1e-8)
    assert abs(ode.solve(prob).u) < 1e-15
    close(jax.grad(lambda p: ode.solve(prob, ode.DynamicSS(), p=p).u)(4.0), 0.25, 1e-7)


def test_singular_jacobian_of_a_conservation_law():
    p = jnp.array([0.7, 0.3])
    prob = ode.SteadyStateProblem(conserving, [1.0, 1.0], p)
    with pytest.raises(ode.SolveError, match="conserved") as error:
        ode.solve(prob)
    assert error.value.retcode is ode.ReturnCode.SingularMatrix
    sol = ode.solve(prob, throw=False)
    assert sol.retcode is ode.ReturnCode.SingularMatrix and not sol.success
    assert jnp.all(jnp.isnan(jax.jit(jax.grad(lambda p: ode.solve(prob, p=p).u[0]))(p)))
    assert jnp.all(jnp.isnan(jax.jit(jax.jacfwd(lambda p: ode.solve(prob, p=p).u[0]))(p)))
    # stepping gives the state of this total, which f = 0 alone does not determine
    close(ode.solve(prob, ode.DynamicSS()).u, [0.6, 1.4], 1e-8)
    u = lambda p: ode.solve(prob, ode.DynamicSS(), p=p).u[0]
    for derivative in (jax.grad, jax.jacfwd):
        with pytest.raises(ode.SolveError) as error:
            derivative(u)(p)
        assert error.value.retcode is ode.ReturnCode.SingularMatrix
        assert jnp.all(jnp.isnan(jax.jit(derivative(u))(p)))
    # with the total in place of an equation it is regular: u1 = p2 T / (p1 + p2)
    closed = lambda t, u, p: jnp.stack([conserving(t, u, p)[0], u[0] + u[1] - 2.0])
    g = jax.grad(lambda p: ode.solve(ode.SteadyStateProblem(closed, [1.0, 1.0], p)).u[0])(p)
    close(g, [-0.6, 1.4], 1e-14)


def test_a_double_root_is_singular():
    """Newton's method converges to it, but only linearly, and nothing about the small f_u there tells it apart."""
    prob = ode.SteadyStateProblem(lambda t, u, p: (u - p) ** 2, 3.0, 1.0)
    assert ode.solve(prob, throw=False).retcode is ode.ReturnCode.SingularMatrix
    assert np.isnan(jax.jit(jax.grad(lambda p: ode.solve(prob, p=p).u))(1.0))


def test_scales_are_not_mistaken_for_singularity():
    f = lambda t, u, p: jnp.stack([1e9 * (p - u[0]), 1e-9 * (u[0] * 1e-6 - u[1])])
    close(ode.solve(ode.SteadyStateProblem(f, [1.0, 1.0], 2.0)).u, [2.0, 2e-6], 1e-15)


def test_no_root():
    prob = ode.SteadyStateProblem(lambda t, u, p: 1 + u**2, 0.7)
    sol = ode.solve(prob, throw=False)
    assert sol.retcode is ode.ReturnCode.NotConverged and np.isnan(sol.u) and sol.resid >= 1
    with pytest.raises(ode.SolveError, match="no steady state"):
        ode.solve(prob)
    turning = ode.SteadyStateProblem(lambda t, u, p: jnp.stack([u[1], -u[0]]), [1.0, 0.0])
    sol = ode.solve(turning, ode.DynamicSS(tspan=(0.0, 20.0)), throw=False)
    assert sol.retcode is ode.ReturnCode.NotConverged and np.all(np.isnan(sol.u))


def test_single_precision():
    for alg in (ode.SSRootfind(), ode.DynamicSS()):
        u, g = jax.value_and_grad(lambda p: ode.solve(ROOT, alg, u0=jnp.float32(1), p=p).u)(jnp.float32(2))
        assert u.dtype == g.dtype == jnp.float32
        close(u, np.sqrt(2), 1e-4)
        close(g, 0.5 / np.sqrt(2), 1e-4)


def test_more_unknowns_than_are_inverted_by_hand():
    n = 60
    a = np.random.default_rng(1).normal(size=(n, n)) / n**0.5 - 3 * np.eye(n)
    b = jnp.arange(1.0, n + 1)
    u = lambda b: ode.solve(ode.SteadyStateProblem(lambda t, u, p: a @ u + p, jnp.zeros(n), b)).u
    close(u(b), -np.linalg.solve(a, b), 1e-13)
    close(jax.jacrev(u)(b), -np.linalg.inv(a), 1e-12)


CELLS = np.arange(1, 61)


def reaction_diffusion(t, u, p):
    """0 = b_i - a u_i - u_i^3 + D (u_i-1 - 2 u_i + u_i+1) in 60 cells, zero beyond."""
    inner = jnp.pad(u, 1)
    return p["b"] - p["a"] * u - u**3 + p["D"] * (inner[:-2] - 2 * u + inner[2:])


@BOTH
def test_many_cells(alg):
    """The Jacobian is that at the root, not at the guess."""
    p = {"a": 0.5, "D": 2.0, "b": 1 + np.sin(CELLS)}
    prob = ode.SteadyStateProblem(reaction_diffusion, jnp.zeros(60), p)
    loss = lambda p: jnp.sum(ode.solve(prob, alg, p=p).u)
    tol = 1e-13 if alg == ode.SSRootfind() else 1e-8
    value, gradient = jax.value_and_grad(loss)(p)
    close(value, 48.233676222477754, tol)
    close(jnp.stack([gradient["a"], gradient["D"]]), [-19.133732409881478, 0.25744958244683774], tol)
    close(gradient["b"][0], 0.27161215348225642, tol)
    close(ode.solve(prob, alg).u[0], 0.73618123908450639, tol)


def test_a_long_solve_has_the_gradient_of_the_steady_state():
    p = jnp.array([0.5, 2.0])
    f = lambda t, u, p: reaction_diffusion(t, u, {"a": p[0], "D": p[1], "b": 1 + np.sin(CELLS)})
    prob = ode.ODEProblem(f, jnp.zeros(60), (0.0, 60.0), saveat=[60.0], reltol=1e-8, abstol=1e-10)
    loss = lambda p: jnp.sum(ode.solve(prob, ode.Rodas5P(), p=p).u)
    close(jax.grad(loss)(p), [-19.133732409881478, 0.25744958244683774], 1e-7)


def test_wrong_input():
    with pytest.raises(TypeError, match=r"write DynamicSS\(Tsit5"):
        ode.solve(PROBLEM, ode.Tsit5())
    with pytest.raises(TypeError, match=r"write SSRootfind\(\)"):
        ode.solve(PROBLEM, ode.SSRootfind)
    with pytest.raises(TypeError, match="saveat"):
        ode.solve(PROBLEM, saveat=0.1)
    with pytest.raises(TypeError, match="tspan"):
        ode.solve(PROBLEM, tspan=(0, 1))
    with pytest.raises(TypeError, match="first guess"):
        ode.SteadyStateProblem(linear)
    with pytest.raises(TypeError, match="function f"):
        ode.SteadyStateProblem(3.0, 1.0)
    with pytest.raises(TypeError, match="DynamicSS: alg"):
        ode.DynamicSS("Tsit5")
