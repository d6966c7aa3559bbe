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
# # Models as equations
#
# This notebook is for someone who has a model on paper, as equations between named quantities, and would rather not
# turn it into a function `f(t, u, p)` by hand. `odesens.symbolic` takes the equations as they are, in SymPy's notation.
# It finds out what the state is, generates the function, and lets values go in and come out by name. What results is a
# problem like any other: the same solvers, the same derivatives.
#
# It needs SymPy: `pip install odesens[symbolic]`, and for its last section `pip install odesens[sbml]`.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import lambertw
from sympy import Eq, cos, exp, sin

import odesens as ode
from odesens.symbolic import (
    ContinuousEvent,
    D,
    System,
    connect,
    from_sbml,
    parameters,
    simplify,
    t,
    unknowns,
)

jax.config.update("jax_enable_x64", True)
np.set_printoptions(precision=6, suppress=True)
plt.rcParams.update({"figure.constrained_layout.use": True, "figure.dpi": 80})

# %% [markdown]
# ## Decay
#
# *Unknowns* are functions of time, *parameters* are not. `D(x)` is the derivative of `x` in time `t`. There may be as
# many other quantities as you like: here what is left of the substance, in percent, and its activity.

# %%
x, percent, activity = unknowns("x percent activity")
k = parameters("k", default=0.5)

decay = System(
    [Eq(D(x), -activity), Eq(activity, k * x), Eq(percent, 100 * x)],
    t,
    name="decay",
)
simplify(decay)

# %% [markdown]
# This is what `simplify` leaves: one equation for the one *state* `x`; the other two unknowns are *observed*, worked
# out when somebody asks for them. `ODEProblem` simplifies by itself. Values are given by symbol, or by the name as a
# string.

# %%
prob = ode.ODEProblem(decay, {x: 1.0}, (0.0, 1.0), {k: 0.5}, saveat=0.1, reltol=1e-10, abstol=1e-10)
sol = ode.solve(prob)

print("states:        ", prob.system.unknowns)
print("percent:       ", sol[percent])
print("any expression:", sol[activity / x + D(x)][:3])
print("between saves: ", sol(0.55, idxs=percent))
print("parameter:     ", sol.ps[k])

exact = np.exp(-0.5 * sol.t)
assert np.allclose(sol[percent], 100 * exact, rtol=1e-9)
assert np.allclose(sol["activity"], 0.5 * exact, rtol=1e-9)
assert np.isclose(sol(0.55, idxs=percent), 100 * np.exp(-0.275), rtol=1e-8)

# %% [markdown]
# Derivatives are JAX's. New values go to `solve` (or `remake`) by name, as many or as few as change:


# %%
def total(k_value, x_start):
    """The sum over the saved times."""
    return jnp.sum(ode.solve(prob, u0={x: x_start}, p={k: k_value})[x])


value, slopes = jax.value_and_grad(total, argnums=(0, 1))(0.5, 1.0)
print(f"{value:.9f}, in k {slopes[0]:.9f}, in x(0) {slopes[1]:.9f}")
assert np.allclose([value, *slopes], [exact.sum(), -np.sum(sol.t * exact), exact.sum()], rtol=1e-9)

# %% [markdown]
# All parameters at once are `prob.tunables`: a labelled vector, in the order of their first appearance in the system.
# Its derivatives carry the same labels. A parameter made with `tunable=False` is not among them.

# %%
gradient = jax.grad(lambda q: jnp.sum(ode.solve(prob, p=q)[x]))(prob.tunables)
print(gradient)
assert np.isclose(gradient[k], slopes[0], rtol=1e-12)

# %% [markdown]
# A mistake is answered in the model's own names:

# %%
for mistake in (
    lambda: ode.ODEProblem(decay, {}, (0.0, 1.0)),
    lambda: ode.remake(prob, p={"K": 0.4}),
    lambda: simplify(System([Eq(D(x), -activity), Eq(percent, 100 * x)], t)),
):
    try:
        mistake()
    except (ValueError, KeyError) as error:
        print(f"{type(error).__name__}: {error.args[0]}")

# %% [markdown]
# ## The pendulum, in Cartesian coordinates
#
# A mass on a rod of length $L$. In coordinates $x$, $y$ Newton's law and the rod are three equations for $x$, $y$ and
# the tension of the rod (here divided by mass and length):
#
# $$\ddot x = -\tau x, \qquad \ddot y = -\tau y - g, \qquad x^2 + y^2 = L^2$$
#
# No equation says what $\tau$ is, and the rod leaves only one of $x$, $y$ free. To find $\tau$ the third equation must
# be differentiated twice, and once more to get its rate: it is a DAE of *index 3*. `simplify` differentiates what is
# needed (Pantelides' question, answered by Pryce's method), and keeps as many states as there is freedom: *dummy
# derivatives*.
#
# The starting angle is a parameter of its own: the default of `x` is an expression of it. Which of $x$ and $y$ remains
# a state is our choice, by `state_priority`: near the bottom $x$ determines $y$, but $y$ does not tell left from right.

# %%
x = unknowns("x", state_priority=1)
y, tau = unknowns("y tau")
g, L, theta0 = parameters("g L theta0")

pendulum = System(
    [Eq(D(D(x)), -tau * x), Eq(D(D(y)), -tau * y - g), Eq(x**2 + y**2, L**2)],
    t,
    defaults={x: L * sin(theta0), D(x): 0.0},
    guesses={y: -1.0, tau: 10.0},
    name="pendulum",
)
print(simplify(pendulum))
simplify(pendulum)

# %% [markdown]
# Two states, $x$ and its derivative `x_t`; $y$ stays as an algebraic unknown, which the stiff method solves for along
# with them; $\dot y$, $\ddot y$ and $\tau$ are observed.
#
# The other way keeps all four states. `stabilization=r` replaces the constraint $c = 0$ by $(d/dt + r)^2 c = 0$, whose
# solutions return to it at the rate $r$ (Baumgarte): an ordinary equation, for explicit methods too.

# %%
simplify(pendulum, stabilization=5.0)

# %% [markdown]
# Both against the equation for the angle, $L \ddot\theta = -g \sin\theta$, with the same parameters.

# %%
theta = unknowns("theta")
angle = System([Eq(D(D(theta)), -g / L * sin(theta))], t, defaults={theta: theta0, D(theta): 0.0}, name="angle")

span, p, times = (0.0, 10.0), {g: 9.81, L: 1.3, theta0: 0.7}, np.linspace(0, 10, 201)
by_angle = ode.ODEProblem(angle, {}, span, p, reltol=1e-12, abstol=1e-12)
forms = {
    "dummy derivatives": ode.ODEProblem(pendulum, {}, span, p, reltol=1e-9, abstol=1e-9),
    "stabilization=5.0": ode.ODEProblem(pendulum, {}, span, p, stabilization=5.0, reltol=1e-9, abstol=1e-9),
}

exact = ode.solve(by_angle, ode.Vern7(), saveat=times)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
left.plot(exact.t, exact[L * sin(theta)], label="by the angle")
for (name, prob), marker in zip(forms.items(), ("o", "."), strict=True):
    sol = ode.solve(prob, saveat=times)
    error = jnp.abs(sol[[x, y]] - exact[[L * sin(theta), -L * cos(theta)]]).max()
    energy = sol[(D(x) ** 2 + D(y) ** 2) / 2 + g * y]
    rod = jnp.abs(sol[x**2 + y**2 - L**2]).max()
    print(f"{name}: error of x, y {error:.0e}, drift of energy {jnp.ptp(energy):.0e}, of the rod {rod:.0e}")
    assert error < 1e-7 and jnp.ptp(energy) < 1e-7 and rod < 1e-8
    left.plot(sol.t[::5], sol[x][::5], marker, label=name)
    right.semilogy(sol.t[1:], jnp.abs(energy - energy[0])[1:], label=name)
left.set(xlabel="t", ylabel="x", title="position", ylim=(-1, 2.2))
left.legend(loc="upper right")
right.set(xlabel="t", ylabel="|E(t) - E(0)|", title="change of the energy", ylim=(1e-12, 1e-7))
right.legend()
plt.show()

# %% [markdown]
# Errors and drifts below $10^{-7}$ over ten units of time at tolerances of $10^{-9}$. The gradient of the last $x$ in
# the length, the initial angle and $g$ goes through everything: the search for a consistent $y$ and $\tau$ at the start
# (of which only guesses were given), and the algebraic equations on the way.

# %%
last = lambda key, prob: lambda q: ode.solve(prob, p=q, saveat=[10.0])[key][0]
expected = jax.grad(last(L * sin(theta), by_angle))(by_angle.tunables)
print(f"{'by the angle':18s}", expected)
for name, prob in forms.items():
    gradient = jax.grad(last(x, prob))(prob.tunables)
    print(f"{name:18s}", gradient)
    assert all(np.isclose(gradient[key], expected[key], rtol=1e-6) for key in (L, theta0, g))

# %% [markdown]
# Dummy derivatives are a choice, and a choice can fail. A pendulum that is let go above the horizontal passes $y = 0$,
# where $x$ does not determine how $y$ goes on. The stabilised form has made no choice:

# %%
high = {"p": {theta0: 2.5}, "guesses": {y: 1.0, tau: -5.0}}
sol = ode.solve(ode.remake(forms["stabilization=5.0"], **high), saveat=times)
exact = ode.solve(by_angle, ode.Vern7(), p={theta0: 2.5}, saveat=times)
error = jnp.abs(sol[[x, y]] - exact[[L * sin(theta), -L * cos(theta)]]).max()
print(f"stabilised: largest error of x, y {error:.0e}")
assert error < 1e-6

try:
    ode.solve(ode.remake(forms["dummy derivatives"], **high), saveat=times)
except ode.SolveError as failure:
    height = abs(sol(failure.t, idxs=y))
    print(f"dummy derivatives: {failure.retcode.name} at t = {failure.t:.4f}, where |y| = {height:.0e}")
    assert height < 1e-3

# %% [markdown]
# ## A network of components
#
# Larger models are put together from parts. A part is a function that returns a `System` with a name; what it shows to
# the outside are *connectors*, here pins with a voltage, which is equal wherever pins are connected, and a current,
# whose sum over connected pins is zero (Kirchhoff's laws).


# %%
def pin(name):
    return System([], t, symbols=[unknowns("v", connect="equal"), unknowns("i", connect="flow")], name=name)


def two_pins(name, law):
    """A part whose voltage and current obey a law; the current that goes in comes out again."""
    a, b = pin("a"), pin("b")
    v, i = unknowns("v i")
    return System([(v, a.v - b.v), (i, a.i), (a.i + b.i, 0), law(v, i)], t, systems=[a, b], name=name)


def resistor(name, ohms):
    R = parameters("R", default=ohms, unit="ohm")
    return two_pins(name, lambda v, i: (v, R * i))


def capacitor(name, farads):
    C = parameters("C", default=farads, unit="farad")
    return two_pins(name, lambda v, i: (i, C * D(v)))


def source(name, volts):
    E = parameters("E", default=volts, unit="volt", tunable=False)
    return two_pins(name, lambda v, i: (v, E))


def ground(name):
    a = pin("a")
    return System([(a.v, 0)], t, systems=[a], name=name)


# %% [markdown]
# Equations may be `Eq(lhs, rhs)` or simply pairs. SymPy's `Eq` tries to find out whether what it says is true, which is
# slow for long sums: in larger models write pairs, `equations(lhs, rhs)` for whole arrays, or `Eq(lhs, rhs,
# evaluate=False)`.
#
# A cable is a chain of sections, each a resistor along the line and a capacitor to the ground. A section is itself put
# together from parts: within it, names are short, from outside they are `s7.resistor.R`. The sum `lost` measures how
# late the far end is.


# %%
def section(name, ohms, farads):
    start, end, earth = pin("start"), pin("end"), pin("earth")
    r, c = resistor("resistor", ohms), capacitor("capacitor", farads)
    wires = [connect(start, r.a), connect(r.b, c.a, end), connect(c.b, earth)]
    return System(wires, t, systems=[start, end, earth, r, c], name=name, defaults={c.v: 0.0})


def cable(ohms, farads):
    battery, earth = source("battery", 1.0), ground("earth")
    parts = [section(f"s{k}", *values) for k, values in enumerate(zip(ohms, farads, strict=True), 1)]
    ports = [battery.a, *(port for s in parts for port in (s.start, s.end))]
    wires = [connect(a, b) for a, b in zip(ports[::2], ports[1::2], strict=False)]
    grounds = connect(battery.b, earth.a, *(s.earth for s in parts))
    lost = unknowns("lost", default=0.0)
    late = (D(lost), battery.E - parts[-1].capacitor.v)
    return System([*wires, grounds, late], t, systems=[battery, earth, *parts], name="cable")


small = simplify(cable([1.0] * 3, [1.0] * 3))
print(len(small.flat.unknowns), "unknowns, of which these are left:")
for equation in small.equations:
    print(equation.lhs, "=", equation.rhs)
assert len(small.flat.unknowns) == 63 and len(small.unknowns) == 4

# %% [markdown]
# 63 unknowns became four. Now 200 sections, each with values of its own. Repeated expressions are recognised and
# evaluated as arrays, so that the traced program does not grow with the model: JAX sees as few operations for 200
# sections as for 20, and a few more than for 3.

# %%
rng = np.random.default_rng(6)
ohms, farads = rng.uniform(0.5, 1.5, (2, 200))
cables = {n: ode.ODEProblem(cable(ohms[:n], farads[:n]), {}, (0.0, 50.0 * n**2)) for n in (3, 20, 200)}


def operations(function, *args):
    return len(jax.make_jaxpr(function)(*args).eqns)


sizes = []
for n, prob in cables.items():
    lost = lambda q, prob=prob: ode.solve(prob, ode.Rodas5P(), p=q)["lost"][-1]
    field, gradient = operations(prob.f, 0.0, prob.u0, prob.p), operations(jax.grad(lost), prob.tunables)
    sizes.append((field, gradient))
    unknown = len(prob.system.flat.unknowns)
    print(
        f"{n:3d} sections: {unknown:4d} unknowns, {len(prob.system.unknowns):3d} states, "
        f"{prob.f.generated.n_templates} different expressions, {field} operations in f, {gradient} in the gradient"
    )
assert sizes[1] == sizes[2] and sizes[0][1] == sizes[1][1]  # 200 sections need no more than 20

# %% [markdown]
# The slowest motion of such a cable takes more than $10^5$ times as long as the fastest: a stiff problem. It is linear,
# so that the eigenvectors of its matrix give the exact voltages.

# %%
prob, n = cables[200], 200
moments = np.array([100.0, 1e3, 5e3, 2e4])
sol = ode.solve(prob, ode.Rodas5P(), tspan=(0.0, 2e4), saveat=moments, reltol=1e-8, abstol=1e-10)
voltages = sol[[f"s{k}.capacitor.v" for k in range(1, n + 1)]]

conductance = np.diag(1 / ohms + np.append(1 / ohms[1:], 0)) - np.diag(1 / ohms[1:], 1) - np.diag(1 / ohms[1:], -1)
rates, modes = eigh(conductance, np.diag(farads))
exact = 1 - np.array([modes @ (np.exp(-rates * s) * (modes.T @ farads)) for s in moments])
print(f"ratio of the rates {rates.max() / rates.min():.0f}, largest error {np.abs(voltages - exact).max():.1e}")
assert rates.max() / rates.min() > 1e5 and np.abs(voltages - exact).max() < 1e-7

# %% [markdown]
# How late is the far end, and whose fault is it? The integral of what is missing there is Elmore's delay; with it comes
# the derivative in all 400 resistances and capacitances, by name. The delay has a closed form, $\sum_k C_k \sum_{j \le
# k} R_j$.

# %%
lost = lambda q: ode.solve(prob, ode.Rodas5P(), p=q, saveat=[prob.tspan[1]], reltol=1e-8, abstol=1e-10)["lost"][0]
delay, slopes = jax.value_and_grad(lost)(prob.tunables)
in_R = np.array([slopes[f"s{k}.resistor.R"] for k in range(1, n + 1)])
in_C = np.array([slopes[f"s{k}.capacitor.C"] for k in range(1, n + 1)])
assert np.isclose(delay, farads @ np.cumsum(ohms), rtol=1e-7)
assert np.allclose(in_R, np.cumsum(farads[::-1])[::-1], rtol=1e-6)
assert np.allclose(in_C, np.cumsum(ohms), rtol=1e-6)
print(f"delay {delay:.4f}; closed form {farads @ np.cumsum(ohms):.4f}; {len(slopes)} derivatives")

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
for s, solved, true in zip(moments, voltages, exact, strict=True):
    (line,) = left.plot(np.arange(1, n + 1), solved, label=f"{s:.0f} s")
    left.plot(np.arange(1, n + 1)[::10], true[::10], "o", color=line.get_color(), markersize=3)
left.set(xlabel="section", ylabel="volts", title="voltage: solved (lines), exact (dots)", ylim=(-0.05, 1.5))
left.legend(ncols=2, loc="upper right")
right.plot(np.arange(1, n + 1), in_R, label="in R of a section (s per ohm)")
right.plot(np.arange(1, n + 1), in_C, label="in C of a section (s per farad)")
right.set(xlabel="section", title="derivative of the delay")
right.legend()
plt.show()

# %% [markdown]
# ## Events
#
# What happens when something crosses zero is written like the rest: a condition, and what is assigned then, to unknowns
# or to parameters. A capacitor is charged through a resistor by a switch that turns over whenever the voltage reaches
# $\pm h$. Its period is $2 R C \ln \frac{1 + h}{1 - h}$.

# %%
v = unknowns("v", default=0.0)
R, C, h = parameters("R C h")
switch = parameters("switch", default=1.0, tunable=False)
oscillator = System(
    [(R * C * D(v), switch - v)],
    t,
    events=[
        ContinuousEvent(v - h, {switch: -1}, direction=1),
        ContinuousEvent(v + h, {switch: 1}, direction=-1),
    ],
    name="oscillator",
)
prob = ode.ODEProblem(
    oscillator, {}, (0.0, 6.0), {R: 2.0, C: 0.5, h: 0.5}, max_events=10, reltol=1e-9, abstol=1e-9, saveat=0.02
)


def period(q):
    sol = ode.solve(prob, p=q)
    return sol.events.t[2] - sol.events.t[0], sol


(value, sol), slopes = jax.value_and_grad(period, has_aux=True)(prob.tunables)
print(f"period {value:.9f}, exactly {2 * np.log(3):.9f};  its derivatives {slopes}")
expected = [2 * np.log(3), np.log(3), 4 * np.log(3), 16 / 3]
assert np.allclose([value, slopes[R], slopes[C], slopes[h]], expected, rtol=1e-6)

fig, ax = plt.subplots(figsize=(7, 2.5))
ax.plot(sol.t, sol[v], label="v")
ax.plot(sol.t, sol[switch], linewidth=1, label="switch")
ax.set(xlabel="t", ylabel="v and the switch")
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## A fit of named parameters
#
# Real data: the first subject of the theophylline study of [notebook 4](04_events_and_dosing.ipynb) (Upton, in
# Boeckmann, Sheiner and Beal, 1994; `Theoph` in R), a dose of 4.02 mg/kg by mouth and eleven concentrations in the
# blood. The model has the rates of absorption and elimination and the clearance, by their logarithms. The dose is
# known: it is not tunable.

# %%
hours = np.array([0, 0.25, 0.57, 1.12, 2.02, 3.82, 5.1, 7.03, 9.05, 12.12, 24.37])
measured = np.array([0.74, 2.84, 6.57, 10.5, 9.66, 8.58, 8.36, 7.47, 6.89, 5.94, 3.28])

gut, blood, concentration = unknowns("gut blood concentration")
lKa, lKe, lCl = parameters("lKa lKe lCl")
dose = parameters("dose", default=4.02, unit="mg/kg", tunable=False)
body = System(
    [Eq(D(gut), -exp(lKa) * gut), Eq(D(blood), exp(lKa) * gut - exp(lKe) * blood)],
    t,
    observed=[Eq(concentration, blood * exp(lKe - lCl))],
    defaults={gut: dose, blood: 0.0},
    name="body",
)
start = {lKa: 0.5, lKe: -2.5, lCl: -3.0}
prob = ode.ODEProblem(body, {}, (0.0, 25.0), start, saveat=hours, reltol=1e-9, abstol=1e-9)
print(prob.tunables)


def squares(q):
    return jnp.sum((measured - ode.solve(prob, p=q)[concentration]) ** 2) / 2


compiled = jax.jit(jax.value_and_grad(squares))


def value_and_slope(vector):
    value, slope = compiled(prob.tunables.replace(vector))
    return float(value), np.asarray(slope.array)


fit = minimize(value_and_slope, np.asarray(prob.tunables.array), jac=True, method="BFGS")
best = prob.tunables.replace(fit.x)
hessian = jax.jit(jax.hessian(squares))(best)
variance = 2 * fit.fun / (len(hours) - 3)
errors = np.sqrt(variance * np.diag(np.linalg.inv(hessian.array.array)))
for key, error in zip(best, errors, strict=True):
    print(f"{key:4s} {best[key]:8.4f} +- {error:.4f}")
print(f"residual standard error {np.sqrt(variance):.3f} mg/L on {len(hours) - 3} degrees of freedom")

# %% [markdown]
# The model has a closed form, so both the minimum and the Hessian can be had without a solver; and R's documentation of
# `SSfol` prints this very fit: 0.5752, -2.9196, -3.9159 in this order, residual standard error 0.732, and the errors
# 0.1728, 0.1709, 0.1273. They follow from the Jacobian of the concentrations alone, $J^T J$ in place of the Hessian.


# %%
def bateman(q):
    ka, ke, clearance = jnp.exp(q)
    return 4.02 * ke * ka / clearance / (ka - ke) * (jnp.exp(-ke * hours) - jnp.exp(-ka * hours))


closed_form = lambda q: jnp.sum((measured - bateman(q)) ** 2) / 2
slope, second, jacobian = jax.jit(
    lambda q: (jax.grad(closed_form)(q), jax.hessian(closed_form)(q), jax.jacfwd(bateman)(q))
)(best.array)
linear = np.sqrt(variance * np.diag(np.linalg.inv(jacobian.T @ jacobian)))
print("errors, by Hessian", errors)
print("errors, by J^T J  ", linear)
assert best.names == ("lKa", "lKe", "lCl")
assert np.abs(slope).max() < 1e-4 and np.allclose(hessian.array.array, second, rtol=1e-5, atol=1e-5)
assert np.allclose(best.array, [0.5752, -2.9196, -3.9159], atol=6e-5)
assert np.allclose(linear, [0.1728, 0.1709, 0.1273], atol=6e-5) and np.isclose(variance**0.5, 0.732, atol=5e-4)

# %%
fig, ax = plt.subplots(figsize=(6, 2.8))
sol = ode.solve(prob, p=best, saveat=0.1)
ax.plot(hours, measured, "o", markersize=4, label="measured")
ax.plot(sol.t, sol[concentration], label="fitted")
ax.set(xlabel="hours", ylabel="mg/L")
ax.legend()
plt.show()

# %% [markdown]
# ## Initial values that the equations determine
#
# The pendulum's $y$ and $\tau$ were never given. In general the unknowns at the start obey the algebraic equations, the
# given values, and *initial equations*, which hold at the start only. What is to be found needs a guess, and
# derivatives follow from the implicit function theorem.
#
# A diode in parallel to a capacitor, fed through a resistor, is to start at rest, $\dot v = 0$. That voltage has a
# closed form by Lambert's W function.

# %%
v, i = unknowns("v i")
E, R, C, I_s, V_T = parameters("E R C I_s V_T")
diode = System([Eq(C * D(v), (E - v) / R - i), Eq(i, I_s * (exp(v / V_T) - 1))], t, initial=[Eq(D(v), 0)], name="diode")
values = {E: 5.0, R: 1e3, C: 1e-6, I_s: 1e-12, V_T: 0.025}
at_rest = ode.ODEProblem(diode, {}, (0.0, 1e-3), values, guesses={v: 0.6})


def closed(E):
    a = 1e3 * 1e-12
    return E + a - 0.025 * lambertw(a / 0.025 * np.exp((E + a) / 0.025)).real


start = lambda volts: ode.remake(at_rest, p={E: volts}).u0[0]
value, slope = jax.value_and_grad(start)(5.0)
print(f"starts at {value:.9f}, by Lambert's W {closed(5.0):.9f}; derivative in E {slope:.9f}")
assert np.isclose(value, closed(5.0), rtol=1e-12)
assert np.isclose(slope, 1 / (1 + 1e3 * 1e-12 / 0.025 * np.exp(value / 0.025)), rtol=1e-10)

# %% [markdown]
# The same equations, asked differently: the voltage at rest was measured, and the saturation current $I_s$ is not
# known. A parameter with a guess in place of a value is solved for, from the same initial equation; `ps` shows it, and
# its derivative in the measured voltage is there too.

# %%
known = {key: value for key, value in values.items() if key != I_s}
calibrated = ode.ODEProblem(diode, {v: 0.65}, (0.0, 1e-3), known, guesses={I_s: 1e-12})
current = lambda volts: ode.remake(calibrated, u0={v: volts}).ps[I_s]
value, slope = jax.value_and_grad(current)(0.65)
by_hand = lambda volts: (5.0 - volts) / 1e3 / jnp.expm1(volts / 0.025)
print(f"I_s = {value:.6e}, by hand {by_hand(0.65):.6e}; derivative {slope:.6e}, by hand {jax.grad(by_hand)(0.65):.6e}")
assert np.allclose([value, slope], [by_hand(0.65), jax.grad(by_hand)(0.65)], rtol=1e-9, atol=0)

# %% [markdown]
# Where more is given than can hold, the equations say so, in the model's own terms:

# %%
try:
    ode.solve(ode.ODEProblem(diode, {v: 0.7}, (0.0, 1e-3), values))
except ode.SolveError as error:
    print(error)

# %% [markdown]
# ## A model from SBML
#
# Systems biology exchanges its models in SBML. `from_sbml` takes a path, or the XML itself, and gives a `System` whose
# symbols have the document's ids and whose defaults are the document's values. Here is a small model of a signalling
# pathway: a receptor's signal fades, as an assignment rule says; it phosphorylates a protein `S` of the cell, two of
# which form a dimer, which enters the nucleus, where it falls apart and is exported. The nucleus is the smaller
# compartment, so its concentrations change the faster.


# %%
def math(text):
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML">{text}</math>'


def times(*factors):
    inner = "".join(x if x.startswith("<") else f"<ci>{x}</ci>" for x in factors)
    return f"<apply><times/>{inner}</apply>"


def reaction(id, reactant, product, law, n=1, m=1):
    side = lambda what, x, n: f'<{what}><speciesReference species="{x}" stoichiometry="{n}" constant="true"/></{what}>'
    sides = side("listOfReactants", reactant, n) + side("listOfProducts", product, m)
    return (
        f'<reaction id="{id}" reversible="false" fast="false">{sides}<kineticLaw>{math(law)}</kineticLaw></reaction>'
    )


time = '<csymbol encoding="text" definitionURL="http://www.sbml.org/sbml/symbols/time">t</csymbol>'
flags = 'hasOnlySubstanceUnits="false" boundaryCondition="false" constant="false"'
amounts = dict(S=("cell", 1.0), pS=("cell", 0.0), dimer=("cell", 0.0), inside=("nucleus", 0.0))
rates = dict(phos=0.4, fade=0.05, join=0.8, enter=0.3, leave=0.1)
xml = f"""<?xml version="1.0" encoding="UTF-8"?>
<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core" level="3" version="1"><model id="pathway">
<listOfCompartments>
  <compartment id="cell" size="1.4" spatialDimensions="3" constant="true"/>
  <compartment id="nucleus" size="0.45" spatialDimensions="3" constant="true"/>
</listOfCompartments>
<listOfSpecies>{"".join(
    f'<species id="{id}" compartment="{place}" initialConcentration="{value}" {flags}/>'
    for id, (place, value) in amounts.items())}</listOfSpecies>
<listOfParameters>{"".join(f'<parameter id="{k}" value="{v}" constant="true"/>' for k, v in rates.items())}
  <parameter id="signal" constant="false"/><parameter id="active" constant="false"/>
</listOfParameters>
<listOfRules>
  <assignmentRule variable="signal">
    {math(f"<apply><exp/>{times('<cn>-1</cn>', 'fade', time)}</apply>")}
  </assignmentRule>
  <assignmentRule variable="active">
    {math("<apply><plus/><ci>pS</ci>" + times("<cn>2</cn>", "dimer") + "</apply>")}
  </assignmentRule>
</listOfRules>
<listOfReactions>
  {reaction("phosphorylation", "S", "pS", times("cell", "phos", "signal", "S"))}
  {reaction("dimerisation", "pS", "dimer", times("cell", "join", "pS", "pS"), n=2)}
  {reaction("import", "dimer", "inside", times("cell", "enter", "dimer"))}
  {reaction("export", "inside", "S", times("nucleus", "leave", "inside"), m=2)}
</listOfReactions></model></sbml>"""

pathway = from_sbml(xml)
print(pathway)
minutes = np.array([1.0, 2, 4, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60])
signalling = ode.ODEProblem(pathway, {}, (0.0, 60.0), saveat=minutes, reltol=1e-8, abstol=1e-10)
sol = ode.solve(signalling)
total = 1.4 * (sol[pathway.S] + sol[pathway.active]) + 0.45 * 2 * sol[pathway.inside]
print("the amount of protein, in all its forms:", total)
assert np.allclose(total, 1.4, rtol=1e-7)

# %% [markdown]
# `pathway.S` is a concentration, as in the document (it would be an amount with `hasOnlySubstanceUnits`), and
# `sol["import"]` is the rate of a reaction whose id Python does not accept as an attribute.
#
# Now the fit. Measured are `active`, the phosphorylated protein of the cell, and the dimer in the nucleus, with errors
# of some percent, whatever the size: normal on a logarithmic scale. The rates are estimated on such a scale too, as
# they may differ by orders of magnitude. The synthetic data are made here with random numbers of a fixed seed. Rates of
# successive steps can change places and fit nearly as well, so the search starts from several points.

# %%
names = list(rates)
truth = np.log10(list(rates.values()))
spread = 0.02  # standard deviation of log10 of a measurement


def log_observed(logs):
    sol = ode.solve(signalling, p=dict(zip(names, 10**logs)))
    return jnp.log10(jnp.stack([sol[pathway.active], sol[pathway.inside]]))


data = log_observed(truth) + spread * np.random.default_rng(3).normal(size=(2, len(minutes)))
negative_log_likelihood = lambda logs: jnp.sum(((log_observed(logs) - data) / spread) ** 2) / 2
compiled = jax.jit(jax.value_and_grad(negative_log_likelihood))
starts = np.random.default_rng(4).uniform(-1.5, 0.5, size=(8, len(names)))
fits = [minimize(lambda x: tuple(map(np.asarray, compiled(x))), start, jac=True, method="BFGS") for start in starts]
fit = min(fits, key=lambda fit: fit.fun)
print("negative log likelihoods found:", np.sort([fit.fun for fit in fits]))

jacobian = jax.jit(jax.jacfwd(log_observed))(fit.x).reshape(-1, len(names)) / spread
errors = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
for name, best, error, true in zip(names, fit.x, errors, truth):
    print(f"log10 {name:5s} {best:8.4f} +- {error:.4f}   made with {true:.4f}")
print(f"negative log likelihood {fit.fun:.2f} for {data.size} measurements")
assert np.all(np.abs(fit.x - truth) < 3 * errors) and np.max(errors) < 0.1

# %%
fig, ax = plt.subplots(figsize=(6, 2.8))
fine = ode.solve(signalling, p=dict(zip(names, 10**fit.x)), saveat=0.5)
for values, name in zip(data, ("active", "inside")):
    (line,) = ax.plot(fine.t[1:], fine[name][1:], label=name)
    ax.plot(minutes, 10**values, "o", markersize=4, color=line.get_color())
ax.set(xlabel="minutes", ylabel="concentration", yscale="log")
ax.legend()
plt.show()
