"""Steady states: f(t, u, p) = 0, by root finding or time stepping, differentiated by the implicit function theorem.

Owns: `SteadyStateProblem`, its algorithms and solution, the test for a singular Jacobian. Must not know: how a solve in
time or a step works.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, PyTree

from .algorithms import Algorithm, Rodas5P
from .callbacks import DiscreteCallback
from .checks import check_tolerances, is_count
from .components import Shown, components
from .display import Described
from .extension import varying_axes
from .field import Field
from .inputs import as_params, as_state, as_time, check_algorithm, make_mass
from .methods import initial
from .methods.linear import DENSE, Mass, of_map, parts_of, solve_exactly
from .problem import ODEProblem, Resolved, check_tspan
from .saveat import concrete
from .solution import return_code
from .solve import solve
from .status import ReturnCode, SolveError
from .trace import trace_field

LINEAR_RATE = 0.25  # a last Newton step above this part of the one before it: the Jacobian is singular at the root


@dataclass(frozen=True)
class SSRootfind:
    """Newton's method from u0, steps halved while the residual grows, with the dense Jacobian by forward mode.

        u <- u - h (f_u)^(-1) f,    h = 1, 1/2, 1/4, ..

    Which root is found depends on u0, and it may be one that is not stable.

    Parameters
    ----------
    reltol, abstol : float, optional
        It ends where the step is at most abstol + reltol |u| in every entry; the error is then of the square of that.
        Default: the square root of the dtype's machine epsilon, and its power 3/4.
    max_steps : int
        The largest number of steps.

    Raises
    ------
    ValueError
        For tolerances that are not positive, or max_steps below 1.

    Examples
    --------
    >>> import odesens as ode
    >>> prob = ode.SteadyStateProblem(lambda t, u, p: p - u**3, 1.0, 8.0)
    >>> print(f"{ode.solve(prob, ode.SSRootfind()).u:.10f}")
    2.0000000000
    """

    reltol: float | None = None
    abstol: float | None = None
    max_steps: int = 50

    def __post_init__(self):
        check_tolerances(self)
        if not is_count(self.max_steps):
            raise ValueError(f"SSRootfind needs max_steps >= 1, an integer, got {self.max_steps!r}")


@dataclass(frozen=True)
class DynamicSS:
    """Integration of M u' = f(t, u, p) from u0, until |f| <= abstol + reltol |u| in every entry after a step.

    It finds the stable state to which u0 belongs, where conserved quantities leave many, too; such a one has no
    derivative here, as f(u, p) = 0 alone does not determine it.

    Parameters
    ----------
    alg : algorithm, optional
        The method in time, by default `Rodas5P()`: explicit methods cannot take the long steps of a state at rest.
    reltol, abstol : float, optional
        Default as for `SSRootfind`. An error of |f| / lambda is left along a mode that decays at the rate lambda: for
        more digits give the result to `SSRootfind` as u0.
    tspan : (t0, t1)
        The times between which a steady state must be reached.

    Raises
    ------
    TypeError, ValueError
        Where alg is no algorithm or has no error estimate, tspan no pair of times, a tolerance not positive.

    Examples
    --------
    >>> import odesens as ode
    >>> prob = ode.SteadyStateProblem(lambda t, u, p: p - u**3, 1.0, 8.0)
    >>> print(f"{ode.solve(prob, ode.DynamicSS()).u:.4f}")
    2.0000
    """

    alg: Algorithm | None = None
    reltol: float | None = None
    abstol: float | None = None
    tspan: tuple = (0.0, 1e8)

    def __post_init__(self):
        if self.alg is not None and not check_algorithm(self.alg, "DynamicSS: alg", None).adaptive:
            raise ValueError(f"DynamicSS: {self.alg!r} has no error estimate: take Rodas5P()")
        check_tolerances(self)
        span = check_tspan(self.tspan)
        times = tuple(float(as_time(t, np.dtype(float), name)) for t, name in zip(span, ("t0", "t1"), strict=True))
        object.__setattr__(self, "tspan", times)


@dataclass(frozen=True, eq=False, repr=False)
class SteadyStateProblem(Described):
    """The equation f(t, u, p) = 0 for a state u at rest.

    Parameters
    ----------
    f : callable, or ODEProblem
        f(t, u, p), as for `ODEProblem`, is taken at t = inf; `DynamicSS` integrates it over its own `tspan`. Of an
        ODEProblem its f, u0, p and mass matrix are taken.
    u0 : pytree of arrays
        The first guess, real or complex; the result does not depend on it differentiably: its gradient is zero.
    p : pytree, optional
    mass_matrix : array, optional
        Of the equation in time, for `DynamicSS`.
    source : ODEProblem, optional
        The symbolic problem that f came from, whose names solutions then know; set where f is such a problem.

    Raises
    ------
    TypeError
        Where f is no function, or u0 is missing.

    Notes
    -----
    `solve(prob, alg, u0=, p=, throw=)` takes `SSRootfind()`, the default, or `DynamicSS()`, and returns a
    `SteadyStateSolution`. Derivatives in p, and in what f captures, follow from

        f_u du + f_p dp = 0,

    solved exactly, at every order, in both modes, whatever the algorithm. Where f_u is singular they do not exist:
    `SSRootfind` ends with `ReturnCode.SingularMatrix`; `DynamicSS` gives the state, an eager derivative of it raises
    `SolveError` and one under a transform is NaN.

    Examples
    --------
    >>> import jax, odesens as ode
    >>> prob = ode.SteadyStateProblem(lambda t, u, p: p - u**3, 1.0)
    >>> print(f"{jax.grad(lambda p: ode.solve(prob, p=p).u)(8.0):.6f}")  # 1 / (3 u^2), u = 2
    0.083333
    """

    f: Callable
    u0: PyTree
    p: PyTree
    mass_matrix: Any
    source: ODEProblem | None = None

    def __init__(self, f: Any, u0: PyTree = None, p: PyTree = None, *, mass_matrix: Any = None, source: Any = None):
        if isinstance(f, ODEProblem):
            source = f.remade(**{k: x for k, x in (("u0", u0), ("p", p)) if x is not None}) if f.named else None
            made = f.resolved(u0, p)
            u0, p = made.u0, made.p
            f, mass_matrix = f.f, (f.mass_matrix if mass_matrix is None else mass_matrix)
        if not callable(f):
            raise TypeError(f"SteadyStateProblem needs a function f(t, u, p) or an ODEProblem first, got {f!r}")
        if u0 is None:
            raise TypeError("SteadyStateProblem needs a first guess u0: SteadyStateProblem(f, u0, p)")
        parts = (("f", f), ("u0", u0), ("p", p), ("mass_matrix", mass_matrix), ("source", source))
        for name, value in parts:
            object.__setattr__(self, name, value)

    def _solve(self, alg, *, u0: PyTree = None, p: PyTree = None, tspan: Any = None, **options):
        """What `solve` does with this problem."""
        if tspan is not None or set(options) - {"throw"}:
            unknown = sorted({*options, *([] if tspan is None else ["tspan"])} - {"throw"})
            raise TypeError(f"solve of a SteadyStateProblem takes u0, p and throw, got {unknown}: give them to its alg")
        alg = _checked(alg)
        made = Resolved(self.u0 if u0 is None else u0, self.p if p is None else p, ())
        if self.source is not None:  # values by name
            made = self.source.resolved(u0, p)
        u, params = as_state(made.u0), as_params(made.p)
        u_leaves, tree = jax.tree.flatten(u)
        traced = [x for x in u_leaves if isinstance(x, Tracer)]
        field, p_leaves, aux = trace_field(self.f, u, params, varying_axes(*traced))
        if not field.has_forward_mode:
            raise TypeError("f holds a jax.custom_vjp function, which has no forward mode: steady states need df/du")
        mass = make_mass(self.mass_matrix, field.state)
        found = _steady(alg, mass, field, u_leaves, p_leaves, aux)
        if options.get("throw", True):
            _raise_failure(alg, [x for x in p_leaves if isinstance(x, Tracer)], found)
        state, resid = (jax.tree.unflatten(tree, x) for x in (found.u, found.resid))
        return SteadyStateSolution(state, resid, found.code, made.labels, alg)

    def _described(self) -> dict:
        parts = {k: getattr(self, k) for k in ("f", "u0", "p", "mass_matrix")}
        return {k: x for k, x in parts.items() if x is not None}

    def _remake(self, **changes) -> "SteadyStateProblem":
        """What `remake` does with this problem."""
        if self.source is not None and not set(changes) - {"u0", "p"}:
            return SteadyStateProblem(self.source, mass_matrix=self.mass_matrix, **changes)
        return replace(self, **{"source": None, **changes})


class SteadyStateSolution(Described, eqx.Module):
    """A steady state; a pytree, which may leave `jit` and `vmap`.

    Attributes
    ----------
    u : pytree like u0
        The state, NaN where none was reached.
    resid : pytree like u0
        f(inf, u, p) where the search ended.
    retcode : ReturnCode, or an integer array under a transform
        `Success`; `SingularMatrix`: df/du is singular there; `NotConverged`; `NonFinite`; of `DynamicSS` also how the
        solve in time failed.
    success : bool, or a boolean array under a transform
    alg : SSRootfind or DynamicSS

    Notes
    -----
    Of a symbolic problem `sol[x]` is what x, a name or an expression, is at rest, and `sol.ps[k]` a parameter.

    Examples
    --------
    >>> import odesens as ode
    >>> sol = ode.solve(ode.SteadyStateProblem(lambda t, u, p: p - u**3, 1.0, 8.0))
    >>> sol.success, sol.retcode.name, abs(float(sol.resid)) < 1e-12
    (True, 'Success', True)
    """

    u: PyTree
    resid: PyTree
    _code: Any
    _labels: Any
    alg: Any = eqx.field(static=True)

    def __getitem__(self, key: Any) -> Array:
        """What key, a name or an expression of a symbolic problem, is at rest."""
        if self._labels is None or not self._labels.handles(key):
            raise TypeError(f"sol[{key!r}]: the state is sol.u; names are those of symbolic problems")
        return self._labels.at(jnp.asarray(jnp.inf, self.u.real.dtype), self.u, key)

    @property
    def ps(self) -> Any:
        """`sol.ps[k]`: the parameters of a symbolic problem by name."""
        if self._labels is None:
            raise AttributeError("only solutions of symbolic problems have parameters by name")
        return self._labels.ps

    def _described(self) -> dict:
        code = self.retcode
        names = None if self._labels is None or jnp.ndim(self._code) else self._labels.names
        if names is None or concrete(self.u) is None:
            state = {"u": self.u}
        else:
            state = {c.name: c.values for c in components(concrete(self.u), 0, names)[:20]}
        return {"retcode": Shown(getattr(code, "name", code)), "alg": self.alg, **state}

    __repr__ = Described.__repr__  # in place of the module's, which lists fields

    @property
    def retcode(self) -> ReturnCode | Int[Array, "..."]:
        """How the search ended: a `ReturnCode`, or an integer array under a transform."""
        return return_code(self._code)

    @property
    def success(self) -> bool | Bool[Array, "..."]:
        """Whether a steady state was found: a bool, or a boolean array under a transform."""
        known = None if jnp.ndim(self._code) else concrete(self._code)
        return self._code == ReturnCode.Success if known is None else int(known) == ReturnCode.Success


# ---------------------------------------------------------------- from guess to root


class Found(NamedTuple):
    """u and resid as leaves, the return code, and whether df/du is regular there."""

    u: list
    resid: list
    code: Any
    regular: Any


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _steady(alg, mass: Mass | None, field: Field, u: list, p: list, aux: list) -> Found:
    state = field.state
    split, join = parts_of(state.dtype)
    at_rest = lambda p: lambda x: split(field(jnp.asarray(jnp.inf, state.real_dtype), join(x), p, aux))
    guess, frozen = jax.lax.stop_gradient((state.pack(u), p))
    residual = at_rest(frozen)
    if isinstance(alg, SSRootfind):
        x, reached, quick, met = _by_newton(alg, residual, split(guess))
        failed = jnp.where(met, ReturnCode.NotConverged, ReturnCode.SingularMatrix)
    else:
        x, failed = _by_time(alg, mass, field, guess, frozen, aux)
        x, reached, quick = split(x), failed == ReturnCode.Success, True
    f = residual(x)
    regular = _is_regular(jax.jacfwd(residual)(x)) & quick
    code = jnp.where(reached, ReturnCode.Success, failed)
    if isinstance(alg, SSRootfind):
        code = jnp.where(regular, code, ReturnCode.SingularMatrix)
        code = jnp.where(jnp.all(jnp.isfinite(f)), code, ReturnCode.NonFinite)

    def linearised(times, b):
        solution = solve_exactly(times, of_map(DENSE, times, b), b)
        return solution * jnp.where(regular, 1, jnp.nan).astype(b.dtype)

    root = jax.lax.custom_root(at_rest(p), x, lambda _, x: x, linearised)
    root = root * jnp.where(reached, 1, jnp.nan).astype(x.dtype)
    return Found(state.unpack(join(root)), state.unpack(join(f)), code.astype(jnp.int32), regular)


def _tolerances(alg, dtype) -> tuple:
    """reltol and abstol, those that belong to the dtype where none are given."""
    eps = float(jnp.finfo(dtype).eps)
    return eps**0.5 if alg.reltol is None else alg.reltol, eps**0.75 if alg.abstol is None else alg.abstol


def _by_newton(alg: SSRootfind, residual: Callable, x):
    """Where Newton's method ends; whether it converged, and not just linearly; whether every matrix was regular."""
    reltol, abstol = _tolerances(alg, x.dtype)
    norm = lambda y, change: jnp.max(jnp.abs(change) / (abstol + reltol * jnp.abs(y)), initial=0)
    found = initial.search(residual, x, norm, 1.0, alg.max_steps)
    return found.y, found.change <= 1, found.rate <= LINEAR_RATE, found.regular


def _by_time(alg: DynamicSS, mass: Mass | None, field: Field, u, p: list, aux: list):
    """The state in which the solve ended, and the return code."""
    reltol, abstol = _tolerances(alg, u.dtype)
    f = lambda t, u, p: field(t, u, *p)
    slow = lambda t, u, p: jnp.all(jnp.abs(f(t, u, p)) <= abstol + reltol * jnp.abs(u))
    matrix = None if mass is None else mass.matrix
    sol = solve(
        ODEProblem(f, u, alg.tspan, (p, aux), mass_matrix=matrix),
        Rodas5P() if alg.alg is None else alg.alg,
        saveat=[alg.tspan[1]],
        callback=DiscreteCallback(slow, terminate=True),
        max_events=1,
        throw=False,
    )
    late = jnp.where(sol.retcode == ReturnCode.Success, ReturnCode.NotConverged, sol.retcode)
    return sol.u[-1], jnp.where(sol.retcode == ReturnCode.Terminated, ReturnCode.Success, late)


def _is_regular(jac):
    """Whether a matrix (n, n) has full rank to rounding, its rows and columns scaled to entries of at most one."""
    n = jac.shape[-1]
    if not n:
        return jnp.asarray(True)
    for axis in (1, 0):
        size = jnp.max(jnp.abs(jac), axis=axis, keepdims=True)
        jac = jac / jnp.where(size > 0, size, 1)
    sizes = jnp.linalg.svd(jac, compute_uv=False)
    return sizes[-1] > 10 * n * jnp.finfo(jac.dtype).eps * sizes[0]


# ---------------------------------------------------------------- checks and failure


def _checked(alg):
    if alg is None:
        return SSRootfind()
    if isinstance(alg, type) and issubclass(alg, (SSRootfind, DynamicSS)):
        raise TypeError(f"alg must be an instance: write {alg.__name__}() instead of {alg.__name__}")
    if not isinstance(alg, (SSRootfind, DynamicSS)):
        hint = f": write DynamicSS({alg!r})" if isinstance(alg, Algorithm) else ""
        raise TypeError(f"a SteadyStateProblem is solved by SSRootfind() or DynamicSS(), got {alg!r}{hint}")
    return alg


_REMEDY = {
    ReturnCode.SingularMatrix: (
        "df/du is singular there, so the state is not determined by f = 0 and has no derivative",
        "put a conserved total in place of one of the equations that it makes dependent, try another u0, or, for the "
        "state alone, take DynamicSS()",
    ),
    ReturnCode.NonFinite: (
        "f gave NaN or infinity",
        "evaluate f(inf, u0, p): f is taken at t = inf; else give a better u0",
    ),
}


def _raise_failure(alg, traced: list, found: Found) -> None:
    """Raise where an eager call failed, or an eager derivative cannot exist."""
    given = (found.code, found.regular, *found.resid)
    known = [value for x in given if (value := concrete(x)) is not None]
    if len(known) < len(given):
        return
    code, regular, *resid = known
    code = ReturnCode(int(code))
    if code is ReturnCode.Success and traced and not regular:
        code = ReturnCode.SingularMatrix
    if code is ReturnCode.Success:
        return
    cause, remedy = _REMEDY.get(code, (code.cause, code.remedy))
    size = max((float(np.max(np.abs(x), initial=0)) for x in resid), default=0.0)
    raise SolveError(
        f"the steady state by {type(alg).__name__} ended with ReturnCode.{code.name}: {cause}.\n"
        f"  the largest entry of |f| was {size:.6g}\n"
        f"  what to do: {remedy}; throw=False returns what was reached instead of raising.",
        code,
        math.inf,
    )
