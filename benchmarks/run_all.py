"""Run the whole suite, each script in a process of its own, one after another and never two at once.

    python benchmarks/run_all.py [--minutes 90] [--quick] [--only hessian,memory] [--default-only | --flag-only]

Each script runs with JAX's default flags and with XLA's small-loop flag. The minutes are split by the weights below; a
script starts no new case when its share is over, and is ended at three times its share and five minutes.
Nothing else should run on the machine. Last, the plot.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
WEIGHTS = {
    "gradient_lotka_volterra.py": 3,
    "gradient_lotka_volterra.py --engines": 3,
    "hessian.py": 2,
    "first_gradient.py": 4,
    "memory.py": 6,
    "lorenz_ensemble.py": 8,
    "neural.py": 6,
    "reaction_diffusion.py": 6,
    "choice.py": 8,
    "stiff_gradients.py": 6,
    "stiff_diffusion.py": 6,
    "work_precision_stiff.py": 6,
    "events.py": 3,
    "ensembles.py": 10,
    "symbolic.py": 8,
}


def run(script: str, more: list, limit: float | None) -> str:
    """How one script ended."""
    start = time.perf_counter()
    print(f"\n== {script} {' '.join(more)}", flush=True)
    name, *own = script.split()
    try:
        code = subprocess.run([sys.executable, HERE / name, *own, *more], timeout=limit).returncode
    except subprocess.TimeoutExpired:
        code = "time over"
    return f"{script} {' '.join(more)}: {'done' if code == 0 else code} in {time.perf_counter() - start:.0f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=90.0, help="of all scripts together")
    parser.add_argument("--quick", action="store_true", help="smoke runs")
    parser.add_argument("--only", default="", help="comma-separated words of the scripts' names")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--default-only", action="store_true", help="JAX's default flags only")
    which.add_argument("--flag-only", action="store_true", help="XLA's small-loop flag only")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    scripts = [s for s in WEIGHTS if not words or any(w in s for w in words)]
    flags = [[]] * (not options.flag_only) + [["--flag"]] * (not options.default_only)
    whole = len(flags) * sum(WEIGHTS[s] for s in scripts)
    ended = []
    for script in scripts:
        share = options.minutes * WEIGHTS[script] / whole
        for flag in flags:
            more = [*flag, *(["--quick"] if options.quick else ["--minutes", f"{share:.2f}"])]
            ended.append(run(script, more, 60 * (3 * share + 5)))
    ended.append(run("work_precision_plot.py", [], None))
    print("\n" + "\n".join(ended))
    sys.exit(any(": done in" not in line for line in ended))


if __name__ == "__main__":
    main()
