"""A bar for a single solve: what it shows, where it works, and that nothing else changes."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode
from odesens import progress
from tests.problems import lotka_volterra

P = jnp.array([1.5, 1.0, 3.0, 1.0])
TS = np.linspace(0.0, 20.0, 5)
FACTORS = jnp.array([1.0, 1.1, 0.9])
SEEN: list[tuple] = []  # (token, percent, note, last) of every report


def states(p=P, on=True, **options):
    prob = ode.ODEProblem(lotka_volterra, [1.0, 1.0], (0.0, 20.0), p)
    return ode.solve(prob, ode.Tsit5(), **{"saveat": TS, "reltol": 1e-8, "progress": on, **options}).u


def total(p, on=True, **options):
    return jnp.sum(states(p, on, **options))


def many(k, on):
    return jax.vmap(lambda k: states(k * P, on))(k)


@pytest.fixture
def reports(monkeypatch):
    """The reports of the solves made since, by bars."""
    SEEN.clear()
    monkeypatch.setattr(progress, "show", lambda token, n, *rest, last: SEEN.append((int(token), n, rest[-1], last)))

    def bars() -> list:
        jax.effects_barrier()
        return [[x[1:] for x in SEEN if x[0] == token] for token in dict.fromkeys(x[0] for x in SEEN)]

    return bars


@pytest.fixture
def text(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)


def percents(bar):
    return [n for n, _, _ in bar]


def whole(bar):
    """A bar that rises, ends at 100 %, is closed once, and reports neither seldom nor often."""
    assert [last for _, _, last in bar] == [False] * (len(bar) - 1) + [True]
    assert percents(bar) == sorted(percents(bar)) and percents(bar)[-1] == 100
    assert 50 <= len(bar) <= 210


# ---------------------------------------------------------------- what else changes: nothing


CASES = {
    "eager": lambda on: states(on=on),
    "jit": lambda on: jax.jit(lambda p: states(p, on))(P),
    "grad": lambda on: jax.grad(total)(P, on),
    "jit of grad": lambda on: jax.jit(jax.grad(lambda p: total(p, on)))(P),
    "checkpoint": lambda on: jax.grad(jax.checkpoint(lambda p: total(p, on)))(P),
    "vmap": lambda on: many(FACTORS, on),
    "vmap of grad": lambda on: jax.jit(jax.vmap(jax.grad(lambda k: total(k * P, on))))(FACTORS),
    "scan": lambda on: jax.lax.scan(lambda c, k: (c, states(k * P, on)), 0.0, FACTORS)[1],
    "reversed": lambda on: states(on=on, tspan=(20.0, 0.0), saveat=TS[::-1]),
    "no record that is thinned": lambda on: states(on=on, reltol=1e-6, max_steps=1000),
}


@pytest.mark.parametrize("name", CASES)
def test_bits_are_the_same_and_bars_are_whole(name, reports):
    got, bars = CASES[name](True), reports()
    assert len(bars) == {"scan": 3, "checkpoint": len(bars)}.get(name, 1)
    for bar in bars:
        whole(bar)
    SEEN.clear()
    want = CASES[name](False)
    assert not reports()
    np.testing.assert_array_equal(got, want)


def test_hessian_has_the_bar_of_its_forward_pass(reports):
    got = jax.jit(jax.hessian(total))(P)
    for bar in reports():
        whole(bar)
    np.testing.assert_array_equal(got, jax.jit(jax.hessian(lambda p: total(p, False)))(P))


def test_off_costs_nothing():
    of = lambda **options: ode.solve(ode.ODEProblem(lotka_volterra, [1.0, 1.0], (0.0, 20.0), P), saveat=TS, **options)
    plain, off, on = (of(**options) for options in ({}, {"progress": False}, {"progress": True}))
    assert plain._call is off._call is on._call  # a solution is the same whether or not its making was shown
    assert jax.tree.structure(plain) == jax.tree.structure(on)
    jaxprs = [str(jax.make_jaxpr(lambda p, o=o: states(p, **o))(P)) for o in ({"on": None}, {"on": False})]
    assert jaxprs[0] == jaxprs[1] and "debug" not in jaxprs[0]
    program = lambda on: jax.jit(lambda p: states(p, on)).lower(P).as_text()
    assert "callback" not in program(False) and "callback" in program(True)
    gradient = jax.jit(jax.grad(lambda p: total(p, False))).lower(P)
    assert "callback" not in gradient.as_text()


def test_no_more_is_compiled_for_derivatives():
    adjoint = lambda on: [
        eqn.params["call"] for eqn in jax.make_jaxpr(jax.grad(lambda p: total(p, on)))(P).eqns if "call" in eqn.params
    ]
    shown, plain = adjoint(True), adjoint(False)
    assert len(shown) == len(plain) == 2  # the solve and its adjoint
    assert shown[0] != plain[0] and shown[1] == plain[1]


# ---------------------------------------------------------------- what is said


def test_time_and_steps(reports):
    sol = ode.solve(ode.ODEProblem(lotka_volterra, [1.0, 1.0], (0.0, 20.0), P), reltol=1e-8, saveat=TS, progress=True)
    (bar,) = reports()
    for n, note, _ in bar:
        t = float(re.match(r"t = (\S+), \d+ steps$", note)[1])
        assert n == pytest.approx(5 * t, abs=0.05)
    assert bar[-1][1] == f"t = 20, {int(sol.stats.naccept)} steps"


def test_lanes_show_the_slowest(reports):
    slow = lambda w: ode.solve(
        ode.ODEProblem(lambda t, u, w: w * jnp.stack([u[1], -u[0]]), [1.0, 0.0], (0.0, 20.0), w),
        ode.Tsit5(),
        saveat=[20.0],
        progress=True,
    )
    sol = jax.vmap(slow)(jnp.array([0.1, 8.0, 1.0]))
    (bar,) = reports()
    whole(bar)
    assert bar[-1][1] == f"t = 20, {int(np.max(sol.stats.naccept))} steps"
    alone = slow(8.0)
    assert len(bar) == len(reports()[1])  # the slowest lane alone sets the pace
    assert int(sol.stats.naccept[1]) == int(alone.stats.naccept)


def test_long_steps_report_each_and_short_ones_by_number(reports):
    f = lambda t, u, p: -u
    fixed = lambda dt, span: ode.solve(
        ode.ODEProblem(f, 1.0, (0.0, span)), ode.RK4(), dt0=dt, adaptive=False, saveat=[span], progress=True
    )
    fixed(0.25, 1.0)
    assert percents(reports()[0]) == [25, 50, 75, 100, 100]
    SEEN.clear()
    ode.solve(
        ode.ODEProblem(lambda t, u, p: 1e4 * jnp.cos(1e6 * t), 0.0, (0.0, 1.0)),
        ode.Tsit5(),
        reltol=1e-8,
        max_steps=4000,
        saveat=[1.0],
        progress=True,
        throw=False,
    )
    (bar,) = reports()
    assert len(bar) == 5 and percents(bar)[-1] < 1  # after 1000, 2000, 3000 and 4000 attempts, and the end
    assert bar[-1][1].endswith("steps, MaxSteps")


def test_failure_closes_the_bar(text, capfd):
    for options in ({"max_steps": 30}, {"max_steps": 30, "throw": False}):
        try:
            states(**options)
        except ode.SolveError as error:
            assert "throw" not in options and error.retcode is ode.ReturnCode.MaxSteps
        jax.effects_barrier()
        assert "30 steps, MaxSteps" in capfd.readouterr().err
        assert not progress._open


def test_a_program_broken_off_closes_its_bar(text):
    def broken(t):
        if t > 10:
            raise RuntimeError("broken off")
        return np.float64(0)

    f = lambda t, u, p: -u + jax.pure_callback(broken, jax.ShapeDtypeStruct((), jnp.float64), t)
    with pytest.raises(Exception, match="broken off"):
        ode.solve(ode.ODEProblem(f, 1.0, (0.0, 20.0)), ode.Tsit5(), saveat=TS, progress=True)
    assert not progress._open


def test_events(reports):
    bounce = ode.ContinuousCallback(lambda t, u, p: u[0] - 2, lambda t, u, p: 0.99 * u, direction=-1)
    for call in (states, jax.jit(jax.grad(total))):
        SEEN.clear()
        got = call(P, callback=bounce) if call is states else jax.jit(jax.grad(lambda p: total(p, callback=bounce)))(P)
        (bar,) = reports()
        whole(bar)
        off = lambda p: total(p, False, callback=bounce)
        want = states(P, False, callback=bounce) if call is states else jax.jit(jax.grad(off))(P)
        np.testing.assert_array_equal(got, want)
    SEEN.clear()
    end = ode.ContinuousCallback(lambda t, u, p: u[0] - 2, direction=-1, terminate=True)
    states(P, callback=end)
    assert reports()[0][-1][1].endswith("steps, Terminated")


def test_other_methods(reports):
    for alg in (ode.FBDF(), ode.Rodas5P(), ode.AutoTsit5(ode.Rodas5P())):
        SEEN.clear()
        prob = ode.ODEProblem(lotka_volterra, [1.0, 1.0], (0.0, 20.0), P, progress=True)  # as the problem's option
        shown = ode.solve(prob, alg, saveat=TS, reltol=1e-7)
        whole(reports()[0])
        np.testing.assert_array_equal(shown.u, ode.solve(prob, alg, saveat=TS, reltol=1e-7, progress=False).u)


def test_every_step_and_dense_output(reports):
    prob = ode.ODEProblem(lotka_volterra, [1.0, 1.0], (0.0, 20.0), P)
    for options in ({}, {"saveat": TS, "dense": True}, {"saveat": TS}):
        SEEN.clear()
        shown, plain = (ode.solve(prob, reltol=1e-6, progress=on, **options) for on in (True, False))
        assert len(reports()) == 1
        np.testing.assert_array_equal(shown.u, plain.u)
        np.testing.assert_array_equal(shown(3.3), plain(3.3))
        assert len(reports()) == 1  # a later use of the solution shows nothing


@pytest.mark.parametrize("sensealg", [ode.GaussAdjoint(), ode.BacksolveAdjoint(), ode.ForwardSensitivity()])
def test_engines(sensealg, reports):
    gradient = lambda on: jax.grad(lambda p: total(p, on, sensealg=sensealg, reltol=1e-6))(P)
    got = gradient(True)
    whole(reports()[0])
    np.testing.assert_array_equal(got, gradient(False))


def test_single_precision_far_from_zero(reports):
    """A hundredth of the span is less than the spacing of times there: then the number of steps says when to report."""
    u0, span = jnp.float32(1.0), (jnp.float32(1e6), jnp.float32(1e6 + 1))
    prob = ode.ODEProblem(lambda t, u, p: -u, u0, span, progress=True)
    sol = ode.solve(prob, ode.RK4(), dt0=1 / 256, adaptive=False, saveat=jnp.stack(span))
    assert float(sol[-1]) == pytest.approx(np.exp(-1.0), rel=1e-5)
    (bar,) = reports()
    assert percents(bar)[-1] == 100 and len(bar) <= 3


def test_nothing_to_solve(reports):
    assert float(ode.solve(ode.ODEProblem(lambda t, u, p: -u, 2.0, (1.0, 1.0)), saveat=[1.0], progress=True).u[0]) == 2
    assert len(reports()) == 1 and percents(reports()[0]) == [100]


def test_devices(reports):
    devices = jax.devices()[:2]
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    k = jnp.array([1.0, 1.1])
    shards = lambda on: jax.jit(jax.shard_map(lambda k: many(k, on), mesh=mesh, in_specs=spec, out_specs=spec))
    got = shards(True)(k)
    bars = reports()
    assert len(bars) == len(devices)
    for bar in bars:
        whole(bar)
    np.testing.assert_array_equal(got, shards(False)(k))
    SEEN.clear()
    got = jax.jit(lambda k: many(k, True))(jax.device_put(k, jax.NamedSharding(mesh, spec)))
    whole(reports()[0])
    assert len(reports()) == 1
    np.testing.assert_allclose(got, shards(False)(k), rtol=1e-12)


# ---------------------------------------------------------------- how it is shown


def test_lines_without_tqdm(text, capfd):
    jax.block_until_ready(states())
    jax.effects_barrier()
    lines = capfd.readouterr().err.strip().splitlines()
    assert all(re.fullmatch(r"solve: \d+ %, t = \S+, \d+ steps \(\d+\.\d s\)", line) for line in lines)
    assert lines[-1].startswith("solve: 100 %, t = 20, ") and len(lines) >= 2


def test_bar_of_tqdm(capfd):
    pytest.importorskip("tqdm")
    jax.block_until_ready(states())
    jax.effects_barrier()
    err = capfd.readouterr().err
    assert re.search(r"solve: 100%\|.*t = 20, \d+ steps\]", err)
    assert not progress._open


def test_ensembles_have_their_own_bar(reports, monkeypatch):
    prob = ode.ODEProblem(lotka_volterra, [1.0, 1.0], (0.0, 5.0), P, progress=True)
    eprob = ode.EnsembleProblem(prob, p=FACTORS[:, None] * P)
    monkeypatch.setattr(
        "odesens.ensemble.progress.show", lambda token, n, *rest, last: SEEN.append((int(token), n, rest[0], last))
    )
    jax.block_until_ready(ode.solve(eprob, ode.Tsit5(), batch_size=1).u)
    (bar,) = reports()
    assert sorted(bar) == [(1, 3, False), (2, 3, False), (3, 3, True)]


def test_wrong_input():
    with pytest.raises(TypeError, match="progress must be True or False, got 'bar'"):
        states(on="bar")
    with pytest.raises(TypeError, match="progress"):
        states(on=lambda done, n: None)
