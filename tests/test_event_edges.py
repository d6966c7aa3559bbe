"""Conventions of events, each on a problem whose right answer is plain: where, in which order, what is saved."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from .problems import close
from .test_opacity import compilations

TIGHT = {"reltol": 1e-11, "abstol": 1e-11}


def ramp(t, u, p):
    return jnp.ones_like(u)


def decay(t, u, p):
    return -u


def reaches(level, affect=None, **options):
    return ode.ContinuousCallback(lambda t, u, p: u - level, affect, **options)


def clock(*times, affect=None, **options):
    """An event at each of the times, located as a root, one component of the condition for each."""
    at = np.asarray(times)
    return ode.ContinuousCallback(lambda t, u, p: t - at, affect, **options)


def add(x):
    return lambda t, u, p: u + x


def solve_ramp(callback, saveat, span=(0.0, 1.0), u0=0.0, p=None, **options):
    return ode.solve(ode.ODEProblem(ramp, u0, span, p), saveat=saveat, callback=callback, **{**TIGHT, **options})


# ---------------------------------------------------------------- where an event meets a save


def test_saves_within_one_rounding_of_an_event_are_right_continuous():
    around = [np.nextafter(0.5, 0), 0.5, np.nextafter(0.5, 1)]
    sol = solve_ramp(ode.PresetTimeCallback([0.5], add(10.0)), around)
    close(sol.u, [0.5, 10.5, 10.5], 1e-14)
    sol = solve_ramp(clock(0.5, affect=add(10.0)), around)
    assert sol.events.t[0] == 0.5
    close(sol.u, [0.5, 10.5, 10.5], 1e-14)
    for level in (0.3, 0.7):  # a root whose own time is rounded
        near = np.nextafter(level, [0, level, 1])
        sol = solve_ramp(reaches(level, add(10.0)), near)
        np.testing.assert_allclose(sol.events.t, [level], rtol=0, atol=3e-16)
        close(sol.u, np.where(near >= sol.events.t[0], level + 10, level), 1e-14)


def test_derivatives_of_saves_within_one_rounding_of_an_event():
    """The state before a jump knows nothing of it; the one after does, though the times differ by one rounding."""
    around = np.array([np.nextafter(0.5, 0), 0.5, np.nextafter(0.5, 1)])

    def saved(q):
        callback = ode.PresetTimeCallback(lambda p: p, lambda t, u, p: 3 * u)
        return solve_ramp(callback, around, p=q).u

    close(jax.jit(jax.jacrev(saved))(0.5), [0.0, 2.0, 2.0], 1e-12)


@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
def test_events_at_the_ends_of_the_span(span):
    t0, t1 = span
    known = ode.PresetTimeCallback([0.0, 1.0], add(10.0))
    sol = solve_ramp(known, [t0, 0.5, t1], span)
    passed = t1 - t0
    close(sol.u, [10.0, 10 + 0.5 * passed, 20 + passed], 1e-13)
    assert sol.events.t.tolist() == [t0, t1]
    # a root at t0 is no event, one at t1 is
    sol = solve_ramp(clock(0.0, 1.0, affect=add(10.0)), [t0, 0.5, t1], span)
    close(sol.u, [0.0, 0.5 * passed, 10 + passed], 1e-13)
    assert sol.events.t.tolist() == [t1]


def test_derivatives_in_saved_times():
    """Of saves before, between and after events: the field's value there."""

    def saved(ts):
        double = ode.ContinuousCallback(lambda t, u, p: u - 2.0, lambda t, u, p: 2 * u)
        problem = ode.ODEProblem(lambda t, u, p: u, 1.0, (0.0, 1.5), callback=[double, ode.PresetTimeCallback([1.0])])
        return ode.solve(problem, saveat=ts, max_events=3, **TIGHT).u

    ts = jnp.array([0.3, 0.8, 1.2, 1.5])
    want = np.diag(np.exp(ts) * np.array([1, 2, 2, 2]))
    close(jax.jit(jax.jacfwd(saved))(ts), want, 1e-10)
    close(jax.jit(jax.jacrev(saved))(ts), want, 1e-10)


def test_known_times_out_of_order_repeated_and_outside_the_span():
    known = ode.PresetTimeCallback([0.75, -1.0, 0.25, 0.25, 2.0], lambda t, u, p: 2 * u + 1)
    sol = solve_ramp(known, [0.25, 0.5, 1.0])
    after = 2 * (2 * 0.25 + 1) + 1
    end = 2 * (after + 0.5) + 1 + 0.25
    close(sol.u, [after, after + 0.25, end], 1e-13)
    assert sol.events.t.tolist() == [0.25, 0.25, 0.75]


def test_an_event_in_the_last_step_and_none_beyond():
    sol = solve_ramp(reaches(0.95, add(-2.0)), [0.9, 0.95, 1.0], dt0=0.3, adaptive=False)
    np.testing.assert_allclose(sol.events.t, [0.95], rtol=1e-15)
    close(sol.u[jnp.array([0, 2])], [0.9, -1.0], 1e-13)
    assert solve_ramp(reaches(1.05, add(-2.0)), [1.0]).events.count == 0


def test_an_event_where_attempts_are_rejected():
    """u = sin(10 t) from a first step of 5: events where it rises through 1/2."""
    problem = ode.ODEProblem(lambda t, u, p: 10 * jnp.cos(10 * t), 0.0, (0.0, 3.0))
    sol = ode.solve(problem, saveat=[3.0], dt0=5.0, callback=reaches(0.5, direction=1), **TIGHT)
    assert sol.stats.nreject > 0
    np.testing.assert_allclose(sol.events.t, (np.arcsin(0.5) + 2 * np.pi * np.arange(5)) / 10, rtol=1e-10)


def test_direction_is_that_of_the_integration():
    up = lambda direction, span, u0: solve_ramp(reaches(1.0, direction=direction), [span[1]], span, u0).events.count
    assert [up(d, (0.0, 2.0), 0.0) for d in (1, -1, 0)] == [1, 0, 1]
    assert [up(d, (2.0, 0.0), 2.0) for d in (1, -1, 0)] == [0, 1, 1]


def test_backwards_in_time():
    """u' = u from t = 2 to 0, multiplied by p where it has fallen to q."""

    def end(x):
        p, q = x
        jump = ode.ContinuousCallback(lambda t, u, x: u - x[1], lambda t, u, x: u * x[0], direction=-1)
        problem = ode.ODEProblem(lambda t, u, x: u * (1 + 0.1 * t), 3.0, (2.0, 0.0), jnp.stack([p, q]), callback=jump)
        sol = ode.solve(problem, saveat=[1.9, 0.0], max_events=2, **TIGHT)
        return jnp.stack([sol.u[0], sol.u[1], sol.events.t[0]])

    def right(x):
        p, q = x
        area = lambda t: t + 0.05 * t**2
        at = (-1 + jnp.sqrt(1 + 0.2 * (area(2.0) + jnp.log(q / 3)))) / 0.1
        return jnp.stack([3 * jnp.exp(area(1.9) - area(2.0)), q * p * jnp.exp(-area(at)), at])

    x = jnp.array([0.5, 1.0])
    value, jacobian = jax.jit(lambda x: (end(x), jax.jacrev(end)(x)))(x)
    close(value, right(x), 1e-10)
    close(jacobian, jax.jacfwd(right)(x), 1e-10)


def test_a_condition_of_infinite_slope_at_the_start():
    """u' = 1 from 0, doubled where sqrt u = q: u(1) = 1 + q^2."""
    double = ode.ContinuousCallback(lambda t, u, p: jnp.sqrt(u) - p, lambda t, u, p: 2 * u)
    end = lambda q: solve_ramp(double, [1.0], p=q, max_events=2).u[0]
    value, slope = jax.jit(jax.value_and_grad(end))(0.5)
    close(value, 1.25, 1e-12)
    close(slope, 1.0, 1e-10)


# ---------------------------------------------------------------- several events


def test_two_crossings_within_a_step():
    """One step over all of it, in which the condition falls and rises again between its ends."""
    callback = ode.ContinuousCallback(lambda t, u, p: (u - 0.5) ** 2 - 0.04, add(0.0))
    sol = solve_ramp(callback, [1.0], adaptive=False, dt0=1.0)
    np.testing.assert_allclose(sol.events.t, [0.3, 0.7], rtol=1e-15)
    up = ode.ContinuousCallback(lambda t, u, p: (u - 0.5) ** 2 - 0.04, direction=1)
    np.testing.assert_allclose(solve_ramp(up, [1.0], adaptive=False, dt0=1.0).events.t, [0.7], rtol=1e-15)


def test_two_events_in_one_step_happen_in_order_of_time():
    """The one that was given last comes first, and moves the other."""
    callbacks = [reaches(0.7, add(100.0)), reaches(0.3, add(0.2))]
    sol = solve_ramp(callbacks, [0.4, 1.0], adaptive=False, dt0=1.0)
    np.testing.assert_allclose(sol.events.t, [0.3, 0.5], rtol=1e-15)
    assert sol.events.which.tolist() == [1, 0]
    close(sol.u, [0.6, 101.2], 1e-13)
    close(sol.events.before, [0.3, 0.7], 1e-13)
    close(sol.events.after, [0.5, 100.7], 1e-13)


ORDERS = [("roots", "add"), ("known times", "double"), ("root and known time", "add"), ("known time and root", "add")]


@pytest.mark.parametrize(("kinds", "first"), ORDERS)  # either first shows the wrong order
def test_simultaneous_events_happen_in_the_order_given(kinds, first):
    one = {"add": add(1.0), "double": lambda t, u, p: 2 * u}
    affects = [one[first], one["add" if first == "double" else "double"]]
    root = lambda affect: ode.ContinuousCallback(lambda t, u, p: t - 0.5, affect)
    known = lambda affect: ode.PresetTimeCallback([0.5], affect)
    made = {
        "roots": [root, root],
        "known times": [known, known],
        "root and known time": [root, known],
        "known time and root": [known, root],
    }[kinds]
    sol = solve_ramp([make(affect) for make, affect in zip(made, affects, strict=True)], [1.0])
    assert sol.events.which.tolist() == [0, 1]
    close(sol.u, [3.5 if first == "add" else 2.5], 1e-13)


def test_a_jump_across_another_condition_is_no_crossing():
    sol = solve_ramp([reaches(0.5, add(10.0)), reaches(5.0, add(100.0))], [1.0])
    assert sol.events.which.tolist() == [0]
    close(sol.u, [11.0], 1e-13)


def test_sets_hold_sets_and_number_their_callbacks_in_order():
    inner = ode.CallbackSet(reaches(0.2), ode.CallbackSet(reaches(0.4)))
    sol = solve_ramp(ode.CallbackSet(inner, [reaches(0.6)], ode.PresetTimeCallback([0.5])), [1.0])
    assert sol.events.which.tolist() == [0, 1, 3, 2]
    assert "CallbackSet" in repr(inner)


def test_a_condition_of_several_components():
    """Each component has its own direction, and the affect is told which one it was."""
    levels = jnp.array([0.3, 0.6, 0.9])
    callback = ode.ContinuousCallback(
        lambda t, u, p: jnp.stack([u[0] - levels[0], levels[1] - u[0], u[0] - levels[2]]),
        lambda t, u, p, i: u.at[1].add(p[i]),
        direction=(1, 1, 0),
    )

    def end(p):
        problem = ode.ODEProblem(lambda t, u, p: jnp.stack([1.0, 0 * u[1]]), jnp.zeros(2), (0.0, 1.0), p)
        sol = ode.solve(problem, saveat=[1.0], callback=callback, max_events=4, **TIGHT)
        return sol.u[-1, 1], sol.events

    p = jnp.array([1.0, 20.0, 300.0])
    (value, events), gradient = jax.jit(jax.value_and_grad(end, has_aux=True))(p)
    assert events.component.tolist() == [0, 2, -1, -1]  # the second falls
    close(value, 301.0, 1e-13)
    assert gradient.tolist() == [1, 0, 1]


def test_a_condition_that_is_never_zero():
    def end(x):
        never = ode.ContinuousCallback(lambda t, u, p: u + p, lambda t, u, p: u + p)
        return ode.solve(ode.ODEProblem(decay, x, (0.0, 1.0), x), saveat=[1.0], callback=never, **TIGHT).u[0]

    sol = ode.solve(ode.ODEProblem(decay, 1.0, (0.0, 1.0)), saveat=[1.0], callback=reaches(-1.0))
    assert sol.events.count == 0 and sol.events.t.shape == (0,)
    assert "0 events" in repr(sol)
    close(jax.jit(jax.grad(end))(1.0), np.exp(-1), 1e-11)


# ---------------------------------------------------------------- kinds of callbacks


def test_a_condition_that_is_a_truth_value():
    """Located to rounding; its time counts as fixed in derivatives, and a warning says so."""

    def end(q):
        callback = ode.ContinuousCallback(lambda t, u, p: u > p, lambda t, u, p: 10 * u)
        sol = solve_ramp(callback, [1.0], p=q, max_events=2)
        return sol.u[0], sol.events.t

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, at = end(0.3)
    np.testing.assert_allclose(at[0], 0.3, rtol=1e-15)
    close(value, 3.7, 1e-13)
    with pytest.warns(ode.BooleanConditionWarning):
        slope = jax.grad(lambda q: end(q)[0])(0.3)
    assert slope == 0


def test_discrete_callback_at_the_ends_of_steps():
    seen = ode.DiscreteCallback(lambda t, u, p: u > 0.5, lambda t, u, p: u - p)

    def end(p):
        sol = solve_ramp(seen, [0.3, 1.0], p=p, adaptive=False, dt0=0.25, max_events=3)
        return sol.u, sol.events

    us, events = end(0.5)
    # steps end at 0.25, 0.5, 0.75 (0.75 > 0.5: 0.25) and 1 (0.5 is not above)
    close(events.t, [0.75], 1e-15)
    close(us, [0.3, 0.5], 1e-14)
    close(jax.jacfwd(lambda p: end(p)[0])(0.5), [0.0, -1.0], 1e-14)


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "backward"])
def test_periodic_callback_and_its_period(sign):
    def end(x):
        doses = ode.PeriodicCallback(lambda p: p[0], lambda t, u, p: u + p[1])
        problem = ode.ODEProblem(lambda t, u, p: -sign * u, 1.0, (0.5, 0.5 + sign * 2.0), x, callback=doses)
        sol = ode.solve(problem, saveat=[0.5 + sign * 2.0], max_events=5, **TIGHT)
        return sol.u[0], sol.events.t

    right = lambda x: jnp.exp(-2.0) + x[1] * sum(jnp.exp(-(2.0 - i * x[0])) for i in (1, 2, 3))
    x = jnp.array([0.6, 0.7])
    (value, times), gradient = jax.jit(jax.value_and_grad(end, has_aux=True))(x)
    np.testing.assert_allclose(times[:3], 0.5 + sign * 0.6 * np.arange(1, 4), rtol=1e-15)
    assert np.all(np.isinf(times[3:]))
    close(value, right(x), 1e-10)
    close(gradient, jax.grad(right)(x), 1e-10)


def test_a_discrete_callback_may_always_happen():
    sol = solve_ramp(ode.DiscreteCallback(lambda t, u, p: True, add(1.0)), [1.0], adaptive=False, dt0=0.5)
    assert sol.events.t.tolist() == [0.5, 1.0]


def test_stops_are_ends_of_steps():
    problem = ode.ODEProblem(lambda t, u, p: jnp.abs(t - 0.3) + 0 * u, 0.0, (0.0, 1.0))
    sol = ode.solve(problem, tstops=[0.3], reltol=1e-3, abstol=1e-3)
    assert 0.3 in sol.t.tolist()
    close(sol.u[-1], (0.3**2 + 0.7**2) / 2, 1e-14)
    assert sol.events.count == 0


def test_a_jump_of_the_field_leaves_no_step_across_it():
    f = lambda t, u, p: jnp.where(t < p, 1.0, -2.0) + 0 * u
    solve = lambda q: ode.solve(ode.ODEProblem(f, 0.0, (0.0, 1.0), q), saveat=[0.2, 1.0], discontinuities=lambda p: p)
    sol = solve(0.3)
    close(sol.u, [0.2, 0.3 - 1.4], 1e-14)
    assert sol.stats.nreject == 0
    close(jax.jacfwd(lambda q: solve(q).u)(0.3), [0.0, 3.0], 1e-13)


def test_a_ball_never_falls_through_the_floor():
    """Its bounces accumulate at s (1 + e) / (1 - e), s = sqrt(2 h / g), beyond which no number is right."""
    f = lambda t, u, p: jnp.stack([u[1], jnp.full_like(u[1], -9.8)])
    bounce = ode.ContinuousCallback(lambda t, u, p: u[0], lambda t, u, p: jnp.stack([u[0], -p * u[1]]), direction=-1)
    problem = ode.ODEProblem(f, jnp.array([1.0, 0.0]), (0.0, 2.0), callback=bounce)
    for e in (0.5, 0.1):
        sol = ode.solve(problem, p=e, saveat=[0.4, 2.0], max_events=200, throw=False, **TIGHT)
        assert sol.retcode is ode.ReturnCode.EventLimit
        assert np.all(np.isfinite(sol.u[0])) and np.all(np.isnan(sol.u[1]))
        np.testing.assert_allclose(sol.events.t[-1], np.sqrt(2 / 9.8) * (1 + e) / (1 - e), rtol=1e-6)


def test_an_empty_list_of_times():
    sol = solve_ramp(ode.PresetTimeCallback([]), [1.0])
    close(sol.u, [1.0], 1e-14)
    assert sol.events.count == 0


# ---------------------------------------------------------------- the end of a solve by an event


def test_terminating_events():
    """u' = p u to the level q: T = log q / p. Saves after it hold the state there, at infinite times."""

    def solution(x):
        stop = ode.ContinuousCallback(lambda t, u, x: u - x[1], lambda t, u, x: 2 * u, terminate=True)
        problem = ode.ODEProblem(lambda t, u, x: x[0] * u, 1.0, (0.0, 10.0), x, callback=stop)
        return ode.solve(problem, ode.Vern7(), saveat=[0.5, 5.0, 10.0], max_events=2, **TIGHT)

    x = jnp.array([1.2, 3.0])
    sol = solution(x)
    assert sol.retcode is ode.ReturnCode.Terminated and sol.success
    assert sol.t.tolist() == [0.5, np.inf, np.inf]
    close(sol.u, [np.exp(0.6), 6.0, 6.0], 1e-10)
    close(sol.events.t, [np.log(3) / 1.2], 1e-10)
    assert "Terminated" in repr(sol) and "1 event" in repr(sol)
    values = lambda x: (lambda sol: jnp.stack([*sol.u, sol.events.t[0], sol.events.before[0]]))(solution(x))
    right = lambda x: jnp.stack([jnp.exp(0.5 * x[0]), 2 * x[1], 2 * x[1], jnp.log(x[1]) / x[0], x[1]])
    close(jax.jit(jax.jacrev(values))(x), jax.jacfwd(right)(x), 1e-9)
    close(jax.jit(jax.jacfwd(values))(x), jax.jacfwd(right)(x), 1e-9)


def test_a_save_at_the_very_time_of_termination_is_reached():
    sol = solve_ramp(ode.PresetTimeCallback([0.5], add(1.0), terminate=True), [0.25, 0.5, 0.75])
    assert sol.t.tolist() == [0.25, 0.5, np.inf]
    close(sol.u, [0.25, 1.5, 1.5], 1e-14)


@pytest.mark.parametrize("make", [ode.PresetTimeCallback, ode.PeriodicCallback])
def test_every_kind_may_terminate(make):
    times = 0.5 if make is ode.PeriodicCallback else [0.5, 0.75]
    sol = solve_ramp(make(times, add(1.0), terminate=True), [1.0])
    assert sol.retcode is ode.ReturnCode.Terminated and sol.events.t.tolist() == [0.5]


def test_what_comes_after_a_terminating_event_of_the_same_instant_does_not_happen():
    stop = ode.PresetTimeCallback([0.5], add(1.0), terminate=True)
    other = ode.PresetTimeCallback([0.5], add(10.0))
    assert solve_ramp([stop, other], [1.0]).u[0] == 1.5
    assert solve_ramp([other, stop], [1.0]).u[0] == 11.5


def test_more_events_than_max_events():
    doses = ode.PresetTimeCallback(np.arange(1, 6) / 10, add(1.0))
    with pytest.raises(ode.SolveError, match="max_events"):  # never fewer doses than asked for, and no word
        solve_ramp(ode.PeriodicCallback(0.1, add(1.0)), [1.0], max_events=3)
    with pytest.raises(ode.SolveError, match="max_events") as caught:
        solve_ramp(doses, [1.0], max_events=3)
    assert caught.value.retcode is ode.ReturnCode.EventLimit
    np.testing.assert_allclose(caught.value.t, 0.4, rtol=1e-14)
    assert solve_ramp(doses, [1.0], max_events=5).events.count == 5

    def end(d):
        callback = ode.PresetTimeCallback(np.arange(1, 6) / 10, lambda t, u, p: u + p)
        sol = solve_ramp(callback, [0.35, 1.0], p=d, max_events=3, throw=False)
        return sol.u, sol._code

    (us, code), slopes = jax.jit(lambda d: (end(d), jax.jacrev(lambda d: end(d)[0])(d)))(1.0)
    assert code == ode.ReturnCode.EventLimit
    close(us[0], 3.35, 1e-14)
    assert np.isnan(us[1]) and np.isnan(slopes[1])
    assert slopes[0] == 3


def test_a_lane_that_fails_does_not_disturb_values_that_were_reached():
    """u' = p u^2 / 5 back to 1 at p; the second lane starts above p and leaves every bound at t = 1 / u0."""
    reset = ode.ContinuousCallback(lambda t, u, p: u - p, lambda t, u, p: jnp.ones_like(u), direction=1)

    def saved(u0, p):
        problem = ode.ODEProblem(lambda t, u, p: p / 5 * u**2, u0, (0.0, 2.0), p, callback=reset)
        return ode.solve(problem, saveat=[0.1, 2.0], max_events=4, max_steps=500, throw=False, **TIGHT).u

    u0 = jnp.array([0.3, 6.0])
    lanes = lambda p: jax.vmap(saved, (0, None))(u0, p)
    right = lambda p, t: u0 / (1 - p / 5 * u0 * t)
    loss = lambda p: (lanes(p)[0, 1], jnp.sum(lanes(p)[:, 0]))
    values, slopes = jax.jit(lambda p: (loss(p), jax.jacrev(loss)(p)))(5.0)
    close(jnp.stack(values), [right(5.0, 2.0)[0], jnp.sum(right(5.0, 0.1))], 1e-9)
    want = [jax.grad(lambda p: right(p, 2.0)[0])(5.0), jax.grad(lambda p: jnp.sum(right(p, 0.1)))(5.0)]
    close(jnp.stack(slopes), want, 1e-8)


def test_lanes_of_one_parameter_that_an_event_changes():
    """u' = -k u, k := m k where u reaches 1; only the initial states are mapped."""

    def end(u0, p):
        slow = ode.ContinuousCallback(lambda t, u, p: u - 1, lambda t, u, p: (u, (p[0] * p[1], p[1])))
        problem = ode.ODEProblem(lambda t, u, p: -p[0] * u, u0, (0.0, 2.0), p, callback=slow)
        return ode.solve(problem, saveat=[2.0], max_events=2, **TIGHT).u[0]

    def right(u0, p):
        k, m = p
        at = jnp.log(u0) / k
        return jnp.where((at > 0) & (at < 2), jnp.exp(-k * m * (2 - at)), u0 * jnp.exp(-2 * k))

    u0, p = jnp.array([2.0, 0.5, 1.5]), (jnp.array(0.6), jnp.array(0.5))
    total = lambda f: lambda p: jnp.sum(jax.vmap(f, (0, None))(u0, p))
    value, slopes = jax.jit(jax.value_and_grad(total(end)))(p)
    close(value, total(right)(p), 1e-10)
    close(jnp.stack(slopes), jnp.stack(jax.grad(total(right))(p)), 1e-9)


# ---------------------------------------------------------------- states, masses, precision


def test_single_precision():
    callback = ode.ContinuousCallback(lambda t, u, p: u - p, lambda t, u, p: u + 1, direction=-1)

    def end(p):
        problem = ode.ODEProblem(decay, jnp.float32(1.0), (0.0, 2.0), p)
        sol = ode.solve(problem, saveat=np.float32([2.0]), callback=callback, max_events=4)
        return sol.u[0], sol.events.t

    (value, times), slope = jax.jit(jax.value_and_grad(end, has_aux=True))(jnp.float32(0.5))
    assert value.dtype == times.dtype == slope.dtype == jnp.float32
    close(times[:2], np.log(2) + np.log(3) * np.arange(2), 1e-5)
    close(value, 9 * np.exp(-2.0), 1e-4)  # ((p + 1) / p)^2 exp(-2)
    close(slope, -24 * np.exp(-2.0), 1e-3)


def test_a_state_that_is_a_tree_with_a_complex_part():
    def end(w):
        f = lambda t, u, w: {"z": 1j * w * u["z"], "n": jnp.zeros_like(u["n"])}
        callback = ode.ContinuousCallback(
            lambda t, u, p: jnp.real(u["z"]), lambda t, u, p: {"z": 2 * u["z"], "n": u["n"] + t}, direction=-1
        )
        problem = ode.ODEProblem(f, {"z": 1.0 + 0j, "n": 0.0}, (0.0, 2.0), w, callback=callback)
        u = ode.solve(problem, ode.Vern7(), saveat=[2.0], max_events=2, **TIGHT).u
        return jnp.stack([jnp.real(u["z"][0]), jnp.imag(u["z"][0]), u["n"][0]])

    right = lambda w: jnp.stack([2 * jnp.cos(2 * w), 2 * jnp.sin(2 * w), jnp.pi / 2 / w])
    value, slope = jax.jit(lambda w: (end(w), jax.jacrev(end)(w)))(1.3)
    close(value, right(1.3), 1e-10)
    close(slope, jax.jacfwd(right)(1.3), 1e-10)


@pytest.mark.parametrize("algebraic", [False, True], ids=["mass matrix", "algebraic equation"])
def test_events_with_a_mass_matrix(algebraic):
    """x' = -k x doubled at x = q, beside y = x^2 or M y' = ..; y after the jump obeys its equation again."""
    mass = jnp.array([[2.0, 0.0], [0.0, 0.0 if algebraic else 1.0]])

    def f(t, u, p):
        x, y = u
        return jnp.stack([-2 * p[0] * x, y - x**2 if algebraic else -y])

    def solution(p):
        double = ode.ContinuousCallback(
            lambda t, u, p: u[0] - p[1], lambda t, u, p: u.at[0].multiply(2.0), direction=-1
        )
        problem = ode.ODEProblem(f, jnp.array([1.0, 1.0]), (0.0, 1.0), p, mass_matrix=mass, callback=double)
        sol = ode.solve(problem, ode.Rodas5P(), saveat=[1.0], max_events=3, **TIGHT)
        return sol.u[0], sol.events.after[0]

    x = lambda p: 2 * jnp.exp(-p[0])
    right = lambda p: jnp.stack([x(p), x(p) ** 2 if algebraic else jnp.exp(-1.0)])
    p = jnp.array([0.8, 0.7])
    (value, after), jacobian = jax.jit(lambda p: (solution(p), jax.jacrev(lambda p: solution(p)[0])(p)))(p)
    close(value, right(p), 1e-8)
    close(jacobian, jax.jacfwd(right)(p), 1e-8)
    if algebraic:
        close(after, [1.4, 1.96], 1e-8)


# ---------------------------------------------------------------- what a solution says


def test_every_step_is_saved_with_events_among_them():
    sol = ode.solve(ode.ODEProblem(decay, 1.0, (0.0, 2.0)), callback=reaches(0.5, add(0.5)), **TIGHT)
    assert sol.t[0] == 0 and sol.t[-1] == 2 and np.all(np.diff(sol.t) > 0)
    assert sol.events.t[0] in sol.t
    at = np.flatnonzero(sol.t == sol.events.t[0])[0]
    close(sol.u[at], 1.0, 1e-10)
    close(sol.u[at - 1], np.exp(-sol.t[at - 1]), 1e-10)


def test_dense_values_on_both_sides_of_an_event():
    def at(q, t):
        callback = ode.ContinuousCallback(lambda t, u, p: u - p, lambda t, u, p: u + 2)
        return solve_ramp(callback, [1.0], p=q, dense=True)(t)

    times = jnp.array([0.9, 0.1, 0.3, np.nextafter(0.3, 0), 0.6])
    got = at(0.3, times)
    close(got[jnp.array([0, 1, 3, 4])], [2.9, 0.1, 0.3, 2.6], 1e-13)
    close(jax.jit(jax.grad(at, 1))(0.3, 0.6), 1.0, 1e-13)


def test_events_under_jit_are_padded_and_eager_ones_are_not():
    run = lambda level: solve_ramp(reaches(level, add(1.0)), [1.0], max_events=3).events
    eager, padded = run(0.3), jax.jit(run)(0.3)
    assert eager.t.shape == eager.before.shape == (1,) and eager.count == 1
    assert padded.t.shape == padded.before.shape == (3,) and padded.count == 1
    assert padded.which.tolist() == [0, -1, -1] and np.isinf(padded.t[1:]).all()
    close(padded.t[0], eager.t[0], 1e-15)


def test_a_second_eager_call_compiles_nothing_and_f_is_traced_once():
    traced = []

    def gradient(q):
        def f(t, u, p):
            traced.append(0)
            return -p * u

        callback = ode.CallbackSet(
            ode.ContinuousCallback(lambda t, u, p: u - p, lambda t, u, p: u + 1.0),
            ode.PresetTimeCallback([0.1], lambda t, u, p: u * 1.5),
        )

        def end(p):
            return ode.solve(ode.ODEProblem(f, 1.0, (0.0, 1.0), p), saveat=[1.0], callback=callback, max_events=3).u[0]

        jax.block_until_ready(jax.value_and_grad(end)(q))

    assert compilations(lambda: gradient(0.6)) > 0
    assert len(traced) == 1
    assert compilations(lambda: gradient(0.7)) == 0


def test_captured_values_have_derivatives():
    """The level, the dose and the time of a known jump, all captured by functions rather than in p."""

    def end(x):
        level, dose, time = x
        callbacks = [
            ode.ContinuousCallback(lambda t, u, p: u - level, lambda t, u, p: u + dose),
            ode.PresetTimeCallback(time[None], lambda t, u, p: u * dose),
        ]
        f = lambda t, u, p: 1 + u
        problem = ode.ODEProblem(f, 0.0, (0.0, 1.0), callback=callbacks)
        return ode.solve(problem, saveat=[1.0], max_events=3, **TIGHT).u[0]

    def right(x):
        level, dose, time = x
        at = jnp.log(1 + level)
        one = (1 + level + dose) * jnp.exp(time - at) - 1
        return (1 + dose * one) * jnp.exp(1 - time) - 1

    x = jnp.array([0.4, 0.3, 0.8])
    value, gradient = jax.jit(jax.value_and_grad(end))(x)
    close(value, right(x), 1e-10)
    close(gradient, jax.grad(right)(x), 1e-10)


# ---------------------------------------------------------------- what is wrong


WRONG = {
    "a class": (ode.ContinuousCallback, TypeError, r"write ContinuousCallback\("),
    "a function": (lambda t, u, p: u, TypeError, "callback must be"),
    "affect gives None": (ode.PresetTimeCallback([0.5], lambda t, u, p: None), TypeError, "affect"),
    "affect of another shape": (ode.PresetTimeCallback([0.5], lambda t, u, p: jnp.zeros(3)), ValueError, "affect"),
    "affect of another dtype": (ode.PresetTimeCallback([0.5], lambda t, u, p: u + 1j), TypeError, "complex"),
    "condition of two axes": (ode.ContinuousCallback(lambda t, u, p: jnp.zeros((2, 2))), TypeError, "condition"),
    "condition gives None": (ode.ContinuousCallback(lambda t, u, p: None), TypeError, "condition"),
    "when gives a number": (ode.DiscreteCallback(lambda t, u, p: u - 1), TypeError, "True or False"),
    "directions": (ode.ContinuousCallback(lambda t, u, p: u, direction=(1, 1)), ValueError, "direction"),
}


@pytest.mark.parametrize("name", WRONG)
def test_callbacks_that_are_wrong(name):
    callback, error, match = WRONG[name]
    with pytest.raises(error, match=match):
        solve_ramp(callback, [1.0])


def test_a_static_parameter_cannot_be_changed():
    callback = ode.PresetTimeCallback([0.5], lambda t, u, p: (u, {"mode": 1}))
    with pytest.raises(TypeError, match="affect"):
        solve_ramp(callback, [1.0], p={"mode": 0})


def test_arguments_that_are_wrong():
    with pytest.raises(TypeError, match="affect must"):
        ode.PresetTimeCallback([0.5], lambda u: u)
    with pytest.raises(TypeError, match="affect must"):
        ode.ContinuousCallback(lambda t, u, p: u, 3.0)
    with pytest.raises(TypeError, match="condition must take"):
        ode.ContinuousCallback(lambda u: u)
    with pytest.raises(ValueError, match="direction must be"):
        ode.ContinuousCallback(lambda t, u, p: u, direction=2)
    with pytest.raises(ValueError, match="NaN"):
        ode.PresetTimeCallback([np.nan])
    with pytest.raises(ValueError, match="positive"):
        ode.PeriodicCallback(-1.0)
    with pytest.raises((TypeError, ValueError), match="max_events"):
        solve_ramp(reaches(0.5), [1.0], max_events=0.5)
