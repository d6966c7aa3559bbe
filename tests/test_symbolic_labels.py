"""Labelled derivatives with respect to tunables, and what a simplified system shows."""

import jax
import jax.numpy as jnp
import numpy as np
from sympy import Eq

import odesens as ode
from odesens.symbolic import D, System, Tunables, parameters, simplify, t, unknowns


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
