"""`work_precision`: what accuracy costs, method by method, as figures and a picture (extra `plot`).

Owns: the measurement and its picture. Must not know: how methods work. Pictures of solutions are `sol.plot`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .algorithms import Algorithm
from .checks import is_count, is_positive
from .drawing import COLOURS, new_axes
from .problem import ODEProblem
from .solve import solve

MARKERS = "osD^v<>P"


class WorkPrecision(NamedTuple):
    """The figures of `work_precision`, NaN where a solve failed, and the axes.

    Attributes
    ----------
    labels : tuple of str
        Of the methods.
    reltols : array (tolerances,)
    errors : array (methods, tolerances)
        Relative errors of values, or with a loss of gradients.
    seconds : array (methods, tolerances)
        The best of the calls.
    nf : array (methods, tolerances)
        Evaluations of f by the solve.
    ax : matplotlib Axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, saveat=[1.0])
    >>> found = ode.plotting.work_precision(prob, [ode.BS3()], reltols=[1e-3, 1e-6], repeats=1)
    >>> bool(found.errors[0, 1] < found.errors[0, 0]), bool(found.nf[0, 1] > found.nf[0, 0])
    (True, True)
    """

    labels: tuple[str, ...]
    reltols: np.ndarray
    errors: np.ndarray
    seconds: np.ndarray
    nf: np.ndarray
    ax: Any


def work_precision(
    prob: ODEProblem,
    algs: Algorithm | Sequence | Mapping[str, Any],
    *,
    reltols: Sequence[float] = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8),
    abstol_ratio: float = 1e-3,
    reference: PyTree = None,
    loss: Callable | None = None,
    repeats: int = 5,
    ax: Any = None,
    **options: Any,
) -> WorkPrecision:
    """Time against achieved error of several methods, drawn on logarithmic axes.

    Parameters
    ----------
    prob : ODEProblem, with `saveat` (or give it among the options)
    algs : sequence of methods, or mapping
        From labels to methods, or to mappings of options of `solve` with "alg" among them.
    reltols : sequence of float
        Relative tolerances.
    abstol_ratio : float
        Absolute tolerances are this times the relative ones.
    reference : pytree like `sol.u`, or, with a loss, like p; optional
        The right values. By default those of the first method at a hundredth of the least tolerance (at least 1e-13).
    loss : callable, optional
        loss(sol), a real scalar: then gradients in p are timed and compared in place of solves.
    repeats : int
        Calls of which the fastest counts, after one that compiles.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    **options
        Of `solve`, for all methods.

    Returns
    -------
    WorkPrecision

    Raises
    ------
    ValueError
        Without methods or tolerances, for tolerances that are not positive, or where the default reference fails.
    ImportError
        Without matplotlib: `pip install 'odesens[plot]'`.

    Notes
    -----
    The error is the largest over leaves of max |x - reference| / max |reference|. The machine should have nothing else
    to do.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, saveat=[1.0])
    >>> found = ode.plotting.work_precision(prob, [ode.BS3()], reltols=[1e-3, 1e-6], repeats=1)
    >>> found.labels, found.seconds.shape, found.ax.get_xlabel()
    (('BS3()',), (1, 2), 'relative error')
    """
    methods = _methods(algs)
    if not methods or not len(reltols):
        raise ValueError("work_precision needs at least one method and one tolerance")
    if not all(map(is_positive, [*reltols, abstol_ratio])) or not is_count(repeats):
        given = f"reltols={list(reltols)!r}, abstol_ratio={abstol_ratio!r}, repeats={repeats!r}"
        raise ValueError(f"work_precision needs positive tolerances and a number of repeats, got {given}")
    ax = new_axes(ax, (6.4, 4.4))
    shape = len(methods), len(reltols)
    errors, seconds, counts = (np.full(shape, np.nan) for _ in range(3))
    for i, own in enumerate(methods.values()):
        run = _program(prob, {**options, **own}, abstol_ratio, loss)
        if reference is None:
            reference = _reference(run, prob.p, max(min(reltols) / 100, 1e-13), next(iter(methods)))
        for j, reltol in enumerate(reltols):
            value, nf, ok = jax.block_until_ready(run(prob.p, reltol))
            if not bool(ok):
                continue
            errors[i, j], counts[i, j] = _error(value, reference), float(nf)
            seconds[i, j] = min(_timed(run, prob.p, reltol) for _ in range(repeats))
    for i, label in enumerate(methods):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        ax.loglog(errors[i], seconds[i], marker=marker, markersize=4, color=colour, label=label)
    ax.invert_xaxis()
    ax.set_xlabel("relative error" + ("" if loss is None else " of the gradient"))
    ax.set_ylabel("seconds a " + ("solve" if loss is None else "gradient"))
    ax.grid(True, which="major", alpha=0.3)
    ax.legend()
    return WorkPrecision(tuple(methods), np.asarray(reltols, float), errors, seconds, counts, ax)


def _methods(algs) -> dict[str, dict]:
    if isinstance(algs, Algorithm):
        algs = [algs]
    if not isinstance(algs, Mapping):
        algs = {repr(alg): alg for alg in algs}
    return {label: dict(own) if isinstance(own, Mapping) else {"alg": own} for label, own in algs.items()}


def _program(prob: ODEProblem, options: dict, abstol_ratio: float, loss: Callable | None) -> Callable:
    """(p, reltol) to the values or the gradient, evaluations of f, and whether the solve succeeded; compiled once."""

    def solved(p, reltol):
        own = {"reltol": reltol, "abstol": abstol_ratio * reltol, **options}
        return solve(prob, p=p, throw=False, **own)

    def gradient(p, reltol):
        assert loss is not None

        def of(p, loss=loss):
            sol = solved(p, reltol)
            return loss(sol), sol

        (_, sol), value = jax.value_and_grad(of, has_aux=True, allow_int=True)(p)
        return value, sol.stats.nf, sol.success

    def values(p, reltol):
        sol = solved(p, reltol)
        return sol.u, sol.stats.nf, sol.success

    return jax.jit(values if loss is None else gradient)


def _timed(run: Callable, *args) -> float:
    begun = time.perf_counter()
    jax.block_until_ready(run(*args))
    return time.perf_counter() - begun


def _reference(run: Callable, p, reltol: float, label: str):
    value, _, ok = run(p, reltol)
    if not bool(ok):
        raise ValueError(f"the reference by {label} at reltol {reltol:g} failed: give reference=")
    return value


def _error(value, reference) -> float:
    got, want = (jax.tree.leaves(x) for x in (value, reference))
    if [jnp.shape(x) for x in got] != [jnp.shape(x) for x in want]:
        raise ValueError(
            f"reference has shapes {[jnp.shape(x) for x in want]}, the results have {[jnp.shape(x) for x in got]}"
        )
    worst = 0.0
    for x, y in zip(got, want, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        if x.size and x.dtype.kind in "fc":
            worst = max(worst, float(np.max(np.abs(x - y)) / max(np.max(np.abs(y)), np.finfo(float).tiny)))
    return worst
