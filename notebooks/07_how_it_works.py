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
# # How it works
#
# This page is the mathematics of odesens, for a reader who wants to know what a derivative through `solve` is, or who
# means to change how one is computed. Each section states equations and then checks them in a cell, against a closed
# form wherever there is one. The letters are those of the code; the last section says which file holds what.
#
# | letter | what it is |
# |---|---|
# | $f(t, u, p)$ | the field; $f_t, f_u, f_p$ are its partial derivatives |
# | $t_0, t_1, \mathrm{dt}$ | the span, the size of a step |
# | $t_j$, together `ts` | the saved times |
# | $\Phi$ | the flow: from $u_0, p, t_0, t_j$ to $u(t_j)$ |
# | $x$ | a tangent of the inputs, a direction |
# | $w$ | a cotangent of the saved states, $w_j$ that of $u(t_j)$ |
# | $\lambda, \bar u, \bar p$ | the adjoint state, the gradients in $u_0$ and in $p$ |

# %%
import os

# this page compiles many small programs and times none: the compiler's first level is enough
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import quad_vec, solve_ivp

import odesens as ode
from odesens.extension import subjaxprs

jax.config.update("jax_enable_x64", True)
np.set_printoptions(precision=6, suppress=True, linewidth=110)
plt.rcParams.update({"figure.constrained_layout.use": True, "figure.dpi": 80})


def apart(got, want):
    """The largest difference, relative to the largest entry."""
    got, want = np.asarray(got), np.asarray(want)
    return float(np.max(np.abs(got - want)) / np.max(np.abs(want)))


# %% [markdown]
# ## One primitive
#
# JAX differentiates a program equation by equation: each operation, a *primitive*, has a rule for its tangent (jvp), a
# rule for the transpose of a linear use of it, and a rule for batches (vmap). A solver written in JAX is a program of
# many such equations, loops among them, and differentiating it means differentiating its loops, its step size control
# and its iterations. In odesens the whole solve is **one** equation, `ode_flow`, and its rules give that same equation
# again. What is inside is numerics, which JAX never looks at.
#
# The function below lists the equations of a program that are calls of the primitive. $T_k$ is a derivative of order
# $k$ in forward mode, $A_k$ one with a further order in reverse mode.


# %%
def kind_of(equation):
    """What an equation of a program is: its primitive's name, of a call of the flow which one."""
    if equation.primitive.name != "ode_flow":
        return equation.primitive.name
    call = equation.params["call"]
    lanes = "" if call.lanes is None else f" on {call.lanes} lanes"
    return f"{'A' if call.adjoint else 'T'}_{call.order}{lanes}"


def calls(jaxpr):
    """The calls of the primitive in a program."""
    found = [kind_of(equation) for equation in jaxpr.eqns if equation.primitive.name == "ode_flow"]
    return found + [name for inner in subjaxprs(jaxpr) for name in calls(inner)]


def lotka_volterra(t, u, p):
    x, y = u
    return jnp.stack([p[0] * x - p[1] * x * y, p[3] * x * y - p[2] * y])


p = np.array([1.5, 1.0, 3.0, 1.0])
SAVES = np.linspace(0.0, 10.0, 11)
prob = ode.ODEProblem(lotka_volterra, np.ones(2), (0.0, 10.0), p)


def loss(p):
    return jnp.sum(ode.solve(prob, p=p, saveat=SAVES, reltol=1e-8, abstol=1e-8).u)


print("the program of jax.grad(loss):")
for equation in jax.make_jaxpr(jax.grad(loss))(p).jaxpr.eqns:
    shapes = ", ".join(v.aval.str_short() for v in equation.outvars)
    print(f"    {kind_of(equation):18s} -> {shapes}")

direction = np.array([1.0, 0.0, 0.0, 0.0])
along = lambda f: lambda p: jax.jvp(f, (p,), (direction,))[1]
for name, function in {
    "loss": loss,
    "jvp(loss)": along(loss),
    "grad(loss)": jax.grad(loss),
    "hessian(loss)": jax.hessian(loss),
    "grad(jvp(jvp(loss)))": jax.grad(along(along(loss))),
    "vmap(grad(loss))": jax.vmap(jax.grad(loss)),
}.items():
    argument = np.stack([p, p]) if "vmap" in name else p
    print(f"{name:21s}", ", ".join(calls(jax.make_jaxpr(function)(argument).jaxpr)))

# %% [markdown]
# The first call in a gradient, $T_0$, is the solve; besides the saved states it returns its *record*, the accepted
# steps. The second, $A_0$, is the adjoint, and takes the record as an operand, so that nothing is solved twice. The
# record is there for speed only: no derivative flows through it.
#
# Why a primitive and not `jax.custom_vjp`? A function with a `custom_vjp` refuses forward mode, and one with a
# `custom_jvp` gets its reverse mode by transposing what the rule computes, loops included. Neither gives both modes
# their own algorithm.

# %% [markdown]
# ## The closure table
#
# With $r = (u_0, p)$ the differentiable inputs and $\Phi(r)$ the saved states, there are two families of functions:
#
# $$T_k(r; x_1, \dots, x_k) = D^k \Phi(r)[x_1, \dots, x_k], \qquad
#   A_k(r; x_1, \dots, x_k; w) = \nabla_r \langle w, T_k(r; x_1, \dots, x_k) \rangle .$$
#
# $T_0$ is the solve, $A_0$ its adjoint. Both are linear in each *slot* $x_i$, and $A_k$ is linear in $w$. So their
# derivatives, and their transposes in what they are linear in, are members of the two families again:
#
# | rule | result | why |
# |---|---|---|
# | jvp of $T_k$ in $r$ along $d$ | $T_{k+1}(r; x.., d)$ | the definition of $D^{k+1} \Phi$ |
# | jvp of $T_k$ in $x_i$ along $d$ | $T_k$ with $d$ for $x_i$ | linear in $x_i$ |
# | jvp of $A_k$ in $r$ along $d$ | $A_{k+1}(r; x.., d; w)$ | derivatives commute |
# | jvp of $A_k$ in $x_i$ or $w$ along $d$ | $A_k$ with $d$ in its place | linear in it |
# | transpose of $T_k$ in $x_i$, given $w$ | $A_{k-1}(r; x.. \text{ without } x_i; w)$ | $\langle w, T_k \rangle = \langle A_{k-1}, x_i \rangle$ |
# | transpose of $A_k$ in $w$, given $v$ | $T_{k+1}(r; x.., v)$ | $\langle A_k, v \rangle = \langle w, T_{k+1} \rangle$ |
# | transpose of $A_k$ in $x_i$, given $v$ | $A_k(r; x.. \text{ without } x_i, v; w)$ | $D^{k+1} \Phi$ is symmetric |
# | vmap | the same call with lanes | |
#
# That is all of automatic differentiation: two static parameters, the order and whether it is an adjoint, and three
# functions, for jvp, transpose and vmap (`primitive.py`). It holds for every order, as there is no highest $k$. The
# tangent of a call is bound apart from the call itself, and linearly in the tangents; that is what lets JAX split a
# program for reverse mode.
#
# The cell takes each row literally, on logistic growth, whose flow is known. $J$ and $H$ are first and second
# derivatives of the closed form. The third column is the last call in the program that JAX made of the left hand side.

# %%
TIMES = np.array([0.5, 1.0, 2.0])
growth = ode.ODEProblem(lambda t, u, p: p[0] * u * (1 - u / p[1]), 0.3, (0.0, 2.0), np.array([1.2, 2.0]))


def phi(r):
    return ode.solve(growth, u0=r[0], p=r[1:], saveat=TIMES, reltol=1e-11, abstol=1e-11).u


def closed(r, t=TIMES):
    return r[2] / (1 + (r[2] / r[0] - 1) * jnp.exp(-r[1] * t))


r = np.array([0.3, 1.2, 2.0])
J, H = jax.jacfwd(closed)(r), jax.jacfwd(jax.jacfwd(closed))(r)
x, d, w, v = (np.random.default_rng(0).standard_normal(3) for _ in range(4))

T_1 = lambda r, x: jax.jvp(phi, (r,), (x,))[1]
A_0 = lambda r, w: jax.vjp(phi, r)[1](w)[0]
A_1 = lambda r, x, w: jax.vjp(lambda r: T_1(r, x), r)[1](w)[0]
transpose = lambda linear, like, given: jax.linear_transpose(linear, like)(given)[0]

ROWS = {
    "jvp of T_1 in r": (lambda r, x, d, w, v: jax.jvp(lambda r: T_1(r, x), (r,), (d,))[1], "mij,i,j->m", (H, x, d)),
    "jvp of T_1 in x": (lambda r, x, d, w, v: jax.jvp(lambda x: T_1(r, x), (x,), (d,))[1], "mi,i->m", (J, d)),
    "jvp of A_0 in r": (lambda r, x, d, w, v: jax.jvp(lambda r: A_0(r, w), (r,), (d,))[1], "m,mij,i->j", (w, H, d)),
    "jvp of A_0 in w": (lambda r, x, d, w, v: jax.jvp(lambda w: A_0(r, w), (w,), (v,))[1], "m,mi->i", (v, J)),
    "transpose of T_1 in x": (lambda r, x, d, w, v: transpose(lambda x: T_1(r, x), x, w), "m,mi->i", (w, J)),
    "transpose of A_0 in w": (lambda r, x, d, w, v: transpose(lambda w: A_0(r, w), w, d), "mi,i->m", (J, d)),
    "transpose of A_1 in x": (lambda r, x, d, w, v: transpose(lambda x: A_1(r, x, w), x, d), "m,mij,i->j", (w, H, d)),
    "vmap of T_1": (lambda r, x, d, w, v: jax.vmap(T_1, (None, 0))(r, jnp.stack([x, d]))[1], "mi,i->m", (J, d)),
}
for name, (left, indices, arrays) in ROWS.items():
    last = calls(jax.make_jaxpr(left)(r, x, d, w, v).jaxpr)[-1]
    error = apart(jax.jit(left)(r, x, d, w, v), np.einsum(indices, *arrays))
    print(f"{name:23s} -> {last:15s} relative difference from the closed form {error:.0e}")

# %% [markdown]
# ## Times
#
# The starting time and every saved time have derivatives too. Write $N(t, u, d)$ for the flow over a short time $d$
# from $u$ at $t$. Then, for any $t_0 + \delta_0$ and $t_j + \delta_j$,
#
# $$\Phi(u_0, p; t_0 + \delta_0, t_j + \delta_j) = N\big(t_j,\ \Phi(N(t_0 + \delta_0, u_0, -\delta_0), p; t_0, t_j),\ \delta_j\big),$$
#
# a solve on fixed times between two short flows. It is evaluated at $\delta = 0$ only, so all that is needed of $N$ are
# its derivatives there, and those of its Taylor polynomial
#
# $$N(t, u, d) = u + d\, f + \frac{d^2}{2} (f_t + f_u f) + \dots$$
#
# are right up to its degree, which is chosen as the order of the derivative. At first order this is
#
# $$\dot u(t_j) = T_1(r; \dot u_0 - f(t_0, u_0)\, \dot t_0, \dot p) + f(t_j, u(t_j))\, \dot t_j .$$
#
# The gradient in $(t_0, t_1, t_2)$ of a sum over the saves at $t_1, t_2$, and the product of the Hessian with a
# direction:


# %%
def of_times(t):
    return jnp.sum(ode.solve(growth, tspan=(t[0], 2.5), saveat=t[1:], reltol=1e-11, abstol=1e-11).u ** 2)


t = np.array([0.1, 1.0, 2.0])
exact = lambda t: jnp.sum(closed(r, t[1:] - t[0]) ** 2)
second = lambda f: lambda t: jax.jvp(jax.grad(f), (t,), (d,))
got, want = jax.jit(second(of_times))(t), second(exact)(t)
print("gradient       ", got[0], f" differs from the closed form by {apart(got[0], want[0]):.0e}")
print("Hessian times d", got[1], f" differs from the closed form by {apart(got[1], want[1]):.0e}")

# %% [markdown]
# ## The discrete engine
#
# The default, `DiscreteAdjoint`, differentiates the numerical solution. An accepted step $i$ is a map
# $u_{i+1} = S_i(u_i, p)$ with a step size that counts as a constant, and a saved state is the dense output
# $V_j(u_{r(j)}, p)$ of the step $r(j)$ that holds $t_j$. Tangents are pushed along the steps, cotangents pulled back:
#
# $$\dot u_{i+1} = \frac{\partial S_i}{\partial u} \dot u_i + \frac{\partial S_i}{\partial p} \dot p, \qquad
#   \lambda_i = \Big(\frac{\partial S_i}{\partial u}\Big)^T \lambda_{i+1}
#     + \sum_{r(j) = i} \Big(\frac{\partial V_j}{\partial u}\Big)^T w_j,$$
#
# $$\bar p = \sum_i \Big(\frac{\partial S_i}{\partial p}\Big)^T \lambda_{i+1}
#     + \sum_j \Big(\frac{\partial V_j}{\partial p}\Big)^T w_j, \qquad \bar u = \lambda_0 .$$
#
# For a Runge-Kutta step with stages $k_i$ both the next state and every save in the step are linear in $(u, k)$, so all
# their cotangents are added up to one of $(u, k)$, and one vjp of the stages pulls it back, however many saves a step
# has. Higher orders nest `jax.jvp` of the step: as a Runge-Kutta step commutes with differentiation, that is the method
# applied to the tangent equations, on the steps of the solve.
#
# The two modes are exact transposes of each other, whatever the tolerance: $\langle w, T_1 x \rangle$ and
# $\langle A_0 w, x \rangle$ differ by rounding only, where the gradient itself is as exact as the solution.

# %%
states = lambda tol: lambda p: ode.solve(prob, p=p, saveat=SAVES, reltol=tol, abstol=tol).u


@jax.jit
def both(tol, x, w):
    tangent = jax.jvp(states(tol), (p,), (x,))[1]
    (bar,) = jax.vjp(states(tol), p)[1](w)
    return jnp.sum(w * tangent), jnp.dot(bar, x), bar


draw = np.random.default_rng(1).standard_normal
x, w = draw(4), draw((11, 2))
finest = both(1e-12, x, w)[2]
for tol in (1e-3, 1e-6, 1e-9):
    left, right, bar = both(tol, x, w)
    print(f"tolerance {tol:.0e}: pairing to {abs(left / right - 1):.0e}, gradient to {apart(bar, finest):.0e}")

# %% [markdown]
# ## Continuous engines
#
# The other five solve a second differential equation. With $u(t)$ the solution, the adjoint state of
# $\sum_j \langle w_j, u(t_j) \rangle$ obeys
#
# $$\lambda' = -f_u^T \lambda, \qquad \lambda(t_j^-) = \lambda(t_j^+) + w_j, \qquad
#   \bar u = \lambda(t_0), \qquad \bar p = \int_{t_0}^{t_1} f_p^T \lambda \, dt,$$
#
# backwards from $\lambda(t_1^+) = 0$. (For a tangent $s$, $s' = f_u s + f_p x$, the product
# $\langle \lambda, s \rangle$ has the derivative $\langle f_p^T \lambda, x \rangle$ between saves, and integrating that
# gives the pairing.) The engines differ in where $u(t)$ comes from and how the integral is taken:
#
# | engine | $u(t)$ | $\bar p$ |
# |---|---|---|
# | `InterpolatingAdjoint` | dense output of the record | further states: $\bar p' = -f_p^T \lambda$ in one equation with $\lambda$ |
# | `QuadratureAdjoint` | dense output of the record | Gauss-Kronrod on each backward step, halved until its estimate is within the tolerance |
# | `GaussAdjoint` | dense output of the record | $\bar p \mathrel{+}= -\mathrm{dt} \sum_g b_g f_p(t_g, u(t_g))^T \lambda(t_g)$ at Gauss-Legendre nodes in each backward step |
# | `BacksolveAdjoint` | $u' = f$ backwards, in one equation with $\lambda$ and $\bar p$ | as the first |
# | `ForwardSensitivity` | solved along with $s$ | no $\lambda$: $\langle w_j, s(t_j) \rangle$ summed, for each direction |
#
# No backward step crosses the boundary of a recorded step: within one, $u(t)$ is one polynomial, and the method keeps
# its order. Higher orders apply the same to the augmented field, whose state has $2^k$ blocks: $u$, its tangents along
# each $x_i$, and so on to $D^k u[x_1, \dots, x_k]$, on which $w$ acts.
#
# Here are these equations by hand, in NumPy and SciPy, on the Lotka-Volterra problem; then the engines.


# %%
def f(u):
    return np.array([p[0] * u[0] - p[1] * u[0] * u[1], p[3] * u[0] * u[1] - p[2] * u[1]])


def f_u(u):
    return np.array([[p[0] - p[1] * u[1], -p[1] * u[0]], [p[3] * u[1], p[3] * u[0] - p[2]]])


def f_p(u):
    return np.array([[u[0], -u[0] * u[1], 0, 0], [0, 0, -u[1], u[0] * u[1]]])


def integrate(field, span, z):
    return solve_ivp(lambda t, z: field(z, t), span, z, method="DOP853", rtol=1e-12, atol=1e-12, dense_output=True)


forward = integrate(lambda u, t: f(u), (0, 10), np.ones(2)).sol
x_gauss, b_gauss = np.polynomial.legendre.leggauss(5)
lam, joint, gauss, kronrod = np.zeros(2), np.zeros(4), np.zeros(4), np.zeros(4)
u, lam_back, backsolved, pieces = forward(10.0), np.zeros(2), np.zeros(4), []
for j in range(10, 0, -1):
    lam, lam_back, u = lam + 1, lam_back + 1, forward(SAVES[j])  # w_j = (1, 1); u starts anew from its saved value
    span = SAVES[j], SAVES[j - 1]
    both_of = lambda z, t: np.concatenate([-f_u(forward(t)).T @ z[:2], -f_p(forward(t)).T @ z[:2]])
    all_of = lambda z, t: np.concatenate([f(z[:2]), -f_u(z[:2]).T @ z[2:4], -f_p(z[:2]).T @ z[2:4]])
    found = integrate(both_of, span, np.concatenate([lam, joint]))
    back = integrate(all_of, span, np.concatenate([u, lam_back, backsolved]))
    integrand = lambda t, of=found.sol: f_p(forward(t)).T @ of(t)[:2]
    kronrod = kronrod + quad_vec(integrand, span[1], span[0], epsabs=1e-12)[0]
    for start, end in zip(found.t[:-1], found.t[1:], strict=True):
        nodes = (start + end) / 2 + (end - start) / 2 * x_gauss
        gauss = gauss - (end - start) / 2 * sum(b * integrand(t) for b, t in zip(b_gauss, nodes, strict=True))
    pieces.append(found)
    lam, joint = found.y[:2, -1], found.y[2:, -1]
    lam_back, backsolved = back.y[2:4, -1], back.y[4:, -1]

print("by hand          ", joint)
print("odesens, default ", np.asarray(jax.jit(jax.grad(loss))(p)))
ENGINES = {
    "InterpolatingAdjoint": (ode.InterpolatingAdjoint(), joint),
    "QuadratureAdjoint": (ode.QuadratureAdjoint(), kronrod),
    "GaussAdjoint": (ode.GaussAdjoint(), gauss),
    "BacksolveAdjoint": (ode.BacksolveAdjoint(), backsolved),
    "ForwardSensitivity": (ode.ForwardSensitivity(), joint),
}
for name, (engine, hand) in ENGINES.items():
    value = lambda p, engine=engine: jnp.sum(
        ode.solve(prob, p=p, saveat=SAVES, reltol=1e-10, abstol=1e-10, sensealg=engine).u
    )
    print(f"{name:21s} differs from its equations by hand by {apart(jax.jit(jax.grad(value))(p), hand):.0e}")

# %%
figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
fine = np.linspace(0, 10, 500)
for k, name in enumerate(["prey", "predators"]):
    above.plot(fine, forward(fine)[k], color=f"C{k}", label=f"$u_{k + 1}$, {name}")
    for number, piece in enumerate(pieces):
        ts = np.linspace(*piece.t[[0, -1]], 60)
        label = rf"$\lambda_{k + 1}$" if number == 0 else None
        below.plot(ts, piece.sol(ts)[k], color=f"C{k}", label=label)
above.set(ylabel="populations", title=r"The state forwards, the adjoint state backwards: a jump by $w_j$ at each save")
below.set(xlabel="t (the sweep goes from right to left)", ylabel="adjoint state")
for ax in (above, below):
    ax.vlines(SAVES, *ax.get_ylim(), color="0.85", zorder=0)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ### Why backsolving is unstable
#
# `BacksolveAdjoint` integrates $u' = f$ backwards. A perturbation $\delta u$ obeys $\delta u' = f_u\, \delta u$, so
# what decays like $e^{-kt}$ forwards grows like $e^{k (t_1 - t)}$ backwards: the solver's own errors are multiplied by
# that. The adjoint equation is no such trouble, as $-f_u^T$ backwards is as stable as $f_u$ forwards. Starting anew
# from the saved state at each save (`restart=True`) bounds the growth by that over one interval between saves.
#
# The picture shows it for $u' = -k (u - \cos t)$ with $k = 8$, whose solution is known.


# %%
def relaxed(k, t):
    """u(t) from u(0) = 0."""
    settled = lambda t: (k**2 * jnp.cos(t) + k * jnp.sin(t)) / (k**2 + 1)
    return settled(t) - settled(0.0) * jnp.exp(-k * t)


relaxation = ode.ODEProblem(lambda t, u, k: -k * (u - jnp.cos(t)), 0.0, (0.0, 4.0), reltol=1e-9, abstol=1e-9)
k, STOPS = 8.0, np.linspace(0.0, 4.0, 9)


@jax.jit
def back(u1, t1, ts):
    return ode.solve(relaxation, u0=u1, p=k, tspan=(t1, ts[-1]), saveat=ts).u


whole = np.linspace(4, 0, 201)
alone = np.abs(back(relaxed(k, 4.0), 4.0, whole) - relaxed(k, whole))
figure, ax = plt.subplots(figsize=(8, 3.5))
ax.semilogy(whole, alone, label="from the final state alone")
for number, (end, start) in enumerate(zip(STOPS[:0:-1], STOPS[-2::-1], strict=True)):
    ts = np.linspace(end, start, 201)
    label = "starting anew at each save" if number == 0 else None
    ax.semilogy(ts, np.abs(back(relaxed(k, end), end, ts) - relaxed(k, ts)) + 1e-17, color="C1", label=label)
ax.semilogy(whole, 1e-11 * np.exp(k * (4 - whole)), "k--", linewidth=1, label=r"$10^{-11}\, e^{k(t_1 - t)}$")
ax.set(xlabel="t (the sweep goes from right to left)", ylabel="error of u", ylim=(1e-15, 1e7))
ax.set(title="A solution that is forgotten forwards cannot be found again backwards")
ax.legend()
plt.show()

# %% [markdown]
# The gradient in $k$ of the sum of nine saves has that error. With `restart=False` it is a matter of the size of
# $k (t_1 - t_0)$ whether it means anything:

# %%
exact = lambda k: jnp.sum(relaxed(k, STOPS))
ways = {
    "BacksolveAdjoint(restart=False)": ode.BacksolveAdjoint(restart=False),
    "BacksolveAdjoint()": ode.BacksolveAdjoint(),
    "GaussAdjoint()": ode.GaussAdjoint(),
    "DiscreteAdjoint()": ode.DiscreteAdjoint(),
}
print(f"{'relative error of the gradient':34s}" + "".join(f"k = {k:<8}" for k in (1, 4, 8)))
for name, engine in ways.items():
    total = lambda k, engine=engine: jnp.sum(ode.solve(relaxation, p=k, saveat=STOPS, sensealg=engine).u)
    gradient = jax.jit(jax.grad(total))
    errors = [apart(gradient(k), jax.grad(exact)(k)) for k in (1.0, 4.0, 8.0)]
    print(f"{name:34s}" + "".join(f"{e:<12.0e}" for e in errors))

# %% [markdown]
# ## Implicit methods
#
# The stages of a Rosenbrock method solve linear equations, those of an ESDIRK method nonlinear ones:
#
# $$W k_i = f(t + c_i \mathrm{dt},\ u + \mathrm{dt} \sum_{j<i} a_{ij} k_j) + M \sum_{j<i} \mathrm{coupling}_{ij} k_j + d_i\, \mathrm{dt} f_t,
#   \qquad W = \frac{1}{\gamma} M - \mathrm{dt} f_u(t, u),$$
#
# $$M k_i = f\Big(t + c_i \mathrm{dt},\ u + \mathrm{dt} \sum_{j<i} a_{ij} k_j + \mathrm{dt}\, \gamma k_i\Big).$$
#
# A linear solve $W k = b$ has the tangent $W \dot k = \dot b - \dot W k$ and the transpose $W^T \bar b = \bar k$: both
# use the factors of $W$ that the step has anyway (`jax.lax.custom_linear_solve`). A stage equation $F(k; u, p) = 0$
# has, by the implicit function theorem,
#
# $$F_k\, \dot k = -F_u \dot u - F_p \dot p$$
#
# (`jax.lax.custom_root`), a linear solve again, so that this too holds at every order. Newton's iterations are never
# differentiated. For FBDF the unknown is the next state in place of $k$.
#
# On $u' = -q u$ one step multiplies $u$ by the method's stability function $R(z)$, $z = -q\, \mathrm{dt}$, and the
# derivative in $q$ must be $-\mathrm{dt} R'(z)$, to rounding, although it is far from the derivative of $e^z$ for so
# large a step. For ESDIRK methods $R(z) = 1 + z b^T (I - z A)^{-1} \mathbf{1}$, for `Rosenbrock23` it is
# $(1 + (1 - 2 \gamma) z) / (1 - \gamma z)^2$ with $\gamma = 1 / (2 + \sqrt{2})$.

# %%
decay = ode.ODEProblem(lambda t, u, q: -q * u, 1.0, (0.0, 0.5))


def runge_kutta(tableau):
    a, b = jnp.asarray(tableau.A, float), jnp.asarray(tableau.B, float)
    return lambda z: 1 + z * b @ jnp.linalg.solve(jnp.eye(b.size) - z * a, jnp.ones(b.size))


gamma = 1 / (2 + np.sqrt(2))
METHODS = {
    ode.KenCarp4(): runge_kutta(ode.KenCarp4().tableau),
    ode.Rosenbrock23(): lambda z: (1 + (1 - 2 * gamma) * z) / (1 - gamma * z) ** 2,
}
print(f"of the flow itself: {-0.5 * np.exp(-1.5):.6f}")
for alg, R in METHODS.items():
    one_step = lambda q, alg=alg: ode.solve(decay, alg, p=q, saveat=[0.5], adaptive=False, dt0=0.5, reltol=1e-12).u[0]
    derivatives = lambda f: jax.value_and_grad(jax.grad(f))
    got, want = jax.jit(derivatives(one_step))(3.0), derivatives(lambda q, R=R: R(-q * 0.5))(3.0)
    errors = f"{apart(got[0], want[0]):.0e}, the second derivative by {apart(got[1], want[1]):.0e}"
    print(f"of a step of {type(alg).__name__:13s} {got[0]:.6f}, differs from -dt R'(z) by {errors}")

# %% [markdown]
# ## Mass matrices and algebraic equations
#
# Where $M$ is singular, $M u' = f(t, u, p)$ is a system of differential and algebraic equations. Let the columns of $N$
# and $V$ span the null spaces of $M^T$ and $M$: the algebraic equations are $N^T f = 0$, and $V y$ is the part of $u$
# that $M u$ does not determine. Index 1 means that $N^T f_u V$ is regular.
#
# *Initial values.* What $M u_0$ fixes is kept; $y$ solves $N^T f(t_0, u_0 + V y, p) = 0$ by Newton's method and is
# differentiated by the implicit function theorem.
#
# *The velocity* $u'$, which some stages and the derivatives in times need, comes from $N^T f = 0$ differentiated in
# time:
#
# $$(M + N N^T f_u)\, u' = f - N N^T f_t .$$
#
# *The adjoint.* $M^T \lambda' = -f_u^T \lambda$, with $\bar u = M^T \lambda(t_0)$. A cotangent may act on an algebraic
# state, which is bound to the others: a change of $u$ at $t_j$ obeys
# $B\, \delta u = M\, \delta u - N N^T f_p\, \delta p$ with $B = M + N N^T f_u$, and so
#
# $$\nu_j = B^{-T} w_j, \qquad \lambda(t_j^-) = \lambda(t_j^+) + \nu_j, \qquad
#   \bar p \text{ gets } -f_p^T N N^T \nu_j \text{ besides the integral.}$$
#
# $\lambda$ has algebraic equations of its own, $V^T f_u^T \lambda = 0$, which an impulse violates;
# $(M^T + V V^T f_u^T) \lambda = M^T \lambda$ restores them.
#
# The smallest example: $u_1' = -p_1 u_1 + u_2$, $0 = u_2 - p_2 u_1$, so that $u_1 = u_1(0)\, e^{(p_2 - p_1) t}$. The
# loss is of both states; the second component of `u0` is a guess, whose gradient is zero.

# %%
dae = ode.ODEProblem(
    lambda t, u, p: jnp.stack([-p[0] * u[0] + u[1], u[1] - p[1] * u[0]]), None, (0.0, 1.0), mass_matrix=[1.0, 0.0]
)


def of_dae(engine):
    def value(v):
        us = ode.solve(dae, u0=v[:2], p=v[2:], saveat=[0.5, 1.0], reltol=1e-10, abstol=1e-10, sensealg=engine).u
        return jnp.sum(us * jnp.array([1.0, 3.0]))

    return value


exact = lambda v: jnp.sum(v[0] * jnp.exp((v[3] - v[2]) * np.array([0.5, 1.0]))) * (1 + 3 * v[3])
v = np.array([2.0, 77.0, 1.0, 0.4])
print("closed form        ", np.asarray(jax.grad(exact)(v)))
for engine in (ode.DiscreteAdjoint(), ode.GaussAdjoint()):
    gradient = jax.jit(jax.grad(of_dae(engine)))(v)
    print(f"{type(engine).__name__:19s}", gradient, f" differs by {apart(gradient, jax.grad(exact)(v)):.0e}")

# %% [markdown]
# ## Events and jumps
#
# A solve with events is a chain of smooth solves. With the events' times $T_k$ and their order known from the solve,
# and held fixed, each link is a map with the derivatives of the true solution ($N$ is the short flow from above):
#
# $$u_k^- = \Phi(u_{k-1}^+, p_{k-1}; T_{k-1}, T_k) \qquad \text{the solve up to } T_k,$$
#
# $$\tau_k: \quad g_k\big(T_k + \tau_k, N(T_k, u_k^-, \tau_k), p\big) = 0 \qquad \text{how far the event moves},$$
#
# $$b_k = N(T_k, u_k^-, \tau_k), \qquad (a_k, p_k) = \mathrm{affect}(T_k + \tau_k, b_k, p_{k-1}) \qquad \text{the jump, there},$$
#
# $$u_k^+ = N(T_k + \tau_k, a_k, -\tau_k) \qquad \text{back to } T_k, \text{ with the field after the jump}.$$
#
# $\tau_k$ is zero wherever this is evaluated; its derivatives are those of the implicit function theorem, of every
# order. The times of the event, the states before and after it are results of the primitive with derivatives of their
# own. All first derivatives of jumps that textbooks list follow. With $a(t, u, p)$ the state after the jump, $f^-$ and
# $f^+$ the fields before and after it, and $s^-$ the tangent just before it:
#
# **The event's time.** $\displaystyle \dot T = -\frac{g_u s^- + g_p \dot p}{g_t + g_u f^-}$.
#
# **The saltation matrix.** $\dot u^+ = a_u (s^- + f^- \dot T) + a_t \dot T + a_p \dot p - f^+ \dot T$, in matrix form
# for $\dot p = 0$
#
# $$s^+ = \Big(a_u + \frac{(f^+ - a_t - a_u f^-)\, g_u}{g_t + g_u f^-}\Big) s^- .$$
#
# **A jump of parameters.** $p_k$ are inputs of the next segment like any other: their tangents are
# $\dot p_k = q_t \dot T + q_u (s^- + f^- \dot T) + q_p \dot p$ for $p_k = q(t, u, p)$, their cotangents are those of
# $p$ in that segment, handed back through $q$. The field after the jump, $f^+$, has the new parameters.
#
# **A known time** $s$. $\tau = s - T$, so $\dot T = \dot s$, and with $\dot s$ alone
# $\dot u^+ = (a_u f^- + a_t - f^+)\, \dot s$.
#
# A bouncing ball has $u = (\text{height}, \text{speed})$, $g = u_1$, $a = (0, -e u_2)$. Its motion between bounces is
# known, so the derivative of the final state is the product of free fall, saltation matrix, and free fall:

# %%
bounce = ode.ContinuousCallback(lambda t, u, e: u[0], lambda t, u, e: jnp.stack([0.0, -e * u[1]]), direction=-1)
ball = ode.ODEProblem(
    lambda t, u, e: jnp.stack([u[1], -9.81]), None, (0.0, 0.8), 0.7, callback=bounce, max_events=2, reltol=1e-9
)
GRID = np.linspace(0, 0.8, 801)


@jax.jit
def fall(u0):
    sol = ode.solve(ball, u0=u0, saveat=GRID)
    return sol.u, sol.events.t[0]


start = np.array([1.0, 0.0])
T = np.sqrt(2 * start[0] / 9.81)
free = lambda t: np.array([[1.0, t], [0.0, 1.0]])
speed, e = -9.81 * T, 0.7
before, after, a_u = np.array([speed, -9.81]), np.array([-e * speed, -9.81]), np.array([[0, 0], [0, -e]])
g_u = np.array([1.0, 0.0])
saltation = a_u + np.outer(after - a_u @ before, g_u) / (g_u @ before)
final = jax.jit(jax.jacrev(lambda u0: (fall(u0)[0][-1], fall(u0)[1])))(start)
print("saltation matrix\n", saltation)
print("derivative of the final state differs by", f"{apart(final[0], free(0.8 - T) @ saltation @ free(T)):.0e}")
print("derivative of the event's time differs by", f"{apart(final[1], -(g_u @ free(T)) / (g_u @ before)):.0e}")

# %%
delta = np.array([0.08, 0.0])
(us, time), (moved, later) = fall(start), fall(start + delta)
predicted = np.where(GRID[:, None] < T, delta, [free(t - T) @ saltation @ free(T) @ delta for t in GRID])
predicted = np.where(GRID[:, None] < T, [free(t) @ delta for t in GRID], predicted)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3))
left.plot(GRID, us[:, 0], label="from 1 m")
left.plot(GRID, moved[:, 0], label="from 1.08 m")
left.set(xlabel="t, s", ylabel="height, m", title="Two falls")
right.plot(GRID, moved[:, 1] - us[:, 1], color="C2", label="difference of the two")
right.plot(GRID, predicted[:, 1], "k--", linewidth=1.2, label="by the saltation matrix")
right.axvspan(float(time), float(later), color="0.9", label="between the bounces")
right.set(xlabel="t, s", ylabel="difference of speeds, m/s", ylim=(-1, 0.5), title="Their difference, predicted")
for ax in (left, right):
    ax.legend(fontsize=8, loc="lower left")
plt.show()

# %% [markdown]
# Between the two bounces, in the grey strip, the speeds differ by the whole jump (7.6 m/s, beyond the picture), however
# small the perturbation is. The strip shrinks with it, and everywhere else the difference is what the saltation matrix
# says.
#
# A jump of a parameter, and a known time: $u' = -q u$ with $u(0) = 1$, a dose $D$ at time $s$, where $q$ becomes $q c$
# from then on. So $u(1) = (e^{-q s} + D)\, e^{-q c (1 - s)}$, and all its derivatives are known, the one in $s$ among
# them, of second order too:

# %%
dose = ode.PresetTimeCallback(lambda p: p["s"][None], lambda t, u, p: (u + p["D"], {**p, "q": p["q"] * p["c"]}))
fine = {"reltol": 1e-11, "abstol": 1e-11}
dosed = ode.ODEProblem(lambda t, u, p: -p["q"] * u, 1.0, (0.0, 1.0), callback=dose, max_events=1, **fine)
named = lambda v: dict(zip(("q", "D", "c", "s"), v, strict=True))
last = lambda v: ode.solve(dosed, p=named(v), saveat=[1.0]).u[0]
exact = lambda v: (jnp.exp(-v[0] * v[3]) + v[1]) * jnp.exp(-v[0] * v[2] * (1 - v[3]))
v = np.array([0.8, 0.5, 2.0, 0.35])
d = np.array([1.0, -0.5, 0.3, 0.7])
second = lambda f: lambda v: jax.jvp(jax.grad(f), (v,), (d,))
got, want = jax.jit(second(last))(v), second(exact)(v)
print("gradient in q, D, c, s ", got[0], f" differs from the closed form by {apart(got[0], want[0]):.0e}")
print("Hessian times d        ", got[1], f" differs from the closed form by {apart(got[1], want[1]):.0e}")

# %% [markdown]
# ## Steady states
#
# A state at rest is a root of $f(\infty, u, p) = 0$. By the implicit function theorem
#
# $$f_u\, \dot u = -f_p\, \dot p, \qquad \bar p = -f_p^T (f_u^T)^{-1} w,$$
#
# solved exactly at the root, whatever found it: Newton's method (`SSRootfind`) or integration in time (`DynamicSS`).
# The first guess has no influence and a zero gradient. With $f = p_1 - u^{p_2}$ the root is $p_1^{1 / p_2}$:

# %%
rest = ode.SteadyStateProblem(lambda t, u, p: p[0] - u ** p[1], 1.0)
at_rest = lambda p: ode.solve(rest, p=p).u
exact = lambda p: p[0] ** (1 / p[1])
q = np.array([2.0, 3.0])
print("gradient", np.asarray(jax.grad(at_rest)(q)), "closed form", np.asarray(jax.grad(exact)(q)))
print(f"Hessian differs by {apart(jax.jit(jax.hessian(at_rest))(q), jax.hessian(exact)(q)):.0e}")

# %% [markdown]
# ## Memory: K rows, whatever the number of steps
#
# The backward pass needs the accepted steps, the last first. They go into a buffer of $K$ rows (1 024, or fewer for
# large states). When the rows are full every second one is kept and the stride doubles, so that afterwards a row stands
# for two steps, then four. The backward pass makes the steps between two rows again, in chunks of 128, and where a gap
# is longer than a chunk it is divided first. So up to $K$ steps cost nothing more, up to $128 K$ one solve more, and
# memory does not grow. Row by row the controller's memory is kept too, so that the steps made again are the same ones.
#
# The picture plays that with 16 rows. Below it, 5 000 steps of Euler's method, more than there are rows:
# $u_n = (1 - q h)^n$ and its derivative $-n h (1 - q h)^{n - 1}$.

# %%
K, rows, stride, shown = 16, [], 1, []
for step in range(200):
    if step % stride == 0:
        if len(rows) == K:
            rows, stride = rows[::2], 2 * stride
        if step % stride == 0:
            rows = [*rows, step]
    shown += [(step, row) for row in rows]
figure, ax = plt.subplots(figsize=(8, 3.3))
ax.plot(*zip(*shown, strict=True), "s", markersize=1.6)
ax.set(xlabel="steps taken so far", ylabel="steps whose state is kept")
ax.set(title="At most 16 rows: the stride doubles each time they are full")
plt.show()

count, h = 5000, 1 / 5000
euler = lambda q: ode.solve(decay, ode.Euler(), p=q, tspan=(0.0, 1.0), saveat=[1.0], adaptive=False, dt0=h).u[0]
slope = jax.jit(jax.grad(euler))(3.0)
print(f"derivative {slope:.14f}, differs by {apart(slope, -count * h * (1 - 3.0 * h) ** (count - 1)):.0e}")

# %% [markdown]
# ## Batches and ensembles
#
# `vmap` of a call records one more axis of lanes in it; nothing is traced again. The loop itself is written for lanes:
# they step side by side, one that has rejected a step or is done takes a step of length zero, and one row of the record
# holds all lanes. What `vmap` would make of a `while` loop with a record in it, a selection of whole buffers in each
# iteration, does not happen. An ensemble goes further: a lane that is done takes the next trajectory from a queue.
#
# A parameter that all lanes share is not copied, and its gradient is the sum over the lanes, taken inside:
# $\bar p = \sum_\ell \bar p_\ell$, one value in place of one for each lane.

# %%
starts = np.array([0.1, 0.3, 0.6])
total = lambda p: jnp.sum(jax.vmap(lambda u0: ode.solve(growth, u0=u0, p=p, saveat=TIMES, reltol=1e-10).u)(starts))
program = jax.make_jaxpr(jax.grad(total))(r[1:]).jaxpr
print(calls(program), "with the results", [v.aval.str_short() for v in program.outvars])
one_by_one = sum(jax.grad(lambda p, s=s: jnp.sum(closed(jnp.concatenate([jnp.array([s]), p]))))(r[1:]) for s in starts)
print(f"differs from the sum over the closed forms by {apart(jax.jit(jax.grad(total))(r[1:]), one_by_one):.0e}")

# %% [markdown]
# ## Complex states
#
# The pairing is JAX's, $\langle w, x \rangle = \mathrm{Re} \sum_i w_i x_i$, without a conjugate. All engines use
# `jax.vjp` of $f$ for $f_u^T \lambda$, so they agree with that whether or not $f$ is holomorphic, and a *real*
# parameter of a complex equation has a *real* gradient. Implicit methods solve for real and imaginary parts. With
# $u' = i q u$, $u(t) = u_0 e^{i q t}$, and $L = \mathrm{Re}\, u(1)$: $\partial L / \partial q = \mathrm{Re}(i\, u(1))$,
# and the gradient in $u_0$ is $e^{i q}$ in JAX's convention ($\dot L = \mathrm{Re}(\bar u\, \dot u_0)$).

# %%
turn = ode.ODEProblem(lambda t, u, q: 1j * q * u, None, (0.0, 1.0), reltol=1e-11, abstol=1e-11)
real_part = lambda u0, q: jnp.real(ode.solve(turn, u0=u0, p=q, saveat=[1.0]).u[0])
u0, q = 0.6 + 0.8j, 1.3
u_bar, q_bar = jax.jit(jax.grad(real_part, (0, 1)))(u0, q)
print(f"in u0: {u_bar:.12f}, e^(iq) = {np.exp(1j * q):.12f}")
print(f"in q:  {q_bar:.12f}, Re(i u(1)) = {np.real(1j * u0 * np.exp(1j * q)):.12f}")

# %% [markdown]
# ## Where it is
#
# | what | file in `odesens/` |
# |---|---|
# | the rules of the closure table | `primitive.py`; which operand is what: `call.py` |
# | times, initialisation, choice of the engine | `evaluate.py`, `taylor.py` |
# | engines | `sensitivity/`: `discrete`, `interpolating`, `quadrature`, `gauss`, `backsolve`, `forward`; the augmented field: `augment` |
# | events | finding them: `integrate/eventful.py`, `integrate/localise.py`; their derivatives: `segments.py` |
# | one step, linear algebra, consistent initial values | `methods/step.py`, `methods/linear.py`, `methods/initial.py` |
# | the record, the steps made again | `integrate/record.py`, `integrate/replay.py` |
# | lanes, the queue | `integrate/lanes.py`, `integrate/queue.py` |
# | steady states | `steady_state.py` |
#
# Sources: Hairer, Norsett, Wanner, *Solving Ordinary Differential Equations* I (tangent equations, internal
# differentiation) and II (implicit methods, index 1); Sandu, ICCS 2006 (discrete adjoints); Cao, Li, Petzold, Serban,
# SIAM J. Sci. Comput. 24 (2003) (adjoints of algebraic equations); Brown, Hindmarsh, Petzold, SIAM J. Sci. Comput. 19
# (1998) (consistent initial values); Galan, Feehery, Barton, Appl. Numer. Math. 31 (1999) (jumps); Norcliffe and
# Deisenroth, TMLR 2023 (Gauss nodes).
