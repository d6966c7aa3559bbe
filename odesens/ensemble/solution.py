"""`EnsembleSolution`: what an ensemble solve returns.

Owns: access to trajectories, statistics over them, how each ended. Must not know: how they were solved.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree, Real

from ..call import Call
from ..components import shown
from ..integrate.loop import COUNTS
from ..saveat import concrete
from ..solution import ODESolution, Stats, known
from ..status import ReturnCode
from ..view import View
from ..viewed import Viewed

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Summary(NamedTuple):
    """Statistics over trajectories at each saved time.

    Attributes
    ----------
    t : array (m,)
    mean, std : pytrees of arrays (m, ..)
        Like u without the axis of trajectories.
    levels : array (q,)
    quantiles : pytree of arrays (q, m, ..); None where states are complex
    count : int
        The number of trajectories in them.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), saveat=[1.0])
    >>> sol = ode.solve(ode.EnsembleProblem(prob, p=jnp.array([1.0, 2.0])))
    >>> summary = sol.summary(quantiles=[0.5])
    >>> print(summary.mean.round(4), summary.quantiles.shape, summary.count)
    [0.2516] (1, 1) 2
    """

    t: Any
    mean: Any
    std: Any
    levels: Any
    quantiles: Any
    count: Any


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["varied", "call", "u_tree", "labels"]
)
@dataclass(frozen=True)
class Operands:
    """The operands of all trajectories' calls, those that are `varied` with a leading axis; and the call of one.

    After them come what solutions know of names, of which `labels` is the structure.
    """

    values: tuple
    varied: tuple[bool, ...]
    call: Call
    u_tree: Any
    labels: Any

    def of(self, i) -> tuple[tuple, Any]:
        own = tuple(x[i] if varied else x for x, varied in zip(self.values, self.varied, strict=True))
        end = len(own) - self.labels.num_leaves
        return own[:end], jax.tree.unflatten(self.labels, own[end:])


@jax.tree_util.register_pytree_node_class
class EnsembleSolution(Viewed):
    """The solution of an `EnsembleProblem`; a pytree, which may leave `jit`.

    Attributes
    ----------
    t : array (m,), or (N, m) where trajectories have their own times; None with `output_func` or `reduction`
        The saved times.
    u : pytree of arrays (N, m, ..)
        The states: the structure of u0, leading axes trajectories and times. With `output_func`, what it returned, with
        a leading axis; with `reduction`, the last u.
    retcodes : array (N,) of integers, see `ReturnCode`
    converged : array (N,) of booleans
        Which trajectories reached the end of their spans.
    stats : Stats of arrays (N,)
    success : bool, or a boolean array under a transform
        Whether all did.

    Notes
    -----
    `sol[i]` is trajectory i, an `ODESolution` (with `output_func`, its output); `len(sol)` and iteration go over
    trajectories.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, saveat=[0.5, 1.0])
    >>> many = ode.EnsembleProblem(prob, prob_func=lambda prob, i, repeat: ode.remake(prob, p=1.0 + i))
    >>> sol = ode.solve(many, trajectories=3)
    >>> len(sol), sol.success, sol[2].u.shape, sol.stats.naccept.shape
    (3, True, (2,), (3,))
    >>> print(sol.summary().mean.round(4))  # over the trajectories, at each time
    [0.3992 0.1843]
    """

    def __init__(
        self,
        u: PyTree,
        codes: Int[Array, " N"],
        counts: Int[Array, "N counts"],
        operands: Operands | None,
        reduced: bool,
    ):
        self.u = u
        self.retcodes = codes
        self._counts = counts
        self._operands = operands
        self._reduced = reduced

    def tree_flatten(self) -> tuple[tuple, bool]:
        return (self.u, self.retcodes, self._counts, self._operands), self._reduced

    @classmethod
    def tree_unflatten(cls, static: bool, children: Sequence) -> "EnsembleSolution":
        u, codes, counts, operands = children
        return cls(u, codes, counts, operands, static)

    @property
    def t(self) -> Real[Array, "..."] | None:
        """The saved times (m,) or (N, m); None where trajectories have none."""
        return None if self._operands is None else self._operands.values[self._operands.call.i_ts]

    @property
    def converged(self) -> Bool[Array, " N"]:
        """Which trajectories reached the end of their spans (N,)."""
        return self.retcodes <= int(ReturnCode.Terminated)

    @property
    def success(self) -> bool | Bool[Array, ""]:
        """Whether all of them did: a bool, or a boolean array under a transform."""
        ok = jnp.all(self.converged)
        known = concrete(ok)
        return ok if known is None else bool(known)

    @property
    def stats(self) -> Stats:
        """Counts of what each solve did (N,)."""
        naccept, nreject, nf, nfactor, njacs = (self._counts[..., i] for i in range(COUNTS))
        return Stats(nf=nf, njacs=njacs, nfactor=nfactor, naccept=naccept, nreject=nreject)

    def __len__(self) -> int:
        return self.retcodes.shape[0]

    def __getitem__(self, i: int) -> Any:
        """Trajectory i."""
        if self._reduced:
            raise TypeError(
                "sol[i]: the trajectories of this ensemble were reduced, sol.u is what they were reduced to"
            )
        if not isinstance(i, (int, np.integer)) or isinstance(i, bool):
            raise TypeError(f"sol[i] needs the number of a trajectory, got {i!r}; slices are of sol.u")
        if not -len(self) <= i < len(self):
            raise IndexError(f"sol[{i}]: this ensemble has {len(self)} trajectories")
        u = jax.tree.map(lambda x: x[i], self.u)
        own = self._operands
        if own is None:
            return u
        operands, labels = own.of(i)
        ended = self.retcodes[i], self._counts[i]
        return ODESolution(operands[own.call.i_ts], u, *ended, operands, None, own.call, own.u_tree, labels=labels)

    def __iter__(self) -> Iterator:
        return (self[i] for i in range(len(self)))

    def summary(self, quantiles: Sequence[float] = QUANTILES) -> Summary:
        """Mean, standard deviation and quantiles over the trajectories that converged, at each saved time.

        Parameters
        ----------
        quantiles : sequence of numbers in [0, 1]
            Levels, by linear interpolation between order statistics.

        Returns
        -------
        Summary

        Raises
        ------
        TypeError, ValueError
            After `output_func` or `reduction`; where trajectories were saved at different times.
        """
        t = self.t
        if t is None:
            raise TypeError("summary() is over states: this ensemble has an output_func or a reduction")
        levels = np.asarray(quantiles, float)
        if levels.ndim != 1 or not np.all((levels >= 0) & (levels <= 1)):
            raise ValueError(f"quantiles must be numbers from 0 to 1, got {quantiles!r}")
        if t.ndim == 2:
            known = concrete(t)
            if known is not None and known.size and np.any(known != known[:1]):
                raise ValueError("summary() needs the same saved times in all trajectories: give saveat as an array")
            t = t[0] if t.shape[0] else jnp.full(t.shape[1], jnp.nan, t.dtype)
        ok = self.converged
        use = lambda x: jnp.where(ok.reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.nan)
        over = lambda fn: jax.tree.map(lambda x: fn(use(x)), self.u)
        mean = over(lambda x: jnp.nanmean(x, axis=0))
        std = over(lambda x: jnp.nanstd(x, axis=0))
        at = over(lambda x: jnp.nanquantile(x, jnp.asarray(levels, x.dtype), axis=0)) if self._real else None
        return Summary(t, mean, std, levels, at, jnp.sum(ok))

    def _view(self) -> View:
        own = self._operands
        if own is None:
            raise TypeError(
                "pictures, tables and files are of states: this ensemble has an output_func or a reduction, whose "
                "result is sol.u"
            )
        labels = own.of(0)[1] if len(self) else None
        observe = lambda key: np.stack([known(one[key], "sol") for one in self])
        return View(
            t=known(self.t, "sol"),
            u=known(self.u, "sol"),
            lead=2,
            names=None if labels is None else labels.names,
            events=None,
            codes=known(self.retcodes, "sol"),
            counts={k: known(x, "sol") for k, x in self.stats._asdict().items()},
            alg=repr(own.call.spec.alg),
            sensealg=repr(own.call.spec.sensealg),
            observe=None if labels is None else observe,
        )

    @property
    def _real(self) -> bool:
        """Whether states can be put in order."""
        return not any(jnp.iscomplexobj(x) for x in jax.tree.leaves(self.u))

    def __repr__(self) -> str:
        codes = concrete(self.retcodes)
        ended = ""
        if codes is not None:
            kinds, counts = np.unique(codes, return_counts=True)
            ended = ": " + ", ".join(f"{n} {ReturnCode(int(k)).name}" for k, n in zip(kinds, counts, strict=True))
        return f"EnsembleSolution({len(self)} trajectories{ended}, u: {shown(self.u)})"
