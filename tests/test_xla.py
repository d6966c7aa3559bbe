"""The compiler's switches, in processes of their own: flags are read once, caches outlive a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import odesens as ode
from odesens import xla

ROOT = Path(ode.__file__).parents[1]
OURS = "xla_cpu_small_while_loop_byte_threshold=100000000"


def python(code: str, **environment) -> str:
    """What a new process prints that runs `code`."""
    own = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    own |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FLAGS_CODE = """
import os, sys, jax, jax.numpy as jnp, numpy as np
import odesens as ode
absent = [m for m in ("sympy", "scipy.integrate", "matplotlib", "diffrax", "IPython", "pandas") if m in sys.modules]
assert not absent, absent
count = jax.config.jax_num_cpu_devices
assert not ode.loops_are_native()
ode.compile_loops_natively()  # raises if the imports had started a backend
flags = os.environ["XLA_FLAGS"]
ode.compile_loops_natively()
assert ode.loops_are_native() and os.environ["XLA_FLAGS"] == flags
assert jax.config.jax_num_cpu_devices == count
prob = ode.ODEProblem(lambda t, u, p: -p * u, jnp.ones(2), (0.0, 1.0), 0.5)
np.testing.assert_allclose(ode.solve(prob, saveat=[1.0]).u[0], np.exp(-0.5), rtol=1e-5)
ode.compile_loops_natively()  # in force: nothing to do
del os.environ["XLA_FLAGS"]
try:
    ode.compile_loops_natively()
except RuntimeError as error:
    assert "directly after the imports" in str(error), error
else:
    raise AssertionError("came too late without an error")
assert "XLA_FLAGS" not in os.environ and jax.config.jax_num_cpu_devices == count
print(flags)
"""


def test_flags_in_a_new_process():
    assert python(FLAGS_CODE) == f"--xla_backend_extra_options={OURS}"


@pytest.mark.parametrize(
    "before, after",
    [
        ("--xla_force_host_platform_device_count=2", f"--xla_force_host_platform_device_count=2 {xla._OPTIONS}{OURS}"),
        (f"{xla._OPTIONS}a=1,b=2 --xla_x=3", f"--xla_x=3 {xla._OPTIONS}a=1,b=2,{OURS}"),
        (f"{xla._OPTIONS}a=1,{OURS.replace('100000000', '1024')}", f"{xla._OPTIONS}a=1,{OURS}"),
        (f"{xla._OPTIONS}{OURS} --xla_x=3", f"{xla._OPTIONS}{OURS} --xla_x=3"),
    ],
)
def test_flags_are_merged(monkeypatch, before, after):
    monkeypatch.setenv("XLA_FLAGS", before)
    monkeypatch.setattr(xla, "_backends_started", lambda: False)
    assert ode.loops_are_native() == (before == after)
    ode.compile_loops_natively()
    assert os.environ["XLA_FLAGS"] == after
    assert ode.loops_are_native()


def test_a_file_of_flags_is_refused(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "flags.txt")
    with pytest.raises(ValueError, match="add the line"):
        ode.compile_loops_natively()


CACHE_CODE = """
import sys, jax, jax.numpy as jnp
counts = {}
jax.monitoring.register_event_listener(lambda event, **_: counts.update({event: counts.get(event, 0) + 1}))
import odesens as ode
early = jnp.ones(3) + 1  # JAX has looked for its cache before
print(ode.cache_compilations())
prob = ode.ODEProblem(lambda t, u, p: -p * u, jnp.ones(2), (0.0, 1.0), 0.5)
jax.grad(lambda p: jnp.sum(ode.solve(prob, p=p, saveat=[1.0]).u))(0.5)
get = lambda name: counts.get(f"/jax/compilation_cache/{name}", 0)
print(get("cache_hits"), get("cache_misses"))
"""


def test_a_second_process_compiles_nothing(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    folder, first = python(CACHE_CODE, **environment).split("\n")
    assert folder == str(tmp_path / "odesens")
    hits, misses = map(int, first.split())
    assert hits == 0 < misses
    again_hits, again_misses = map(int, python(CACHE_CODE, **environment).split("\n")[1].split())
    assert again_misses == 0 and again_hits == misses


def test_default_folders(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    for platform, parts in {"linux": ".cache", "darwin": "Library/Caches", "win32": "AppData/Local"}.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert xla._user_cache() == Path.home() / parts
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert xla._user_cache() == Path.home() / "AppData/Local"
