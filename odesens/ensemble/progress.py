"""What an ensemble reports after each batch: to a bar, or to a user's function.

Owns: the meaning of `progress=`. Must not know: how bars look (`odesens.progress`).
"""

from collections.abc import Callable

from ..progress import show


def reporter(progress) -> Callable | None:
    """The function of (token, done, total) that `progress` asks for."""
    if progress is True:
        return _show
    if progress is False or progress is None:
        return None
    if not callable(progress):
        raise TypeError(f"progress must be True, False or a function of (done, total), got {progress!r}")
    return lambda token, done, total: progress(int(done), int(total))


def _show(token, done, total) -> None:
    done, total = int(done), int(total)
    show(token, done, total, "trajectories", "traj", last=done >= total)
