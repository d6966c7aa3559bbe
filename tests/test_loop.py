"""The time loop alone: methods' orders, controllers, step bounds, times in single precision, lanes, stubs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode
from odesens.integrate.lanes import Lanes
from odesens.integrate.loop import Options, Settings, Task, integrate
from odesens.integrate.record import Record, steps_between
from odesens.integrate.replay import Replay, backwards, steps_at
from odesens.methods import explicit
from odesens.methods.controller import PIDController
from odesens.methods.step import Method
from odesens.methods.tableaus import EULER, HEUN, TSIT5

from .problems import METHODS


def name(alg):
    return type(alg).__name__


# ---------------------------------------------------------------- orders


def forced(t, u, p):
    """u' = -u^2 + g(t) with the exact solution 1 / (1 + t) + sin(t): nonlinear, and not autonomous."""
    exact, slope = 1 / (1 + t) + jnp.sin(t), -1 / (1 + t) ** 2 + jnp.cos(t)
    return -(u**2) + exact**2 + slope


def exact(t):
    return 1 / (1 + t) + np.sin(t)


FORCED = ode.ODEProblem(forced, 1.0, (0.0, 2.0))
STEPS = {9: (8, 12, 18), 8: (8, 12, 18), 7: (8, 12, 18, 27), 6: (12, 18, 27, 40), 5: (40, 60, 90)}


@pytest.mark.parametrize("alg", METHODS, ids=name)
def test_observed_order_of_steps_and_of_dense_output(alg):
    """The error at the end decays with dt^order; that inside steps with dt^min(order, dense order + 1) at least."""
    counts = STEPS.get(alg.order, (32, 64, 128))
    inner = np.array([0.37, 0.811, 1.2345, 1.7])

    @jax.jit
    def errors(dt):
        sol = ode.solve(FORCED, alg, adaptive=False, dt0=dt, saveat=jnp.append(inner, 2.0))
        return jnp.abs(sol.u - jnp.append(exact(inner), exact(2.0)))

    err = np.array([errors(2.0 / n) for n in counts])
    # least squares over the step sizes; a method may do better than its order on one problem
    slope = lambda e: np.polyfit(np.log(2.0 / np.array(counts)), np.log(e), 1)[0]
    assert slope(err[:, -1]) > alg.order - 0.35
    assert slope(err[:, :-1].max(axis=1)) > min(alg.order, alg.tableau.dense_order + 1) - 0.5


@pytest.mark.parametrize("alg", METHODS, ids=name)
def test_local_order_within_two_tenths(alg):
    """One step from the same state: local errors of order + 1, and of dense order + 1 inside the step, within 0.2.

    In 50 digits the asymptotic regime is reached, so this uses mpmath on the tableau itself.
    """
    import mpmath as mp

    with mp.workdps(60):
        tableau = alg.tableau
        a, b, c = (tableau.fractions(x) for x in "abc")
        dense = tableau.fractions("b_dense")
        as_mp = lambda x: mp.mpf(x.numerator) / x.denominator
        sol = lambda t: 1 / (1 + t) + mp.sin(t)
        f = lambda t, u: -(u**2) + sol(t) ** 2 - 1 / (1 + t) ** 2 + mp.cos(t)

        def local_errors(h, theta="0.43"):
            t0, theta, k = mp.mpf("2.0"), mp.mpf(theta), []
            for ci, row in zip(c, a, strict=True):
                k.append(
                    f(t0 + as_mp(ci) * h, sol(t0) + h * mp.fsum(as_mp(x) * y for x, y in zip(row, k, strict=False)))
                )
            end = sol(t0) + h * mp.fsum(as_mp(x) * y for x, y in zip(b, k, strict=False))
            inside = sol(t0) + h * mp.fsum(
                y * mp.fsum(as_mp(x) * theta ** (j + 1) for j, x in enumerate(row))
                for row, y in zip(dense, k, strict=True)
            )
            return abs(end - sol(t0 + h)), abs(inside - sol(t0 + theta * h))

        coarse, fine = local_errors(mp.mpf(1) / 240), local_errors(mp.mpf(1) / 480)
        orders = [float(mp.log(x / y, 2)) - 1 for x, y in zip(coarse, fine, strict=True)]
    assert orders[0] == pytest.approx(alg.order, abs=0.2)
    assert orders[1] == pytest.approx(tableau.dense_order, abs=0.2)


@pytest.mark.parametrize("alg", [m for m in METHODS if m.adaptive], ids=name)
def test_error_follows_the_tolerance(alg):
    tols = {2: (1e-3, 1e-5), 3: (1e-4, 1e-6)}.get(alg.order, (1e-6, 1e-9))

    @jax.jit
    def solved(tol):
        sol = ode.solve(FORCED, alg, reltol=tol, abstol=tol, saveat=[1.0, 2.0])
        return sol.u, sol.stats.naccept

    (loose, n_loose), (tight, n_tight) = (solved(tol) for tol in tols)
    error = lambda u: np.abs(u - exact(np.array([1.0, 2.0]))).max()
    assert error(loose) < 30 * tols[0]
    assert error(tight) < 30 * tols[1]
    assert n_tight > n_loose


# ---------------------------------------------------------------- the loop with stubs


class Script:
    """A controller that ignores errors and proposes the same factor."""

    def __init__(self, factor):
        self.value = factor

    def factor(self, k, err, err1, err2, accepted):
        return jnp.where(accepted, self.value, 0.5)


def task(f, u0, t1, ts=()):
    one = jnp.asarray
    return Task(f, one(u0), {}, None, one(0.0), one(t1), one(ts, float))


def options(dt0, dtmax=jnp.inf):
    return Options(*(jnp.asarray(x) for x in (1e-3, 1e-3, dt0, 0.0, dtmax)))


def all_steps(record):
    """The steps of a record that has every one of them as a row."""
    size = int(record.size)
    assert int(record.stride) == 1
    return steps_between(record.times[:size], record.states[:size], size, record.times[size, ..., :2])


def test_a_scripted_controller_sets_the_steps():
    settings = Settings(Method(HEUN), Script(2.0), True, True, 100)
    result = integrate(
        settings,
        task(lambda t, u, p: jnp.zeros_like(u), [1.0], 1.0),
        options(0.1),
        Options(*[None] * 5),
        Lanes(None),
        record=101,
    )
    steps = all_steps(result.record)
    np.testing.assert_allclose(steps.times[:, 2], [0.1, 0.2, 0.4, 0.3], rtol=1e-12)
    assert result.record.times[int(result.record.size), 0] == 1.0
    assert int(result.lane.naccept) == 4 and int(result.lane.nreject) == 0


def test_rejected_steps_leave_no_row():
    wiggle = lambda t, u, p: jnp.full_like(u, 50.0) * jnp.cos(50.0 * t)
    settings = Settings(Method(HEUN), Script(3.0), True, True, 1000)
    result = integrate(settings, task(wiggle, [0.0], 1.0), options(0.5), Options(*[None] * 5), Lanes(None), record=1001)
    size = int(result.record.size)
    assert int(result.lane.nreject) > 0 and size == int(result.lane.naccept)
    times = np.asarray(all_steps(result.record).times)
    np.testing.assert_allclose(times[:-1, 0] + times[:-1, 2], times[1:, 0], rtol=1e-14)


def test_lanes_take_the_steps_they_would_take_alone():
    f = lambda t, u, p: -p * u
    rates = jnp.array([0.1, 3.0, 40.0])
    settings = Settings(Method(TSIT5), PIDController(), True, False, 200)
    spread = lambda x: jnp.full(3, x)
    many = Task(f, jnp.ones((3, 1)), rates, 0, spread(0.0), spread(1.0), jnp.ones((3, 1)))
    run = lambda t, lanes: integrate(settings, t, options(0.0), Options(*[None] * 5), lanes, record=201)
    together = run(many, Lanes(3))
    for i, rate in enumerate(rates):
        alone = run(Task(f, jnp.ones(1), rate, None, jnp.asarray(0.0), jnp.asarray(1.0), jnp.ones(1)), Lanes(None))
        assert int(alone.lane.naccept) == int(together.lane.naccept[i])
        assert int(alone.lane.nreject) == int(together.lane.nreject[i])
        np.testing.assert_array_equal(alone.us, together.us[i])
    idle = np.asarray(all_steps(together.record).times[:, 0, 2])
    assert np.sum(idle != 0) == int(together.lane.naccept[0])


def test_steps_at_given_times_of_a_record_with_idle_rows():
    rows = jnp.array([0.0, 0.5, 0.5, 1.0, 0.0])  # the second one is of an iteration in which this lane was rejected
    times = jnp.stack([rows, *[jnp.zeros(5)] * 5], axis=1)
    record = Record(times, jnp.arange(5.0)[:, None], jnp.array([3, 1]), jnp.asarray(0))
    settings = Settings(Method(HEUN), Script(2.0), True, True, 4)
    replay = Replay(settings, task(None, [0.0], 1.0), options(0.1), Options(*[None] * 5), Lanes(None), record)
    found, states, inside, _ = steps_at(replay, jnp.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.1]))
    np.testing.assert_array_equal(states[:, 0], [0, 0, 2, 2, 3, 3])
    np.testing.assert_allclose(found[:, 2], [0.5, 0.5, 0.5, 0.5, 0, 0])
    np.testing.assert_array_equal(inside, [True] * 5 + [False])


@pytest.mark.parametrize(("rows", "lanes"), [(8, None), (8, 2), (32, 2), (64, None), (512, 2)])
def test_a_record_of_few_rows_gives_every_step_back(rows, lanes, monkeypatch):
    """Whatever the stride, and however often rows must be divided: the same steps as in a record that has them all."""
    monkeypatch.setattr("odesens.integrate.replay.CHUNK", 4)
    f = lambda t, u, p: jnp.stack([u[1], -u[0]]) * (1.0 + jnp.cos(3 * t))
    settings = Settings(Method(TSIT5), PIDController(), True, False, 4096)
    spread = lambda x: jnp.asarray(x) if lanes is None else jnp.broadcast_to(jnp.asarray(x), (lanes, *jnp.shape(x)))
    u0 = jnp.array([1.0, 0.3]) if lanes is None else jnp.array([[1.0, 0.3], [1e-3, 2.0]])
    problem = Task(f, u0, {}, None, spread(0.0), spread(9.0), spread(jnp.zeros(0)))
    numbers = Options(*(jnp.asarray(x) for x in (1e-7, 1e-7, 0.0, 0.0, jnp.inf)))
    none = Options(*[None] * 5)
    solve = lambda rows: integrate(settings, problem, numbers, none, Lanes(lanes), record=rows).record
    whole, few = solve(4097), solve(rows)
    want = all_steps(whole)
    total = int(whole.size)
    assert total > 100 and int(few.stride) == 2 ** int(np.ceil(np.log2(max(1, total / (rows - 1)))))

    def visit(carry, steps):
        times, states, left = carry
        row = jnp.arange(steps.times.shape[0])
        index = jnp.where(row < steps.count, left - steps.count + row, total)
        put = lambda buffer, x: buffer.at[index].set(x, mode="drop")
        return put(times, steps.times), put(states, steps.states), left - steps.count

    replay = Replay(settings, problem, numbers, none, Lanes(lanes), few)
    nothing = (jnp.full_like(want.times, jnp.nan), jnp.full_like(want.states, jnp.nan), jnp.asarray(total, jnp.int32))
    times, states, left = backwards(replay, visit, nothing)
    assert int(left) == 0
    np.testing.assert_allclose(times, want.times, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(states, want.states, rtol=1e-12, atol=1e-13)


def test_stages_roll_to_the_same_numbers():
    f = lambda t, u: jnp.sin(u) * jnp.cos(t) + u[::-1]
    u, dt, t = jnp.array([0.3, -1.2]), jnp.asarray(0.1), jnp.asarray(0.4)
    args = (TSIT5, f, t, jnp.zeros(()), u, dt, f(t, u), t + dt)
    np.testing.assert_allclose(explicit.stages(*args, roll=True), explicit.stages(*args, roll=False), rtol=1e-14)


# ---------------------------------------------------------------- times and step bounds


def test_single_precision_does_not_stall_far_out():
    """At t = 1e6 float32 times are 0.06 apart; steps of 0.01 must add up all the same, and the end be met exactly."""
    start, stop = np.float32(1e6), np.float32(1e6 + 2)
    prob = ode.ODEProblem(lambda t, u, p: jnp.stack([u[1], -u[0]]), jnp.array([1.0, 0.0], jnp.float32), (start, stop))
    sol = ode.solve(prob, dtmax=0.01, saveat=[stop])
    assert sol.t.dtype == jnp.float32 and sol.u.dtype == jnp.float32
    assert int(sol.stats.naccept) >= 200
    np.testing.assert_allclose(sol.u[-1], [np.cos(2.0), -np.sin(2.0)], atol=2e-5)


def test_single_precision_reaches_a_million():
    prob = ode.ODEProblem(lambda t, u, p: -u / 1e5, jnp.float32(1.0), (0.0, np.float32(1e6)))
    sol = ode.solve(prob, adaptive=False, dt0=1e3)
    assert sol.t[-1] == np.float32(1e6) and len(sol) == 1001
    np.testing.assert_allclose(sol[-1], np.exp(-10.0), rtol=1e-4)


def test_the_last_step_lands_on_the_end():
    prob = ode.ODEProblem(lambda t, u, p: jnp.cos(t), 0.0, (0.1, 1.7))
    for t1 in (1.7, 1.7 + 1e-9, 0.1 + 1e-13, -3.3):
        sol = ode.solve(prob, tspan=(0.1, t1))
        assert sol.t[-1] == t1 and sol.t[0] == 0.1
        assert sol[-1] == pytest.approx(np.sin(t1) - np.sin(0.1), abs=1e-6)


def test_step_bounds():
    prob = ode.ODEProblem(lambda t, u, p: -u, 1.0, (0.0, 10.0))
    free = ode.solve(prob)
    bounded = ode.solve(prob, dtmax=0.1)
    assert int(free.stats.naccept) < 60 and np.diff(bounded.t).max() <= 0.1 * (1 + 1e-9)
    stuck = ode.solve(prob, dtmin=3.0, reltol=1e-10, abstol=1e-10, throw=False)
    assert stuck.retcode is ode.ReturnCode.DtTooSmall
    assert ode.solve(prob, dt0=1e-5).t[1] == pytest.approx(1e-5)


@pytest.mark.parametrize("controller", [ode.IController(), ode.PIController(), ode.PIDController(0.3, 0.4, 0.05)])
def test_controllers(controller):
    sol = ode.solve(FORCED, controller=controller, reltol=1e-8, abstol=1e-8, saveat=[2.0])
    assert sol[-1] == pytest.approx(exact(2.0), abs=1e-7)
    assert int(sol.stats.naccept) < 80


def test_tolerances_of_each_component():
    f = lambda t, u, p: {"fast": -u["fast"] * 20, "slow": jnp.cos(u["slow"])}
    prob = ode.ODEProblem(f, {"fast": 1.0, "slow": jnp.zeros(2)}, (0.0, 2.0))
    steps = lambda **tol: int(ode.solve(prob, saveat=[2.0], **tol).stats.naccept)
    careless = {"fast": 1e3, "slow": 1e-6}
    assert steps(abstol=careless, reltol=1e-6) < steps(abstol=1e-6, reltol=1e-6)


def test_evaluations_of_f_are_counted():
    """Two for the starting step, then six a step for Tsit5 (its seventh is the next one's first); ten for Vern7."""
    prob = ode.ODEProblem(lambda t, u, p: -u, 1.0, (0.0, 1.0))
    count = lambda alg, **options: [int(x) for x in ode.solve(prob, alg, saveat=[1.0], **options).stats]
    nf, _, _, naccept, nreject = count(ode.Tsit5())
    assert nf == 2 + 6 * (naccept + nreject)
    fixed = {"adaptive": False, "dt0": 0.1}
    assert count(ode.Tsit5(), **fixed)[0] == 1 + 6 * 10
    assert count(ode.RK4(), **fixed)[0] == 4 * 10


def test_extra_stages_are_evaluated_where_a_save_needs_them():
    prob = ode.ODEProblem(lambda t, u, p: -u, 1.0, (0.0, 1.0))
    nf = lambda saveat: int(ode.solve(prob, ode.Vern7(), adaptive=False, dt0=0.25, saveat=saveat).stats.nf)
    assert nf([]) == 4 * 10
    assert nf([0.3, 0.4]) == 4 * 10 + ode.Vern7().tableau.n_extra


def test_euler_has_no_error_estimate():
    assert EULER.b_err is None and not ode.Euler().adaptive


@pytest.mark.parametrize("engine", [ode.DiscreteAdjoint(), ode.GaussAdjoint(), ode.InterpolatingAdjoint()], ids=name)
def test_gradients_over_many_more_steps_than_checkpoints(engine):
    """A rotation over 5 000 fixed steps, u = cos(p t): value, gradient, forward mode, lanes that take other steps."""
    prob = ode.ODEProblem(lambda t, u, p: jnp.stack([p * u[1], -p * u[0]]), [1.0, 0.0], (0.0, 250.0))
    ts = np.linspace(0.0, 250.0, 7)
    options = {"saveat": ts, "adaptive": False, "dt0": 0.05, "sensealg": engine}
    loss = lambda p: jnp.sum(ode.solve(prob, ode.Vern6(), p=p, **options).u[:, 0])
    slope = lambda p: -np.sum(ts * np.sin(p * ts))
    for program in (jax.grad, jax.jacfwd):
        got = jax.jit(jax.vmap(program(loss)))(jnp.array([0.9, 0.3]))
        np.testing.assert_allclose(got, [slope(0.9), slope(0.3)], rtol=1e-6)


def test_every_step_of_a_solve_longer_than_its_record():
    prob = ode.ODEProblem(lambda t, u, p: -u, 1.0, (0.0, 1.0))
    sol = ode.solve(prob, ode.Tsit5(), adaptive=False, dt0=1 / 3000)
    assert len(sol) == 3001
    np.testing.assert_allclose(sol.u, np.exp(-sol.t), rtol=1e-12)
    np.testing.assert_allclose(np.diff(sol.t), 1 / 3000, rtol=1e-9)
    last = jax.grad(lambda u0: ode.solve(prob, ode.Tsit5(), u0=u0, adaptive=False, dt0=1 / 3000)[-1])(1.0)
    np.testing.assert_allclose(last, np.exp(-1.0), rtol=1e-12)


def test_dense_output_of_a_solve_longer_than_its_record():
    prob = ode.ODEProblem(lambda t, u, p: jnp.cos(p * t), 0.0, (0.0, 2.0), 1.0)
    sol = ode.solve(prob, ode.Tsit5(), adaptive=False, dt0=1 / 2000, saveat=[2.0], dense=True)
    assert int(sol.stats.naccept) == 4000
    ts = np.array([1.9999, 0.0, 0.00033, 1.2345, 2.0])
    np.testing.assert_allclose(sol(ts), np.sin(ts), rtol=1e-12, atol=1e-15)
    slope = jax.grad(lambda p: ode.solve(prob, p=p, adaptive=False, dt0=1 / 2000, saveat=[2.0], dense=True)(1.2345))(
        1.0
    )
    np.testing.assert_allclose(slope, 1.2345 * np.cos(1.2345) - np.sin(1.2345), rtol=1e-10)


@pytest.mark.parametrize("steps", [100, 1100])
def test_derivatives_of_dense_output_at_times_in_any_order(steps):
    """sum of u(q)^2 for u' = p u cos t, u = exp(p sin t), by the recorded steps, more of them than rows or fewer."""
    prob = ode.ODEProblem(lambda t, u, p: p * u * jnp.cos(t), 1.0, (0.0, 3.0))
    options = {"adaptive": False, "dt0": 3.0 / steps, "saveat": [3.0], "dense": True}
    q = jnp.array([2.5, 0.1, 1.7, 1.7, 0.0, 3.0])
    value = lambda p, q: jnp.sum(ode.solve(prob, ode.Tsit5(), p=p, **options)(q) ** 2)
    exact = lambda p, q: jnp.sum(jnp.exp(2 * p * jnp.sin(q)))
    for derivative in (jax.grad, jax.jacfwd):
        for argument in (0, 1):
            got = jax.jit(derivative(value, argument))(0.7, q)
            np.testing.assert_allclose(got, jax.grad(exact, argument)(0.7, q), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("alg, tol", [(ode.RK4(), 1e-5), (ode.Tsit5(), 1e-4)], ids=["RK4", "Tsit5"])
def test_single_precision_far_out_has_right_dense_output_and_gradients(alg, tol):
    """u = exp(-p (t - t0)) near t0 = 1e6, where float32 times are 0.06 apart and many steps begin at the same one."""
    fixed = {} if alg.adaptive else {"dt0": 2 / 500}
    prob = ode.ODEProblem(lambda t, u, p: -p * u, np.float32(1.0), (np.float32(1e6), np.float32(1e6 + 2)))
    options = {"reltol": 2e-6, **fixed}
    q = np.float32(1e6 + 1.5)
    want = np.exp(-1.5)
    dense = lambda p: ode.solve(prob, alg, p=p, saveat=[1e6 + 2], dense=True, **options)(q)
    saved = lambda p: ode.solve(prob, alg, p=p, saveat=[1e6 + 1.5], sensealg=ode.DiscreteAdjoint(), **options).u[0]
    one = np.float32(1.0)
    np.testing.assert_allclose([dense(one), saved(one)], want, rtol=tol)
    slopes = [d(f)(one) for d in (jax.grad, jax.jacfwd) for f in (dense, saved)]
    np.testing.assert_allclose(slopes, -1.5 * want, rtol=tol)
