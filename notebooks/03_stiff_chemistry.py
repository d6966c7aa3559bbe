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
# # Stiff chemistry: a mechanism, its sensitivities, and a fit
#
# This notebook is for someone who has a reaction mechanism and data. It shows why such equations need a stiff method,
# solves one as an ODE and as a differential-algebraic equation (DAE), asks which of 34 rate constants decide how much
# ozone there is, and fits rate constants to noisy data with standard errors.
#
# Rate constants are positive and span many orders of magnitude, so all derivatives here are with respect to their
# **logarithms**: a derivative of 0.2 means that 1 % more of a rate constant gives 0.2 % more of the result.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

import odesens as ode

jax.config.update("jax_enable_x64", True)
np.set_printoptions(precision=6, suppress=True)
plt.rcParams.update({"figure.constrained_layout.use": True, "figure.dpi": 80})

# %% [markdown]
# ## Robertson's reactions
#
# Three species, three reactions, rate constants that differ by nine orders of magnitude (H. H. Robertson, 1966):
#
# $$A \xrightarrow{0.04} B, \qquad B + B \xrightarrow{3 \cdot 10^7} B + C, \qquad B + C \xrightarrow{10^4} A + C$$
#
# An explicit method must keep its step near $3 / |\lambda|$, where $\lambda$ is the fastest rate in the system, even
# when nothing fast is happening any more. A stiff method need not.


# %%
def rates(u, log_k):
    a, b, c = u
    return jnp.exp(log_k) * jnp.stack([a, b * b, b * c])


def robertson(t, u, log_k):
    r = rates(u, log_k)
    return jnp.stack([r[2] - r[0], r[0] - r[1] - r[2], r[1]])


LOG_K = np.log([0.04, 3e7, 1e4])
start = np.array([1.0, 0.0, 0.0])
prob = ode.ODEProblem(robertson, start, (0.0, 40.0), LOG_K, reltol=1e-6, abstol=1e-10)

for alg in (ode.Tsit5(), ode.AutoTsit5(ode.Rodas5P()), ode.Rodas5P()):
    sol = ode.solve(prob, alg)
    name = "AutoTsit5(Rodas5P)" if alg.implicit and alg != ode.Rodas5P() else type(alg).__name__
    s = sol.stats
    print(f"{name:19s} to t = 40: {s.naccept:6d} steps, {s.nf:7d} evaluations of f, {s.nfactor:4d} factorisations")
fastest = np.abs(np.linalg.eigvals(jax.jacfwd(robertson, argnums=1)(40.0, sol[-1], LOG_K))).max()
print(f"fastest rate at t = 40: {fastest:.0f}, so that an explicit method needs about {40 * fastest / 3:.0f} steps")

long = ode.solve(prob, ode.Rodas5P(), tspan=(0.0, 1e11))
print(f"Rodas5P             to t = 1e11: {long.stats.naccept} steps, {long.stats.nreject} rejected")

# %% [markdown]
# To $t = 10^{11}$, the explicit method would take more than $10^{14}$ steps. `AutoTsit5(Rodas5P())` begins with the
# explicit method and changes over when it notices stiffness; take it when you do not know.
#
# ### The same as a DAE
#
# The third equation can be replaced by conservation of mass, $0 = A + B + C - 1$. `mass_matrix=` multiplies $u'$: a
# zero on its diagonal makes that row an algebraic equation. The two forms agree.


# %%
def robertson_dae(t, u, log_k):
    return robertson(t, u, log_k).at[2].set(jnp.sum(u) - 1.0)


dae = ode.ODEProblem(
    robertson_dae, start, (0.0, 1e11), LOG_K, mass_matrix=np.diag([1.0, 1.0, 0.0]), reltol=1e-6, abstol=1e-10
)
as_dae = ode.solve(dae, ode.Rodas5P(), saveat=10.0 ** np.arange(-4, 12))
as_ode = ode.solve(prob, ode.Rodas5P(), tspan=(0.0, 1e11), saveat=as_dae.t)
assert np.allclose(as_dae.u, as_ode.u, rtol=1e-4, atol=1e-9)
assert np.allclose(jnp.sum(as_dae.u, axis=1), 1.0, atol=1e-9)  # mass is conserved

figure, axes = plt.subplots(figsize=(7, 3))
for i, (name, scale) in enumerate((("A", 1.0), ("B", 1e4), ("C", 1.0))):
    label = name if scale == 1 else f"{name} x $10^4$"
    axes.semilogx(long.t[1:], scale * long.u[1:, i], color=f"C{i}", label=label)
    axes.semilogx(as_dae.t, scale * as_dae.u[:, i], "o", color=f"C{i}", markersize=4)
axes.set(xlabel="t", ylabel="fraction", xlim=(2e-5, 2e11), title="Robertson: the ODE (lines) and the DAE (dots)")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ### Gradients
#
# The gradient of the mean of $A$ over saved times with respect to the three log rate constants, by two algorithms
# that share little: the exact derivative of the discrete solution (the default), and tangent equations solved with
# their own error control. Central differences confirm both.

# %%
times = np.geomspace(0.1, 1e5, 25)


def mean_a(log_k, sensealg=None):
    sol = ode.solve(
        prob, ode.Rodas5P(), p=log_k, tspan=(0.0, 1e5), saveat=times, reltol=1e-8, abstol=1e-12, sensealg=sensealg
    )
    return jnp.mean(sol.u[:, 0])


discrete = jax.jit(jax.grad(mean_a))(LOG_K)
tangent = jax.jit(jax.jacfwd(lambda log_k: mean_a(log_k, ode.ForwardSensitivity())))(LOG_K)
differences = [(mean_a(LOG_K + 1e-4 * e) - mean_a(LOG_K - 1e-4 * e)) / 2e-4 for e in np.eye(3)]
print("DiscreteAdjoint    ", discrete)
print("ForwardSensitivity ", tangent)
print("differences        ", np.array(differences))
assert np.allclose(discrete, tangent, rtol=1e-6) and np.allclose(discrete, differences, rtol=1e-5)

# %% [markdown]
# ## Ozone in polluted air
#
# A mechanism is a table, so write it as one: the reactions by which sunlight, nitrogen oxides and the oxidation of
# carbon monoxide, methane and formaldehyde make ozone. 16 species, 34 reactions, at 298 K and 1 atm.
#
# - Thermal rate constants, in cm³, molecules and seconds: the values at 298 K of the mechanism CB6r5 as tabulated with
#   EPA's [CMAQ](https://github.com/USEPA/CMAQ), most of them from the
#   [IUPAC evaluation](https://doi.org/10.5194/acp-4-1461-2004) (Atkinson et al., 2004). Of its minor channels some are
#   left out here.
# - Photolysis: $J = l \cos^m \chi \, e^{-n / \cos \chi}$ with the sun's zenith angle $\chi$ and the `l m n` of the
#   Master Chemical Mechanism ([Saunders et al., 2003](https://doi.org/10.5194/acp-3-161-2003)), clear sky.

# %%
MECHANISM = """
NO2             -> NO + O           ; 1.165e-02 0.244 0.267
O + O2 + M      -> O3               ; 6.10e-34
O3 + NO         -> NO2              ; 1.89e-14
O3              -> O                ; 4.775e-04 0.298 0.080
O3              -> O1D              ; 6.073e-05 1.743 0.474
O1D + M         -> O                ; 3.28e-11
O1D + H2O       -> OH + OH          ; 2.14e-10
O3 + OH         -> HO2              ; 7.26e-14
O3 + HO2        -> OH               ; 2.02e-15
OH + HO2        ->                  ; 1.11e-10
HO2 + HO2       -> H2O2             ; 2.90e-12
HO2 + HO2 + H2O -> H2O2             ; 6.50e-30
H2O2            -> OH + OH          ; 1.041e-05 0.723 0.279
H2O2 + OH       -> HO2              ; 1.80e-12
HO2 + NO        -> OH + NO2         ; 8.53e-12
NO2 + O3        -> NO3              ; 3.53e-17
NO3             -> NO2 + O          ; 1.747e-01 0.155 0.125
NO3             -> NO               ; 2.485e-02 0.168 0.108
NO3 + NO        -> NO2 + NO2        ; 2.60e-11
NO3 + NO2       -> N2O5             ; 1.24e-12
N2O5            -> NO3 + NO2        ; 4.54e-02
NO + OH         -> HONO             ; 9.76e-12
HONO            -> NO + OH          ; 2.644e-03 0.261 0.288
NO2 + OH        -> HNO3             ; 1.06e-11
CO + OH         -> HO2              ; 2.28e-13
CH4 + OH        -> CH3O2            ; 6.39e-15
CH3O2 + NO      -> HCHO + HO2 + NO2 ; 7.69e-12
CH3O2 + HO2     -> CH3OOH           ; 5.20e-12
CH3OOH + OH     -> CH3O2            ; 6.01e-12
CH3OOH + OH     -> HCHO + OH        ; 4.01e-12
CH3OOH          -> HCHO + HO2 + OH  ; 7.649e-06 0.682 0.279
HCHO + OH       -> HO2 + CO         ; 8.49e-12
HCHO            -> HO2 + HO2 + CO   ; 4.642e-05 0.762 0.353
HCHO            -> CO               ; 6.853e-05 0.477 0.323
"""
PPB = 2.46e10  # molecules per cm3 in 1e-9 of the air at 298 K, 1 atm
FIXED = {"M": 2.46e19, "O2": 5.15e18, "H2O": 3.8e17, "CH4": 1900 * PPB}  # constant, molecules per cm3


def names(side):
    return [name.strip() for name in side.split("+") if name.strip()]


lines = [line.replace("->", ";").split(";") for line in MECHANISM.strip().splitlines()]
REACTIONS = [(names(left), names(right), [float(x) for x in numbers.split()]) for left, right, numbers in lines]
LABELS = [" ".join(line.split(";")[0].split()) for line in MECHANISM.strip().splitlines()]
SPECIES = list(dict.fromkeys(s for left, right, _ in REACTIONS for s in left + right if s not in FIXED))
INDEX = {s: i for i, s in enumerate(SPECIES)}
print(len(SPECIES), "species, ", len(REACTIONS), "reactions:", " ".join(SPECIES))

# %% [markdown]
# The law of mass action needs three things from the table: the stoichiometric matrix, who reacts with whom, and the
# rate constants, turned into ppb and hours. The parameters `p` are the logarithms of factors on the rate constants:
# zero means as published. There is no Jacobian to write: the stiff method gets it from `f`.

# %%
n, m = len(SPECIES), len(REACTIONS)
stoichiometry, reactants = np.zeros((n, m)), np.full((2, m), n)  # reactant n is a 1: there is no second reactant
constants, sunlit, exponents = np.ones(m), np.zeros(m, bool), np.zeros((2, m))
for j, (left, right, numbers) in enumerate(REACTIONS):
    own = [INDEX[s] for s in left if s in INDEX]
    reactants[: len(own), j] = own
    constants[j] = numbers[0] * np.prod([FIXED[s] for s in left if s in FIXED]) * PPB ** (len(own) - 1) * 3600
    sunlit[j] = len(numbers) == 3
    exponents[:, j] = numbers[1:] or 0.0
    for i in own:
        stoichiometry[i, j] -= 1
    for s in right:
        stoichiometry[INDEX[s], j] += 1


def cos_zenith(hour):
    latitude, declination = np.radians([40.0, 23.4])  # midsummer at 40 degrees north
    noon = jnp.cos(2 * jnp.pi * (hour / 24 - 0.5))
    return np.sin(latitude) * np.sin(declination) + np.cos(latitude) * np.cos(declination) * noon


def air(t, u, p):  # u in ppb, t in hours of local solar time
    c = jnp.maximum(cos_zenith(t), 1e-3)  # night: exp(-n / 0.001) is zero
    k = jnp.exp(p) * constants * jnp.where(sunlit, c ** exponents[0] * jnp.exp(-exponents[1] / c), 1.0)
    x = jnp.append(u, 1.0)
    return stoichiometry @ (k * x[reactants[0]] * x[reactants[1]])


morning = np.zeros(n)
for s, ppb in {"O3": 40.0, "NO": 2.0, "NO2": 8.0, "CO": 300.0, "HCHO": 3.0, "H2O2": 1.0}.items():
    morning[INDEX[s]] = ppb
hours = np.linspace(6.0, 54.0, 97)
smog = ode.ODEProblem(air, morning, (6.0, 54.0), np.zeros(m), saveat=hours, reltol=1e-6, abstol=1e-8)
two_days = ode.solve(smog, ode.Rodas5P())
print(two_days)

fast = np.linalg.eigvals(jax.jacfwd(air, argnums=1)(12.0, two_days[12], np.zeros(m))).real.min() / 3600
print(f"fastest rate at noon: {-fast:.1e} per second (quenching of O1D)")

# %% [markdown]
# Two checks: nitrogen atoms are conserved, and SciPy's `Radau` finds the same. Ozone is made in daylight from NO$_2$;
# at night the fast exchange stops and NO$_3$ and N$_2$O$_5$ appear.

# %%
nitrogen = np.array([s.count("N") + s.count("N2") for s in SPECIES])  # N2O5 has two
assert np.allclose(two_days.u @ nitrogen, 10.0, rtol=1e-9)
f, jacobian = jax.jit(air), jax.jit(jax.jacfwd(air, argnums=1))
radau = solve_ivp(
    lambda t, u: np.array(f(t, u, np.zeros(m))),
    (6.0, 54.0),
    morning,
    method="Radau",
    jac=lambda t, u: np.array(jacobian(t, u, np.zeros(m))),
    t_eval=hours,
    rtol=1e-6,
    atol=1e-9,
)
assert np.allclose(radau.y.T, two_days.u, rtol=1e-4, atol=1e-6)

figure, axes = plt.subplots(2, 1, figsize=(7, 4.4), sharex=True)
for s in ("O3", "NO2", "NO", "HNO3"):
    axes[0].plot(hours, two_days.u[:, INDEX[s]], label=s)
for s, scale in (("OH", 1e3), ("HO2", 1e1), ("NO3", 1e0), ("N2O5", 1e0)):
    axes[1].plot(hours, scale * two_days.u[:, INDEX[s]], label=s if scale == 1 else f"{s} x {scale:.0f}")
for ax in axes:
    ax.fill_between(hours, 0, 1, where=cos_zenith(hours) < 0, transform=ax.get_xaxis_transform(), color="0.92")
    ax.set_ylabel("ppb")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
axes[1].set(xlabel="local solar time, hours", xticks=np.arange(6, 55, 6))
axes[0].set_title("Two days of one parcel of air (grey: night)")
plt.show()

# %% [markdown]
# ### Which rate constants matter?
#
# One reverse-mode gradient answers for all 34 at once: $\partial \log [\mathrm{O}_3] / \partial \log k_j$ for the ozone
# at 18:00 of the second day. Name the time in `saveat=`: under a transformation, a solve without saved times has a row
# for every step that `max_steps` allows.


# %%
def log_ozone(p, saveat):
    return jnp.log(ode.solve(smog, ode.Rodas5P(), p=p, saveat=saveat).u[:, INDEX["O3"]])


sensitivity = np.array(jax.jit(jax.grad(lambda p: log_ozone(p, jnp.array([42.0]))[0]))(np.zeros(m)))
order = np.argsort(np.abs(sensitivity))

figure, axes = plt.subplots(figsize=(7, 5.6))
axes.barh(np.arange(m), sensitivity[order], color=np.where(sunlit[order], "tab:orange", "tab:blue"))
axes.set_yticks(np.arange(m), [LABELS[j] for j in order], fontsize=7)
axes.axvline(0, color="black", linewidth=0.8)
axes.set(xlabel=r"$\partial \log$ O$_3$ / $\partial \log k$ at 18:00, second day", ylim=(-0.6, m - 0.4))
axes.set_title("Orange: photolysis, blue: thermal")
plt.show()

# %% [markdown]
# The loss of NO$_2$ to nitric acid, which ends the chain, comes first, then what carries the chain on. Quenching of O1D
# and its reaction with water compete for the same atom: equal and opposite.
#
# When each of them matters is a Jacobian: 97 times by 34 rate constants, in forward mode.

# %%
by_time = np.array(jax.jit(jax.jacfwd(lambda p: log_ozone(p, hours)))(np.zeros(m)))
assert np.allclose(by_time[72], sensitivity, rtol=1e-6, atol=1e-9)  # hours[72] is 42: both modes agree

figure, axes = plt.subplots(figsize=(7, 3.4))
for j in order[::-1][:7]:
    axes.plot(hours, by_time[:, j], label=LABELS[j])
axes.fill_between(hours, 0, 1, where=cos_zenith(hours) < 0, transform=axes.get_xaxis_transform(), color="0.92")
axes.set(xlabel="local solar time, hours", ylabel=r"$\partial \log$ O$_3$ / $\partial \log k$")
axes.set_xticks(np.arange(6, 55, 6))
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7)
plt.show()

# %% [markdown]
# The bar chart alone would mislead about O$_3$ $\to$ O1D: it is the source of OH, which makes ozone on the first day,
# while there is NO$_x$. On the second day little NO$_x$ is left, and the same reaction costs ozone.
#
# ## Fit rate constants to noisy data
#
# Back to Robertson: measurements of $A$ and of $10^4 B$ at 25 times, each with a normal error of 0.03, made up here
# from the true constants (seed 0). The unknowns are the three log rate constants; the prior is wide, a factor of $e^2$
# around first guesses that are wrong by factors of 3 to 5. All residuals divided by their standard deviations, prior
# included, form one vector $r$, and the negative log posterior is $\frac{1}{2} \lVert r \rVert^2$.

# %%
GUESS = LOG_K + np.log([3.0, 0.2, 4.0])
NOISE, PRIOR = 0.03, 2.0


def observed(log_k):
    sol = ode.solve(
        prob, ode.Rodas5P(), p=log_k, tspan=(0.0, 1e5), saveat=times, reltol=1e-8, abstol=1e-12, throw=False
    )
    return sol.u[:, :2] * jnp.array([1.0, 1e4])


data = observed(LOG_K) + NOISE * np.random.default_rng(0).normal(size=(times.size, 2))


def residuals(log_k):
    return jnp.concatenate([jnp.ravel(observed(log_k) - data) / NOISE, (log_k - GUESS) / PRIOR])


def negative_log_posterior(log_k):
    return 0.5 * jnp.sum(residuals(log_k) ** 2)


jacobian = jax.jit(jax.jacfwd(residuals))
fit = least_squares(jax.jit(residuals), GUESS, jac=lambda log_k: np.array(jacobian(log_k)), method="lm")
print(f"Levenberg-Marquardt: {fit.nfev} evaluations, -log posterior {fit.cost:.3f}")
print("k / true k: guess", np.exp(GUESS - LOG_K), " fit", np.exp(fit.x - LOG_K))

# %% [markdown]
# ### Standard errors
#
# Laplace's approximation takes the posterior as normal, with the inverse of the Hessian at the minimum as covariance.
# The Hessian is exact: forward mode twice, which is quick to compile and right for few unknowns (`jax.hessian` gives
# the same and suits many). The usual shortcut is linear propagation: $J^T J$ in its place, where $J$ is the Jacobian
# of $r$. It drops $\sum_i r_i \nabla^2 r_i$.

# %%
hessian = np.array(jax.jit(jax.jacfwd(jax.jacfwd(negative_log_posterior)))(fit.x))
J = np.array(jacobian(fit.x))
covariances = {"Laplace": np.linalg.inv(hessian), "linear": np.linalg.inv(J.T @ J)}
errors = {name: np.sqrt(np.diag(c)) for name, c in covariances.items()}
correlation = covariances["Laplace"] / np.outer(errors["Laplace"], errors["Laplace"])
print("log k - true     ", fit.x - LOG_K)
print("s.e., Laplace    ", errors["Laplace"])
print("s.e., linear     ", errors["linear"])
print("correlation\n", correlation)
ratio = np.array([1.0, 0.0, -1.0])
print(f"log(k1 / k3) - true {ratio @ (fit.x - LOG_K):.3f}, s.e. {np.sqrt(ratio @ covariances['Laplace'] @ ratio):.3f}")
assert np.allclose(hessian, hessian.T, rtol=1e-8) and np.linalg.eigvalsh(hessian).min() > 0
assert np.all(np.abs(fit.x - LOG_K) < 3 * errors["Laplace"])  # the truth is within three standard errors

pair = [0, 2]
figure, axes = plt.subplots(figsize=(5, 3.4))
circle = np.stack([np.cos(a := np.linspace(0, 2 * np.pi, 200)), np.sin(a)])
for (name, c), style in zip(covariances.items(), ("-", "--"), strict=True):
    ellipse = (fit.x - LOG_K)[pair, None] + np.sqrt(5.99) * np.linalg.cholesky(c[np.ix_(pair, pair)]) @ circle
    axes.plot(*ellipse, style, label=name)
axes.plot(*(fit.x - LOG_K)[pair], "o", color="C0", label="fit")
axes.plot(0, 0, "k+", markersize=10, label="truth")
axes.set(xlabel=r"$\log k_1$ - true", ylabel=r"$\log k_3$ - true", title="95 % regions")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# The two agree to a few percent, as they do where the model fits and the noise is small: the residuals change sign from
# one point to the next, so that the dropped sum nearly cancels. With a misfit, much noise or strong curvature it does
# not; then take the Hessian.
#
# The correlation of $k_1$ and $k_3$ is close to 1. The reason is in the chemistry: late in time $B$ is in balance,
# $B = k_1 A / (k_3 C)$, and $C' = k_2 B^2$, so that only the ratio $k_1 / k_3$ is seen. It is known better than either
# of the two, as its standard error above shows.
#
# ## What failure looks like
#
# A DAE must start on its algebraic equation. By default (`BrownBasic()`) the solve corrects the algebraic part of `u0`;
# with `CheckInit()` it refuses a start that is not consistent. Here $A + B + C = 1.1$:

# %%
bad = np.array([1.0, 0.0, 0.1])
print("BrownBasic, at t = 1e-4:", ode.solve(dae, ode.Rodas5P(), u0=bad, saveat=as_dae.t).u[0], "\n")
try:
    ode.solve(dae, ode.Rodas5P(), u0=bad, saveat=as_dae.t, initializealg=ode.CheckInit())
except ode.SolveError as error:
    print(error)

# %% [markdown]
# Under `jit` and `vmap` nothing can raise. The code is then an array of integers, and values that were not reached are
# NaN. The bad start does not disturb the good one.


# %%
@jax.jit
@jax.vmap
def checked(u0):
    sol = ode.solve(dae, ode.Rodas5P(), u0=u0, saveat=[1.0, 10.0], initializealg=ode.CheckInit())
    return sol.retcode, sol[-1]


codes, ends = checked(np.stack([start, bad]))
for code, end in zip(codes, ends, strict=True):
    print(f"{ode.ReturnCode(int(code)).name:22s}", end)
assert np.isfinite(ends[0]).all() and np.isnan(ends[1]).all()
