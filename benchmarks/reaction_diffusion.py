"""Solve and gradient of the Brusselator in one dimension by the method of lines, all explicit.

    python benchmarks/reaction_diffusion.py [--flag] [--quick] [--sizes 64,1024] [--seconds 2] [--only ..]

Two species on N cells, t in (0, 10), (A, B) = (1, 3), loss = sum of the end divided by N, gradient in (A, B) and u0 in
one pass. Diffusion 1/50 for N = 64, 1/5000 for N = 1024, so that stability holds Tsit5 at about 1 000 to 3 000 steps.
Reference: SciPy's DOP853, adjoint equation. Errors of the gradient are printed for the vector (A, B, u0) as a whole.
What is timed: the warm solve and the warm gradient at several tolerances, and the first call of each.
"""

import harness
import jax.numpy as jnp
import numpy as np

P = np.array([1.0, 3.0])
DIFFUSION = {64: 1 / 50, 1024: 1 / 5000}
TOLERANCES = [1e-4, 1e-6, 1e-8]
ERRORS = {"solve": [1e-5, 1e-6, 1e-7], "gradient": [1e-2, 1e-4, 1e-6]}


def initial(n: int):
    x = np.arange(1, n + 1) / (n + 1)
    return np.stack([1 + np.sin(2 * np.pi * x), np.full(n, 3.0)])


def brusselator(n: int):
    c = DIFFUSION.get(n, DIFFUSION[64]) * (n + 1) ** 2
    edges = np.array([[1.0], [3.0]])

    def field(t, y, p):
        u, v = y
        padded = jnp.concatenate([edges, y, edges], 1)
        spread = c * (padded[:, 2:] - 2 * y + padded[:, :-2])
        q = u * u * v
        return jnp.stack([p[0] + q - (p[1] + 1) * u, p[1] * u - q]) + spread

    return field


def problem(n: int, t1: float = 10.0) -> harness.Problem:
    loss = lambda u: jnp.sum(u) / n
    return harness.Problem(brusselator(n), initial(n), P, t1, loss=loss, wrt=(0, 1), max_steps=16_384)


def peers(case: harness.Problem) -> dict:
    return {
        "odesens Tsit5": harness.odesens(case, "Tsit5"),
        "odesens Tsit5 GaussAdjoint": harness.odesens(case, "Tsit5", "GaussAdjoint"),
        "diffrax Tsit5": harness.diffrax(case, "Tsit5"),
        "jax odeint": harness.odeint(case),
    }


def steps(case: harness.Problem) -> int:
    import odesens as ode

    prob = ode.ODEProblem(case.field, case.u0, (0.0, case.t1), case.p)
    options = {"reltol": 1e-6, "abstol": 1e-6, "max_steps": case.max_steps}
    return int(ode.solve(prob, ode.Tsit5(), saveat=np.array([case.t1]), **options).stats.naccept)


def main():
    options = harness.arguments(__doc__, seconds=2.0, sizes=("64,1024", "numbers of cells"))
    data, texts = {}, []
    for n in [int(x) for x in options.sizes.split(",")][: 1 if options.quick else None]:
        if harness.late(options, f"{n} cells"):
            break
        case = problem(n, 0.5 if options.quick else 10.0)
        count = steps(case)
        reference = harness.reference(case, 1e-9 if options.quick else 1e-12)
        tolerances = TOLERANCES[1:2] if options.quick else TOLERANCES
        points = harness.work_precision(peers(case), reference, tolerances, options)
        data[f"{n} cells"] = {"steps at 1e-6": count, "columns": harness.columns(reference), "points": points}
        table = harness.table(points, ERRORS, "diffrax Tsit5")
        texts.append(f"2 x {n} states, {count} steps of Tsit5 at 1e-6:\n\n{table}")
    harness.finish("reaction_diffusion", options, data, "\n\n".join(texts))


if __name__ == "__main__":
    main()
