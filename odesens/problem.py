"""`ODEProblem`: what a user wants solved.

Owns: the problem as data, `remake`. Must not know: how it is solved.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import PyTree

OPTIONS = (
    "saveat",
    "dense",
    "reltol",
    "abstol",
    "dt0",
    "dtmin",
    "dtmax",
    "adaptive",
    "controller",
    "max_steps",
    "sensealg",
    "throw",
)


@dataclass(frozen=True, eq=False)
class ODEProblem:
    """The initial value problem du/dt = f(t, u, p), u(t0) = u0.

    Parameters
    ----------
    f : callable
        f(t, u, p) returns du/dt with the structure, shapes and dtypes of u. t is a scalar of u's real dtype.
    u0 : pytree of arrays
        The initial state: real or complex arrays in any pytree. A flat list of plain numbers is taken as an array;
        integers become the default float.
    tspan : (t0, t1)
        The time span, in the units of t; t1 < t0 solves backwards in time; may be traced.
    p : pytree, optional
        Parameters: floating and complex arrays and Python floats are differentiable; integer, boolean and key arrays,
        None, strings, functions pass through.
    **options
        Any option of `solve`, as this problem's default.

    Raises
    ------
    TypeError, ValueError
        For an unknown option, or a `tspan` that is not a pair.
    """

    f: Callable
    u0: PyTree
    tspan: tuple
    p: PyTree = None
    options: dict = field(default_factory=dict)

    def __init__(self, f: Callable, u0: PyTree, tspan: Any, p: PyTree = None, **options):
        if not callable(f):
            raise TypeError(f"ODEProblem needs a function f(t, u, p) first, got {type(f).__name__}")
        check_options(options, "ODEProblem")
        object.__setattr__(self, "f", f)
        object.__setattr__(self, "u0", u0)
        object.__setattr__(self, "tspan", check_tspan(tspan))
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "options", options)

    def __repr__(self) -> str:
        name = getattr(self.f, "__name__", type(self.f).__name__)
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        return f"ODEProblem({name}, u0={self.u0!r}, tspan={self.tspan!r}, p={self.p!r}{options})"


def check_tspan(tspan) -> tuple:
    try:
        t0, t1 = tspan
    except (TypeError, ValueError):
        raise ValueError(f"tspan must be a pair (t0, t1), got {tspan!r}") from None
    return t0, t1


def check_options(options: dict, where: str) -> None:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(f"{where} got unknown options {unknown}; known are {', '.join(OPTIONS)}")


def remake(prob: ODEProblem, **changes) -> ODEProblem:
    """A copy of the problem with the given parts exchanged: f, u0, tspan, p, and any option of `solve`.

    >>> import odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0)
    >>> ode.remake(prob, p=3.0).p
    3.0
    """
    if not isinstance(prob, ODEProblem):
        raise TypeError(f"remake needs an ODEProblem first, got {type(prob).__name__}")
    parts = {k: changes.pop(k) for k in ("f", "u0", "tspan", "p") if k in changes}
    check_options(changes, "remake (besides f, u0, tspan, p)")
    kept = {k: getattr(prob, k) for k in ("f", "u0", "tspan", "p")}
    return ODEProblem(**{**kept, **parts}, **{**prob.options, **changes})
