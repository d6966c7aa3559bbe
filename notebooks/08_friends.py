# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # With other libraries
#
# `solve` is a JAX function with derivatives of every order in both modes, so the libraries that optimise, sample or
# learn with JAX functions take it as it is. This notebook fits one real data set with SciPy, optimistix, optax and JAX's
# own optimiser, samples its posterior with numpyro and blackjax, compares that with references that were computed
# without odesens, and trains a network of equinox as a field.
#
# `pip install 'odesens[friends]'` installs optax, optimistix, numpyro and blackjax; equinox and SciPy are there anyway.

# %%
import json
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # of bars that are not shown here

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import optimistix as optx
import scipy.optimize
from jax.scipy.stats import norm
from numpyro.diagnostics import effective_sample_size

import odesens as ode
from odesens.__main__ import HARE, LYNX, YEARS

jax.config.update("jax_enable_x64", True)
np.set_printoptions(precision=5, suppress=True)
plt.rcParams["figure.constrained_layout.use"] = True

# %% [markdown]
# ## The data and the model
#
# Pelts of hares and lynxes that the Hudson's Bay Company bought from 1900 to 1920, in thousands, and the equations of
# Lotka and Volterra. Populations span a factor of ten and stay positive, so both the equations and the residuals are
# written for logarithms.


# %%
def predator_prey(t, u, p):
    hares, lynxes = jnp.exp(u)
    return jnp.stack([p[0] - p[1] * lynxes, -p[2] + p[3] * hares])


log_pelts = np.log(np.stack([HARE, LYNX], axis=1))
prob = ode.ODEProblem(predator_prey, np.zeros(2), (1900.0, 1920.0), np.ones(4), saveat=YEARS, throw=False)
start = np.log([0.5, 0.02, 0.9, 0.03, 30.0, 4.0])


def residuals(theta, data=log_pelts):
    """theta: logarithms of four rates and two initial populations."""
    sol = ode.solve(prob, ode.Tsit5(), u0=theta[4:], p=jnp.exp(theta[:4]))
    return (sol.u - data).ravel()


def loss(theta):
    return 0.5 * jnp.sum(residuals(theta) ** 2)


# %% [markdown]
# An eager solve that fails raises an error. Optimisers and samplers try values at which a solve may well fail, and
# prefer a NaN that they can step back from: hence `throw=False`. (Under `jit` nothing can raise anyway.)
#
# ## SciPy
#
# `scipy.optimize` takes compiled JAX functions: a function that returns value and gradient with `jac=True`, or residuals
# and their Jacobian. In single precision, where `jax_enable_x64` is not set, add the line
# `lambda x: [np.asarray(y, float) for y in value_and_grad(x)]`.

# %%
found = scipy.optimize.least_squares(jax.jit(residuals), start, jac=jax.jit(jax.jacfwd(residuals)))
print(f"least_squares: {found.nfev} residuals, {found.njev} Jacobians,    exp(theta) = {np.exp(found.x)}")
found = scipy.optimize.minimize(jax.jit(jax.value_and_grad(loss)), start, jac=True, method="BFGS")
print(f"minimize, BFGS: {found.nfev} values and gradients,   exp(theta) = {np.exp(found.x)}")

# %% [markdown]
# ## JAX's own BFGS
#
# It is itself a JAX function, so it may be compiled, or mapped over many starts. Of sixteen starts some end elsewhere:
# the misfit of an oscillation has many minima, which no optimiser that follows gradients can see from a distance.

# %%
from jax.scipy.optimize import minimize  # noqa: E402

starts = start + 0.4 * jax.random.normal(jax.random.key(0), (16, 6))
found = jax.jit(jax.vmap(lambda x: minimize(loss, x, method="BFGS", tol=1e-6)))(starts)
print("minima found:", np.sort(found.fun))

# %% [markdown]
# ## optimistix
#
# Levenberg-Marquardt's method takes the Jacobian by forward mode, through the solve, and linearises it. What it returns
# is differentiable by the implicit function theorem: the derivative of an estimate with respect to each datum says which
# years it rests on. That is a second derivative of the solve, transposed.

# %%
solver = optx.LevenbergMarquardt(rtol=1e-8, atol=1e-8)


def fit(data):
    return optx.least_squares(residuals, solver, jnp.asarray(start), args=data).value


@jax.jit
def birth_of_hares(data):
    theta = fit(data)
    return theta[0], theta


(_, theta), influence = jax.value_and_grad(birth_of_hares, has_aux=True)(jnp.asarray(log_pelts))
print("exp(theta) =", np.exp(theta))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
fine = np.linspace(1900, 1920, 401)
curves = np.exp(ode.solve(prob, ode.Tsit5(), u0=theta[4:], p=jnp.exp(theta[:4]), saveat=fine).u)
for i, (name, colour) in enumerate((("hares", "tab:blue"), ("lynxes", "tab:red"))):
    left.plot(fine, curves[:, i], color=colour, label=name)
    left.plot(YEARS, np.exp(log_pelts[:, i]), "o", color=colour, markersize=4)
    right.bar(YEARS + 0.4 * i - 0.2, influence[:, i], 0.4, color=colour, label=name)
left.set(xlabel="year", ylabel="pelts, thousands", title="least squares")
right.set(xlabel="year", title="d log(birth rate of hares) / d log(datum)")
right.axhline(0, color="black", linewidth=0.8)
for axes in (left, right):
    axes.set_xticks(range(1900, 1921, 5))
    axes.legend()
plt.show()

# %% [markdown]
# ## optax
#
# L-BFGS with its line search, all of it one compiled loop. Adam and the other rules of stochastic optimisation, which a
# network further below uses, are called in the same way, without the line search's arguments.

# %%
optimiser = optax.lbfgs()
value_and_grad = optax.value_and_grad_from_state(loss)


@jax.jit
def minimise(x):
    def step(carry, _):
        x, state = carry
        value, gradient = value_and_grad(x, state=state)
        updates, state = optimiser.update(gradient, state, x, value=value, grad=gradient, value_fn=loss)
        return (optax.apply_updates(x, updates), state), value

    return jax.lax.scan(step, (x, optimiser.init(x)), length=30)


(x, _), values = minimise(jnp.asarray(start))
print("loss after 0, 10, 20, 29 steps:", values[jnp.array([0, 10, 20, 29])])
print(f"largest difference from optimistix: {np.abs(x - theta).max():.1e}")

# %% [markdown]
# ## numpyro: the posterior
#
# Model and priors are those of Carpenter's case study (*Predator-Prey Population Dynamics: the Lotka-Volterra model in
# Stan*, 2018): log-normal errors with a spread for each species.


# %%
def model():
    mean, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    rates = numpyro.sample("rates", dist.TruncatedNormal(mean, scale, low=0.0))
    first = numpyro.sample("first", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]))
    spread = numpyro.sample("spread", dist.LogNormal(-1.0, 1.0).expand([2]))
    log_population = ode.solve(prob, ode.Tsit5(), u0=jnp.log(first), p=rates).u
    numpyro.sample("pelts", dist.LogNormal(log_population, spread), obs=np.exp(log_pelts))


at_fit = {"rates": jnp.exp(theta[:4]), "first": jnp.exp(theta[4:]), "spread": jnp.array([0.25, 0.25])}
kernel = numpyro.infer.NUTS(model, dense_mass=True, init_strategy=numpyro.infer.init_to_value(values=at_fit))
mcmc = numpyro.infer.MCMC(
    kernel, num_warmup=300, num_samples=500, num_chains=4, chain_method="vectorized", progress_bar=False
)
mcmc.run(jax.random.key(0), extra_fields=("diverging", "num_steps"))
extra = mcmc.get_extra_fields()
print(f"{int(extra['diverging'].sum())} divergences, {extra['num_steps'].mean():.1f} gradients for each draw")
draws = mcmc.get_samples(group_by_chain=True)
by_numpyro = np.concatenate([draws[name] for name in ("rates", "first", "spread")], axis=-1)

# %% [markdown]
# Three things to know, with any sampler:
#
# - Chains start at the fit. From random values of the prior some end in one of those other minima, adapt their step size
#   there, and then report divergences that come from the posterior, not from the solver.
# - numpyro calls the model once eagerly, with values from the prior. Without `throw=False` a solve that fails there would
#   end the run.
# - A solve that fails gives NaN for the density, which samplers treat as a density of zero: the step is rejected, and
#   counted as a divergence.
#
# ## blackjax: twenty chains without warm-up
#
# blackjax takes a log density and, for NUTS, a step size and a mass matrix. Both can be adapted
# (`blackjax.window_adaptation`); here the mass matrix is the Hessian at the mode, which costs one line. The chains run
# side by side under `vmap`, on logarithms of all eight parameters.


# %%
def log_density(x):
    rates, first, spread = jnp.exp(x[:4]), x[4:6], x[6:]
    mean, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    prior = norm.logpdf(rates, mean, scale).sum() + x[:4].sum()  # of the logarithms: times d rates / d x
    prior += norm.logpdf(first, jnp.log(10.0), 1.0).sum() + norm.logpdf(spread, -1.0, 1.0).sum()
    log_population = ode.solve(prob, ode.Tsit5(), u0=first, p=rates).u
    return prior + norm.logpdf(log_pelts, log_population, jnp.exp(spread)).sum()


mode = scipy.optimize.minimize(
    jax.jit(jax.value_and_grad(lambda x: -log_density(x))), np.append(theta, [-1.4, -1.4]), jac=True
).x
covariance = jnp.linalg.inv(-jax.jit(jax.hessian(log_density))(mode))
nuts = blackjax.nuts(log_density, step_size=0.5, inverse_mass_matrix=covariance)


@jax.jit
@jax.vmap
def chain(key):
    first, key = jax.random.split(key)
    state = nuts.init(jax.random.multivariate_normal(first, mode, covariance))

    def step(state, key):
        state, info = nuts.step(key, state)
        return state, (state.position, info.is_divergent)

    return jax.lax.scan(step, state, jax.random.split(key, 250))[1]


draws, divergent = chain(jax.random.split(jax.random.key(1), 20))
by_blackjax = np.exp(draws[:, 50:])
print(f"{int(divergent.sum())} divergences in {divergent.size} draws")

# %% [markdown]
# ### Are they right?
#
# Two references. One is importance sampling with SciPy's `DOP853` at tolerances of 1e-10, 350 000 effective draws
# (`benchmarks/lynx_hare_posterior.py`); the other are the 10 000 draws by Stan in the
# [posteriordb](https://github.com/stan-dev/posteriordb) package (posterior `hudson_lynx_hare-lotka_volterra`). Deviations
# are in units of their Monte Carlo standard errors, so most should be within 2.

# %%
with open("benchmarks/results/lynx_hare_posterior.json") as file:
    reference = json.load(file)
stan = [0.54686, 0.027747, 0.80010, 0.024086, 34.0352, 5.93590, 0.24806, 0.25102]
stan_error = [6.3e-4, 4.1e-5, 8.8e-4, 3.5e-5, 2.9e-2, 5.3e-3, 4.4e-4, 4.4e-4]


def compared(draws):
    error = draws.std((0, 1)) / np.sqrt(effective_sample_size(draws))
    return draws.mean((0, 1)), (draws.mean((0, 1)) - reference["mean"]) / np.hypot(error, reference["mean_error"])


columns = (reference["mean"], *compared(by_numpyro), *compared(by_blackjax), stan)
deviation = (np.array(stan) - reference["mean"]) / np.hypot(stan_error, reference["mean_error"])
print(f"{'':16s}     SciPy   numpyro (dev.)  blackjax (dev.)      Stan (dev.)")
for name, *row in zip(reference["names"], *columns, deviation, strict=True):
    print("{:16s} {:9.5f} {:9.5f} ({:+.1f})  {:9.5f} ({:+.1f})  {:9.5f} ({:+.1f})".format(name, *row))

# %%
pick = by_blackjax.reshape(-1, 8)[:: by_blackjax.size // 8 // 400]
ensemble = ode.EnsembleProblem(prob, u0=np.log(pick[:, 4:6]), p=pick[:, :4])
log_population = ode.solve(ensemble, ode.Tsit5(), saveat=fine).u
log_counts = log_population + (pick[:, 6:] * jax.random.normal(jax.random.key(2), (len(pick), 2)))[:, None]
figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), width_ratios=[2, 2, 1.6])
for i, (name, colour, top) in enumerate((("hares", "tab:blue", 160), ("lynxes", "tab:red", 120))):
    for log_band, alpha, label in ((log_counts, 0.15, "90 % of pelts"), (log_population, 0.4, "90 % of populations")):
        low, high = np.exp(np.quantile(log_band[:, :, i], [0.05, 0.95], axis=0))
        axes[i].fill_between(fine, low, high, color=colour, alpha=alpha, label=label, linewidth=0)
    axes[i].plot(YEARS, np.exp(log_pelts[:, i]), "o", color=colour, markersize=4, label="data")
    axes[i].set(xlabel="year", ylabel="thousands", title=name, ylim=(0, top))
    axes[i].set_xticks(range(1900, 1921, 5))
    axes[i].legend(loc="upper center", ncols=2, fontsize="small")
axes[2].plot(*by_blackjax[..., [0, 2]].reshape(-1, 2)[::5].T, ".", markersize=2, color="tab:green")
axes[2].axvline(reference["mean"][0], color="black", linewidth=0.8)
axes[2].axhline(reference["mean"][2], color="black", linewidth=0.8)
axes[2].set(xlabel="birth rate of hares, 1/year", ylabel="death rate of lynxes, 1/year", title="draws, reference means")
plt.show()

# %% [markdown]
# ## equinox: a network as a field
#
# A module is a pytree, so it may be p, or f itself; `eqx.filter_grad` and `eqx.filter_jit` see to its parts that are no
# numbers. Here a network learns a spiral from sixty noisy states. Each state starts a short solve to the next five, all
# under `vmap` (multiple shooting): short pieces have a smooth loss, long ones do not.


# %%
class Field(eqx.Module):
    layers: eqx.nn.MLP

    def __init__(self, key):
        self.layers = eqx.nn.MLP(2, 2, 32, 1, activation=jnp.tanh, key=key)

    def __call__(self, t, u, p):
        return self.layers(u)


def spiral(t, u, p):
    return jnp.array([[-0.1, 2.0], [-2.0, -0.1]]) @ u**3


times = np.linspace(0, 12, 60)
truth = ode.solve(ode.ODEProblem(spiral, [2.0, 0.0], (0.0, 12.0)), ode.Tsit5(), saveat=times).u
states = truth + 0.02 * jax.random.normal(jax.random.key(3), truth.shape)
window = np.arange(55)[:, None] + np.arange(6)
dt = times[1]


def misfit(field):
    piece = ode.ODEProblem(field, np.zeros(2), (0.0, 5 * dt), saveat=dt * np.arange(6), reltol=1e-4, abstol=1e-4)
    u = jax.vmap(lambda u0: ode.solve(piece, ode.Tsit5(), u0=u0).u)(states[window[:, 0]])
    return jnp.mean((u - states[window]) ** 2)


optimiser = optax.adam(optax.cosine_decay_schedule(0.03, 1500))


@eqx.filter_jit
def train(field):
    weights, rest = eqx.partition(field, eqx.is_inexact_array)

    def step(carry, _):
        weights, state = carry
        value, gradient = eqx.filter_value_and_grad(misfit)(eqx.combine(weights, rest))
        updates, state = optimiser.update(gradient, state)
        return (eqx.apply_updates(weights, updates), state), value

    (weights, _), values = jax.lax.scan(step, (weights, optimiser.init(weights)), length=1500)
    return eqx.combine(weights, rest), values


field, values = train(Field(jax.random.key(4)))
print(f"mean square misfit {values[0]:.2f} -> {values[-1]:.5f}; of noise alone, at both ends: {2 * 0.02**2:.5f}")

# %%
learned = ode.solve(ode.ODEProblem(field, [2.0, 0.0], (0.0, 12.0)), ode.Tsit5(), saveat=np.linspace(0, 12, 600)).u
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), width_ratios=[1, 1.6])
left.semilogy(values)
left.set(xlabel="step of Adam", ylabel="misfit")
right.plot(*states.T, ".", color="black", label="data")
right.plot(*learned.T, color="tab:green", label="one solve of the learned field")
right.set(xlabel="$u_0$", ylabel="$u_1$", aspect="equal")
right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()
