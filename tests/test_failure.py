"""What happens when a solve fails: errors that say why, NaN and no plausible number, other lanes undisturbed.

u' = p u^2 from u0 is u0 / (1 - p u0 t), which leaves every bound at t = 1 / (p u0); some fields give NaN later.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode
from odesens import ReturnCode

from .problems import ALL_ENGINES

engines = pytest.mark.parametrize("sensealg", ALL_ENGINES, ids=lambda s: type(s).__name__)


def square(t, u, p):
    return p * u * u


def stops(t, u, p):
    return jnp.where(t > 0.6, jnp.nan, -u)


BLOWUP = ode.ODEProblem(square, 1.0, (0.0, 2.0), 1.0)
TS = jnp.array([0.5, 1.5])


def blowup(p=1.0, u0=1.0, **options):
    return ode.solve(BLOWUP, ode.BS3(), u0=u0, p=p, saveat=TS, reltol=1e-3, abstol=1e-3, max_steps=1000, **options)


# ---------------------------------------------------------------- eager


def test_blowup_raises_with_time_and_component():
    with pytest.raises(ode.SolveError, match=r"reached t = 1\.0") as caught:
        blowup()
    assert caught.value.retcode in (ReturnCode.DtTooSmall, ReturnCode.NonFinite)
    assert "runs to infinity" in str(caught.value)
    assert 0.99 < caught.value.t < 1.01
    assert "what to do" in str(caught.value)


def test_without_throw_the_rows_reached_are_right_and_the_others_nan():
    sol = blowup(throw=False)
    assert not sol.success and sol.retcode > ReturnCode.Terminated
    np.testing.assert_allclose(sol.u[0], 2.0, rtol=1e-2)
    assert np.isnan(sol.u[1])
    assert sol.retcode.name in repr(sol)


NAN_AT_START = {
    "field": (lambda t, u, p: u * jnp.nan, jnp.ones(2), "u[0]"),
    "component": (
        lambda t, u, p: {"a": u["a"], "b": jnp.sqrt(u["b"] - 2)},
        {"a": 1.0, "b": jnp.array([3.0, 1.0])},
        "u['b'][1]",
    ),
    "state": (lambda t, u, p: -u, jnp.array([1.0, jnp.nan]), "u[1]"),
}


@pytest.mark.parametrize(("f", "u0", "name"), NAN_AT_START.values(), ids=NAN_AT_START.keys())
@pytest.mark.parametrize("alg", [ode.BS3(), ode.RK4()], ids=["BS3", "RK4"])
def test_nan_at_the_start_names_the_component(f, u0, name, alg):
    with pytest.raises(ode.SolveError, match="at the initial state") as caught:
        ode.solve(ode.ODEProblem(f, u0, (0.0, 1.0)), alg, saveat=0.5, dt0=0.1)
    assert caught.value.retcode == ReturnCode.NonFinite and caught.value.t == 0
    assert name in str(caught.value)


@pytest.mark.parametrize("alg", [ode.BS3(), ode.RK4()], ids=["BS3", "RK4"])
def test_nan_later_is_called_so(alg):
    prob = ode.ODEProblem(stops, 1.0, (0.0, 1.0))
    with pytest.raises(ode.SolveError) as caught:
        ode.solve(prob, alg, saveat=0.5, dt0=0.1)
    assert caught.value.retcode == ReturnCode.NonFinite and 0.4 < caught.value.t <= 0.6
    assert "nan" in str(caught.value).split("likely cause")[1].split("what to do")[0].lower()
    sol = ode.solve(prob, alg, saveat=[0.3, 0.9], dt0=0.1, throw=False)
    np.testing.assert_allclose(sol.u[0], np.exp(-0.3), rtol=1e-3)
    assert np.isnan(sol.u[1])


def test_max_steps():
    prob = ode.ODEProblem(lambda t, u, p: -u, 1.0, (0.0, 1.0))
    with pytest.raises(ode.SolveError, match="max_steps") as caught:
        ode.solve(prob, ode.RK4(), dt0=0.125, max_steps=7)
    assert caught.value.retcode == ReturnCode.MaxSteps and caught.value.t == 0.875
    assert ode.solve(prob, ode.RK4(), dt0=0.125, max_steps=8).success


def test_a_stiff_problem_is_called_stiff():
    prob = ode.ODEProblem(lambda t, u, p: -1e6 * (u - jnp.cos(t)), jnp.ones(2), (0.0, 10.0))
    with pytest.raises(ode.SolveError, match="stiff") as caught:
        ode.solve(prob, ode.BS3(), saveat=[10.0], max_steps=500)
    assert caught.value.retcode == ReturnCode.MaxSteps


def test_dtmin():
    prob = ode.ODEProblem(lambda t, u, p: -50 * u, 1.0, (0.0, 1.0))
    with pytest.raises(ode.SolveError, match="dtmin") as caught:
        ode.solve(prob, ode.BS3(), saveat=[1.0], dtmin=0.5)
    assert caught.value.retcode == ReturnCode.DtTooSmall


# ---------------------------------------------------------------- gradients


@engines
def test_gradients_of_what_was_not_reached_are_nan(sensealg):
    """Of what was reached they are right, or NaN where the engine's own solve fails."""

    def rows(p):
        return blowup(p, sensealg=sensealg).u

    first, both = jax.jit(lambda p: (jax.grad(lambda p: rows(p)[0])(p), jax.grad(lambda p: rows(p).sum())(p)))(1.0)
    assert np.isnan(both)
    if not np.isnan(first):
        np.testing.assert_allclose(first, 2.0, rtol=5e-2)


def test_eager_gradients_raise_or_are_nan():
    with pytest.raises(ode.SolveError):
        jax.grad(lambda p: blowup(p).u.sum())(1.0)
    assert np.isnan(jax.grad(lambda p: blowup(p, throw=False).u.sum())(1.0))


def test_forward_mode_is_nan_where_not_reached():
    got = jax.jit(jax.jacfwd(lambda p: blowup(p).u))(1.0)
    np.testing.assert_allclose(got[0], 2.0, rtol=2e-2)
    assert np.isnan(got[1])


def test_the_last_of_every_step_is_not_plausible_when_the_end_was_not_reached():
    """Under a transform nothing can raise, so `sol[-1]` must not pass for the state at t1."""

    def last(p):
        prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), p)
        return ode.solve(prob, ode.RK4(), dt0=0.125, max_steps=7)[-1]

    value, grad = jax.jit(jax.value_and_grad(last))(1.0)
    assert np.isnan(value) and np.isnan(grad), (value, grad)
    assert np.all(np.isnan(jax.vmap(last)(jnp.array([1.0, 2.0]))))


# ---------------------------------------------------------------- lanes

GOOD = jnp.array([0.1, 0.2, 0.3, 0.25])
SOME_FAIL = jnp.array([0.1, 2.0, 0.3, jnp.nan])
SOME_BLOW_UP = jnp.array([0.1, 2.0, 0.3, 3.0])
KEEP = np.array([True, False, True, False])


def test_a_failing_lane_leaves_the_others_bits():
    solve = jax.jit(jax.vmap(lambda u0: blowup(u0=u0)))
    good, some = solve(GOOD), solve(SOME_FAIL)
    assert np.array_equal(good.u[KEEP], some.u[KEEP])
    assert np.array_equal(some.success, KEEP) and np.all(good.success)
    assert some.retcode[3] == ReturnCode.NonFinite
    assert np.all(np.isnan(some.u[1:, 1][~KEEP[1:]]))


@engines
def test_gradients_of_lanes(sensealg):
    """A failing lane's own gradient is NaN, the others keep theirs; with a zero cotangent it adds nothing."""

    def one(u0, p):
        return jnp.sum(blowup(p, u0, sensealg=sensealg).u)

    def masked(p, u0):
        return jnp.sum(jnp.where(KEEP, jax.vmap(one, (0, None))(u0, p), 0.0))

    both = jax.jit(lambda u0: (jax.vmap(jax.grad(one, (0, 1)), (0, None))(u0, 1.0), jax.grad(masked, (0, 1))(1.0, u0)))
    (u_good, p_good), (shared_good, _) = both(GOOD)
    for start in (SOME_BLOW_UP, SOME_FAIL):
        (u_some, p_some), (shared_some, own_some) = both(start)
        for good, some in ((u_good, u_some), (p_good, p_some)):
            assert np.array_equal(good[KEEP], some[KEEP])
            assert np.all(np.isnan(some[~KEEP]))
        assert np.all(own_some[~KEEP] == 0), own_some
        np.testing.assert_allclose(shared_some, shared_good, rtol=1e-12)


def test_a_failed_solve_has_no_gradient_even_where_its_derivative_is_cut_off():
    """The branch that blows up does not depend on p: its gradient is NaN all the same, that of a good lane right."""
    f = lambda t, u, p: jnp.where(p > 5, 10 * u**2, -p * u)
    prob = ode.ODEProblem(f, 1.0, (0.0, 1.0), throw=False, saveat=[1.0])
    end = lambda p: ode.solve(prob, p=p).u[0]
    assert np.isnan(jax.grad(end)(6.0)) and np.isnan(jax.jit(jax.grad(end))(6.0)) and np.isnan(jax.jacfwd(end)(6.0))
    np.testing.assert_allclose(jax.vmap(jax.grad(end))(jnp.array([6.0, 1.0])), [np.nan, -np.exp(-1.0)], rtol=1e-5)
