"""A user's function with its solves made otherwise: by another engine, at other tolerances.

The function is traced to a jaxpr, in which each solve is one equation; that equation is exchanged. Owns: finding the
solves of a program, exchanging them, what they report. Must not know: what is compared, what is shown.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .call import Call
from .extension import exchanged, subjaxprs
from .integrate.loop import COUNTS
from .primitive import flow

FLOW = "ode_flow"


class Program(NamedTuple):
    """A function of a pytree x, traced: a jaxpr of x's leaves, and the structure of its result."""

    closed: Any
    tree: Any


def traced(fun: Callable, x) -> Program:
    """`fun` at x as a program; x's leaves are arrays or numbers."""
    shape = []

    def flat(x):
        out, tree = jax.tree.flatten(fun(x))
        shape.append(tree)
        return out

    closed = jax.make_jaxpr(flat)(x)
    return Program(closed, shape[0])


def solves(jaxpr) -> list[Call]:
    """The calls of the flow in a jaxpr, also in nested ones."""
    own = [e.params["call"] for e in jaxpr.eqns if e.primitive.name == FLOW]
    return own + [call for inner in subjaxprs(jaxpr) for call in solves(inner)]


def again(program: Program, sensealg: Callable | None = None, tighter: float = 1.0) -> Callable:
    """The program as a function of x, its solves by `sensealg(call)` and with tolerances divided by `tighter`."""

    def change(params, inputs):
        call: Call = params["call"]
        if sensealg is not None:
            call = replace(call, spec=replace(call.spec, sensealg=sensealg(call)))
        call = replace(call, spec=replace(call.spec, throw=False))
        inputs = list(inputs)
        for i in (call.i_t1 + 1, call.i_t1 + 2):  # reltol, abstol
            inputs[i] = inputs[i] / tighter
        return flow(call, *inputs)

    def fun(x):
        out = exchanged(program.closed, FLOW, change)(*jax.tree.leaves(x))
        return jax.tree.unflatten(program.tree, out)

    return fun


class Ended(NamedTuple):
    """How solves ended: return codes and counts (accepted and rejected steps, evaluations of f, factorisations,
    Jacobians) of those that are no lanes; forward solves, and backward ones that have some of their own."""

    forward: list
    backward: list


def reported(program: Program) -> Callable:
    """The program as a function of x that also returns what its solves report, of those not in nested jaxprs."""

    def fun(x):
        ended = Ended([], [])

        def keep(params, inputs):
            call: Call = params["call"]
            call = replace(call, spec=replace(call.spec, throw=False))
            outs = flow(call, *inputs)
            if call.has_info and call.lanes is None:
                code, counts = outs[call.n_values : call.n_values + 2]
                ended.forward.append(jnp.concatenate([code[None].astype(jnp.int32), counts]))
            if call.adjoint and call.lanes is None:
                ended.backward.append(outs[-1])
            return outs

        out = exchanged(program.closed, FLOW, keep)(*jax.tree.leaves(x))
        return jax.tree.unflatten(program.tree, out), ended

    return fun


def totals(ended: list) -> np.ndarray:
    """The worst code and the sums of counts (1 + COUNTS,)."""
    if not ended:
        return np.zeros(1 + COUNTS, int)
    rows = np.stack([np.asarray(x) for x in ended])
    return np.concatenate([[rows[:, 0].max()], rows[:, 1:].sum(axis=0)])
