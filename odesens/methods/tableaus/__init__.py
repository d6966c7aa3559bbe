"""Explicit Runge-Kutta methods as data: one module a family, one constant a method.

This package owns coefficients and their citations.  It knows nothing of JAX or of how a step is taken.
"""

from odesens.methods.tableaus.auto import AutoSwitch
from odesens.methods.tableaus.base import Tableau
from odesens.methods.tableaus.bdf import BdfTableau
from odesens.methods.tableaus.dormand_prince import DOP853, DP5
from odesens.methods.tableaus.esdirk import KENCARP4, KENCARP5, KVAERNO3, KVAERNO5, TRBDF2
from odesens.methods.tableaus.implicit import EsdirkTableau, RosenbrockTableau
from odesens.methods.tableaus.low_order import BS3, EULER, HEUN, MIDPOINT, RALSTON, RK4
from odesens.methods.tableaus.rosenbrock import RODAS4, RODAS5P, ROSENBROCK23
from odesens.methods.tableaus.tsitouras import TSIT5
from odesens.methods.tableaus.verner6 import VERN6
from odesens.methods.tableaus.verner7 import VERN7
from odesens.methods.tableaus.verner8 import VERN8
from odesens.methods.tableaus.verner9 import VERN9

ALL = (EULER, MIDPOINT, HEUN, RALSTON, RK4, BS3, DP5, TSIT5, VERN6, VERN7, VERN8, VERN9, DOP853)  # the explicit ones
STIFF = (ROSENBROCK23, RODAS4, RODAS5P, TRBDF2, KVAERNO3, KVAERNO5, KENCARP4, KENCARP5)

__all__ = [
    "ALL",
    "BS3",
    "DOP853",
    "DP5",
    "EULER",
    "HEUN",
    "KENCARP4",
    "KENCARP5",
    "KVAERNO3",
    "KVAERNO5",
    "MIDPOINT",
    "RALSTON",
    "RK4",
    "RODAS4",
    "RODAS5P",
    "ROSENBROCK23",
    "STIFF",
    "TRBDF2",
    "TSIT5",
    "VERN6",
    "VERN7",
    "VERN8",
    "VERN9",
    "AutoSwitch",
    "BdfTableau",
    "EsdirkTableau",
    "RosenbrockTableau",
    "Tableau",
]
