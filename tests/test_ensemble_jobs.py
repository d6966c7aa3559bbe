"""Long ensemble jobs: files of finished batches, progress, several processes."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from .problems import close, lotka_volterra

ROOT = Path(__file__).parents[1]
P = jnp.array([1.5, 1.0, 3.0, 1.1])
PROB = ode.ODEProblem(lotka_volterra, jnp.array([1.0, 1.2]), (0.0, 1.0), P, saveat=0.5)


def scaled(p=P, **parts):
    return ode.EnsembleProblem(PROB, prob_func=lambda prob, i, _: ode.remake(prob, p=p * (1 + 0.02 * i)), **parts)


# ---------------------------------------------------------------- checkpoints

JOB = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import odesens as ode

folder, result, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
prob = ode.ODEProblem(lambda t, u, p: jnp.stack([u[1], p * (1 - u[0] ** 2) * u[1] - u[0]]), jnp.array([2.0, 0.0]),
                      (0.0, 10.0), saveat=2.0)
eprob = ode.EnsembleProblem(prob, prob_func=lambda prob, i, _: ode.remake(prob, p=0.1 + 0.2 * i))
wait = lambda done, total: time.sleep(pause)
sol = ode.solve(eprob, ode.Tsit5(), trajectories=20, batch_size=4, checkpoint=folder or None, progress=wait)
np.savez(result, u=sol.u, codes=sol.retcodes, steps=sol.stats.naccept)
"""


def test_a_killed_job_goes_on_and_ends_with_the_same_bits(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    start = lambda folder, result, pause: subprocess.Popen(
        [sys.executable, tmp_path / "job.py", tmp_path / folder, tmp_path / result, str(pause)], cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    whole = start("whole", "whole.npz", 0)
    killed = start("killed", "killed.npz", 1000)
    limit = time.monotonic() + 240
    while not list((tmp_path / "killed").glob("*.npz")):
        assert killed.poll() is None and time.monotonic() < limit
        time.sleep(0.1)
    killed.kill()  # after a batch, in its pause
    killed.wait()
    assert whole.wait() == 0 and not (tmp_path / "killed.npz").exists()
    files = sorted((tmp_path / "killed").glob("*.npz"))
    made = [f.stat().st_mtime_ns for f in files]
    assert 0 < len(files) < 5
    (tmp_path / "killed" / f"batch_{len(files):06d}.123.partial").write_bytes(b"cut off")
    assert start("killed", "killed.npz", 0).wait() == 0
    assert [f.stat().st_mtime_ns for f in files] == made  # not solved again
    with np.load(tmp_path / "whole.npz") as want, np.load(tmp_path / "killed.npz") as got:
        assert all(np.array_equal(got[k], want[k]) for k in want.files)


def test_checkpoint_of_a_reduction_and_of_another_job(tmp_path):
    add = lambda u, batch, index: u + jnp.sum(batch)
    solve = lambda p, folder, **more: ode.solve(
        scaled(p, reduction=add, u_init=0.0), ode.Tsit5(), trajectories=5, batch_size=2, checkpoint=folder, **more
    )
    first = solve(P, tmp_path)
    (tmp_path / "batch_000002.npz").unlink()
    assert solve(P, tmp_path).u == first.u
    close(first.u, jnp.sum(ode.solve(scaled(), ode.Tsit5(), trajectories=5).u), 1e-12)
    for other, more in ((P * 2, {}), (P, {"reltol": 1e-3})):
        with pytest.raises(ValueError, match="another job"):
            solve(other, tmp_path, **more)
    with pytest.raises(TypeError, match="eager call"):
        jax.grad(lambda p: solve(p, tmp_path / "new").u)(P)


# ---------------------------------------------------------------- progress


def test_progress_under_jit_and_apart_from_derivatives():
    seen = []

    def total(p):
        sol = ode.solve(
            scaled(p), ode.Tsit5(), trajectories=5, batch_size=2, progress=lambda done, n: seen.append((done, n))
        )
        return jnp.sum(sol.u)

    plain = jax.grad(lambda p: jnp.sum(ode.solve(scaled(p), ode.Tsit5(), trajectories=5, batch_size=2).u))
    for run, right in ((jax.grad(total), plain), (jax.jit(jax.grad(total)), jax.jit(plain))):
        seen.clear()
        gradient = run(P)
        jax.effects_barrier()
        assert np.array_equal(gradient, right(P))
        assert sorted(seen) == [(2, 5), (4, 5), (5, 5)]


def test_progress_as_text(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    jax.block_until_ready(ode.solve(scaled(), ode.Tsit5(), trajectories=5, batch_size=2, progress=True).u)
    jax.effects_barrier()
    assert "5 of 5" in capfd.readouterr().err
    with pytest.raises(TypeError, match="progress"):
        ode.solve(scaled(), ode.Tsit5(), trajectories=5, progress="bar")


# ---------------------------------------------------------------- processes


def processes():
    spec = importlib.util.spec_from_file_location("processes", ROOT / "benchmarks" / "processes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def one_process():
    return processes().launch(1)[0]


@pytest.mark.parametrize("count", [3])  # seven trajectories: not equally many for each
def test_processes_agree_with_one(count, one_process):
    results = processes().launch(count)
    assert len(results) == count
    for result in results:
        close(result["values"], one_process["values"], 1e-12)
        close(result["gradient"], one_process["gradient"], 1e-12)
