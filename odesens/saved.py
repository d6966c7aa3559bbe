"""`load` and `SavedSolution`: solutions from files.

Owns: access to their values. Must not know: files' contents, other kinds of solutions.
"""

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .components import shown
from .files import read
from .status import ReturnCode
from .view import COUNTS, View
from .viewed import Viewed


def load(path: Any) -> "SavedSolution":
    """Read what `sol.save` wrote.

    Parameters
    ----------
    path : path

    Returns
    -------
    SavedSolution

    Raises
    ------
    FileNotFoundError
    ValueError
        For a file that `save` did not write, one that is damaged, and one of a later format.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import odesens as ode
    >>> sol = ode.solve(ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0), saveat=[0.5, 1.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read = ode.load(sol.save(Path(folder) / "run"))
    >>> bool((read.u == sol.u).all()), read.retcode.name, read.alg
    (True, 'Success', 'Tsit5()')
    """
    return SavedSolution(*read(path))


class SavedSolution(Viewed):
    """A solution read from a file: NumPy arrays.

    Attributes
    ----------
    t, u, events, retcode, success, stats : as of the solution that was saved
    alg, sensealg : texts
    vars : dict of the values saved by `vars=`

    Notes
    -----
    `s[i]` is the state at saved time i, or trajectory i of an ensemble; `s["x"]` a component, or a value that was saved
    by name. There is no dense output.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import odesens as ode
    >>> sol = ode.solve(ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0), saveat=[0.5, 1.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read = ode.load(sol.save(Path(folder) / "run"))
    >>> type(read).__name__, len(read), read.u.shape
    ('SavedSolution', 2, (2,))
    """

    def __init__(self, view: View, vars: dict):
        self.t, self.u, self.events = view.t, view.u, view.events
        self.alg, self.sensealg = view.alg, view.sensealg
        self.stats = namedtuple("Stats", COUNTS)(*(view.counts[k] for k in COUNTS))
        self.retcode = ReturnCode(int(view.codes)) if view.codes.ndim == 0 else view.codes
        self.success = bool(np.all(view.codes <= ReturnCode.Terminated))
        self.vars = vars
        self._saved = view

    def _view(self) -> View:
        return self._saved._replace(observe=self._observe if self.vars else None)

    def _observe(self, key):
        if str(key) not in self.vars:
            raise KeyError(f"{key} was not saved; there are {', '.join(self.vars)} besides the states")
        return self.vars[str(key)]

    def __len__(self) -> int:
        return self._saved.codes.shape[0] if self._saved.lead == 2 else self.t.shape[0]

    def __iter__(self) -> Iterator:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """The state, or the trajectory, of the number `key`; the component, or the saved value, of that name."""
        view = self._saved
        if not isinstance(key, (int, np.integer)):
            return self._view().of(key).values
        if not -len(self) <= key < len(self):
            raise IndexError(f"[{key}]: there are {len(self)} {'trajectories' if view.lead == 2 else 'saved states'}")
        one = jax.tree.map(lambda x: x[key], view.u)
        if view.lead == 1:
            return one
        own = view._replace(
            t=view.t[key] if view.t.ndim == 2 else view.t,
            u=one,
            lead=1,
            codes=view.codes[key],
            counts={k: x[key] for k, x in view.counts.items()},
            events=None,
        )
        return SavedSolution(own, {k: x[key] for k, x in self.vars.items()})

    def __call__(self, t: Any) -> Any:
        """Nothing can be interpolated at t: raises TypeError."""
        raise TypeError(
            "a saved solution has no dense output: solve with the times that are wanted as saveat, then save"
        )

    def __repr__(self) -> str:
        view = self._saved
        many = f"{len(self)} trajectories, " if view.lead == 2 else ""
        return f"SavedSolution({many}{view.t.shape[-1]} saves, u: {shown(view.u)})"
