"""`solve_ensemble`: from a user's ensemble to a job, and from its results to a solution.

Owns: the defaults, how trajectories are divided into batches. Must not know: how batches are run.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..algorithms import Algorithm
from ..problem import check_options
from ..saveat import concrete
from ..solve import solve
from .batch import Solver, width_of
from .failure import raise_failures
from .job import Job, Plan
from .problem import EnsembleAlgorithm, EnsembleProblem, EnsembleSharded, EnsembleVectorized
from .progress import reporter
from .resume import resume
from .solution import EnsembleSolution
from .trajectories import trajectories as rows_of

BATCH = 1024  # trajectories of each device, where results are reduced, reported or written batch by batch


def solve_ensemble(
    eprob: EnsembleProblem,
    alg: Algorithm | None = None,
    ensemblealg: EnsembleAlgorithm | None = None,
    *,
    trajectories: int | None = None,
    batch_size: int | None = None,
    progress: bool | Callable | None = None,
    checkpoint: Any = None,
    **options: Any,
) -> EnsembleSolution:
    """Solve an ensemble: `solve(eprob, alg, ensemblealg, trajectories=N)`.

    Differentiable to any order, in both modes, like the solve of one problem: with respect to what trajectories share,
    what each has of its own, and whatever `prob_func`, `output_func`, `reduction` and f capture; under every
    transformation. Gradients are accumulated batch by batch, in memory bounded by the batch.

    Parameters
    ----------
    eprob : EnsembleProblem
    alg : algorithm, optional
        As for one problem; `Tsit5()` by default, also where a single eager solve would find the problem to be stiff.
    ensemblealg : EnsembleVectorized() (default), EnsembleSerial() or EnsembleSharded()
        The results are the same: numbers of steps, and values but for rounding.
    trajectories : int
        Their number N; may be left out where the ensemble problem has batched arrays. 0 gives empty results.
    batch_size : int, optional
        How many trajectories are solved, put out and differentiated at a time, on all devices together. Default: all,
        but 1024 for each device with an `output_func`, a `reduction`, `progress` or `checkpoint`.
    progress : bool or callable
        Show a bar (tqdm's where it is installed), or call progress(done, N), after each batch, also under `jit`. It is
        no part of derivatives. Default: the problem's own option.
    checkpoint : path, optional
        A folder to which each finished batch is written, whole or not at all. The same call goes on from there, in a
        new process too, and ends with the same bits. It needs an eager call that is not being differentiated. Several
        processes need a folder that all of them see.
    **options
        Those of `solve`, for all trajectories. `saveat=None` saves both ends of each span. `dense` has no effect:
        `sol[i](t)` solves again.

    Returns
    -------
    EnsembleSolution

    Raises
    ------
    EnsembleError
        An eager solve in which trajectories failed (`throw=True`): which, and why. The others are not disturbed.
    TypeError, ValueError
        For input that is wrong.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), saveat=[1.0])
    >>> sol = ode.solve(ode.EnsembleProblem(prob, p=jnp.array([1.0, 2.0])), ode.Tsit5(), ode.EnsembleVectorized())
    >>> print(sol.u[:, 0].round(4), sol.retcodes)
    [0.3679 0.1353] [0 0]
    """
    check_options(options, "solve")
    algorithm = EnsembleVectorized() if ensemblealg is None else ensemblealg
    if not isinstance(algorithm, EnsembleAlgorithm):
        raise TypeError(
            "the third argument must be EnsembleSerial(), EnsembleVectorized() or EnsembleSharded(), "
            f"got {ensemblealg!r}"
        )
    found = rows_of(eprob, trajectories)
    report = reporter(eprob.prob.options.get("progress") if progress is None else progress)
    batched = any(x is not None for x in (eprob.output_func, eprob.reduction, report, checkpoint))
    plan = make_plan(found.count, batch_size, algorithm, batched, exact=eprob.reduction is not None)
    throw = {**eprob.prob.options, **options}.get("throw") is not False
    solver = Solver(found, alg, options, width_of(algorithm, plan.size), eprob.output_func)
    job = Job(eprob, solver, algorithm, plan, report)
    sol = job.run() if checkpoint is None else resume(job, checkpoint)
    codes = concrete(sol.retcodes) if throw else None
    if codes is not None:
        raise_failures(codes, sol)
    return sol


solve.register(EnsembleProblem, solve_ensemble)  # pyright: ignore[reportArgumentType, reportCallIssue]


def make_plan(count: int, batch_size, algorithm: EnsembleAlgorithm, batched: bool, *, exact: bool) -> Plan:
    """How the trajectories are divided; into batches of exactly the size asked for, or of about that size."""
    if batch_size is None:
        devices = algorithm.devices().size if isinstance(algorithm, EnsembleSharded) else 1
        batch_size = BATCH * devices if batched else max(count, 1)
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise ValueError(f"batch_size must be an integer >= 1, got {batch_size!r}")
    size = min(int(batch_size), max(count, 1))
    if exact:
        return Plan(count, count // size, size, count % size)
    batches = max(-(-count // size), 1)
    return Plan(count, batches, -(-max(count, 1) // batches), 0)
