"""Linear algebra of the implicit methods: factor W = M / gamma - dt J once, solve with it and with its transpose.

Owns: the mass matrix as static data, J from products with it (dense, coloured, banded), factorisations, Krylov solves.
Must not know: stages, loops, adjoints.

Up to `SMALL` unknowns W is inverted by Gauss-Jordan elimination with row pivoting, written as elementwise work that
small loops keep native, so that a solve is one product; above, LAPACK's LU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..extension import vary, varying_axes
from . import banded

SMALL = 40  # unknowns up to which W is inverted by elementwise work
UNROLL = 5  # unknowns up to which that is written out


class Mass:
    """A constant mass matrix (n, n), hashable; singular ones make the problem a differential-algebraic one of index 1.

    Attributes
    ----------
    matrix : ndarray (n, n)
    extra : components more, of unit mass, after the n
    diagonal : ndarray (n,) or None
        Where the matrix is diagonal.
    left, right : ndarray (n, r)
        Orthonormal bases of the null spaces of M^T and M; r = 0 where M is regular. left^T f = 0 are the algebraic
        equations, `right` spans what they determine.
    """

    def __init__(self, matrix: np.ndarray, extra: int = 0):
        self.matrix = np.ascontiguousarray(matrix)
        self.matrix.setflags(write=False)
        self.extra = extra
        self._key = (self.matrix.shape, self.matrix.dtype.str, self.matrix.tobytes(), extra)
        self._hash = hash(self._key)

    def __eq__(self, other):
        return isinstance(other, Mass) and self._key == other._key

    def __hash__(self):
        return self._hash

    def __repr__(self):
        return f"<mass matrix of {len(self.matrix)} states, {self.left.shape[1]} algebraic equations>"

    @cached_property
    def diagonal(self):
        d = np.diagonal(self.matrix)
        return d if np.array_equal(np.diag(d), self.matrix) else None

    @cached_property
    def _null_spaces(self):
        if self.diagonal is not None:
            basis = np.eye(len(self.matrix))[:, self.diagonal == 0]
            return basis, basis
        left, sizes, right = np.linalg.svd(self.matrix)
        null = sizes <= np.max(sizes, initial=0) * len(sizes) * np.finfo(self.matrix.dtype).eps
        return np.real(left[:, null]), np.real(right[null].T)

    @property
    def left(self):
        return self._null_spaces[0]

    @property
    def right(self):
        return self._null_spaces[1]

    @property
    def singular(self) -> bool:
        return self.left.shape[1] > 0

    @cached_property
    def transposed(self) -> "Mass":
        return Mass(self.matrix.T)

    def blocks(self, count: int) -> "Mass":
        """The mass matrix of `count` copies of the state."""
        n = len(self.matrix)
        whole = np.eye(n + self.extra, dtype=self.matrix.dtype)
        whole[:n, :n] = self.matrix
        return self if count == 1 else Mass(np.kron(np.eye(count), whole))

    def extended(self, extra: int) -> "Mass":
        """The mass matrix of the state with `extra` components more, of unit mass."""
        return Mass(self.matrix, self.extra + extra)

    def leading(self) -> "Mass":
        """The mass matrix without the components of unit mass after it."""
        return Mass(self.matrix)

    def times(self, x):
        """M x for x (n + extra,)."""
        by = lambda x: x * np.asarray(self.diagonal, x.dtype) if self.diagonal is not None else _matvec(self.matrix, x)
        return self._on_leading(x, by)

    def solve(self, b):
        """M^(-1) b of a regular M."""
        inverse = lambda: np.linalg.inv(self.matrix)
        by = lambda b: b / np.asarray(self.diagonal, b.dtype) if self.diagonal is not None else _matvec(inverse(), b)
        return self._on_leading(b, by)

    def project(self, x):
        """left left^T x: the algebraic equations' part of a residual (n + extra,), zero in what has unit mass."""
        if self.diagonal is not None:
            onto = lambda x: jnp.where(self.diagonal == 0, x, 0)
        else:
            onto = lambda x: _matvec(self.left @ self.left.T, x)
        return self._on_leading(x, onto, jnp.zeros_like)

    def _on_leading(self, x, function, rest=lambda x: x):
        if not self.extra:
            return function(x)
        n = len(self.matrix)
        return jnp.concatenate([function(x[:n]), rest(x[n:])])


def _matvec(matrix, x):
    """A static matrix times x, as elementwise work."""
    return jnp.sum(np.asarray(matrix, x.dtype) * x[None, :], axis=1)


@dataclass(frozen=True)
class Linear:
    """How W x = b is solved.

    kind : "dense", "banded" (by `sparsity`, a banded LU), or "krylov" (GMRES on products with J, to `rtol`).
    sparsity : pattern of J, whose columns are then computed by colours; None for all of them.
    lead : the leading unknowns that are coupled; the others do not act back on any (quadratures).
    """

    kind: str = "dense"
    sparsity: Any = None
    rtol: float = 1e-10
    restart: int = 30
    lead: int | None = None


DENSE = Linear()


class Jacobian(NamedTuple):
    """J of the equation's right-hand side: `times(x)` is K x, where J = K, or J = -K^T where `adjoint`.

    matrix : K itself (n, n), where the user gave it. tail(x): the entries of J x after the leading ones.
    """

    times: Callable
    adjoint: bool = False
    matrix: Any = None
    tail: Callable | None = None


class Solver(NamedTuple):
    """`solve(b)` and `transposed(b)` with W and its transpose (n,) -> (n,); `ok`: whether W is regular."""

    solve: Callable
    transposed: Callable
    ok: Any


def factor(linear: Linear, mass: Mass | None, gamma, dt, jacobian: Jacobian, like) -> Solver:
    """W = M / gamma - dt J, factored; where J = -K^T, W = (M^T / gamma + dt K)^T, factored as that."""
    if jacobian.tail is not None:
        return _with_tail(linear, mass, gamma, dt, jacobian, like)
    h = (-dt if jacobian.adjoint else dt).astype(like.dtype)
    if jacobian.adjoint and mass is not None:
        mass = mass.transposed
    if jacobian.matrix is not None:
        m = np.eye(like.size) if mass is None else mass.matrix
        solver = of_matrix(jnp.asarray(m / gamma, like.dtype) - h * jacobian.matrix)
    else:
        w = lambda x: (x if mass is None else mass.times(x)) / gamma - h * jacobian.times(x)
        solver = of_map(linear, w, like)
    return Solver(solver.transposed, solver.solve, solver.ok) if jacobian.adjoint else solver


def _with_tail(linear: Linear, mass, gamma, dt, jacobian: Jacobian, like) -> Solver:
    """Leading unknowns as always; of the others x = gamma (b + dt (J x)), which only the leading ones enter."""
    tail, lead = jacobian.tail, linear.lead
    assert tail is not None and lead is not None
    mass = None if mass is None else mass.leading()
    inner = factor(linear, mass, gamma, dt, jacobian._replace(tail=None), like[:lead])

    def solve(b):
        x = inner.solve(b[:lead])
        return jnp.concatenate([x, gamma * (b[lead:] + dt.astype(like.dtype) * tail(x))])

    return Solver(solve, solve, inner.ok)


def parts_of(dtype) -> tuple[Callable, Callable]:
    """Complex vectors (.., n) to their real and imaginary parts (.., 2n), and back; real ones stay what they are."""
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return lambda z: z, lambda x: x

    def join(x):
        n = x.shape[-1] // 2
        return (x[..., :n] + 1j * x[..., n:]).astype(dtype)

    return lambda z: jnp.concatenate([jnp.real(z), jnp.imag(z)], axis=-1), join


def of_map(linear: Linear, times: Callable, like) -> Solver:
    """A linear map of vectors like `like` (n,) with the pattern of `linear`, factored; it has no derivative."""
    if linear.kind == "krylov":
        return _krylov(linear, times)
    return by_factors(linear, factorise(linear, jax.lax.stop_gradient(_columns(linear, times, like))))


def columns_of(linear: Linear, jacobian: Jacobian, like):
    """J itself where the user gave it, else its columns (n, colours), which `factorise` takes."""
    return _columns(linear, jacobian.times, like) if jacobian.matrix is None else jacobian.matrix


def mass_columns(linear: Linear, mass: Mass | None, n: int) -> np.ndarray:
    """The columns of M, or of the identity, in the same arrangement."""
    m = np.eye(n) if mass is None else mass.matrix
    return m if linear.sparsity is None else m @ linear.sparsity.seeds


def factorise(linear: Linear, columns):
    """The factors of a matrix given by its columns: arrays, which loops can carry."""
    s = linear.sparsity
    if s is not None and linear.kind == "banded":
        return banded.factor(s.to_band(columns), s.lower, s.upper)
    w = columns if s is None else s.to_dense(columns)
    return jax.scipy.linalg.lu_factor(w) if w.shape[-1] > SMALL else inverse(w)


def by_factors(linear: Linear, factors) -> Solver:
    """The solver of a matrix that `factorise` factored."""
    if isinstance(factors, banded.Factors):
        assert linear.sparsity is not None
        order, back = linear.sparsity.order, linear.sparsity.inverse
        take = lambda x, index: jnp.take(x, index, mode="clip")
        solve = lambda b: take(banded.solve(factors, take(b, order)), back)
        transposed = lambda b: take(banded.solve_transposed(factors, take(b, order)), back)
        return Solver(solve, transposed, ~factors.singular)
    if factors[0].shape[-1] > SMALL:
        by = lambda b, trans: jax.scipy.linalg.lu_solve(factors, b, trans=trans)
        ok = jnp.all(jnp.diagonal(factors[0]) != 0)
        return Solver(lambda b: by(b, 0), lambda b: by(b, 1), ok)
    inv, ok = factors
    return Solver(lambda b: jnp.sum(inv * b[None, :], axis=1), lambda b: jnp.sum(inv * b[:, None], axis=0), ok)


def row_sums(linear: Linear, jacobian: Jacobian, like):
    """sum_j |J_ij| (n,), whose largest is the norm of J; without columns, of its product with a vector of ones."""
    like = like if jacobian.tail is None or linear.lead is None else like[: linear.lead]
    if jacobian.matrix is not None:
        return jnp.sum(jnp.abs(jacobian.matrix), axis=1)
    if linear.kind == "krylov":
        return jnp.abs(jacobian.times(jnp.ones_like(like)))
    return jnp.sum(jnp.abs(_columns(linear, jacobian.times, like)), axis=1)


def _columns(linear: Linear, times: Callable, like):
    """The columns of a linear map of vectors like `like`, those of one colour together."""
    seeds = np.eye(like.size) if linear.sparsity is None else linear.sparsity.seeds
    return jax.vmap(times, in_axes=1, out_axes=1)(vary(jnp.asarray(seeds, like.dtype), varying_axes(like)))


def of_matrix(w) -> Solver:
    """A dense matrix (n, n), factored."""
    return by_factors(DENSE, factorise(DENSE, w))


def inverse(w):
    """The inverse of a small matrix (n, n) in place, with row pivoting, and whether it is regular.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 14.4.
    """
    n = w.shape[-1]
    index = np.arange(n)

    def eliminate(k, state):
        a, rows, ok = state
        here, below = index == k, index >= k
        column = jax.lax.dynamic_index_in_dim(a, k, 1, keepdims=False)
        pivot = jnp.argmax(jnp.where(below, jnp.abs(column), -1)).astype(jnp.int32)
        upper, lower = (jax.lax.dynamic_index_in_dim(a, i, 0, keepdims=False) for i in (k, pivot))
        a = jnp.where((index == pivot)[:, None], upper[None, :], a)  # rows k and pivot change places
        a = jnp.where(here[:, None], lower[None, :], a)
        label, other = (jax.lax.dynamic_index_in_dim(rows, i, 0, keepdims=False) for i in (k, pivot))
        rows = jnp.where(here, other, jnp.where(index == pivot, label, rows))
        column = jax.lax.dynamic_index_in_dim(a, k, 1, keepdims=False)
        d = jax.lax.dynamic_index_in_dim(lower, k, 0, keepdims=False)
        row = jnp.where(here, 1, lower) / jnp.where(d == 0, 1, d)
        a = jnp.where(here[None, :], 0, a) - column[:, None] * row[None, :]
        return jnp.where(here[:, None], row[None, :], a), rows, ok & (d != 0)

    state = vary((w, jnp.asarray(index, jnp.int32), jnp.asarray(True)), varying_axes(w))
    if n <= UNROLL:
        for k in range(n):
            state = eliminate(np.int32(k), state)
    else:
        state = jax.lax.fori_loop(0, n, eliminate, state)
    a, rows, ok = state
    # column rows[i] of the inverse is column i of what elimination left
    place = jnp.sum(jnp.where(rows[:, None] == index[None, :], jnp.asarray(index[:, None], jnp.int32), 0), axis=0)
    return jnp.take(a, place, axis=1, mode="clip"), ok


def _krylov(linear: Linear, times: Callable) -> Solver:
    size = lambda x: jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x))))

    def gmres(times, b):
        rounds = -(-10 * b.size // linear.restart)
        x, _ = jax.scipy.sparse.linalg.gmres(
            times, b, tol=linear.rtol, atol=0.0, restart=min(linear.restart, b.size), maxiter=rounds
        )
        eps = jnp.finfo(b.dtype).eps
        solved = size(b - times(x)) <= 10 * max(linear.rtol, 100 * eps) * size(b)
        return jnp.where(solved, x, jnp.nan)

    def transposed(b):
        pull = jax.linear_transpose(times, b)
        return gmres(lambda x: pull(x)[0], b)

    return Solver(lambda b: gmres(times, b), transposed, jnp.asarray(True))


def solve_exactly(times: Callable, solver: Solver, b):
    """x with `times(x)` = b as a function with derivatives of every order, forward and reverse by the same factors."""
    if varying_axes(b):  # casts of constants move out of the map: JAX's rules make them vary twice
        times = jax.linearize(times, b)[1]
    return jax.lax.custom_linear_solve(times, b, lambda _, b: solver.solve(b), lambda _, b: solver.transposed(b))


def velocity(linear: Linear, mass: Mass | None, f: Callable, t, u, *, exact: bool):
    """u' of M u' = f(t, u): where M is singular, from the derivative in time of the algebraic equations.

        (M + N N^T f_u) u' = f - N N^T f_t,    N the null space of M^T

    Source: Hairer and Wanner, Solving Ordinary Differential Equations II, section VI.1.
    """
    value = f(t, u)
    if mass is None:
        return value
    if not mass.singular:
        return mass.solve(value)
    onto = mass.project
    f_t = jax.jvp(lambda t: f(t, u), (t,), (jnp.ones_like(t),))[1]
    times = lambda x: mass.times(x) + onto(jax.jvp(lambda u: f(t, u), (u,), (x,))[1])
    within = linear if mass.diagonal is not None and linear.lead is None else DENSE
    solver = of_map(within, times, u)
    b = value - onto(f_t)
    return solve_exactly(times, solver, b) if exact else solver.solve(b)
