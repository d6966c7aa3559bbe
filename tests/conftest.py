"""Settings that must be made before JAX starts: double precision, eight host devices, quick compilation.

And memory: compiled programs of modules that are done are forgotten where they have become many. And which tests run
with `--slow` only.
"""

import gc
import os

# most of the tests' time is compilation: the compiler's first level is enough for right values
FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

import pytest  # noqa: E402

from .slow import SLOW  # noqa: E402

gc.set_threshold(50_000, 20, 50)  # tracing makes many objects that stay: a tenth of the time went into looking at them

MOST_PAGES = 2**20  # of 4 KiB, resident


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run also the tests of tests/slow.py")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    kept, left_out = [], []
    for item in items:
        (left_out if SLOW.search(item.nodeid) else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    yield
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return
    if pages > MOST_PAGES:
        jax.clear_caches()
        gc.collect()
