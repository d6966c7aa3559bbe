"""Timing of several programs in one interleaved run, and the record of where and with what it was made.

Owns: interleaving, medians, achieved errors, the result file. Must not know: which problem is timed.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"


def interleaved(programs: dict, seconds: float = 1.5, most: int = 200) -> dict:
    """Median seconds of each zero-argument program, called in turn, so that a slow minute slows all of them."""
    once = {}
    for name, run in programs.items():
        run()
        start = time.perf_counter()
        run()
        once[name] = time.perf_counter() - start
    rounds = {name: int(np.clip(seconds / t, 5, most)) for name, t in once.items()}
    times = {name: [] for name in programs}
    total = max(rounds.values())
    for i in range(total):
        for name, run in programs.items():
            if (i * rounds[name]) // total != ((i + 1) * rounds[name]) // total:
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def relative_error(x, reference) -> float:
    x, reference = np.asarray(x, float), np.asarray(reference, float)
    return float(np.linalg.norm((x - reference).ravel()) / np.linalg.norm(reference.ravel()))


def at_error(points: list, error: float) -> float | None:
    """Seconds at an achieved error, from (error, seconds) points, linear in logarithms; None outside their range."""
    known = sorted((np.log10(e), np.log10(t)) for e, t in points if e and t)
    if not known or not known[0][0] <= np.log10(error) <= known[-1][0]:
        return None
    return float(10 ** np.interp(np.log10(error), *zip(*known, strict=True)))


def environment() -> dict:
    """Date, machine and versions."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((x.split(":")[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")), cpu)
    versions = {}
    for name in ("odesens", "jax", "jaxlib", "diffrax", "equinox", "numpy", "scipy", "heyoka", "casadi"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def save(name: str, data: dict) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), **data}, indent=1) + "\n")
    return path
