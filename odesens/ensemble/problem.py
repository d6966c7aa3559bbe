"""`EnsembleProblem` and the ensemble algorithms, as data: what is solved many times, and on what.

Owns: their arguments, checked. Must not know: how trajectories are traced, batched or solved.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..display import Described
from ..problem import ODEProblem, check_tspan


@dataclass(frozen=True, eq=False, repr=False)
class EnsembleProblem(Described):
    """One problem, solved for many initial states, parameters or spans: trajectories i = 0, 1, .., N - 1.

    Parameters
    ----------
    prob : ODEProblem
        What the trajectories have in common.
    prob_func : callable, optional
        `prob_func(prob, i, repeat)` returns the problem of trajectory i, made of `prob` by `remake`. It is traced once,
        with i an integer array of shape (): `data[i]` for a JAX array, `jax.random.fold_in(key, i)`. Where that is not
        possible (i indexes NumPy data, draws from NumPy's generators), it is called N times with a Python integer, and
        the problems must differ in values only. `repeat` is 0; it is there for SciML's signature.
    output_func : callable, optional
        `output_func(sol, i)` returns a pytree of arrays, what is kept of the `ODESolution` sol. By default its states.
        (SciML's returns a pair (out, rerun); here the result is `out` alone.)
    reduction : callable, optional
        `reduction(u, batch, I)` returns the new u, of the structure, shapes and dtypes of `u_init`, from the outputs of
        one batch (leading axis: trajectories) with indices I. Then `sol.u` is the last u.
    u_init : pytree of arrays, optional
        The first u; needed with `reduction`.
    u0, p : pytrees, optional
        Initial states and parameters of all trajectories: like those of `prob` with a leading axis N in every array.
    tspan : (t0, t1), optional
        Spans of all trajectories: each of t0 and t1 a number or an array (N,).

    Raises
    ------
    TypeError, ValueError
        For arguments of another kind, or leading axes of different lengths.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, saveat=[0.5, 1.0])
    >>> many = ode.EnsembleProblem(prob, prob_func=lambda prob, i, repeat: ode.remake(prob, p=1.0 + i))
    >>> sol = ode.solve(many, trajectories=3)
    >>> print(sol.u.shape, sol.u[:, 1].round(4))  # exp(-1), exp(-2), exp(-3)
    (3, 2) [0.3679 0.1353 0.0498]
    """

    prob: ODEProblem
    prob_func: Callable | None = None
    output_func: Callable | None = None
    reduction: Callable | None = None
    u_init: PyTree = None
    u0: PyTree = None
    p: PyTree = None
    tspan: Any = None

    def _described(self) -> dict:
        return {f.name: x for f in fields(self) if (x := getattr(self, f.name)) is not None}

    def __post_init__(self):
        if not isinstance(self.prob, ODEProblem):
            raise TypeError(f"EnsembleProblem needs an ODEProblem first, got {type(self.prob).__name__}")
        for name in ("prob_func", "output_func", "reduction"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise TypeError(f"{name} must be a function, got {type(given).__name__}: {given!r}")
        if (self.reduction is None) != (self.u_init is None):
            raise ValueError("reduction and u_init go together: u_init is the u that the first batch is added to")
        if self.tspan is not None:
            check_tspan(self.tspan)


class EnsembleAlgorithm:
    """Base of the ensemble algorithms."""


@dataclass(frozen=True)
class EnsembleSerial(EnsembleAlgorithm):
    """One trajectory after the other: the memory of one solve, also for gradients.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), saveat=[1.0])
    >>> many = ode.EnsembleProblem(prob, p=jnp.array([1.0, 2.0]))
    >>> print(ode.solve(many, None, ode.EnsembleSerial()).u[:, 0].round(4))
    [0.3679 0.1353]
    """


@dataclass(frozen=True)
class EnsembleVectorized(EnsembleAlgorithm):
    """Trajectories side by side in lanes of one loop, on one device.

    A lane that has finished takes the next trajectory, so that none waits for the slowest; derivatives take
    trajectories of like numbers of steps together. The cost is near that of the sum of all steps.

    Parameters
    ----------
    lanes : int, optional
        How many are in the loop at once; 32 on a CPU, where more are no faster, 4096 elsewhere.

    Raises
    ------
    TypeError, ValueError
        Where lanes is not an integer of at least 1.

    Examples
    --------
    >>> import odesens as ode
    >>> ode.EnsembleVectorized(lanes=64).lanes
    64
    """

    lanes: int | None = None

    def __post_init__(self):
        if self.lanes is not None and (isinstance(self.lanes, bool) or not isinstance(self.lanes, int)):
            raise TypeError(f"EnsembleVectorized: lanes must be an integer, got {self.lanes!r}")
        if self.lanes is not None and self.lanes < 1:
            raise ValueError(f"EnsembleVectorized: lanes must be at least 1, got {self.lanes}")


@dataclass(frozen=True)
class EnsembleSharded(EnsembleAlgorithm):
    """`EnsembleVectorized` on each device of a mesh, each with its share of the trajectories.

    Parameters
    ----------
    mesh : jax.sharding.Mesh, optional
        By default all of `jax.devices()`: those of this process, also several of one CPU (start Python with
        `XLA_FLAGS=--xla_force_host_platform_device_count=2`), and after `jax.distributed.initialize` those of all
        processes. Each process then makes the same calls with the same values, and gets all results.
    lanes : int, optional
        As for `EnsembleVectorized`, on each device.

    Raises
    ------
    TypeError, ValueError
        Where lanes is not an integer of at least 1, or mesh not a Mesh.

    Examples
    --------
    >>> import odesens as ode
    >>> ode.EnsembleSharded().devices().axis_names
    ('trajectories',)
    """

    mesh: Any = None
    lanes: int | None = None

    def __post_init__(self):
        if self.mesh is not None and not isinstance(self.mesh, jax.sharding.Mesh):
            raise TypeError(f"EnsembleSharded: mesh must be a jax.sharding.Mesh, got {type(self.mesh).__name__}")
        EnsembleVectorized(self.lanes)

    def devices(self) -> jax.sharding.Mesh:
        """The mesh, the default one where none was given."""
        return self.mesh or jax.sharding.Mesh(np.array(jax.devices()), ("trajectories",))
