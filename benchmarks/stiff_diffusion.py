"""The Brusselator in one dimension by the method of lines, stiff: solve and gradient beside casadi's sparse CVODES.

    python benchmarks/stiff_diffusion.py [--flag] [--quick] [--sizes 64,256,1024] [--seconds 0.4] [--only ..]

Two species on N cells, t in (0, 10), (A, B) = (1, 3), diffusion 1/50, loss = sum of the end divided by N, gradient in
(A, B) and the initial state in one pass. odesens finds the band by itself. casadi's CVODES has a sparse LU on unknowns
that alternate between the species, so that its matrix is banded too. diffrax has dense matrices: 2 x 64 states only.
Reference: SciPy's Radau with a sparse Jacobian, then the adjoint equation along its dense output. Errors of the
gradient are those of the vector (A, B, u0) as a whole. Each JAX program is compiled once for all tolerances. Last, how
the time of a step grows with N.
"""

import harness
import jax.numpy as jnp
import numpy as np

P = np.array([1.0, 3.0])
T1 = 10.0
DIFFUSION = 1 / 50
TOLERANCES = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10]
ERRORS = {"solve": [1e-5, 1e-6, 1e-7], "gradient": [1e-2, 1e-3, 1e-4, 1e-5]}


def initial(n: int):
    x = np.arange(1, n + 1) / (n + 1)
    return np.stack([1 + np.sin(2 * np.pi * x), np.full(n, 3.0)])


def field(t, y, p):
    u, v = y
    edges = jnp.array([[1.0], [3.0]])
    padded = jnp.concatenate([edges, y, edges], 1)
    spread = DIFFUSION * (u.size + 1) ** 2 * (padded[:, 2:] - 2 * y + padded[:, :-2])
    q = u * u * v
    return jnp.stack([p[0] + q - (p[1] + 1) * u, p[1] * u - q]) + spread


# ---------------------------------------------------------------- reference


def reference(n: int, tol: float) -> dict:
    """By SciPy's Radau on alternating unknowns: y' = f, then (lam, mu)' = (J^T, f_p^T) lam backward in time."""
    import scipy.sparse as sp
    from scipy.integrate import solve_ivp

    c = DIFFUSION * (n + 1) ** 2
    beside = np.full(2 * n - 2, c)
    spread = sp.diags([beside, np.full(2 * n, -2 * c), beside], [-2, 0, 2], format="csc")
    inflow = np.zeros(2 * n)
    inflow[[0, 1, -2, -1]] = c * np.array([1.0, 3.0, 1.0, 3.0])

    def rhs(t, z):
        u, q = z[0::2], z[0::2] ** 2 * z[1::2]
        return np.stack([P[0] + q - (P[1] + 1) * u, P[1] * u - q], 1).ravel() + spread @ z + inflow

    def jacobian(t, z):
        u, v = z[0::2], z[1::2]
        none = np.zeros(n)
        diagonal = np.stack([2 * u * v - P[1] - 1, -u * u], 1).ravel()
        above = np.stack([u * u, none], 1).ravel()[:-1]
        below = np.stack([P[1] - 2 * u * v, none], 1).ravel()[:-1]
        return spread + sp.diags([below, diagonal, above], [-1, 0, 1], format="csc")

    def by_p(z):
        u = z[0::2]
        return sp.csr_array(np.stack([np.stack([np.ones(n), 0 * u], 1).ravel(), np.stack([-u, u], 1).ravel()]))

    options = {"method": "Radau", "rtol": tol, "atol": tol}
    z0 = initial(n).T.ravel()
    forward = solve_ivp(rhs, (0, T1), z0, jac=jacobian, dense_output=True, **options)

    def matrix(s, w):
        z = forward.sol(T1 - s)
        left = sp.vstack([jacobian(0, z).T, by_p(z)])
        return sp.hstack([left, sp.csc_array((2 * n + 2, 2))], format="csc")

    def backward(s, w):
        z = forward.sol(T1 - s)
        return np.r_[jacobian(0, z).T @ w[: 2 * n], by_p(z) @ w[: 2 * n]]

    w0 = np.r_[np.full(2 * n, 1 / n), 0.0, 0.0]
    w = solve_ivp(backward, (0, T1), w0, jac=matrix, t_eval=[T1], **{**options, "atol": tol * 1e-2}).y[:, -1]
    by_species = lambda x: x.reshape(n, 2).T.ravel()
    return {"solve": by_species(forward.y[:, -1]), "gradient": np.r_[w[2 * n :], by_species(w[: 2 * n])]}


# ---------------------------------------------------------------- peers


def jax_peer(n: int, solve, **choice):
    return harness.by_tolerance(solve, P, initial(n), loss=lambda y: jnp.sum(y) / n, wrt=(0, 1), **choice)


def odesens(n: int, alg: str, sensealg: str | None = None, **choice):
    import odesens as ode

    prob = ode.ODEProblem(field, initial(n), (0.0, T1), P)
    engine, method = sensealg and getattr(ode, sensealg)(), getattr(ode, alg)()

    def solve(tol, p, u0):
        sol = ode.solve(prob, method, p=p, u0=u0, saveat=[T1], reltol=tol, abstol=tol, sensealg=engine)
        return sol.u[-1], sol.stats.naccept + sol.stats.nreject

    return jax_peer(n, solve, **choice)


def diffrax(n: int, solver: str):
    import diffrax as dx

    def solve(tol, p, u0):
        more = {"stepsize_controller": dx.PIDController(rtol=tol, atol=tol), "max_steps": 4096}
        sol = dx.diffeqsolve(dx.ODETerm(field), getattr(dx, solver)(), 0.0, T1, None, u0, p, **more)
        return sol.ys[-1], sol.stats["num_steps"]

    return jax_peer(n, solve)


def casadi(n: int):
    steps = {}

    def make(tol):
        import casadi as ca

        y, p = ca.SX.sym("y", 2 * n), ca.SX.sym("p", 2)
        u, v = y[0::2], y[1::2]
        spread = lambda x, edge: (
            DIFFUSION * (n + 1) ** 2 * (lambda w: w[2:] - 2 * x + w[:-2])(ca.vertcat(edge, x, edge))
        )
        q = u * u * v
        rates = ca.horzcat(p[0] + q - (p[1] + 1) * u + spread(u, 1), p[1] * u - q + spread(v, 3))
        dae = {"x": y, "p": p, "ode": ca.reshape(rates.T, 2 * n, 1)}
        integrator = ca.integrator("I", "cvodes", dae, 0.0, T1, {"reltol": tol, "abstol": tol, "max_num_steps": 10**6})
        by_p, by_y = ca.MX.sym("p", 2), ca.MX.sym("y", 2 * n)
        end = integrator(x0=by_y, p=by_p)["xf"]
        loss = ca.sum1(end) / n
        value = ca.Function("F", [by_p, by_y], [end])
        slope = ca.Function("G", [by_p, by_y], [ca.gradient(loss, by_p), ca.gradient(loss, by_y)])
        y0 = initial(n).T.ravel()
        by_species = lambda x: np.asarray(x).reshape(n, 2).T.ravel()
        integrator(x0=y0, p=P)
        steps[tol] = integrator.stats()["nsteps"]

        def gradient():
            a, b = slope(P, y0)
            return np.r_[np.asarray(a).ravel(), by_species(b)]

        return {"solve": lambda: by_species(value(P, y0)), "gradient": gradient}

    make.steps = steps
    return make


def peers(n: int) -> dict:
    only = {"what": ("gradient",)}
    ours = {
        "odesens Rodas5P": odesens(n, "Rodas5P"),
        "odesens FBDF": odesens(n, "FBDF"),
        "odesens Rodas5P DiscreteAdjoint": odesens(n, "Rodas5P", "DiscreteAdjoint", **only),
        "odesens Kvaerno5": odesens(n, "Kvaerno5"),
        "odesens KenCarp4": odesens(n, "KenCarp4"),
        "odesens KenCarp4 DiscreteAdjoint": odesens(n, "KenCarp4", "DiscreteAdjoint", **only),
    }
    ours = {name: harness.within(make, 1e-8) for name, make in ours.items()}
    theirs = {"casadi CVODES": harness.within(casadi(n), 0, 1e-5)}
    if n <= 64:
        theirs["diffrax Kvaerno5"] = harness.within(diffrax(n, "Kvaerno5"), 1e-6, 1e-4)
    return ours | theirs


# ---------------------------------------------------------------- tables


def verdict(points: dict) -> str:
    """odesens by casadi at equal error, default and best, beside the issue's bound."""
    ours, lines = [name for name in points if name.startswith("odesens")], []
    errors = sorted({*ERRORS["solve"], *ERRORS["gradient"]}, reverse=True)
    for what, column in (("solve", 1), ("gradient", 3)):
        for mine, names in (("Rodas5P", ["odesens Rodas5P"]), ("FBDF", ["odesens FBDF"]), ("best", ours)):
            lines.append([f"{what}: {mine}", *harness.ratios(points, names, ["casadi CVODES"], column, errors, 1)])
    return harness.markdown(["odesens by casadi CVODES", *(f"{e:.0e}" for e in errors), "at most"], lines)


def growth(data: dict, tol: float) -> str:
    """Steps of each solve, and nanoseconds of solve and gradient for each step and state, by the number of cells."""
    names = list(dict.fromkeys(name for case in data.values() for name in case["points"]))
    lines = []
    for name in names:
        cells = []
        for n, case in data.items():
            row = next((r for r in case["points"].get(name, []) if r[0] == tol), None)
            steps = case["steps"].get(name) or case["steps"].get(" ".join(name.split()[:2]), {})
            if not row or tol not in steps:
                cells.append("-")
                continue
            scale = 1e9 / (steps[tol] * 2 * int(n))
            cells.append(f"{steps[tol]}: " + ", ".join("-" if not t else f"{t * scale:.0f}" for t in (row[2], row[4])))
        lines.append([name, *cells])
    return harness.markdown(["steps: solve, gradient (ns / step / state)", *(f"2 x {n}" for n in data)], lines)


def main():
    options = harness.arguments(__doc__, seconds=0.4, sizes=("64,256,1024", "numbers of cells"))
    data, texts = {}, []
    for n in [int(x) for x in options.sizes.split(",")][: 1 if options.quick else None]:
        if harness.late(options, f"{n} cells"):
            break
        known = reference(n, 1e-7 if options.quick else 1e-10 if n < 1000 else 1e-9)
        made = harness.chosen(peers(n), options)
        tolerances = TOLERANCES[3:4] if options.quick else TOLERANCES
        points = harness.work_precision(made, known, tolerances, options)
        steps = {name: {tol: int(x) for tol, x in make.steps.items()} for name, make in made.items()}
        data[str(n)] = {"columns": harness.columns(known), "points": points, "steps": steps}
        tables = [harness.table(points, ERRORS, "casadi CVODES"), verdict(points)]
        texts.append(f"2 x {n} states:\n\n" + "\n\n".join(tables))
    texts.append(growth(data, 1e-6))
    harness.finish("stiff_diffusion", options, data, "\n\n".join(texts))


if __name__ == "__main__":
    main()
