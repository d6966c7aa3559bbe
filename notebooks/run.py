"""Regenerate the executed notebooks, or check them: `python notebooks/run.py [--check] [name ..]`.

Each notebook is written as a script (`NN_name.py`, jupytext's percent format) and kept with its outputs beside it
(`NN_name.ipynb`). Without options the notebooks are executed and written. With `--check` each script is executed in a
fresh kernel and nothing is written; an exception in a cell, or a stored notebook whose cells differ from its script's,
is a failure. Kernels run this interpreter, from the root of the repository.
"""

import argparse
import os
import socket
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


def read(script: Path) -> nbformat.NotebookNode:
    """The script as a notebook without outputs, the same at every call."""
    notebook = jupytext.read(script, fmt="py:percent")
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i}"
        cell.metadata = nbformat.NotebookNode()
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def execute(notebook: nbformat.NotebookNode) -> None:
    """Run all cells in a fresh kernel of this interpreter; installed kernels are not looked at."""
    kernels = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    client = NotebookClient(
        notebook,
        km=kernels,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(ROOT)}},
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)


def cells(notebook: nbformat.NotebookNode) -> list:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def drift(script: Path, notebook: nbformat.NotebookNode) -> str | None:
    """How the stored notebook differs from its script, or None."""
    path = script.with_suffix(".ipynb")
    if not path.exists():
        return f"{path.name} is missing"
    stored = nbformat.read(path, as_version=4)
    if cells(stored) != cells(notebook):
        return f"the cells of {path.name} differ from {script.name}"
    if any(cell.cell_type == "code" and cell.execution_count is None for cell in stored.cells):
        return f"{path.name} has cells that were never executed"
    return without_picture(stored)


def without_picture(notebook: nbformat.NotebookNode) -> str | None:
    """Which cell shows a picture but has none among its outputs, or None."""
    for i, cell in enumerate(notebook.cells):
        shows = cell.cell_type == "code" and "plt.show()" in cell.source
        if shows and not any("image/png" in output.get("data", {}) for output in cell.outputs):
            return f"cell {i} shows a picture, but its outputs have none"
    return None


def leak(notebook: nbformat.NotebookNode) -> str | None:
    """A name of this machine in the outputs, or None."""
    outputs = str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    names = (str(ROOT), str(Path.home()), sys.prefix, sys.base_prefix, socket.gethostname())
    return next((name for name in names if len(name) > 4 and name in outputs), None)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="execute and compare, write nothing")
    parser.add_argument("names", nargs="*", help="beginnings of the names of notebooks; all by default")
    options = parser.parse_args(arguments)
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.pop("MPLBACKEND", None)  # pictures belong into the notebooks
    scripts = [s for s in sorted(HERE.glob("[0-9]*.py")) if s.name.startswith(tuple(options.names) or "")]
    failures = 0 if scripts else 1
    for script in scripts:
        notebook = read(script)
        problem = drift(script, notebook) if options.check else None
        start = time.perf_counter()
        try:
            execute(notebook)
        except CellExecutionError as error:
            problem = str(error)
        if not options.check and problem is None:
            if name := leak(notebook):
                problem = f"the outputs name this machine: {name}"
            elif missing := without_picture(notebook):
                problem = missing
            else:
                nbformat.write(notebook, script.with_suffix(".ipynb"))
        failures += problem is not None
        print(f"{script.stem}: {problem or 'ok'}, {time.perf_counter() - start:.0f} s", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
