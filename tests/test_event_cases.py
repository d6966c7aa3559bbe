"""Problems with events on which solvers have been seen to give wrong, missing or NaN derivatives.

Right values from closed forms or mpmath; assertions relative to the largest entry of what is compared.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from .problems import BACKSOLVE, DISCRETE, GAUSS, close, engines

TIGHT = {"reltol": 1e-12, "abstol": 1e-12, "max_events": 4}


def value_and_jacobian(f, x):
    x = jnp.asarray(x)
    return jax.jit(lambda x: (f(x), jax.jacrev(f)(x)))(x)


@engines(DISCRETE, BACKSOLVE)
def test_derivative_in_the_time_of_a_switch(engine):
    """y' = -k y until T, then 0: y(3) = exp(-k T), and y(1) does not know of T."""

    def saved(x):
        f = lambda t, y, p: jnp.where(t < p[1], -p[0] * y, 0.0)
        problem = ode.ODEProblem(f, 1.0, (0.0, 3.0), x, discontinuities=lambda p: p[1])
        return ode.solve(problem, saveat=[1.0, 3.0], sensealg=engine, **TIGHT).u

    value, jacobian = value_and_jacobian(saved, [0.8, 1.5])
    close(value[1], 0.3011942119122021, 1e-11)
    close(jacobian[1], [-0.45179131786830314, -0.24095536952976168], 1e-10)
    close(jacobian[0, 0], -0.44932896411722159, 1e-10)
    assert jacobian[0, 1] == 0


def test_where_a_projectile_lands_and_when():
    def landing(drag):
        def f(t, u, drag):
            _, _, v, angle = u
            c, g = 1.225 * 0.005 * drag / 2, 9.80665
            along, up = jnp.cos(angle), jnp.sin(angle)
            return jnp.stack([v * along, v * up, -c * v**2 - g * up, -g * along / v])

        stop = ode.ContinuousCallback(lambda t, u, p: u[1], terminate=True)
        problem = ode.ODEProblem(f, [0.0, 100.0, 20.0, 0.3], (0.0, 20.0), drag, callback=stop)
        sol = ode.solve(problem, saveat=[20.0], **TIGHT)
        return jnp.stack([sol.events.t[0], sol.u[-1, 0]])

    value, slope = value_and_jacobian(landing, 0.3)
    close(value, [5.2499983990246532, 94.809778815128006], 1e-11)
    close(slope, [0.30046200899721033, -12.098239005200361], 1e-10)
    close(jax.jit(jax.jacfwd(landing))(0.3), slope, 1e-10)


def test_an_event_that_freezes_a_rate():
    def end(x):
        a, b, x0 = x
        freeze = ode.ContinuousCallback(lambda t, u, p: u[0], lambda t, u, p: (u, {**p, "b": 0 * p["b"]}))
        f = lambda t, u, p: jnp.stack([-p["a"], p["b"]])
        problem = ode.ODEProblem(f, jnp.stack([x0, 0.0]), (0.0, 1.0), {"a": a, "b": b}, callback=freeze)
        return ode.solve(problem, saveat=[1.0], **TIGHT).u[-1]

    value, jacobian = value_and_jacobian(end, [2.0, 1.0, 1.0])
    close(value, [-1.0, 0.5], 1e-12)
    close(jacobian, [[-1.0, 0.0, 1.0], [-0.25, 0.5, 0.5]], 1e-12)


@pytest.mark.parametrize("where", ["problem", "solve"])
def test_a_callback_that_changes_a_parameter(where):
    """u' = p u, at 1/2 p := p + d: u(1) = u0 exp(p + d / 2). The caller's p stays what it was."""

    def end(x):
        u0, p, d = x
        bump = ode.PresetTimeCallback([0.5], lambda t, u, p: (u, (p[0] + p[1], p[1])))
        problem = ode.ODEProblem(lambda t, u, p: p[0] * u, u0, (0.0, 1.0), (p, d), saveat=[1.0], **TIGHT)
        if where == "problem":
            return ode.solve(ode.remake(problem, callback=bump)).u[-1]
        return ode.solve(problem, callback=bump).u[-1]

    value, gradient = value_and_jacobian(end, [2.0, 3.0, 0.1])
    close(value, 42.230688845081224, 1e-11)
    close(gradient, [21.115344422540612, 42.230688845081224, 21.115344422540612], 1e-11)

    bump = ode.PresetTimeCallback([0.5], lambda t, u, p: (u, (p[0] + p[1], p[1])))
    p = (jnp.array(3.0), jnp.array(0.1))
    problem = ode.ODEProblem(lambda t, u, p: p[0] * u, 2.0, (0.0, 1.0), p, saveat=[1.0], callback=bump, **TIGHT)
    first, second = ode.solve(problem).u, ode.solve(problem).u
    assert first == second
    assert (p[0], p[1]) == (3.0, 0.1) and problem.p[0] == 3.0
    close(first[0], 42.230688845081224, 1e-11)


BOLUS_GRADIENT = [-4.4346665610973247, -1.2472499703086226, 2.0787499505143709, 0.55433332013716559]


def bolus(x, engine=None):
    """x' = -k x; whenever x falls to th, x := x + d."""
    k, th, d, x0 = x
    add = ode.ContinuousCallback(lambda t, u, p: u - p[1], lambda t, u, p: u + p[2], direction=-1)
    problem = ode.ODEProblem(lambda t, u, p: -p[0] * u, x0, (0.0, 4.0), (k, th, d), callback=add)
    return ode.solve(problem, ode.Vern7(), saveat=[4.0], sensealg=engine, **TIGHT)


@engines(DISCRETE, BACKSOLVE, GAUSS)
def test_a_bolus_triggered_by_the_state(engine):
    value, gradient = value_and_jacobian(lambda x: bolus(x, engine).u[-1], [0.5, 1.0, 0.6, 2.0])
    close(value, 1.1086666402743312, 1e-11)
    close(gradient, BOLUS_GRADIENT, 1e-9)


def test_lanes_of_which_one_reaches_it_three_times_and_another_never():
    xs = jnp.array([[0.5, 1.0, 0.6, 2.0], [0.1, 1.0, 0.6, 2.0], [0.5, 1.0, 0.6, 5.0]])

    def one(x):
        sol = bolus(x)
        return sol.u[-1], sol.events

    (value, events), gradient = jax.jit(jax.vmap(jax.value_and_grad(one, has_aux=True)))(xs)
    k, th, d, x0 = xs.T
    counts = np.array([3, 0, 1])
    growth = ((th + d) / th) ** counts
    right = x0 * np.exp(-4 * k) * growth
    assert events.count.tolist() == counts.tolist()
    assert (events.which == 0).sum(axis=1).tolist() == counts.tolist()
    assert np.isinf(events.t).sum(axis=1).tolist() == (4 - counts).tolist()
    close(events.t[0, 2], 3.2663088781028328, 1e-12)
    close(value, right, 1e-11)
    close(gradient[0], BOLUS_GRADIENT, 1e-10)
    rate = counts / (th + d)
    close(gradient, jnp.stack([-4 * right, right * (rate - counts / th), right * rate, right / x0], axis=1), 1e-10)


def test_event_time_inside_a_step():
    """u' = 1 + u^2 stopped at u = q: T = atan q; its derivatives come from f, not from an interpolant."""

    def time(q):
        stop = ode.ContinuousCallback(lambda t, u, q: u - q, terminate=True)
        problem = ode.ODEProblem(lambda t, u, q: 1 + u**2, 0.0, (0.0, 1.5), q, callback=stop)
        return ode.solve(problem, ode.DOP853(), saveat=[], reltol=1e-10, abstol=1e-10, max_events=1).events.t[0]

    qs = jnp.array([0.137, 0.5, 1.0, 2.718])
    both = lambda q: jax.jvp(jax.value_and_grad(time), (q,), (jnp.ones_like(q),))
    (at, one), (_, two) = jax.jit(jax.vmap(both))(qs)
    np.testing.assert_allclose(at, np.arctan(qs), rtol=1e-9)
    np.testing.assert_allclose(one, [0.98157678531639655, 0.8, 0.5, 0.11922469610817209], rtol=1e-8)
    np.testing.assert_allclose(two, [-0.26399707801934752, -0.64, -0.5, -0.077270175089099415], rtol=1e-8)


def test_event_time_where_the_field_is_constant():
    def time(q):
        stop = ode.ContinuousCallback(lambda t, u, q: u - q, terminate=True)
        problem = ode.ODEProblem(lambda t, u, q: jnp.ones_like(u), 0.0, (0.0, 4.0), q, callback=stop)
        return ode.solve(problem, saveat=[], max_events=1).events.t[0]

    qs = jnp.array([0.137, 0.5, 1.0, 2.718])
    at, slope = jax.jit(jax.vmap(jax.value_and_grad(time)))(qs)
    np.testing.assert_allclose(at, qs, rtol=1e-15)
    assert np.all(slope == 1)


@pytest.mark.parametrize("direction", [-1, 0])
def test_a_condition_that_is_zero_at_the_start(direction):
    def landing(x):
        v0, g = x
        stop = ode.ContinuousCallback(lambda t, u, p: u[0], terminate=True, direction=direction)
        f = lambda t, u, g: jnp.stack([u[1], -g])
        problem = ode.ODEProblem(f, jnp.stack([0.0, v0]), (0.0, 5.0), g, callback=stop)
        sol = ode.solve(problem, saveat=[5.0], **TIGHT)
        return jnp.stack([sol.events.t[0], sol.u[-1, 1]])

    value, jacobian = value_and_jacobian(landing, [3.0, 9.81])
    close(value, [0.61162079510703364, -3.0], 1e-13)
    close(jacobian, [[0.20387359836901121, -0.062346666167893337], [-1.0, 0.0]], 1e-13)


def test_a_stop_before_some_saves():
    """y = v0 t - t^2 / 4 until it is 0 again, at 4 v0."""

    def solution(v0, saveat):
        stop = ode.ContinuousCallback(lambda t, u, p: u[0], terminate=True, direction=-1)
        f = lambda t, u, p: jnp.stack([u[1], jnp.full_like(u[1], -0.5)])
        problem = ode.ODEProblem(f, jnp.stack([0.0, v0]), (0.0, 99.0), callback=stop)
        return ode.solve(problem, saveat=saveat, **TIGHT)

    times = [0.0, 33.0, 66.0, 99.0]
    sol = solution(10.0, times)
    assert sol.retcode is ode.ReturnCode.Terminated and sol.success
    assert sol.t.tolist() == [0.0, 33.0, np.inf, np.inf]
    close(sol.u[1], [57.75, -6.5], 1e-13)
    np.testing.assert_allclose(sol.u[2:], [[0, -10], [0, -10]], atol=1e-11)
    close(sol.events.t, [40.0], 1e-13)
    np.testing.assert_allclose(sol.events.before, [[0, -10]], atol=1e-11)

    def values(v0):
        sol = solution(v0, times)
        return jnp.stack([sol.u[1, 0], sol.events.t[0], *sol.u[2], *sol.events.after[0]])

    close(jax.jit(jax.jacrev(values))(10.0), [33.0, 4.0, 0.0, -1.0, 0.0, -1.0], 1e-11)
    early = solution(10.0, [66.0])
    assert np.isinf(early.t[0])
    close(early.events.t, [40.0], 1e-13)


# ---------------------------------------------------------------- doses and forcing


def test_the_lag_of_a_dose():
    """The lag is the time of the dose, no part of the field: c(6), and c(1/2) before it."""

    def concentrations(x):
        dose = ode.PresetTimeCallback(lambda p: p[0], lambda t, u, p: u.at[0].add(100.0))
        f = lambda t, u, p: jnp.stack([-p[1] * u[0], p[1] * u[0] - p[2] / p[3] * u[1]])
        problem = ode.ODEProblem(f, jnp.zeros(2), (0.0, 6.0), x, callback=dose)
        return ode.solve(problem, saveat=[0.5, 6.0], **TIGHT).u[:, 1] / x[3]

    value, jacobian = value_and_jacobian(concentrations, [0.75, 1.2, 3.0, 20.0])
    want = [0.37739176157309336, -0.25317243624093184, -0.55916660825654064, -0.045594872173274504]
    close(value, [0.0, 2.589397268235112], 1e-11)
    close(jacobian[1], want, 1e-10)
    assert np.all(np.asarray(jacobian[0]) == 0)


def test_doses_for_ever():
    """Amount before and after a dose of 100 every 8 h, after infinitely many: the fixed point of one interval."""

    def interval(a, p):
        problem = ode.ODEProblem(lambda t, a, p: -p[0] / p[1] * a, a + 100.0, (0.0, 8.0), p, reltol=1e-12, abstol=1e-12)
        return ode.solve(problem, saveat=[8.0]).u[-1]

    steady = ode.SteadyStateProblem(lambda t, a, p: interval(a, p) - a, 10.0)
    trough = jax.jit(lambda p: ode.solve(steady, p=p).u)
    for p, value, gradient in [
        ((3.0, 20.0), 43.101276069333312, [-24.671390422952863, 3.7007085634429294]),
        ((0.2, 60.0), 3700.222219588522, [-18748.888928393947, 62.496296427979823]),
    ]:
        p = jnp.array(p)
        close(trough(p), value, 1e-10)  # after the dose 100 more, with the same derivatives
        close(jax.jacfwd(trough)(p), gradient, 1e-10)
        close(jax.jit(jax.grad(trough))(p), gradient, 1e-10)


def test_fifty_doses_are_not_for_ever():
    dose = ode.PeriodicCallback(8.0, lambda t, u, p: u + 100.0)
    problem = ode.ODEProblem(lambda t, a, p: -p[0] / p[1] * a, 100.0, (0.0, 400.5), [0.2, 60.0], callback=dose)
    events = ode.solve(problem, saveat=[], reltol=1e-10, abstol=1e-10, max_events=50).events
    close(events.before[-1], 2724.8542321127653, 1e-9)


@pytest.mark.parametrize("how", ["discontinuities", "interpolation"])
def test_a_square_wave_of_charge_and_discharge(how):
    """c = C until 25, -C until 50, then 0: u2' = -c / Q, u1' = r u2 |c|."""

    def states(x):
        wave = x[0] * jnp.array([1.0, -1.0, 0.0])
        charge = ode.interpolation.ConstantInterpolation([0.0, 25.0, 50.0], wave)
        switched = lambda t: jnp.where(t < 25, wave[0], jnp.where(t < 50, wave[1], wave[2]))
        of_time = charge if how == "interpolation" else switched
        f = lambda t, u, p: jnp.stack([p[2] * u[1] * jnp.abs(of_time(t)), -of_time(t) / p[1]])
        at = {} if how == "interpolation" else {"discontinuities": [25.0, 50.0]}
        problem = ode.ODEProblem(f, [0.0, 0.55], (0.0, 150.0), x)
        return ode.solve(problem, saveat=[25.0, 150.0], reltol=1e-12, abstol=1e-14, **at).u

    x = [36.8, 8280.0, 4.477e-7]
    value, jacobian = value_and_jacobian(states, x)
    close(value[0, 1], 0.43888888888888889, 1e-12)
    close(value[1, 1], 0.55, 1e-12)
    close(value[1, 0], 0.00040730751111111111, 1e-11)
    want = np.array([9.8245277777777778e-6, 5.5271604938271605e-9, 909.77777777777778])
    close(jacobian[1, 0] * np.array(x), want * x, 1e-10)


def test_a_pulse_after_a_long_rest():
    """u' = 1 between 100 and 100 + w: nothing is seen of it before, yet u(200) = w, by either way to tell of it."""

    def end(width, **options):
        f = lambda t, u, p: jnp.where((t >= 100) & (t < 100 + p), 1.0, 0.0)
        problem = ode.ODEProblem(f, 0.0, (0.0, 200.0), width)
        return ode.solve(problem, saveat=[200.0], reltol=1e-8, abstol=1e-8, **options).u[-1]

    told = lambda width: end(width, discontinuities=lambda p: jnp.stack([jnp.full_like(p, 100.0), 100 + p]))
    value, slope = jax.jit(jax.value_and_grad(told))(0.5)
    close(value, 0.5, 2e-13)  # a few units of rounding of a time of 100
    close(slope, 1.0, 1e-14)
    close(end(0.5, dtmax=0.4), 0.5, 1e-5)
