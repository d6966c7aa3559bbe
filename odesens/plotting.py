"""Pictures of solutions, by matplotlib (extra `plot`).

Owns: time series of a solution's components with its events marked. Must not know: solutions' internals, solvers.
"""

from typing import Any

import jax
import numpy as np


def time_series(t, u, events=None, *, vars=None, ax: Any = None):
    """Draw the components of u (a pytree with leading time axis) against t; events as dotted lines.

    Parameters
    ----------
    t : array (m,)
        Times; those that are not finite are left out.
    u : pytree of arrays (m, ..)
    events : Events, optional
    vars : sequence of int, optional
        Which components, by number in the flattened state; all of them by default, at most 20.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ImportError
        Without matplotlib: `pip install 'odesens[plot]'`.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> from odesens.plotting import time_series
    >>> t = np.linspace(0.0, 1.0, 11)
    >>> ax = time_series(t, {"x": np.sin(t), "y": np.cos(t)})
    >>> [line.get_label() for line in ax.lines]
    ["u['x']", "u['y']"]
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'odesens[plot]'") from error
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 3.5))
    t = np.asarray(t)
    seen = np.isfinite(t)  # times after a terminating event are inf
    columns = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(u):
        values = np.asarray(leaf).reshape(len(t), -1)
        name = "u" + jax.tree_util.keystr(path)
        index = np.ndindex(np.shape(leaf)[1:])
        for i, where in enumerate(index):
            columns.append((f"{name}[{', '.join(map(str, where))}]" if where else name, values[:, i]))
    chosen = range(min(len(columns), 20)) if vars is None else vars
    for i in chosen:
        name, values = columns[i]
        if np.iscomplexobj(values):
            ax.plot(t[seen], values.real[seen], label=f"Re {name}")
            ax.plot(t[seen], values.imag[seen], "--", label=f"Im {name}")
        else:
            ax.plot(t[seen], values[seen], label=name)
    for j, at in enumerate(() if events is None else np.asarray(events.t)[: int(events.count)]):
        ax.axvline(at, color="0.6", linestyle=":", linewidth=1, label="events" if j == 0 else None)
    ax.set_xlabel("t")
    ax.legend()
    return ax
