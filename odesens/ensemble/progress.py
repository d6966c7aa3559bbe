"""A bar of the trajectories done: tqdm's where it is installed, lines of text otherwise.

Owns: the bars that are open. Must not know: what is counted. It is called from compiled programs, one call a batch.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import jax

_EVERY = 0.5  # seconds between lines of text
_open: dict[int, Any] = {}


class Text:
    """Lines on stderr."""

    def __init__(self, total: int):
        self.total, self.n, self.begun, self.last = total, 0, time.monotonic(), -_EVERY

    def update(self, more: int) -> None:
        self.n += more
        now = time.monotonic()
        if self.n >= self.total or now - self.last >= _EVERY:
            self.last = now
            spent = now - self.begun
            print(f"trajectories: {self.n} of {self.total} ({spent:.1f} s)", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


def make_bar(total: int):
    try:
        from tqdm.auto import tqdm  # pyright: ignore[reportMissingModuleSource]
    except ImportError:
        return Text(total)
    return tqdm(total=total, unit="traj")


def show(token, done, total) -> None:
    """Bring the bar of a solve up to `done` trajectories; the solve is told from others by its token."""
    if jax.process_index():  # the first process speaks for all
        return
    token, done, total = int(token), int(done), int(total)
    bar = _open.get(token)
    if bar is None:
        bar = _open[token] = make_bar(total)
    if done > bar.n:
        bar.update(done - bar.n)
    if done >= total:
        bar.close()
        del _open[token]


def reporter(progress) -> Callable | None:
    """The function of (token, done, total) that `progress` asks for."""
    if progress is True:
        return show
    if progress is False or progress is None:
        return None
    if not callable(progress):
        raise TypeError(f"progress must be True, False or a function of (done, total), got {progress!r}")
    return lambda token, done, total: progress(int(done), int(total))
