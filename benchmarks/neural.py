"""Solve and gradient of neural fields in all weights: odesens' engines beside diffrax and jax's odeint.

    python benchmarks/neural.py [--flag] [--quick] [--widths 64,256] [--seconds 2] [--only ..]

A tanh network of two inputs and outputs over a batch of 128, which is one state: 2-64-64-2 (4 482 weights) and
2-256-256-256-2 (133 000). t in (0, 1), loss = mean square of the end. Reference: SciPy's DOP853, adjoint equation.
What is timed: the warm solve and the warm gradient at several tolerances, and the first call of each.
"""

from itertools import pairwise

import harness
import jax.numpy as jnp
import numpy as np

LAYERS = {64: (2, 64, 64, 2), 256: (2, 256, 256, 256, 2)}
TOLERANCES = [1e-3, 1e-4, 1e-6, 1e-8]
ERRORS = [1e-5, 1e-7]
ENGINES = ("DiscreteAdjoint", "GaussAdjoint", "BacksolveAdjoint")


def weights(width: int):
    r, sizes = np.random.default_rng(0), LAYERS[width]
    return [(r.normal(size=(a, b)) * 1.5 / np.sqrt(a), 0.1 * r.normal(size=b)) for a, b in pairwise(sizes)]


def network(t, u, layers):
    for w, b in layers[:-1]:
        u = jnp.tanh(u @ w + b)
    return u @ layers[-1][0] + layers[-1][1]


def problem(width: int) -> harness.Problem:
    u0 = np.random.default_rng(1).normal(size=(128, 2))
    return harness.Problem(network, u0, weights(width), 1.0, loss=lambda u: jnp.mean(u**2))


def peers(case: harness.Problem) -> dict:
    return {
        **{f"odesens Tsit5 {engine}": harness.odesens(case, "Tsit5", engine) for engine in ENGINES},
        "diffrax Tsit5": harness.diffrax(case, "Tsit5"),
        "jax odeint": harness.odeint(case),
    }


def main():
    options = harness.arguments(__doc__, seconds=2.0, widths=("64,256", "widths of the layers"))
    data, texts = {}, []
    for width in [int(w) for w in options.widths.split(",")][: 1 if options.quick else None]:
        if harness.late(options, f"width {width}"):
            break
        case = problem(width)
        size = sum(w.size + b.size for w, b in case.p)
        reference = harness.reference(case, 1e-9 if options.quick else 1e-12)
        tolerances = TOLERANCES[1:2] if options.quick else TOLERANCES
        points = harness.work_precision(peers(case), reference, tolerances, options)
        data[f"width {width}"] = {"weights": size, "columns": harness.columns(reference), "points": points}
        texts.append(f"Width {width}, {size} weights:\n\n{harness.table(points, ERRORS, 'diffrax Tsit5')}")
    harness.finish("neural", options, data, "\n\n".join(texts))


if __name__ == "__main__":
    main()
