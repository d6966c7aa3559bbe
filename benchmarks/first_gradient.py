"""Time to the first gradient in a fresh process, without compilation cache, beside the peers.

    python benchmarks/first_gradient.py [--flag] [--quick] [--repeats 5] [--only ..]

Lotka-Volterra (gradient_lotka_volterra.py) and the neural field 2-64-64-2 on a batch of 128 (neural.py) at 1e-6. Each
measurement is a process of its own, the peers in turn, medians. Wall: the whole process. Import: the package with all
it imports. Trace: `jit(grad(loss)).lower(p)`. Compile: `.compile()`. Run: the first run. The gradient is
checked against the reference.
"""

import time

START = time.perf_counter()

import itertools  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402

import harness  # noqa: E402

PEERS = ("odesens", "diffrax", "jax odeint")
PROBLEMS = ("Lotka-Volterra", "neural 2-64-64-2")
PARTS = ("wall", "import", "trace", "compile", "run")
TOLERANCE = 1e-6


def load(problem: str) -> harness.Problem:
    if problem == "Lotka-Volterra":
        import gradient_lotka_volterra

        return gradient_lotka_volterra.PROBLEM
    import neural

    return neural.problem(64)


def measure(peer: str, problem: str) -> dict:
    """In the fresh process: the parts, and the gradient."""
    if peer == "odesens":
        import odesens  # noqa: F401
    elif peer == "diffrax":
        import diffrax  # noqa: F401
    else:
        import jax.experimental.ode
    imported = time.perf_counter()
    import jax
    import jax.numpy as jnp

    case = load(problem)
    solves = {"odesens": harness.odesens_solve, "diffrax": harness.diffrax_solve, "jax odeint": harness.odeint_solve}
    p, u0 = jax.tree.map(jnp.asarray, (case.p, case.u0))
    marks = [time.perf_counter()]
    solve = solves[peer](case, TOLERANCE)
    lowered = jax.jit(jax.grad(lambda p: case.loss(solve(p, u0)))).lower(p)
    marks.append(time.perf_counter())
    compiled = lowered.compile()
    marks.append(time.perf_counter())
    gradient = jax.block_until_ready(compiled(p))
    marks.append(time.perf_counter())
    trace, compiling, run = (b - a for a, b in itertools.pairwise(marks))
    parts = {"import": imported - START, "trace": trace, "compile": compiling, "run": run}
    return {**parts, "gradient": harness.flat(gradient).tolist()}


def reference(problem: str):
    import gradient_lotka_volterra

    if problem == "Lotka-Volterra":
        return gradient_lotka_volterra.scipy_solution(1e-12)["gradient"]
    return harness.reference(load(problem), 1e-10)["gradient"]


def collect(options) -> dict:
    runs = {}
    for problem in PROBLEMS:
        known = reference(problem)
        for _ in range(1 if options.quick else options.repeats):
            for peer in harness.chosen(dict.fromkeys(PEERS), options):
                if harness.late(options, f"{peer}, {problem}"):
                    continue
                flag = ["--flag"] * options.flag
                got = harness.child(__file__, "--child", peer, problem, *flag)
                if got:
                    got["error"] = harness.achieved(got.pop("gradient"), known)
                    runs.setdefault(problem, {}).setdefault(peer, []).append(got)
                    print(f"{problem}: {peer} {got['wall']:.2f} s", flush=True)
    return runs


def table(runs: dict) -> str:
    lines = []
    for problem, peers in runs.items():
        middle = {peer: {k: statistics.median(r[k] for r in rows) for k in rows[0]} for peer, rows in peers.items()}
        for peer, part in middle.items():
            base = middle.get("diffrax")
            ratio = f"{part['wall'] / base['wall']:.2f}" if base else "-"
            times = [f"{part[k]:.3g}" for k in PARTS]
            lines.append([f"{problem}, {peer}", *times, ratio, harness.digits(part["error"]), len(peers[peer])])
    return harness.markdown(["seconds", *PARTS, "wall / diffrax", "error of gradient", "processes"], lines)


def main():
    if "--child" in sys.argv:
        at = sys.argv.index("--child")
        print(json.dumps(measure(*sys.argv[at + 1 : at + 3])))
        return
    options = harness.arguments(__doc__, repeats=(5, "processes for each peer and problem"))
    runs = collect(options)
    harness.finish("first_gradient", options, {"tolerance": TOLERANCE, "runs": runs}, table(runs))


if __name__ == "__main__":
    main()
