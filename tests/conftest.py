"""Settings that must be made before JAX starts: double precision, eight host devices, quick compilation.

And memory: compiled programs of modules that are done are forgotten where they have become many.
"""

import gc
import os

# most of the tests' time is compilation: the compiler's first level is enough for right values
FLAGS = " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + FLAGS
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

import pytest  # noqa: E402

MOST_PAGES = 2**20  # of 4 KiB, resident


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
