"""The methods a user names: a tableau each.

Owns: `Tsit5()`, `Vern7()`, .. as plain data. Must not know: how a step is taken.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from .checks import is_count, is_positive
from .methods import tableaus
from .methods.linear import Linear
from .methods.tableaus import AutoSwitch, BdfTableau, EsdirkTableau, RosenbrockTableau, Tableau


@dataclass(frozen=True)
class LU:
    """Linear systems by factorisation: LAPACK's, elementwise for few states, within the band where that is narrow.

    The default of every stiff method: W = M / gamma - dt df/du is factored once a step.

    Examples
    --------
    >>> import odesens as ode
    >>> ode.Rodas5P(linsolve=ode.LU())
    Rodas5P(linsolve=LU())
    """


@dataclass(frozen=True)
class GMRES:
    """Linear systems by restarted GMRES on products with the Jacobian, which is never formed: for 10^4 states and more.

    Parameters
    ----------
    rtol : float
        The residual, relative to the right-hand side, at which an iteration stops; 0 < rtol < 1.
    restart : int
        The dimension of the Krylov space, at least 1.

    Raises
    ------
    ValueError
        For values outside these ranges.

    Examples
    --------
    >>> import odesens as ode
    >>> ode.KenCarp4(linsolve=ode.GMRES(rtol=1e-8))
    KenCarp4(linsolve=GMRES(rtol=1e-08, restart=30))
    """

    rtol: float = 1e-10
    restart: int = 30

    def __post_init__(self):
        if not is_positive(self.rtol) or self.rtol >= 1 or not is_count(self.restart):
            given = f"rtol={self.rtol!r}, restart={self.restart!r}"
            raise ValueError(f"GMRES needs 0 < rtol < 1 and an integer restart >= 1, got {given}")


@dataclass(frozen=True)
class Algorithm:
    """Base of the methods; `tableau` holds coefficients and citation."""

    tableau: ClassVar[Any]

    @property
    def order(self) -> int:
        """The order of convergence."""
        return self.tableau.order

    @property
    def adaptive(self) -> bool:
        """Whether the method has an embedded error estimate."""
        return self.tableau.b_err is not None

    @property
    def implicit(self) -> bool:
        """Whether the method solves linear systems with the Jacobian."""
        return not isinstance(self.tableau, Tableau)

    def linear(self, default: Linear) -> Linear:
        """How it solves linear systems, where `default` is what suits the problem."""
        return default


@dataclass(frozen=True)
class ExplicitRungeKutta(Algorithm):
    """Base of the explicit Runge-Kutta methods."""

    tableau: ClassVar[Tableau]
    _step: ClassVar[str] = "    k_i = f(t + c_i dt, u + dt sum_(j<i) a_ij k_j),   u1 = u + dt sum_i b_i k_i"
    _parameters: ClassVar[str] = ""


@dataclass(frozen=True, repr=False)
class StiffAlgorithm(Algorithm):
    """Base of the methods for stiff problems.

    Parameters
    ----------
    linsolve : `LU()` or `GMRES()`; by default LU, within the band where the Jacobian's pattern has a narrow one.
    """

    tableau: ClassVar[Any]
    _parameters: ClassVar[str] = (
        "Parameters\n----------\nlinsolve : LU() or GMRES(), optional\n    How linear systems are solved; by default "
        "LU, within the band where the\n    Jacobian's pattern has a narrow one.\n\n"
        "Raises\n------\nTypeError\n    Where linsolve is anything else.\n\n"
    )
    linsolve: LU | GMRES | None = None

    def __post_init__(self):
        if not isinstance(self.linsolve, (LU, GMRES, type(None))):
            raise TypeError(f"{type(self).__name__}: linsolve must be LU() or GMRES(), got {self.linsolve!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.linsolve is None else f'linsolve={self.linsolve!r}'})"

    def linear(self, default: Linear) -> Linear:
        if isinstance(self.linsolve, GMRES):
            own = self.linsolve
            return dataclasses.replace(default, kind="krylov", rtol=own.rtol, restart=own.restart)
        return default


class Rosenbrock(StiffAlgorithm):
    """Base of the Rosenbrock methods: one Jacobian and one factorisation a step, no iteration."""

    tableau: ClassVar[RosenbrockTableau]
    _step: ClassVar[str] = (
        "    (M/gamma - dt J) k_i = f(t + c_i dt, u + dt sum_j a_ij k_j) + M sum_j coupling_ij k_j + d_i dt f_t,\n"
        "    u1 = u + dt sum_i b_i k_i,    J = f_u(t, u)"
    )


class Esdirk(StiffAlgorithm):
    """Base of the ESDIRK methods: one Jacobian and one factorisation a step, simplified Newton iterations a stage."""

    tableau: ClassVar[EsdirkTableau]
    _step: ClassVar[str] = (
        "    M k_i = f(t + c_i dt, u + dt sum_(j<i) a_ij k_j + dt gamma k_i),    u1 = u + dt sum_i b_i k_i"
    )


@dataclass(frozen=True, repr=False)
class AutoAlgorithm(StiffAlgorithm):
    """An explicit method that gives way to a stiff one where the problem turns stiff, and takes over again after."""

    nonstiff: ExplicitRungeKutta | None = None
    stiff: StiffAlgorithm | None = None

    def __post_init__(self):
        if not isinstance(self.stiff, (Rosenbrock, Esdirk)):
            raise TypeError(f"switching needs a stiff algorithm such as Rodas5P(), got {self.stiff!r}")

    @property
    def tableau(self) -> AutoSwitch:  # pyright: ignore[reportIncompatibleVariableOverride]
        assert self.nonstiff is not None and self.stiff is not None
        return AutoSwitch(self.nonstiff.tableau, self.stiff.tableau)

    def linear(self, default: Linear) -> Linear:
        assert self.stiff is not None
        return self.stiff.linear(default)

    def __repr__(self) -> str:
        return f"Auto{type(self.nonstiff).__name__}({self.stiff!r})"


def AutoTsit5(stiff: StiffAlgorithm) -> AutoAlgorithm:
    """`Tsit5()` where the problem is not stiff, `stiff` where it is; each step is of one of them.

    The explicit method gives way when |dt| |J|, estimated from its last two stages and one product with J, has exceeded
    0.75 of the length of its region of stability in 11 more accepted steps than not; the stiff one when it has been
    below in 4 more steps than not, |J| then being the largest row sum of the Jacobian.

    Parameters
    ----------
    stiff : Rosenbrock or ESDIRK method
        Such as `Rodas5P()`; it may have a `linsolve` of its own.

    Returns
    -------
    AutoAlgorithm

    Raises
    ------
    TypeError
        Where `stiff` is a method of another kind.

    Examples
    --------
    >>> import odesens as ode
    >>> ode.AutoTsit5(ode.Rodas5P())
    AutoTsit5(Rodas5P())
    """
    return AutoAlgorithm(nonstiff=Tsit5(), stiff=stiff)


def AutoDP5(stiff: StiffAlgorithm) -> AutoAlgorithm:
    """`DP5()` where the problem is not stiff, `stiff` where it is; see `AutoTsit5`.

    Parameters
    ----------
    stiff : Rosenbrock or ESDIRK method

    Returns
    -------
    AutoAlgorithm

    Raises
    ------
    TypeError
        Where `stiff` is a method of another kind.

    Examples
    --------
    >>> import odesens as ode
    >>> ode.AutoDP5(ode.TRBDF2()).stiff
    TRBDF2()
    """
    return AutoAlgorithm(nonstiff=DP5(), stiff=stiff)


def _method(name: str, tableau: Tableau, what: str) -> type[ExplicitRungeKutta]:
    return _class(ExplicitRungeKutta, name, tableau, what)


def _class(base: type, name: str, tableau, what: str) -> Any:
    embedded = (
        f"; error estimate of order {tableau.embedded_order}" if tableau.b_err else "; no error estimate: give dt0"
    )
    doc = (
        f"{what}\n\n{base._step}\n\nOrder {tableau.order}{embedded}; dense output of order {tableau.dense_order}.\n\n"
        f"{base._parameters}Source: {tableau.citation}\n\n"
        f"Examples\n--------\n>>> import odesens as ode\n>>> ode.{name}().order, ode.{name}().adaptive\n"
        f"({tableau.order}, {tableau.b_err is not None})\n"
    )
    body = {"tableau": tableau, "__doc__": doc, "__module__": __name__}
    return dataclass(frozen=True, repr=issubclass(base, ExplicitRungeKutta))(type(name, (base,), body))


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

Rosenbrock23 = _class(Rosenbrock, "Rosenbrock23", tableaus.ROSENBROCK23, "Shampine and Reichelt's 2(3) method, ode23s.")
Rodas4 = _class(Rosenbrock, "Rodas4", tableaus.RODAS4, "Hairer and Wanner's RODAS, also for index-1 DAEs.")
Rodas5P = _class(
    Rosenbrock, "Rodas5P", tableaus.RODAS5P, "Steinebach's method of order 5: the default for stiff problems and DAEs."
)
TRBDF2 = _class(Esdirk, "TRBDF2", tableaus.TRBDF2, "The trapezoidal rule, then BDF2: loose tolerances.")
Kvaerno3 = _class(Esdirk, "Kvaerno3", tableaus.KVAERNO3, "Kvaerno's stiffly accurate 3(2) method.")
Kvaerno5 = _class(Esdirk, "Kvaerno5", tableaus.KVAERNO5, "Kvaerno's stiffly accurate 5(4) method.")
KenCarp4 = _class(Esdirk, "KenCarp4", tableaus.KENCARP4, "Kennedy and Carpenter's 4(3) additive method.")
KenCarp5 = _class(Esdirk, "KenCarp5", tableaus.KENCARP5, "Kennedy and Carpenter's 5(4) additive method.")


@dataclass(frozen=True, repr=False)
class FBDF(StiffAlgorithm):
    """Backward differentiation formulas of variable order, 1 to 5, and variable step: for large stiff systems.

        M (alpha_q (u1 - P(t + h)) + h P'(t + h)) = h f(t + h, u1),    alpha_q = 1 + 1/2 + .. + 1/q

    with P the polynomial of degree q through the last q + 1 states (fixed leading coefficient). One nonlinear equation
    a step, by simplified Newton iterations: their matrix M - h/alpha_q J is factored once in many steps, J found once
    in more still: `sol.stats` has `njacs` and `nfactor`. With GMRES nothing is kept. Order and step size are chosen by
    the method's own estimates at orders q - 1, q and q + 1, whatever `controller` says; fixed steps begin with order 1.
    Also for differential-algebraic equations of index 1.

    Parameters
    ----------
    linsolve : LU() or GMRES(), optional
        How linear systems are solved; by default LU, within the band where the Jacobian's pattern has a narrow one.
    max_order : int
        The highest order, 1 to 5.

    Raises
    ------
    TypeError, ValueError
        Where linsolve is anything else, or max_order is not in that range.

    Notes
    -----
    Derivatives are those of the recorded steps, with their sizes and orders frozen, each step's equation linearised at
    its recorded solution. The backward equations of continuous adjoints, solved in pieces between recorded steps, take
    `Rodas5P()`, a one-step method.

    Sources: Jackson, Sacks-Davis, ACM TOMS 6 (1980); Brenan, Campbell, Petzold, Numerical Solution of Initial-Value
    Problems in Differential-Algebraic Equations (1996), section 5.2; Hindmarsh et al., SUNDIALS, ACM TOMS 31 (2005).

    Examples
    --------
    >>> import odesens as ode
    >>> ode.FBDF(max_order=3)
    FBDF(max_order=3)
    """

    max_order: int = 5

    def __post_init__(self):
        super().__post_init__()
        _bdf(self.max_order)

    @property
    def tableau(self) -> BdfTableau:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Coefficients and citations."""
        return _bdf(self.max_order)

    def __repr__(self) -> str:
        given = [] if self.linsolve is None else [f"linsolve={self.linsolve!r}"]
        return f"FBDF({', '.join([*given, *([f'max_order={self.max_order}'] if self.max_order != 5 else [])])})"


def _bdf(order: int) -> BdfTableau:
    return BdfTableau(order, tableaus.RODAS5P)
