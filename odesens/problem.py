"""`ODEProblem`: what a user wants solved.

Owns: the problem as data, `remake`. Must not know: how it is solved.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from .display import Described

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
    "initializealg",
    "callback",
    "max_events",
    "tstops",
    "discontinuities",
    "progress",
    "throw",
)


@dataclass(frozen=True)
class BrownBasic:
    """Solve the algebraic equations at t0 for what they determine; u0's differential part is kept. Differentiable.

    u0's algebraic part is the first guess of Newton's method. (Brown, Hindmarsh, Petzold, SIAM J. Sci. Comput. 19,
    1998.)

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> f = lambda t, u, p: jnp.stack([-u[0], u[1] - u[0] ** 2])  # the second equation is algebraic
    >>> dae = ode.ODEProblem(f, [2.0, 0.0], (0.0, 1.0), mass_matrix=[1.0, 0.0], initializealg=ode.BrownBasic())
    >>> print(ode.solve(dae, ode.Rodas5P(), saveat=[0.0]).u[0])  # u0[1] becomes u0[0]^2
    [2. 4.]
    """


@dataclass(frozen=True)
class CheckInit:
    """Refuse, with `ReturnCode.InitialisationFailure`, a u0 that does not obey the algebraic equations at t0.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> f = lambda t, u, p: jnp.stack([-u[0], u[1] - u[0] ** 2])
    >>> dae = ode.ODEProblem(f, [2.0, 0.0], (0.0, 1.0), mass_matrix=[1.0, 0.0], initializealg=ode.CheckInit())
    >>> ode.solve(dae, ode.Rodas5P(), saveat=[0.0], throw=False).retcode.name
    'InitialisationFailure'
    """


class Resolved(NamedTuple):
    """The values of a problem as they are solved for.

    labels : what a solution should know of names, a pytree, or None; of these `names` are those of u's entries
    ok : whether u0 is consistent; where not, the solve has failed
    """

    u0: PyTree
    p: PyTree
    tspan: tuple
    labels: Any = None
    ok: Any = True


@dataclass(frozen=True, eq=False, repr=False)
class ODEProblem(Described):
    """The initial value problem M du/dt = f(t, u, p), u(t0) = u0.

    With a `odesens.symbolic.System` in place of f, values are given by name: see `odesens.symbolic.SymbolicProblem`.

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
    mass_matrix : array (n, n) or (n,), optional
        M, constant, real; n is the number of entries of u0, flattened leaf by leaf. A vector is a diagonal. Singular
        ones make the problem a differential-algebraic one, which must be of index 1 and needs a stiff method.
    jac : callable, optional
        jac(t, u, p) returns df/du (n, n); the stiff methods factor it in place of one by forward mode. A wrong one
        spoils the solution and its derivatives: try it with `check_jacobian`.
    jac_sparsity : array or SciPy sparse array (n, n), or False, optional
        What is not zero may be nonzero in df/du; False: all. By default found from f where there are many states.
    **options
        Any option of `solve`, as this problem's default.

    Raises
    ------
    TypeError, ValueError
        For an unknown option, or a `tspan` that is not a pair.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> def f(t, u, p):
    ...     return -p["rate"] * u
    >>> prob = ode.ODEProblem(f, 1.0, (0.0, 1.0), {"rate": 2.0}, reltol=1e-8)
    >>> print(f"{ode.solve(prob, saveat=[1.0]).u[0]:.5f}")  # exp(-2)
    0.13534
    """

    f: Callable
    u0: PyTree
    tspan: tuple
    p: PyTree = None
    mass_matrix: Any = None
    jac: Callable | None = None
    jac_sparsity: Any = None
    options: dict = field(default_factory=dict)

    def __new__(cls, f: Any = None, *args, **kwargs):
        own = getattr(f, "_problem_type", None) if cls is ODEProblem else None  # a system makes its own kind
        return object.__new__(cls if own is None else own)

    def __init__(
        self,
        f: Callable,
        u0: PyTree,
        tspan: Any,
        p: PyTree = None,
        *,
        mass_matrix: Any = None,
        jac: Callable | None = None,
        jac_sparsity: Any = None,
        **options: Any,
    ):
        if not callable(f):
            raise TypeError(f"{type(self).__name__} needs a function f(t, u, p) first, got {type(f).__name__}")
        if jac is not None and not callable(jac):
            raise TypeError(f"jac must be a function jac(t, u, p), got {type(jac).__name__}")
        check_options(options, type(self).__name__)
        object.__setattr__(self, "f", f)
        object.__setattr__(self, "u0", u0)
        object.__setattr__(self, "tspan", check_tspan(tspan))
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "mass_matrix", mass_matrix)
        object.__setattr__(self, "jac", jac)
        object.__setattr__(self, "jac_sparsity", jac_sparsity)
        object.__setattr__(self, "options", options)

    @property
    def functions(self) -> dict:
        """The functions of (t, u, p) besides f that a solve may use, by name."""
        return {} if self.jac is None else {"jac": self.jac}

    @property
    def callbacks(self) -> list:
        """Events that are part of the problem, before those of `callback=`."""
        return []

    def resolved(self, u0: PyTree = None, p: PyTree = None, tspan: Any = None) -> Resolved:
        """The values to solve for, given others in their place.

        Parameters
        ----------
        u0, p, tspan : optional
            Of the problem where None.

        Returns
        -------
        Resolved
        """
        span = self.tspan if tspan is None else check_tspan(tspan)
        return Resolved(self.u0 if u0 is None else u0, self.p if p is None else p, span)

    named = False  # whether values are given by name, in mappings
    pattern = None  # of what kind the values given by name are

    @property
    def values(self) -> dict:
        """The numbers that the problem is made of, pytrees by the names that `with_values` takes."""
        return {"u0": self.u0, "p": self.p}

    def with_values(self, **values: Any) -> "ODEProblem":
        """A copy with other numbers of the same structure.

        Parameters
        ----------
        **values
            By the names that the property `values` has.

        Returns
        -------
        ODEProblem
        """
        return self.remade(**values)

    def remade(self, **changes: Any) -> "ODEProblem":
        """What `remake` returns.

        Parameters
        ----------
        **changes
            See `remake`.

        Returns
        -------
        ODEProblem
        """
        names = self._parts
        parts = {k: changes.pop(k) for k in names if k in changes}
        check_options(changes, f"remake (besides {', '.join(names)})")
        kept = {k: getattr(self, k) for k in names}
        return type(self)(**{**kept, **parts}, **{**self.options, **changes})

    @property
    def _parts(self) -> tuple[str, ...]:
        return ("f", "u0", "tspan", "p", "mass_matrix", "jac", "jac_sparsity")

    def _described(self) -> dict:
        parts = {k: getattr(self, k) for k in self._parts}
        return {**{k: x for k, x in parts.items() if x is not None}, **self.options}


@dataclass(frozen=True, eq=False, init=False, repr=False)
class SplitODEProblem(ODEProblem):
    """The initial value problem du/dt = f1(t, u, p) + f2(t, u, p), f1 stiff and f2 not.

    `KenCarp4` and `KenCarp5` solve for f1 implicitly and take f2 explicitly, which costs less where f2 couples all
    states or is expensive; all other methods solve the sum.

    Parameters
    ----------
    f1, f2 : callable
        Each as f of `ODEProblem`.
    u0, tspan, p
        As for `ODEProblem`.
    **options
        `jac` and `jac_sparsity`, of f1; any option of `solve`.

    Raises
    ------
    TypeError, ValueError
        Where f1 or f2 is no function; for a mass matrix, which goes with a single f; for unknown options.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.SplitODEProblem(lambda t, u, p: -p * u, lambda t, u, p: jnp.sin(t), 1.0, (0.0, 1.0), 50.0)
    >>> prob.f1(0.0, 2.0, 50.0), float(prob.f(0.0, 2.0, 50.0))
    (-100.0, -100.0)
    """

    f1: Any = None
    f2: Any = None

    def __init__(self, f1: Callable, f2: Callable, u0: PyTree, tspan: Any, p: PyTree = None, **options: Any):
        for f in (f1, f2):
            if not callable(f):
                raise TypeError(f"SplitODEProblem needs two functions f(t, u, p) first, got {type(f).__name__}")
        if options.get("mass_matrix") is not None:
            raise ValueError("SplitODEProblem takes no mass_matrix: write the sum as one ODEProblem")
        object.__setattr__(self, "f1", f1)
        object.__setattr__(self, "f2", f2)
        super().__init__(_Sum(f1, f2), u0, tspan, p, **options)

    @property
    def _parts(self) -> tuple[str, ...]:
        return ("f1", "f2", *super()._parts[1:])

    @property
    def functions(self) -> dict:
        return {**super().functions, "implicit": self.f1, "explicit": self.f2}


@dataclass(frozen=True)
class _Sum:
    """f1 + f2 as one function."""

    f1: Callable
    f2: Callable

    def __call__(self, t, u, p):
        return jax.tree.map(operator.add, self.f1(t, u, p), self.f2(t, u, p))


def check_tspan(tspan) -> tuple:
    try:
        t0, t1 = tspan
        if isinstance(tspan, (str, dict, set, frozenset)):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f"tspan must be a pair (t0, t1), got {tspan!r}") from None
    return t0, t1


def check_options(options: dict, where: str) -> None:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        hint = "; those of ensembles need an EnsembleProblem" if {"trajectories", "batch_size"} & set(unknown) else ""
        raise TypeError(f"{where} got unknown options {unknown}; known are {', '.join(OPTIONS)}{hint}")


def remake(prob: ODEProblem, **changes: Any) -> ODEProblem:
    """A copy of the problem with the given parts exchanged.

    Parameters
    ----------
    prob : ODEProblem, or another problem
    **changes
        f (f1, f2), u0, tspan, p, mass_matrix, jac, jac_sparsity, options of `solve`. Values of a symbolic problem are
        exchanged by name, in any order, the others kept: u0={x: 3.0}, p={k: 2.0}, guesses, functions={F: f}; None takes
        a value back, so that the equations determine it.

    Returns
    -------
    A problem of the same kind.

    Raises
    ------
    TypeError
        Where `prob` is no problem, or for a name that is neither a part of it nor an option of `solve`.

    Examples
    --------
    >>> import odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0)
    >>> ode.remake(prob, p=3.0).p
    3.0
    """
    if not isinstance(prob, ODEProblem):
        if hasattr(prob, "_remake"):  # a problem that brings its own
            return prob._remake(**changes)
        raise TypeError(f"remake needs an ODEProblem first, got {type(prob).__name__}")
    return prob.remade(**changes)
