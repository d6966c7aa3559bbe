"""The six sensitivity algorithms, as data: which way derivatives of a solve are computed.

Owns: their names and options, one paragraph each. Must not know: how they are done (`odesens.sensitivity`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from .checks import check_tolerances, is_count


@dataclass(frozen=True)
class SensitivityAlgorithm:
    """Base of the sensitivity algorithms.

    `residual` says what a solve keeps for its derivatives: "mesh" (the accepted steps), "saves" (the states at the
    saved times), or "nothing".
    """

    residual: ClassVar[str] = "mesh"


@dataclass(frozen=True)
class DiscreteAdjoint(SensitivityAlgorithm):
    """The exact derivative of the discrete solution, the default but for discretised fields (see `choose`).

    Each accepted step is a map u_(i+1) = S(t_i, u_i, p, dt_i); with the step sizes frozen, tangents are pushed and
    cotangents pulled through the recorded maps. No second adaptive solve and no tolerance of its own; forward and
    reverse mode are transposes of each other to rounding. Cost: one vjp of a step for each step. Error: that of the
    solve for smooth problems; the error control does not see the derivative, so where the steps are held by stability
    and not by accuracy (diffusion, stiff relaxation), derivatives in single components can be off by more: tighten the
    tolerances there, or take GaussAdjoint. (Hairer, Norsett, Wanner I, section II.6, "internal differentiation"; Sandu,
    On the properties of Runge-Kutta discrete adjoints, ICCS 2006.)

    Examples
    --------
    >>> import jax, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0))
    >>> loss = lambda p: ode.solve(prob, p=p, saveat=[1.0], sensealg=ode.DiscreteAdjoint()).u[0]
    >>> print(f"{jax.grad(loss)(2.0):.4f}")  # -exp(-2)
    -0.1353
    """


@dataclass(frozen=True)
class ContinuousAlgorithm(SensitivityAlgorithm):
    """Options of the algorithms that solve a second differential equation.

    Parameters
    ----------
    alg : algorithm, optional
        The method of the second equation; the solve's own by default.
    reltol, abstol : float, optional
        Its tolerances; the solve's own by default.
    max_steps : int, optional
        Its bound on attempts; the solve's own by default.

    Raises
    ------
    ValueError
        For tolerances that are not positive, or max_steps below 1.
    """

    alg: Any = None
    reltol: float | None = None
    abstol: float | None = None
    max_steps: int | None = None

    def __post_init__(self):
        check_tolerances(self)
        if self.max_steps is not None and not is_count(self.max_steps):
            raise ValueError(f"{type(self).__name__} needs max_steps >= 1, an integer, got {self.max_steps!r}")


@dataclass(frozen=True)
class InterpolatingAdjoint(ContinuousAlgorithm):
    """The continuous adjoint, lam and the parameter integral in one backward equation.

        lam' = -f_u^T lam,   p_bar' = -f_p^T lam,   lam jumps by w_j at each saved time t_j

    with u(t) from the dense output of the recorded steps, within which the backward steps stay. Error control covers
    lam and p_bar together: n + n_p states backward. (Cao, Li, Petzold, Serban, SIAM J. Sci. Comput. 24 (2003).)

    Parameters
    ----------
    alg : algorithm, optional
        The method of the second equation; the solve's own by default.
    reltol, abstol : float, optional
        Its tolerances; the solve's own by default.
    max_steps : int, optional
        Its bound on attempts; the solve's own by default.

    Raises
    ------
    ValueError
        For tolerances that are not positive, or max_steps below 1.

    Examples
    --------
    >>> import jax, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0))
    >>> loss = lambda p: ode.solve(prob, p=p, saveat=[1.0], sensealg=ode.InterpolatingAdjoint()).u[0]
    >>> print(f"{jax.grad(loss)(2.0):.4f}")  # -exp(-2)
    -0.1353
    """


@dataclass(frozen=True)
class QuadratureAdjoint(ContinuousAlgorithm):
    """The continuous adjoint; int f_p^T lam dt by Gauss-Kronrod on each accepted backward step of lam.

        p_bar = int f_p^T lam dt over each step, the 7-15 point pair

    The quadrature halves a step's panels until the Gauss-Kronrod estimate meets the tolerances. n states backward.
    Good for many parameters and a tight tolerance. (SciMLSensitivity's `QuadratureAdjoint`; Piessens et
    al., QUADPACK, 1983.)

    Parameters
    ----------
    alg : algorithm, optional
        The method of the second equation; the solve's own by default.
    reltol, abstol : float, optional
        Its tolerances; the solve's own by default.
    max_steps : int, optional
        Its bound on attempts; the solve's own by default.

    Raises
    ------
    ValueError
        For tolerances that are not positive, or max_steps below 1.

    Examples
    --------
    >>> import jax, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0))
    >>> loss = lambda p: ode.solve(prob, p=p, saveat=[1.0], sensealg=ode.QuadratureAdjoint()).u[0]
    >>> print(f"{jax.grad(loss)(2.0):.4f}")  # -exp(-2)
    -0.1353
    """


@dataclass(frozen=True)
class GaussAdjoint(ContinuousAlgorithm):
    """The continuous adjoint, with the parameter integral by Gauss nodes inside each backward step as it is taken.

        p_bar += -dt sum_g weight_g f_p(t_g, u(t_g))^T lam(t_g)

    n states backward, nothing recorded backward, parameters cost one vjp a step whatever their number. Good for large
    systems and many parameters. (Norcliffe and Deisenroth, Faster Training of Neural ODEs Using Gauss-Legendre
    Quadrature, TMLR 2023.)

    Parameters
    ----------
    alg : algorithm, optional
        The method of the second equation; the solve's own by default.
    reltol, abstol : float, optional
        Its tolerances; the solve's own by default.
    max_steps : int, optional
        Its bound on attempts; the solve's own by default.

    Raises
    ------
    ValueError
        For tolerances that are not positive, or max_steps below 1.

    Examples
    --------
    >>> import jax, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0))
    >>> loss = lambda p: ode.solve(prob, p=p, saveat=[1.0], sensealg=ode.GaussAdjoint()).u[0]
    >>> print(f"{jax.grad(loss)(2.0):.4f}")  # -exp(-2)
    -0.1353
    """


@dataclass(frozen=True)
class BacksolveAdjoint(ContinuousAlgorithm):
    """The continuous adjoint that integrates u backwards too, so that no step is recorded.

        u' = f,   lam' = -f_u^T lam,   p_bar' = -f_p^T lam,   backwards from the end

    Parameters
    ----------
    alg : algorithm, optional
        The method of the second equation; the solve's own by default.
    reltol, abstol : float, optional
        Its tolerances; the solve's own by default.
    max_steps : int, optional
        Its bound on attempts; the solve's own by default.
    restart : bool
        Start u anew from the saved state at each saved time (default). Without it, u comes from the final state alone:
        O(1) memory, and wrong wherever the backward equation is unstable (stiff or strongly damped problems).

    Raises
    ------
    TypeError, ValueError
        For tolerances that are not positive, max_steps below 1, a restart that is no truth value.

    (Chen, Rubanova, Bettencourt, Duvenaud, Neural Ordinary Differential Equations, NeurIPS 2018, algorithm 1.)

    Examples
    --------
    >>> import jax, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0))
    >>> loss = lambda p: ode.solve(prob, p=p, saveat=[1.0], sensealg=ode.BacksolveAdjoint()).u[0]
    >>> print(f"{jax.grad(loss)(2.0):.4f}")  # -exp(-2)
    -0.1353
    """

    restart: bool = True
    residual: ClassVar[str] = "saves"

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.restart, bool):
            raise TypeError(f"BacksolveAdjoint: restart must be True or False, got {self.restart!r}")


@dataclass(frozen=True)
class ForwardSensitivity(ContinuousAlgorithm):
    """The tangent equations s' = f_u s + f_p x, with error control on the tangents; gradients from all directions.

    Cost: n (1 + directions) states, so for gradients only with few states and parameters; for one directional
    derivative it is the natural choice. (Hairer, Norsett, Wanner I, section I.14.)

    Parameters
    ----------
    alg : algorithm, optional
        The method of the second equation; the solve's own by default.
    reltol, abstol : float, optional
        Its tolerances; the solve's own by default.
    max_steps : int, optional
        Its bound on attempts; the solve's own by default.

    Raises
    ------
    ValueError
        For tolerances that are not positive, or max_steps below 1.

    Examples
    --------
    >>> import jax, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0))
    >>> loss = lambda p: ode.solve(prob, p=p, saveat=[1.0], sensealg=ode.ForwardSensitivity()).u[0]
    >>> print(f"{jax.grad(loss)(2.0):.4f}")  # -exp(-2)
    -0.1353
    """

    residual: ClassVar[str] = "nothing"


MANY_STATES = 64


def choose(settings, n: int, n_p: int) -> SensitivityAlgorithm:
    """The algorithm where none is named, by the number n of states and n_p of differentiable parameter entries.

    Many states with few parameters are discretised fields, where stability and not accuracy holds the steps of an
    explicit method: the discrete gradient is then inexact in single components, and `GaussAdjoint`, whose error control
    sees lam, costs about the same. Otherwise `DiscreteAdjoint` is the fastest (benchmarks/choice.py), and for implicit
    methods the more exact one too (benchmarks/stiff_diffusion.py).
    """
    discretised = settings.adaptive and not settings.method.implicit and n > MANY_STATES and n_p <= 4 * n
    return GaussAdjoint() if discretised else DiscreteAdjoint()
