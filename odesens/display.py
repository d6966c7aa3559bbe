"""How objects show themselves: in one line, and as a small table in notebooks.

Owns: HTML of rows, `Described`. Must not know: what they say.
"""

from html import escape
from typing import Any

from .components import shown

MOST_ROWS = 24


def table(title: str, rows: list[tuple]) -> str:
    """An HTML table; the first entry of a row names it. Everything is escaped."""
    left, cell = 'style="text-align:left;font-weight:bold"', 'style="text-align:left"'
    lines = [f'<tr><th colspan="3" {left}>{escape(title)}</th></tr>']
    for name, *values in rows[:MOST_ROWS]:
        cells = "".join(f"<td {cell}>{escape(str(x))}</td>" for x in values)
        lines.append(f"<tr><td {left}>{escape(str(name))}</td>{cells}</tr>")
    if len(rows) > MOST_ROWS:
        lines.append(f"<tr><td {cell}>.. {len(rows) - MOST_ROWS} more</td></tr>")
    return "<table>" + "".join(lines) + "</table>"


class Described:
    """Something made of parts, which are shown in one line or as a table."""

    def _described(self) -> dict[str, Any]:
        """The parts by name, without those that were not given."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={_text(x)}' for k, x in self._described().items())})"

    def _repr_html_(self) -> str:
        return table(type(self).__name__, [(k, _text(x)) for k, x in self._described().items()])


def _text(x) -> str:
    return getattr(x, "__name__", type(x).__name__) if callable(x) else shown(x)
