"""Ten thousand solves in one process: memory and caches must not grow, and nothing may compile after the first rounds.

    python benchmarks/soak.py [--solves 10000] [--quick]

Each round makes one solve of every kind in KINDS with new functions and other numbers: plain, with gradients, stiff,
with mass matrices, events, forcing from data, dense output, every step saved, ensembles, steady states, symbolic
problems, SciPy's signature, failures. The result file has, after the first rounds and at every thousand solves, the
resident memory, the sizes of odesens' memories, the number of compiled programs and of live Python objects.
"""

import gc
import math
import sys
from collections.abc import Callable

import harness
import jax
import jax.numpy as jnp
import numpy as np

import odesens as ode

WARM = 4  # rounds, in which all kinds compile
COMPILED: list = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: COMPILED.append(event) if event.endswith("backend_compile_duration") else None
)
KINDS: dict[str, Callable] = {}


def kind(solve: Callable) -> Callable:
    """Add solve(x, i) -> number, of a number x in (1, 2) that differs from round to round."""
    KINDS[solve.__name__] = solve
    return solve


# ---------------------------------------------------------------- kinds of solves


@kind
def plain(x, i):
    f = lambda t, u, p: -p * u
    return ode.solve(ode.ODEProblem(f, jnp.ones(2), (0.0, 1.0), x), saveat=[0.5, 1.0]).u[-1, 0] - math.exp(-x)


@kind
def captured_arrays(x, i):
    k, m = jnp.asarray(x), np.array([x, x])
    f = lambda t, u, p: -k * u + 0 * m
    return ode.solve(ode.ODEProblem(f, jnp.ones(2), (0.0, 1.0)), ode.Tsit5(), saveat=[1.0]).u[0, 0] - math.exp(-x)


@kind
def gradient(x, i):
    def loss(p):
        problem = ode.ODEProblem(lambda t, u, p: {"a": -p["k"] * u["a"]}, {"a": 1.0}, (0.0, 1.0), p)
        return ode.solve(problem, ode.Tsit5(), saveat=[1.0]).u["a"][0]

    return jax.grad(loss)({"k": x})["k"] + math.exp(-x)


@kind
def gradient_of_another_engine(x, i):
    engine = (ode.GaussAdjoint(), ode.ForwardSensitivity())[i % 2]
    problem = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), sensealg=engine)
    return jax.grad(lambda p: ode.solve(problem, p=p, saveat=[1.0]).u[0])(x) + math.exp(-x)


@kind
def new_jit(x, i):
    """JAX forgets the program of a function that is gone."""
    if i % 10:  # it compiles, which takes its time
        return 0.0
    solve = jax.jit(lambda p: ode.solve(ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), p), saveat=[1.0]).u[0])
    return solve(x) - math.exp(-x)


@kind
def lanes(x, i):
    problem = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0))
    return jax.vmap(lambda p: ode.solve(problem, p=p, saveat=[1.0]).u[0])(jnp.array([x, 1.0]))[0] - math.exp(-x)


@kind
def stiff(x, i):
    f = lambda t, u, p: -1e3 * (u - jnp.exp(-p * t)) - p * jnp.exp(-p * t)
    return ode.solve(ode.ODEProblem(f, 1.0, (0.0, 1.0), x), ode.Rodas5P(), saveat=[1.0]).u[0] - math.exp(-x)


@kind
def algebraic(x, i):
    f = lambda t, u, p: jnp.stack([-p * u[0], u[1] - u[0] ** 2])
    problem = ode.ODEProblem(f, [1.0, 0.5], (0.0, 1.0), x, mass_matrix=np.array([1.0, 0.0]))
    return ode.solve(problem, saveat=[1.0]).u[0, 1] - math.exp(-2 * x)


@kind
def events(x, i):
    stop = ode.ContinuousCallback(lambda t, u, p: u[0], terminate=True)
    problem = ode.ODEProblem(lambda t, u, p: jnp.stack([u[1], -p]), [1.0, 0.0], (0.0, 9.0), x, callback=stop)
    return ode.solve(problem, saveat=[9.0], max_events=1).events.t[0] - math.sqrt(2 / x)


@kind
def gradient_with_events(x, i):
    dose = ode.PresetTimeCallback([0.5], lambda t, u, p: u + 1.0)
    problem = ode.ODEProblem(lambda t, u, p: -p * u, 0.0, (0.0, 1.0), callback=dose, max_events=1)
    return jax.grad(lambda p: ode.solve(problem, p=p, saveat=[1.0]).u[0])(x) + math.exp(-x / 2) / 2


@kind
def forcing(x, i):
    wave = ode.interpolation.LinearInterpolation(np.array([0.0, 0.5, 1.0]), np.array([0.0, x, 0.0]))
    problem = ode.ODEProblem(lambda t, u, w: w(t), 0.0, (0.0, 1.0), wave)
    return ode.solve(problem, saveat=[1.0]).u[0] - x / 2


@kind
def dense_output(x, i):
    sol = ode.solve(ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), x, saveat=[1.0]), dense=True)
    return sol(0.5) - math.exp(-x / 2)


@kind
def every_step(x, i):
    """As many rows as there are steps."""
    sol = ode.solve(ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 4 * x), ode.Tsit5())
    return sol.u[-1] - math.exp(-4 * x)


@kind
def steps_of_saves(x, i):
    """Spans and steps that differ, as many saves."""
    sol = ode.solve(ode.ODEProblem(lambda t, u, p: -u, 1.0, (0.0, x)), saveat=x / 4)
    return sol.u[-1] - math.exp(-x)


@kind
def ensemble(x, i):
    problem = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), x, saveat=np.array([1.0]))
    scaled = ode.EnsembleProblem(problem, prob_func=lambda prob, i, _: ode.remake(prob, p=prob.p * (1 + i)))
    return ode.solve(scaled, ode.Tsit5(), trajectories=3).u[1, 0] - math.exp(-2 * x)


@kind
def steady_state(x, i):
    root = lambda p: ode.solve(ode.SteadyStateProblem(lambda t, u, p: p - u**2, 1.0, p)).u
    return jax.grad(root)(x) - 0.5 / math.sqrt(x)


@kind
def scipys_signature(x, i):
    return ode.compat.solve_ivp(lambda t, y, k: -k * y, (0, 1), [1.0], args=(x,), t_eval=[1.0]).y[0, -1] - math.exp(-x)


@kind
def failure(x, i):
    problem = ode.ODEProblem(lambda t, u, p: p * u**2, 1.0, (0.0, 2.0), x, max_steps=50)
    try:
        ode.solve(problem, ode.Tsit5(), saveat=[2.0])
    except ode.SolveError:
        return 0.0
    return math.nan


SYMBOLIC: list = []


@kind
def symbolic(x, i):
    from odesens.symbolic import D, System, equations, parameters, t, unknowns

    if not SYMBOLIC or i % 50 == 49:  # a new system now and then, new problems each time
        u, v, k = *unknowns("u v"), parameters("k")
        SYMBOLIC[:] = [System(equations([D(u), v], [-k * u, 2 * u]), t), u, v, k]
    system, u, v, k = SYMBOLIC
    problem = ode.ODEProblem(system, {u: 1.0}, (0.0, 1.0), {k: x}, saveat=[1.0])
    return ode.solve(problem)[v][-1] - 2 * math.exp(-x)


# ---------------------------------------------------------------- what may grow


def caches() -> dict[str, int]:
    """The sizes of all memories of odesens' modules: those of functools, and dictionaries by name."""
    sizes = {}
    for module in [m for name, m in sys.modules.items() if name.split(".")[0] == "odesens"]:
        for name, x in vars(module).items():
            own = getattr(x, "__module__", module.__name__) == module.__name__
            if hasattr(x, "cache_info") and own:
                sizes[f"{module.__name__}.{name}"] = x.cache_info().currsize
            elif isinstance(x, dict) and name.startswith("_") and not name.startswith("__"):
                sizes[f"{module.__name__}.{name}"] = len(x)
    return sizes


def resident() -> float:
    """Resident memory in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def state(solves: int) -> dict:
    gc.collect()
    objects = len(gc.get_objects())
    return {"solves": solves, "MB": round(resident(), 1), "compiled": len(COMPILED), "objects": objects} | caches()


def rounds(count: int, start: int = 0) -> None:
    """Make rounds of one solve of each kind; each is right."""
    for i in range(start, start + count):
        x = 1 + (i * 0.6180339887498949) % 1
        for name, solve in KINDS.items():
            error = abs(float(solve(x, i)))
            if not error < 1e-4:
                raise AssertionError(f"{name} of {x} in round {i} is wrong by {error}")


def main():
    options = harness.arguments(__doc__, solves=(10_000, "how many"))
    if options.quick:
        options.solves = 300
    rounds(WARM)
    rows, every = [state(WARM * len(KINDS))], max(1, options.solves // 10 // len(KINDS))
    while rows[-1]["solves"] < options.solves:
        done = rows[-1]["solves"] // len(KINDS)
        rounds(every, done)
        rows.append(state((done + every) * len(KINDS)))
        print(rows[-1], flush=True)
    shown = ["solves", "MB", "compiled", "objects"]
    text = [f"| {' | '.join(shown)} | entries of caches |", "|---" * (len(shown) + 1) + "|"]
    for row in rows:
        entries = sum(n for name, n in row.items() if name not in shown)
        text.append(f"| {' | '.join(str(row[name]) for name in shown)} | {entries} |")
    harness.finish("soak", options, {"rows": rows}, "\n".join(text))


if __name__ == "__main__":
    main()
