"""`View`: the numbers of a solution, whatever kind of solution it is.

Owns: what they are, the choice of components by number or name. Must not know: solutions, pictures, files.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .components import Component, components
from .status import ReturnCode

COUNTS = ("nf", "njacs", "nfactor", "naccept", "nreject")


class View(NamedTuple):
    """A solution's numbers, NumPy arrays all of them.

    t (m,) or (N, m); u with leading axes (m,) or (N, m); lead: the number of these axes; names of the entries of u
    where it is the state of a symbolic problem; events, or None; codes () or (N,); counts: arrays like codes by name;
    alg, sensealg: texts; observe(key): the values of a name or an expression, or None.
    """

    t: np.ndarray
    u: Any
    lead: int
    names: tuple[str, ...] | None
    events: Any
    codes: np.ndarray
    counts: dict[str, np.ndarray]
    alg: str
    sensealg: str
    observe: Callable | None = None

    @property
    def attrs(self) -> dict:
        """What tables say of a solution besides its values."""
        ended = ReturnCode(int(self.codes)).name if self.codes.ndim == 0 else self.codes
        return {"retcode": ended, "alg": self.alg, "sensealg": self.sensealg, **self.counts}

    @property
    def components(self) -> list[Component]:
        return components(self.u, self.lead, self.names)

    def of(self, key) -> Component:
        """A component by its number in the flattened state, by name, or by a symbol or an expression."""
        if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            all_of = self.components
            if not -len(all_of) <= key < len(all_of):
                raise IndexError(f"component {key}: this state has {len(all_of)}, 0 to {len(all_of) - 1}")
            return all_of[key]
        if isinstance(key, str):
            for component in self.components:
                if component.name == key:
                    return component
        if self.observe is not None:
            values = np.asarray(self.observe(key))
            if values.ndim != self.lead:
                raise ValueError(f"{key} has several components: give them one by one")
            return Component(str(key), values)
        known = [c.name for c in self.components[:20]]
        raise KeyError(f"no component {key!r}; give its number, or one of the names {', '.join(known)}")
