"""`check_gradient`: whether a gradient through `solve` can be trusted, and if not, why.

Owns: the comparisons, their verdict and its table. Must not know: how engines work.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .display import table
from .extension import subjaxprs
from .reruns import again, reported, solves, totals, traced
from .sensealg import DiscreteAdjoint, GaussAdjoint
from .status import ReturnCode, SolveError

TIGHTER = 100.0  # by which the tolerances of the right values are smaller
SWITCHES = {"lt", "le", "gt", "ge", "sign", "floor", "ceil", "round", "argmax", "argmin"}


class Row(NamedTuple):
    """One comparison: with what, how far off relative to the gradient (NaN: not made), whether that will do."""

    name: str
    off: float
    ok: bool
    note: str = ""


@dataclass(frozen=True, repr=False)
class GradientCheck:
    """What `check_gradient` found.

    Attributes
    ----------
    ok : bool
    verdict : str
        What is wrong, with its likely cause and what to do; or that nothing is.
    rows : list of Row
    gradient : pytree like x
        By the engine that the loss itself chose.
    cost : float
        Time of a compiled gradient over that of a compiled loss.
    engines : names of the sensitivity algorithms that the loss uses
    counts : dict of the steps and evaluations of f of the forward solves that could be seen

    Examples
    --------
    Its text is a table; `check_gradient` makes it from a loss.

    >>> from odesens.gradient_check import GradientCheck, Row
    >>> counts = {"naccept": 8, "nf": 50}
    >>> GradientCheck(True, "all agree", [Row("forward mode", 1e-15, True)], 1.0, 2.5, ("DiscreteAdjoint",), counts)
    gradient by DiscreteAdjoint, relative differences:
      forward mode           1.0e-15  ok
      gradient / loss, time      2.5  8 steps, 50 evaluations of f
    all agree
    """

    ok: bool
    verdict: str
    rows: list
    gradient: PyTree
    cost: float
    engines: tuple[str, ...]
    counts: dict

    def _lines(self) -> list[tuple[str, str, str]]:
        mark = lambda row: "-" if np.isnan(row.off) else "ok" if row.ok else "OFF"
        lines = [(r.name, "" if np.isnan(r.off) else f"{r.off:.1e}", f"{mark(r)} {r.note}".strip()) for r in self.rows]
        work = f"{self.counts['naccept']} steps, {self.counts['nf']} evaluations of f" if self.counts["nf"] else ""
        return [*lines, ("gradient / loss, time", f"{self.cost:.2g}", work)]

    def __repr__(self) -> str:
        lines = self._lines()
        widths = [max(len(line[i]) for line in lines) for i in (0, 1)]
        rows = [f"  {a:<{widths[0]}}  {b:>{widths[1]}}  {c}".rstrip() for a, b, c in lines]
        return "\n".join([f"gradient by {', '.join(self.engines)}, relative differences:", *rows, self.verdict])

    def _repr_html_(self) -> str:
        return table(f"gradient by {', '.join(self.engines)}", [*self._lines(), ("verdict", self.verdict)])


def check_gradient(
    loss: Callable, x: PyTree, *, rtol: float = 1e-3, directions: int = 2, seed: int = 0
) -> GradientCheck:
    """Compare jax.grad(loss)(x) with everything that it should agree with.

    Parameters
    ----------
    loss : callable
        loss(x), a real scalar, with one or more calls of `solve` in it.
    x : pytree
        Where; its floating and complex arrays and Python numbers are differentiated, the rest passes through.
    rtol : float
        How accurate the gradient has to be.
    directions : int
        Random directions along which forward mode and finite differences are compared.
    seed : int
        Of the directions.

    Returns
    -------
    GradientCheck
        With `ok`, `verdict`, `rows`, a table as its text.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no real scalar, x has nothing to differentiate, or no solve is called.

    Notes
    -----
    The rows: forward mode, <grad, v> = jvp(v); the same gradient by another engine (`GaussAdjoint`, or
    `DiscreteAdjoint` where the loss uses a continuous one); by the same engine at tolerances 100 times smaller; finite
    differences of the loss at these tolerances, extrapolated (Ridders, Advances in Engineering Software 4, 1982). A
    wrong custom rule or a switch that is not differentiable is seen by the last even where all others agree.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, saveat=[1.0], reltol=1e-8)
    >>> found = ode.check_gradient(lambda p: ode.solve(prob, p=p).u[0] ** 2, 2.0)
    >>> found.ok, f"{found.gradient:.5f}"  # -2 exp(-4)
    (True, '-0.03663')
    """
    if not callable(loss):
        raise TypeError(f"check_gradient needs a function loss(x) first, got {type(loss).__name__}")
    x = jax.tree.map(lambda v: jnp.asarray(v) if isinstance(v, (float, complex, np.ndarray, np.generic)) else v, x)
    moving, rest = eqx.partition(x, eqx.is_inexact_array)
    if not sum(leaf.size for leaf in jax.tree.leaves(moving)):
        raise ValueError("check_gradient: x has no floating or complex entries to differentiate")
    of = lambda moving: loss(eqx.combine(moving, rest))
    program = traced(of, moving)
    _check_scalar(program)
    calls = solves(program.closed.jaxpr)
    if not calls:
        raise ValueError("check_gradient: the loss calls no solve of odesens, so there are no engines to compare")
    engines = tuple(sorted({type(call.spec.sensealg).__name__ for call in calls}))
    comparison = _Comparison(program, moving, rtol, directions, seed)
    gradient, failure = _as_written(of, moving)
    rows = comparison.rows(gradient) if failure is None else [Row("gradient", np.nan, False, failure)]
    verdict = _verdict(rows, program, calls, rtol)
    if failure is not None:
        return GradientCheck(False, verdict, rows, gradient, np.nan, engines, _counts(np.zeros(6, int)))
    _, ended = jax.jit(reported(program))(moving)
    counts = _counts(totals(ended.forward))
    return GradientCheck(all(r.ok for r in rows), verdict, rows, gradient, comparison.cost(), engines, counts)


def _counts(total) -> dict:
    return dict(zip(("naccept", "nreject", "nf", "nfactor", "njacs"), (int(x) for x in total[1:]), strict=True))


def _check_scalar(program) -> None:
    avals = program.closed.out_avals
    if len(avals) != 1 or avals[0].shape != () or not jnp.issubdtype(avals[0].dtype, jnp.floating):
        found = ", ".join(f"{a.dtype}{list(a.shape)}" for a in avals)
        raise TypeError(
            f"check_gradient needs a loss that returns one real scalar, this one returns {found or 'nothing'}"
        )


def _as_written(of: Callable, moving):
    """jax.grad of the user's own function, and why there is none where it fails."""
    try:
        gradient = jax.grad(of)(moving)
    except SolveError as error:
        return None, f"{ReturnCode(error.retcode).name}: {str(error).splitlines()[0]}"
    bad = [not bool(jnp.all(jnp.isfinite(g))) for g in jax.tree.leaves(gradient)]
    return gradient, "it is not finite" if any(bad) else None


class _Comparison:
    """The right values, and how far a gradient is from them."""

    def __init__(self, program, x, rtol: float, directions: int, seed: int):
        self.program, self.x, self.rtol = program, x, rtol
        other = lambda call: GaussAdjoint() if isinstance(call.spec.sensealg, DiscreteAdjoint) else DiscreteAdjoint()
        self.other = sorted({type(other(call)).__name__ for call in solves(program.closed.jaxpr)})
        self.plain, self.loss = again(program), jax.jit(again(program))
        self.by_other = jax.jit(jax.grad(again(program, other)))
        self.tight_loss = jax.jit(again(program, tighter=TIGHTER))
        self.by_tight = jax.jit(jax.grad(again(program, tighter=TIGHTER)))
        self.gradient = jax.jit(jax.grad(self.plain))
        self.eps = max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(x))
        self.scale = jax.tree.map(lambda leaf: jnp.where(leaf == 0, 1, jnp.abs(leaf)).astype(leaf.dtype), x)
        draw = np.random.default_rng(seed)
        self.vs = [self._direction(draw) for _ in range(directions)]

    def _direction(self, draw):
        def one(s):
            v = draw.standard_normal(s.shape)
            if jnp.iscomplexobj(s):
                v = v + 1j * draw.standard_normal(s.shape)
            return s * jnp.asarray(v, s.dtype)

        return jax.tree.map(one, self.scale)

    def rows(self, g) -> list[Row]:
        exact = self.by_tight(self.x)
        finite = all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(exact))
        return [
            self._forward(g),
            self._against(f"by {', '.join(self.other)}", g, self.by_other(self.x)),
            self._against(f"tolerances / {TIGHTER:g}", g, exact),
            self._finite_differences(exact) if finite else Row("finite differences", np.nan, True, "no right value"),
        ]

    def _forward(self, g) -> Row:
        """Exact transposes by the discrete engine; two solves of their own by the others."""
        exact = all(isinstance(c.spec.sensealg, DiscreteAdjoint) for c in solves(self.program.closed.jaxpr))
        most = max(self.eps**0.5, 1e3 * self.eps) if exact else self.rtol
        push = jax.jit(lambda x, v: jax.jvp(self.plain, (x,), (v,))[1])
        try:
            off = max(abs(_dot(g, v) - float(push(self.x, v))) / _size(g, v) for v in self.vs)
        except TypeError as error:
            if "custom_vjp" not in str(error):
                raise
            return Row("forward mode", np.nan, True, "none: a custom_vjp function has no forward mode")
        return Row("forward mode", off, bool(off <= most))

    def _against(self, name: str, g, right) -> Row:
        """Weighted by x, so that a small entry of a gradient in large units counts."""
        weigh = lambda a: sum(float(jnp.sum(jnp.abs(x * s))) for x, s in _pairs(a, self.scale))
        size = max(weigh(g), weigh(right))
        off = weigh(jax.tree.map(jnp.subtract, g, right)) / size if size else 0.0
        if not np.isfinite(off):
            return Row(name, np.nan, True, "could not be had: its solve failed")
        return Row(name, off, off <= self.rtol)

    def _finite_differences(self, exact) -> Row:
        at = lambda v, h: float(self.tight_loss(jax.tree.map(lambda x, d: x + jnp.asarray(h, x.dtype) * d, self.x, v)))
        worst, noise, ok = 0.0, 0.0, True
        for v in self.vs:
            value, error = _ridders(lambda h, v=v: at(v, h))
            size = max(_size(exact, v), abs(value))
            off, error = abs(value - _dot(exact, v)) / size, error / size
            ok &= bool(off <= max(self.rtol, 5 * error))
            worst, noise = max(worst, off), max(noise, error)
        return Row("finite differences", worst, ok, f"(their own error {noise:.0e})" if noise > self.rtol else "")

    def cost(self) -> float:
        """Time of the gradient over that of the loss, the best of three each."""

        def best(run):
            spent = []
            for _ in range(4):
                begun = time.perf_counter()
                jax.block_until_ready(run(self.x))
                spent.append(time.perf_counter() - begun)
            return min(spent[1:])

        return best(self.gradient) / best(self.loss)


def _pairs(a, b):
    return zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)


def _dot(g, v) -> float:
    """The derivative along v of a real function with gradient g: JAX's pairing, no conjugate."""
    return sum(float(jnp.real(jnp.sum(a * b))) for a, b in _pairs(g, v))


def _size(g, v) -> float:
    return max(sum(float(jnp.sum(jnp.abs(a * b))) for a, b in _pairs(g, v)), float(np.finfo(np.float32).tiny))


def _ridders(at: Callable[[float], float], first: float = 0.02, shrink: float = 1.6, most: int = 9):
    """The derivative of at(h) at 0 by central differences extrapolated to h = 0, and an estimate of its error."""
    columns: list[float] = []
    best, error, h = np.nan, np.inf, first
    for _ in range(most):
        new = [(at(h) - at(-h)) / (2 * h)]
        for j, old in enumerate(columns):
            factor = shrink ** (2 * (j + 1))
            new.append((factor * new[j] - old) / (factor - 1))
            guess = max(abs(new[-1] - new[j]), abs(new[-1] - old))
            if guess <= error:
                best, error = new[-1], guess
        columns, h = new, h / shrink
    return best, error


# ---------------------------------------------------------------- the verdict


def _verdict(rows: list[Row], program, calls, rtol: float) -> str:
    if rows[0].name == "gradient":
        return f"There is no gradient: {rows[0].note}."
    forward, engine, tight, differences = rows
    custom, switches = _custom_rules(program, calls), _switches(calls)
    said = []
    if not forward.ok:
        cause = f": one of the rules of {', '.join(custom)} is wrong" if custom else ""
        said.append(f"Forward and reverse mode disagree{cause}.")
    if not differences.ok:
        causes = []
        if custom:
            causes.append(f"the custom rule of {', '.join(custom)}")
        if switches:
            causes.append(
                f"a switch in f ({', '.join(switches)}), whose time has no derivative: declare it by discontinuities= "
                "or make it an event"
            )
        causes = causes or ["a stop_gradient, or rounding to integers"]
        said.append(f"The loss does not change as the gradient says; suspect {', or '.join(causes)}.")
    if not tight.ok:
        said.append(
            f"The tolerances are too loose: at tolerances 100 times smaller the gradient differs by {tight.off:.1e}; "
            "tighten reltol and abstol."
        )
    elif not engine.ok:
        said.append(
            f"The gradient {engine.name} differs by {engine.off:.1e}, though tighter tolerances change nothing."
        )
    return " ".join(said) or f"The gradient is right to {rtol:g}."


def _custom_rules(program, calls) -> list[str]:
    found: set[str] = set()
    jaxprs = [program.closed.jaxpr, *(call.spec.field.program.jaxpr.jaxpr for call in calls)]
    while jaxprs:
        jaxpr = jaxprs.pop()
        for eqn in jaxpr.eqns:
            if eqn.primitive.name.startswith(("custom_jvp_call", "custom_vjp_call")):
                info = getattr(getattr(eqn.params.get("call_jaxpr"), "jaxpr", None), "debug_info", None)
                found.add(str(getattr(info, "func_name", "a custom function")).split(" ")[0])
        jaxprs += subjaxprs(jaxpr)
    return sorted(found)


def _switches(calls) -> list[str]:
    """The primitives in fields that jump."""
    found: set[str] = set()
    jaxprs = [call.spec.field.program.jaxpr.jaxpr for call in calls]
    while jaxprs:
        jaxpr = jaxprs.pop()
        found |= {e.primitive.name for e in jaxpr.eqns} & SWITCHES
        jaxprs += subjaxprs(jaxpr)
    return sorted(found)
