"""Other libraries around a solve: optimisers, samplers, modules; each comes to an answer found without odesens.

Fits are of the lynx and hare pelts, by least squares of logarithms, against SciPy's own solver and optimiser.
Posteriors are those of Carpenter's model of the same pelts (see benchmarks/lynx_hare_posterior.py), against two
references: that script's, by SciPy, and draws that others have made with Stan.
"""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.scipy.stats import norm
from scipy.integrate import quad, solve_ivp

import odesens as ode
from odesens.__main__ import HARE, LYNX, YEARS, predator_prey

YEARS = YEARS - YEARS[0]
LOG_PELTS = np.log(np.stack([HARE, LYNX], axis=1))
START = np.log([0.5, 0.02, 0.9, 0.03, 30.0, 4.0])
PROBLEM = ode.ODEProblem(predator_prey, np.zeros(2), (0.0, 20.0), np.ones(4), saveat=YEARS, throw=False)
MEAN, SCALE = [1.0, 0.05, 1.0, 0.05], [0.5, 0.05, 0.5, 0.05]  # of the prior of the rates
# The posteriordb package, posterior "hudson_lynx_hare-lotka_volterra": means of 10 000 draws by Stan 2.19, their Monte
# Carlo errors, and means of squares. Its model and data are Carpenter's.
STAN_MEAN = [0.546864499783931, 0.0277472877678081, 0.800095360233122, 0.0240859152534545]
STAN_MEAN += [34.0352224770469, 5.93589713368062, 0.24805686320252, 0.251016914583618]
STAN_ERROR = [0.00062626907415417, 4.11604266143508e-05, 0.000884603225898987, 3.50047668143892e-05]
STAN_ERROR += [0.0293082761729642, 0.00533872103038814, 0.000439337727695207, 0.000439525598676463]
STAN_SQUARE = [0.30303629, 0.0007871719, 0.6481388153, 0.0005925775, 1166.9038171313, 35.5163321009]
STAN_SQUARE += [0.0634036795, 0.0649094189]


# ---------------------------------------------------------------- least squares


def residuals(theta, data=LOG_PELTS):
    sol = ode.solve(PROBLEM, ode.Tsit5(), u0=theta[4:], p=jnp.exp(theta[:4]), reltol=1e-8, abstol=1e-8)
    return (sol.u - data).ravel()


def loss(theta):
    return 0.5 * jnp.sum(residuals(theta) ** 2)


@pytest.fixture(scope="module")
def fitted():
    """The parameters by SciPy alone."""

    def by_scipy(theta):
        p = np.exp(theta[:4])
        f = lambda t, u: [p[0] - p[1] * np.exp(u[1]), -p[2] + p[3] * np.exp(u[0])]
        u = solve_ivp(f, (0, 20), theta[4:], method="DOP853", t_eval=YEARS, rtol=1e-11, atol=1e-11).y.T
        return (u - LOG_PELTS).ravel()

    return scipy.optimize.least_squares(by_scipy, START, jac="3-point", xtol=1e-12, ftol=1e-12, gtol=1e-12).x


def test_scipy_takes_gradients_and_jacobians(fitted):
    found = scipy.optimize.least_squares(jax.jit(residuals), START, jac=jax.jit(jax.jacfwd(residuals)), gtol=1e-10)
    np.testing.assert_allclose(found.x, fitted, atol=1e-5)
    value_and_grad = jax.jit(jax.value_and_grad(loss))
    for method in ("BFGS", "L-BFGS-B"):
        found = scipy.optimize.minimize(value_and_grad, START, jac=True, method=method, tol=1e-11)
        np.testing.assert_allclose(found.x, fitted, atol=1e-5, err_msg=method)


def test_jax_scipy(fitted):
    from jax.scipy.optimize import minimize

    found = jax.jit(lambda start: minimize(loss, start, method="BFGS", tol=1e-6))(jnp.asarray(START))
    np.testing.assert_allclose(found.x, fitted, atol=1e-5)


def test_optax(fitted):
    optax = pytest.importorskip("optax")
    optimiser = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(carry, _):
        theta, state = carry
        value, gradient = value_and_grad(theta, state=state)
        updates, state = optimiser.update(gradient, state, theta, value=value, grad=gradient, value_fn=loss)
        return (optax.apply_updates(theta, updates), state), value

    @jax.jit
    def run(theta):
        return jax.lax.scan(step, (theta, optimiser.init(theta)), length=40)[0][0]

    np.testing.assert_allclose(run(jnp.asarray(START)), fitted, atol=1e-5)


@pytest.mark.parametrize("solver", ["LevenbergMarquardt", "GaussNewton"])
def test_optimistix(solver, fitted):
    optx = pytest.importorskip("optimistix")
    solver = getattr(optx, solver)(rtol=1e-8, atol=1e-8)
    found = optx.least_squares(lambda theta, args: residuals(theta), solver, jnp.asarray(START))
    np.testing.assert_allclose(found.value, fitted, atol=1e-5)


def test_a_fit_by_optimistix_is_differentiable():
    """One datum y = exp(-k t) determines k = -log(y) / t, of which the derivative is -1/(y t)."""
    optx = pytest.importorskip("optimistix")
    prob = ode.ODEProblem(lambda t, u, k: -k * u, 1.0, (0.0, 2.0), saveat=[2.0], reltol=1e-11, abstol=1e-12)

    def rate(y):
        f = lambda k, y: ode.solve(prob, ode.Tsit5(), p=k).u - y
        return optx.least_squares(f, optx.GaussNewton(rtol=1e-10, atol=1e-10), jnp.array(0.4), args=y).value

    y = 0.3
    value, derivative = jax.jit(jax.value_and_grad(rate))(y)
    np.testing.assert_allclose(value, -np.log(y) / 2, rtol=1e-9)
    np.testing.assert_allclose(derivative, -1 / (2 * y), rtol=1e-8)


# ---------------------------------------------------------------- posteriors


def log_density(x):
    """Of the logarithms x of the rates, the initial numbers and the spreads."""
    rates = jnp.exp(x[:4])
    prior = norm.logpdf(rates, jnp.array(MEAN), jnp.array(SCALE)).sum() + x[:4].sum()
    prior += norm.logpdf(x[4:6], jnp.log(10.0), 1.0).sum() + norm.logpdf(x[6:], -1.0, 1.0).sum()
    u = ode.solve(PROBLEM, ode.Tsit5(), u0=x[4:6], p=rates).u
    return prior + norm.logpdf(LOG_PELTS, u, jnp.exp(x[6:])).sum()


def check_posterior(draws):
    """Draws (chains, n, 8) against both references, within five standard errors."""
    from numpyro.diagnostics import effective_sample_size, gelman_rubin

    path = Path(__file__).parent.parent / "benchmarks" / "results" / "lynx_hare_posterior.json"
    reference = json.loads(path.read_text())
    draws = np.asarray(draws)
    assert np.all(gelman_rubin(draws) < 1.02)
    for mean, error, square in (
        (reference["mean"], reference["mean_error"], np.square(reference["mean"]) + np.square(reference["sd"])),
        (STAN_MEAN, STAN_ERROR, STAN_SQUARE),
    ):
        mean, error, sd = np.array(mean), np.array(error), np.sqrt(square - np.square(mean))
        own = draws.std((0, 1)) / np.sqrt(effective_sample_size(draws))
        assert np.all(own < 0.05 * sd)  # so that the next line says something
        assert np.all(np.abs(draws.mean((0, 1)) - mean) < 5 * np.hypot(own, error))
        spread = ((draws - mean) / sd) ** 2  # of mean 1
        own = spread.std((0, 1)) / np.sqrt(effective_sample_size(spread))
        assert np.all(np.abs(spread.mean((0, 1)) - 1) < 5 * np.hypot(own, 0.02))


def test_numpyro_finds_the_posterior_of_the_pelts():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def model():
        rates = numpyro.sample("rates", dist.TruncatedNormal(jnp.array(MEAN), jnp.array(SCALE), low=0.0))
        first = numpyro.sample("first", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]))
        spread = numpyro.sample("spread", dist.LogNormal(-1.0, 1.0).expand([2]))
        u = ode.solve(PROBLEM, ode.Tsit5(), u0=jnp.log(first), p=rates).u
        numpyro.sample("pelts", dist.LogNormal(u, spread), obs=np.exp(LOG_PELTS))

    values = np.split(np.array(STAN_MEAN), [4, 6])
    start = numpyro.infer.init_to_value(values=dict(zip(("rates", "first", "spread"), values, strict=True)))
    kernel = numpyro.infer.NUTS(model, dense_mass=True, init_strategy=start)
    options = dict(num_warmup=200, num_samples=300, num_chains=4, chain_method="vectorized", progress_bar=False)
    run = numpyro.infer.MCMC(kernel, **options)
    run.run(jax.random.key(0), extra_fields=("diverging",))
    assert not np.any(run.get_extra_fields()["diverging"])
    draws = run.get_samples(group_by_chain=True)
    check_posterior(np.concatenate([draws[name] for name in ("rates", "first", "spread")], axis=-1))


def test_blackjax_finds_the_posterior_of_the_pelts():
    """Twenty chains under vmap, with the inverse of the Hessian at the start as mass matrix: no warm-up."""
    blackjax = pytest.importorskip("blackjax")
    pytest.importorskip("numpyro")
    start = jnp.log(jnp.array(STAN_MEAN))
    covariance = jnp.linalg.inv(-jax.jit(jax.hessian(log_density))(start))
    kernel = blackjax.nuts(log_density, step_size=0.5, inverse_mass_matrix=covariance)

    @jax.jit
    @jax.vmap
    def chain(key):
        first, key = jax.random.split(key)
        state = kernel.init(jax.random.multivariate_normal(first, start, covariance))

        def step(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(step, state, jax.random.split(key, 150))[1]

    draws, divergent = chain(jax.random.split(jax.random.key(1), 20))
    assert not np.any(divergent)
    check_posterior(np.exp(draws[:, 30:]))


def test_solves_that_fail_have_no_probability():
    """u' = u^2 ends at t = 1 / u0: what lies beyond u0 = 1 is cut off, by NaN, from a density that would not vanish."""
    blackjax = pytest.importorskip("blackjax")
    prob = ode.ODEProblem(lambda t, u, p: u**2, 1.0, (0.0, 1.0), saveat=[0.5, 1.0], throw=False)

    def log_density(u0):
        half, end = ode.solve(prob, ode.Tsit5(), u0=u0).u
        return norm.logpdf(u0, 0.9, 0.3) + norm.logpdf(1.6, half, 1.0) + 0.0 * end

    weight = lambda x: norm.pdf(x, 0.9, 0.3) * norm.pdf(1.6, x / (1 - x / 2), 1.0)
    total, mean = quad(weight, -np.inf, 1)[0], quad(lambda x: x * weight(x), -np.inf, 1)[0]
    kernel = blackjax.hmc(log_density, step_size=0.15, inverse_mass_matrix=jnp.ones(1), num_integration_steps=4)

    @jax.jit
    @jax.vmap
    def chain(key):
        def step(state, key):
            state = kernel.step(key, state)[0]
            return state, state.position

        return jax.lax.scan(step, kernel.init(jnp.array(0.5)), jax.random.split(key, 300))[1]

    draws = np.asarray(chain(jax.random.split(jax.random.key(0), 16)))[:, 30:]
    assert np.all(draws < 1) and np.any(draws > 0.98)
    error = draws.mean(1).std(ddof=1) / np.sqrt(16)  # chains are independent
    assert error < 0.015
    assert abs(draws.mean() - mean / total) < 5 * error


# ---------------------------------------------------------------- modules


class Network(eqx.Module):
    """A field with weights, a function, an integer and two static parts."""

    layers: eqx.nn.MLP
    count: int
    scale: float = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(self, seed: int, scale: float = 1.0):
        key = jax.random.key(seed)
        self.layers = eqx.nn.MLP(2, 2, 8, 1, activation=jnp.tanh, key=key)
        self.count, self.scale, self.name = 3, scale, "network"

    def __call__(self, t, u, p=None):
        return self.scale * self.layers(u)

    def by_scipy(self, ts):
        (a, b), (c, d) = ((np.asarray(x.weight), np.asarray(x.bias)) for x in self.layers.layers)
        f = lambda t, u: self.scale * (c @ np.tanh(a @ u + b) + d)
        return solve_ivp(f, (0, 2), [1.0, 0.5], "DOP853", ts, rtol=1e-12, atol=1e-12).y.T


TIMES = np.linspace(0, 2, 5)
NETWORK = ode.ODEProblem(lambda t, u, m: m(t, u), [1.0, 0.5], (0.0, 2.0), saveat=TIMES, reltol=1e-10, abstol=1e-10)


def as_parameters(network):
    return ode.solve(NETWORK, ode.Tsit5(), p=network).u


def as_field(network):
    return ode.solve(ode.remake(NETWORK, f=network), ode.Tsit5()).u


def test_modules_are_fields_and_parameters():
    """Eagerly and by `filter_jit`, whose programs are kept: other weights and static parts give other solutions."""
    compiled = eqx.filter_jit(as_field), eqx.filter_jit(as_parameters)
    for network in (Network(0), Network(1), Network(0, 2.0), Network(0)):
        for how in (as_field, as_parameters, *compiled):
            np.testing.assert_allclose(how(network), network.by_scipy(TIMES), rtol=1e-8, atol=1e-8)


def test_filtered_gradients_of_modules():
    network = Network(0)
    of = lambda how: lambda network: jnp.sum(how(network) ** 2)
    gradient = eqx.filter_grad(of(as_field))(network)
    assert gradient.count is None and gradient.layers.activation is None and gradient.scale == 1.0
    for other in (eqx.filter_grad(of(as_parameters)), eqx.filter_jit(eqx.filter_grad(of(as_field)))):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), gradient, other(network))
    where = lambda network: network.layers.layers[0].weight
    by_scipy = lambda h: np.sum(eqx.tree_at(where, network, where(network).at[0, 1].add(h)).by_scipy(TIMES) ** 2)
    central = (by_scipy(1e-4) - by_scipy(-1e-4)) / 2e-4
    np.testing.assert_allclose(where(gradient)[0, 1], central, rtol=1e-6)
