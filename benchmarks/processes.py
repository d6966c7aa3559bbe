"""One ensemble over several local processes under `jax.distributed`: values, gradient, agreement, weak scaling.

    python benchmarks/processes.py [--processes 1,2,4] [--each 1000] [--seconds 2] [--quick]

Each process has one CPU device; trajectories are Lorenz's, `each` for every process, so that with perfect weak scaling
the time stays the same until the cores are used up. Values and gradients of a common ensemble of seven trajectories
are compared with those of one process. The processes talk through the loopback address by gloo.

    python benchmarks/processes.py --rank R --count N --port PORT --each E    one of the processes
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

TOLERANCE = 1e-6


def worker(rank: int, count: int, port: int, each: int, seconds: float) -> dict:
    """What one process solves and differentiates; it must do the same as all others."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)
    import jax.numpy as jnp
    import numpy as np

    import odesens as ode

    def lorenz(t, u, p):
        x, y, z = u
        return jnp.stack([p[0] * (y - x), x * (p[1] - z) - y, x * y - p[2] * z])

    p = jnp.array([10.0, 28.0, 8 / 3])
    prob = ode.ODEProblem(
        lorenz, jnp.ones(3), (0.0, 2.0), p, saveat=np.array([2.0]), reltol=TOLERANCE, abstol=TOLERANCE
    )

    def solve(p, trajectories: int):
        func = lambda prob, i, _: ode.remake(prob, u0=1 + jax.random.normal(jax.random.key(i), (3,)), p=p)
        ensemble = ode.EnsembleProblem(prob, prob_func=func)
        return ode.solve(ensemble, ode.Tsit5(), ode.EnsembleSharded(), trajectories=trajectories).u

    gradient = jax.grad(lambda p, n: jnp.sum(solve(p, n)))
    out = {"values": np.asarray(solve(p, 7)).tolist(), "gradient": np.asarray(gradient(p, 7)).tolist()}
    if each:
        n = each * count
        for name, run in {"solve": lambda: solve(p, n), "gradient": lambda: gradient(p, n)}.items():
            jax.block_until_ready(run())
            times = []
            while sum(times) < seconds or len(times) < 3:
                start = time.perf_counter()
                jax.block_until_ready(run())
                times.append(time.perf_counter() - start)
                if len(times) == 3 and count > 1:
                    break  # all processes must make the same number of calls
            out[f"seconds of {name}"] = sorted(times)[len(times) // 2]
    return out


def launch(count: int, each: int = 0, seconds: float = 1.0, limit: float = 600.0) -> list[dict]:
    """The results of all processes of one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = ["--count", count, "--port", port, "--each", each, "--seconds", seconds]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path[1:]])}
    start = lambda rank: subprocess.Popen(
        [sys.executable, __file__, *map(str, ["--rank", rank, *common])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    processes = [start(rank) for rank in range(count)]
    try:
        outputs = [process.communicate(timeout=limit) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"a process of {count} ended with {process.returncode}:\n{errors[-3000:]}")
    return [json.loads(text.splitlines()[-1]) for text, _ in outputs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", default="1,2,4", help="numbers of processes")
    parser.add_argument("--each", type=int, default=1000, help="trajectories of each process")
    parser.add_argument("--seconds", type=float, default=2.0, help="timing of each program in one process")
    parser.add_argument("--quick", action="store_true", help="smoke run")
    for name in ("rank", "count", "port"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        print(json.dumps(worker(options.rank, options.count, options.port, options.each, options.seconds)))
        return
    if options.quick:
        options.processes, options.each, options.seconds = "1,2", 20, 0.1
    first = None
    print(f"| processes | trajectories | solve, ms | gradient, ms | difference from one process |\n|{'---|' * 5}")
    for count in map(int, options.processes.split(",")):
        results = launch(count, options.each, options.seconds)
        first = first or results[0]
        flat = lambda r: [*(x for row in r["values"] for y in row for x in y), *r["gradient"]]
        worst = max(abs(a - b) / abs(b) for r in results for a, b in zip(flat(r), flat(first), strict=True))
        ms = [1e3 * max(r[f"seconds of {name}"] for r in results) for name in ("solve", "gradient")]
        print(f"| {count} | {count * options.each} | {ms[0]:.1f} | {ms[1]:.1f} | {worst:.1e} |", flush=True)
    print(f"\n{os.cpu_count()} cores; with more processes than cores these, not the processes, are the limit.")


if __name__ == "__main__":
    main()
