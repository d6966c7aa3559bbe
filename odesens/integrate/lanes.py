"""Lanes: many solves of one problem in lockstep, as one leading axis that the loops themselves know about.

Owns: mapping a one-lane function over the lanes, reductions over them. Must not know: what a lane computes.

A loop written for lanes maps only its arithmetic, never itself: the buffers of the record stay outside the mapped part
and get one row for all lanes, so that nothing is selected or copied where lanes differ in when they finish.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..extension import count_down

FEW = 32  # lanes up to which rows are written one after the other


def choose(flag, new, old):
    """`new` in the lanes where `flag` ([lanes]), else `old`; trees of arrays whose leading axes are those of flag."""
    wide = lambda x: flag.reshape(*flag.shape, *(1,) * (x.ndim - flag.ndim))
    return jax.tree.map(lambda a, b: jnp.where(wide(b), a, b), new, old)


class Lanes(NamedTuple):
    """`size` lanes along a leading axis, or one solve without such an axis where `size` is None."""

    size: int | None

    def map(self, fn: Callable, in_axes: Any = 0) -> Callable:
        """`fn` of one lane as a function of all of them; `in_axes` as in `jax.vmap`."""
        if self.size is None:
            return fn
        return jax.vmap(fn, in_axes=in_axes, axis_size=self.size)

    def spread(self, x):
        """A value that all lanes share, given to each."""
        return x if self.size is None else jnp.broadcast_to(x, (self.size, *jnp.shape(x)))

    def row(self, buffer, i):
        """Row i of a record buffer whose leading axis counts rows."""
        return jax.lax.dynamic_index_in_dim(buffer, i, keepdims=False)

    def gather(self, buffer, index):
        """Rows `index` ([lanes], m) of a buffer (rows, [lanes], ..): ([lanes], m, ..)."""
        return self.map(lambda b, i: b[i], (1, 0))(buffer, index)

    def scatter(self, buffer, index, values):
        """Add values ([lanes], m, ..) into rows `index` of a buffer (rows, [lanes], ..)."""
        add = lambda b, i, v: b.at[i].add(v)
        return add(buffer, index, values) if self.size is None else jax.vmap(add, (1, 0, 0), 1)(buffer, index, values)

    def put(self, buffer, index, values, pending):
        """Write `values` ([lanes], ..) at row `index` of each lane of buffer ([lanes], rows, ..) where `pending`."""
        if self.size is None:  # written only where something is pending
            return jax.lax.dynamic_update_index_in_dim(buffer, values, index, 0)
        if self.size <= FEW:  # row by row, without the scatter that small loops cannot be compiled whole with

            def one(lane, buffer):
                row = jnp.where(pending[lane], values[lane], buffer[lane, index[lane]])
                zero = jnp.zeros((), jnp.int32)
                return jax.lax.dynamic_update_slice(buffer, row[None, None], (lane, index[lane], zero))

            return count_down(self.size, one, buffer)
        index = jnp.where(pending, index, buffer.shape[1])
        return buffer.at[jnp.arange(self.size), index].set(values, mode="drop")
