"""Which trajectories of an ensemble failed, and why, in words.

Owns: `EnsembleError`. Must not know: how they were solved.
"""

from typing import Any

import numpy as np

from ..status import ReturnCode, SolveError

SHOWN = 8  # indices of one cause


class EnsembleError(SolveError):
    """An eager ensemble solve of which some trajectories did not reach the end of their spans.

    Parameters
    ----------
    message : str
    codes : array of integers (N,)
    solution
        See below.

    Attributes
    ----------
    indices : array of integers
        The trajectories that failed.
    retcode : ReturnCode
        That of the first of them.
    retcodes : array of integers (N,)
        Those of all trajectories.
    solution : EnsembleSolution
        What `throw=False` returns.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), saveat=[1.0])
    >>> try:
    ...     ode.solve(ode.EnsembleProblem(prob, p=jnp.array([1.0, jnp.nan])))
    ... except ode.EnsembleError as error:
    ...     print(error.indices, error.retcode.name)
    [1] NonFinite
    """

    def __init__(self, message: str, codes: np.ndarray, solution: Any):
        self.indices = np.flatnonzero(codes > ReturnCode.Terminated)
        super().__init__(message, ReturnCode(int(codes[self.indices[0]])), float("nan"))
        self.retcodes = codes
        self.solution = solution


def raise_failures(codes: np.ndarray, solution) -> None:
    """Raise where any trajectory failed: causes, the most frequent first, each with its trajectories."""
    failed = codes > ReturnCode.Terminated
    if not np.any(failed):
        return
    lines = [f"{int(failed.sum())} of {codes.size} trajectories failed:"]
    kinds, counts = np.unique(codes[failed], return_counts=True)
    for kind in kinds[np.argsort(-counts, kind="stable")]:
        code, where = ReturnCode(int(kind)), np.flatnonzero(codes == kind)
        shown = ", ".join(map(str, where[:SHOWN])) + (f", .. ({where.size} in all)" if where.size > SHOWN else "")
        lines.append(f"  ReturnCode.{code.name}, i = {shown}: {code.cause}.")
        lines.append(f"    what to do: {code.remedy}.")
    lines.append("throw=False returns what was reached, with NaN after the failure, as does the error's `solution`.")
    raise EnsembleError("\n".join(lines), codes, solution)
