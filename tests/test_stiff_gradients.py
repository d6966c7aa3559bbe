"""Derivatives of stiff solves and of DAEs by each engine that suits them, against the gradients in tests/ivp.py.

p is given relative to the problem's constants, so that its entries, which span twenty orders of magnitude, and with
them those of the gradient, are of one size. The bound is 100 times the tolerance of the solve, relative to the
largest entry of each gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from . import ivp
from .problems import close

TOL = 1e-8
# the adjoint is of the size of the weights, 1 and more, whatever the scale of the states
ENGINES = {
    "discrete": lambda tol: ode.DiscreteAdjoint(),
    "interpolating": lambda tol: ode.InterpolatingAdjoint(reltol=tol, abstol=tol),
    "quadrature": lambda tol: ode.QuadratureAdjoint(reltol=tol, abstol=tol),
    "gauss": lambda tol: ode.GaussAdjoint(reltol=tol, abstol=tol),
    "forward": lambda tol: ode.ForwardSensitivity(),
}
NESTINGS = {
    "fwd-fwd": (jax.jacfwd, jax.jacfwd),
    "fwd-rev": (jax.jacfwd, jax.jacrev),
    "rev-fwd": (jax.jacrev, jax.jacfwd),
    "rev-rev": (jax.jacrev, jax.jacrev),
}
each_engine = pytest.mark.parametrize("engine", ENGINES)


def relative_loss(gradient, alg="Rodas5P", engine="discrete", reltol=TOL, **options):
    """The loss as a function of (s, u0), the parameters being s times the problem's."""
    problem = gradient.problem
    constants = jnp.asarray(problem.p)
    options = {"abstol": problem.atol * (reltol / 1e-8), "reltol": reltol, "saveat": gradient.saveat, **options}
    if problem.mass_matrix is not None:
        options = {"mass_matrix": problem.mass_matrix, "initializealg": ode.BrownBasic(), **options}
    mass = {"mass_matrix": options.pop("mass_matrix")} if "mass_matrix" in options else {}

    def f(t, u, s):
        return problem.f(t, u, constants * s)

    prob = ode.ODEProblem(f, problem.u0, problem.tspan, jnp.ones(constants.shape), **mass)
    options["sensealg"] = ENGINES[engine](reltol)

    def loss(s, u0):
        return gradient.loss(ode.solve(prob, getattr(ode, alg)(), u0=u0, p=s, **options).u)

    return loss


def check(gradient, tol=100 * TOL, **options):
    """Value and gradients in p and, where known, in u0."""
    loss, k = relative_loss(gradient, **options), np.asarray(gradient.problem.p)
    value, (in_p, in_u0) = jax.value_and_grad(loss, argnums=(0, 1))(jnp.ones(k.shape), jnp.asarray(gradient.problem.u0))
    close(value, gradient.value, tol)
    close(in_p, k * gradient.p, tol)
    if gradient.u0 is not None:
        close(in_u0, gradient.u0, tol)


# ---------------------------------------------------------------- stiff ODEs


@each_engine
def test_robertson(engine):
    check(ivp.ROBER_40_SAVES, engine=engine)


# the larger systems by two and three engines: each engine once
@pytest.mark.parametrize("engine", ["interpolating", "quadrature"])
def test_hires(engine):
    check(ivp.HIRES_GRADIENT, engine=engine)


@pytest.mark.parametrize("engine", ["discrete", "gauss", "forward"])
def test_pollu(engine):
    check(ivp.POLLU_GRADIENT, engine=engine)


@pytest.mark.parametrize(
    ("gradient", "alg", "engine", "tol"),
    [
        (ivp.ROBER_40_GRADIENT, "Kvaerno5", "discrete", 100 * TOL),
        (ivp.ROBER_1E4_GRADIENT, "Rodas4", "gauss", 100 * TOL),
        (ivp.ROBER_1E4_GRADIENT, "KenCarp5", "discrete", 100 * TOL),
        (ivp.VDPOL_GRADIENT, "Rodas5P", "discrete", 1000 * TOL),  # the jump magnifies early errors: dy/dp is 70
        (ivp.OREGO_GRADIENT, "Kvaerno5", "discrete", 100 * TOL),
        (ivp.BRUSSELATOR_GRADIENT, "Rodas5P", "gauss", 100 * TOL),
    ],
    ids=lambda x: x.problem.name if isinstance(x, ivp.Gradient) else None,
)
def test_other_methods_and_problems(gradient, alg, engine, tol):
    check(gradient, alg=alg, engine=engine, tol=tol)


def test_forward_mode_and_parameters_of_their_own_scale():
    """The gradient in k itself, whose entries span nine orders of magnitude, in both modes of the discrete engine."""
    g, problem = ivp.ROBER_40_GRADIENT, ivp.ROBER_40
    prob = problem.ode()

    def loss(k):
        sol = ode.solve(prob, ode.Rodas5P(), p=k, saveat=g.saveat, reltol=TOL, abstol=problem.atol)
        return g.loss(sol.u)

    k = jnp.asarray(problem.p)
    forward, reverse = jax.jacfwd(loss)(k), jax.grad(loss)(k)
    close(reverse * k, g.p * k, 100 * TOL)
    close(forward * k, reverse * k, 1e-11)


@pytest.mark.parametrize("nesting", NESTINGS)
def test_robertson_hessian(nesting):
    g = ivp.ROBER_40_GRADIENT
    k = g.problem.p
    loss = relative_loss(g, reltol=1e-9)
    outer, inner = NESTINGS[nesting]
    u0 = jnp.asarray(g.problem.u0)
    hessian = outer(inner(lambda s: loss(s, u0)))(jnp.ones(3))
    close(hessian, g.hessian * np.outer(k, k), 1e-6)


# ---------------------------------------------------------------- DAEs


@each_engine
def test_cubic_constraints(engine):
    """Cotangents on algebraic states alone in the interior, at t0 as well, from a start that the solve puts right."""
    check(ivp.CUBIC_GRADIENT, engine=engine)


# the other DAEs by three and two engines: each engine once
@pytest.mark.parametrize("engine", ["discrete", "quadrature", "gauss"])
def test_robertson_as_a_dae(engine):
    check(ivp.ROBER_DAE_SAVES, engine=engine)


def test_jacobian_of_robertson_as_a_dae():
    """y(100) and all its derivatives, which span fourteen orders of magnitude, in the k_i relative to themselves."""
    k = jnp.asarray(ivp.ROBER_DAE.p)
    prob = ode.remake(ivp.ROBER_DAE.ode(), tspan=(0.0, 100.0), saveat=[100.0], reltol=1e-9, abstol=[1e-9, 1e-14, 1e-9])
    end = lambda s: ode.solve(prob, ode.Rodas5P(), p=s * k).u[-1]
    want = [
        [-5.1164574524311774, -3.0352367214228923e-9, 1.8211809139366029e-5],
        [2.3287318029050278e-5, -8.2457386407372669e-14, -1.2061507989724475e-10],
        [5.116434165113148, 3.0353191788092999e-9, -1.8211688524286131e-5],
    ]
    np.testing.assert_allclose(
        end(jnp.ones(3)), [0.61723488239608792, 6.1535912746391246e-6, 0.38275896401263743], 1e-7
    )
    for mode in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(mode(end)(jnp.ones(3)), np.array(want) * k, 1e-5)


@pytest.mark.parametrize("engine", ["interpolating", "forward"])
def test_initial_value_found_by_the_solve(engine):
    check(ivp.ROOT_GRADIENT, engine=engine)


@pytest.mark.parametrize(("alg", "engine"), [("Rodas5P", "discrete"), ("KenCarp5", "gauss")])
def test_chemakzo(alg, engine):
    check(ivp.CHEMAKZO_GRADIENT, alg=alg, engine=engine)


def test_cubic_constraints_at_the_end_by_an_implicit_method():
    check(ivp.CUBIC_END, alg="Kvaerno5")


def test_a_bad_guess_of_the_algebraic_states_changes_nothing():
    """And has no derivative: the start is where the constraints hold."""
    g = ivp.CUBIC_GRADIENT
    loss = relative_loss(g)
    guess = jnp.array([1.0, 0.7, 1.1])
    value, (in_p, in_u0) = jax.value_and_grad(loss, argnums=(0, 1))(jnp.ones(3), guess)
    close(value, g.value, 100 * TOL)
    close(in_p, g.problem.p * g.p, 100 * TOL)
    close(in_u0, g.u0, 100 * TOL)
    assert np.all(np.asarray(in_u0[1:]) == 0)


@each_engine
def test_scale_of_a_row_drops_out(engine):
    """a u' = a u / p: d u(1) / dp is that of a = 1, also where a is negative."""
    problem = ode.ODEProblem(lambda t, u, p: -0.8 * u / p, np.ones(1), (0.0, 1.0), mass_matrix=np.array([[-0.8]]))
    options = {"saveat": [1.0], "reltol": TOL, "abstol": TOL, "sensealg": ENGINES[engine](TOL)}
    gradient = jax.grad(lambda p: ode.solve(problem, ode.Rodas5P(), p=p, **options).u[0, 0])(2.0)
    close(gradient, -0.41218031767503204, 100 * TOL)


def test_dae_hessian():
    """The Hessian of Robertson's DAE is that of the ODE."""
    g = ivp.ROBER_40_GRADIENT
    k = g.problem.p
    dae = ivp.Gradient(ivp.ROBER_DAE, g.saveat, g.weights, g.value, g.p)
    loss = relative_loss(dae, reltol=1e-9)
    u0 = jnp.asarray(g.problem.u0)
    hessian = jax.jacfwd(jax.grad(lambda s: loss(s, u0)))(jnp.ones(3))
    close(hessian, g.hessian * np.outer(k, k), 1e-6)
