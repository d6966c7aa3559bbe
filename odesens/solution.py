"""`ODESolution`: what a solve returns.

Owns: access to saved values, dense output, how the solve ended. Must not know: how values and derivatives are computed.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Int, PyTree, Real

from .algorithms import Algorithm
from .call import RECORD, Call
from .components import shown
from .events import EventSystem
from .health import Diagnosis, diagnose
from .integrate.loop import COUNTS
from .primitive import flow
from .saveat import concrete
from .sensealg import SensitivityAlgorithm
from .status import ReturnCode
from .view import View
from .viewed import Viewed


class Stats(NamedTuple):
    """Counts: evaluations of f (those for Jacobians apart), Jacobians and factorisations, accepted, rejected steps."""

    nf: Any
    njacs: Any
    nfactor: Any
    naccept: Any
    nreject: Any


def return_code(code: Int[Array, "..."]) -> ReturnCode | Int[Array, "..."]:
    """A solve's code as a `ReturnCode`; of many solves, or under a transform, the integers."""
    known = None if jnp.ndim(code) else concrete(code)
    return code if known is None else ReturnCode(int(known))


class Events(NamedTuple):
    """What happened during a solve; under a transform max_events rows, the unused ones with which = -1 and t = inf.

    Attributes
    ----------
    t : array (E,)
        Times of the events, differentiable.
    which, component : int arrays (E,)
        The number of the callback, in the order given, and the component of its condition.
    before, after : pytrees of arrays (E, ..)
        The states before and after each event, differentiable.
    count : int

    Examples
    --------
    >>> import odesens as ode
    >>> dose = ode.PeriodicCallback(1.0, lambda t, u, p: u + 1.0)
    >>> body = ode.ODEProblem(lambda t, u, p: -u, 0.0, (0.0, 2.5), callback=dose, max_events=2)
    >>> events = ode.solve(body, saveat=[2.5]).events
    >>> print(events.t, events.which, events.count, (events.after - events.before).round(6))
    [1. 2.] [0 0] 2 [1. 1.]
    """

    t: Any
    which: Any
    component: Any
    before: PyTree
    after: PyTree
    count: Any


def listed(system: EventSystem, t, kinds, before, after) -> Events:
    """The events that callbacks made, stops left out; their number is a shape where it is known."""
    visible = system.table("callback") >= 0
    most = system.most - sum(kind.size for kind in system.kinds if kind.callback < 0)
    known = concrete(jax.lax.stop_gradient(kinds))
    if known is None:
        count = jnp.sum((kinds >= 0) & jnp.take(jnp.asarray(visible), kinds, mode="clip"), dtype=jnp.int32)
        return _rows_of(system, most, t, kinds, before, after)._replace(count=count)
    count = int(np.sum(visible[known[known >= 0]]))
    return _rows_of(system, count, t, kinds, before, after)._replace(count=count)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rows_of(system: EventSystem, rows: int, t, kinds, before, after) -> Events:
    """The first `rows` events of callbacks, all parts zero where there are fewer, but which = -1 and t = inf."""
    of = lambda name: jnp.where(kinds < 0, -1, jnp.take(jnp.asarray(system.table(name)), kinds, mode="clip"))
    which, component = of("callback"), of("component")
    order = jnp.argsort(which < 0, stable=True)[:rows]
    used = which[order] >= 0
    mask = lambda x: jnp.where(used.reshape(-1, *(1,) * (x.ndim - 1)), x[order], 0)
    before, after = jax.tree.map(mask, (before, after))
    pick = lambda x: jnp.where(used, x[order], -1)
    return Events(jnp.where(used, t[order], jnp.inf), pick(which), pick(component), before, after, 0)


def known(tree, name: str):
    """A pytree of arrays as NumPy arrays."""
    arrays = jax.tree.map(concrete, tree)
    if len(jax.tree.leaves(arrays)) != len(jax.tree.leaves(tree)):
        raise TypeError(
            f"pictures, tables and files need values, but {name} is inside a transformation (jit, vmap, ..): return it "
            "and do this outside"
        )
    return arrays


@jax.tree_util.register_pytree_node_class
class ODESolution(Viewed):
    """The solution of an `ODEProblem`; a pytree, which may leave `jit` and `vmap`.

    Attributes
    ----------
    t : array (m,)
        The saved times.
    u : pytree of arrays (m, ..)
        The state at those times: the structure of u0 with a leading time axis.
    retcode : ReturnCode, or an integer array under a transform
    stats : Stats
        `nf`, `njacs`, `nfactor`, `naccept`, `nreject`.
    events : Events, or None where there are no callbacks
    alg, sensealg : the method and the sensitivity algorithm that were used, also where none was named

    Notes
    -----
    `sol[i]` is the state at saved time i, `len(sol)` and iteration go over saved times, and `sol(t)` is the state at
    any time in the span, see `__call__`. Of a symbolic problem, `sol[x]` is what x, a name, a symbol or an expression,
    is at the saved times, `sol(t, idxs=x)` at others, and `sol.ps[k]` a parameter.

    Examples
    --------
    >>> import odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, reltol=1e-8)
    >>> sol = ode.solve(prob, saveat=[0.5, 1.0])
    >>> sol.t.shape, sol.u.shape, len(sol), sol.success, sol.retcode.name
    ((2,), (2,), 2, True, 'Success')
    >>> print(f"{sol[-1]:.5f} {sol(0.25):.5f} {sol(0.25, deriv=1):.5f}")  # exp(-2 t), and its derivative
    0.13534 0.60653 -1.21306
    """

    def __init__(
        self,
        t: Real[Array, "..."],
        u: PyTree,
        code: Int[Array, "..."],
        counts: Int[Array, "..."],
        operands: Sequence,
        record: tuple | None,
        call: Call,
        u_tree: Any,
        events: Events | None = None,
        labels: Any = None,
    ):
        self.t = t
        self.u = u
        self.events = events
        self._code = code
        self._counts = counts  # accepted and rejected steps, evaluations of f, factorisations, Jacobians
        self._operands = operands
        self._record = record
        self._call = call
        self._u_tree = u_tree
        self._labels = labels  # of a symbolic problem: the meaning of names

    def tree_flatten(self) -> tuple[tuple, tuple]:
        arrays = (self.t, self.u, self._code, self._counts, self._operands, self._record)
        return (*arrays, self.events, self._labels), (self._call, self._u_tree)

    @classmethod
    def tree_unflatten(cls, static: tuple, children: Sequence) -> "ODESolution":
        *arrays, events, labels = children
        return cls(*arrays, *static, events=events, labels=labels)

    @property
    def alg(self) -> Algorithm:
        """The method that was used."""
        return self._call.spec.alg

    @property
    def sensealg(self) -> SensitivityAlgorithm:
        """The sensitivity algorithm of derivatives."""
        return self._call.spec.sensealg

    @property
    def stats(self) -> Stats:
        """Counts of what the solve did."""
        naccept, nreject, nf, nfactor, njacs = (self._counts[..., i] for i in range(COUNTS))
        return Stats(nf=nf, njacs=njacs, nfactor=nfactor, naccept=naccept, nreject=nreject)

    @property
    def retcode(self) -> ReturnCode | Int[Array, "..."]:
        """How the solve ended: a `ReturnCode`, or an integer array under a transform."""
        return return_code(self._code)

    @property
    def success(self) -> bool | Bool[Array, "..."]:
        """Whether the end of the span was reached: a bool, or a boolean array under a transform."""
        ok = self._code <= ReturnCode.Terminated
        known = None if jnp.ndim(ok) else concrete(ok)
        return ok if known is None else bool(known)

    def __len__(self) -> int:
        self._one_lane()
        return self.t.shape[0]

    def _one_lane(self):
        if jnp.ndim(self._code):
            raise TypeError(
                "this solution holds several lanes: take one with jax.tree.map(lambda x: x[i], sol), "
                "or map over them with jax.vmap(lambda sol: sol(t))(sol)"
            )

    def __getitem__(self, i: Any) -> PyTree:
        """The state at saved time i; of a symbolic problem also what i, a name or an expression, is at all of them."""
        if self._labels is not None and self._labels.handles(i):
            return self._labels.at(self.t, self.u, i)
        self._one_lane()
        if isinstance(i, int) and not -len(self) <= i < len(self):
            raise IndexError(f"sol[{i}]: this solution has {len(self)} saved states")
        if isinstance(i, str):
            raise TypeError(f"sol[{i!r}]: saved states are indexed by number; for a named component write sol.u[{i!r}]")
        return jax.tree.map(lambda x: x[i], self.u)

    def __iter__(self) -> Iterator[PyTree]:
        return (self[i] for i in range(len(self)))

    @property
    def ps(self) -> Any:
        """`sol.ps[k]`: the parameters of a symbolic problem by name, at t0 for those that events change."""
        if self._labels is None:
            raise AttributeError("only solutions of symbolic problems have parameters by name")
        return self._labels.ps

    def __call__(self, t: Real[ArrayLike, "..."], deriv: int = 0, idxs: Any = None) -> PyTree:
        """The state at time t, or its time derivative of order `deriv`.

        Parameters
        ----------
        t : real scalar or array (..)
            Times within the span, in any order.
        deriv : int
            Order of the derivative in t, which is that of the differential equation at the interpolated state: du/dt =
            f(t, u(t), p), and so on.
        idxs : name, expression, or a list of them, optional
            Of a symbolic problem: what to evaluate in place of the state.

        Returns
        -------
        pytree like u0, with t's axes leading

        Raises
        ------
        ValueError
            For a time outside the span; under a transform the value is NaN. For a `deriv` below 0.
        TypeError
            For times that are not real, `idxs` without a symbolic problem, a solution of several lanes.

        Notes
        -----
        With `dense=True`, or where every step was saved, u(t) comes from the method's dense output on the recorded
        steps; otherwise the problem is solved again with t as saved times. Differentiable either way, in t and in
        everything that the solution depends on.
        """
        self._one_lane()
        if isinstance(deriv, bool) or not isinstance(deriv, int) or deriv < 0:
            raise ValueError(f"deriv must be an integer >= 0, got {deriv!r}")
        try:
            t = jnp.asarray(t)
        except (TypeError, ValueError):
            raise TypeError(f"sol(t) needs real times, got {t!r}") from None
        call = self._call
        t0 = self._operands[call.i_t0]
        if not jnp.issubdtype(t.dtype, jnp.floating) and not jnp.issubdtype(t.dtype, jnp.integer):
            raise TypeError(f"sol(t) needs real times, got dtype {t.dtype}")
        times = t.astype(t0.dtype)
        self._check_span(times)
        if idxs is not None and self._labels is None:
            raise TypeError("idxs needs a solution of a symbolic problem; index the state that sol(t) returns")
        shape = times.shape
        at = self._at if idxs is None else lambda ts: [self._labels.at(ts, *self._at(ts), idxs)]
        for _ in range(deriv):
            at = _time_derivative(at)
        leaves = at(times.reshape(-1))
        leaves = [x.reshape(*shape, *x.shape[1:]) for x in leaves]
        return leaves[0] if idxs is not None else jax.tree.unflatten(self._u_tree, leaves)

    def _at(self, ts) -> list:
        call = self._call
        reverse = self._operands[call.i_t0] > self._operands[call.i_t1]
        order = jnp.argsort(jnp.where(reverse, -ts, ts))
        operands = self._with_times(ts[order])
        if self._record is not None:
            given = dataclasses.replace(call, given_record=True, mapped=(False,) * (len(self._operands) + RECORD))
            us = flow(given, *operands, *self._record)
        else:
            us = flow(call, *operands)[: call.n_u]
        back = jnp.argsort(order)
        return [x[back] for x in us]

    def _with_times(self, ts) -> list:
        operands = list(self._operands)
        operands[self._call.i_ts] = ts
        return operands

    def _check_span(self, times):
        call = self._call
        known, t0, t1 = (concrete(x) for x in (times, self._operands[call.i_t0], self._operands[call.i_t1]))
        if known is None or t0 is None or t1 is None or known.size == 0:
            return
        low, high = min(t0, t1), max(t0, t1)
        if not (known.min() >= low and known.max() <= high):
            raise ValueError(
                f"sol(t) needs times within tspan = ({float(t0):g}, {float(t1):g}), "
                f"got {known.min():g} to {known.max():g}"
            )

    def _view(self) -> View:
        lanes = jnp.ndim(self._code)
        if lanes > 1:
            raise TypeError(f"this solution has {lanes} axes of lanes: take one with jax.tree.map(lambda x: x[i], sol)")
        codes = known(self._code, "sol")
        events = None if self.events is None or lanes else known(self.events, "sol")
        observe = None if self._labels is None else lambda key: known(self._labels.at(self.t, self.u, key), "sol")
        return View(
            t=known(self.t, "sol"),
            u=known(self.u, "sol"),
            lead=1 + lanes,
            names=None if self._labels is None else self._labels.names,
            events=events,
            codes=codes,
            counts={k: known(x, "sol") for k, x in self.stats._asdict().items()},
            alg=repr(self.alg),
            sensealg=repr(self.sensealg),
            observe=observe,
        )

    def diagnose(self) -> Diagnosis:
        """How stiff the problem was, how many steps were rejected, which component is hardest, which method would suit.

        Returns
        -------
        Diagnosis
            A small table as its text.

        Raises
        ------
        TypeError
            Within a transformation, and for a solution of many lanes.

        Solves the problem twice more, for its steps and at tolerances ten times smaller.
        """
        self._one_lane()
        view = self._view()
        counts = np.array([view.counts[k] for k in ("naccept", "nreject")])
        return diagnose(self._call, known(list(self._operands), "sol"), view.t, jax.tree.leaves(view.u), counts)

    def __repr__(self) -> str:
        code = self.retcode
        if isinstance(code, ReturnCode):
            ends = ""
            if jnp.ndim(self._code) == 0 and len(self):
                t = np.asarray(concrete(self.t))
                ends = f", t = {t[0]:g} .. {t[-1]:g}" if t.dtype != object and t.ndim else ""
            counts = [c for x in self.stats if (c := concrete(x)) is not None]
            steps = ""
            if len(counts) == len(self.stats):
                nf, _, _, naccept, nreject = (int(c) for c in counts)
                steps = f", {naccept} steps ({nreject} rejected), {nf} evaluations of f"
            happened = None if self.events is None else concrete(self.events.count)
            if happened is not None and happened.ndim == 0:
                steps += f", {int(happened)} event{'' if happened == 1 else 's'}"
            return f"ODESolution({code.name}: {len(self)} saves{ends}, u: {shown(self.u)}{steps})"
        return f"ODESolution(t: {list(jnp.shape(self.t))}, u: {shown(self.u)})"


def _time_derivative(at):
    return lambda ts: jax.jvp(at, (ts,), (jnp.ones_like(ts),))[1]
