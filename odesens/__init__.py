"""Differentiable ordinary differential equations on JAX: the public names, nothing else."""

from . import compat, interpolation, plotting
from .algorithms import (
    BS3,
    DOP853,
    DP5,
    FBDF,
    GMRES,
    LU,
    RK4,
    TRBDF2,
    AutoDP5,
    AutoTsit5,
    Euler,
    Heun,
    KenCarp4,
    KenCarp5,
    Kvaerno3,
    Kvaerno5,
    Midpoint,
    Ralston,
    Rodas4,
    Rodas5P,
    Rosenbrock23,
    Tsit5,
    Vern6,
    Vern7,
    Vern8,
    Vern9,
)
from .callbacks import CallbackSet, ContinuousCallback, DiscreteCallback, PeriodicCallback, PresetTimeCallback
from .ensemble import (
    EnsembleError,
    EnsembleProblem,
    EnsembleSerial,
    EnsembleSharded,
    EnsembleSolution,
    EnsembleVectorized,
)
from .gradient_check import GradientCheck, check_gradient
from .health import Diagnosis
from .jacobian_check import check_jacobian
from .methods.controller import IController, PIController, PIDController
from .problem import BrownBasic, CheckInit, ODEProblem, SplitODEProblem, remake
from .saved import SavedSolution, load
from .segments import BooleanConditionWarning
from .sensealg import (
    BacksolveAdjoint,
    DiscreteAdjoint,
    ForwardSensitivity,
    GaussAdjoint,
    InterpolatingAdjoint,
    QuadratureAdjoint,
)
from .sensitivity_report import SensitivityReport, sensitivity_report
from .solution import Events, ODESolution
from .solve import solve
from .status import ReturnCode, SolveError
from .steady_state import DynamicSS, SSRootfind, SteadyStateProblem, SteadyStateSolution
from .xla import cache_compilations, compile_loops_natively, loops_are_native

__version__ = "0.1.0"

__all__ = [
    "BS3",
    "DOP853",
    "DP5",
    "FBDF",
    "GMRES",
    "LU",
    "RK4",
    "TRBDF2",
    "AutoDP5",
    "AutoTsit5",
    "BacksolveAdjoint",
    "BooleanConditionWarning",
    "BrownBasic",
    "CallbackSet",
    "CheckInit",
    "ContinuousCallback",
    "Diagnosis",
    "DiscreteAdjoint",
    "DiscreteCallback",
    "DynamicSS",
    "EnsembleError",
    "EnsembleProblem",
    "EnsembleSerial",
    "EnsembleSharded",
    "EnsembleSolution",
    "EnsembleVectorized",
    "Euler",
    "Events",
    "ForwardSensitivity",
    "GaussAdjoint",
    "GradientCheck",
    "Heun",
    "IController",
    "InterpolatingAdjoint",
    "KenCarp4",
    "KenCarp5",
    "Kvaerno3",
    "Kvaerno5",
    "Midpoint",
    "ODEProblem",
    "ODESolution",
    "PIController",
    "PIDController",
    "PeriodicCallback",
    "PresetTimeCallback",
    "QuadratureAdjoint",
    "Ralston",
    "ReturnCode",
    "Rodas4",
    "Rodas5P",
    "Rosenbrock23",
    "SSRootfind",
    "SavedSolution",
    "SensitivityReport",
    "SolveError",
    "SplitODEProblem",
    "SteadyStateProblem",
    "SteadyStateSolution",
    "Tsit5",
    "Vern6",
    "Vern7",
    "Vern8",
    "Vern9",
    "cache_compilations",
    "check_gradient",
    "check_jacobian",
    "compat",
    "compile_loops_natively",
    "interpolation",
    "load",
    "loops_are_native",
    "plotting",
    "remake",
    "sensitivity_report",
    "solve",
]
