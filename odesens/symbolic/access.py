"""Reading entries of vectors at static positions, with slices where they are regular.

A slice's derivative is a pad, a gather's is a scatter: slower, and on a CPU sequential. So positions are taken apart
into segments start + outer * row + inner * column; few of them are slices and reshapes, many are one gather.

Owns: `take`, `segments`. Must not know: expressions.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MOST_SEGMENTS = 8
FEWEST = 4  # positions of a segment, on average

Segment = tuple[int, int, int, int, int]  # start, outer step, rows, inner step, columns


def take(vector: jax.Array, positions: np.ndarray) -> jax.Array:
    """The entries (k,) of a vector (n,) at static positions (k,) within it."""
    found = segments(positions)
    if found is not None:
        parts = [_read(vector, segment) for segment in found]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
    return _gather(vector, positions)


def entry(vector: jax.Array, position: int) -> jax.Array:
    """One entry of a vector, as a scalar; a scalar is its own only entry."""
    return vector if vector.ndim == 0 else lax.index_in_dim(vector, int(position), keepdims=False)


def segments(positions: np.ndarray) -> list[Segment] | None:
    """Positions as few segments, or None where that takes many or one that is no slice."""
    most = max(1, min(MOST_SEGMENTS, len(positions) // FEWEST))
    out: list[list[int]] = []
    for start, step, length in _runs(positions):
        if out:
            first, outer, rows, inner, columns = last = out[-1]
            ahead = start - first - outer * (rows - 1)
            if (inner, columns) == (step, length) and (rows == 1 or ahead == outer):
                last[1:3] = ahead, rows + 1
                continue
        if len(out) == most:
            return None
        out.append([start, 0, 1, step, length])
    found: list[Segment] = [(a, b, c, d, e) for a, b, c, d, e in out]
    return found if all(_is_slice(s) for s in found) else None


def _runs(positions: np.ndarray):
    """(start, step, length) of stretches with one step, from the left, each as long as it can be."""
    steps = np.diff(positions)
    ends = np.append(np.flatnonzero(np.diff(steps)) + 1, len(steps))  # one past the last of equal steps
    length = (ends[np.searchsorted(ends, np.arange(len(steps)), side="right")] - np.arange(len(steps))).tolist()
    steps, positions = steps.tolist(), positions.tolist()
    i, n = 0, len(positions)
    while i < n:
        if i + 1 == n or (length[i] == 1 and i + 2 < n and length[i + 1] > 1):  # the next stretch needs the next entry
            yield positions[i], 0, 1
            i += 1
        else:
            yield positions[i], steps[i], length[i] + 1
            i += length[i] + 1


def _is_slice(segment: Segment) -> bool:
    _, outer, rows, inner, columns = segment
    if rows == 1 or outer == 0 or inner == 0:
        return True
    outer, inner = abs(outer), abs(inner)
    return inner * (columns - 1) < outer or outer * (rows - 1) < inner


def _read(vector, segment: Segment):
    start, outer, rows, inner, columns = segment
    if rows == 1:
        return _line(vector, start, inner, columns)
    if outer == 0:
        return jnp.tile(_line(vector, start, inner, columns), rows)
    if inner == 0:
        return jnp.repeat(_line(vector, start, outer, rows), columns, total_repeat_length=rows * columns)
    start += min(0, outer * (rows - 1)) + min(0, inner * (columns - 1))
    backwards = [axis for axis, step in enumerate((outer, inner)) if step < 0]
    outer, inner = abs(outer), abs(inner)
    if inner * (columns - 1) < outer:
        block = _window(vector, start, outer, rows, inner, columns)
    else:
        block = _window(vector, start, inner, columns, outer, rows).T
    return (lax.rev(block, backwards) if backwards else block).reshape(-1)


def _line(vector, start: int, step: int, length: int):
    """start, start + step, .. as an array (length,)."""
    if length == 1 or step == 0:
        one = lax.slice(vector, (start,), (start + 1,))
        return one if length == 1 else jnp.broadcast_to(one, (length,))
    last = start + step * (length - 1)
    low, high = min(start, last), max(start, last)
    line = vector
    if (low, high, abs(step)) != (0, vector.shape[0] - 1, 1):
        line = lax.slice(vector, (low,), (high + 1,), (abs(step),))
    return line if step > 0 else lax.rev(line, (0,))


def _window(vector, start: int, outer: int, rows: int, inner: int, columns: int):
    """start + outer * row + inner * column, where a row ends before the next begins, as an array (rows, columns)."""
    stop = min(start + outer * rows, vector.shape[0])
    block = vector if (start, stop) == (0, vector.shape[0]) else lax.slice(vector, (start,), (stop,))
    if stop < start + outer * rows:
        block = lax.pad(block, jnp.zeros((), block.dtype), [(0, start + outer * rows - stop, 0)])
    block = block.reshape(rows, outer)
    if (inner, columns) == (1, outer):
        return block
    return lax.slice(block, (0, 0), (rows, inner * (columns - 1) + 1), (1, inner))


def _gather(vector, positions: np.ndarray):
    return lax.gather(
        vector,
        positions[:, None].astype(np.int32),
        lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,)),
        slice_sizes=(1,),
        unique_indices=len(np.unique(positions)) == len(positions),
        indices_are_sorted=bool(np.all(np.diff(positions) >= 0)),
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
