"""Derivatives of a flow in its times: short exact flows as Taylor polynomials, derivatives along directions.

Owns: `nudge`, `along`. Must not know: the primitive, engines.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp


def along(phi: Callable, direction: dict) -> Callable:
    """D phi(r)[x] as a function of r, x given by its components."""
    index = sorted(direction)

    def derivative(r):
        def moved(values):
            new = list(r)
            for c, v in zip(index, values, strict=True):
                new[c] = v
            return phi(new)

        return jax.jvp(moved, ([r[c] for c in index],), ([direction[c] for c in index],))[1]

    return derivative


def nudge(f: Callable, t, u, d, order: int):
    """u + d f + d^2/2 (f_t + f_u f) + .., the flow over d by its Taylor polynomial; d = 0 wherever it is evaluated."""
    real = d.astype(u.dtype)
    total, coefficient = u, f
    for j in range(1, order + 1):
        total = total + real**j / math.factorial(j) * coefficient(t, u)
        if j < order:
            coefficient = _along_flow(coefficient, f)
    return total


def _along_flow(g, f):
    """dg/dt along u' = f(t, u)."""
    return lambda t, u: jax.jvp(g, (t, u), (jnp.ones_like(t), f(t, u)))[1]
