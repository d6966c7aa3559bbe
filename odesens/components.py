"""The components of a state by name, and short texts for arrays and pytrees.

Owns: names of leaves and of their entries, how values are written in one line. Must not know: solutions, solvers.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

SHORT = 6  # entries that are written out


class Component(NamedTuple):
    """One number of a state: its name, and its values with the leading axes of times and trajectories."""

    name: str
    values: np.ndarray


def leaf_name(path) -> str:
    """`prey` for the entry of a mapping or a field, `u[0]` for that of a list, `u` for a state that is one array."""
    if not path:
        return "u"
    head = getattr(path[0], "key", getattr(path[0], "name", None))
    if isinstance(head, str):
        return head + jax.tree_util.keystr(path[1:])
    return "u" + jax.tree_util.keystr(path)


def components(u, lead: int = 1, names=None) -> list[Component]:
    """The components of a pytree of arrays that have `lead` leading axes; `names` are those of a single array's."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(u):
        array, name = np.asarray(leaf), leaf_name(path)
        for where in np.ndindex(array.shape[lead:]):
            label = f"{name}[{', '.join(map(str, where))}]" if where else name
            found.append(Component(label, array[(..., *where)]))
    if names is not None and len(names) == len(found):
        found = [Component(name, c.values) for name, c in zip(names, found, strict=True)]
    return found


def shown(x: Any) -> str:
    """A value in one line: a few entries in full, large arrays by dtype and shape, pytrees leaf by leaf."""
    if isinstance(x, (Tracer, jax.Array, np.ndarray, np.generic)):
        kind = f"{x.dtype}[{', '.join(map(str, np.shape(x)))}]"
        if isinstance(x, Tracer) or x.size > SHORT or not _is_number(x.dtype):
            return kind
        return np.array2string(np.asarray(x), precision=6, separator=", ").replace("\n", "")
    if isinstance(x, (int, float, complex, str, type(None))):
        return repr(x)
    if not isinstance(x, (dict, list, tuple)):
        return short_text(repr(x))
    leaves = jax.tree.leaves(x)
    if len(leaves) > 2 * SHORT:
        return f"{type(x).__name__} of {len(leaves)} leaves"
    inner = jax.tree.map(lambda y: Shown(shown(y)), x, is_leaf=lambda y: not isinstance(y, (dict, list, tuple)))
    return short_text(str(inner))


def short_text(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _is_number(dtype) -> bool:
    return np.dtype(dtype).kind in "biufc" if isinstance(dtype, np.dtype) else False


class Shown(str):
    """A text whose repr is itself."""

    __repr__ = str.__str__
