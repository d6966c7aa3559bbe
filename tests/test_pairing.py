"""Tangents and adjoints of the discrete engine are exact transposes, <w, T x> = <A w, x>, for every method and size;
its two evaluations, by Jacobians and step by step, agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode
from odesens import extension, primitive
from odesens.sensitivity import jacobians

from .problems import METHODS


def coupled(t, u, p):
    """A nonlinear ring of n states with parameters."""
    return p[0] * jnp.sin(u) - p[1] * u + p[2] * jnp.roll(u, 1) * jnp.cos(t)


def states(alg, n):
    fixed = {} if alg.adaptive else {"dt0": 1 / 32}
    prob = ode.ODEProblem(coupled, jnp.zeros(n), (0.0, 1.0))
    ts = np.array([0.0, 0.62])
    options = {"saveat": ts, "reltol": 1e-5, "abstol": 1e-5, "sensealg": ode.DiscreteAdjoint(), **fixed}
    return lambda u0, p: ode.solve(prob, alg, u0=u0, p=p, **options).u


def gap(f, n, seed=0):
    """|<w, T x> - <A w, x>| relative to the size of the terms."""
    draw = np.random.default_rng(seed).standard_normal
    u0, p = jnp.asarray(draw(n)), jnp.array([0.7, 0.4, 0.3])
    x = (jnp.asarray(draw(n)), jnp.asarray(draw(3)))

    @jax.jit
    def both(w):
        _, tangent = jax.jvp(f, (u0, p), x)
        _, pull = jax.vjp(f, u0, p)
        bars = pull(w)
        right = sum(jnp.vdot(a, b) for a, b in zip(bars, x, strict=True))
        size = sum(jnp.sum(jnp.abs(a * b)) for a, b in zip(bars, x, strict=True))
        return jnp.abs(jnp.sum(w * tangent) - right) / size

    return float(both(jnp.asarray(draw((2, n)))))


# The size chooses the evaluation, whatever the method: each method with two states and with one other size, each size
# with four methods and more, of which some have no embedded error and some have stages of their own for dense output.
SIZES = [(alg, n) for i, alg in enumerate(METHODS) for n in (2, (1, 30, 300)[i % 3])]


@pytest.mark.parametrize(("alg", "n"), SIZES, ids=lambda x: x if isinstance(x, int) else type(x).__name__)
def test_pairing_for_every_method_and_size(alg, n):
    """To rounding: that of the dense output's weights, whose coefficients reach 3e4 for Vern6 and 2e5 for Vern8."""
    rounding = np.finfo(float).eps * np.abs(alg.tableau.B_CENTRED).max()
    assert gap(states(alg, n), n) < max(1e-12, rounding)


def test_pairing_at_second_order():
    """<w, T_2(x, y)> = <A_1(x; w), y>, on a batch whose parameters are shared."""
    f = states(ode.Tsit5(), 2)
    draw = np.random.default_rng(1).standard_normal
    u0s, p = jnp.asarray(draw((3, 2))), jnp.array([0.7, 0.4, 0.3])
    batch = lambda u0s, p: jax.vmap(f, (0, None))(u0s, p)
    x, y = ((jnp.asarray(draw((3, 2))), jnp.asarray(draw(3))) for _ in range(2))
    w = jnp.asarray(draw((3, 2, 2)))
    first = lambda u0s, p: jax.jvp(batch, (u0s, p), x)[1]

    @jax.jit
    def both():
        _, second = jax.jvp(first, (u0s, p), y)
        bars = jax.vjp(first, u0s, p)[1](w)
        return jnp.sum(w * second), sum(jnp.vdot(a, b) for a, b in zip(bars, y, strict=True))

    left, right = both()
    np.testing.assert_allclose(left, right, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2])
def test_jacobians_and_steps_in_sequence_agree(order, monkeypatch):
    """Few states: steps in sequence where they are compiled whole, linearised side by side where they are not."""
    f = states(ode.Heun(), 2)  # few stages: the second order compiles long enough
    loss = lambda v: jnp.sum(jnp.sin(f(v[:2], v[2:])))
    derivative = jax.grad if order == 1 else lambda g: jax.jacfwd(jax.grad(g))
    v = jnp.array([0.3, -0.8, 0.7, 0.4, 0.3])
    used = []
    pull = jacobians.SideBySide.pull
    monkeypatch.setattr(jacobians.SideBySide, "pull", lambda *args: (used.append(1), pull(*args))[1])
    in_sequence = jax.jit(derivative(loss))(v)
    assert not used
    monkeypatch.setattr(extension, "_WHOLE_TESTED", False)
    jax.clear_caches()
    primitive._compiled.cache_clear()
    side_by_side = jax.jit(derivative(loss))(v)
    primitive._compiled.cache_clear()
    assert used
    np.testing.assert_allclose(side_by_side, in_sequence, rtol=1e-12, atol=1e-12)
