"""Return codes: how a solve ended, why, and what to do about it.

Owns: `ReturnCode`, `SolveError`. Must not know: solvers, arrays, JAX.
"""

import enum


class ReturnCode(enum.IntEnum):
    """How a solve ended. Only `Success` and `Terminated` leave values that may be used.

    Attributes
    ----------
    ok : bool
        Whether it is one of these two.
    cause, remedy : str
        Why a solve ends so, and what to do about it.

    Examples
    --------
    >>> import odesens as ode
    >>> code = ode.ReturnCode.MaxSteps
    >>> code.ok, code.cause
    (False, 'max_steps attempts were made before the end of the time span')
    """

    Success = 0
    Terminated = 1
    MaxSteps = 2
    DtTooSmall = 3
    NonFinite = 4
    NewtonFailure = 5
    SingularMatrix = 6
    EventLimit = 7
    InitialisationFailure = 8
    AdjointFailure = 9
    NotConverged = 10

    @property
    def ok(self) -> bool:
        """Whether the values of the solve may be used."""
        return self in (ReturnCode.Success, ReturnCode.Terminated)

    @property
    def cause(self) -> str:
        """Why a solve ends so."""
        return _MEANING[self][0]

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return _MEANING[self][1]


_MEANING = {
    ReturnCode.Success: ("the end of the time span was reached", "nothing to do"),
    ReturnCode.Terminated: ("an event ended the solve as it was told to", "nothing to do"),
    ReturnCode.MaxSteps: (
        "max_steps attempts were made before the end of the time span",
        "raise max_steps, loosen reltol and abstol, shorten tspan, or, where the steps stay tiny, use a method for "
        "stiff problems",
    ),
    ReturnCode.DtTooSmall: (
        "the step size fell below dtmin or below what the time's dtype resolves",
        "look for a discontinuity or a singularity of the field near the time reached, or loosen the tolerances",
    ),
    ReturnCode.NonFinite: (
        "the field gave NaN or infinity however small the step",
        "evaluate f at the time and state reached; NaN at u0 mostly means a parameter that was never set",
    ),
    ReturnCode.NewtonFailure: (
        "Newton's iteration for the stage equations did not converge however small the step",
        "check a Jacobian that was given with odesens.check_jacobian, look for a discontinuity of the field near the "
        "time reached, or use a Rosenbrock method such as Rodas5P, which needs no iteration; with GMRES, which gave up "
        "then, raise its restart or take LU()",
    ),
    ReturnCode.SingularMatrix: (
        "the iteration matrix M / gamma - dt df/du was singular however small the step",
        "where the mass matrix is singular, the algebraic equations must determine the algebraic states (index 1): "
        "differentiate those that do not; else check a Jacobian that was given with odesens.check_jacobian",
    ),
    ReturnCode.EventLimit: (
        "more than max_events events occurred, or one recurred within the rounding of its time (Zeno behaviour)",
        "raise max_events; end a series of ever shorter intervals by an event that terminates, or changes the field, "
        "where they are short",
    ),
    ReturnCode.InitialisationFailure: (
        "u0 does not obey the algebraic equations, no solution of them was found from it, or they do not determine the "
        "algebraic states (index above 1)",
        "give a better guess of the algebraic part of u0, or initializealg=BrownBasic() in place of CheckInit(); "
        "differentiate an equation that has no algebraic state in it",
    ),
    ReturnCode.AdjointFailure: (
        "the backward solve of the sensitivity algorithm failed",
        "give the sensitivity algorithm its own alg, reltol, abstol or max_steps, or use DiscreteAdjoint()",
    ),
    ReturnCode.NotConverged: (
        "no steady state was reached",
        "give a better u0, loosen the tolerances, or raise max_steps of SSRootfind, of DynamicSS the end of its tspan; "
        "there may be no steady state",
    ),
}


class SolveError(RuntimeError):
    """An eager solve that did not reach the end of its time span.

    Parameters
    ----------
    message : str
    retcode, t, stiff
        See below.

    Attributes
    ----------
    retcode : ReturnCode
    t : float
        The time reached, in the units of tspan.
    stiff : bool
        Whether stiffness is the likely cause.

    Examples
    --------
    >>> import odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: p * u**2, 1.0, (0.0, 2.0), 1.0)  # infinite at t = 1
    >>> try:
    ...     ode.solve(prob, ode.Tsit5(), saveat=[2.0])
    ... except ode.SolveError as error:
    ...     print(error.retcode.name, f"at t = {error.t:.3f}")
    DtTooSmall at t = 1.000
    """

    def __init__(self, message: str, retcode: ReturnCode, t: float, *, stiff: bool = False):
        super().__init__(message)
        self.retcode = retcode
        self.t = t
        self.stiff = stiff
