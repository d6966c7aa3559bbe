"""What the automatic choice of a sensitivity algorithm rests on: time, compile time and error of each, over sizes.

    python benchmarks/choice.py [--flag] [--quick] [--states 2,8,32] [--parameters 2,32,512] [--seconds 0.3]

The fields: u' = W_2 tanh(W_1 u) - u with n states and n_p parameters, hidden width n_p / 2n and at least one (the
parameters are repeated where they are too few for the weights), t in (0, 2), loss = mean square of the end, gradient
in p and u0; and one problem held by stability, 100 cells of diffusion with a source, for which the error is the
largest relative one of a single component. Reference: SciPy's DOP853, adjoint equation.

What is timed: the warm gradient at five tolerances with one compilation (tolerances are arguments), interleaved over
the algorithms; the first call is tracing and compilation. The table has times at equal achieved error, that which
DiscreteAdjoint has at 1e-6 (the least time of an algorithm that is more exact at every tolerance).
ForwardSensitivity is left out above `--forward` states of its augmented equation.
"""

import harness
import jax
import jax.numpy as jnp
import numpy as np

ENGINES = ("DiscreteAdjoint", "GaussAdjoint", "InterpolatingAdjoint", "ForwardSensitivity")
TOLERANCES = [1e-4, 1e-5, 1e-6, 1e-7, 1e-8]
MIDDLE = 1e-6


def field(n: int, n_p: int):
    hidden = max(1, n_p // (2 * n))

    def right(t, u, p):
        w = jnp.resize(p, (2, hidden, n))
        return w[1].T @ jnp.tanh(w[0] @ u) - u

    return right


def network(n: int, n_p: int) -> harness.Problem:
    r, hidden = np.random.default_rng(0), max(1, n_p // (2 * n))
    p = r.normal(size=n_p) * (2 / np.sqrt(np.sqrt(n * hidden)))
    return harness.Problem(field(n, n_p), r.normal(size=n), p, 2.0, loss=lambda u: jnp.mean(u**2), wrt=(0, 1))


def diffusion(cells: int) -> harness.Problem:
    """u_t = k u_xx + a - b u with u = 0 at both ends; p = (k, a, b)."""
    x = np.arange(1, cells + 1) / (cells + 1)

    def right(t, u, p):
        padded = jnp.pad(u, 1)
        return p[0] * (cells + 1) ** 2 * (padded[2:] - 2 * u + padded[:-2]) + p[1] - p[2] * u

    p, u0 = np.array([0.1, 1.0, 0.5]), np.sin(np.pi * x) + 0.3 * np.sin(7 * np.pi * x)
    return harness.Problem(right, u0, p, 2.0, loss=lambda u: jnp.sum(u**2), wrt=(0, 1), max_steps=16_384)


def worst_component(value, reference) -> float:
    value, reference = harness.flat(value), harness.flat(reference)
    return float(np.max(np.abs(value - reference) / np.abs(reference)))


def gradients(case: harness.Problem, limit: float) -> dict:
    """For each algorithm a program of the tolerance, compiled once."""
    n, n_p = case.u0.size, case.p.size
    args = jnp.asarray(case.p), jnp.asarray(case.u0)
    out = {}
    for engine in ENGINES:
        if engine == "ForwardSensitivity" and n * (1 + n + n_p) > limit:
            continue

        def loss(p, u0, tol, engine=engine):
            return case.loss(harness.odesens_solve(case, tol, "Tsit5", engine)(p, u0))

        compiled = jax.jit(jax.grad(loss, case.wrt))
        out[engine] = lambda tol, f=compiled: jax.block_until_ready(f(*args, jnp.asarray(tol)))
    return out


def measure(name: str, case: harness.Problem, options, error_of) -> dict:
    """For each algorithm the seconds of its first call, and rows (tolerance, error, seconds)."""
    known = harness.reference(case)["gradient"]
    ready, out = {}, {}
    for engine, run in gradients(case, options.forward).items():
        made = harness.attempt(f"{name}, {engine}", lambda run=run: harness.first_call(lambda: run(MIDDLE)))
        if made is not None:
            ready[engine], out[engine] = run, {"first": made[1], "points": []}
    for tol in TOLERANCES[1:4] if options.quick else TOLERANCES:
        times = harness.interleaved({e: lambda run=run, t=tol: run(t) for e, run in ready.items()}, options.seconds)
        for engine, run in ready.items():
            out[engine]["points"].append([tol, error_of(run(tol), known), times[engine]])
    errors = {e: harness.digits(dict((r[0], r[1]) for r in x["points"])[MIDDLE]) for e, x in out.items()}
    print(f"{name}: errors at {MIDDLE:g} {errors}", flush=True)
    return out


def within(points: list, error: float) -> float | None:
    """Seconds at an achieved error; the least of them where every error is smaller."""
    known = [(e, t) for e, t in points if e]
    if known and max(e for e, _ in known) < error:
        return min(t for _, t in known)
    return harness.at_error(known, error)


def line(name: str, measured: dict) -> list:
    """One row of the table: time at the error of DiscreteAdjoint at 1e-6, then (first call; error at 1e-6)."""
    middle = {e: next(r for r in x["points"] if r[0] == MIDDLE) for e, x in measured.items()}
    target = middle.get("DiscreteAdjoint", [None] * 3)[1]
    times = {e: target and within([r[1:] for r in x["points"]], target) for e, x in measured.items()}
    known = {e: t for e, t in times.items() if t}
    cells = []
    for engine in ENGINES:
        if engine not in measured:
            cells.append("left out")
            continue
        facts = f"{harness.duration(measured[engine]['first'])}; {harness.digits(middle[engine][1])}"
        cells.append(f"{harness.duration(times[engine])} ({facts})")
    best = min(known, key=known.get) if known else "-"
    return [name, harness.digits(target), *cells, best]


def cases(options) -> dict:
    states, parameters = ([int(x) for x in text.split(",")] for text in (options.states, options.parameters))
    cells = 10 if options.quick else 100
    if options.quick:
        states, parameters = states[:1], parameters[1:2]
    found = {f"n = {n}, n_p = {k}": (network, (n, k), harness.achieved) for n in states for k in parameters}
    return found | {f"diffusion, {cells} cells, worst component": (diffusion, (cells,), worst_component)}


def main():
    options = harness.arguments(
        __doc__,
        seconds=0.3,
        states=("2,8,32,128,512", "numbers of states"),
        parameters=("2,32,512,8192", "numbers of parameters"),
        forward=(3_000.0, "most states of the augmented equation of ForwardSensitivity"),
    )
    data, lines = {}, []
    for name, (make, sizes, error_of) in cases(options).items():
        if harness.late(options, name):
            continue
        data[name] = measure(name, make(*sizes), options, error_of)
        lines.append(line(name, data[name]))
    heads = ["time at the error (first call; error at 1e-6)", "error", *ENGINES, "best"]
    columns = ["tolerance", "error of gradient", "seconds of gradient"]
    harness.finish("choice", options, {"columns": columns, "cases": data}, harness.markdown(heads, lines))


if __name__ == "__main__":
    main()
