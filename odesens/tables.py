"""Values in time as labelled tables, by xarray and pandas (extra `tables`).

Owns: dimensions, coordinates, columns. Must not know: solutions, solvers.
"""

import jax
import numpy as np

from .components import Component, leaf_name


def to_xarray(t, u, names, extra: list[Component], attrs: dict, lead: int):
    """A Dataset: a variable for each leaf of u, for each of `names` where the state has them, and for each of extra.

    Dimensions are `trajectory` (with lead = 2), `t`, and `prey_0, prey_1, ..` for the axes of a leaf `prey`. t is a
    coordinate, of both where trajectories have their own times.
    """
    try:
        import xarray
    except ImportError as error:
        raise ImportError("to_xarray needs xarray: pip install 'odesens[tables]'") from error
    first = ("trajectory", "t")[2 - lead :]
    variables = {}
    if names is not None:
        for i, name in enumerate(names):
            variables[name] = (first, np.asarray(u)[..., i])
    else:
        for path, leaf in jax.tree_util.tree_leaves_with_path(u):
            name, array = leaf_name(path), np.asarray(leaf)
            variables[name] = ((*first, *[f"{name}_{i}" for i in range(array.ndim - lead)]), array)
    variables.update({c.name: (first, np.asarray(c.values)) for c in extra})
    times: dict = {"t": ("t", t)} if t.ndim == 1 else {"time": (("trajectory", "t"), t)}
    if lead == 2:
        count = next(iter(variables.values()))[1].shape[0] if variables else 0
        times["trajectory"] = ("trajectory", np.arange(count))
    return xarray.Dataset(variables, coords=times, attrs=attrs)


def to_dataframe(t, columns: list[Component], attrs: dict, lead: int):
    """A DataFrame with a column for each component; the index is t, or trajectory and t."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_dataframe needs pandas: pip install 'odesens[tables]'") from error
    if lead == 1:
        index = pandas.Index(t, name="t")
    else:
        n, m = columns[0].values.shape if columns else (0, t.shape[-1])
        every = np.broadcast_to(t, (n, m)).reshape(-1)
        index = pandas.MultiIndex.from_arrays([np.repeat(np.arange(n), m), every], names=["trajectory", "t"])
    frame = pandas.DataFrame({c.name: np.asarray(c.values).reshape(-1) for c in columns}, index=index)
    frame.attrs.update(attrs)
    return frame
