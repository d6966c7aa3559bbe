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
# # Quickstart: from a field to a fit
#
# This notebook is for someone who solves differential equations with `scipy.integrate.solve_ivp` and wants derivatives
# of the result: gradients, Jacobians and Hessians with respect to parameters, initial state and times.
# It solves one predator-prey model, differentiates it in every way that a fit needs, and then fits a famous data set.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import odesens as ode

jax.config.update("jax_enable_x64", True)  # JAX computes in single precision unless told otherwise
np.set_printoptions(precision=6, suppress=True)
plt.rcParams["figure.constrained_layout.use"] = True

# %% [markdown]
# ## Define and solve
#
# A problem is a function `f(t, u, p)`, an initial state, a time span and parameters. Three things differ from SciPy:
#
# - `f` takes the parameters `p` as its third argument. There is no `args=`.
# - `f` is written with `jax.numpy`, because JAX traces it once and compiles it. Loops over components are fine,
#   `if u[0] > 1` is not (use `jnp.where`).
# - The state may be an array, as here, or any nesting of tuples and dictionaries of arrays.
#
# The model is that of Lotka and Volterra: prey $x$ grow and are eaten, predators $y$ die and eat.
#
# $$x' = p_0 x - p_1 x y, \qquad y' = -p_2 y + p_3 x y$$


# %%
def lotka_volterra(t, u, p):
    prey, predators = u
    return jnp.stack([p[0] * prey - p[1] * prey * predators, -p[2] * predators + p[3] * prey * predators])


u0 = np.array([1.0, 1.0])
p = np.array([1.5, 1.0, 3.0, 1.0])
prob = ode.ODEProblem(lotka_volterra, u0, (0.0, 10.0), p)

sol = ode.solve(prob)
sol

# %% [markdown]
# The default method is `Tsit5()`, an explicit Runge-Kutta method of order 5, at tolerances that suit most work
# (`reltol=1e-6`, `abstol=1e-9` in double precision). Every accepted step is saved unless `saveat=` names other times.
# The time axis of `sol.u` comes **first**: it is the transpose of SciPy's `sol.y`.

# %%
print("sol.t       ", sol.t[:4], "...", sol.t[-1])
print("sol.u.shape ", sol.u.shape)
print("sol[-1]     ", sol[-1], "  the state at the last saved time")
print("sol(3.2)    ", sol(3.2), "  the state at any time in the span")
print("u'(3.2)     ", sol(3.2, deriv=1), "  sol(3.2, deriv=1): its time derivative")
print("retcode     ", sol.retcode.name, "  success:", sol.success)
print("steps       ", f"{sol.stats.naccept} accepted, {sol.stats.nreject} rejected, {sol.stats.nf} evaluations of f")

# %%
fine = np.linspace(0, 10, 401)
figure, axes = plt.subplots(figsize=(7, 3.2))
for i, (name, colour) in enumerate((("prey", "tab:blue"), ("predators", "tab:red"))):
    axes.plot(fine, sol(fine)[:, i], color=colour, label=name)
    axes.plot(sol.t, sol.u[:, i], ".", color=colour, markersize=4)
axes.set(xlabel="t", ylabel="population", title="Lotka-Volterra: the dots are the steps that the solver took")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## Derivatives, one line each
#
# `solve` is an ordinary JAX function: whatever JAX offers works on it. Take a scalar that depends on the solution, here
# the mean number of prey over 101 saved times.

# %%
saves = np.linspace(0, 10, 101)


def mean_prey(p):
    return jnp.mean(ode.solve(prob, p=p, saveat=saves).u[:, 0])


print("mean prey    ", mean_prey(p))
print("gradient     ", jax.grad(mean_prey)(p))

# %% [markdown]
# The gradient costs about as much as a few solves, even with many parameters. Central differences agree with it, to the
# few digits that differences have, and need two solves for every parameter:

# %%
h = 1e-5
print("differences  ", np.array([(mean_prey(p + h * e) - mean_prey(p - h * e)) / (2 * h) for e in np.eye(4)]))

# %% [markdown]
# The Jacobian of the final state with respect to the parameters (2 rows, 4 columns), in forward mode:

# %%
print(jax.jacfwd(lambda p: ode.solve(prob, p=p)[-1])(p))

# %% [markdown]
# The Hessian of the scalar. It is symmetric to rounding, because forward and reverse mode are transposes of each other:

# %%
hessian = jax.hessian(mean_prey)(p)
print(hessian)
print(f"largest asymmetry {np.abs(hessian - hessian.T).max():.1e}")

# %% [markdown]
# ### Many initial states at once
#
# `jax.vmap` solves for a whole batch. Each member chooses its own steps, as the counts show.

# %%
starts = jnp.stack([jnp.linspace(1.0, 2.6, 5), jnp.ones(5)], axis=1)
batch = jax.vmap(lambda u0: ode.solve(prob, u0=u0, saveat=fine))(starts)
print(batch)
print("accepted steps", batch.stats.naccept, " all succeeded:", bool(batch.success.all()))

# %%
figure, axes = plt.subplots(figsize=(6, 3.8))
for start, u in zip(starts, batch.u, strict=True):
    axes.plot(u[:, 0], u[:, 1], label=f"({start[0]:.1f}, {start[1]:.1f})")
axes.plot(p[2] / p[3], p[0] / p[1], "k+", markersize=10, label="equilibrium")
axes.set(xlabel="prey", ylabel="predators", title="Five orbits from one call")
axes.legend(title="start", loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ### Times have gradients too
#
# Moving the end of the span by $dt$ moves the final state by $u' dt$. So the derivative with respect to the end time
# must be the field at the end, and it is. The same holds for each saved time.

# %%
print("d prey(T) / dT at T = 10    ", jax.grad(lambda T: ode.solve(prob, tspan=(0.0, T))[-1][0])(10.0))
print("prey'(10) from the field    ", lotka_volterra(10.0, sol[-1], p)[0])

# %%
at_save = jax.grad(lambda t: ode.solve(prob, saveat=jnp.stack([t]))[0][0])(3.2)
print("d prey(t) / dt at a save, 3.2", at_save)
print("prey'(3.2)                   ", sol(3.2, deriv=1)[0])

# %% [markdown]
# ### What the field captures has a gradient
#
# The parameters need not travel through `p`. A number that `f` takes from its surroundings is differentiated as well.
# Here a constant harvest rate of prey is captured, not passed:


# %%
def final_prey(harvest):
    def f(t, u, p):
        return lotka_volterra(t, u, p) - jnp.array([harvest, 0.0]) * u

    return ode.solve(ode.ODEProblem(f, u0, (0.0, 10.0), p))[-1][0]


harvest = jnp.array(0.1)
print("gradient   ", jax.grad(final_prey)(harvest))
print("difference ", (final_prey(harvest + h) - final_prey(harvest - h)) / (2 * h))

# %% [markdown]
# ## A fit
#
# From 1900 to 1920 the Hudson's Bay Company counted the pelts of hares and of the lynxes that eat them. The numbers
# come with the package. (They are those of MacLulich, 1937, and Elton and Nicholson, 1942, as tabulated by Howard,
# 2009.)
#
# The model is Lotka-Volterra again, for the logarithms of the populations, which keeps them positive. The errors of the
# logarithms are taken as normal with one spread $s$. All seven unknowns (four rates, two initial populations, $s$) are
# positive, so the fit is in their logarithms $\theta$. With residuals $r$, what is to be minimised is
#
# $$-\log L(\theta) = \sum \frac{r^2}{2 s^2} + N \log s.$$

# %%
from odesens.__main__ import HARE, LYNX, NAMES, UNITS, YEARS

LOG_PELTS = np.log(np.stack([HARE, LYNX], axis=1))


def log_field(t, u, p):
    hare, lynx = jnp.exp(u)
    return jnp.stack([p[0] - p[1] * lynx, -p[2] + p[3] * hare])


pelts = ode.ODEProblem(log_field, np.zeros(2), (1900.0, 1920.0), reltol=1e-8, abstol=1e-8)


def log_populations(theta, years):
    return ode.solve(pelts, u0=theta[4:6], p=jnp.exp(theta[:4]), saveat=years, throw=False).u


def negative_log_likelihood(theta):
    r = log_populations(theta, YEARS) - LOG_PELTS
    return jnp.sum(r**2) / (2 * jnp.exp(2 * theta[6])) + r.size * theta[6]


# %% [markdown]
# `scipy.optimize.minimize` wants a function that returns the value and the gradient. `jax.value_and_grad` makes it, and
# `jax.jit` compiles it once, so that each call takes milliseconds or less. `throw=False` matters here: if a line search
# strays to parameters where the solve fails, the value is NaN and the search steps back, instead of an error ending
# the fit.

# %%
start = np.log([0.5, 0.02, 0.9, 0.03, 30.0, 4.0, 0.3])
value_and_grad = jax.jit(jax.value_and_grad(negative_log_likelihood))
result = minimize(value_and_grad, start, jac=True, method="BFGS", options={"gtol": 1e-6})
print(f"{result.message}  {result.nit} iterations, {result.nfev} gradients")
print(f"-log likelihood {value_and_grad(start)[0]:.4f} at the start, {result.fun:.6f} at the end")

# %% [markdown]
# The Hessian at the minimum is the observed information; its inverse is the covariance of the estimates. It is exact,
# not the rough approximation that BFGS builds up. An error $\sigma$ of a logarithm is an error of $\sigma$ times the
# value for the value itself.

# %%
covariance = np.linalg.inv(jax.jit(jax.hessian(negative_log_likelihood))(result.x))
errors = np.sqrt(np.diag(covariance))
print(f"{'parameter':18s} {'estimate':>9s} {'std. error':>11s}   unit")
for name, estimate, error, unit in zip(NAMES, np.exp(result.x), errors, UNITS, strict=True):
    print(f"{name:18s} {estimate:9.4f} {estimate * error:11.4f}   {unit}")

# %% [markdown]
# The Jacobian of the fitted curves carries the covariance over to them. The bands in the picture are two standard
# errors of the curve to either side; they do not include the scatter of the data.

# %%
years = np.linspace(1900, 1920, 401)
fitted = log_populations(result.x, years)
jacobian = jax.jacfwd(log_populations)(result.x, years)
band = 2 * np.sqrt(np.einsum("tui,ij,tuj->tu", jacobian, covariance, jacobian))

figure, axes = plt.subplots(figsize=(8, 3.6))
for i, (name, data, colour) in enumerate((("hare", HARE, "tab:blue"), ("lynx", LYNX, "tab:red"))):
    axes.plot(YEARS, data, "o", color=colour, label=f"{name}, pelts")
    axes.plot(years, np.exp(fitted[:, i]), color=colour, label=f"{name}, fit")
    low, high = np.exp(fitted[:, i] - band[:, i]), np.exp(fitted[:, i] + band[:, i])
    axes.fill_between(years, low, high, color=colour, alpha=0.2, linewidth=0)
axes.set(xlabel="year", ylabel="pelts, thousands", title="Hares and lynxes, 1900 to 1920")
axes.set_xticks(np.arange(1900, 1921, 5))
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## What failure looks like
#
# $x' = x^2$ from $x = 1$ runs to infinity at $t = 1$. An ordinary call that does not reach the end of its span raises
# a `SolveError`, which says where it stopped, what the likely cause is, and what to do.

# %%
blow_up = ode.ODEProblem(lambda t, x, p: x**2, 1.0, (0.0, 2.0))
try:
    ode.solve(blow_up)
except ode.SolveError as error:
    print(error)

# %% [markdown]
# With `throw=False` the call returns what was reached. Saved values beyond that are NaN, and `retcode` says why. Inside
# `jit`, `grad` or `vmap` nothing can raise, so this is also how a failure shows there: look at `sol.success`. A
# gradient through a value that was not reached is NaN, never a wrong number.

# %%
failed = ode.solve(blow_up, saveat=[0.0, 0.5, 0.9, 1.5], throw=False)
print("retcode ", failed.retcode.name, "  success:", failed.success)
print("sol.t   ", failed.t)
print("sol.u   ", failed.u)

last_save = lambda x0: ode.solve(blow_up, u0=x0, saveat=[0.5, 1.5], throw=False)[-1]
print("gradient", jax.grad(last_save)(1.0))

# %% [markdown]
# Input that is wrong is refused before anything is solved:

# %%
try:
    ode.solve(prob, rtol=1e-8)
except TypeError as error:
    print(error)

# %% [markdown]
# ## Where to go next
#
# The next notebook compares the six ways in which the package can compute these derivatives, and when to leave the
# default.
