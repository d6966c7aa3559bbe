"""Pictures of values in time, by matplotlib (extra `plot`).

Owns: series, phase planes, bands of many trajectories, marks of events. Must not know: solutions, solvers.
"""

from typing import Any

import numpy as np

from .components import Component

MOST = 20  # components that are drawn where none are chosen
# Okabe and Ito's colours, which colour-blind readers can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
BANDS = ((0.05, 0.95), (0.25, 0.75))


def pyplot():
    """matplotlib.pyplot, or an ImportError that says how to get it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'odesens[plot]'") from error
    return plt


def new_axes(ax: Any, figsize=(7, 3.6), **kwargs):
    if ax is not None:
        return ax
    _, ax = pyplot().subplots(figsize=figsize, layout="constrained", subplot_kw=kwargs)
    return ax


def series(t, columns: list[Component], events_t=(), *, ax: Any = None):
    """Each column (m,) against t (m,), complex ones as two curves; events as dotted lines."""
    ax = new_axes(ax)
    seen = np.isfinite(t)  # times after a terminating event are inf
    alone = "." if np.count_nonzero(seen) == 1 else ""  # one point makes no line
    for i, column in enumerate(columns):
        colour = COLOURS[i % len(COLOURS)]
        for name, values, style in _real_parts(column):
            ax.plot(t[seen], values[seen], linestyle=style, marker=alone, color=colour, label=name)
    for j, at in enumerate(events_t):
        ax.axvline(at, color="0.6", linestyle=":", linewidth=1, zorder=0, label="events" if j == 0 else None)
    ax.set_xlabel("t")
    if len(columns) == 1:
        ax.set_ylabel(columns[0].name)
    _legend(ax, len(columns) > 1 or len(events_t) > 0)
    return ax


def phase(t, curves: list[list[Component]], marks=(), *, ax: Any = None):
    """Curves of two or three columns against each other; marks are their values at events, (E, 2 or 3) each."""
    most = max(len(curve) for curve in curves)
    ax = new_axes(ax, (6.4, 5), **({"projection": "3d"} if most == 3 else {}))
    if most == 3 and not hasattr(ax, "get_zlim"):
        raise ValueError("three components need axes made with projection='3d', or none given")
    seen = np.isfinite(t)
    for i, curve in enumerate(curves):
        if any(np.iscomplexobj(c.values) for c in curve):
            raise TypeError(f"a phase plane needs real components, {curve[0].name} or another is complex")
        label = ", ".join(c.name for c in curve)
        colour = COLOURS[i % len(COLOURS)]
        line = [c.values[seen] for c in curve]
        ax.plot(*line, color=colour, label=label)
        ax.plot(*[x[:1] for x in line], "o", color=colour, markersize=4)  # where it starts
    for j, points in enumerate(marks):
        if len(points):
            ax.plot(*np.asarray(points).T, "x", color="0.3", markersize=5, label="events" if j == 0 else None)
    if len(curves) == 1:
        for c, name in zip(curves[0], ("x", "y", "z"), strict=False):
            getattr(ax, f"set_{name}label")(c.name)
    _legend(ax, len(curves) > 1 or any(len(points) for points in marks))
    return ax


def bands(t, columns: list[Component], *, left_out: int = 0, ax: Any = None):
    """Of columns (N, m): the median over trajectories, and bands that hold half and nine tenths of them, at times t."""
    ax = new_axes(ax)
    count = columns[0].values.shape[0] if columns else 0
    levels = sorted({0.5, *(q for band in BANDS for q in band)})
    for i, column in enumerate(columns):
        if np.iscomplexobj(column.values):
            raise TypeError(f"quantile bands need real components, {column.name} is complex")
        colour = COLOURS[i % len(COLOURS)]
        at = dict(zip(levels, np.quantile(column.values, levels, axis=0), strict=True)) if count else {}
        if count:
            ax.plot(t, at[0.5], color=colour, label=column.name)
            for (low, high), alpha in zip(BANDS, (0.15, 0.3), strict=True):
                ax.fill_between(t, at[low], at[high], color=colour, alpha=alpha, linewidth=0)
    missing = f", {left_out} that failed left out" if left_out else ""
    ax.set_title(f"median, 50 % and 90 % of {count} trajectories{missing}", fontsize="medium")
    ax.set_xlabel("t")
    _legend(ax, len(columns) > 1)
    if len(columns) == 1:
        ax.set_ylabel(columns[0].name)
    return ax


def _real_parts(column: Component):
    if np.iscomplexobj(column.values):
        return [(f"Re {column.name}", np.real(column.values), "-"), (f"Im {column.name}", np.imag(column.values), "--")]
    return [(column.name, column.values, "-")]


def _legend(ax, needed: bool) -> None:
    """A legend that hides no curve: beside the axes where it is long."""
    handles, _ = ax.get_legend_handles_labels()
    if not needed or not handles:
        return
    if len(handles) > 5:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", ncols=1 + len(handles) // 15)
    else:
        ax.legend()
