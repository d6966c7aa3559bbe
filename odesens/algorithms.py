"""The methods a user names: a tableau each.

Owns: `Tsit5()`, `Vern7()`, .. as plain data. Must not know: how a step is taken.
"""

from dataclasses import dataclass
from typing import ClassVar

from .methods import tableaus
from .methods.tableaus import Tableau


@dataclass(frozen=True)
class ExplicitRungeKutta:
    """Base of the explicit Runge-Kutta methods; `tableau` holds coefficients and citation."""

    tableau: ClassVar[Tableau]

    @property
    def order(self) -> int:
        return self.tableau.order

    @property
    def adaptive(self) -> bool:
        """Whether the method has an embedded error estimate."""
        return self.tableau.b_err is not None


def _method(name: str, tableau: Tableau, what: str) -> type[ExplicitRungeKutta]:
    embedded = (
        f"; error estimate of order {tableau.embedded_order}" if tableau.b_err else "; no error estimate: give dt0"
    )
    doc = (
        f"{what}\n\nOrder {tableau.order}{embedded}; dense output of order {tableau.dense_order}.\n\n{tableau.citation}"
    )
    body = {"tableau": tableau, "__doc__": doc, "__module__": __name__}
    return dataclass(frozen=True)(type(name, (ExplicitRungeKutta,), body))


Euler = _method("Euler", tableaus.EULER, "Euler's method.")
Midpoint = _method("Midpoint", tableaus.MIDPOINT, "The explicit midpoint rule.")
Heun = _method("Heun", tableaus.HEUN, "Heun's method, the explicit trapezoidal rule.")
Ralston = _method("Ralston", tableaus.RALSTON, "Ralston's second-order method of least error bound.")
RK4 = _method("RK4", tableaus.RK4, "The classical fourth-order method.")
BS3 = _method("BS3", tableaus.BS3, "Bogacki and Shampine's 3(2) pair: loose tolerances.")
DP5 = _method("DP5", tableaus.DP5, "Dormand and Prince's 5(4) pair, MATLAB's ode45 and SciPy's RK45.")
Tsit5 = _method("Tsit5", tableaus.TSIT5, "Tsitouras' 5(4) pair: the default.")
Vern6 = _method("Vern6", tableaus.VERN6, "Verner's most efficient 6(5) pair.")
Vern7 = _method("Vern7", tableaus.VERN7, "Verner's most efficient 7(6) pair: tight tolerances.")
Vern8 = _method("Vern8", tableaus.VERN8, "Verner's most efficient 8(7) pair.")
Vern9 = _method("Vern9", tableaus.VERN9, "Verner's most efficient 9(8) pair: very tight tolerances.")
DOP853 = _method("DOP853", tableaus.DOP853, "Hairer's 8(5,3) method, SciPy's DOP853.")
