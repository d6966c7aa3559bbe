"""The record `BdfTableau`: the backward differentiation formulas of orders 1 to 5 as exact data.

This module owns the constants of the formulas and what a solve needs to know of the family.  It knows nothing of JAX,
of how a step is taken or of how order and step size are chosen.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import factorial
from typing import Any

import numpy as np

MOST = 5  # the highest order that is used: above six the formulas are unstable, and the sixth nearly so
PAST = 5  # states kept besides the present one: an order q needs q of them, an estimate of order q + 1 one more


@dataclass(frozen=True)
class BdfTableau:
    r"""Backward differentiation formulas with fixed leading coefficient, orders 1 to `order`.

    With ``x = (t - t_n) / h``, the polynomial ``P`` of degree ``q`` through the last ``q + 1`` states and
    ``alpha_q = 1 + 1/2 + .. + 1/q``, a step of size ``h`` to ``x = 1`` is

    .. math::

        M (\alpha_q (u_{n+1} - P(1)) + P'(1)) = h f(t_{n+1}, u_{n+1}),

    which for equal steps is ``sum_{j <= q} nabla^j u_{n+1} / j = h f``.  Its local error is estimated as
    ``q! / alpha_q`` times the divided difference of the last ``q + 2`` states in ``x``: for equal steps
    ``h^(q+1) u^(q+1) / ((q + 1) alpha_q)``.

    Parameters
    ----------
    order : int
        The highest order, 1 to 5.
    companion : tableau
        The one-step method for what is integrated in short pieces (the backward equations of continuous adjoints).

    Notes
    -----
    Source: Brenan, Campbell, Petzold, Numerical Solution of Initial-Value Problems in Differential-Algebraic Equations
    (1996), section 5.2; Hairer, Norsett, Wanner I, section III.1 and III.5, for the formulas and their error constants.
    """

    order: int
    companion: Any

    name = "FBDF"
    citation = (
        "Jackson, Sacks-Davis, An alternative implementation of variable step-size multistep formulas for stiff ODEs, "
        "ACM TOMS 6 (1980); Brenan, Campbell, Petzold (1996), section 5.2."
    )
    # As in the other families: one unknown a step, no stage for the interpolant only, no second error estimate.
    stages = 1
    n_extra = 0
    fsal = False
    b_err_low = None
    b_err = "by differences"
    C = np.ones(1)
    embedded_order = 1  # what the first step is controlled by

    def __post_init__(self):
        if isinstance(self.order, bool) or self.order not in range(1, MOST + 1):
            raise ValueError(
                f"the highest order of a BDF method must be an integer from 1 to {MOST}, got {self.order!r}"
            )

    @property
    def dense_order(self) -> int:
        return self.order

    @staticmethod
    def leading() -> tuple[Fraction, ...]:
        """alpha_q for q = 0 .. 5."""
        return tuple(sum((Fraction(1, j) for j in range(1, q + 1)), Fraction(0)) for q in range(MOST + 1))

    @cached_property
    def ALPHA(self):
        """`leading()` as an array; entry 0 is never used and is one."""
        return np.array([1.0, *map(float, self.leading()[1:])])

    @cached_property
    def ERROR(self):
        """q! / alpha_q as an array for q = 0 .. 6; entries 0 and 6 are never used."""
        return np.array([1.0, *(float(factorial(q) / a) for q, a in enumerate(self.leading()) if q), 1.0])
