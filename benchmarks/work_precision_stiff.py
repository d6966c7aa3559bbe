"""Work-precision of the stiff methods on the IVP test set: time against achieved error, of gradients on two of them.

    python benchmarks/work_precision_stiff.py [--flag] [--quick] [--problems ROBER,HIRES,OREGO,POLLU,VDPOL] [--only ..]
    python benchmarks/work_precision_stiff.py --draw           # draws the stored result again, measures nothing

Problems, end values and gradients are those of tests/ivp.py, known from elsewhere. Error of a solve: the root mean
square of the relative errors of all components at the end. Error of a gradient: that of the vector p dL/dp, by the
default sensitivity algorithm. The absolute tolerance goes with the relative one. Peers: diffrax' Kvaerno5, SciPy's
Radau and BDF with the exact Jacobian. Results: results/work_precision_stiff*.json, the plot beside it (matplotlib).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import harness
import jax
import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from tests import ivp

PROBLEMS = {
    "ROBER": (ivp.ROBER, None),
    "HIRES": (ivp.HIRES, ivp.HIRES_GRADIENT),
    "OREGO": (ivp.OREGO, None),
    "POLLU": (ivp.POLLU, ivp.POLLU_GRADIENT),
    "VDPOL": (ivp.VDPOL, None),
}
METHODS = {  # the tightest tolerance for each
    "Rosenbrock23": 1e-6,
    "TRBDF2": 1e-6,
    "Kvaerno3": 1e-7,
    "Rodas4": 1e-9,
    "KenCarp4": 1e-8,
    "Rodas5P": 1e-10,
    "Kvaerno5": 1e-10,
    "KenCarp5": 1e-10,
    "AutoTsit5(Rodas5P)": 1e-9,
}
DIFFERENTIATED = ("Rodas4", "Rodas5P", "Kvaerno5")
TOLERANCES = [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10]
ERRORS = {"solve": [1e-3, 1e-5, 1e-7], "gradient": [1e-3, 1e-5, 1e-7]}
PLOT = "work_precision_stiff.svg"


# ---------------------------------------------------------------- programs


def atol(problem: ivp.Problem, tol):
    return problem.atol * (tol / 1e-8)


def jax_peer(problem: ivp.Problem, known: ivp.Gradient | None, solve: Callable, what: tuple) -> Callable:
    """make(tol) of solve(tol, p, saveat) -> (saves, steps): components by their end values, and p dL/dp."""

    def values(tol, p):
        us, steps = solve(tol, p, problem.tspan[1:])
        return problem.pick(us[-1]) / problem.values, steps

    def losses(tol, factors):
        return solve(tol, factors * problem.p, known.saveat)

    made = harness.by_tolerance(values, problem.p, what=("solve",))
    if known is None or "gradient" not in what:
        return made
    slope = harness.by_tolerance(losses, np.ones(problem.p.size), loss=known.loss, what=("gradient",))
    both = lambda tol: made(tol) | slope(tol)
    both.steps = made.steps
    return both


def odesens(problem: ivp.Problem, known, name: str, what: tuple) -> Callable:
    import odesens as ode

    method = ode.AutoTsit5(ode.Rodas5P()) if name.startswith("Auto") else getattr(ode, name)()
    prob = problem.ode()

    def solve(tol, p, saveat):
        sol = ode.solve(prob, method, p=p, saveat=np.asarray(saveat), reltol=tol, abstol=atol(problem, tol))
        return sol.u, sol.stats.naccept + sol.stats.nreject

    return jax_peer(problem, known, solve, what)


def diffrax(problem: ivp.Problem, known, what: tuple) -> Callable:
    import diffrax as dx

    def solve(tol, p, saveat):
        steps = dx.PIDController(rtol=tol, atol=jnp.asarray(atol(problem, tol)), pcoeff=0.3, icoeff=0.4)
        more = {"saveat": dx.SaveAt(ts=jnp.asarray(saveat)), "stepsize_controller": steps, "max_steps": 16_384}
        (t0, t1), term = problem.tspan, dx.ODETerm(problem.f)
        sol = dx.diffeqsolve(term, dx.Kvaerno5(), t0, t1, None, jnp.asarray(problem.u0), p, **more)
        return sol.ys, sol.stats["num_steps"]

    return jax_peer(problem, known, solve, what)


def scipy(problem: ivp.Problem, method: str) -> Callable:
    field = jax.jit(lambda t, u: problem.f(t, u, problem.p))
    jacobian = jax.jit(jax.jacfwd(lambda u, t: problem.f(t, u, problem.p)))

    def make(tol):
        from scipy.integrate import solve_ivp

        f, jac = lambda t, u: np.asarray(field(t, u)), lambda t, u: np.asarray(jacobian(u, t))
        options = {"method": method, "rtol": tol, "atol": atol(problem, tol), "jac": jac}

        def solve():
            return problem.pick(solve_ivp(f, problem.tspan, problem.u0, **options).y[:, -1]) / problem.values

        return {"solve": solve}

    return make


def peers(problem: ivp.Problem, known: ivp.Gradient | None) -> dict:
    both = ("solve", "gradient")
    what = lambda name: both if known is not None and name in DIFFERENTIATED else ("solve",)
    made = {
        f"odesens {name}": harness.within(odesens(problem, known, name, what(name)), tightest)
        for name, tightest in METHODS.items()
    }
    made["diffrax Kvaerno5"] = harness.within(diffrax(problem, known, both), 1e-8)
    for method in ("Radau", "BDF"):
        made[f"scipy {method}"] = harness.within(scipy(problem, method), 1e-8, 1e-4)
    return made


# ---------------------------------------------------------------- plot


def panel(axis, points: dict, column: int, title: str):
    for name, rows in points.items():
        known = [(r[column], r[column + 1]) for r in rows if r[column] and r[column + 1]]
        if known:
            style, marker, width = STYLES[name]
            axis.loglog(
                *zip(*known, strict=True), style, marker=marker, lw=width, ms=4, label=name, color=COLOURS[name]
            )
    axis.set_title(title, fontsize=10)
    axis.invert_xaxis()
    axis.grid(True, which="major", alpha=0.3)


NAMES = [*(f"odesens {name}" for name in METHODS), "diffrax Kvaerno5", "scipy Radau", "scipy BDF"]
STYLES = {name: ("-", "o", 1.6) if name.startswith("odesens") else ("--", "s", 1.2) for name in NAMES}
COLOURS = {name: f"C{i}" if i < 9 else ("black", "gray", "darkgray")[i - 9] for i, name in enumerate(NAMES)}


def draw(path: Path, out: Path):
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "odesens"  # the same data gives the same file
    import matplotlib.pyplot as plt

    cases = json.loads(path.read_text())["cases"]
    panels = [(case["points"], 1, f"{name}: solve") for name, case in cases.items()]
    panels += [
        (c["points"], 3, f"{name}: gradient") for name, c in cases.items() if "seconds of gradient" in c["columns"]
    ]
    across = 4
    down = -(-(len(panels) + 1) // across)
    fig, axes = plt.subplots(down, across, figsize=(4.0 * across, 3.6 * down), squeeze=False)
    places = axes.ravel()
    for axis, one in zip(places, panels, strict=False):
        panel(axis, *one)
    for axis in places[len(panels) :]:
        axis.axis("off")
    places[-1].legend(*places[0].get_legend_handles_labels(), fontsize=8, loc="center", frameon=False)
    for row in axes:
        row[0].set_ylabel("seconds")
    for axis in places[: len(panels)]:
        axis.set_xlabel("achieved relative error", fontsize=8)
    fig.tight_layout()
    fig.savefig(out, **({"metadata": {"Date": None}} if out.suffix == ".svg" else {}))


# ---------------------------------------------------------------- all of it


def main():
    options = harness.arguments(
        __doc__,
        seconds=0.1,
        problems=(",".join(PROBLEMS), "which"),
        draw=(False, "the stored result, without measuring"),
        plot=(PLOT, "name of the plot, whose ending is its format"),
    )
    stored = "work_precision_stiff" + "_flag" * options.flag + "_quick" * options.quick
    data, texts = {}, []
    for name in options.problems.split(",") if not options.draw else ():
        if harness.late(options, name):
            break
        problem, known = PROBLEMS[name]
        reference = {"solve": np.ones(np.size(problem.values))}
        if known is not None:
            reference["gradient"] = known.p * problem.p
        made = harness.chosen(peers(problem, known), options)
        tolerances = TOLERANCES[4:5] if options.quick else TOLERANCES
        points = harness.work_precision(made, reference, tolerances, options)
        steps = {k: {tol: int(x) for tol, x in make.steps.items()} for k, make in made.items()}
        data[name] = {"columns": harness.columns(reference), "points": points, "steps": steps}
        what = tuple(reference)
        texts.append(f"{name}:\n\n{harness.table(points, ERRORS, 'diffrax Kvaerno5', what)}")
    if not options.draw:
        harness.finish("work_precision_stiff", options, {"cases": data}, "\n\n".join(texts))
    harness.attempt("plot", lambda: draw(options.results / f"{stored}.json", options.results / options.plot))


if __name__ == "__main__":
    main()
