"""Many solves of all kinds in one process: after the first rounds nothing compiles and no memory of odesens grows.

The kinds are those of benchmarks/soak.py, which makes ten thousand and measures resident memory too.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("sympy")
FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def soak():
    sys.path.insert(0, str(FOLDER))  # for what benchmarks share
    try:
        spec = importlib.util.spec_from_file_location("soak", FOLDER / "soak.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    module.KINDS.pop("new_jit")  # each new `jax.jit` of a user compiles
    module.KINDS.pop("every_step")  # JAX's own operations compile for each number of rows that is new
    return module


PROGRAMS = ("trace._FIELDS", "primitive._compiled", "extension._PROGRAMS", "solve._call")


def test_rounds_compile_nothing_and_keep_nothing(soak):
    """Programs are made in the first rounds alone; memories of values are bounded, so live objects are too."""
    soak.rounds(soak.WARM)
    first = soak.state(soak.WARM)
    soak.rounds(12, soak.WARM)
    last = soak.state(soak.WARM + 12)
    assert last["compiled"] == first["compiled"]
    for name in PROGRAMS:
        assert last[f"odesens.{name}"] == first[f"odesens.{name}"], name
    new = sum(n - first.get(name, 0) for name, n in last.items() if name.startswith("odesens."))
    assert last["objects"] - first["objects"] < 40 * new, (first, last)  # those of the values that are remembered
