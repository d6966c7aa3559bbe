"""The README's work-precision plot: time of a gradient against its achieved error, from a stored result file.

    python benchmarks/work_precision_plot.py [results/gradient_lotka_volterra.json ...] [--out plot.svg]

Measures nothing. Draws results/gradient_lotka_volterra.json, and beside it the run with XLA's flag where there is one,
to results/gradient_work_precision.svg; matplotlib is needed.
"""

import argparse
import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
STYLES = {"odesens": ("-", "o", 2.0), "diffrax": ("--", "s", 1.3), "jax": ("-.", "^", 1.3)}


def draw(axis, data: dict, title: str):
    """One panel: a line for each program."""
    for name, rows in data["points"].items():
        known = sorted((row[3], row[4]) for row in rows if row[3])
        if known:
            style, marker, width = STYLES.get(name.split()[0], (":", "d", 1.3))
            axis.loglog(*zip(*known, strict=True), style, marker=marker, lw=width, ms=4, label=name)
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("achieved relative error of the gradient")
    axis.grid(True, which="major", alpha=0.3)


def figure(paths: list, out: Path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "odesens"  # the same data gives the same file
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(paths), figsize=(4.6 * len(paths) + 2.4, 4.2), sharey=True, squeeze=False)
    for axis, path in zip(axes[0], paths, strict=True):
        data = json.loads(path.read_text())
        where = data["environment"]
        flags = "XLA's small-loop flag set" if where["XLA_FLAGS"] else "JAX's default flags"
        draw(axis, data, f"Lotka-Volterra, {flags}, {where['date']}")
        axis.invert_xaxis()
    axes[0][0].set_ylabel("seconds of a gradient")
    axes[0][-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    fig.tight_layout()
    fig.savefig(out, metadata={"Date": None})


def main():
    stored = [RESULTS / f"gradient_lotka_volterra{flag}.json" for flag in ("", "_flag")]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[path for path in stored if path.exists()])
    parser.add_argument("--out", type=Path, default=RESULTS / "gradient_work_precision.svg")
    options = parser.parse_args()
    if not options.paths:
        parser.error("no stored results: run gradient_lotka_volterra.py first")
    figure(options.paths, options.out)
    print(options.out)


if __name__ == "__main__":
    main()
