"""From symbolic equations to the first gradient, beside the same equations by lambdify and sympy2jax with diffrax.

    python benchmarks/symbolic.py [--quick] [--repeats 1] [--only ..]

A Brusselator reaction-diffusion chain (three parameters) and a random sparse reaction network (two reactions, and so
two rate constants, for each species) of 10 to 5 000 equations, each in a fresh process. The gradient of the sum of the
squares of the final states in all parameters, Tsit5 at 1e-6. Write: SymPy's right-hand sides. System: from those to a
problem (`System`, `simplify`, `ODEProblem`; of the peers the function that lambdify or sympy2jax makes). Trace:
`jit(grad(loss)).lower(p)`. Compile, run: of that. Total: from System to the gradient. Gradients are compared with those
of odesens. A peer that is not done within the limit is left out, with a note.
"""

import itertools
import json
import statistics
import sys
import time

import harness
import numpy as np

PEERS = ("odesens", "lambdify + diffrax", "sympy2jax + diffrax")
MODELS = ("chain", "network")
SIZES = (10, 100, 1000, 5000)
PARTS = ("write", "system", "trace", "compile", "run", "total")
LIMIT = 90.0  # seconds for a peer's process


def chain(n: int, symbols, parameters):
    """Right-hand sides, initial values and parameter values of n equations: u of each cell, then v."""
    u, v = symbols[: n // 2], symbols[n // 2 :]
    d, a, b = parameters(["d", "a", "b"])
    around = lambda x, i: x[max(i - 1, 0)] - 2 * x[i] + x[min(i + 1, len(x) - 1)]
    of_u = [d * around(u, i) + u[i] ** 2 * v[i] - (a + 1) * u[i] + b for i in range(n // 2)]
    of_v = [d * around(v, i) - u[i] ** 2 * v[i] + a * u[i] for i in range(n // 2)]
    u0 = np.concatenate([np.linspace(1, 2, n // 2), np.linspace(2, 3, n // 2)])
    return of_u + of_v, u0, [d, a, b], np.array([0.1, 3.0, 1.0])


def network(n: int, symbols, parameters):
    """Reactions x_i + x_j -> 2 x_m at rate k x_i x_j, the species drawn at random."""
    import sympy

    random = np.random.default_rng(0)
    k = parameters([f"k{r}" for r in range(2 * n)])
    terms = [[] for _ in range(n)]
    for r in range(2 * n):
        i, j, m = random.integers(0, n, 3)
        rate = k[r] * symbols[i] * symbols[j]
        for species, change in ((i, -rate), (j, -rate), (m, 2 * rate)):
            terms[species].append(change)
    rhs = [sympy.Add(*parts) for parts in terms]
    return rhs, random.uniform(0.5, 1, n), k, random.uniform(0.1, 1, 2 * n)


def measure(peer: str, model: str, n: int) -> dict:
    """In the fresh process: seconds of the parts, and the gradient."""
    import jax
    import jax.numpy as jnp
    import sympy

    import odesens as ode
    from odesens import symbolic

    build = {"chain": chain, "network": network}[model]
    own = peer == "odesens"
    if not own:
        import diffrax
    if peer.startswith("sympy2jax"):
        import sympy2jax
    marks = [time.perf_counter()]
    if own:
        make = lambda names: [symbolic.parameters(name) for name in names]
        x = list(symbolic.unknowns("x", shape=n))
    else:
        make = lambda names: [sympy.Symbol(name) for name in names]
        x = [sympy.Symbol(f"x{i}") for i in range(n)]
    rhs, u0, symbols, values = build(n, x, make)
    marks.append(time.perf_counter())
    if own:
        system = symbolic.System(symbolic.equations([symbolic.D(s) for s in x], rhs), symbolic.t)
        start = dict(zip(x, u0.tolist(), strict=True))
        prob = ode.ODEProblem(system, start, (0.0, 1.0), dict(zip(symbols, values.tolist(), strict=True)))
        names = [s.name for s in symbols]
        order = jnp.asarray([names.index(name) for name in prob.tunables.names])
        p = jnp.asarray(values)
        of = lambda p: ode.solve(prob, ode.Tsit5(), p=p[order], saveat=[1.0], reltol=1e-6, abstol=1e-6).u
        loss = lambda p: jnp.sum(of(p) ** 2)
    else:
        if peer.startswith("lambdify"):
            generated = sympy.lambdify([x, symbols], rhs, modules="jax", cse=True)
            field = lambda t, u, p: jnp.stack(generated(u, p))
        else:
            module = sympy2jax.SymbolicModule(rhs)
            keys = [s.name for s in (*x, *symbols)]
            field = lambda t, u, p: jnp.stack(module(**dict(zip(keys, (*u, *p), strict=True))))
        p = jnp.asarray(values)
        term, control = diffrax.ODETerm(field), diffrax.PIDController(rtol=1e-6, atol=1e-6)
        loss = lambda p: jnp.sum(
            diffrax.diffeqsolve(
                term, diffrax.Tsit5(), 0.0, 1.0, None, jnp.asarray(u0), p, stepsize_controller=control
            ).ys
            ** 2
        )
    marks.append(time.perf_counter())
    lowered = jax.jit(jax.grad(loss)).lower(p)
    marks.append(time.perf_counter())
    compiled = lowered.compile()
    marks.append(time.perf_counter())
    gradient = jax.block_until_ready(compiled(p))
    marks.append(time.perf_counter())
    parts = dict(zip(PARTS, (b - a for a, b in itertools.pairwise(marks)), strict=False))
    parts["total"] = sum(parts[name] for name in PARTS[1:-1])
    return {**parts, "gradient": np.asarray(gradient)[:40].tolist()}


def collect(options) -> dict:
    runs: dict = {}
    for model in MODELS:
        given_up: set = set()
        for n in SIZES[:2] if options.quick else SIZES:
            for _ in range(1 if options.quick else options.repeats):
                for peer in harness.chosen(dict.fromkeys(PEERS), options):
                    if peer in given_up or harness.late(options, f"{peer}, {model}, {n}"):
                        continue
                    got = harness.child(__file__, "--child", peer, model, n, seconds=LIMIT)
                    if got is None:
                        given_up.add(peer)
                        continue
                    runs.setdefault(model, {}).setdefault(str(n), {}).setdefault(peer, []).append(got)
                    print(f"{model} {n}: {peer} {got['total']:.2f} s", flush=True)
    return runs


def table(runs: dict) -> str:
    lines = []
    for model, sizes in runs.items():
        for n, peers in sizes.items():
            known = np.array(peers["odesens"][0]["gradient"]) if "odesens" in peers else None
            base = statistics.median(r["total"] for r in peers["odesens"]) if "odesens" in peers else None
            for peer, rows in peers.items():
                middle = [statistics.median(r[part] for r in rows) for part in PARTS]
                ratio = "-" if base is None else f"{base / middle[-1]:.2f}"
                apart = "-"
                if known is not None:
                    apart = harness.digits(
                        float(np.max(np.abs(np.array(rows[0]["gradient"]) - known)) / np.max(np.abs(known)))
                    )
                lines.append([f"{model}, {n}, {peer}", *(f"{x:.3g}" for x in middle), ratio, apart])
    return harness.markdown(["seconds", *PARTS, "odesens / it", "gradients differ by"], lines)


def main():
    if "--child" in sys.argv:
        at = sys.argv.index("--child")
        peer, model, n = sys.argv[at + 1 : at + 4]
        print(json.dumps(measure(peer, model, int(n))))
        return
    options = harness.arguments(__doc__, repeats=(1, "processes for each peer, model and size"))
    runs = collect(options)
    harness.finish("symbolic", options, {"runs": runs}, table(runs))


if __name__ == "__main__":
    main()
