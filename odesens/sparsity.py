"""How to get all entries of a sparse Jacobian from few directional derivatives.

Columns that share no row get one colour; the sums of the Jacobian's columns of each colour hold all of its entries.

Owns: colours of columns, a narrow band, the entries of a compressed Jacobian. Must not know: programs, fields, methods.
Source: A. Griewank, A. Walther, Evaluating Derivatives (2008), chapter 8.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

MOST_ENTRIES = 2**25  # of the pattern of columns that share a row; one that has more is as good as dense


def colours(pattern) -> np.ndarray:
    """A colour for each column such that two columns with an entry in the same row differ; few, from 0 on.

    Greedy, in the natural order, with the columns of most neighbours first, and along a band, whichever needs fewest.
    """
    matrix: Any = sp.csr_array(pattern, dtype=bool)
    n, counts = matrix.shape[1], np.diff(matrix.indptr).astype(float)
    if counts.max(initial=0) == n or (counts**2).sum() > MOST_ENTRIES:
        return np.arange(n)
    neighbours = sp.csr_array(matrix.T @ matrix)
    most_first = np.argsort(-np.diff(neighbours.indptr), kind="stable")
    along = csgraph.reverse_cuthill_mckee(neighbours, symmetric_mode=True)
    tries = [_greedy(neighbours, order) for order in (np.arange(n), most_first, along)]
    return min(tries, key=lambda c: c.max(initial=0))


def _greedy(neighbours, order) -> np.ndarray:
    colour = np.full(neighbours.shape[0], -1)
    indptr, indices = neighbours.indptr, neighbours.indices
    for j in order:
        taken = set(colour[indices[indptr[j] : indptr[j + 1]]].tolist())
        c = 0
        while c in taken:
            c += 1
        colour[j] = c
    return colour


def band(pattern) -> tuple[np.ndarray, int, int]:
    """An order of rows and columns that makes a square pattern a narrow band.

    Returns
    -------
    order : row i of the reordered pattern is row order[i]
    lower, upper : the number of diagonals with entries below and above the main one, reordered
    """
    matrix: Any = sp.csr_array(pattern, dtype=bool)
    natural = np.arange(matrix.shape[0])
    if not matrix.nnz:
        return natural, 0, 0
    cuthill = csgraph.reverse_cuthill_mckee(sp.csr_array(matrix + matrix.T), symmetric_mode=True)
    tries = [(order.astype(int), *_widths(matrix, order)) for order in (natural, cuthill)]
    return min(tries, key=lambda t: t[1] + t[2])


def _widths(matrix, order) -> tuple[int, int]:
    place = np.empty(matrix.shape[0], int)
    place[order] = np.arange(matrix.shape[0])
    rows, columns = matrix.nonzero()
    below = place[rows] - place[columns]
    return max(int(below.max()), 0), max(int(-below.min()), 0)


@dataclass(frozen=True, repr=False)
class Sparsity:
    """The pattern of a square Jacobian J (n, n), diagonal included, for use as a static argument.

    With `compressed = J @ seeds` (n, n_colours), `to_dense` and `to_band` give back the entries of J. The band is that
    of J[order][:, order]: row i holds the columns i - lower .. i + upper, so that the diagonal is column `lower`, and
    zeros where there is no such column.

    Attributes
    ----------
    n, n_colours : numbers of states and of colours
    colours : (n,) the colour of each column
    order, inverse : (n,) the order of the band, and back: `x[order][inverse]` is x
    lower, upper : diagonals of the band below and above the main one
    """

    n: int
    _rows: bytes
    _columns: bytes

    @staticmethod
    def from_pattern(pattern) -> "Sparsity":
        """From an array or a sparse matrix (n, n): what is not zero there may be nonzero in the Jacobian."""
        matrix: Any
        if sp.issparse(pattern):
            matrix = sp.csr_array(pattern)
        else:
            matrix = np.asarray(pattern)
            if matrix.dtype.kind not in "biufc":
                raise TypeError(f"a sparsity pattern must be an array of booleans or numbers, got {pattern!r}")
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"a sparsity pattern must have the shape (n, n) of a Jacobian, got {matrix.shape}")
        n = matrix.shape[0]
        entries = sp.csr_array(sp.csr_array(matrix != 0, dtype=bool) + sp.eye_array(n, dtype=bool, format="csr"))
        entries.sum_duplicates()
        rows, columns = entries.nonzero()
        return Sparsity(n, rows.astype(np.int32).tobytes(), columns.astype(np.int32).tobytes())

    @property
    def rows(self) -> np.ndarray:
        """The row of each entry, in the order of rows, then columns."""
        return np.frombuffer(self._rows, np.int32)

    @property
    def columns(self) -> np.ndarray:
        """The column of each entry."""
        return np.frombuffer(self._columns, np.int32)

    @functools.cached_property
    def matrix(self) -> sp.csr_array:
        """The pattern (n, n) itself, of booleans."""
        ones = np.ones(self.rows.size, bool)
        return sp.csr_array((ones, (self.rows, self.columns)), shape=(self.n, self.n))

    @functools.cached_property
    def colours(self) -> np.ndarray:
        return colours(self.matrix)

    @functools.cached_property
    def n_colours(self) -> int:
        return int(self.colours.max(initial=-1)) + 1

    @functools.cached_property
    def seeds(self) -> np.ndarray:
        """(n, n_colours): one where a column has a colour."""
        return (self.colours[:, None] == np.arange(self.n_colours)).astype(float)

    @functools.cached_property
    def _band(self) -> tuple[np.ndarray, int, int]:
        return band(self.matrix)

    @property
    def order(self) -> np.ndarray:
        return self._band[0]

    @functools.cached_property
    def inverse(self) -> np.ndarray:
        return np.argsort(self.order)

    @property
    def lower(self) -> int:
        return self._band[1]

    @property
    def upper(self) -> int:
        return self._band[2]

    def to_dense(self, compressed) -> jax.Array:
        """The Jacobian (n, n) from its compressed form."""
        return _pick(compressed, *self._dense_places)

    def to_band(self, compressed) -> jax.Array:
        """The reordered Jacobian as a band (n, lower + upper + 1) from its compressed form."""
        return _pick(compressed, *self._band_places)

    @functools.cached_property
    def _dense_places(self):
        return self._places((self.n, self.n), self.rows, self.columns)

    @functools.cached_property
    def _band_places(self):
        i, j = self.inverse[self.rows], self.inverse[self.columns]
        return self._places((self.n, self.lower + self.upper + 1), i, j - i + self.lower)

    def _places(self, shape, i, j):
        """For an array with the entries at [i, j]: where each is in the compressed Jacobian, and which there are."""
        places, there = np.zeros(shape, np.uint32), np.zeros(shape, bool)  # unsigned: never counted from the end
        places[i, j] = self.rows * self.n_colours + self.colours[self.columns]
        there[i, j] = True
        return places, there

    def __deepcopy__(self, memo):
        return self

    def __repr__(self) -> str:
        return f"<sparsity of {self.n} states, {self.rows.size} entries, {self.n_colours} colours>"


def _pick(compressed, places: np.ndarray, there: np.ndarray) -> jax.Array:
    entries = jnp.ravel(compressed).at[places].get(mode="promise_in_bounds")
    return jnp.where(there, entries, jnp.zeros((), entries.dtype))
