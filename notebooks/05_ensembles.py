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
# # Ensembles: one model, many trajectories
#
# This notebook is for someone who solves the same equation many times: a parameter scan, a bootstrap, a population of
# patients, draws of a sampler. It scans an oscillator whose slowest trajectory takes a hundred times the steps of its
# quickest, shows the spread of an uncertain model, fits a population by gradients through all of its members, and runs
# a long job that survives being killed.

# %%
import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

import tempfile
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import odesens as ode

jax.config.update("jax_enable_x64", True)
np.set_printoptions(precision=4, suppress=True)
plt.rcParams.update({"figure.constrained_layout.use": True, "figure.dpi": 80})

# %% [markdown]
# ## A scan with a heavy tail
#
# Van der Pol's oscillator becomes the stiffer the larger $\mu$ is, and an explicit method then takes many steps.
# Parameters with a leading axis, one for each trajectory, are all that an ensemble needs.


# %%
def van_der_pol(t, u, mu):
    return jnp.stack([u[1], mu * (1 - u[0] ** 2) * u[1] - u[0]])


prob = ode.ODEProblem(van_der_pol, jnp.array([2.0, 0.0]), (0.0, 20.0), saveat=np.linspace(0, 20, 201))
mu = jnp.exp(jax.random.uniform(jax.random.key(0), (256,), minval=np.log(0.1), maxval=np.log(100.0)))

sol = ode.solve(ode.EnsembleProblem(prob, p=mu), ode.Tsit5())
sol

# %%
steps = sol.stats.naccept + sol.stats.nreject
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3))
left.loglog(mu, steps, ".")
left.set(xlabel="mu", ylabel="steps")
for i in np.argsort(mu)[[0, 128, 255]]:
    right.plot(sol.t, sol.u[i, :, 0], label=f"mu = {mu[i]:.2g}")
right.set(xlabel="t", ylabel="u")
right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# With `jax.vmap` all lanes go on until the slowest has finished: the cost is the largest number of steps times the
# number of trajectories. In an ensemble a lane that has finished takes the next trajectory. The two solve the same
# equations to the same values:

# %%
together = jax.jit(jax.vmap(lambda mu: ode.solve(prob, ode.Tsit5(), p=mu).u))
queued = jax.jit(lambda mu: ode.solve(ode.EnsembleProblem(prob, p=mu), ode.Tsit5()).u)


def seconds(run):
    jax.block_until_ready(run(mu))
    start = time.perf_counter()
    jax.block_until_ready(run(mu))
    return time.perf_counter() - start


print(f"largest number of steps over the mean: {steps.max() / steps.mean():.1f}")
print(f"largest difference of values: {jnp.max(jnp.abs(together(mu) - queued(mu))):.1e}")
print(f"vmap takes {seconds(together) / seconds(queued):.1f} times as long as the ensemble")

# %% [markdown]
# ## How sure is the forecast?
#
# A predator-prey model whose parameters are known to 5 %. `prob_func(prob, i, repeat)` makes trajectory `i`; it is
# traced once with an integer array `i`, from which JAX makes random numbers. `summary()` gives means and quantiles over
# the trajectories at each time.


# %%
def lotka_volterra(t, u, p):
    x, y = u
    return jnp.stack([p[0] * x - p[1] * x * y, p[2] * x * y - p[3] * y])


p = jnp.array([1.5, 1.0, 1.0, 3.0])
model = ode.ODEProblem(lotka_volterra, jnp.array([1.0, 1.0]), (0.0, 10.0), p, saveat=0.1)


def draw(prob, i, repeat):
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(1), i), (4,))
    return ode.remake(prob, p=prob.p * (1 + 0.05 * noise))


sol = ode.solve(ode.EnsembleProblem(model, prob_func=draw), ode.Tsit5(), trajectories=1000)
summary = sol.summary((0.05, 0.5, 0.95))
fig, ax = plt.subplots(figsize=(8, 3))
for j, name in enumerate(["prey", "predators"]):
    ax.fill_between(summary.t, *summary.quantiles[::2, :, j], alpha=0.3)
    ax.plot(summary.t, summary.quantiles[1, :, j], label=name)
ax.set(xlabel="t", ylabel="population")
ax.legend(title="median, 5 to 95 %", loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## Gradients through a population
#
# Fifty patients eliminate a drug at rates that are lognormal in the population; each is measured ten times. The mean
# and the spread of the logarithm of the rate are what all patients share. Their gradient is a sum over all patients,
# and JAX takes it through the ensemble, forwards for the Jacobian of a least-squares fit and twice for the Hessian that
# gives standard errors. Here the deviates of the patients are known, so the fit is of two numbers.

# %%
z = jax.random.normal(jax.random.key(2), (50,))
times = np.linspace(0.5, 5, 10)
dose = ode.ODEProblem(lambda t, u, k: -k * u / (0.5 + u), 2.0, (0.0, 5.0), saveat=times)


def concentrations(theta):
    rates = jnp.exp(theta[0] + theta[1] * z)
    return ode.solve(ode.EnsembleProblem(dose, p=rates), ode.Tsit5()).u


truth = jnp.array([-0.2, 0.3])
data = concentrations(truth) + 0.02 * jax.random.normal(jax.random.key(3), (50, 10))
residual = jax.jit(lambda theta: ((concentrations(theta) - data) / 0.02).ravel())
jacobian = jax.jit(jax.jacfwd(residual))

theta = jnp.array([0.1, 0.1])
for _ in range(8):  # Gauss-Newton
    theta = theta - jnp.linalg.lstsq(jacobian(theta), residual(theta))[0]

loss = lambda theta: jnp.sum(residual(theta) ** 2) / 2
error = jnp.sqrt(jnp.diag(jnp.linalg.inv(jax.hessian(loss)(theta))))
print("truth          ", truth)
print("estimate       ", theta)
print("standard errors", error)
print("gradient there ", jax.grad(loss)(theta))
assert jnp.all(jnp.abs(theta - truth) < 4 * error)

# %% [markdown]
# ## Failure stays where it is
#
# Of these trajectories one has a parameter that is not a number, one runs to infinity. The eager call says so; what was
# reached is in the error, and with `throw=False` in the result. The others are not touched.

# %%
burst = ode.ODEProblem(lambda t, u, c: c * u**2, 1.0, (0.0, 1.0), saveat=0.25)
rates = jnp.array([0.5, jnp.nan, 0.3, 2.0])
try:
    ode.solve(ode.EnsembleProblem(burst, p=rates), ode.Tsit5())
except ode.EnsembleError as error:
    print(error)

# %%
ode.solve(ode.EnsembleProblem(burst, p=rates), ode.Tsit5(), throw=False).u

# %% [markdown]
# ## Long jobs, several devices
#
# A reduction keeps only what is asked for, here the sum of squares at each time, so that memory is that of one batch.
# Finished batches are written to a folder. Here the job is stopped by an error after its second batch, and goes on from
# there. `EnsembleSharded` divides each batch over all devices: two of this CPU, or those of all processes after
# `jax.distributed.initialize()`. The result is the same.

# %%
square = lambda u, batch, index: u + jnp.sum(batch**2, axis=0)
ensemble = ode.EnsembleProblem(model, draw, reduction=square, u_init=jnp.zeros((101, 2)))
options = {"trajectories": 1000, "batch_size": 250}


def stop(done, total):
    print(f"{done} of {total}")
    if done == 500:
        raise KeyboardInterrupt


with tempfile.TemporaryDirectory() as folder:
    try:
        ode.solve(ensemble, ode.Tsit5(), checkpoint=folder, progress=stop, **options)
    except KeyboardInterrupt:
        print("stopped with", sorted(os.listdir(folder)))
    resumed = ode.solve(ensemble, ode.Tsit5(), checkpoint=folder, **options).u

shared = ode.solve(ensemble, ode.Tsit5(), ode.EnsembleSharded(), **options).u
print(len(jax.devices()), "devices, largest relative difference", f"{jnp.max(jnp.abs(shared / resumed - 1)):.1e}")
