"""Time and memory of a gradient against the number of steps, fixed and adaptive, on the harmonic oscillator.

    python benchmarks/memory.py [--flag] [--quick] [--steps 1000,10000,100000,1000000] [--seconds 1] [--only ..]

u' = (u_1, -p u_0) over as long a span as the steps take: h = 0.05, or tolerances of 1e-8, whose steps are about 0.1.
Loss = sum of the end, gradient in p and u0, exact error against the closed form. Each case is a process of its own:
both programs are compiled, the kernel's peak mark (VmHWM) is reset, one solve, its peak; reset again, one gradient, its
peak. Memory of the gradient = its peak above that of the solve; "temp" = the buffers that XLA plans for it. Then the
warm times. diffrax up to 10^5 steps; jax's odeint, which has no fixed steps, adaptive only. max_steps is 1.5 n for all.
"""

import json
import resource
import sys
from pathlib import Path

import harness
import numpy as np

H = {"fixed": 0.05, "adaptive": 0.1}
TOLERANCE = 1e-8
PEERS = {
    "odesens": ("fixed", "adaptive"),
    "diffrax": ("fixed", "adaptive"),
    "jax odeint": ("adaptive",),
}
MOST = {"odesens": 10**6, "diffrax": 10**5, "jax odeint": 10**6}


def field(t, u, p):
    import jax.numpy as jnp

    return jnp.stack([u[1], -p * u[0]])


def exact(t1: float) -> dict:
    """End and gradient (in p and u0) at p = 1, u0 = (1, 0)."""
    c, s = np.cos(t1), np.sin(t1)
    return {"solve": np.array([c, -s]), "gradient": np.array([-(t1 * s + s + t1 * c) / 2, c - s, s + c])}


def problem(steps: int, kind: str) -> harness.Problem:
    most = int(1.5 * steps) + 8
    return harness.Problem(field, np.array([1.0, 0.0]), np.array(1.0), steps * H[kind], wrt=(0, 1), max_steps=most)


def solver(peer: str, case: harness.Problem, kind: str):
    h = H[kind] if kind == "fixed" else None
    if peer == "odesens":
        more = {"adaptive": False, "dt0": h} if h else {}
        return harness.odesens_solve(case, TOLERANCE, **more)
    if peer == "diffrax":
        return harness.diffrax_solve(case, TOLERANCE, h=h)
    return harness.odeint_solve(case, TOLERANCE)


def reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak() -> float:
    """Peak resident megabytes since the last reset; since the start of the process where there is no such mark."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(peer: str, kind: str, steps: int, seconds: float) -> dict:
    """In the fresh process."""
    import jax
    import jax.numpy as jnp

    case = problem(steps, kind)
    solve, known = solver(peer, case, kind), exact(steps * H[kind])
    args = jax.tree.map(jnp.asarray, (case.p, case.u0))
    makers = {"solve": solve, "gradient": jax.grad(lambda p, u0: case.loss(solve(p, u0)), case.wrt)}
    compiled = {what: jax.jit(f).lower(*args).compile() for what, f in makers.items()}
    programs = {what: lambda f=f: jax.block_until_ready(f(*args)) for what, f in compiled.items()}
    out = {"reset": reset_peak()}
    for what, run in programs.items():
        reset_peak()
        value, out[f"first {what}"] = harness.first_call(run)
        out[f"peak {what}"] = peak()
        out[f"temp {what}"] = compiled[what].memory_analysis().temp_size_in_bytes / 2**20
        out[f"error {what}"] = harness.achieved(value, known[what])
    times = {what: out[f"first {what}"] for what in programs}
    if sum(times.values()) < 20:
        times = harness.interleaved(programs, seconds)
    return out | {f"seconds {what}": t for what, t in times.items()}


def collect(options) -> list:
    rows = []
    sizes = [1000] if options.quick else [int(x) for x in options.steps.split(",")]
    for steps in sizes:
        for peer in harness.chosen(PEERS, options):
            for kind in PEERS[peer]:
                name = f"{peer}, {kind}, {steps} steps"
                if steps > MOST[peer] or harness.late(options, name):
                    continue
                flag = ["--flag"] * options.flag
                got = harness.child(__file__, "--child", peer, kind, steps, options.seconds, *flag)
                if got:
                    rows.append({"peer": peer, "kind": kind, "steps": steps, **got})
                    print(f"{name}: gradient {harness.duration(got['seconds gradient'])}", flush=True)
    return rows


def table(rows: list) -> str:
    heads = ["peer", "steps", "solve", "gradient", "gradient / solve", "gradient a step", "MB above the solve"]
    lines = []
    for r in rows:
        if not r["reset"]:
            harness.note("the kernel's peak mark could not be reset: memory includes that of compilation")
        a, b = r["seconds solve"], r["seconds gradient"]
        memory = f"{max(0.0, r['peak gradient'] - r['peak solve']):.1f}"
        cells = [harness.duration(a), harness.duration(b), f"{b / a:.1f}", harness.duration(b / r["steps"]), memory]
        errors = [f"{r['temp gradient']:.1f}", *(harness.digits(r[f"error {what}"]) for what in ("solve", "gradient"))]
        lines.append([f"{r['peer']}, {r['kind']}", f"{r['steps']:.0e}", *cells, *errors])
    return harness.markdown([*heads, "MB temp", "error of solve", "error of gradient"], lines)


def main():
    if "--child" in sys.argv:
        peer, kind, steps, seconds = sys.argv[sys.argv.index("--child") + 1 :][:4]
        print(json.dumps(measure(peer, kind, int(steps), float(seconds))))
        return
    options = harness.arguments(__doc__, steps=("1000,10000,100000,1000000", "numbers of steps"))
    rows = collect(options)
    harness.finish("memory", options, {"tolerance": TOLERANCE, "h": H, "rows": rows}, table(rows))


if __name__ == "__main__":
    main()
