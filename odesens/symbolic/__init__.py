"""Models given by equations between named unknowns and parameters, on SymPy; `import odesens` does not load it."""

from .symbols import D, Parameter, Unknown, parameters, t, unknowns

__all__ = ["D", "Parameter", "Unknown", "parameters", "t", "unknowns"]
