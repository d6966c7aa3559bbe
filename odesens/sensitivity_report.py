"""`sensitivity_report`: what a gradient cost, how its backward solve ended, and how far off it is.

Owns: the estimate of a gradient's error, the table. Must not know: how engines work.

Along the exact solution, with the adjoint state lam and a tangent S v,

    d/dt <lam(t), S(t) v> = 0 between saved times,    <lam(t0), v> = sum_j <w_j, S(t_j) v>,

parameters taken as states at rest. The engine's lam(t0) is the gradient; w_j and S(t_j) v from a solve at much smaller
tolerances give the same invariant at its other end. What it drifts in between is the gradient's error along v.
Source: Sandu, On the properties of Runge-Kutta discrete adjoints, ICCS 2006, for the invariant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from .display import table
from .inputs import as_params, as_state
from .problem import ODEProblem
from .reruns import again, reported, solves, totals, traced
from .sensealg import DiscreteAdjoint, SensitivityAlgorithm
from .solve import solve
from .status import ReturnCode

EVERY = 16  # entries up to which every direction is taken


@dataclass(frozen=True, repr=False)
class SensitivityReport:
    """What `sensitivity_report` found.

    Attributes
    ----------
    gradient : dict of pytrees, "u0" and "p" (of a symbolic problem "p", the tunables)
    sensealg : the engine, also where none was named
    forward, backward : dicts of "retcode", "naccept", "nreject", "nf", "nfactor", "njacs"
        The backward solve of `DiscreteAdjoint` goes through the recorded steps and has no counts of its own; those of
        solves with events or an initialisation are not known and zero.
    error : float
        The estimate of |gradient - right one|, Euclidean.
    relative : float
        That over |gradient|.
    start, end : arrays (directions,)
        The invariant <lam(t), S(t) v> at t0, by the engine, and at the end, by tangents at smaller tolerances.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, saveat=[1.0], reltol=1e-8)
    >>> found = ode.sensitivity_report(prob, loss=lambda sol: sol.u[0] ** 2)
    >>> type(found.sensealg).__name__, found.forward["retcode"].name
    ('DiscreteAdjoint', 'Success')
    """

    gradient: PyTree
    sensealg: SensitivityAlgorithm
    forward: dict
    backward: dict
    error: float
    relative: float
    start: np.ndarray
    end: np.ndarray

    def _lines(self) -> list[tuple[str, str]]:
        def work(d):
            steps = f"{d['naccept']} steps ({d['nreject']} rejected), {d['nf']} evaluations"
            return f"{d['retcode'].name}, {steps}" if d["nf"] else f"{d['retcode'].name}, no solve of its own"

        drift = np.max(np.abs(self.start - self.end), initial=0.0)
        return [
            ("engine", repr(self.sensealg)),
            ("forward", work(self.forward)),
            ("backward", work(self.backward)),
            ("drift of <lam, S v>", f"{drift:.2e} at most, {len(self.start)} directions"),
            ("error of the gradient", f"{self.error:.2e}, relative {self.relative:.1e}"),
        ]

    def __repr__(self) -> str:
        lines = self._lines()
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)

    def _repr_html_(self) -> str:
        return table("sensitivity report", self._lines())


def sensitivity_report(
    prob: ODEProblem,
    alg: Any = None,
    *,
    loss: Callable,
    directions: int = 8,
    tighter: float = 100.0,
    seed: int = 0,
    **options: Any,
) -> SensitivityReport:
    """Differentiate loss(solve(prob, alg, ..)) in u0 and p, and say what it cost and how right it is.

    Parameters
    ----------
    prob : ODEProblem
    alg : method
    loss : callable
        loss(sol), a real scalar.
    directions : int
        Random directions v, entries +1 and -1, for the estimate; where u0 and p have at most 16 entries, each of these
        in place of them.
    tighter : float
        By which the tolerances of the other end of the invariant are smaller.
    seed : int
    **options : of `solve`, `sensealg` among them

    Returns
    -------
    SensitivityReport

    Raises
    ------
    TypeError
        Where `prob` is no ODEProblem, loss no function, or loss(sol) no real scalar.

    The estimate needs three compilations; it is for looking, not for every step of a fit. It holds as long as the solve
    at the smaller tolerances is much the better one; where that fails, or the backward solve does, it is NaN.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, saveat=[1.0], reltol=1e-8)
    >>> found = ode.sensitivity_report(prob, loss=lambda sol: sol.u[0] ** 2)
    >>> print(f"{found.gradient['p']:.5f}", found.relative < 1e-5)  # -2 exp(-4)
    -0.03663 True
    """
    if not isinstance(prob, ODEProblem) or not callable(loss):
        given = f"{type(prob).__name__} and {type(loss).__name__}"
        raise TypeError(f"sensitivity_report needs an ODEProblem and a function loss(sol), got {given}")
    x = {"p": prob.tunables} if prob.named else {"u0": as_state(prob.u0), "p": as_params(prob.p)}  # pyright: ignore[reportAttributeAccessIssue]
    x = jax.tree.map(lambda v: jnp.asarray(v) if isinstance(v, (float, complex, np.ndarray, np.generic)) else v, x)
    moving, rest = eqx.partition(x, eqx.is_inexact_array)
    of = lambda moving: loss(solve(prob, alg, **{**options, "throw": False}, **eqx.combine(moving, rest)))
    program = traced(of, moving)
    avals = program.closed.out_avals
    if len(avals) != 1 or avals[0].shape != () or not jnp.issubdtype(avals[0].dtype, jnp.floating):
        raise TypeError(f"sensitivity_report needs loss(sol) to be one real scalar, got {[str(a) for a in avals]}")
    call = solves(program.closed.jaxpr)[0]
    gradient, ended = jax.jit(reported(traced(jax.grad(again(program)), moving)))(moving)

    flat, unravel = ravel_pytree(moving)
    g = ravel_pytree(gradient)[0]
    vs = np.eye(flat.size) if flat.size <= EVERY else _signs(seed, directions, flat.size)
    tight = again(program, sensealg=lambda call: DiscreteAdjoint(), tighter=tighter)
    push = jax.jit(jax.vmap(lambda v: jax.jvp(lambda x: tight(unravel(x)), (flat,), (v,))[1]))
    vs = jnp.asarray(vs, flat.dtype)
    end = np.asarray(push(vs))
    start = np.asarray(jnp.real(vs @ g))
    off = np.abs(start - end)
    # of all unit vectors the sum of squares, of signs their mean, is the square of the length
    error = float(np.sqrt(np.sum(off**2) if flat.size <= EVERY else np.mean(off**2)))
    size = float(jnp.linalg.norm(g))
    forward, backward = (_work(totals(x)) for x in ended)
    relative = error / size if size else float(error > 0)
    return SensitivityReport(gradient, call.spec.sensealg, forward, backward, error, relative, start, end)


def _signs(seed: int, count: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).choice([-1.0, 1.0], (count, size))


def _work(total) -> dict:
    names = ("naccept", "nreject", "nf", "nfactor", "njacs")
    return {"retcode": ReturnCode(int(total[0])), **dict(zip(names, (int(n) for n in total[1:]), strict=True))}
