"""The `Tableau` record: coefficients of one explicit Runge-Kutta method as exact published data.

This module owns the layout of a method's coefficients and their correctly rounded float64 form.  It knows nothing of
JAX, of how a step is taken, of error norms or of step-size control.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import comb
from typing import Any

import numpy as np


def _array(rows, shape):
    """Read-only float64 array of ragged `rows`, zero-padded to `shape`, each entry rounded once from its fraction."""
    out = np.zeros(shape)
    for i, row in enumerate(rows):
        out[i, : len(row)] = [float(x) for x in row]
    out.setflags(write=False)
    return out


class Coefficients:
    """Exact data of a method as strings, read as fractions and as read-only NumPy float64 arrays.

    Every family has `b`, `b_err`, `b_err_low`, `c` and `b_dense`, the same sums over its stages.
    """

    b_dense: tuple[tuple[str, ...], ...]

    def fractions(self, field) -> Any:
        """Exact values of `field`: Fraction, tuple of Fraction or tuple of tuples; None if absent."""
        value = getattr(self, field)
        if value is None:
            return None
        if isinstance(value, str):
            return Fraction(value)
        return tuple(tuple(map(Fraction, x)) if isinstance(x, tuple) else Fraction(x) for x in value)

    @cached_property
    def B_DENSE(self):
        """`b_dense` as an array, a row a stage, a column a degree from 1 on."""
        return _array(self.fractions("b_dense"), (len(self.b_dense), len(self.b_dense[0])))

    @cached_property
    def B_CENTRED(self):
        """`b_dense` in powers of ``theta - 1/2``, degree 0 first: far less rounding than powers of ``theta``."""
        rows = []
        for row in self.fractions("b_dense"):
            powers = (Fraction(0), *row)
            degrees = range(len(powers))
            rows.append([sum(powers[m] * comb(m, k) / Fraction(2) ** (m - k) for m in degrees[k:]) for k in degrees])
        return _array(rows, (len(rows), len(rows[0])))

    @cached_property
    def B(self):
        """`b` as an array."""
        return self._vector("b")

    @cached_property
    def B_ERR(self):
        """`b_err` as an array, or None."""
        return self._vector("b_err")

    @cached_property
    def B_ERR_LOW(self):
        """`b_err_low` as an array, or None."""
        return self._vector("b_err_low")

    @cached_property
    def C(self):
        """`c` as an array."""
        return self._vector("c")

    def _vector(self, field):
        values = self.fractions(field)
        return None if values is None else _array([values], (1, len(values)))[0]


@dataclass(frozen=True, eq=False)
class Tableau(Coefficients):
    r"""Explicit Runge-Kutta method with an optional embedded formula and a polynomial interpolant.

    With ``h = dt`` a step from ``(t, u)`` is

    .. math::

        k_i &= f(t + c_i h,\; u + h \sum_{j<i} a_{ij} k_j), \\
        u_{new} &= u + h \sum_{i \le s} b_i k_i, \\
        e &= h \sum_{i \le s} (b_i - \hat b_i) k_i, \\
        u(t + \theta h) &= u + h \sum_i k_i \sum_{j \ge 1} b\_dense_{i,j-1} \theta^j .

    The first ``s = stages`` stages make the step and the error estimate ``e``.  The `n_extra` stages after them are
    needed by the interpolant only.

    Parameters
    ----------
    name : str
    order : int
        Order of `b`.
    embedded_order : int or None
        Order of ``b_hat = b - b_err``.
    dense_order : int
        Order of the interpolant: its error at a fixed ``theta`` is ``O(h**(dense_order + 1))`` in one step.
    fsal : bool
        The last main stage is ``f(t + h, u_new)``: its weight is "0" and its row of `a` is ``b[:-1]``, so it serves as
        the first stage of the next step.
    citation : str
        Where the coefficients were published.
    c : tuple of str
        Nodes of all stages, extra stages last.
    a : tuple of tuple of str
        Strictly lower triangle; row ``i`` has ``i`` entries.  Extra stages are included.
    b : tuple of str
        Weights of the main stages.
    b_err : tuple of str or None
        ``b - b_hat``, one entry a main stage; None where there is no embedded formula.
    b_dense : tuple of tuple of str
        Row ``i`` holds the coefficients of ``theta, theta**2, ...`` that multiply ``k_i``, for all stages.
    b_err_low : tuple of str or None
        A second error estimate of lower order (DOP853 only).

    Notes
    -----
    Every coefficient is a string which `fractions.Fraction` reads exactly.  The capital attributes `A`, `B`, `B_ERR`,
    `B_ERR_LOW`, `C`, `B_DENSE` are the same data as read-only NumPy float64 arrays.  Instances hash by identity.
    """

    name: str
    order: int
    embedded_order: int | None
    dense_order: int
    fsal: bool
    citation: str
    c: tuple[str, ...]
    a: tuple[tuple[str, ...], ...]
    b: tuple[str, ...]
    b_err: tuple[str, ...] | None
    b_dense: tuple[tuple[str, ...], ...]
    b_err_low: tuple[str, ...] | None = None

    def __post_init__(self):
        total = len(self.c)
        if [len(row) for row in self.a] != list(range(total)):
            raise ValueError(f"{self.name}: `a` must be strictly lower triangular with {total} rows")
        if len(self.b_dense) != total or len({len(row) for row in self.b_dense}) != 1:
            raise ValueError(f"{self.name}: `b_dense` must have {total} rows of one length")
        if any(w is not None and len(w) != self.stages for w in (self.b_err, self.b_err_low)):
            raise ValueError(f"{self.name}: error weights must have {self.stages} entries")

    @property
    def stages(self):
        """Number of main stages."""
        return len(self.b)

    @property
    def n_extra(self):
        """Number of stages that only the interpolant needs."""
        return len(self.c) - len(self.b)

    @cached_property
    def A(self):
        """`a` as a strictly lower ``(stages + n_extra, stages + n_extra)`` array."""
        return _array(self.fractions("a"), (len(self.c), len(self.c)))
