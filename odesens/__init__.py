"""Differentiable ordinary differential equations on JAX: the public names, nothing else."""

from .algorithms import (
    BS3,
    DOP853,
    DP5,
    RK4,
    Euler,
    Heun,
    Midpoint,
    Ralston,
    Tsit5,
    Vern6,
    Vern7,
    Vern8,
    Vern9,
)
from .methods.controller import IController, PIController, PIDController
from .problem import ODEProblem, remake
from .sensealg import (
    BacksolveAdjoint,
    DiscreteAdjoint,
    ForwardSensitivity,
    GaussAdjoint,
    InterpolatingAdjoint,
    QuadratureAdjoint,
)
from .solution import ODESolution
from .solve import solve
from .status import ReturnCode, SolveError
from .xla import cache_compilations, compile_loops_natively, loops_are_native

__version__ = "0.1.0"

__all__ = [
    "BS3",
    "DOP853",
    "DP5",
    "RK4",
    "BacksolveAdjoint",
    "DiscreteAdjoint",
    "Euler",
    "ForwardSensitivity",
    "GaussAdjoint",
    "Heun",
    "IController",
    "InterpolatingAdjoint",
    "Midpoint",
    "ODEProblem",
    "ODESolution",
    "PIController",
    "PIDController",
    "QuadratureAdjoint",
    "Ralston",
    "ReturnCode",
    "SolveError",
    "Tsit5",
    "Vern6",
    "Vern7",
    "Vern8",
    "Vern9",
    "cache_compilations",
    "compile_loops_natively",
    "loops_are_native",
    "remake",
    "solve",
]
