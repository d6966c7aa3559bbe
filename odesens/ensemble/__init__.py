"""Ensembles: one problem solved many times, in lanes, on devices and over processes, with one answer whichever is used.

Owns: the room's public names. Must not know: anything else.
"""

from .failure import EnsembleError
from .problem import EnsembleProblem, EnsembleSerial, EnsembleSharded, EnsembleVectorized
from .run import solve_ensemble
from .solution import EnsembleSolution, Summary

__all__ = [
    "EnsembleError",
    "EnsembleProblem",
    "EnsembleSerial",
    "EnsembleSharded",
    "EnsembleSolution",
    "EnsembleVectorized",
    "Summary",
    "solve_ensemble",
]
