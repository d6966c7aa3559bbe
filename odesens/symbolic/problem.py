"""`SymbolicProblem`: an `ODEProblem` made from a system of named equations, with values by name.

Owns: the problem, `remake`, tunables, the field as a program. Must not know: how a system is simplified, initialised or
evaluated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from ..fingerprint import Frozen
from ..methods.linear import SMALL
from ..problem import ODEProblem, Resolved, check_options, check_tspan
from ..status import ReturnCode, SolveError
from .events import callbacks
from .generate import Generated, generate, sparsity
from .initial import POOLS, Given, Start, initialisation, start
from .labels import Labels, Parameters, Tunables
from .model import SimplifiedSystem
from .simplify import simplify
from .system import System
from .values import Vectors, exchanged, exchanged_functions, of_system, of_user, settled


@dataclass(frozen=True, eq=False)
class Program(Frozen):
    """A generated function as f(t, u, p) of a problem."""

    generated: Generated
    name: str = "f"
    shape: tuple | None = None

    def __call__(self, t, u, p: Parameters):
        out = self.generated({"t": t, "u": u, **p._asdict()})
        return out if self.shape is None else out.reshape(self.shape)

    @property
    def __name__(self) -> str:
        return self.name


class SymbolicProblem(ODEProblem):
    """The initial value problem of a system of named equations, M du/dt = f(t, u, p).

    `ODEProblem(system, ..)` makes one.

    Parameters
    ----------
    system : System or SimplifiedSystem
        A system that was not simplified is: see `simplify`.
    u0 : mapping, optional
        Initial values {x: 1.0, "y": 2.0, D(x): 0.0}: of unknowns, of time derivatives, of arrays of unknowns; numbers,
        traced values, or expressions in unknowns, parameters and t. They are firm; system defaults yield to equations.
    tspan : (t0, t1)
    p : mapping, optional
        Values of parameters, as above; NaN for one that is set later by `remake`. Where a parameter has a guess in
        place of a value, the initial equations determine it.
    guesses : mapping, optional
        Where the search for what the equations determine starts.
    stabilization : float, optional
        See `simplify`.
    jac : bool
        Whether df/du is generated from symbolic derivatives; by default it is computed in forward mode. The pattern of
        df/du is handed over either way.
    jac_sparsity : array or SciPy sparse array (n, n), or False, optional
        As for an `ODEProblem`, in place of the pattern of the equations.
    **options
        Any option of `solve`.

    Attributes
    ----------
    system : SimplifiedSystem
    u0, p : the initial state (n,) in the order of `system.unknowns`, and `Parameters`
    tunables : Tunables

    Raises
    ------
    StructureError, InitialValueError, KeyError, TypeError, ValueError
        For equations that do not determine the unknowns, values that are missing, names that the system does not have.

    Notes
    -----
    Initial values are computed when the problem is solved, so that they follow whatever is exchanged by `remake` or
    `solve(prob, u0=.., p=..)`; a solve fails with `InitialisationFailure` where they contradict each other.

    Examples
    --------
    >>> import jax, odesens as ode
    >>> from odesens.symbolic import D, System, parameters, t, unknowns
    >>> x, k = unknowns("x"), parameters("k")
    >>> prob = ode.ODEProblem(System([(D(x), -k * x)], t), {x: 1.0}, (0.0, 1.0), {k: 2.0}, saveat=[1.0], reltol=1e-8)
    >>> end = lambda q: ode.solve(prob, p=q)[x][-1]
    >>> print(f"{end(prob.tunables):.5f} {jax.grad(end)(prob.tunables)[k]:.5f}")  # exp(-k), -exp(-k)
    0.13534 -0.13534
    """

    system: SimplifiedSystem
    given: Given
    vectors: Vectors
    calls: dict
    own_sparsity: Any

    def __init__(
        self,
        system: System | SimplifiedSystem,
        u0: Mapping | None = None,
        tspan: Any = None,
        p: Any = None,
        *,
        guesses: Mapping | None = None,
        stabilization: float | None = None,
        jac: bool = False,
        jac_sparsity: Any = None,
        **options: Any,
    ):
        if tspan is None:
            raise ValueError("ODEProblem(system, u0, tspan, p) needs tspan=(t0, t1)")
        check_options(options, "ODEProblem")
        known = {k: v for given in (u0, p) if isinstance(given, Mapping) for k, v in given.items()}
        model = simplify(system, stabilization=stabilization, at=known)
        empty = Vectors(**{pool: np.zeros(0) for pool in POOLS})
        given, vectors = exchanged(model, Given((), (), (), ()), empty, of_system(model), True)
        given, vectors = exchanged(model, given, vectors, of_user(model, given, u0, p, guesses), False)
        initialisation(model, given)  # what is missing is found here
        self._fill(model, given, vectors, model.flat.functions, check_tspan(tspan), jac, jac_sparsity, options)

    def _fill(self, model, given, vectors, calls, tspan, jac, jac_sparsity, options) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)
        put("system", model)
        put("given", given)
        put("vectors", vectors)
        put("calls", calls)  # the undefined functions of the equations, by name
        put("tspan", tspan)
        put("options", options)
        put("f", _field(model))
        put("jac", _jacobian(model) if jac else None)
        put("own_sparsity", jac_sparsity)
        put("jac_sparsity", _pattern(model) if jac_sparsity is None and not jac else jac_sparsity)
        mass = [1.0] * len(model.differential) + [0.0] * len(model.algebraic)
        put("mass_matrix", tuple(mass) if model.algebraic else None)

    # ------------------------------------------------------------ values

    def start(self) -> Start:
        """The initial state, the parameters, and whether they are consistent."""
        program = initialisation(self.system, self.given)
        v = settled(self.vectors)
        dtype = jnp.result_type(v.initial)
        if program.trivial:
            return Start(jnp.asarray(v.initial), {"tunable": v.tunable, "fixed": v.fixed}, True, jnp.zeros(0, dtype))
        t0 = jnp.asarray(self.tspan[0], jnp.finfo(dtype).dtype)
        pools = {pool: getattr(v, pool) for pool in POOLS}
        return start(program, {**pools, "t": t0}, self.calls)

    @property
    def u0(self) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The initial state (n,) in the order of `system.unknowns`."""
        return self.resolved().u0

    @property
    def p(self) -> Parameters:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All parameters, as the field takes them."""
        return self.resolved().p

    @property
    def tunables(self) -> Tunables:
        """The tunable parameters that have a number, by name; give a changed copy as p to `remake` or `solve`."""
        nodes = self.system.terms.nodes
        return Tunables(
            tuple(nodes[leaf][1] for leaf in self.given.tunable), jnp.asarray(settled(self.vectors).tunable)
        )

    @property
    def ps(self) -> Any:
        """`ps[k]`: parameters by name, at t0."""
        return Labels(self.system, self.p).ps

    def resolved(self, u0: Any = None, p: Any = None, tspan: Any = None) -> Resolved:
        if u0 is not None or p is not None or tspan is not None:
            changes = {k: v for k, v in dict(u0=u0, p=p, tspan=tspan).items() if v is not None}
            return self.remade(**changes).resolved()
        made = self.start()
        p = Parameters(made.p["tunable"], made.p["fixed"], self.calls)
        _check_start(self, made)
        ok = made.ok if isinstance(made.ok, Tracer) else True
        u = made.u if ok is True else jnp.where(ok, made.u, jnp.nan)
        return Resolved(u, p, self.tspan, Labels(self.system, p), ok)

    named = True

    @property
    def pattern(self) -> Given:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of what kind the values given by name are."""
        return self.given

    @property
    def values(self) -> dict:
        return {"vectors": settled(self.vectors), "calls": self.calls}

    def with_values(self, *, vectors: Vectors, calls: dict) -> "SymbolicProblem":  # pyright: ignore[reportIncompatibleMethodOverride]
        """A copy with other numbers `vectors` and functions `calls`, of the same structure."""
        problem = object.__new__(type(self))
        vectors = vectors._replace(precision=self.vectors.precision)
        vars(problem).update(vars(self), vectors=vectors, calls=calls)
        return problem

    def remade(self, **changes: Any) -> "SymbolicProblem":
        model = self.system
        own = {k: changes.pop(k) for k in ("u0", "p", "guesses") if k in changes}
        parts = {k: changes.pop(k) for k in ("functions", "tspan", "jac", "jac_sparsity") if k in changes}
        check_options(changes, "remake (besides u0, p, guesses, functions, tspan, jac, jac_sparsity)")
        calls = self.calls if not isinstance(own.get("p"), Parameters) else own["p"].functions
        calls = exchanged_functions(calls, parts.get("functions", {}))
        new = of_user(model, self.given, own.get("u0"), own.get("p"), own.get("guesses"))
        given, vectors = exchanged(model, self.given, self.vectors, new, False)
        if given is not self.given:
            initialisation(model, given)
        problem = object.__new__(type(self))
        tspan = check_tspan(parts.get("tspan", self.tspan))
        jac = bool(parts.get("jac", self.jac is not None))
        sparsity = parts.get("jac_sparsity", self.own_sparsity)
        problem._fill(model, given, vectors, calls, tspan, jac, sparsity, {**self.options, **changes})
        return problem

    @property
    def functions(self) -> dict:
        return {} if self.jac is None else {"jac": self.jac}

    @property
    def callbacks(self) -> list:
        return callbacks(self.system)

    def _described(self) -> dict:
        return {"system": self.system, "tspan": self.tspan, "tunables": self.tunables, **self.options}


# ---------------------------------------------------------------- programs


def _made(model: SimplifiedSystem, key: str, make) -> Any:
    if key not in model.made:
        model.made[key] = make()
    return model.made[key]


def _field(model: SimplifiedSystem) -> Program:
    roots = (*model.rates, *model.residuals)
    return _made(model, "f", lambda: Program(generate(model.terms, roots, model.places), model.name or "system"))


def _pattern(model: SimplifiedSystem):
    if len(model.states) <= SMALL:
        return None
    return _made(model, "pattern", lambda: sparsity(model.terms, (*model.rates, *model.residuals), model.states))


def _jacobian(model: SimplifiedSystem) -> Program:
    def make():
        terms, n = model.terms, len(model.states)
        rows = (*model.rates, *model.residuals)
        nodes = [terms.diff(f, x) for f in rows for x in model.states]
        return Program(generate(terms, nodes, model.places), "jac", (n, n))

    return _made(model, "jac", make)


def _check_start(problem: SymbolicProblem, made: Start) -> None:
    """Raise where initial values are known to contradict each other."""
    if isinstance(made.ok, Tracer) or bool(made.ok):
        return
    program = initialisation(problem.system, problem.given)
    left = np.abs(np.asarray(made.residuals))
    order = np.argsort(-np.nan_to_num(left, nan=np.inf))[:6]
    shown = "; ".join(f"{program.texts[i]}, off by {left[i]:.3g}" for i in order if not left[i] <= 1e-12)
    raise SolveError(
        f"InitialisationFailure at t = {float(problem.tspan[0]):g}: the initial values do not obey the equations: "
        f"{shown}. Give fewer of them in u0, so that the equations can determine the others, or better guesses.",
        ReturnCode.InitialisationFailure,
        float(problem.tspan[0]),
    )
