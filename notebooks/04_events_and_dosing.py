# %% [markdown]
# # Events and dosing
#
# Things happen inside a solve: a dose is swallowed, a ball bounces, a thermostat clicks. In odesens they are callbacks,
# and everything about them has a derivative: when they happen, the state after them, the parameters in their conditions.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import odesens as ode

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## Theophylline: twelve subjects, one oral dose
#
# The data are those of Upton in Boeckmann, Sheiner and Beal, *NONMEM Users Guide, Part V* (1994), which R carries as
# `Theoph`: twelve subjects, their dose in mg per kg of body weight, and eleven serum concentrations in mg/L.

# %%
DOSES = np.array([4.02, 4.4, 4.53, 4.4, 5.86, 4.0, 4.95, 4.53, 3.1, 5.5, 4.92, 5.3])
TIMES = np.array(
    [
        [0, 0.25, 0.57, 1.12, 2.02, 3.82, 5.1, 7.03, 9.05, 12.12, 24.37],
        [0, 0.27, 0.52, 1, 1.92, 3.5, 5.02, 7.03, 9, 12, 24.3],
        [0, 0.27, 0.58, 1.02, 2.02, 3.62, 5.08, 7.07, 9, 12.15, 24.17],
        [0, 0.35, 0.6, 1.07, 2.13, 3.5, 5.02, 7.02, 9.02, 11.98, 24.65],
        [0, 0.3, 0.52, 1, 2.02, 3.5, 5.02, 7.02, 9.1, 12, 24.35],
        [0, 0.27, 0.58, 1.15, 2.03, 3.57, 5, 7, 9.22, 12.1, 23.85],
        [0, 0.25, 0.5, 1.02, 2.02, 3.48, 5, 6.98, 9, 12.05, 24.22],
        [0, 0.25, 0.52, 0.98, 2.02, 3.53, 5.05, 7.15, 9.07, 12.1, 24.12],
        [0, 0.3, 0.63, 1.05, 2.02, 3.53, 5.02, 7.17, 8.8, 11.6, 24.43],
        [0, 0.37, 0.77, 1.02, 2.05, 3.55, 5.05, 7.08, 9.38, 12.1, 23.7],
        [0, 0.25, 0.5, 0.98, 1.98, 3.6, 5.02, 7.03, 9.03, 12.12, 24.08],
        [0, 0.25, 0.5, 1, 2, 3.52, 5.07, 7.07, 9.03, 12.05, 24.15],
    ]
)
DATA = np.array(
    [
        [0.74, 2.84, 6.57, 10.5, 9.66, 8.58, 8.36, 7.47, 6.89, 5.94, 3.28],
        [0, 1.72, 7.91, 8.31, 8.33, 6.85, 6.08, 5.4, 4.55, 3.01, 0.9],
        [0, 4.4, 6.9, 8.2, 7.8, 7.5, 6.2, 5.3, 4.9, 3.7, 1.05],
        [0, 1.89, 4.6, 8.6, 8.38, 7.54, 6.88, 5.78, 5.33, 4.19, 1.15],
        [0, 2.02, 5.63, 11.4, 9.33, 8.74, 7.56, 7.09, 5.9, 4.37, 1.57],
        [0, 1.29, 3.08, 6.44, 6.32, 5.53, 4.94, 4.02, 3.46, 2.78, 0.92],
        [0.15, 0.85, 2.35, 5.02, 6.58, 7.09, 6.66, 5.25, 4.39, 3.53, 1.15],
        [0, 3.05, 3.05, 7.31, 7.56, 6.59, 5.88, 4.73, 4.57, 3, 1.25],
        [0, 7.37, 9.03, 7.14, 6.33, 5.66, 5.67, 4.24, 4.11, 3.16, 1.12],
        [0.24, 2.89, 5.22, 6.41, 7.83, 10.21, 9.18, 8.02, 7.14, 5.68, 2.42],
        [0, 4.86, 7.24, 8, 6.81, 5.87, 5.22, 4.45, 3.62, 2.69, 0.86],
        [0, 1.25, 3.96, 7.82, 9.72, 9.75, 8.57, 6.59, 6.11, 4.57, 1.17],
    ]
)


def body(t, u, p):
    """Amounts in the gut and in the blood, in mg per kg: absorbed at ka, eliminated at ke."""
    gut, blood = u
    return jnp.stack([-p["ka"] * gut, p["ka"] * gut - p["ke"] * blood])


swallow = ode.PresetTimeCallback([0.0], lambda t, u, p: u.at[0].add(p["dose"]))
prob = ode.ODEProblem(body, jnp.zeros(2), (0.0, 25.0), callback=swallow, max_events=1, reltol=1e-8, abstol=1e-8)


def concentration(theta, dose, times):
    """In mg/L; theta are the logarithms of ka, ke (1/h) and of the volume V (L/kg), which keeps them positive."""
    ka, ke, volume = jnp.exp(theta)
    return ode.solve(prob, p={"ka": ka, "ke": ke, "dose": dose}, saveat=times).u[:, 1] / volume


def bateman(theta, dose, t):
    """The same in closed form."""
    ka, ke, volume = np.exp(theta)
    return dose * ka / (volume * (ka - ke)) * (np.exp(-ke * t) - np.exp(-ka * t))


start = jnp.log(jnp.array([1.5, 0.08, 0.5]))
solved = concentration(start, DOSES[0], TIMES[0])
print("largest difference from the closed form:", np.max(np.abs(solved - bateman(start, DOSES[0], TIMES[0]))))

# %% [markdown]
# One curve for all subjects first: the sum of squares over all 132 concentrations, by `vmap` over the subjects, its
# gradient through the solver. Standard errors come from the Hessian of the negative log likelihood at its minimum, s^2 =
# RSS / (n - 3).


# %%
def residuals(theta):
    return DATA - jax.vmap(concentration, (None, 0, 0))(theta, DOSES, TIMES)


squares = jax.jit(jax.value_and_grad(lambda theta: jnp.sum(residuals(theta) ** 2)))
fit = minimize(lambda theta: tuple(map(np.asarray, squares(theta))), np.asarray(start), jac=True, method="BFGS")
hessian = jax.jit(jax.hessian(lambda theta: jnp.sum(residuals(theta) ** 2) / 2))(fit.x)
s2 = fit.fun / (DATA.size - 3)
errors = np.sqrt(np.diag(np.linalg.inv(hessian)) * s2)
for name, value, error in zip(("ka", "ke", "V"), fit.x, errors, strict=True):
    print(f"log {name:2} = {value:7.4f} +- {error:.4f}     {name:2} = {np.exp(value):.4f}")
print(f"residual standard deviation {np.sqrt(s2):.4f} mg/L, log clearance {fit.x[1] + fit.x[2]:.4f}")

# %% [markdown]
# Then each subject for itself: twelve fits of three parameters side by side, by Newton's method with the Hessian of each
# subject, a few steps of which from the common fit suffice.


# %%
def own(theta, dose, times, data):
    return jnp.sum((data - concentration(theta, dose, times)) ** 2) / 2


def newton(theta, dose, times, data):
    """One damped step towards a subject's own minimum."""
    g, h = jax.grad(own)(theta, dose, times, data), jax.hessian(own)(theta, dose, times, data)
    values, vectors = jnp.linalg.eigh(h)
    step = vectors @ ((vectors.T @ g) / jnp.maximum(jnp.abs(values), 1e-2))
    return theta - step * jnp.minimum(1, 0.5 / jnp.max(jnp.abs(step)))


each = jax.jit(jax.vmap(newton))
thetas = jnp.tile(fit.x, (12, 1))
for _ in range(20):
    thetas = each(thetas, DOSES, TIMES, DATA)
slopes = jax.jit(jax.vmap(jax.grad(own)))(thetas, DOSES, TIMES, DATA)
print("largest slope left:", float(jnp.max(jnp.abs(slopes))))
print("        ka      ke      V")
for number, theta in enumerate(np.exp(thetas), 1):
    print(f"{number:3}  {theta[0]:6.3f}  {theta[1]:6.4f}  {theta[2]:6.3f}")

# %%
figure, axes = plt.subplots(3, 4, figsize=(10, 6), sharex=True, sharey=True)
fine = np.linspace(0, 25, 126)
for k, ax in enumerate(axes.flat):
    ax.plot(TIMES[k], DATA[k], "o", markersize=3, label="measured")
    ax.plot(fine, bateman(thetas[k], DOSES[k], fine), label="own")
    ax.plot(fine, bateman(fit.x, DOSES[k], fine), "--", label="common")
    ax.set_title(f"subject {k + 1}", fontsize=8)
axes[0, 0].legend(fontsize=7)
figure.supxlabel("hours")
figure.supylabel("mg/L")
plt.tight_layout()

# %% [markdown]
# ## A regimen, and its derivatives
#
# Four doses, whose times and amounts are parameters: `times` may be a function of p, and an `affect` with a fourth argument
# is told which of them it is.
# How does the trough concentration after the last dose depend on when and how much was taken before?


# %%
def take(t, u, p, i):
    return u.at[0].add(p["amounts"][i])


regimen = ode.ODEProblem(
    body,
    jnp.zeros(2),
    (0.0, 48.0),
    callback=ode.PresetTimeCallback(lambda p: p["times"], take),
    max_events=4,
    reltol=1e-9,
    abstol=1e-9,
)
ka, ke, volume = np.exp(fit.x)
plan = {"times": jnp.array([0.0, 12.0, 24.0, 36.0]), "amounts": jnp.array([5.0, 4.0, 4.0, 4.0])}


def trough(plan):
    return ode.solve(regimen, p={"ka": ka, "ke": ke, **plan}, saveat=[48.0]).u[0, 1] / volume


value, slope = jax.value_and_grad(trough)(plan)
by_superposition = sum(bateman(fit.x, d, 48 - t) for t, d in zip(plan["times"], plan["amounts"], strict=True))
print(f"trough {value:.6f} mg/L, by superposition {by_superposition:.6f}")
print("per hour of delay   ", np.round(slope["times"], 5))
print("per mg/kg of dose   ", np.round(slope["amounts"], 5))
print("the last is exactly ", np.round(bateman(fit.x, 1.0, 12.0), 5))

sol = ode.solve(regimen, p={"ka": ka, "ke": ke, **plan}, saveat=0.1)
ax = sol.plot()
ax.set(xlabel="hours", ylabel="mg/kg")
ax.legend(["in the gut", "in the blood", "doses"], loc="center left", bbox_to_anchor=(1, 0.5))
plt.tight_layout()
plt.show()

# %% [markdown]
# ## A bouncing ball
#
# The event's time is the root of the condition along the solution, right to rounding; its derivative comes from the
# implicit function theorem. From measured times of bounces, restitution and height follow by gradients.

# %%
bounce = ode.ContinuousCallback(
    lambda t, u, p: u[0],
    lambda t, u, p: jnp.stack([0.0, -p["e"] * u[1]]),
    direction=-1,
)
ball = ode.ODEProblem(
    lambda t, u, p: jnp.stack([u[1], -9.81]), None, (0.0, 3.0), callback=bounce, max_events=8, reltol=1e-9, abstol=1e-9
)


def times_of_bounces(x, count=4):
    height, e = x
    return ode.solve(ball, u0=jnp.stack([height, 0.0]), p={"e": e}, saveat=[3.0]).events.t[:count]


def closed(x):
    """The fall, then flights of twice its time, each shorter by the factor e."""
    height, e = x
    flights = jnp.cumsum(2 * e ** jnp.arange(4)) - 1
    return jnp.sqrt(2 * height / 9.81) * flights


x = jnp.array([1.0, 0.8])
print("times of the bounces:", times_of_bounces(x))
print("in closed form:      ", closed(x))
jacobian = jax.jacrev(times_of_bounces)(x)
print("largest difference of the Jacobians:", float(jnp.max(jnp.abs(jacobian - jax.jacobian(closed)(x)))))

measured = closed(jnp.array([0.9, 0.75]))
miss = jax.jit(lambda x: (times_of_bounces(x) - measured, jax.jacfwd(times_of_bounces)(x)))
for _ in range(6):
    r, j = miss(x)
    x = x - jnp.linalg.lstsq(j, r)[0]
print("height and restitution from the times:", x)

# %% [markdown]
# ## A thermostat
#
# Two conditions in one callback: a vector, whose affect is told which component it was. It changes a *parameter*, the
# heater, for the rest of the solve. What a day's heating costs, and how that depends on the two thresholds, is a
# gradient through some twenty events.


# %%
def room(t, u, p):
    """Temperature, and energy used."""
    outside = 8 + 5 * jnp.sin(2 * jnp.pi * (t - 9) / 24)
    return jnp.stack([0.2 * (outside - u[0]) + 5.0 * p["heater"], p["heater"]])


def click(t, u, p, i):
    return u, {**p, "heater": jnp.where(i == 0, 1.0, 0.0)}


thermostat = ode.ContinuousCallback(lambda t, u, p: jnp.stack([u[0] - p["low"], u[0] - p["high"]]), click, direction=(-1, 1))
day = ode.ODEProblem(room, jnp.array([20.0, 0.0]), (0.0, 24.0), callback=thermostat, max_events=64, reltol=1e-8, abstol=1e-8)
settings = {"low": 19.0, "high": 21.0, "heater": 0.0}
sol = ode.solve(day, p=settings, saveat=0.05)
print(sol)
ax = sol.plot(vars=[0])
ax.set(xlabel="hours", ylabel="degrees Celsius")
ax.legend(["temperature", "switched"], loc="center left", bbox_to_anchor=(1, 0.5))
plt.tight_layout()
plt.show()


# %%
def energy(low, high):
    return ode.solve(day, p={**settings, "low": low, "high": high}, saveat=[24.0]).u[0, 1]


value, slope = jax.value_and_grad(energy, (0, 1))(19.0, 21.0)
step = 1e-5
differences = [
    (energy(19.0 + step, 21.0) - energy(19.0 - step, 21.0)) / (2 * step),
    (energy(19.0, 21.0 + step) - energy(19.0, 21.0 - step)) / (2 * step),
]
print(f"hours of heating {value:.4f}; per degree of the lower, the upper threshold: {slope[0]:.5f}, {slope[1]:.5f}")
print("by central differences:", np.round(differences, 5))
