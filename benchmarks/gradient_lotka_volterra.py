"""Solve and gradient of Lotka-Volterra, odesens beside its peers, in one interleaved run, against achieved error.

    python benchmarks/gradient_lotka_volterra.py [--flag] [--quick] [--engines] [--seconds 1.5] [--only odesens,diffrax]

u' on (0, 10), 101 saves, loss = sum of the saves, gradient in the four parameters; reference by SciPy's DOP853 at 1e-13
on the variational equations. `--engines` adds odesens' other sensitivity algorithms. Peers that are not installed are
left out. Results: results/gradient_lotka_volterra*.json and the table printed; `work_precision_plot.py` draws them.
"""

import harness
import jax.numpy as jnp
import numpy as np

P = np.array([1.5, 1.0, 3.0, 1.0])
U0 = np.array([1.0, 1.0])
T1 = 10.0
TS = np.linspace(0.0, T1, 101)
TOLERANCES = [1e-4, 1e-6, 1e-8, 1e-10]
ERRORS = [1e-4, 1e-6, 1e-8]


def field(t, u, p):
    x, y = u
    return jnp.stack([p[0] * x - p[1] * x * y, -p[2] * y + p[3] * x * y])


def variational(t, z):
    """Lotka-Volterra with its derivatives in p, in plain NumPy."""
    (x, y), s = z[:2], z[2:].reshape(2, 4)
    jac = np.array([[P[0] - P[1] * y, -P[1] * x], [P[3] * y, P[3] * x - P[2]]])
    by_p = np.array([[x, -x * y, 0, 0], [0, 0, -y, x * y]])
    return np.r_[P[0] * x - P[1] * x * y, -P[2] * y + P[3] * x * y, (jac @ s + by_p).ravel()]


def scipy_solution(tol) -> dict:
    from scipy.integrate import solve_ivp

    z0 = np.r_[U0, np.zeros(8)]
    z = solve_ivp(variational, (0, T1), z0, t_eval=TS, method="DOP853", rtol=tol, atol=tol).y
    return {"solve": z[:2].T, "gradient": z[2:].reshape(2, 4, -1).sum((0, 2))}


def scipy_dop853(tol):
    return {what: lambda what=what: scipy_solution(tol)[what] for what in ("solve", "gradient")}


def heyoka(tol):
    import heyoka as hy

    x, y = hy.make_vars("x", "y")
    q = [hy.par[i] for i in range(4)]
    system = [(x, q[0] * x - q[1] * x * y), (y, -q[2] * y + q[3] * x * y)]
    plain = hy.taylor_adaptive(system, list(U0), pars=list(P), tol=tol)
    extended = hy.var_ode_sys(system, hy.var_args.params, order=1)
    full = hy.taylor_adaptive(extended, list(U0), pars=list(P), tol=tol, compact_mode=True)
    start = full.state.copy()

    def solve():
        plain.time, plain.state[:] = 0.0, U0
        return plain.propagate_grid(TS)[5]

    def gradient():
        full.time, full.state[:] = 0.0, start
        return full.propagate_grid(TS)[5][:, 2:].reshape(-1, 2, 4).sum((0, 1))

    return {"solve": solve, "gradient": gradient}


PROBLEM = harness.Problem(field, U0, P, T1, TS)
PEERS = {
    "odesens Tsit5": harness.odesens(PROBLEM, "Tsit5"),
    "odesens Vern7": harness.odesens(PROBLEM, "Vern7"),
    "odesens Tsit5 GaussAdjoint": harness.odesens(PROBLEM, "Tsit5", "GaussAdjoint"),
    "diffrax Tsit5": harness.diffrax(PROBLEM, "Tsit5"),
    "diffrax Dopri8": harness.diffrax(PROBLEM, "Dopri8"),
    "jax odeint": harness.odeint(PROBLEM),
    "heyoka (variational)": heyoka,
    "scipy DOP853 (variational)": scipy_dop853,
}
ENGINES = ("InterpolatingAdjoint", "QuadratureAdjoint", "BacksolveAdjoint", "ForwardSensitivity")


def main():
    options = harness.arguments(
        __doc__,
        engines=(False, "odesens' other sensitivity algorithms too"),
        tolerances=("", "comma-separated"),
    )
    few = TOLERANCES[: 2 - options.engines] if options.quick else TOLERANCES
    tolerances = [float(x) for x in options.tolerances.split(",") if x] or few
    more = {f"odesens Tsit5 {engine}": harness.odesens(PROBLEM, "Tsit5", engine) for engine in ENGINES}
    reference = scipy_solution(1e-13)
    points = harness.work_precision(PEERS | (more if options.engines else {}), reference, tolerances, options)
    data = {"columns": harness.columns(reference), "points": points}
    name = "gradient_lotka_volterra" + "_engines" * options.engines
    harness.finish(name, options, data, harness.table(points, ERRORS, "diffrax Tsit5"))


if __name__ == "__main__":
    main()
