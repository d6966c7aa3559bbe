"""Models given by equations between named unknowns and parameters, on SymPy; `import odesens` does not load it."""

from .connect import connect
from .event_data import ContinuousEvent, DiscreteEvent, PeriodicEvent, PresetTimeEvent
from .symbols import D, Parameter, Unknown, parameters, t, unknowns
from .system import System, equations

__all__ = [
    "ContinuousEvent",
    "D",
    "DiscreteEvent",
    "Parameter",
    "PeriodicEvent",
    "PresetTimeEvent",
    "System",
    "Unknown",
    "connect",
    "equations",
    "parameters",
    "t",
    "unknowns",
]
