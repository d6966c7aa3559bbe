"""Switches of JAX's compiler that suit these solvers, which JAX has but leaves off.

Owns: XLA's flag for native loops on CPUs, the persistent compilation cache. Must not know: equations, solvers.
"""

import os
import sys
from pathlib import Path

import jax

_OPTIONS = "--xla_backend_extra_options="
_THRESHOLD = "xla_cpu_small_while_loop_byte_threshold"
_BYTES = 100_000_000
_NATIVE_FROM = 1_000_000  # a time loop with its record is far smaller


def compile_loops_natively() -> None:
    """Have XLA compile whole loops to machine code on CPUs, not only loops of very little data.

    Without this, XLA runs each operation of a larger loop's body by a dispatcher, which costs more than the arithmetic
    of a small system. It adds an option to the environment variable `XLA_FLAGS`, next to what is there; it has no
    effect on other devices. Calling it again does nothing.

    Raises
    ------
    RuntimeError
        Where JAX has started its backends: XLA reads its flags once, then. Call it directly after the imports, before
        the first array is made.
    ValueError
        Where `XLA_FLAGS` names a file of flags: add the option there.

    Examples
    --------
    In a process of its own, as it must come before JAX starts:

    >>> import subprocess, sys
    >>> script = "import odesens as ode; ode.compile_loops_natively(); print(ode.loops_are_native())"
    >>> print(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip())
    True
    """
    if loops_are_native():
        return
    flags = os.environ.get("XLA_FLAGS", "")
    option = f"{_THRESHOLD}={_BYTES}"
    if flags.strip() and not flags.strip().startswith("-"):
        raise ValueError(f"XLA_FLAGS names the file {flags.strip()!r}: add the line {_OPTIONS}{option} there")
    if _backends_started():
        raise RuntimeError(
            "compile_loops_natively() comes too late: JAX has started its backends and does not read XLA_FLAGS again. "
            "Call it directly after the imports, before any array is made or device asked for, or set "
            f"XLA_FLAGS={_OPTIONS}{option} before Python starts"
        )
    kept = [x for x in _extra_options(flags) if x.partition("=")[0] != _THRESHOLD]
    others = [x for x in flags.split() if not x.startswith(_OPTIONS)]
    os.environ["XLA_FLAGS"] = " ".join([*others, _OPTIONS + ",".join([*kept, option])])


def loops_are_native() -> bool:
    """Whether `XLA_FLAGS` now asks for what `compile_loops_natively` does.

    Returns
    -------
    bool

    Examples
    --------
    >>> import odesens as ode
    >>> isinstance(ode.loops_are_native(), bool)
    True
    """
    values = [x.partition("=")[2] for x in _extra_options(os.environ.get("XLA_FLAGS", "")) if x.startswith(_THRESHOLD)]
    return bool(values) and values[-1].isdigit() and int(values[-1]) >= _NATIVE_FROM


def _extra_options(flags: str) -> list[str]:
    """The backend options `name=value` among XLA's flags."""
    found = [x.removeprefix(_OPTIONS) for x in flags.split() if x.startswith(_OPTIONS)]
    return [option for x in found for option in x.split(",") if option]


def _backends_started() -> bool:
    """Whether JAX has started its backends: it then refuses another number of CPU devices, and says so."""
    name = "jax_num_cpu_devices"
    own = getattr(jax.config, name)
    try:
        jax.config.update(name, 1 if own != 1 else 2)
    except RuntimeError:
        return True
    jax.config.update(name, own)
    return False


def cache_compilations(folder: str | os.PathLike | None = None) -> Path:
    """Keep compiled programs on disk, so that a later process loads them instead of compiling them again.

    This turns on JAX's persistent compilation cache, for everything that the process compiles, however quick or small.
    Call it before the first solve. Programs are found by their content, JAX's version, the flags and the device.

    Parameters
    ----------
    folder : path, optional
        Made where it does not exist. Default: `odesens` in the user's cache folder, which is `XDG_CACHE_HOME` where
        that is set. Empty it at any time; nothing else does.

    Returns
    -------
    Path
        The folder.

    Examples
    --------
    In a process of its own, as it holds for all that the process compiles:

    >>> import subprocess, sys, tempfile
    >>> script = "import sys, odesens as ode; print(ode.cache_compilations(sys.argv[1]).is_dir())"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True)
    >>> print(run.stdout.strip())
    True
    """
    path = Path(_user_cache() / "odesens" if folder is None else folder).expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_dir", str(path))
    _forget_open_cache()
    return path


def _forget_open_cache() -> None:
    """JAX opens its cache, or finds that there is none, at the first compilation; have it look again."""
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


def _user_cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    if given and Path(given).is_absolute():
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
