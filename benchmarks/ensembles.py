"""Ensembles: homogeneous and heavy-tailed ones beside vmapped diffrax, several devices, memory.

    python benchmarks/ensembles.py [--case lorenz,tail,devices,memory] [--lanes 1000,10000] [--tail 4096] [--quick]
        [--flag] [--seconds 2]

lorenz: solve and gradient in the shared (sigma, rho, beta) of trajectories on (0, 10), beside vmapped diffrax and the
C loop of `lorenz_ensemble.py`. tail: Van der Pol on (0, 20), mu log-uniform in 0.1 .. 100, gradient in every mu; the
cost of a lane-step at full lanes is measured on as many trajectories of one and the same mu. devices: the same solve
on one and on two host devices, each in a process of its own. memory: peak resident memory of solve and gradient of 10^4
and 10^5 trajectories, reduced in batches of 1 000, each in a process of its own.
"""

import functools
import json
import os
import resource
import subprocess
import sys
import time

import harness
import jax
import jax.numpy as jnp
import lorenz_ensemble
import numpy as np

TOLERANCE = 1e-6


def ensemble(case: harness.Problem, tol: float, sizes: dict, algorithm=None) -> dict:
    """The ensemble's programs; the numbers of steps go to sizes."""
    import odesens as ode

    prob = ode.ODEProblem(
        case.field, case.u0, (0.0, case.t1), case.p, saveat=np.array([case.t1]), reltol=tol, abstol=tol
    )
    prob = ode.remake(prob, max_steps=case.max_steps)
    per_lane = dict(zip(("p", "u0"), (axis == 0 for axis in case.lanes), strict=True))

    def solve(p, u0):
        given = {"p": p, "u0": u0}
        base = ode.remake(prob, **{k: v for k, v in given.items() if not per_lane[k]})
        own = {k: v for k, v in given.items() if per_lane[k]}
        return ode.solve(ode.EnsembleProblem(base, **own), ode.Tsit5(), algorithm, throw=False)

    args = jax.tree.map(jnp.asarray, (case.p, case.u0))
    stats = jax.jit(lambda *args: solve(*args).stats)(*args)
    sizes["steps"] = int(np.sum(stats.naccept + stats.nreject))
    sizes["most"] = int(np.max(stats.naccept + stats.nreject))
    gradient = jax.grad(lambda p, u0: jnp.sum(solve(p, u0).u), case.wrt)
    return {
        "solve": harness.call(lambda p, u0: solve(p, u0).u, *args),
        "gradient": harness.call(gradient, *args),
    }


def lorenz(options) -> dict:
    out = {}
    for lanes in [100] if options.quick else [int(x) for x in options.lanes.split(",")]:
        case = lorenz_ensemble.problem(lanes, 2.0 if options.quick else 10.0, False)
        known = lorenz_ensemble.reference(case, 1e-10 if options.quick else 1e-13)
        peers = {
            "odesens ensemble": lambda tol, case=case: ensemble(case, tol, {}),
            "diffrax Tsit5": harness.diffrax(case, "Tsit5"),
            "C, lane after lane": lorenz_ensemble.in_c(case),
        }
        tolerances = lorenz_ensemble.TOLERANCES[:2] if options.quick else lorenz_ensemble.TOLERANCES
        points = harness.work_precision(peers, known, tolerances, options)
        table = harness.table(points, lorenz_ensemble.ERRORS, "diffrax Tsit5")
        out[f"lorenz {lanes}"] = {"columns": harness.columns(known), "points": points, "table": table}
        print(f"\n{lanes} trajectories:\n\n{table}\n", flush=True)
    return out


def van_der_pol(t, u, mu):
    return jnp.stack([u[1], mu * (1 - u[0] ** 2) * u[1] - u[0]])


def tail(options) -> dict:
    """Seconds, and the cost of a lane-step in units of that at full lanes."""
    count = 64 if options.quick else options.tail
    draws = np.exp(np.random.default_rng(0).uniform(np.log(0.1), np.log(100), count))
    problem = functools.partial(harness.Problem, van_der_pol, np.array([2.0, 0.0]), t1=20.0, lanes=(0, None))
    spread, same = problem(p=draws, max_steps=2**15), problem(p=np.full(count, 5.0), max_steps=2**15)
    sizes: dict = {"tail": {}, "full lanes": {}}
    made = {name: ensemble(case, TOLERANCE, sizes[name]) for name, case in {"tail": spread, "full lanes": same}.items()}
    programs = {(name, what): run for name, runs in made.items() for what, run in runs.items()}
    if "diffrax" in "".join(options.only) or not options.only:
        peer = harness.attempt("diffrax", lambda: harness.diffrax(spread, "Tsit5")(TOLERANCE))
        programs |= {("diffrax", what): run for what, run in (peer or {}).items()}
    times = harness.interleaved(programs, options.seconds)
    rows = {}
    for what in ("solve", "gradient"):
        each = {name: times["tail" if name == "tail" else name, what] / sizes[name]["steps"] for name in sizes}
        row = {"seconds": times["tail", what], "over full lanes": each["tail"] / each["full lanes"]}
        if ("diffrax", what) in times:
            row["over diffrax"] = times["tail", what] / times["diffrax", what]
        rows[what] = row
        print(f"tail, {count} trajectories, {what}:", {k: f"{v:.3g}" for k, v in row.items()}, flush=True)
    return {"tail": {"count": count, "sizes": sizes, **rows}}


def child(what: str, *args) -> dict:
    """The result of a case in a process of its own."""
    devices = args[0] if what == "device" else 1
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    # one thread for each device: XLA would else split single operations over the cores
    flags += " --xla_cpu_multi_thread_eigen=false"
    run = [sys.executable, __file__, "--child", what, *map(str, args)]
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": flags.strip()})
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def on_devices(count: int, lanes: int) -> dict:
    import odesens as ode

    assert len(jax.devices()) == count
    made = ensemble(lorenz_ensemble.problem(lanes, 5.0, False), TOLERANCE, {}, ode.EnsembleSharded())
    return harness.interleaved(made, 2.0)


def devices(options) -> dict:
    lanes = 64 if options.quick else 2000
    one, two = (child("device", n, lanes) for n in (1, 2))
    ratios = {what: one[what] / two[what] for what in one}
    print(f"two host devices over one, {lanes} trajectories:", {k: f"{v:.2f}" for k, v in ratios.items()}, flush=True)
    return {"devices": {"one": one, "two": two, "faster by": ratios}}


def peak(count: int, size: int) -> dict:
    """Peak resident memory in MB of an ensemble's reduction and its gradient."""
    import odesens as ode

    prob = ode.ODEProblem(lorenz_ensemble.field, jnp.ones(3), (0.0, 2.0), saveat=0.1)

    def mean(p):
        func = lambda prob, i, _: ode.remake(prob, p=p, u0=1 + jax.random.normal(jax.random.key(i), (3,)))
        add = lambda u, batch, index: u + jnp.sum(batch, axis=0) / count
        ensemble = ode.EnsembleProblem(prob, func, reduction=add, u_init=jnp.zeros((21, 3)))
        return ode.solve(ensemble, ode.Tsit5(), trajectories=count, batch_size=size).u

    start = time.perf_counter()
    jax.block_until_ready(jax.grad(lambda p: jnp.sum(mean(p) ** 2))(jnp.asarray(lorenz_ensemble.P)))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"trajectories": count, "MB": used, "seconds": time.perf_counter() - start}


def memory(options) -> dict:
    counts, size = ((200, 400), 100) if options.quick else ((10_000, 100_000), 1000)
    few, many = (child("memory", n, size) for n in counts)
    print(f"peak memory {few['MB']:.0f} MB at {counts[0]}, {many['MB']:.0f} MB at {counts[1]} trajectories", flush=True)
    return {"memory": [few, many]}


CASES = {"lorenz": lorenz, "tail": tail, "devices": devices, "memory": memory}


def main():
    if "--child" in sys.argv:
        what, *args = sys.argv[sys.argv.index("--child") + 1 :]
        print(json.dumps({"device": on_devices, "memory": peak}[what](*map(int, args))))
        return
    options = harness.arguments(
        __doc__,
        seconds=2.0,
        case=(",".join(CASES), "which cases"),
        lanes=("1000,10000", "numbers of Lorenz trajectories"),
        tail=(4096, "number of Van der Pol trajectories"),
    )
    data: dict = {}
    for name in options.case.split(","):
        if not harness.late(options, name):
            data |= CASES[name](options)
    limits = {"devices", "memory"} >= set(data)
    harness.finish(
        "ensembles_devices" if limits else "ensembles",
        options,
        data,
        "\n\n".join(v["table"] for v in data.values() if "table" in v),
    )


if __name__ == "__main__":
    main()
