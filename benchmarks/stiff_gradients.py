"""Robertson's and the HIRES reactions: solve, and gradient in all rate constants, beside diffrax and casadi's CVODES.

    python benchmarks/stiff_gradients.py [--flag] [--quick] [--problems rober,hires] [--seconds 0.4] [--only ..]

Robertson to t = 1e5, saves at 0 and at powers of ten; HIRES to 321.8122, eleven saves; loss = sum of the weighted
saves. Errors: of the weighted saves, and of the gradient in the logarithms of the rate constants (so that each counts),
against SciPy's Radau at 1e-11 on the variational equations. Absolute tolerance: the relative one by 1e-4, 1e-2.
diffrax runs with its stiff methods, its default adjoint and forward mode; casadi with the adjoint and the forward
sensitivities of CVODES; numbalsoda's LSODA solves only. Each JAX program is compiled once for all tolerances.
"""

from collections.abc import Callable
from dataclasses import dataclass

import harness
import jax
import jax.numpy as jnp
import numpy as np

TOLERANCES = [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10]
ERRORS = {"solve": [1e-5, 1e-6, 1e-7, 1e-8], "gradient": [1e-4, 1e-5, 1e-6, 1e-7]}


@dataclass(frozen=True, eq=False)
class Case:
    """y' = equations(t, y, p), a list, from u0; `weights` of the states in the loss; abstol = atol * reltol."""

    equations: Callable
    u0: np.ndarray
    p: np.ndarray
    ts: np.ndarray
    weights: np.ndarray
    atol: float


def rober(t, y, k):
    a, b, c = k[0] * y[0], k[1] * y[1] * y[1], k[2] * y[1] * y[2]
    return [c - a, a - b - c, b]


def hires(t, y, p):
    r = p[9] * y[5] * y[7]
    return [
        -p[0] * y[0] + p[1] * y[1] + p[2] * y[2] + p[3],
        p[0] * y[0] - p[4] * y[1],
        -p[5] * y[2] + p[1] * y[3] + p[6] * y[4],
        p[2] * y[1] + p[0] * y[2] - p[7] * y[3],
        -p[8] * y[4] + p[1] * y[5] + p[1] * y[6],
        -r + p[10] * y[3] + p[0] * y[4] - p[1] * y[5] + p[10] * y[6],
        r - p[11] * y[6],
        -r + p[11] * y[6],
    ]


CASES = {
    "rober": Case(
        rober,
        np.array([1.0, 0.0, 0.0]),
        np.array([0.04, 3e7, 1e4]),
        np.r_[0.0, 10.0 ** np.arange(6)],
        np.array([1.0, 1e4, 1.0]),
        1e-4,
    ),
    "hires": Case(
        hires,
        np.array([1.0, 0, 0, 0, 0, 0, 0, 0.0057]),
        np.array([1.71, 0.43, 8.32, 0.0007, 8.75, 10.03, 0.035, 1.12, 1.745, 280.0, 0.69, 1.81]),
        np.linspace(0, 321.8122, 11),
        np.ones(8),
        1e-2,
    ),
}


def reference(case: Case, tol: float = 1e-11) -> dict:
    """Weighted saves and gradient by SciPy's Radau on (y, dy / dlog p), with the Jacobian of that system."""
    from scipy.integrate import solve_ivp

    n, m = case.u0.size, case.p.size
    f = lambda y, q: jnp.stack(case.equations(0.0, y, case.p * q))

    def extended(z):
        y, s = z[:n], z[n:].reshape(m, n)
        along = lambda s, q: jax.jvp(f, (y, jnp.ones(m)), (s, q))[1]
        return jnp.concatenate([f(y, jnp.ones(m)), jax.vmap(along)(s, jnp.eye(m)).ravel()])

    rhs, jac = jax.jit(extended), jax.jit(jax.jacfwd(extended))
    z0, span = np.r_[case.u0, np.zeros(n * m)], (0, case.ts[-1])
    options = {"method": "Radau", "rtol": tol, "atol": tol * 1e-2, "t_eval": case.ts}
    z = solve_ivp(lambda t, z: np.asarray(rhs(z)), span, z0, jac=lambda t, z: np.asarray(jac(z)), **options).y
    gradient = np.einsum("mnt,n->m", z[n:].reshape(m, n, -1), case.weights)
    return {"solve": z[:n].T * case.weights, "gradient": gradient}


# ---------------------------------------------------------------- peers


def jax_peer(case: Case, solve: Callable, **choice) -> Callable:
    """make(tol) of solve(tol, p) -> (saves, steps); differentiated with respect to factors of p."""

    def weighted(tol, factors):
        us, steps = solve(tol, factors * case.p)
        return us * case.weights, steps

    return harness.by_tolerance(weighted, np.ones(case.p.size), **choice)


def odesens(case: Case, alg: str, sensealg: str | None = None, **choice) -> Callable:
    import odesens as ode

    field = lambda t, u, p: jnp.stack(case.equations(t, u, p))
    prob = ode.ODEProblem(field, case.u0, (0.0, case.ts[-1]), case.p)
    engine, method = sensealg and getattr(ode, sensealg)(), getattr(ode, alg)()

    def solve(tol, p):
        sol = ode.solve(prob, method, p=p, saveat=case.ts, reltol=tol, abstol=tol * case.atol, sensealg=engine)
        return sol.u, sol.stats.naccept + sol.stats.nreject

    return jax_peer(case, solve, **choice)


def diffrax(case: Case, solver: str, adjoint: str = "RecursiveCheckpointAdjoint", **choice) -> Callable:
    import diffrax as dx

    field = lambda t, u, p: jnp.stack(case.equations(t, u, p))

    def solve(tol, p):
        steps = dx.PIDController(rtol=tol, atol=tol * case.atol, pcoeff=0.3, icoeff=0.4)
        more = {"saveat": dx.SaveAt(ts=jnp.asarray(case.ts)), "stepsize_controller": steps, "max_steps": 16_384}
        term, method, u0 = dx.ODETerm(field), getattr(dx, solver)(), jnp.asarray(case.u0)
        sol = dx.diffeqsolve(term, method, 0.0, case.ts[-1], None, u0, p, adjoint=getattr(dx, adjoint)(), **more)
        return sol.ys, sol.stats["num_steps"]

    return jax_peer(case, solve, **choice)


def casadi(case: Case, sensitivities: str) -> Callable:
    """CVODES, compiled expressions evaluated by casadi's virtual machine."""
    steps = {}

    def make(tol):
        import casadi as ca

        n, m = case.u0.size, case.p.size
        u, p, q = ca.SX.sym("u", n), ca.SX.sym("p", m), ca.MX.sym("q", m)
        rates = case.equations(0.0, [u[i] for i in range(n)], [p[i] for i in range(m)])
        options = {"reltol": tol, "abstol": tol * case.atol, "max_num_steps": 10**6}
        dae = {"x": u, "p": p, "ode": ca.vertcat(*rates)}
        integrator = ca.integrator("I", "cvodes", dae, 0.0, list(case.ts), options)
        us = integrator(x0=ca.DM(case.u0), p=q)["xf"]
        loss = ca.dot(ca.DM(case.weights), ca.sum2(us))
        by = ca.gradient(loss, q) if sensitivities == "adjoint" else ca.jtimes(loss, q, ca.DM.eye(m))
        value, slope = ca.Function("F", [q], [us]), ca.Function("G", [q], [by])
        integrator(x0=case.u0, p=case.p)
        steps[tol] = integrator.stats()["nsteps"]
        return {
            "solve": lambda: np.asarray(value(case.p)).T * case.weights,
            "gradient": lambda: np.asarray(slope(case.p)).ravel() * case.p,
        }

    make.steps = steps
    return make


def numbalsoda(case: Case) -> Callable:
    def make(tol):
        import numba
        from numbalsoda import lsoda, lsoda_sig

        n, m, equations = case.u0.size, case.p.size, numba.njit(case.equations)

        @numba.cfunc(lsoda_sig)
        def field(t, u, du, p):
            rates = equations(t, numba.carray(u, n), numba.carray(p, m))
            for i in range(n):
                du[i] = rates[i]

        more = {"data": case.p, "rtol": tol, "atol": tol * case.atol}
        return {"solve": lambda: lsoda(field.address, case.u0, case.ts, **more)[0] * case.weights}

    return make


def peers(case: Case) -> dict:
    only, to = {"what": ("gradient",)}, harness.within
    return {
        "odesens Rodas5P": to(odesens(case, "Rodas5P"), 1e-9),
        "odesens Rodas5P GaussAdjoint": to(odesens(case, "Rodas5P", "GaussAdjoint", **only), 1e-8),
        "odesens Rodas5P ForwardSensitivity": to(odesens(case, "Rodas5P", "ForwardSensitivity", **only), 1e-8),
        "odesens Rodas5P jacfwd": to(odesens(case, "Rodas5P", derivative=jax.jacfwd, **only), 1e-8),
        "odesens Kvaerno5": to(odesens(case, "Kvaerno5"), 1e-9),
        "diffrax Kvaerno5": to(diffrax(case, "Kvaerno5"), 1e-8),
        "diffrax Kvaerno3": to(diffrax(case, "Kvaerno3"), 1e-7),
        "diffrax Kvaerno5 ForwardMode": to(
            diffrax(case, "Kvaerno5", "ForwardMode", derivative=jax.jacfwd, **only), 1e-8
        ),
        "casadi CVODES adjoint": to(casadi(case, "adjoint"), 0, 1e-4),
        "casadi CVODES forward": to(casadi(case, "forward"), 0, 1e-4),
        "numbalsoda LSODA": to(numbalsoda(case), 0, 1e-4),
    }


# ---------------------------------------------------------------- what is asked of the default


def verdict(points: dict) -> str:
    """Rodas5P with its default engine by the best of each kind of peer, at equal error, beside the issue's bounds."""
    errors = sorted({*ERRORS["solve"], *ERRORS["gradient"]}, reverse=True)
    reverse, forward = ["diffrax Kvaerno5", "diffrax Kvaerno3"], ["diffrax Kvaerno5 ForwardMode"]
    adjoint, tangents = ["casadi CVODES adjoint"], ["casadi CVODES forward"]
    asked = {
        "solve: diffrax's best": (1, reverse, 1 / 6),
        "solve: casadi CVODES": (1, adjoint + tangents, 1),
        "solve: numbalsoda LSODA": (1, ["numbalsoda LSODA"], 1),
        "gradient: diffrax's best by its default adjoint": (3, reverse, 1 / 12),
        "gradient: diffrax's best, forward mode too": (3, reverse + forward, 1 / 12),
        "gradient: casadi's adjoint": (3, adjoint, 1),
        "gradient: casadi's forward sensitivities": (3, tangents, 1),
    }
    lines = []
    for what, (column, theirs, most) in asked.items():
        lines.append([what, *harness.ratios(points, ["odesens Rodas5P"], theirs, column, errors, most)])
    heads = ["odesens Rodas5P by (< bounds from above)", *(f"{e:.0e}" for e in errors), "at most"]
    return harness.markdown(heads, lines)


def steps_of(points: dict, steps: dict) -> str:
    """Steps and microseconds a step of each solve."""
    lines = []
    for name, rows in points.items():
        counts = {tol: int(count) for tol, count in steps.get(name, {}).items()}
        cells = [f"{counts[r[0]]} x {1e6 * r[2] / counts[r[0]]:.3g}" if r[0] in counts and r[2] else "-" for r in rows]
        if any(cell != "-" for cell in cells):
            at = dict(zip((r[0] for r in rows), cells, strict=True))
            lines.append([name, *(at.get(tol, "-") for tol in TOLERANCES)])
    return harness.markdown(["steps x us", *(f"{tol:.0e}" for tol in TOLERANCES)], lines)


def main():
    options = harness.arguments(__doc__, seconds=0.4, problems=("rober,hires", "which"))
    data, texts = {}, []
    for name in options.problems.split(","):
        if harness.late(options, name):
            break
        case = CASES[name]
        known = reference(case, 1e-8 if options.quick else 1e-11)
        tolerances = TOLERANCES[2:3] if options.quick else TOLERANCES
        made = harness.chosen(peers(case), options)
        points = harness.work_precision(made, known, tolerances, options)
        steps = {
            k: {tol: int(x) for tol, x in make.steps.items()} for k, make in made.items() if hasattr(make, "steps")
        }
        data[name] = {"columns": harness.columns(known), "points": points, "steps": steps}
        tables = [harness.table(points, ERRORS, "diffrax Kvaerno5"), verdict(points), steps_of(points, steps)]
        texts.append(f"{name}:\n\n" + "\n\n".join(tables))
    harness.finish("stiff_gradients", options, data, "\n\n".join(texts))


if __name__ == "__main__":
    main()
