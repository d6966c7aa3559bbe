"""Labelled derivatives with respect to tunables, and what a simplified system shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sympy import Eq

import odesens as ode
from odesens.symbolic import D, System, Tunables, equations, parameters, simplify, t, unknowns


def test_derivatives_with_respect_to_tunables_have_their_labels():
    values = Tunables(("a", "b"), jnp.array([2.0, 3.0]))
    f = lambda q: jnp.stack([q["a"] ** 2 * q["b"], q["b"] ** 3, q["a"]])
    jacobian = jax.jacrev(f)(values)
    assert np.array_equal(jacobian["a"], [12.0, 0.0, 1.0]) and np.array_equal(jacobian["b"], [4.0, 27.0, 0.0])
    for nested in (jax.jacfwd(jax.jacrev(f)), jax.jacrev(jax.jacfwd(f))):
        hessian = nested(values)
        assert np.array_equal(hessian["a"]["b"], [4.0, 0.0, 0.0])
        assert np.array_equal(hessian["b"]["b"], [0.0, 18.0, 0.0])
        assert np.array_equal(hessian["a"]["a"], [6.0, 0.0, 0.0])
    scalar = jax.hessian(lambda q: f(q)[0])(values)
    assert scalar["b"]["a"] == 4.0 and np.array_equal(scalar.array.array, [[6.0, 4.0], [4.0, 0.0]])
    assert repr(scalar) == "Tunables(a: Tunables(a: 6.0, b: 4.0), b: Tunables(a: 4.0, b: 0.0))"
    third = jax.jacfwd(jax.hessian(lambda q: f(q)[1]))(values)
    assert third["b"]["b"]["b"] == 6.0 and third["a"]["b"]["b"] == 0.0


def test_a_simplified_system_shows_its_own_equations():
    x, w = unknowns("x w")
    k = parameters("k")
    model = simplify(System([Eq(D(D(x)), -k * w), Eq(w, x)], t))
    assert model._repr_latex_() == (
        r"$\displaystyle \begin{aligned} \frac{d^{2} x}{d t^{2}} &= - k x \\ w &= x \end{aligned}$"
    )
    many = unknowns("y", shape=100)
    assert "and 80 more" in simplify(System([(D(many), -many)], t))._repr_latex_()
    nothing = ode.ODEProblem(System([Eq(x, 0)], t), {}, (0.0, 1.0)).system
    assert "x &= 0" in nothing._repr_latex_()


def test_a_failed_solve_speaks_of_the_users_names():
    a, b, k = *unknowns("alpha beta"), parameters("kappa")
    system = System(equations([D(a), D(b)], [k * a, b**2]), t)
    prob = ode.ODEProblem(system, {a: 1.0, b: 1.0}, (0.0, 2.0), {k: 1.0})
    with pytest.raises(ode.SolveError, match="beta"):  # 1 / (1 - t)
        ode.solve(prob, ode.Tsit5())
    with pytest.raises(ode.SolveError, match=r"alpha[\s\S]*NaN, as if never set: kappa"):
        ode.solve(ode.remake(prob, p={k: jnp.nan}), ode.Tsit5())


@pytest.mark.parametrize("n", [30, 300])
def test_arrays_of_values_are_written_in_a_fixed_number_of_operations(n):
    x, k = unknowns("x", shape=n), parameters("k", shape=n)
    prob = ode.ODEProblem(System(equations(D(x), -k * x), t), {x: np.ones(n)}, (0.0, 1.0), {k: np.ones(n)})
    by_name = lambda q: jnp.sum(ode.solve(prob, p={k: q}, u0={x: 2 * q}, saveat=[1.0], reltol=1e-9)[x])
    by_vector = lambda q: jnp.sum(ode.solve(prob, u0=q, saveat=[1.0])[x])
    q = jnp.linspace(1.0, 2.0, n)
    assert [len(jax.make_jaxpr(jax.grad(f))(q).eqns) for f in (by_name, by_vector)] == [11, 8]
    if n == 30:
        np.testing.assert_allclose(jax.grad(by_name)(q), 2 * (1 - q) * np.exp(-q), atol=1e-8)
