"""Timing of several programs in one interleaved run, at equal achieved error, and the record of where it was made.

Import it before JAX: `--flag` on the command line lifts XLA's limit for small loops, for all JAX programs alike, and
double precision is switched on. Programs are zero-argument functions that return when their values are there.

Owns: the command line, problems as data and how each JAX peer solves one, an independent reference, interleaving,
medians, achieved errors, child processes, tables, the result file. Must not know: which problem is timed.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

FLAG = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=100000000"
RESULTS = Path(__file__).parent / "results"
NOTES: list[str] = []  # what was left out, and why; goes into the result file
START = time.perf_counter()

os.environ.setdefault("JAX_ENABLE_X64", "1")
if "--flag" in sys.argv and FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " " + FLAG).strip()


# ---------------------------------------------------------------- command line and notes


def arguments(doc: str, seconds: float = 1.0, **more) -> argparse.Namespace:
    """The options all scripts share, and more of them as name=(default, help)."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--flag", action="store_true", help="lift XLA's limit for small loops")
    parser.add_argument("--quick", action="store_true", help="smoke run: a few sizes, little timing")
    parser.add_argument("--seconds", type=float, default=seconds, help="timing of each program in each case")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no new case after this time")
    parser.add_argument("--only", default="", help="comma-separated words of the peers' names")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result file")
    for name, (default, text) in more.items():
        kind = {"action": "store_true"} if default is False else {"type": type(default), "default": default}
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **kind)
    options = parser.parse_args()
    options.only = [word for word in options.only.split(",") if word]
    if options.quick:
        options.seconds = min(options.seconds, 0.05)
    return options


def note(text: str):
    if text not in NOTES:
        NOTES.append(text)
        print(f"note: {text}", flush=True)


def late(options, what: str) -> bool:
    """Whether the time given is over, with a note of what is left out for it."""
    over = time.perf_counter() - START > 60 * options.minutes
    if over:
        note(f"{what} left out: {options.minutes:g} minutes are over")
    return over


def chosen(peers: dict, options) -> dict:
    return {name: make for name, make in peers.items() if not options.only or any(w in name for w in options.only)}


def attempt(name: str, run: Callable):
    """run(), or None and a note: a peer that is not installed, or that fails, is left out."""
    try:
        return run()
    except ImportError as error:
        if (error.name or "").startswith("odesens"):
            raise
        note(f"{name} left out: {error.name or error} is not installed")
    except Exception as error:
        lines = [x.strip() for x in str(error).splitlines() if x.strip(" -")]
        known = [x for x in lines if "maximum number of solver steps" in x]  # diffrax, amid a traceback
        note(f"{name} failed: {type(error).__name__}: {(known or lines or [''])[-1][:200]}")
    return None


# ---------------------------------------------------------------- problems and the peers that solve them


def total(us):
    """The sum of all entries, the usual loss."""
    import jax
    import jax.numpy as jnp

    return sum(jnp.sum(x) for x in jax.tree.leaves(us))


@dataclass(frozen=True)
class Problem:
    """u' = field(t, u, p) on (0, t1), what is saved, and what is differentiated.

    ts: saved times; None for the end alone. wrt: 0 for p, 1 for u0. lanes: `in_axes` of (p, u0) under vmap.
    """

    field: Callable
    u0: Any
    p: Any
    t1: float
    ts: Any = None
    loss: Callable = total
    wrt: tuple = (0,)
    lanes: tuple | None = None
    max_steps: int = 4096


def call(f: Callable, *args) -> Callable:
    """A compiled function as a program."""
    import jax

    f = jax.jit(f)
    return lambda: jax.block_until_ready(f(*args))


def programs(problem: Problem, solve: Callable) -> dict:
    """The programs "solve" and "gradient" of solve(p, u0)."""
    import jax
    import jax.numpy as jnp

    run = solve if problem.lanes is None else jax.vmap(solve, problem.lanes)
    args = jax.tree.map(jnp.asarray, (problem.p, problem.u0))
    gradient = jax.grad(lambda p, u0: problem.loss(run(p, u0)), problem.wrt)
    return {"solve": call(run, *args), "gradient": call(gradient, *args)}


def odesens_solve(problem: Problem, tol, alg: str = "Tsit5", sensealg: str | None = None, **more) -> Callable:
    """odesens' solve(p, u0)."""
    import jax

    import odesens as ode

    prob = ode.ODEProblem(problem.field, problem.u0, (0.0, problem.t1), problem.p)
    engine = sensealg and getattr(ode, sensealg)()
    times = [problem.t1] if problem.ts is None else problem.ts
    more = {"reltol": tol, "abstol": tol, "max_steps": problem.max_steps, "sensealg": engine, **more}

    def solve(p, u0):
        us = ode.solve(prob, getattr(ode, alg)(), p=p, u0=u0, saveat=np.asarray(times), **more).u
        return us if problem.ts is not None else jax.tree.map(lambda x: x[-1], us)

    return solve


def diffrax_solve(problem: Problem, tol, solver: str = "Tsit5", adjoint: str = "", h: float | None = None) -> Callable:
    """diffrax' solve(p, u0); with fixed steps where h is given."""
    import diffrax as dx
    import jax
    import jax.numpy as jnp

    more = {"adjoint": getattr(dx, adjoint)()} if adjoint else {}
    steps = dx.PIDController(rtol=tol, atol=tol) if h is None else dx.ConstantStepSize()
    saveat = dx.SaveAt(t1=True) if problem.ts is None else dx.SaveAt(ts=jnp.asarray(problem.ts))
    more |= {"saveat": saveat, "stepsize_controller": steps, "max_steps": problem.max_steps}

    def solve(p, u0):
        term, method = dx.ODETerm(problem.field), getattr(dx, solver)()
        us = dx.diffeqsolve(term, method, 0.0, problem.t1, h, u0, p, **more).ys
        return us if problem.ts is not None else jax.tree.map(lambda x: x[-1], us)

    return solve


def odeint_solve(problem: Problem, tol) -> Callable:
    """The solve(p, u0) of jax.experimental.ode."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.ode import odeint

    times = [0.0, problem.t1] if problem.ts is None else problem.ts

    def solve(p, u0):
        swapped = lambda u, t, p: problem.field(t, u, p)
        us = odeint(swapped, u0, jnp.asarray(times), p, rtol=tol, atol=tol, mxstep=problem.max_steps)
        return us if problem.ts is not None else jax.tree.map(lambda x: x[-1], us)

    return solve


def by_tolerance(solve: Callable, *args, loss=total, wrt=(0,), derivative=None, what=("solve", "gradient")):
    """make(tol) for solve(tol, *args) -> (values, steps), compiled once for all tolerances.

    The gradient is that of loss(values). derivative: `jax.grad`, the default, or `jax.jacfwd`. what: which programs.
    `make.steps`: the steps of each tolerance's solve.
    """
    import jax
    import jax.numpy as jnp

    args, steps = jax.tree.map(jnp.asarray, args), {}
    which = lambda chosen, args, tol: loss(solve(tol, *_replaced(args, wrt, chosen))[0])
    gradient = jax.jit(lambda args, tol: (derivative or jax.grad)(which)([args[i] for i in wrt], args, tol))
    value = jax.jit(lambda args, tol: solve(tol, *args))

    def make(tol):
        at = jnp.asarray(tol, jnp.result_type(float))

        def solution():
            values, steps[tol] = jax.block_until_ready(value(args, at))
            return values

        made = {"solve": solution, "gradient": lambda: jax.block_until_ready(gradient(args, at))}
        return {w: made[w] for w in what}

    make.steps = steps
    return make


def _replaced(args, wrt, values) -> list:
    args = list(args)
    for i, x in zip(wrt, values, strict=True):
        args[i] = x
    return args


def within(make: Callable, low: float, high: float = math.inf) -> Callable:
    """make(tol) for low <= tol <= high alone."""
    few = lambda tol: make(tol) if low <= tol <= high else {}
    few.steps = getattr(make, "steps", {})
    return few


def odesens(problem: Problem, *choice) -> Callable:
    return lambda tol: programs(problem, odesens_solve(problem, tol, *choice))


def diffrax(problem: Problem, *choice) -> Callable:
    return lambda tol: programs(problem, diffrax_solve(problem, tol, *choice))


def odeint(problem: Problem) -> Callable:
    return lambda tol: programs(problem, odeint_solve(problem, tol))


# ---------------------------------------------------------------- reference and errors


def flat(x) -> np.ndarray:
    """All numbers of a pytree of arrays as one vector."""
    import jax

    return np.concatenate([np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(x)])


def reference(problem: Problem, tol: float = 1e-12) -> dict:
    """End state and gradient by SciPy's DOP853: the solve, then the adjoint equation along its dense output."""
    import jax
    from jax.flatten_util import ravel_pytree
    from scipy.integrate import solve_ivp

    (u0, as_u), (p, as_p) = ravel_pytree(problem.u0), ravel_pytree(problem.p)
    options = {"method": "DOP853", "rtol": tol, "atol": tol}
    field = jax.jit(lambda t, u, p: ravel_pytree(problem.field(t, as_u(u), as_p(p)))[0])
    pull = jax.jit(lambda t, u, lam: jax.vjp(lambda u, p: field(t, u, p), u, p)[1](lam))
    forward = solve_ivp(lambda t, u: np.asarray(field(t, u, p)), (0, problem.t1), u0, dense_output=True, **options)
    end, n, t1 = forward.y[:, -1], u0.size, problem.t1

    def backward(s, z):
        return np.concatenate([np.asarray(x) for x in pull(t1 - s, forward.sol(t1 - s), z[:n])])

    lam = jax.grad(lambda u: problem.loss(as_u(u)))(end)
    z = solve_ivp(backward, (0, t1), np.r_[lam, np.zeros(p.size)], t_eval=[t1], **options).y[:, -1]
    return {"solve": end, "gradient": np.concatenate([(z[n:], z[:n])[i] for i in problem.wrt])}


def relative_error(x, reference) -> float:
    x, reference = np.asarray(x, float), np.asarray(reference, float)
    return float(np.linalg.norm((x - reference).ravel()) / np.linalg.norm(reference.ravel()))


def achieved(value, reference) -> float | None:
    """Relative error of a pytree of arrays as one vector; None where it is not finite."""
    error = relative_error(flat(value), flat(reference))
    return error if math.isfinite(error) else None


def at_error(points: list, error: float) -> float | None:
    """Seconds at an achieved error, from (error, seconds) points, linear in logarithms; None outside their range."""
    known = sorted((np.log10(e), np.log10(t)) for e, t in points if e and t)
    if not known or not known[0][0] <= np.log10(error) <= known[-1][0]:
        return None
    return float(10 ** np.interp(np.log10(error), *zip(*known, strict=True)))


# ---------------------------------------------------------------- timing


QUICK = 5e-3  # seconds


def interleaved(programs: dict, seconds: float = 1.5, most: int = 200) -> dict:
    """Median seconds of each warm program, called in turn, so that a slow minute slows all of them.

    A quick program is called once more just before it is timed: otherwise what ran before it decides how much of its
    code and data is still in the caches.
    """
    once = {}
    for name, run in programs.items():
        start = time.perf_counter()
        run()
        once[name] = time.perf_counter() - start
    rounds = {name: int(np.clip(seconds / t, 3 if t > 1 else 5, most)) for name, t in once.items()}
    times = {name: [] for name in programs}
    total = max(rounds.values(), default=0)
    for i in range(total):
        for name, run in programs.items():
            if (i * rounds[name]) // total != ((i + 1) * rounds[name]) // total:
                if once[name] < QUICK:
                    run()
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def first_call(run: Callable):
    """A program's value, and the seconds of its first call: tracing, compilation, one run."""
    start = time.perf_counter()
    value = run()
    return value, time.perf_counter() - start


def first_calls(make: Callable, tol) -> dict:
    """Each program that make(tol) gives, its value, the seconds of its first call."""
    return {what: (run, *first_call(run)) for what, run in make(tol).items()}


def work_precision(peers: dict, reference: dict, tolerances: list, options) -> dict:
    """Rows (tolerance, then error and seconds of each program, then seconds of each first call) of each peer.

    peers: name -> make(tol) -> a dict of programs, whose keys are among those of the reference.
    """
    points = {}
    for tol in tolerances:
        if late(options, f"tolerance {tol:g}"):
            break
        ready, facts = {}, {}
        for name, make in chosen(peers, options).items():
            made = attempt(f"{name} at {tol:g}", partial(first_calls, make, tol))
            if made is None:
                continue
            for what, (run, value, first) in made.items():
                facts[name, what] = achieved(value, reference[what]), first
                ready[name, what] = run
        times = interleaved(ready, options.seconds)
        for name in dict.fromkeys(name for name, _ in ready):
            known = {what: facts.get((name, what), (None, None)) for what in reference}
            pairs = [(known[what][0], times.get((name, what))) for what in reference]
            row = [tol, *sum(pairs, ()), *(known[what][1] for what in reference)]
            points.setdefault(name, []).append(row)
            told = [f"{w} {duration(t)} error {digits(e)}" for w, (e, t) in zip(reference, pairs, strict=True) if t]
            print(f"{tol:.0e}  {name:36s}", *told, sep="  ", flush=True)
    return points


def columns(reference: dict) -> list:
    """What the rows of `work_precision` hold."""
    pairs = sum(((f"error of {what}", f"seconds of {what}") for what in reference), ())
    return ["tolerance", *pairs, *(f"seconds of first {what}" for what in reference)]


# ---------------------------------------------------------------- tables


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def digits(x: float | None) -> str:
    return "none" if x is None else f"{x:.1e}"


def markdown(heads: list, lines: list) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(str(x) for x in row) + " |" for row in rows)


def table(points: dict, errors: list | dict, base: str, what=("solve", "gradient")) -> str:
    """Times at equal achieved error, in brackets the ratio to the base; the first call at the first tolerance.

    errors: one list, or one for each program.

    With a solve and a gradient, a last column has the gradient's time by that of its own solve, at the same tolerance.
    """
    errors = errors if isinstance(errors, dict) else dict.fromkeys(what, errors)
    heads = ["time (ratio)", *(f"{w} at {e:.0e}" for w in what for e in errors[w]), *(f"first {w}" for w in what)]
    both = len(what) == 2
    at = lambda rows, i, e: at_error([(r[i], r[i + 1]) for r in rows], e)
    lines = []
    for name, rows in points.items():
        cells = []
        for i, w in zip(range(1, 2 * len(what), 2), what, strict=True):
            for e in errors[w]:
                mine, theirs = at(rows, i, e), at(points.get(base, []), i, e)
                cells.append(duration(mine) + (f" ({mine / theirs:.2f})" if mine and theirs else ""))
        cells += [duration(rows[0][2 * len(what) + 1 + k]) for k in range(len(what))]
        if both:
            known = [(r[3], r[4] / r[2]) for r in rows if r[2] and r[4]]
            ratios = [at_error(known, e) for e in errors["gradient"]]
            cells.append(", ".join("-" if x is None else f"{x:.1f}" for x in ratios))
        lines.append([name, *cells])
    return markdown(heads + ["gradient / own solve"] * both, lines)


def ratios(points: dict, mine: list, peers: list, column: int, errors: list, most: float) -> list:
    """A table's line: at each error the least time of `mine` by the least of `peers`, then the most it may be.

    Where all errors of mine are smaller than that asked for, the quickest of them counts, and the ratio is an upper
    bound: "<".
    """
    rows = lambda name: [(r[column], r[column + 1]) for r in points.get(name, [])]
    least = lambda times: min(filter(None, times), default=None)
    cells = []
    for e in errors:
        a, b = (least(at_error(rows(name), e) for name in names) for names in (mine, peers))
        sign = "" if a else "<"
        a = a or least(t for name in mine for error, t in rows(name) if error and error <= e)
        cells.append(f"{sign}{a / b:.3f}" if a and b else "-")
    return [*cells, f"{most:.3f}"]


# ---------------------------------------------------------------- child processes and the record


def child(script: str, *args, seconds: float = 900) -> dict | None:
    """The JSON on the last line that a script prints in a process of its own, with its wall time; None if it fails."""
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    command, name = [sys.executable, script, *map(str, args)], " ".join(map(str, args))
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=seconds)
    except subprocess.TimeoutExpired:
        return note(f"{name} left out: not done after {seconds:g} seconds")
    wall = time.perf_counter() - start
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if re.match(r"[\w.]+(Error|Exception|Exit)\b", x)]
        return note(f"{name} left out: {'killed' if done.returncode < 0 else (lines or ['failed'])[-1][:200]}")
    return {"wall": wall, **json.loads(done.stdout.strip().splitlines()[-1])}


def environment() -> dict:
    """Date, machine and versions."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((x.split(":")[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")), cpu)
    versions = {}
    for name in (
        "odesens",
        "jax",
        "jaxlib",
        "diffrax",
        "equinox",
        "numpy",
        "scipy",
        "heyoka",
        "casadi",
        "numbalsoda",
        "sympy",
        "sympy2jax",
    ):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    git = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def save(name: str, data: dict, folder: Path = RESULTS) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), **data}, indent=1) + "\n")
    return path


def finish(name: str, options, data: dict, text: str):
    """Print the table and write the result file; a smoke run has a file of its own, which is not committed."""
    name += "_flag" * options.flag + "_quick" * options.quick
    path = save(name, {**data, "notes": NOTES, "table": text.splitlines()}, options.results)
    print(f"\n{text}\n\n{path}")
