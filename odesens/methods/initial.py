"""Consistent initial states of differential-algebraic equations of index 1.

With N and V the null spaces of M^T and M, the algebraic equations N^T f(t, u + V y) = 0 determine y; what M u fixes is
kept. Owns: solving them, checking them. Must not know: steps, loops.
Source: Brown, Hindmarsh, Petzold, Consistent initial condition calculation for differential-algebraic systems, SIAM J.
Sci. Comput. 19 (1998).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..extension import vary, varying_axes
from .linear import DENSE, Mass, of_map, parts_of, solve_exactly

ITERATIONS = 50


class Search(NamedTuple):
    """Newton's iteration for y: the size of the last change, its ratio to the one before, the size of the residual.

    regular : whether every matrix was.
    """

    y: Any
    change: Any
    rate: Any
    residual: Any
    count: Any
    regular: Any


def consistent(mass: Mass, f: Callable, t, u, tol, *, check: bool):
    """u with its algebraic part solved for, or with `check` as it is, and whether it is consistent.

    It is where the last change of Newton's iteration is within the tolerances tol = (abstol, reltol), with `check` that
    of its first step from u. Differentiable to any order, by the implicit function theorem.
    """
    abstol, reltol = tol
    if jnp.iscomplexobj(u):
        split, join = parts_of(u.dtype)
        twice = lambda x: x if jnp.ndim(x) == 0 else jnp.concatenate([x, x])
        real = lambda t, x: split(f(t, join(x)))
        x, ok = consistent(mass.blocks(2), real, t, split(u), tuple(map(twice, tol)), check=check)
        return join(x), ok
    left, right = (np.asarray(x, u.dtype) for x in (mass.left, mass.right))
    moved = lambda y: u + right @ y
    residual = lambda y: left.T @ f(t, moved(y))
    scale = abstol + reltol * jnp.abs(u)
    norm = lambda y, change: jnp.sqrt(jnp.mean(jnp.square((right @ change) / scale)))
    rounding = 8 * float(jnp.finfo(u.dtype).eps) / 1e-6
    start = jnp.zeros(right.shape[1], u.dtype)
    start = vary(start, varying_axes(residual(start)))
    found = jax.lax.stop_gradient(search(residual, start, norm, rounding, 1 if check else ITERATIONS))
    if check:
        return u, found.regular & (found.change <= 1)

    def linearised(times, b):
        return solve_exactly(times, of_map(DENSE, times, b), b)

    y = jax.lax.custom_root(residual, start, lambda g, y: search(g, y, norm, rounding, ITERATIONS).y, linearised)
    return moved(y), found.regular & (found.change <= 1e-2)


def search(residual: Callable, y, norm: Callable, enough: float, most: int) -> Search:
    """Newton's method with steps halved while the residual grows, until norm(y, change) is at most `enough`."""
    size = lambda r: jnp.sqrt(jnp.sum(jnp.square(r)))

    def body(s: Search) -> Search:
        along = lambda e: jax.jvp(residual, (s.y,), (e,))[1]
        solver = of_map(DENSE, along, y)
        change = solver.solve(residual(s.y))

        def shorter(state):
            return state[0] / 2, size(residual(s.y - state[0] / 2 * change))

        worse = lambda state: ~(state[1] <= s.residual) & (state[0] > 1e-4)
        one = jnp.ones((), y.dtype)
        length, new = jax.lax.while_loop(worse, shorter, (one, size(residual(s.y - change))))
        moved = s.y - length * change
        last = norm(moved, change)
        return Search(moved, last, last / s.change, new, s.count + 1, s.regular & solver.ok)

    def going(s: Search):
        return (s.count < most) & ~(s.change <= enough) & jnp.isfinite(s.residual)

    zero = jnp.zeros((), jnp.int32)
    far = jnp.asarray(jnp.inf, y.dtype)
    state = Search(y, far, jnp.zeros_like(far), size(residual(y)), zero, jnp.asarray(True))
    state = vary(state, varying_axes(*jax.tree.leaves((state, residual(y)))))
    return jax.lax.while_loop(going, body, state)
