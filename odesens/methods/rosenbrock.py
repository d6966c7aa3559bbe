"""One Rosenbrock step: stages by one factorisation, without Newton iterations.

    (M/gamma - dt J) k_i = f(t + c_i dt, u + dt sum_j a_ij k_j) + M sum_j coupling_ij k_j + d_i dt f_t,
    u1 = u + dt sum_i b_i k_i,    J = f_u(t, u)

As J is the derivative of f itself, the step's derivative is the method applied to the differentiated equation. Owns:
the stages. Must not know: loops, controllers, adjoints, how W is factored.
Source: Hairer and Wanner, Solving Ordinary Differential Equations II, section IV.7, eq. (7.25).
"""

import jax
import jax.numpy as jnp

from .explicit import combine, put, stage_times
from .linear import factor, solve_exactly


def stages(method, system, t, t_lo, u, dt, t_stop, *, exact: bool):
    """k (stages, n) and whether W was regular; with `exact`, with derivatives of every order."""
    tableau, mass, f = method.tableau, method.mass, system.f
    gamma, h = tableau.GAMMA, dt.astype(u.dtype)
    times = stage_times(tableau, t, t_lo, dt, t_stop)
    weigh = (lambda x: x) if mass is None else mass.times
    f_t = jax.jvp(lambda t: f(t, u), (times[0],), (jnp.ones_like(t),))[1]
    jacobian = system.jacobian(times[0], u)
    solver = factor(method.linear, mass, gamma, dt, jacobian, u)

    along = jax.linearize(lambda u: f(times[0], u), u)[1] if exact else None

    def w_times(x):
        assert along is not None
        return weigh(x) / gamma - h * along(x)

    def body(k, inputs):
        i, a, coupling, d, t = inputs
        b = f(t, u + h * combine(a, k)) + weigh(combine(coupling, k)) + h * d * f_t
        new = solve_exactly(w_times, solver, b) if exact else solver.solve(b)
        return put(k, new, i), None

    # a loop: unrolled stages run no faster and compile several times longer
    rows = [jnp.asarray(x, u.dtype) for x in (tableau.A, tableau.COUPLING, tableau.D)]
    empty = jnp.stack([jnp.zeros_like(u) * h] * tableau.stages)
    k, _ = jax.lax.scan(body, empty, (jnp.arange(tableau.stages), *rows, times))
    return k, solver.ok
