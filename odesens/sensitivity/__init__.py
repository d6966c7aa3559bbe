"""The derivative engines: how T_k and A_k of the primitive are computed, one module each.

Owns: which engine serves which sensitivity algorithm. Must not know: the primitive.
"""

from collections.abc import Callable
from typing import NamedTuple

from .. import sensealg
from . import backsolve, discrete, forward, gauss, interpolating, quadrature


class Engine(NamedTuple):
    """tangent(flow) -> ([lanes], m, n); adjoint(flow, w, wanted) -> (u_bar, p_bar, ended)."""

    tangent: Callable
    adjoint: Callable


ENGINES = {
    sensealg.DiscreteAdjoint: Engine(discrete.tangent, discrete.adjoint),
    sensealg.InterpolatingAdjoint: Engine(forward.tangent, interpolating.adjoint),
    sensealg.QuadratureAdjoint: Engine(forward.tangent, quadrature.adjoint),
    sensealg.GaussAdjoint: Engine(forward.tangent, gauss.adjoint),
    sensealg.BacksolveAdjoint: Engine(forward.tangent, backsolve.adjoint),
    sensealg.ForwardSensitivity: Engine(forward.tangent, forward.adjoint),
}
