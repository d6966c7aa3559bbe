"""One explicit Runge-Kutta step, as a function of (f, t, u, dt) that JAX can differentiate.

    k_i = f(t + c_i dt, u + dt sum_j a_ij k_j),    u1 = u + dt sum_i b_i k_i,    err = dt sum_i b_err_i k_i
    u(t + theta dt) = u + dt sum_i b_i(theta) k_i,    b_i(theta) = sum_j b_dense_ij theta^j

Owns: stages, solution, error estimate and dense output of a tableau. Must not know: loops, controllers, adjoints.
Source: Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, sections II.1, II.4 and II.6.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from .tableaus import Tableau

NOISE = 8  # units of rounding in u that an error estimate cannot be told from
FEW = 512  # entries of the stages up to which one is written by a selection
ROLL_ABOVE = 200  # operations in all stages together above which they are a loop: compiled once, run somewhat slower


def _combine(weights, k):
    """sum_i weights_i k_i, term by term: a reduction or a product would be a library call where k is large."""
    known = isinstance(weights, np.ndarray)
    terms = [w * k[i] for i, w in enumerate(weights) if not known or w != 0]
    return functools.reduce(jnp.add, terms) if terms else jnp.zeros_like(k[0])


def stage_times(tableau: Tableau, t, t_lo, dt, t_stop):
    """(t + t_lo) + c_i dt, never beyond t_stop: the field may be undefined there, and rounding must not get there."""
    times = t + (t_lo + jnp.asarray(tableau.C, dt.dtype) * dt)
    return jnp.where(dt >= 0, jnp.minimum(times, t_stop), jnp.maximum(times, t_stop))


def _fill(tableau: Tableau, f, times, u, dt, k: list, last: int, roll: bool):
    """All stages up to `last`, given the first ones as a list; returns an array (last, n)."""
    h = dt.astype(u.dtype)
    first = len(k)
    if not roll:
        for i in range(first, last):
            row = tableau.A[i]
            v = u + h * _combine(np.asarray(row[:i], u.dtype), k)
            k = [*k, f(times[i], v)]
        return jnp.stack(k)
    known = jnp.stack([*k, *[jnp.zeros_like(u) * h] * (last - first)])
    rows = jnp.asarray(tableau.A[first:last, :last], u.dtype)

    def stage(k, inputs):
        i, row, t = inputs
        new = f(t, u + h * _combine(row, k))
        if k.size > FEW:
            return jax.lax.dynamic_update_index_in_dim(k, new, i, 0), None
        return jnp.where((jnp.arange(last) == i)[:, None], new, k), None  # which stays elementwise under vmap

    return jax.lax.scan(stage, known, (jnp.arange(first, last), rows, times[first:last]))[0]


def stages(tableau: Tableau, f, t, t_lo, u, dt, k1, t_stop, *, roll: bool):
    """The main stages k (stages, n) of a step from (t + t_lo, u), given the first one."""
    times = stage_times(tableau, t, t_lo, dt, t_stop)
    return _fill(tableau, f, times, u, dt, [k1], tableau.stages, roll)


def extra_stages(tableau: Tableau, f, t, t_lo, u, dt, k, t_stop, *, roll: bool):
    """All stages (stages + n_extra, n): those that only dense output needs are evaluated here."""
    if tableau.n_extra == 0:
        return k
    times = stage_times(tableau, t, t_lo, dt, t_stop)
    return _fill(tableau, f, times, u, dt, list(k), tableau.stages + tableau.n_extra, roll)


def advance(tableau: Tableau, u, dt, k):
    """u1 = u + dt sum_i b_i k_i."""
    return u + dt.astype(u.dtype) * _combine(np.asarray(tableau.B, u.dtype), k)


def dense_weights(tableau: Tableau, theta, dtype):
    """b_i(theta) of all stages (stages + n_extra,), in powers of theta - 1/2, which lose fewer digits."""
    x = theta.astype(dtype) - 0.5
    weights = jnp.zeros(tableau.B_CENTRED.shape[0], dtype)
    for column in reversed(tableau.B_CENTRED.T):
        weights = weights * x + jnp.asarray(column, dtype)
    return jnp.where(theta == 0, 0, weights)


def interpolate(tableau: Tableau, u, dt, k, theta):
    """The dense output u(t + theta dt), theta in [0, 1], from all stages k (stages + n_extra, n)."""
    return u + dt.astype(u.dtype) * _combine(dense_weights(tableau, theta, u.dtype), k)


def error_norm(tableau: Tableau, u, u1, dt, k, abstol, reltol):
    """The root mean square of err_i / (abstol_i + reltol_i max(|u_i|, |u1_i|)); a step is accepted where it is <= 1.

    What lies below the rounding errors of u counts as them: step sizes that followed noise would differ between
    programs that compute the same thing.
    """
    if u.size == 0:
        return jnp.zeros((), jnp.finfo(u.dtype).dtype)
    size = jnp.maximum(jnp.abs(u), jnp.abs(u1))
    scale = abstol + reltol * size
    noise = jnp.minimum(NOISE * jnp.finfo(u.dtype).eps * size, 0.1 * scale)

    def norm(b_err):
        err = dt.astype(u.dtype) * _combine(np.asarray(b_err, u.dtype), k)
        return jnp.sqrt(jnp.mean(jnp.square(jnp.maximum(jnp.abs(err), noise) / scale)))

    err = norm(tableau.B_ERR)
    if tableau.b_err_low is None:
        return err
    # Hairer, Norsett, Wanner, section II.10, eq. (10.17): the two estimators of DOP853 in one
    low = norm(tableau.B_ERR_LOW)
    denominator = jnp.sqrt(jnp.square(err) + 0.01 * jnp.square(low))
    return jnp.where(denominator == 0, 0.0, jnp.square(err) / jnp.where(denominator == 0, 1.0, denominator))
