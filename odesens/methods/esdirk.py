"""One step of a singly diagonally implicit Runge-Kutta method with an explicit first stage.

    M k_i = f(t + c_i dt, u + dt sum_(j<i) a_ij k_j + dt gamma k_i),    u1 = u + dt sum_i b_i k_i

Each stage is solved by simplified Newton iterations, W = M/gamma - dt J with J at the step's start, and is a function
of u and the parameters by the implicit function theorem. The last stage is f at the next state, and so the first one of
the next step: what is left of its equation's error grows by dt |J| there, so it alone is solved to rounding. As one
half of an additive pair, f = f_implicit + f_explicit and only the first is solved for. Owns: the stages and their
iterations. Must not know: loops, controllers, adjoints.
Source: Hairer and Wanner, Solving Ordinary Differential Equations II, section IV.8; Kennedy and Carpenter, Applied
Numerical Mathematics 44 (2003).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..extension import vary, varying_axes
from .explicit import combine, put, stage_times
from .linear import factor, of_map, solve_exactly, velocity

ITERATIONS = 12  # most Newton iterations of a stage
KAPPA = 1e-3  # a stage is solved where its error is at most this part of the tolerance
ENOUGH = 0.1  # or this part, where the iteration gets no further
ITERATING, CONVERGED, DIVERGED = 0, 1, 2


class Newton(NamedTuple):
    """The iteration of one stage: its value, the size of the last change and the rate of convergence."""

    k: Any
    size: Any
    count: Any
    state: Any


def stages(method, system, t, t_lo, u, dt, t_stop, *, exact: bool):
    """k (stages, n), the error estimate (n,), whether all was solved, whether W was regular, evaluations."""
    tableau, mass = method.tableau, method.mass
    gamma, h = tableau.GAMMA, dt.astype(u.dtype)
    times = stage_times(tableau, t, t_lo, dt, t_stop)
    weigh = (lambda x: x) if mass is None else mass.times
    implicit, other = system.f if system.parts is None else system.parts[0], system.parts and system.parts[1]
    jacobian = system.jacobian(times[0], u)
    solver = factor(method.linear, mass, gamma, dt, jacobian, u)
    abstol, reltol = system.tol
    scale = jnp.maximum(abstol + reltol * jnp.abs(u), jnp.finfo(u.dtype).tiny)

    def solve(base, t, guess, last):
        residual = lambda k: implicit(t, base + h * gamma * k) - weigh(k)
        iterate = lambda residual, k: newton(residual, solver.solve, k, base, gamma, h, scale, last)
        if not exact:
            return iterate(residual, guess)

        def linearised(times, b):
            own = of_map(method.linear, times, u)
            return solve_exactly(times, own, b)

        k = jax.lax.custom_root(residual, jax.lax.stop_gradient(guess), lambda g, k: iterate(g, k).k, linearised)
        return Newton(k, jnp.zeros(()), jnp.zeros((), jnp.int32), jnp.full((), CONVERGED, jnp.int32))

    lower = lambda x: jnp.asarray(np.tril(x, -1)[1:], u.dtype)
    rows = lower(tableau.A), lower(tableau.PREDICT), lower(tableau.A if other is None else tableau.A_EXPLICIT)

    def body(carry, inputs):
        k, k_other, count, solved = carry
        i, t, a, predict, a_other = inputs
        base = u + h * combine(a, k)
        if other is not None:
            base = base + h * combine(a_other, k_other)
        done = solve(base, t, combine(predict, k), i == tableau.stages - 1)
        if other is not None:
            k_other = put(k_other, other(t, base + h * gamma * done.k), i)
        return (put(k, done.k, i), k_other, count + done.count, solved & (done.state == CONVERGED)), None

    def with_room(x):
        return jnp.stack([x, *[jnp.zeros_like(x)] * (tableau.stages - 1)])

    k = with_room(velocity(method.linear, mass, implicit, times[0], u, exact=exact))
    k_other = None if other is None else with_room(other(times[0], u))
    carry = k, k_other, jnp.zeros((), jnp.int32), jnp.asarray(True)
    carry = vary(carry, varying_axes(*jax.tree.leaves((carry, times))))
    # a loop: unrolled stages run no faster and compile several times longer
    inputs = jnp.arange(1, tableau.stages), times[1:], *rows
    (k, k_other, count, solved), _ = jax.lax.scan(body, carry, inputs)
    total = k if k_other is None else k + k_other
    err = h * combine(np.asarray(tableau.B_ERR, u.dtype), total)
    if not tableau.bounded_error:
        err = solver.solve(weigh(err)) / gamma
    return total, err, solved, solver.ok, count + 1


def newton(residual, solve, k, base, gamma, h, scale, last) -> Newton:
    """Simplified Newton iterations for residual(k) = 0, with the test for convergence and divergence of (8.10).

    The `last` stage goes on until its state base + h gamma k is right to rounding.
    """
    root_mean = lambda x: jnp.sqrt(jnp.mean(jnp.square(jnp.abs(x)))) if x.size else jnp.zeros((), x.dtype)
    eps = jnp.finfo(k.dtype).eps
    norm = lambda d: root_mean(h * gamma * d / scale)

    def body(it: Newton) -> Newton:
        change = solve(residual(it.k)) / gamma
        size = norm(change)
        rate = jnp.where(it.count == 0, 0.5, size / jnp.where(it.size == 0, 1, it.size))
        # what is left of the error; where rounding moves the iterate about, as much as that
        left = jnp.where(rate < 1, rate / jnp.where(rate < 1, 1 - rate, 1), 1) * size
        state = jnp.abs(base + h * gamma * (it.k + change)) + 1e-12 * scale
        exact = root_mean(h * gamma * change / state) <= 8 * eps
        small = (rate < 1) & (left <= KAPPA) & ((it.count > 0) | (size <= 1e-2 * KAPPA))
        remaining = (ITERATIONS - 1 - it.count).astype(size.dtype)
        hopeless = (it.count > 0) & ((rate >= 1) | (~last & (left * rate**remaining > KAPPA)))
        over = hopeless | ~jnp.isfinite(size) | (it.count + 1 >= ITERATIONS)
        # rounding may end the iteration before: what is left is then of the size of the last change
        enough = over & (left <= ENOUGH) & (it.count > 0)
        done = jnp.where(last, exact | (size == 0), small | (size == 0)) | enough
        code = jnp.where(done, CONVERGED, jnp.where(over, DIVERGED, ITERATING)).astype(jnp.int32)
        return Newton(it.k + change, size, it.count + 1, code)

    zero = jnp.zeros((), jnp.int32)
    start = Newton(k, norm(k), zero, zero)
    start = vary(start, varying_axes(*jax.tree.leaves((start, residual(k), last))))
    return jax.lax.while_loop(lambda it: it.state == ITERATING, body, start)
