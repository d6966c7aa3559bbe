"""The record `AutoSwitch`: an explicit method and a stiff one between which a solve switches.

This module owns the pairing of two tableaus and the constants of the switch.  It knows nothing of JAX, of how a step is
taken, or of how stiffness is measured.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from odesens.methods.tableaus.base import Tableau


@dataclass(frozen=True)
class AutoSwitch:
    """Two methods; the arrays have one row more than the others': row 0 is the explicit method, row 1 the stiff one.

    Parameters
    ----------
    nonstiff : Tableau
        Explicit, without stages that only dense output needs, its last two main stages at the step's end.
    stiff : RosenbrockTableau or EsdirkTableau
    stiff_after, nonstiff_after : int
        A solve switches where the accepted steps that speak for it exceed those that speak against it by so many.
    limit, part : float
        Length |dt| |J| of the explicit method's region of stability, and the part of it above which a step is stiff.

    Notes
    -----
    Source: Shampine, Stiffness and nonstiff differential equation solvers II, SIAM J. Sci. Comput. 1977, for the test;
    the constants `stiff_after`, `nonstiff_after` and `limit` are SciML's.
    """

    nonstiff: Tableau
    stiff: Any
    stiff_after: int = 10
    nonstiff_after: int = 3
    limit: float = 3.5
    part: float = 0.75

    n_extra = 0
    fsal = False
    b_err_low = None

    def __post_init__(self):
        if self.nonstiff.n_extra or self.nonstiff.b_err is None or self.nonstiff.fractions("c")[-2:] != (1, 1):
            raise ValueError(
                f"{self.nonstiff.name} cannot switch: it must have an error estimate, two last stages at the step's "
                "end and no stage for dense output alone; take Tsit5 or DP5"
            )

    @property
    def name(self) -> str:
        return f"Auto{self.nonstiff.name}({self.stiff.name})"

    @property
    def stages(self) -> int:
        """Rows of k; the method with fewer stages leaves the last ones zero."""
        return max(self.nonstiff.stages, self.stiff.stages)

    @property
    def order(self) -> int:
        return min(self.nonstiff.order, self.stiff.order)

    @property
    def embedded_order(self) -> int:
        return min(self.nonstiff.embedded_order or 0, self.stiff.embedded_order)

    @property
    def dense_order(self) -> int:
        return min(self.nonstiff.dense_order, self.stiff.dense_order)

    @property
    def b_err(self):
        return self.stiff.b_err

    @cached_property
    def B(self):
        return self._pair("B")

    @cached_property
    def B_ERR(self):
        return self._pair("B_ERR")

    @cached_property
    def B_CENTRED(self):
        return self._pair("B_CENTRED")

    def _pair(self, name: str):
        """The two methods' arrays, padded with zeros to one shape."""
        parts = [getattr(x, name) for x in (self.nonstiff, self.stiff)]
        shape = np.max([x.shape for x in parts], axis=0)
        return np.stack([np.pad(x, [(0, a - b) for a, b in zip(shape, x.shape, strict=True)]) for x in parts])
