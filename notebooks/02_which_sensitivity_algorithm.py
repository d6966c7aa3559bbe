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
# # Which sensitivity algorithm?
#
# `solve(..., sensealg=...)` chooses how derivatives are computed. There are six ways. All six give the gradient; they
# differ in what it costs, how exact it is, and when it goes wrong. The short answer comes first:
#
# | where | use |
# |---|---|
# | no reason to choose | nothing: the default is `DiscreteAdjoint()`, and `GaussAdjoint()` for many states with few parameters |
# | few states and few parameters | `ForwardSensitivity()` is often the cheapest |
# | many states and parameters, tight tolerances | `GaussAdjoint()` |
# | even 1 024 checkpoints of the state do not fit into memory | `BacksolveAdjoint()`, with saves close enough to each other |
# | to compare with other packages | `InterpolatingAdjoint()`, `QuadratureAdjoint()` |
#
# What follows describes each, measures all of them on one small problem and on one larger, and shows the trap in
# `BacksolveAdjoint(restart=False)`. **The times are those of one machine (shared CPU cores) and of two problems.**
# They include no compilation unless it is named. Measure your own problem before you choose by cost.

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import solve_ivp

import odesens as ode

jax.config.update("jax_enable_x64", True)
plt.rcParams["figure.constrained_layout.use"] = True

ALGORITHMS = {
    "DiscreteAdjoint": (ode.DiscreteAdjoint(), "o", "tab:blue"),
    "InterpolatingAdjoint": (ode.InterpolatingAdjoint(), "s", "tab:orange"),
    "QuadratureAdjoint": (ode.QuadratureAdjoint(), "D", "tab:green"),
    "GaussAdjoint": (ode.GaussAdjoint(), "^", "tab:red"),
    "BacksolveAdjoint": (ode.BacksolveAdjoint(), "v", "tab:purple"),
    "ForwardSensitivity": (ode.ForwardSensitivity(), "P", "tab:brown"),
}

# %% [markdown]
# ## The six algorithms
#
# The problem is $u' = f(t, u, p)$ with $n$ states and $n_p$ parameters, and a loss that depends on the saved states
# $u(t_1), \dots, u(t_m)$; $w_j$ is its gradient with respect to $u(t_j)$. Subscripts are partial derivatives.
#
# **`DiscreteAdjoint`** (the default) differentiates what the computer did. Each accepted step is a map
# $u_{i+1} = S_i(u_i, p)$; with the step sizes held fixed, the chain rule runs backwards through the recorded steps:
#
# $$\lambda_i = \Big(\frac{\partial S_i}{\partial u}\Big)^T \lambda_{i+1}, \qquad
#   \bar p = \sum_i \Big(\frac{\partial S_i}{\partial p}\Big)^T \lambda_{i+1}.$$
#
# There is no second adaptive solve and so no second tolerance. The gradient is, up to rounding, that of the function
# that was evaluated (on its mesh), which is what an optimiser or a test against forward mode likes. The accepted steps
# are kept in memory. Use it unless there is a reason not to.
#
# **`InterpolatingAdjoint`** solves the continuous adjoint equation backwards, with the parameter integral as further
# states, and takes $u(t)$ from the dense output of the recorded steps:
#
# $$\lambda' = -f_u^T \lambda, \qquad \bar p\,' = -f_p^T \lambda, \qquad
#   \lambda \text{ jumps by } w_j \text{ at each } t_j.$$
#
# The error control covers $\lambda$ and $\bar p$ together: $n + n_p$ states backwards. A solid choice with moderately
# many parameters where you want an error control on the gradient itself.
#
# **`QuadratureAdjoint`** solves for $\lambda$ alone, and computes $\bar p = \int f_p^T \lambda\, dt$ by adaptive
# Gauss-Kronrod quadrature on each of its steps. The backward solve has only $n$ states; the quadrature has its own error
# estimate, at the price of many evaluations. For many parameters where that integral must be controlled.
#
# **`GaussAdjoint`** is the same, but takes the integral by a few Gauss nodes inside each backward step as the step is
# made. Nothing is recorded backwards, and the parameters cost a few products with $f_p^T$ a step, however many they
# are. For large systems with many parameters.
#
# **`BacksolveAdjoint`** records no step at all. It solves for the state backwards as well:
#
# $$u' = f, \qquad \lambda' = -f_u^T \lambda, \qquad \bar p\,' = -f_p^T \lambda \qquad \text{from } t_m \text{ down.}$$
#
# Memory does not grow with the number of steps. But a system that forgets its past forwards amplifies errors backwards.
# So `restart=True` (the default) starts $u$ anew from the saved state at each saved time. See the last section for what
# happens without. For long solves on little memory.
#
# **`ForwardSensitivity`** solves the tangent equations along with the state, forwards:
#
# $$u' = f, \qquad s_k' = f_u s_k + f_{p_k}, \qquad k = 1, \dots, n_p.$$
#
# Error control covers the tangents. The cost grows with the number of parameters: $n (1 + n_p)$ states. For few states
# and parameters, or for one directional derivative, nothing is simpler.
#
# All this is about gradients, that is reverse mode. In forward mode (`jax.jvp`, `jax.jacfwd`) `DiscreteAdjoint` pushes
# tangents through the recorded steps, and the other five all solve the tangent equations as `ForwardSensitivity` does.

# %% [markdown]
# ## A small problem: Lotka-Volterra, four parameters
#
# The loss is the sum of both populations over 101 saved times. Reference values for its gradient:


# %%
def lotka_volterra(t, u, p):
    prey, predators = u
    return jnp.stack([p[0] * prey - p[1] * prey * predators, -p[2] * predators + p[3] * prey * predators])


p = np.array([1.5, 1.0, 3.0, 1.0])
saves = np.linspace(0, 10, 101)
prob = ode.ODEProblem(lotka_volterra, np.array([1.0, 1.0]), (0.0, 10.0), p)
REFERENCE = np.array([8.30536266231198, -159.48429271513703, 75.20350821377201, -339.19509276606163])

# %% [markdown]
# They do not rest on this package. SciPy's DOP853, given the tangent equations written by hand and solved from one
# saved time to the next, finds the same gradient:


# %%
def with_tangents(t, z):
    (x, y), s = z[:2], z[2:].reshape(2, 4)
    f = [p[0] * x - p[1] * x * y, -p[2] * y + p[3] * x * y]
    f_u = np.array([[p[0] - p[1] * y, -p[1] * x], [p[3] * y, -p[2] + p[3] * x]])
    f_p = np.array([[x, -x * y, 0, 0], [0, 0, -y, x * y]])
    return np.concatenate([f, (f_u @ s + f_p).ravel()])


z, total = np.array([1.0, 1.0] + [0.0] * 8), np.zeros(4)
for span in zip(saves[:-1], saves[1:], strict=True):
    z = solve_ivp(with_tangents, span, z, method="DOP853", rtol=1e-13, atol=1e-13).y[:, -1]
    total += z[2:].reshape(2, 4).sum(axis=0)
print("SciPy     ", total)
print("reference ", REFERENCE)
print(f"relative difference {np.linalg.norm(total - REFERENCE) / np.linalg.norm(REFERENCE):.1e}")

# %% [markdown]
# Now each algorithm, at tolerances from 1e-4 to 1e-10 (`reltol` and `abstol` alike; the backward solves take the same).
# The gradient is compiled once for each algorithm, with the tolerance as an argument. Its time is the median of 15
# calls. The algorithms take turns, so that a busy moment of the machine does not fall on one of them alone.

# %%
TOLERANCES = 10.0 ** -np.arange(4.0, 11.0)


def gradient_of(sensealg):
    def loss(p, tol):
        return jnp.sum(ode.solve(prob, p=p, saveat=saves, reltol=tol, abstol=tol, sensealg=sensealg).u)

    return jax.jit(jax.grad(loss))


def seconds(function, *arguments):
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


gradients, compile_time, error = {}, {}, {}
for name, (sensealg, _, _) in ALGORITHMS.items():
    gradients[name] = gradient_of(sensealg)
    compile_time[name] = seconds(gradients[name], p, TOLERANCES[0])
    found = np.array([gradients[name](p, tol) for tol in TOLERANCES])
    error[name] = np.linalg.norm(found - REFERENCE, axis=1) / np.linalg.norm(REFERENCE)


def times_of(gradient):
    seconds(gradient, p, TOLERANCES[0])  # the first call after another program is slower
    return [seconds(gradient, p, tol) for tol in TOLERANCES]


rounds = [[times_of(gradient) for gradient in gradients.values()] for _ in range(15)]
cost = dict(zip(gradients, np.median(rounds, axis=0) * 1e3, strict=True))

# %%
figure, axes = plt.subplots(figsize=(8, 4.5))
for name, (_, marker, colour) in ALGORITHMS.items():
    axes.loglog(error[name], cost[name], marker=marker, color=colour, label=name, alpha=0.8)
axes.invert_xaxis()
axes.set(
    xlabel="relative error of the gradient (more exact to the right)",
    ylabel="time of the gradient, ms",
    title="Work and precision: Lotka-Volterra, 2 states, 4 parameters",
)
axes.grid(alpha=0.3)
axes.legend(title="tolerances 1e-4 (left) to 1e-10", loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
print(f"{'':21s}" + "".join(f"{f'tol {tol:.0e}':>20s}" for tol in TOLERANCES[::3]) + f"{'compile':>12s}")
print(f"{'':21s}" + f"{'error':>12s}{'ms':>8s}" * 3 + f"{'s':>12s}")
for name in ALGORITHMS:
    pairs = "".join(f"{error[name][i]:12.1e}{cost[name][i]:8.2f}" for i in (0, 3, 6))
    print(f"{name:21s}{pairs}{compile_time[name]:12.1f}")
spread = np.max(list(error.values()), axis=0) / np.min(list(error.values()), axis=0)
print(f"\nlargest error / smallest error at the same tolerance: {spread.min():.0f} to {spread.max():.0f}")

# %% [markdown]
# How to read this:
#
# - All six converge to the same gradient, and at the same rate. The tolerance decides how exact the gradient is, far
#   more than the algorithm does: six decades against the factor in the last line.
# - With four parameters `ForwardSensitivity` does well: its tangents are under error control, which makes it the most
#   exact at a given tolerance, and there is no backward pass.
# - `BacksolveAdjoint` is cheap on this problem, which is oscillating and not damped: the easy case for it.
# - `QuadratureAdjoint` pays for its error estimate of the integral.
# - `DiscreteAdjoint` has no second solve that could fail or need tolerances, and its reverse mode agrees with its
#   forward mode to rounding. That, more than its time, is why it is the default.

# %% [markdown]
# ## A larger problem: 20 states, 400 parameters
#
# A small recurrent network, $x' = -x + \tanh(K x)$, with all entries of $K$ as parameters, and the sum of squares of 41
# saved states as the loss. Nothing but the size is different, and the order changes. The errors are relative to
# `DiscreteAdjoint` at a tolerance of 1e-12.


# %%
def network(t, x, K):
    return -x + jnp.tanh(K @ x)


def network_gradient(n, sensealg):
    """x0, K, and the compiled gradient with respect to K of a loss at given saved times and tolerance."""
    random = np.random.default_rng(0)
    K, x0 = 0.35 * random.normal(size=(n, n)) / np.sqrt(n), random.normal(size=n)

    def loss(K, times, tol):
        prob = ode.ODEProblem(network, x0, (0.0, times[-1]), K, reltol=tol, abstol=tol)
        return jnp.sum(ode.solve(prob, saveat=times, sensealg=sensealg).u ** 2)

    return K, jax.jit(jax.grad(loss))


times = np.linspace(0, 40, 41)
larger = {name: network_gradient(20, sensealg) for name, (sensealg, _, _) in ALGORITHMS.items()}
K, exact = larger["DiscreteAdjoint"]
exact = exact(K, times, 1e-12)
print(f"{'':21s}{'error':>10s}{'ms':>10s}{'against Lotka-Volterra':>28s}   (tolerance 1e-7)")
for name, (K, gradient) in larger.items():
    off = jnp.linalg.norm(gradient(K, times, 1e-7) - exact) / jnp.linalg.norm(exact)
    ms = np.median([seconds(gradient, K, times, 1e-7) for _ in range(7)]) * 1e3
    print(f"{name:21s}{off:10.1e}{ms:10.2f}{ms / cost[name][3]:26.1f} x")

# %% [markdown]
# `ForwardSensitivity` now solves for 20 (1 + 400) states and is far behind. The adjoint algorithms hardly notice the
# parameters.

# %% [markdown]
# ## The trap: `BacksolveAdjoint(restart=False)`
#
# The same network with 3 states. Forwards, every perturbation dies out like $e^{-t}$, roughly. Backwards it grows like
# $e^{t}$: over $T = 40$ that is a factor of 1e17, which turns the smallest error of the final state into nonsense. Here
# is the gradient of the same loss for spans of several lengths, always with 41 saves, by the two variants of
# `BacksolveAdjoint`, and the error of each against `DiscreteAdjoint` at 1e-12.

# %%
variants = {
    "restart=True": ode.BacksolveAdjoint(restart=True),
    "restart=False": ode.BacksolveAdjoint(restart=False),
}
K, exact = network_gradient(3, ode.DiscreteAdjoint())
small = {name: network_gradient(3, sensealg)[1] for name, sensealg in variants.items()}


def relative_error(name, times):
    right = exact(K, times, 1e-12)
    return float(jnp.linalg.norm(small[name](K, times, 1e-8) - right) / jnp.linalg.norm(right))


spans = np.array([2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 40.0])
figure, axes = plt.subplots(figsize=(7, 3.6))
for name, marker in zip(variants, "vX", strict=True):
    axes.semilogy(spans, [relative_error(name, np.linspace(0, T, 41)) for T in spans], marker=marker, label=name)
axes.axhline(1.0, color="gray", linestyle=":", label="as wrong as zero")
axes.set(xlabel="length of the span T", ylabel="relative error of the gradient")
axes.set_title("BacksolveAdjoint, 3 damped states, tolerance 1e-8")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
with np.printoptions(precision=6):
    print("DiscreteAdjoint\n", np.array(exact(K, times, 1e-12)))
    for name, gradient in small.items():
        print(f"BacksolveAdjoint({name}), error {relative_error(name, times):.0e}")
        print("", np.array(gradient(K, times, 1e-8)))

# %% [markdown]
# Nothing failed visibly: no error, no NaN, only a wrong answer. (Here it is nearly zero, so that its relative error is
# 1.) No tolerance mends it, since rounding alone is enough.
#
# Restarting helps as far as the saves are close to each other: the error grows only from one save to the next. If the
# loss sees the end alone, there is nothing to restart from. Here all saves but the first are at $T = 40$:

# %%
at_end = np.concatenate([[0.0], np.full(40, 40.0)])
between = np.concatenate([[0.0], np.linspace(20.0, 40.0, 40)])
print(f"restart=True, saves at 0 and 40 only         error {relative_error('restart=True', at_end):.0e}")
print(f"restart=True, saves at 0 and from 20 to 40   error {relative_error('restart=True', between):.0e}")
print(f"restart=True, 41 saves from 0 to 40          error {relative_error('restart=True', times):.0e}")

# %% [markdown]
# So, for `BacksolveAdjoint` on a damped problem: add saves (they may have no weight in the loss), at distances over
# which the problem forgets little. Or use one of the other five, which do not integrate the state backwards.
