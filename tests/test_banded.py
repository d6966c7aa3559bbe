"""Banded LU factors against dense solves: pivoting, corner shapes, singular matrices, and what loops can be made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from odesens import extension
from odesens.methods import banded

SHAPES = [
    (1, 0, 0),
    (1, 2, 3),
    (5, 0, 0),
    (6, 0, 2),
    (6, 2, 0),
    (3, 4, 4),
    (2, 1, 0),
    (20, 1, 1),
    (31, 4, 2),
    (30, 2, 5),
]


def dense(bands, lower):
    n, width = bands.shape
    matrix = np.zeros((n, n), bands.dtype)
    for i in range(n):
        for k in range(width):
            if 0 <= i - lower + k < n:
                matrix[i, i - lower + k] = bands[i, k]
    return matrix


def problem(n, lower, upper, dtype=float, seed=0):
    """A random matrix with a diagonal so small that it needs pivoting. Outside the matrix there is garbage."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape) + (1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else 0)
    bands, b = draw(n, lower + upper + 1).astype(dtype), draw(n).astype(dtype)
    if lower and upper and n > 1:
        bands[:, lower] *= 1e-6
    return bands, b


def error(x, matrix, b):
    """The backward error."""
    x = np.asarray(x)
    return np.abs(matrix @ x - b).max() / (np.abs(matrix).sum(1).max() * np.abs(x).max() + np.abs(b).max())


def everything(bands, b, lower, upper):
    factors = banded.factor(bands, lower, upper)
    return banded.solve(factors, b), banded.solve_transposed(factors, b), factors.singular


run = jax.jit(everything, static_argnums=(2, 3))
factor = jax.jit(banded.factor, static_argnums=(1, 2))


@pytest.mark.parametrize(
    "n, lower, upper, dtype",
    [(*s, d) for s in SHAPES for d in (np.float64, np.complex128)] + [(*s, np.float32) for s in SHAPES[::4]],
)
def test_solves(n, lower, upper, dtype):
    bands, b = problem(n, lower, upper, dtype)
    matrix = dense(bands, lower)
    x, y, singular = run(bands, b, lower, upper)
    eps = 50 * np.finfo(dtype).eps
    assert x.dtype == y.dtype == dtype and x.shape == y.shape == (n,)
    assert error(x, matrix, b) < eps and error(y, matrix.T, b) < eps
    if np.linalg.cond(matrix) < 1e4:
        np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e4 * eps, atol=1e4 * eps)
    assert not singular


def test_needs_exchanges():
    bands = np.array([[0, 0, 1.0], [1, 0, 1], [1, 0, 1], [1, 0, 0]])  # a diagonal of zeros
    factors = factor(bands, 1, 1)
    assert not factors.singular and (factors.places == 0).any()
    np.testing.assert_array_equal(
        banded.solve(factors, jnp.arange(4.0)), np.linalg.solve(dense(bands, 1), np.arange(4))
    )


def test_pivots_are_the_largest():
    bands, _ = problem(40, 3, 2)
    assert np.abs(factor(bands, 3, 2).multipliers).max() <= 1 + 1e-15


def test_real_factors_of_a_complex_vector_and_the_reverse():
    bands, b = problem(8, 2, 1)
    matrix = dense(bands, 2)
    x, y, _ = run(bands, b + 1j, 2, 1)
    assert error(x, matrix, b + 1j) < 1e-14 and error(y, matrix.T, b + 1j) < 1e-14
    x, y, _ = run(bands * (1 + 1j), b, 2, 1)
    matrix = matrix * (1 + 1j)
    assert error(x, matrix, b) < 1e-14 and error(y, matrix.T, b) < 1e-14


@pytest.mark.parametrize("dtype", [float, complex])
def test_singular_matrices_are_flagged(dtype):
    flag = lambda bands, lower, upper: bool(factor(np.asarray(bands, dtype), lower, upper).singular)
    bands, _ = problem(10, 2, 1)
    assert not flag(bands, 2, 1)
    for i in (0, 4, 9):
        column = bands.copy()
        for r in range(10):
            if 0 <= i - r + 2 < 4:
                column[r, i - r + 2] = 0
        assert flag(column, 2, 1)
        row = bands.copy()
        row[i] = 0
        assert flag(row, 2, 1)
    for bad in (np.nan, np.inf):
        broken = bands.copy()
        broken[5, 2] = bad
        assert flag(broken, 2, 1)
    assert flag(np.array([[0.0]]), 0, 0) and flag(np.array([[1.0], [0.0]]), 0, 0)
    assert not flag(np.array([[1e-200], [1e200]]), 0, 0)


def test_lanes():
    problems = [problem(12, 2, 3, seed=s) for s in range(5)]
    bands, b = (jnp.stack(x) for x in zip(*problems, strict=True))
    bands = bands.at[3, 4].set(0.0)

    @jax.jit
    @jax.vmap
    def run(bands, b):
        factors = banded.factor(bands, 2, 3)
        return banded.solve(factors, b), banded.solve_transposed(factors, b), factors.singular

    x, y, singular = run(bands, b)
    assert singular.tolist() == [False, False, False, True, False]
    for i in (0, 1, 2, 4):
        matrix = dense(np.asarray(bands[i]), 2)
        assert error(x[i], matrix, b[i]) < 1e-14 and error(y[i], matrix.T, b[i]) < 1e-14


@pytest.mark.parametrize(
    "n, lower, upper, dtype",
    [
        (1, 0, 0, np.float64),
        (40, 0, 0, np.float64),
        (50, 2, 3, np.complex128),
        (50, 2, 3, np.float32),
        (20_000, 4, 4, np.float64),
    ],
)
def test_compiles_to_one_function(n, lower, upper, dtype):
    bands, b = problem(n, lower, upper, dtype)
    bands[:, lower] += 10
    program = lambda bands, b: everything(bands, b, lower, upper)
    assert extension.can_be_whole(jax.make_jaxpr(program)(bands, b).jaxpr)
    whole = jax.jit(lambda *xs: extension.compiled_whole(program, *xs))(bands, b)
    assert not whole[2]
    for got, want in zip(whole, run(bands, b, lower, upper), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4 if dtype == np.float32 else 1e-8)


def test_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"lower \+ upper \+ 1 = 4\), got \(5, 3\)"):
        banded.factor(jnp.zeros((5, 3)), 1, 2)
