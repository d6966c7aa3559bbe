"""Models given by equations between named unknowns and parameters, on SymPy; `import odesens` does not load it."""

try:
    import sympy  # noqa: F401  the extra's package, before modules that use it
except ImportError as error:
    raise ImportError("odesens.symbolic needs SymPy: pip install 'odesens[symbolic]'") from error

from .connect import connect
from .event_data import ContinuousEvent, DiscreteEvent, PeriodicEvent, PresetTimeEvent
from .initial import InitialValueError, UndeterminedWarning
from .labels import Parameters, Tunables
from .model import SimplifiedSystem
from .problem import SymbolicProblem
from .sbml import from_sbml
from .simplify import StructureError, simplify
from .symbols import D, Parameter, Unknown, parameters, t, unknowns
from .system import System, equations

__all__ = [
    "ContinuousEvent",
    "D",
    "DiscreteEvent",
    "InitialValueError",
    "Parameter",
    "Parameters",
    "PeriodicEvent",
    "PresetTimeEvent",
    "SimplifiedSystem",
    "StructureError",
    "SymbolicProblem",
    "System",
    "Tunables",
    "UndeterminedWarning",
    "Unknown",
    "connect",
    "equations",
    "from_sbml",
    "parameters",
    "simplify",
    "t",
    "unknowns",
]
