"""Bars of work done: tqdm's where it is installed, in a terminal or a notebook, lines of text on stderr otherwise.

Owns: the bars that are open, each under a number of its own. Must not know: what is counted. Its functions are called
from within compiled programs, on any thread.
"""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

EVERY = 0.5  # seconds between lines of text
PERCENT = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]"
tokens = itertools.count()
_open: dict[int, Any] = {}


class Text:
    """Lines on stderr, the first and the last state and some between."""

    def __init__(self, label: str, total: int, unit: str):
        self.label, self.total, self.unit = label, total, unit
        self.begun, self.last, self.line = time.monotonic(), -EVERY, ""

    def to(self, n: float, note: str) -> None:
        done = f"{n:.0f} %" if self.unit == "%" else f"{n} of {self.total}"
        self.line = f"{done}, {note}" if note else done
        if time.monotonic() - self.last >= EVERY:
            self.write()

    def write(self) -> None:
        self.last = time.monotonic()
        print(f"{self.label}: {self.line} ({self.last - self.begun:.1f} s)", file=sys.stderr, flush=True)
        self.line = ""

    def close(self) -> None:
        if self.line:
            self.write()


class Bar:
    """A bar of tqdm's."""

    def __init__(self, bar):
        self.bar = bar

    def to(self, n: float, note: str) -> None:
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(max(n - self.bar.n, 0))

    def close(self) -> None:
        self.bar.close()


def show(token, n: float, total: int, label: str, unit: str, note: str = "", *, last: bool) -> None:
    """Bring the bar of this token, which is made where there is none, to n of total, and close it after the last one.

    label, unit, note : what is counted, in what, and what to say about the present state
    """
    if jax.process_index():  # the first process speaks for all
        return
    token = int(token)
    bar = _open.get(token)
    if bar is None:
        bar = _open[token] = _make(label, total, unit)
    bar.to(n, note)
    if last:
        bar.close()
        del _open[token]


def _make(label: str, total: int, unit: str):
    try:
        from tqdm.auto import tqdm  # pyright: ignore[reportMissingModuleSource]
    except ImportError:
        return Text(label, total, unit)
    return Bar(tqdm(total=total, desc=label, unit=unit, bar_format=PERCENT if unit == "%" else None))


@contextlib.contextmanager
def closing() -> Iterator[None]:
    """Close the bars that were opened within and left open by a program that was broken off."""
    first = next(tokens)
    try:
        yield
    except BaseException:
        for token in [t for t in _open if t > first]:
            _open.pop(token).close()
        raise
