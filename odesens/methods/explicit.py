"""One explicit Runge-Kutta step, as a function of (f, t, u, dt) that JAX can differentiate.

    k_i = f(t + c_i dt, u + dt sum_j a_ij k_j)

Owns: the stages of a tableau. Must not know: loops, controllers, adjoints.
Source: Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, sections II.1, II.4 and II.6.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from .tableaus import Tableau

FEW = 512  # entries of the stages up to which one is written by a selection
ROLL_ABOVE = 200  # operations in all stages together above which they are a loop: compiled once, run somewhat slower


def combine(weights, k):
    """sum_i weights_i k_i, term by term: a reduction or a product would be a library call where k is large."""
    known = isinstance(weights, np.ndarray)
    terms = [w * k[i] for i, w in enumerate(weights) if not known or w != 0]
    return functools.reduce(jnp.add, terms) if terms else jnp.zeros_like(k[0])


def put(k, new, i):
    """k (stages, n) with `new` as its row i."""
    if k.size > FEW:
        return jax.lax.dynamic_update_index_in_dim(k, new, i, 0)
    return jnp.where((jnp.arange(k.shape[0]) == i)[:, None], new, k)  # which stays elementwise under vmap


def stage_times(tableau: Tableau, t, t_lo, dt, t_stop):
    """(t + t_lo) + c_i dt, where c_i <= 1 never beyond t_stop: there the field may be undefined, and rounding must not
    get there."""
    times = t + (t_lo + jnp.asarray(tableau.C, dt.dtype) * dt)
    early = np.asarray(tableau.C) <= 1
    within = jnp.where(dt >= 0, jnp.minimum(times, t_stop), jnp.maximum(times, t_stop))
    return within if np.all(early) else jnp.where(early, within, times)


def _fill(tableau: Tableau, f, times, u, dt, k: list, last: int, roll: bool):
    """All stages up to `last`, given the first ones as a list; returns an array (last, n)."""
    h = dt.astype(u.dtype)
    first = len(k)
    if not roll:
        for i in range(first, last):
            row = tableau.A[i]
            v = u + h * combine(np.asarray(row[:i], u.dtype), k)
            k = [*k, f(times[i], v)]
        return jnp.stack(k)
    known = jnp.stack([*k, *[jnp.zeros_like(u) * h] * (last - first)])
    rows = jnp.asarray(tableau.A[first:last, :last], u.dtype)

    def stage(k, inputs):
        i, row, t = inputs
        return put(k, f(t, u + h * combine(row, k)), i), None

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
