"""What checks gradients, solutions and engines: right ones pass, planted faults are found and named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from .problems import lotka_volterra

P = jnp.array([1.5, 1.0, 3.0, 1.0])
TIMES = np.linspace(0.0, 3.0, 4)
LV = ode.ODEProblem(lotka_volterra, [1.0, 1.0], (0.0, 3.0), P, saveat=TIMES)
DECAY = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 0.5, saveat=[0.5, 1.0])


def squares(prob=LV, alg=None, **options):
    return lambda p: jnp.sum(ode.solve(prob, alg or ode.Tsit5(), p=p, **options).u ** 2)


def off(check):
    return [row.name for row in check.rows if not row.ok]


# ---------------------------------------------------------------- check_gradient


@pytest.mark.parametrize(
    "options",
    [{}, {"sensealg": ode.InterpolatingAdjoint()}, {"alg": ode.Rodas5P()}],
    ids=["discrete", "interpolating", "rosenbrock"],
)
def test_right_gradients_pass(options):
    check = ode.check_gradient(squares(**options), P)
    assert check.ok and not off(check), check
    assert check.verdict == "The gradient is right to 0.001." and check.cost > 0 and check.counts["nf"] > 0
    want = jax.grad(squares(reltol=1e-11, abstol=1e-12))(P)
    np.testing.assert_allclose(check.gradient, want, rtol=1e-3)
    assert check.rows[0].name == "forward mode" and "ok" in repr(check)
    assert check._repr_html_().startswith("<table>")


def test_events_and_pytrees_and_what_is_not_differentiated_pass():
    kick = ode.ContinuousCallback(lambda t, u, p: u - p["level"], lambda t, u, p: 2 * u)
    prob = ode.ODEProblem(lambda t, u, p: -p["rate"] * u * p["n"], 1.0, (0.0, 1.0), saveat=[1.0], callback=kick)
    x = {"rate": 1.5, "level": 0.6, "n": 1, "name": None}

    def loss(x):
        return ode.solve(prob, ode.Tsit5(), p=x).u[0]

    check = ode.check_gradient(loss, x)
    assert check.ok, check
    # u(1) = 4 exp(-rate) after two jumps, wherever they are
    assert float(check.gradient["rate"]) == pytest.approx(-4 * np.exp(-1.5), rel=1e-5)
    assert float(check.gradient["level"]) == pytest.approx(0.0, abs=1e-9) and check.gradient["n"] is None


def test_complex_and_jitted_and_vmapped_losses_pass():
    prob = ode.ODEProblem(lambda t, u, p: p * u, 1 + 0j, (0.0, 1.0), saveat=[1.0])
    one = jax.jit(lambda p: jnp.abs(ode.solve(prob, ode.Tsit5(), p=p).u[0]) ** 2)
    check = ode.check_gradient(lambda p: jnp.sum(jax.vmap(one)(p)), jnp.array([0.3 + 1j, -0.2 + 2j]))
    assert check.ok, check
    # |exp(p)|^2 = exp(2 Re p), and JAX's gradient of a real function is d/da - i d/db
    np.testing.assert_allclose(check.gradient, 2 * np.exp([0.6, -0.4]), rtol=1e-5, atol=1e-9)


def test_single_precision():
    prob = ode.ODEProblem(lambda t, u, p: -p * u, jnp.float32(1.0), (0.0, 1.0), saveat=np.float32([1.0]))
    check = ode.check_gradient(lambda p: ode.solve(prob, ode.Tsit5(), p=p).u[0], jnp.float32(0.5), rtol=1e-2)
    assert check.ok and check.gradient.dtype == jnp.float32, check


@jax.custom_jvp
def cube_with_wrong_jvp(x):
    return x**3


cube_with_wrong_jvp.defjvp(lambda x, d: (x[0] ** 3, 2 * x[0] ** 2 * d[0]))


@jax.custom_vjp
def cube_with_wrong_vjp(x):
    return x**3


cube_with_wrong_vjp.defvjp(lambda x: (x**3, x), lambda x, g: (2 * x**2 * g,))


@pytest.mark.parametrize("cube", [cube_with_wrong_jvp, cube_with_wrong_vjp], ids=["jvp", "vjp"])
def test_a_wrong_custom_rule_in_the_field_is_found(cube):
    prob = ode.ODEProblem(lambda t, u, p: -p * cube(u), 1.0, (0.0, 1.0), saveat=[1.0])
    check = ode.check_gradient(squares(prob), 0.5)
    assert not check.ok and off(check) == ["finite differences"]
    assert f"custom rule of {cube.__name__}" in check.verdict


def test_a_wrong_custom_rule_in_the_loss_is_found():
    check = ode.check_gradient(lambda p: cube_with_wrong_jvp(squares(DECAY)(p)), 0.5)
    assert off(check) == ["finite differences"] and "cube_with_wrong_jvp" in check.verdict


def test_modes_that_disagree_are_found():
    """A rule whose tangent is right only forwards: its transpose loses a factor."""

    @jax.custom_jvp
    def twisted(x):
        return x

    def rule(x, d):
        back = jax.custom_derivatives.linear_call(lambda _, d: d[0], lambda _, g: (0.5 * g,), (), (d[0],))
        return x[0], back

    twisted.defjvp(rule)
    check = ode.check_gradient(lambda p: twisted(squares(DECAY)(p)), 0.5)
    assert "forward mode" in off(check) and "Forward and reverse mode disagree" in check.verdict, check


def test_a_switch_that_is_not_differentiable_is_found():
    prob = ode.ODEProblem(lambda t, u, p: jnp.where(t < p, 1.0, -u), 0.0, (0.0, 1.0), saveat=[1.0])
    loss = lambda p, **options: ode.solve(prob, ode.Tsit5(), p=p, **options).u[0]
    check = ode.check_gradient(loss, 0.5)
    assert off(check) == ["finite differences"]
    assert "a switch in f (lt)" in check.verdict and "discontinuities=" in check.verdict
    declared = ode.check_gradient(lambda p: loss(p, discontinuities=lambda p: p[None]), 0.5)
    assert declared.ok, declared
    # u(1) = p exp(p - 1)
    assert float(declared.gradient) == pytest.approx(1.5 * np.exp(-0.5), rel=1e-6)


def test_tolerances_that_are_too_loose_are_found():
    check = ode.check_gradient(squares(reltol=1e-2, abstol=1e-2), P)
    assert "tolerances / 100" in off(check) and "tolerances are too loose" in check.verdict


def test_a_stopped_gradient_is_found():
    check = ode.check_gradient(lambda p: squares(DECAY)(p * jax.lax.stop_gradient(p)), 0.5)
    assert off(check) == ["finite differences"] and "stop_gradient" in check.verdict


def test_a_solve_that_fails_is_said_to():
    prob = ode.ODEProblem(lambda t, u, p: p * u**2, 1.0, (0.0, 2.0), saveat=[2.0])
    check = ode.check_gradient(squares(prob), 1.0)
    assert not check.ok and check.verdict.startswith("There is no gradient") and repr(check)


@pytest.mark.parametrize(
    ("loss", "x", "kind", "message"),
    [
        (lambda p: ode.solve(LV, p=p).u[0], P, TypeError, r"one real scalar, this one returns float64\[2\]"),
        (lambda p: jnp.sum(p), P, ValueError, "calls no solve"),
        (squares(), {"n": 1, "x": jnp.zeros(0)}, ValueError, "no floating or complex entries"),
        (squares(), None, ValueError, "no floating or complex entries"),
    ],
)
def test_what_cannot_be_checked(loss, x, kind, message):
    with pytest.raises(kind, match=message):
        ode.check_gradient(loss, x)


# ---------------------------------------------------------------- diagnose


def test_stiff_problems_are_told_from_others():
    diagnosis = ode.solve(LV, ode.Tsit5()).diagnose()
    assert not diagnosis.stiff and diagnosis.suggestion == "Tsit5() suits the problem"
    assert diagnosis.rejected < 0.1 and np.all(diagnosis.stiffness < 1)

    rates = jnp.array([1000.0, 1.0])
    stiff = ode.ODEProblem(lambda t, u, p: {"fast": -p[0] * (u["fast"] - u["slow"]), "slow": -p[1] * u["slow"]},
                           {"fast": 1.0, "slow": 1.0}, (0.0, 2.0), rates, saveat=[2.0])  # fmt: skip
    explicit = ode.solve(stiff, ode.Tsit5()).diagnose()
    assert explicit.stiff and explicit.suggestion.startswith("Rodas5P()")
    np.testing.assert_allclose(explicit.ratio, 1000.0, rtol=1e-9)
    assert 2 < np.median(explicit.stiffness) < 4.5  # the stability limit
    implicit = ode.solve(stiff, ode.Rodas5P()).diagnose()
    assert "Rodas5P() suits" in implicit.suggestion
    assert "not stiff" in ode.solve(LV, ode.Rodas5P()).diagnose().suggestion
    assert "stability" in repr(explicit) and explicit._repr_html_().startswith("<table>")


def test_the_hardest_component_is_named():
    prob = ode.ODEProblem(
        lambda t, u, p: {"calm": -u["calm"], "wild": 40 * jnp.cos(40 * t) * jnp.ones(2)},
        {"calm": 1.0, "wild": jnp.zeros(2)}, (0.0, 1.0), saveat=[0.97])  # fmt: skip
    diagnosis = ode.solve(prob, ode.Tsit5(), abstol=1e-6).diagnose()
    assert diagnosis.worst.startswith("u['wild']") and np.isfinite(diagnosis.worst_error)


def test_diagnoses_of_odd_solutions():
    algebraic = lambda t, u, p: robertson(t, u, p).at[2].set(jnp.sum(u) - 1)
    prob = ode.ODEProblem(algebraic, [1.0, 0.0, 0.0], (0.0, 10.0), [0.04, 3e7, 1e4], mass_matrix=[1.0, 1.0, 0.0])
    assert "algebraic" in ode.solve(prob, saveat=[10.0]).diagnose().suggestion
    n = 300
    heat = ode.ODEProblem(lambda t, u, p: p * (jnp.roll(u, 1) + jnp.roll(u, -1) - 2 * u), jnp.sin(jnp.arange(1.0 * n)),
                          (0.0, 0.1), 1e3, saveat=[0.1])  # fmt: skip
    large = ode.solve(heat, ode.Tsit5()).diagnose()
    assert large.suggestion.startswith("FBDF()") and np.all(np.isnan(large.ratio))
    stop = ode.ContinuousCallback(lambda t, u, p: u - 0.7, None, terminate=True)
    for sol in (
        ode.solve(DECAY, ode.Tsit5(), callback=stop),
        ode.solve(DECAY, ode.Tsit5(), tspan=(1.0, 0.0), saveat=[]),
        ode.solve(DECAY, ode.Tsit5(), tspan=(1.0, 1.0), saveat=[1.0]),
        ode.solve(DECAY, ode.Tsit5(), p=float("nan"), throw=False),
        ode.solve(ode.remake(DECAY, u0=1 + 1j), ode.Tsit5()),
    ):
        assert repr(sol.diagnose())
    with pytest.raises(TypeError, match="inside a transformation"):
        jax.jit(lambda p: ode.solve(DECAY, ode.Tsit5(), p=p).diagnose().rejected)(1.0)


# ---------------------------------------------------------------- sensitivity_report


def sir(t, u, p):
    s, i, _ = u
    return jnp.stack([-p[0] * s * i, p[0] * s * i - p[1] * i, p[1] * i])


def robertson(t, u, p):
    a, b, c = p[0] * u[0], p[1] * u[1] ** 2, p[2] * u[1] * u[2]
    return jnp.stack([c - a, a - c - b, b])


def van_der_pol(t, u, p):
    return jnp.stack([u[1], p[0] * (1 - u[0] ** 2) * u[1] - u[0]])


def lorenz(t, u, p):
    return jnp.stack([p[0] * (u[1] - u[0]), u[0] * (p[1] - u[2]) - u[1], u[0] * u[1] - p[2] * u[2]])


def brusselator(t, u, p):
    a, b = u[:4], u[4:]
    lap = lambda x: jnp.roll(x, 1) + jnp.roll(x, -1) - 2 * x
    return jnp.concatenate([p[0] + a**2 * b - (p[1] + 1) * a + lap(a) / 50, p[1] * a - a**2 * b + lap(b) / 50])


PROBLEMS = {
    "linear": (lambda t, u, p: jnp.array([[-1.0, 2.0], [-2.0, -1.0]]) @ u * p[0], [1.0, 0.0], 2.0, [1.0], None),
    "lotka-volterra": (lotka_volterra, [1.0, 1.0], 3.0, [1.5, 1.0, 3.0, 1.0], None),
    "van der pol": (van_der_pol, [2.0, 0.0], 4.0, [2.0], None),
    "lorenz": (lorenz, [1.0, 0.0, 0.0], 2.0, [10.0, 28.0, 8 / 3], None),
    "pendulum": (lambda t, u, p: jnp.stack([u[1], -p[0] * jnp.sin(u[0])]), [1.5, 0.0], 5.0, [9.81], None),
    "sir": (sir, [0.99, 0.01, 0.0], 20.0, [0.6, 0.2], None),
    "robertson": (robertson, [1.0, 0.0, 0.0], 40.0, [0.04, 3e7, 1e4], ode.Rodas5P()),
    "brusselator": (brusselator, [1.0, 1.2, 0.8, 1.1, 3.0, 3.1, 2.9, 3.0], 5.0, [1.0, 3.0], None),
    "forced": (lambda t, u, p: -p[0] * u + jnp.sin(p[1] * t), [0.5], 6.0, [0.7, 2.0], None),
    "oscillator": (lambda t, u, p: 1j * p[0] * u - 0.1 * u * jnp.abs(u) ** 2, [1 + 0j], 5.0, [2.0], None),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_estimated_error_is_within_a_factor_ten_of_the_true_one(name):
    f, u0, end, p, alg = PROBLEMS[name]
    u0 = jnp.asarray(u0)
    prob = ode.ODEProblem(f, u0, (0.0, end), jnp.asarray(p), saveat=np.linspace(0.3 * end, end, 3))
    weights = jnp.linspace(1.0, 2.0, u0.size)
    loss = lambda sol: jnp.sum(weights * jnp.abs(sol.u) ** 2)
    alg = alg or ode.Tsit5()
    tight = {"reltol": 1e-11, "abstol": 1e-13}
    if name == "robertson":  # whose parameters differ by nine orders: those of the gradient do too
        tight = {"reltol": 1e-11, "abstol": 1e-15}
    at = lambda x: loss(ode.solve(prob, alg if alg != ode.Tsit5() else ode.Vern9(), **x, **tight))
    want = jax.grad(at)({"u0": prob.u0, "p": prob.p})
    others = {"lotka-volterra": ode.GaussAdjoint(), "robertson": ode.GaussAdjoint(), "sir": ode.InterpolatingAdjoint()}
    for sensealg in [None, others[name]] if name in others else [None]:
        report = ode.sensitivity_report(prob, alg, loss=loss, sensealg=sensealg)
        gap = jax.tree.map(lambda a, b: jnp.sum(jnp.abs(a - b) ** 2), report.gradient, want)
        true = float(jnp.sqrt(sum(jax.tree.leaves(gap))))
        assert true / 10 <= report.error <= 10 * true, (sensealg, report.error, true)
        assert report.forward["retcode"] is report.backward["retcode"] is ode.ReturnCode.Success
        assert report.forward["naccept"] > 0 and (sensealg is None or report.backward["nf"] > 0)
        assert "drift" in repr(report)


def test_the_invariant_is_that_of_the_exact_flow():
    """u' = -p u, loss u(1)^2: <lam(t), S(t) v> = 2 exp(-2 p) v in u0, -2 exp(-2 p) v in p."""
    report = ode.sensitivity_report(DECAY, ode.Tsit5(), loss=lambda sol: sol.u[-1] ** 2, reltol=1e-9, abstol=1e-12)
    want = {"p": -2 * np.exp(-1.0), "u0": 2 * np.exp(-1.0)}
    np.testing.assert_allclose(np.sort(report.end), np.sort(list(want.values())), rtol=1e-9)
    np.testing.assert_allclose(np.sort(report.start), np.sort(list(want.values())), rtol=1e-7)


def test_random_directions_where_there_are_many():
    u0, p = jnp.linspace(1, 2, 30), jnp.linspace(0.1, 2, 30)
    prob = ode.ODEProblem(lambda t, u, p: -p * u, u0, (0.0, 1.0), p, saveat=[1.0])
    report = ode.sensitivity_report(prob, ode.Tsit5(), loss=lambda sol: jnp.sum(sol.u), reltol=1e-3, abstol=1e-3)
    assert report.start.shape == (8,)
    at = np.exp(-prob.p)
    true = np.sqrt(np.sum((report.gradient["u0"] - at) ** 2) + np.sum((report.gradient["p"] + prob.u0 * at) ** 2))
    assert true / 10 <= report.error <= 10 * true


def test_a_failed_backward_solve_is_reported():
    options = {"sensealg": ode.InterpolatingAdjoint(max_steps=3), "loss": lambda sol: jnp.sum(sol.u**2)}
    report = ode.sensitivity_report(LV, ode.Tsit5(), **options)
    assert report.backward["retcode"] is ode.ReturnCode.MaxSteps and np.isnan(report.error)
    with pytest.raises(TypeError, match="one real scalar"):
        ode.sensitivity_report(LV, ode.Tsit5(), loss=lambda sol: sol.u)
