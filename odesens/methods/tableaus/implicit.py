"""The records `RosenbrockTableau` and `EsdirkTableau`: coefficients of one stiff method as exact data.

This module owns the layout of those coefficients and their correctly rounded float64 form.  Like `base`, it knows
nothing of JAX, of how a step is taken or a linear system solved, of error norms or of step-size control.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from odesens.methods.tableaus.base import Coefficients, _array


def _is_triangle(rows, stages, diagonal):
    """Row ``i`` of `rows` has ``i`` entries, or ``i + 1`` with the diagonal."""
    return [len(row) for row in rows] == [i + diagonal for i in range(stages)]


@dataclass(frozen=True, eq=False, kw_only=True)
class _StiffTableau(Coefficients):
    """What the two families share: the step, the error estimate and the interpolant as sums over the stages."""

    name: str
    order: int
    embedded_order: int
    dense_order: int
    stiffly_accurate: bool
    l_stable: bool
    citation: str
    gamma: str
    c: tuple[str, ...]
    a: tuple[tuple[str, ...], ...]
    b: tuple[str, ...]
    b_err: tuple[str, ...]
    b_dense: tuple[tuple[str, ...], ...]
    fsal: bool = False

    # As in `Tableau`: no stage is for the interpolant only and no method has a second error estimate.
    n_extra = 0
    b_err_low = None

    def __post_init__(self):
        if not len(self.c) == len(self.b) == len(self.b_err) == len(self.b_dense):
            raise ValueError(f"{self.name}: `c`, `b`, `b_err` and `b_dense` must have one entry a stage")
        if len({len(row) for row in self.b_dense}) != 1:
            raise ValueError(f"{self.name}: the rows of `b_dense` must have one length")

    @property
    def stages(self):
        """Number of stages."""
        return len(self.b)

    @cached_property
    def GAMMA(self):
        """`gamma` as a float."""
        return float(self.fractions("gamma"))

    @cached_property
    def A(self):
        """`a` as a ``(stages, stages)`` array."""
        return self._square("a")

    def _square(self, field):
        values = self.fractions(field)
        return None if values is None else _array(values, (self.stages, self.stages))


@dataclass(frozen=True, eq=False, kw_only=True)
class RosenbrockTableau(_StiffTableau):
    r"""Rosenbrock method in the form that needs no product with the Jacobian.

    With ``h = dt``, the Jacobian ``J`` and the time derivative ``f_t`` of ``f`` at ``(t, u)``, and the mass matrix
    ``M``, a step is

    .. math::

        (M / \gamma - h J)\, k_i &= f(t + c_i h,\; u + h \sum_{j<i} a_{ij} k_j)
            + M \sum_{j<i} coupling_{ij} k_j + d_i h f_t, \\
        u_{new} &= u + h \sum_i b_i k_i, \\
        e &= h \sum_i b\_err_i k_i, \\
        u(t + \theta h) &= u + h \sum_i k_i \sum_{j \ge 1} b\_dense_{i,j-1} \theta^j .

    Parameters
    ----------
    name : str
    order : int
        Order of `b`.
    embedded_order : int
        Order of ``b - b_err``.
    dense_order : int
        Order of the interpolant: its error at a fixed ``theta`` is ``O(h**(dense_order + 1))`` in one step.
    stiffly_accurate : bool
        The last stage of the untransformed method (see the notes) is the step: ``alpha_s + gamma_s = b``, ``c_s = 1``.
    l_stable : bool
        A-stable with ``R(infinity) = 0``.
    citation : str
        Where the coefficients were published.
    gamma : str
        The one diagonal entry of the untransformed method.
    c, d : tuple of str
        Nodes of the stages and weights of ``h f_t``.
    a, coupling : tuple of tuple of str
        Strictly lower triangles; row ``i`` has ``i`` entries.
    b, b_err : tuple of str
        Weights of the step and of its error estimate.
    b_dense : tuple of tuple of str
        Row ``i`` holds the coefficients of ``theta, theta**2, ...`` that multiply ``k_i``.
    fsal : bool

    Notes
    -----
    The stages here are ``1/h`` times the ``u_i`` of Hairer and Wanner, Solving ODEs II, section IV.7, so the numbers
    are those of codes that work with ``u_i``.  The untransformed method, which the order conditions speak of, has the
    matrices ``G = (I / gamma - coupling)**-1`` and ``alpha = a G`` and the weights ``b G``; the row sums of ``alpha``
    are ``c`` and those of ``G`` are ``d``.

    Every coefficient is a string which `fractions.Fraction` reads exactly.  The capital attributes `A`, `COUPLING`,
    `B`, `B_ERR`, `C`, `D`, `B_DENSE` are the same data as read-only NumPy float64 arrays, `GAMMA` is a float.
    Instances hash by identity.
    """

    coupling: tuple[tuple[str, ...], ...]
    d: tuple[str, ...]

    def __post_init__(self):
        super().__post_init__()
        if not all(_is_triangle(rows, self.stages, False) for rows in (self.a, self.coupling)):
            raise ValueError(f"{self.name}: `a` and `coupling` must be strictly lower triangles of {self.stages} rows")
        if len(self.d) != self.stages:
            raise ValueError(f"{self.name}: `d` must have {self.stages} entries")

    @cached_property
    def COUPLING(self):
        """`coupling` as a strictly lower ``(stages, stages)`` array."""
        return self._square("coupling")

    @cached_property
    def D(self):
        """`d` as a ``(stages,)`` array."""
        return self._vector("d")


@dataclass(frozen=True, eq=False, kw_only=True)
class EsdirkTableau(_StiffTableau):
    r"""Diagonally implicit Runge-Kutta method with an explicit first stage and one diagonal entry ``gamma`` after it.

    With ``h = dt`` a step from ``(t, u)`` is

    .. math::

        k_i &= f(t + c_i h,\; u + h \sum_{j \le i} a_{ij} k_j), \qquad a_{11} = 0,\; a_{ii} = \gamma, \\
        u_{new} &= u + h \sum_i b_i k_i, \\
        e &= h \sum_i b\_err_i k_i, \\
        u(t + \theta h) &= u + h \sum_i k_i \sum_{j \ge 1} b\_dense_{i,j-1} \theta^j .

    The solver of stage ``i`` starts from ``k_i = sum_{j<i} predict_ij k_j``.  An additive method for
    ``u' = f(t, u) + g(t, u)`` takes ``g`` explicitly, its stages with `a_explicit` in place of `a`; the nodes and the
    weights `b`, `b_err`, `b_dense` are common to both parts.

    Parameters
    ----------
    name : str
    order : int
        Order of `b`, of the additive method too where there is one.
    embedded_order : int
        Order of ``b - b_err``, likewise.
    dense_order : int
        Order of the interpolant, likewise: its error at a fixed ``theta`` is ``O(h**(dense_order + 1))`` in one step.
    stiffly_accurate : bool
        The last row of `a` is `b`, so the last stage is ``f(t + h, u_new)``.
    l_stable : bool
        A-stable with ``R(infinity) = 0``.
    citation : str
        Where the coefficients were published.
    gamma : str
        Diagonal entry of all stages but the first.
    c : tuple of str
        Nodes of the stages.
    a : tuple of tuple of str
        Lower triangle with its diagonal; row ``i`` has ``i + 1`` entries.
    b, b_err : tuple of str
        Weights of the step and of its error estimate.
    b_dense : tuple of tuple of str
        Row ``i`` holds the coefficients of ``theta, theta**2, ...`` that multiply ``k_i``.
    predict : tuple of tuple of str
        Strictly lower triangle; row ``i`` has ``i`` entries.
    a_explicit : tuple of tuple of str or None
        Strictly lower triangle of the explicit partner.
    fsal : bool

    Notes
    -----
    Every coefficient is a string which `fractions.Fraction` reads exactly.  The capital attributes `A`, `A_EXPLICIT`,
    `PREDICT`, `B`, `B_ERR`, `C`, `B_DENSE` are the same data as read-only NumPy float64 arrays, `GAMMA` is a float.
    Instances hash by identity.
    """

    predict: tuple[tuple[str, ...], ...]
    a_explicit: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self):
        super().__post_init__()
        if not _is_triangle(self.a, self.stages, True):
            raise ValueError(f"{self.name}: `a` must be a lower triangle with its diagonal, of {self.stages} rows")
        if any(Fraction(row[-1]) != Fraction(self.gamma if i else 0) for i, row in enumerate(self.a)):
            raise ValueError(f"{self.name}: the diagonal of `a` must be 0, gamma, ..., gamma")
        if not all(_is_triangle(x, self.stages, False) for x in (self.predict, self.a_explicit) if x is not None):
            raise ValueError(f"{self.name}: `predict` and `a_explicit` must be strictly lower triangles")

    @cached_property
    def bounded_error(self):
        """Whether the error estimate of u' = lambda u stays bounded as ``h lambda`` goes to minus infinity.

        Where it does not, it must be multiplied by ``(I - h gamma J)**-1`` (Hosea and Shampine 1996, section 3).
        """
        z = -1e10
        k = np.linalg.solve(np.eye(self.stages) - z * np.asarray(self.A), np.ones(self.stages))
        return bool(abs(np.dot(np.asarray(self.B_ERR), k) * z) < 1e3)

    @cached_property
    def PREDICT(self):
        """`predict` as a strictly lower ``(stages, stages)`` array."""
        return self._square("predict")

    @cached_property
    def A_EXPLICIT(self):
        """`a_explicit` as a strictly lower ``(stages, stages)`` array, or None."""
        return self._square("a_explicit")
