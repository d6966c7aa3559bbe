"""Solve and gradient of Lotka-Volterra, odesens beside its peers, in one interleaved run, against achieved error.

    python benchmarks/gradient_lotka_volterra.py [--flag] [--seconds 1.5] [--only odesens,diffrax]

u' on (0, 10), 101 saves, loss = sum of the saves, gradient in the four parameters; reference by SciPy's DOP853 at 1e-13
on the variational equations. `--flag` runs with XLA's limit for small loops lifted, for all JAX programs alike. Peers
that are not installed are left out. Results: results/gradient_lotka_volterra*.json and the table printed.
"""

import argparse
import os
import sys

FLAG = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=100000000"
if "--flag" in sys.argv:
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " " + FLAG

import harness  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)

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


def scipy_solution(tol):
    from scipy.integrate import solve_ivp

    z0 = np.r_[U0, np.zeros(8)]
    z = solve_ivp(variational, (0, T1), z0, t_eval=TS, method="DOP853", rtol=tol, atol=tol).y
    return z[:2].T, z[2:].reshape(2, 4, -1).sum((0, 2))


def jax_programs(solve):
    """(solve, gradient) as compiled zero-argument programs."""
    p = jnp.asarray(P)
    forward, backward = jax.jit(solve), jax.jit(jax.grad(lambda p: jnp.sum(solve(p))))
    return lambda: np.asarray(forward(p)), lambda: np.asarray(backward(p))


def odesens(alg, sensealg=None):
    def make(tol):
        import odesens as ode

        prob = ode.ODEProblem(field, U0, (0.0, T1), P)
        options = {"saveat": TS, "reltol": tol, "abstol": tol, "sensealg": sensealg and getattr(ode, sensealg)()}
        return jax_programs(lambda p: ode.solve(prob, getattr(ode, alg)(), p=p, **options).u)

    return make


def diffrax(solver, adjoint="RecursiveCheckpointAdjoint"):
    def make(tol):
        import diffrax as dx

        def solve(p):
            return dx.diffeqsolve(
                dx.ODETerm(field),
                getattr(dx, solver)(),
                0.0,
                T1,
                None,
                jnp.asarray(U0),
                p,
                saveat=dx.SaveAt(ts=jnp.asarray(TS)),
                stepsize_controller=dx.PIDController(rtol=tol, atol=tol),
                adjoint=getattr(dx, adjoint)(),
                max_steps=4096,
            ).ys

        return jax_programs(solve)

    return make


def jax_odeint(tol):
    from jax.experimental.ode import odeint

    swapped = lambda u, t, p: field(t, u, p)
    return jax_programs(lambda p: odeint(swapped, jnp.asarray(U0), jnp.asarray(TS), p, rtol=tol, atol=tol))


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

    return solve, gradient


def scipy_dop853(tol):
    return lambda: scipy_solution(tol)[0], lambda: scipy_solution(tol)[1]


PEERS = {
    "odesens Tsit5": odesens("Tsit5"),
    "odesens Vern7": odesens("Vern7"),
    "odesens Tsit5 GaussAdjoint": odesens("Tsit5", "GaussAdjoint"),
    "diffrax Tsit5": diffrax("Tsit5"),
    "diffrax Dopri8": diffrax("Dopri8"),
    "jax odeint": jax_odeint,
    "heyoka (variational)": heyoka,
    "scipy DOP853 (variational)": scipy_dop853,
}


def measure(only, seconds, tolerances) -> dict:
    """Points (tolerance, error and seconds of the solve, of the gradient) of each peer."""
    states, gradient = scipy_solution(1e-13)
    points = {}
    for tol in tolerances:
        programs, errors = {}, {}
        for name, make in PEERS.items():
            if only and not any(word in name for word in only):
                continue
            try:
                solve, grad = make(tol)
                errors[name] = harness.relative_error(solve(), states), harness.relative_error(grad(), gradient)
            except ImportError:
                continue
            programs[name, "solve"], programs[name, "gradient"] = solve, grad
        times = harness.interleaved(programs, seconds)
        for name, (e_solve, e_grad) in errors.items():
            row = [tol, e_solve, times[name, "solve"], e_grad, times[name, "gradient"]]
            points.setdefault(name, []).append(row)
            print(f"{tol:.0e}  {name:38s} solve {row[2] * 1e6:9.1f} us  gradient {row[4] * 1e6:9.1f} us", flush=True)
    return points


def table(points: dict) -> str:
    """Microseconds at equal achieved error, and the ratio to diffrax's default adjoint."""
    cell = lambda t: "-" if t is None else f"{t * 1e6:.0f}"
    heads = [f"{what} at {e:.0e}" for what in ("solve", "gradient") for e in ERRORS]
    lines = ["| microseconds | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    at = lambda rows, i, e: harness.at_error([(r[i], r[i + 1]) for r in rows], e)
    base = points.get("diffrax Tsit5", [])
    for name, rows in points.items():
        cells = []
        for i in (1, 3):
            for e in ERRORS:
                mine, theirs = at(rows, i, e), at(base, i, e)
                ratio = f" ({mine / theirs:.2f})" if mine and theirs else ""
                cells.append(cell(mine) + ratio)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--flag", action="store_true", help="lift XLA's limit for small loops")
    parser.add_argument("--seconds", type=float, default=1.0, help="timing of each program at each tolerance")
    parser.add_argument("--only", default="", help="comma-separated words of the peers' names")
    parser.add_argument("--tolerances", default="", help="comma-separated")
    options = parser.parse_args()
    tolerances = [float(x) for x in options.tolerances.split(",") if x] or TOLERANCES
    points = measure([w for w in options.only.split(",") if w], options.seconds, tolerances)
    text = table(points)
    name = "gradient_lotka_volterra" + ("_flag" if options.flag else "")
    columns = ["tolerance", "error of solve", "seconds of solve", "error of gradient", "seconds of gradient"]
    print(f"\n{text}\n\n{harness.save(name, {'columns': columns, 'points': points, 'table': text.splitlines()})}")
