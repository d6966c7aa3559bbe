"""Many Lorenz trajectories under vmap: solve and gradient, odesens beside diffrax and a loop in C.

    python benchmarks/lorenz_ensemble.py [--flag] [--quick] [--lanes 1000,10000] [--t1 10] [--per-lane] [--seconds 2]

u0 is (1, 1, 1) and a normal deviate for each lane; loss = sum of the end states, gradient in (sigma, rho, beta) that
all lanes share, or with `--per-lane` in those of each lane, rho between 20 and 35. Reference: SciPy's DOP853 on the
variational equations of all lanes at once. The system is chaotic: errors of the gradient are some 10^4 times the
tolerance at t1 = 10. The C loop (lorenz.c, one thread, discrete adjoint) is compiled on the fly, left out without gcc.
"""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import harness
import jax
import jax.numpy as jnp
import numpy as np

P = np.array([10.0, 28.0, 8 / 3])
TOLERANCES = [1e-4, 1e-6, 1e-8]
ERRORS = [1e-2, 1e-4, 1e-6]
MAX_STEPS = 4096


def field(t, u, p):
    x, y, z = u
    return jnp.stack([p[0] * (y - x), x * (p[1] - z) - y, x * y - p[2] * z])


def problem(lanes: int, t1: float, per_lane: bool) -> harness.Problem:
    r = np.random.default_rng(0)
    u0, p = 1.0 + r.normal(size=(lanes, 3)), P
    if per_lane:
        p = np.tile(P, (lanes, 1))
        p[:, 1] = r.uniform(20, 35, lanes)
    return harness.Problem(field, u0, p, t1, lanes=(0 if per_lane else None, 0), max_steps=MAX_STEPS)


def reference(case: harness.Problem, tol: float) -> dict:
    from scipy.integrate import solve_ivp

    def one(z, p):
        u, s = z[:3], z[3:].reshape(3, 3)
        along = lambda d: field(0.0, u + s @ d, p + d)
        zero = jnp.zeros(3)
        return jnp.concatenate([along(zero), jax.jacfwd(along)(zero).ravel()])

    lanes = len(case.u0)
    right = jax.jit(jax.vmap(one, (0, case.lanes[0])))
    z0 = np.concatenate([case.u0, np.zeros((lanes, 9))], 1).ravel()
    options = {"method": "DOP853", "rtol": tol, "atol": tol, "t_eval": [case.t1]}
    z = solve_ivp(lambda t, z: np.asarray(right(z.reshape(lanes, 12), case.p)).ravel(), (0, case.t1), z0, **options).y
    z = z.reshape(lanes, 12)
    gradient = z[:, 3:].reshape(lanes, 3, 3).sum(1)
    return {"solve": z[:, :3], "gradient": gradient if case.lanes[0] == 0 else gradient.sum(0)}


def library() -> ctypes.CDLL:
    """lorenz.c, compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise ImportError("a C compiler", name="a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "lorenz.so"
        source = Path(__file__).with_name("lorenz.c")
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", built, source, "-lm"], check=True, capture_output=True)
        return ctypes.CDLL(str(built))


def in_c(case: harness.Problem):
    def make(tol):
        ensemble = library().ensemble
        double, integer, pointer = ctypes.c_double, ctypes.c_long, ctypes.c_void_p
        ensemble.restype = integer
        ensemble.argtypes = [pointer, pointer, integer, integer, double, double, integer, pointer, pointer]
        u0, p, ends = np.ascontiguousarray(case.u0), np.ascontiguousarray(case.p), np.empty_like(case.u0)
        stride = 0 if case.lanes[0] is None else 3

        def run(gradient):
            out = gradient.ctypes.data if gradient is not None else None
            sizes = (stride, len(u0), case.t1, tol, case.max_steps)
            if ensemble(u0.ctypes.data, p.ctypes.data, *sizes, ends.ctypes.data, out) < 0:
                raise RuntimeError("more steps than max_steps")
            return ends if gradient is None else gradient

        return {"solve": lambda: run(None), "gradient": lambda: run(np.zeros_like(p))}

    return make


def peers(case: harness.Problem) -> dict:
    return {
        "odesens Tsit5": harness.odesens(case, "Tsit5"),
        "diffrax Tsit5": harness.diffrax(case, "Tsit5"),
        "C, lane after lane": in_c(case),
    }


def main():
    options = harness.arguments(
        __doc__,
        seconds=2.0,
        lanes=("1000,10000", "numbers of trajectories"),
        t1=(10.0, "end of the span"),
        per_lane=(False, "parameters of each lane"),
    )
    data, texts = {}, []
    sizes = [100] if options.quick else [int(x) for x in options.lanes.split(",")]
    t1 = min(options.t1, 2.0) if options.quick else options.t1
    for lanes in sizes:
        if harness.late(options, f"{lanes} lanes"):
            break
        case = problem(lanes, t1, options.per_lane)
        known = reference(case, 1e-10 if options.quick else 1e-13)
        tolerances = TOLERANCES[:2] if options.quick else TOLERANCES
        points = harness.work_precision(peers(case), known, tolerances, options)
        data[f"{lanes} lanes"] = {"t1": t1, "columns": harness.columns(known), "points": points}
        texts.append(f"{lanes} lanes, t1 = {t1:g}:\n\n{harness.table(points, ERRORS, 'diffrax Tsit5')}")
    harness.finish("lorenz_ensemble" + "_per_lane" * options.per_lane, options, data, "\n\n".join(texts))


if __name__ == "__main__":
    main()
