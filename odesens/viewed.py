"""`Viewed`: what can be done with a solution's numbers: pictures, tables, files.

Owns: the public methods `plot`, `to_xarray`, `to_dataframe`, `save` and the table in notebooks. Must not know: kinds of
solutions, how values were computed.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from . import display, drawing, files, tables
from .components import Component, components, shown
from .status import ReturnCode
from .view import View


class Viewed:
    """A solution whose numbers can be drawn, put into tables and written to files.

    All of these need values: within `jit`, `vmap` and other transformations they raise `TypeError`.
    """

    def _view(self) -> View:
        raise NotImplementedError

    def plot(self, vars: Any = None, ax: Any = None) -> Any:
        """Draw the saved states: against time, against each other, or as bands of many trajectories.

        Parameters
        ----------
        vars : optional
            What to draw; by default every component, at most 20. A component is its number in the flattened state, a
            name (`"prey"`, `"u[0]"`), or of a symbolic problem a symbol or an expression. A list is several curves
            against time, a tuple of two or three components a phase plane, and a list of such tuples several of those.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib Axes

        Raises
        ------
        ImportError
            Without matplotlib: `pip install 'odesens[plot]'`.
        KeyError, IndexError, TypeError
            For components that are not there, complex ones in a phase plane or a band.

        Events are dotted lines, in a phase plane crosses. Of an ensemble, or a solution that left `vmap`, the median
        and the bands that hold 50 % and 90 % of the trajectories are drawn at each saved time, those that failed left
        out.
        """
        view = self._view()
        keys = _keys(vars, view)
        planes = [isinstance(k, tuple) for k in keys]
        if any(planes) != all(planes):
            raise TypeError(f"vars mixes phase planes (tuples) with components: {vars!r}")
        if view.lead == 2:
            return _bands(view, keys, any(planes), ax)
        view = _with_jumps(view, keys)
        if any(planes):
            return _phase(view, keys, ax)
        at = () if view.events is None else np.asarray(view.events.t)[: int(view.events.count)]
        return drawing.series(view.t, [view.of(k) for k in keys], at, ax=ax)

    def to_xarray(self, vars: Any = ()) -> Any:
        """The saved values as an `xarray.Dataset`.

        Parameters
        ----------
        vars : sequence, optional
            Names or expressions of a symbolic problem to add.

        Returns
        -------
        xarray.Dataset
            A variable for each leaf of the state (for each state of a symbolic problem), dimensions `t` and the leaf's
            own axes, with `trajectory` before them where there are many; retcode, method and counts as attributes.

        Raises
        ------
        ImportError
            Without xarray: `pip install 'odesens[tables]'`.
        """
        view = self._view()
        return tables.to_xarray(view.t, view.u, view.names, [view.of(k) for k in vars], view.attrs, view.lead)

    def to_dataframe(self, vars: Any = ()) -> Any:
        """The saved values as a `pandas.DataFrame`: a column for each component, the index t, or trajectory and t.

        Parameters
        ----------
        vars : sequence, optional
            As for `to_xarray`.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            Without pandas: `pip install 'odesens[tables]'`.
        """
        view = self._view()
        columns = view.components + [view.of(k) for k in vars]
        return tables.to_dataframe(view.t, columns, view.attrs, view.lead)

    def save(self, path: Any, vars: Any = ()) -> Path:
        """Write the values to an npz file, which `odesens.load` and NumPy alone can read.

        Parameters
        ----------
        path : path
            The file; `.npz` is added where it does not end so. It is replaced at once, or not at all.
        vars : sequence, optional
            Names or expressions of a symbolic problem to keep besides its states.

        Returns
        -------
        Path
            Of the file.

        `numpy.load(path)` has `t`, `u` (for a pytree `u/prey`, `u/0`, ..), `retcode`, `stats/nf` and so on, `events/t`,
        `vars/..`, and `meta`, a text in JSON. Dense output is not kept: save with the times that will be wanted.
        """
        view = self._view()
        return files.write(path, view, {str(k): view.of(k).values for k in vars})

    def _repr_html_(self) -> str:
        try:
            view = self._view()
        except TypeError:
            return display.table(repr(self), [])
        return display.table(type(self).__name__, _rows(view))


def _keys(vars, view: View) -> list:
    if vars is None:
        return list(range(min(len(view.components), drawing.MOST)))
    if isinstance(vars, tuple):
        vars = [vars]
    if not isinstance(vars, (list, range, np.ndarray)):
        vars = [vars]
    for k in vars:
        if isinstance(k, tuple) and len(k) not in (2, 3):
            raise ValueError(f"a phase plane has two or three components, got {k!r}; several curves are a list")
    return list(vars)


def _with_jumps(view: View, keys) -> View:
    """With the states before and after events between the saved ones, where states alone are drawn."""
    events = view.events
    names = {c.name for c in view.components}
    if events is None or not int(events.count):
        return view
    if not all(isinstance(k, int) or k in names for key in keys for k in (key if isinstance(key, tuple) else (key,))):
        return view
    n, seen = int(events.count), np.isfinite(view.t)
    saved, at = view.t[seen], np.asarray(events.t)[:n]
    rank = np.repeat([2, 0, 1], [len(saved), n, n])  # a save at an event holds the state after it
    t = np.concatenate([saved, at, at])
    order = np.lexsort((rank, -t if saved.size and saved[0] > saved[-1] else t))
    join = lambda u, before, after: np.concatenate([u[seen], np.asarray(before)[:n], np.asarray(after)[:n]])[order]
    return view._replace(t=t[order], u=jax.tree.map(join, view.u, events.before, events.after))


def _bands(view: View, keys, planes: bool, ax):
    if planes:
        raise TypeError("bands are drawn against time: take a phase plane of one trajectory, sol[i].plot(vars=(0, 1))")
    ok = view.codes <= ReturnCode.Terminated
    t = view.t
    if t.ndim == 2:
        kept = t[ok]
        if kept.size and np.any(kept != kept[:1]):
            raise ValueError("bands need the same saved times in all trajectories: give saveat as an array")
        t = kept[0] if len(kept) else t[0]
    columns = [view.of(k) for k in keys]
    columns = [Component(c.name, c.values[ok]) for c in columns]
    return drawing.bands(t, columns, left_out=int(np.count_nonzero(~ok)), ax=ax)


def _phase(view: View, keys, ax):
    curves = [[view.of(k) for k in key] for key in keys]
    marks = []
    events = view.events
    if events is not None and int(events.count):
        after = components(jax.tree.map(np.asarray, events.after), 1, view.names)
        place = {c.name: c.values[: int(events.count)] for c in after}
        marks = [
            np.stack([place[c.name] for c in curve], axis=1) for curve in curves if all(c.name in place for c in curve)
        ]
    return drawing.phase(view.t, curves, marks, ax=ax)


def _rows(view: View) -> list[tuple]:
    """The rows of a solution's table."""
    kinds, many = np.unique(view.codes, return_counts=True)
    names = [ReturnCode(int(k)).name for k in kinds]
    ended = names[0] if view.codes.ndim == 0 else ", ".join(f"{n} {k}" for n, k in zip(many, names, strict=True))
    total = {k: int(np.sum(x)) for k, x in view.counts.items()}
    rows: list[tuple] = [
        ("ended", ended),
        ("method", view.alg, view.sensealg),
        ("steps", f"{total['naccept']} ({total['nreject']} rejected)", f"{total['nf']} evaluations of f"),
    ]
    if view.lead == 2:
        rows.insert(0, ("trajectories", len(view.codes)))
    if view.events is not None:
        rows.append(("events", int(view.events.count)))
    seen = view.t[np.isfinite(view.t)]
    if not seen.size:
        return rows
    if view.lead == 1:
        rows.append((f"{view.t.shape[-1]} saves, t", f"{seen[0]:g}", f"{seen[-1]:g}"))
        rows.extend((c.name, f"{c.values[0]:.6g}", f"{c.values[-1]:.6g}") for c in view.components)
    else:
        rows.append((f"{view.t.shape[-1]} saves, t", f"{seen.min():g}", f"{seen.max():g}"))
        rows.append(("u", shown(view.u)))
    return rows
