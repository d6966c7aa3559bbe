"""Settings that must be made before JAX starts: double precision, eight host devices, quick compilation."""

import os

# most of the tests' time is compilation: the compiler's first level is enough for right values
FLAGS = " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + FLAGS
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
