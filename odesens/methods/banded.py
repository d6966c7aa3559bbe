"""LU factors of a banded matrix, with row exchanges, as loops that compile to one native function.

Row i of `bands` (n, lower + upper + 1) holds the columns i - lower .. i + upper of the matrix; the diagonal is column
`lower`. What lies outside the matrix must be finite and is not used.

A window of `lower` rows moves down the matrix: step j adds row j + lower, takes from these lower + 1 the one with the
largest entry in column j as row j of U, lets the row just added take its place, and eliminates column j from all. Rows
are thus never moved but by one selection, and U needs no more than the columns j .. j + lower + upper.

Owns: factors and solves of banded systems. Must not know: Jacobians, stages, loops over steps.
Source: G. Golub, C. Van Loan, Matrix Computations (2013), section 4.3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

UNROLL = 2  # rows per iteration of a solve


class Factors(NamedTuple):
    """What `factor` found.

    Attributes
    ----------
    upper : (n, lower + upper + 1) row j of U, from its diagonal on
    inverse : (n,) the diagonal of U, inverted
    multipliers : (n, lower) of row j of U for each row of the window
    places : (n,) the place in the window of row j of U, -1 for the row just added
    singular : whether an entry of the diagonal of U is zero, or is not finite
    """

    upper: jax.Array
    inverse: jax.Array
    multipliers: jax.Array
    places: jax.Array
    singular: jax.Array


def factor(bands, lower: int, upper: int) -> Factors:
    """The LU factors of a matrix, real or complex, with partial pivoting."""
    n = bands.shape[0]
    if bands.shape != (n, lower + upper + 1):
        raise ValueError(f"bands must have the shape (n, lower + upper + 1 = {lower + upper + 1}), got {bands.shape}")
    if lower == 0:  # a window of one row of zeros
        bands = jax.lax.dynamic_update_slice(jnp.zeros((n, upper + 2), bands.dtype), bands, (0, 1))
        lower = 1
    width = lower + upper + 1
    rows = _extended(bands, lower + 1)
    zeros = lambda i: jnp.zeros(i, bands.dtype)
    window = jnp.stack([jnp.concatenate([rows[i, lower - i :], zeros(lower - i)]) for i in range(lower)])

    def step(carry, inputs):
        window, place, singular = carry
        new, following = inputs
        row = _select(place, new, window)
        inverse = 1 / row[0]
        chosen = jnp.arange(lower) == place
        multipliers = jnp.where(chosen, new[0], window[:, 0]) * inverse
        rest = jnp.where(chosen[:, None], new, window)[:, 1:] - multipliers[:, None] * row[1:]
        singular |= ~jnp.isfinite(row[0] * inverse)
        carry = jnp.pad(rest, ((0, 0), (0, 1))), _largest(following[0], rest[:, 0]), singular
        return carry, (row, inverse, multipliers, place)

    # the place is found one step ahead: as part of the carry it is computed once, not once for each use
    start = window, _largest(rows[lower, 0], window[:, 0]), jnp.zeros((), bool)
    part = lambda first: jax.lax.slice(rows, (first, 0), (first + n, width))
    (_, _, singular), out = jax.lax.scan(step, start, (part(lower), part(lower + 1)))
    return Factors(*out, singular)


def solve(factors: Factors, b) -> jax.Array:
    """x with A x = b, for b (n,)."""
    n, lower = factors.multipliers.shape
    width = factors.upper.shape[1]
    b = _extended(b.astype(jnp.result_type(b, factors.inverse)), lower)
    zero = jnp.zeros((), b.dtype)

    def eliminate(window, inputs):
        multipliers, place, new = inputs
        y = _select(place, new, window)
        return tuple(jnp.where(place == i, new, w) - multipliers[i] * y for i, w in enumerate(window)), y

    def substitute(found, inputs):
        row, inverse, x = inputs
        for k in range(width - 1, 0, -1):  # what was found last comes last: all else can be done before it is known
            x = x - row[k] * found[k - 1]
        x = x * inverse
        return (x, *found[:-1]), x

    inputs = factors.multipliers, factors.places, jax.lax.slice(b, (lower,), (lower + n,))
    y = jax.lax.scan(eliminate, tuple(b[i] for i in range(lower)), inputs, unroll=UNROLL)[1]
    inputs = factors.upper, factors.inverse, y
    return jax.lax.scan(substitute, (zero,) * (width - 1), inputs, reverse=True, unroll=UNROLL)[1]


def solve_transposed(factors: Factors, b) -> jax.Array:
    """x with A^T x = b, for b (n,); not conjugated."""
    n, lower = factors.multipliers.shape
    width = factors.upper.shape[1]
    b = b.astype(jnp.result_type(b, factors.inverse))
    zero = jnp.zeros((), b.dtype)

    def substitute(known, inputs):
        row, inverse, z = inputs
        z = (z - known[0]) * inverse
        return tuple(s + row[k + 1] * z for k, s in enumerate((*known[1:], zero))), z

    def eliminate(window, inputs):  # the transpose of that in `solve`
        multipliers, place, x = inputs
        for i, w in enumerate(window):
            x = x - multipliers[i] * w
        return tuple(jnp.where(place == i, x, w) for i, w in enumerate(window)), _select(place, x, window)

    inputs = factors.upper, factors.inverse, b
    z = jax.lax.scan(substitute, (zero,) * (width - 1), inputs, unroll=UNROLL)[1]
    inputs = factors.multipliers, factors.places, z
    first, rest = jax.lax.scan(eliminate, (zero,) * lower, inputs, reverse=True, unroll=UNROLL)
    x = jax.lax.dynamic_update_slice(jnp.zeros(n + lower, b.dtype), rest, (lower,))
    return jax.lax.slice(jax.lax.dynamic_update_slice(x, jnp.stack(first), (0,)), (0,), (n,))


def _extended(x, count: int):
    """An array with `count` zeros more along its first axis."""
    zeros = jnp.zeros((x.shape[0] + count, *x.shape[1:]), x.dtype)
    return jax.lax.dynamic_update_slice(zeros, x, (0,) * x.ndim)


def _largest(new, window):
    """The place in the window of the largest entry, -1 for `new`."""
    size = lambda x: jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)
    best, place = size(new), jnp.full((), -1, jnp.int32)
    for i in range(window.shape[0]):
        larger = size(window[i]) > best
        best, place = jnp.where(larger, size(window[i]), best), jnp.where(larger, i, place)
    return place


def _select(place, new, window):
    """The window's row at `place`, `new` at -1."""
    for i in range(len(window)):
        new = jnp.where(place == i, window[i], new)
    return new
