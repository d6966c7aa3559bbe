"""Derivatives through events against closed forms, and against plain JAX that knows nothing of odesens.

A ball that falls, u'' = -g, is exact under every method of order two and more, so that its bounces have closed forms to
rounding; fields that are not linear are compared with `by_hand`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from .problems import BACKSOLVE, DISCRETE, FORWARD, QUADRATURE, close, engines

TIGHT = {"reltol": 1e-11, "abstol": 1e-11, "max_events": 6}


def fall(t, u, p):
    return jnp.stack([u[1], -p[0] + 0 * u[1]])


def height(t, u, p):
    return u[0]


def bounce(t, u, p):
    return jnp.stack([0 * u[0], -p[1] * u[1]])


BOUNCE = ode.ContinuousCallback(height, bounce, direction=-1)


def value_and_jacobian(f):
    return jax.jit(lambda x: (f(x), jax.jacrev(f)(x)))


# ---------------------------------------------------------------- one bounce


def one_bounce(x, alg, **options):
    problem = ode.ODEProblem(fall, jnp.array([1.0, 0.0]), (0.0, 1.0), x, callback=BOUNCE, **TIGHT)
    return ode.solve(problem, alg, saveat=[1.0], **options).u[-1]


ONE_BOUNCE = [[-0.09342144369263694, 2.427188724235731], [-0.5934214436926369, 4.427188724235731]]
BOUNCE_CASES = {
    "Tsit5 I": (ode.Tsit5(), {"controller": ode.IController()}),
    "DP5 PI": (ode.DP5(), {"controller": ode.PIController()}),
    "Vern7": (ode.Vern7(), {}),
    "Rodas5P": (ode.Rodas5P(), {}),
    "TRBDF2": (ode.TRBDF2(), {}),
    "AutoTsit5": (ode.AutoTsit5(ode.Rodas5P()), {}),
    "fixed steps": (ode.RK4(), {"dt0": 0.3}),
}


@pytest.mark.parametrize("name", BOUNCE_CASES)
def test_one_bounce(name):
    alg, options = BOUNCE_CASES[name]
    f = functools.partial(one_bounce, alg=alg, **options)
    x = jnp.array([9.8, 0.8])
    v = np.sqrt(2 * 9.8)
    s = 1 - v / 9.8
    value, jacobian = value_and_jacobian(f)(x)
    close(value, [0.8 * v * s - 9.8 * s**2 / 2, 0.8 * v - 9.8 * s], 1e-12)
    close(jacobian, ONE_BOUNCE, 1e-12)
    if name in ("DP5 PI", "Rodas5P"):
        close(jax.jit(jax.jacfwd(f))(x), ONE_BOUNCE, 1e-12)


def bounces(x, u0, t1, count):
    """The state at t1 after `count` bounces of the ball, by its parabolas."""
    g, e = x
    h, v = u0
    at = (v + jnp.sqrt(v**2 + 2 * g * h)) / g
    up = e * jnp.sqrt(v**2 + 2 * g * h)
    for _ in range(count - 1):
        at, up = at + 2 * up / g, e * up
    s = t1 - at
    return jnp.stack([up * s - g * s**2 / 2, up - g * s])


def test_many_bounces():
    def end(x):
        problem = ode.ODEProblem(fall, x[2:], (0.0, 2.0), x[:2], callback=BOUNCE, **TIGHT)
        return ode.solve(problem, saveat=[2.0]).u[-1, 0]

    x = jnp.array([9.8, 0.8, 1.0, 0.5])
    right = lambda x: bounces(x[:2], x[2:], 2.0, 3)[0]
    value, gradient = jax.jit(jax.value_and_grad(end))(x)
    close(value, right(x), 1e-12)
    close(gradient, jax.grad(right)(x), 1e-12)


def test_the_bounce_series_up_to_its_accumulation_point():
    """Bounces at t_k = s (1 + 2 e + .. + 2 e^k), s = sqrt(2 h / g), which accumulate at s (1 + e) / (1 - e)."""
    problem = ode.ODEProblem(fall, jnp.array([1.0, 0.0]), (0.0, 10.0), jnp.array([9.8, 0.5]), callback=BOUNCE)
    sol = ode.solve(problem, saveat=[0.3, 5.0], reltol=1e-11, abstol=1e-11, max_events=30, throw=False)
    assert sol.retcode is ode.ReturnCode.EventLimit and not sol.success
    assert sol.events.count == 30
    s = np.sqrt(2 / 9.8)
    k = np.arange(30)
    np.testing.assert_allclose(sol.events.t, s * (1 + 2 * (0.5 - 0.5 ** (k + 1)) / 0.5), rtol=1e-13)
    np.testing.assert_allclose(sol.events.after[:, 1], 9.8 * s * 0.5 ** (k + 1), rtol=1e-4)
    np.testing.assert_allclose(sol.events.t[-1], s * 3, rtol=1e-8)
    close(sol.u[0, 0], 1 - 9.8 * 0.3**2 / 2, 1e-13)
    assert np.all(np.isnan(sol.u[1]))


def test_beyond_the_accumulation_point_nothing_is_called_a_success():
    problem = ode.ODEProblem(fall, jnp.array([1.0, 0.0]), (0.0, 10.0), jnp.array([9.8, 0.5]), callback=BOUNCE)
    sol = ode.solve(problem, saveat=[5.0], max_events=1000, max_steps=20_000, throw=False)
    assert not sol.success
    assert np.all(np.isnan(sol.u))
    with pytest.raises(ode.SolveError, match="max_events"):
        ode.solve(problem, saveat=[5.0], max_events=5)


# ---------------------------------------------------------------- a ball and what may happen to it, by every engine


JUMPS = {
    "none": lambda u, p: u,
    "push": lambda u, p: jnp.stack([u[0], u[1] + 50]),
    "bounce": lambda u, p: jnp.stack([u[0], -p[1] * u[1]]),
    "square": lambda u, p: jnp.stack([u[0], u[1] ** 2]),
    "lift and square": lambda u, p: jnp.stack([u[0] + 3, u[1] ** 2]),
}
BALL_TIMES = np.arange(0.0, 2.75, 0.5)


def any_jump(t, u, p):
    return jax.lax.switch(p["kind"], list(JUMPS.values()), u, p["x"])


def ball(x, kind, engine, **options):
    field = lambda t, u, p: fall(t, u, p["x"])
    problem = ode.ODEProblem(field, jnp.stack([x[2], 0.0]), (0.0, 2.5), {"x": x[:2], "kind": kind})
    callback = ode.ContinuousCallback(height, any_jump, direction=-1)
    us = ode.solve(problem, saveat=BALL_TIMES, sensealg=engine, callback=callback, **TIGHT, **options).u
    return jnp.sum(us * jnp.arange(1.0, 1 + us.size).reshape(us.shape))


def ball_by_hand(x, name):
    g, _, h = x
    at = jnp.sqrt(2 * h / g)
    up = JUMPS[name](jnp.stack([0.0, -g * at]), x)
    before = lambda t: jnp.stack([h - g * t**2 / 2, -g * t])
    after = lambda s: jnp.stack([up[0] + up[1] * s - g * s**2 / 2, up[1] - g * s])
    us = jnp.stack([jnp.where(t < at, before(t), after(t - at)) for t in BALL_TIMES])
    return jnp.sum(us * jnp.arange(1.0, 1 + us.size).reshape(us.shape))


@functools.cache
def ball_forward():
    return jax.jit(jax.jacfwd(functools.partial(ball, engine=FORWARD)))


@engines()
def test_ball_with_all_that_may_happen(engine):
    gradient = jax.jit(jax.value_and_grad(functools.partial(ball, engine=engine)))
    x = jnp.array([9.8, 0.8, 5.0])
    for i, name in enumerate(JUMPS):
        value, got = gradient(x, i)
        want = jax.grad(ball_by_hand)(x, name)
        close(value, ball_by_hand(x, name), 1e-11)
        close(got, want, 1e-9)
        if engine in (DISCRETE, FORWARD):
            close(ball_forward()(x, i), got, 1e-9)


# ---------------------------------------------------------------- a switch, swept over its threshold, by every engine


def switch(x, engine):
    """u1' = -p1 u1, u2' = p1 u1 - p2 u2 with p2 := 0 once u1 has fallen to the threshold."""
    field = lambda t, u, p: jnp.stack([-p[0] * u[0], p[0] * u[0] - p[1] * u[1]])
    off = ode.ContinuousCallback(lambda t, u, p: u[0] - p[2], lambda t, u, p: (u, p.at[1].set(0.0)))
    problem = ode.ODEProblem(field, jnp.stack([x[3], 0.0]), (0.0, 5.0), x[:3], callback=off)
    us = ode.solve(problem, ode.Tsit5(), saveat=[1.0, 5.0], sensealg=engine, **TIGHT).u
    return jnp.sum(us * jnp.array([[1.0, 2.0], [3.0, 4.0]]))


def switch_by_hand(x):
    a, b, threshold, u0 = x
    at = jnp.log(u0 / threshold) / a

    def state(t):
        s = jnp.minimum(t, at)
        one, two = u0 * jnp.exp(-a * s), a * u0 / (b - a) * (jnp.exp(-a * s) - jnp.exp(-b * s))
        end = u0 * jnp.exp(-a * t)
        return jnp.stack([end, two + one - end])

    return jnp.sum(jnp.stack([state(1.0), state(5.0)]) * jnp.array([[1.0, 2.0], [3.0, 4.0]]))


# lanes: of the engines with a dense record one; the ball, which is solved alone, has them all
@engines(DISCRETE, QUADRATURE, BACKSOLVE, FORWARD)
def test_switch_over_thresholds(engine):
    """As lanes, of which each has its event elsewhere, some before the first save."""
    thresholds = np.arange(1, 11) / 10
    xs = jnp.stack([jnp.array([0.7, 1.3, th, 1.2]) for th in thresholds])
    values, grads = jax.jit(jax.vmap(jax.value_and_grad(functools.partial(switch, engine=engine))))(xs)
    close(values, jax.vmap(switch_by_hand)(xs), 1e-10)
    want = jax.vmap(jax.grad(switch_by_hand))(xs)
    close(grads, want, 1e-8)
    if engine is FORWARD:
        close(jax.jit(jax.vmap(jax.jacfwd(functools.partial(switch, engine=engine))))(xs), want, 1e-8)


# ---------------------------------------------------------------- orders above the first


def test_event_time_to_third_order():
    """x'' = -k x from rest: first zero at pi / (2 sqrt k)."""

    def time(k):
        field = lambda t, u, k: jnp.stack([u[1], -k * u[0]])
        stop = ode.ContinuousCallback(lambda t, u, k: u[0], terminate=True)
        problem = ode.ODEProblem(field, jnp.array([1.0, 0.0]), (0.0, 4.0), k, callback=stop)
        return ode.solve(problem, ode.Tsit5(), saveat=[], reltol=1e-12, abstol=1e-12, max_events=1).events.t[0]

    right = lambda k: jnp.pi / 2 / jnp.sqrt(k)
    k = 1.3
    slope = lambda f: lambda k: jax.jvp(f, (k,), (jnp.ones_like(k),))[1]
    orders = lambda f: lambda k: (f(k), slope(f)(k), slope(slope(slope(f)))(k))  # the second: test_event_cases.py
    for got, want in zip(jax.jit(orders(time))(k), orders(right)(k), strict=True):
        close(got, want, 1e-10)


def minus(t, u):
    return jnp.stack([u[0] * u[1] - jnp.sin(2 * t), jnp.cos(t) * u[1] - u[0] ** 2])


def plus(t, u):
    return jnp.stack([jnp.sin(u[1]) + t**2, u[0] * u[1] - t])


def both(t, u, p):
    return jnp.where(p["after"] > 0, plus(t, u), minus(t, u))


def turned(t, u, p):
    return u, {**p, "after": jnp.ones(())}


U0 = jnp.array([0.6, 0.4])


@pytest.mark.parametrize("known", [True, False], ids=["known time", "root"])
def test_second_order_saltation(known):
    """The state at the event's time as a function of a shift d of that time, by its expansion."""
    at = 0.7

    def after(d):
        p = {"after": 0.0, "at": at + d}
        if known:
            callback = ode.PresetTimeCallback(lambda p: p["at"], turned)
        else:
            callback = ode.ContinuousCallback(lambda t, u, p: jnp.expm1(t - p["at"]), turned)
        problem = ode.ODEProblem(both, U0, (0.0, 1.0), p, callback=callback)
        return ode.solve(problem, ode.Tsit5(), saveat=[at], **TIGHT).u[0]

    s = ode.solve(ode.ODEProblem(lambda t, u, p: minus(t, u), U0, (0.0, at)), ode.Vern9(), saveat=[at], **TIGHT).u[0]
    rates = lambda f: (f(at, s), jax.jacfwd(f, 1)(at, s), jax.jacfwd(f, 0)(at, s))
    (v0, j0, t0), (v1, j1, t1) = rates(minus), rates(plus)
    first = lambda d: jax.jvp(after, (d,), (1.0,))[1]
    value, one, two = jax.jit(lambda d: (after(d), *jax.jvp(first, (d,), (1.0,))))(0.0)
    close(value, s, 1e-10)
    close(one, v0 - v1, 1e-9)
    close(two / 2, j0 @ v0 / 2 + j1 @ v1 / 2 - j1 @ v0 + (t0 - t1) / 2, 1e-9)


def rk4(f, u, t0, t1, steps=400):
    h = (t1 - t0) / steps

    def step(u, i):
        t = t0 + i * h
        k1 = f(t, u)
        k2 = f(t + h / 2, u + h / 2 * k1)
        k3 = f(t + h / 2, u + h / 2 * k2)
        k4 = f(t + h, u + h * k3)
        return u + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return jax.lax.scan(step, u, jnp.arange(steps, dtype=float))[0]


def by_hand(x, near):
    """The end state of the problem below by plain RK4 steps and Newton's method, which JAX differentiates itself."""
    u0, q = x[:2], x[2]
    g = lambda t: (lambda u: u[0] * u[1] + t - q)(rk4(minus, u0, 0.0, t))
    at = near
    for _ in range(5):
        at = at - g(at) / jax.jvp(g, (at,), (jnp.ones(()),))[1]
    u = rk4(minus, u0, 0.0, at)
    u = jnp.stack([u[0] + q * u[1] ** 2, jnp.sin(u[1]) + at])
    return rk4(plus, u, at, 1.0)


def nonlinear_end(x):
    callback = ode.ContinuousCallback(
        lambda t, u, p: u[0] * u[1] + t - p["q"],
        lambda t, u, p: (jnp.stack([u[0] + p["q"] * u[1] ** 2, jnp.sin(u[1]) + t]), {**p, "after": jnp.ones(())}),
        direction=1,
    )
    problem = ode.ODEProblem(both, x[:2], (0.0, 1.0), {"after": 0.0, "q": x[2]}, callback=callback)
    options = {"reltol": 1e-11, "abstol": 1e-11, "max_events": 1}
    return ode.solve(problem, ode.Tsit5(), saveat=[1.0], **options).u[0, 0]


X_NONLINEAR = jnp.array([0.6, 0.4, 0.8])
V = jnp.array([1.0, -0.5, 2.0])
NESTINGS = {  # each gives the Hessian times V, the last its product with V
    "reverse reverse": lambda f: jax.grad(lambda x: jax.grad(f)(x) @ V),
    "forward reverse": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (V,))[1],
    "reverse forward": lambda f: jax.grad(lambda x: jax.jvp(f, (x,), (V,))[1]),
    "forward forward": lambda f: lambda x: jax.jvp(lambda x: jax.jvp(f, (x,), (V,))[1], (x,), (V,))[1],
}


@functools.cache
def second_order_by_hand():
    right = lambda x: by_hand(x, 0.55)[0]
    return jax.jit(jax.jacfwd(lambda x: jax.jvp(right, (x,), (V,))[1]))(X_NONLINEAR)


@pytest.mark.parametrize("nesting", NESTINGS)
def test_every_nesting_on_a_nonlinear_field_with_a_nonlinear_jump(nesting):
    product = second_order_by_hand()
    got = jax.jit(NESTINGS[nesting](nonlinear_end))(X_NONLINEAR)
    close(got, product @ V if got.ndim == 0 else product, 1e-8)


# ---------------------------------------------------------------- known times


def test_injection():
    def end(p):
        inject = ode.ContinuousCallback(lambda t, u, p: u - 0.75 * p[0], lambda t, u, p: u + p[1])
        problem = ode.ODEProblem(lambda t, u, p: p[0] - u, 0.0, (0.0, 10.0), p, callback=inject)
        return ode.solve(problem, saveat=[10.0], **TIGHT).u[0]

    gradient = jax.jit(jax.grad(end))(jnp.array([100.0, 50.0]))
    # the gradient's error is that of states of size 100 at a tolerance of 1e-11 of them
    np.testing.assert_allclose(gradient, [1 - np.exp(-10), 4 * np.exp(-10)], rtol=0, atol=1e-10)


def test_a_known_time_against_a_root():
    """A ball from 50 hits at sqrt(2 * 50 / g); a jump at that time, a function of p, is the same solve."""
    times = np.arange(0.0, 5.5, 0.5)

    def solution(x, callback):
        problem = ode.ODEProblem(fall, jnp.stack([x[2], 0.0]), (0.0, 5.0), x, callback=callback)
        sol = ode.solve(problem, saveat=times, **TIGHT)
        return sol.u, sol.events.t[0], sol.events.before[0], sol.events.after[0]

    known = ode.PresetTimeCallback(lambda p: jnp.sqrt(2 * p[2] / p[0]), bounce)
    x = jnp.array([9.8, 0.8, 50.0])
    one, one_jacobian = value_and_jacobian(lambda x: solution(x, BOUNCE))(x)
    two, two_jacobian = value_and_jacobian(lambda x: solution(x, known))(x)
    for a, b in zip((*one, *one_jacobian), (*two, *two_jacobian), strict=True):
        close(a, b, 1e-11)
    close(one[1], 3.1943828249997, 1e-13)
    close(one[2], [0.0, -31.30495168499705], 1e-13)
    close(one[3], [0.0, 25.04396134799764], 1e-13)


def test_dosing_by_superposition():
    """Absorption and elimination of doses whose times and amounts are parameters, to second order."""
    times = np.array([0.0, 0.7, 1.5, 2.0, 4.0])

    def concentrations(x):
        dose = lambda i: ode.PresetTimeCallback(lambda p: p["at"][i], lambda t, u, p: u.at[0].add(p["amount"][i]))
        p = {"rates": x[:2], "at": x[2:4], "amount": x[4:]}
        field = lambda t, u, p: jnp.stack([-p["rates"][0] * u[0], p["rates"][0] * u[0] - p["rates"][1] * u[1]])
        problem = ode.ODEProblem(field, jnp.zeros(2), (0.0, 4.0), p, callback=[dose(0), dose(1)])
        return ode.solve(problem, ode.Tsit5(), saveat=times, **TIGHT).u[:, 1]

    def superposition(x):
        a, e = x[:2]
        one = lambda s: jnp.where(s >= 0, a / (a - e) * (jnp.exp(-e * s) - jnp.exp(-a * s)), 0.0)
        return sum(d * one(times - at) for at, d in zip(x[2:4], x[4:], strict=True))

    x = jnp.array([1.1, 0.4, 1.5, 0.3, 2.0, 3.0])  # not in order, and one at the time of a save
    value, jacobian = value_and_jacobian(concentrations)(x)
    close(value, superposition(x), 1e-10)
    close(jacobian, jax.jacfwd(superposition)(x), 1e-9)
    weights = np.array([1.0, -2.0, 3.0, -4.0, 5.0])
    directed = lambda f: lambda x: jax.jvp(lambda x: f(x) @ weights, (x,), (jnp.arange(1.0, 7.0),))[1]
    # the second dose's own time of 1.5 is a save's, where the response has a kink in it: left out
    got, want = jax.jit(jax.grad(directed(concentrations)))(x), jax.grad(directed(superposition))(x)
    close(got, want, 1e-8)


def test_branching_field():
    """u' = -a(t) u with a = a_k between the jump times 1, 2, 3, all of them parameters."""

    def end(x):
        rate = lambda t, x: x[3 + jnp.sum(t >= x[:3])]
        problem = ode.ODEProblem(lambda t, u, x: -rate(t, x) * u, 1.0, (0.0, 4.0), x)
        return ode.solve(problem, saveat=[0.5, 2.0, 4.0], discontinuities=lambda x: x[:3], **TIGHT).u

    def right(x):
        edges = jnp.concatenate([jnp.zeros(1), x[:3]])
        u = lambda t: jnp.exp(-jnp.sum(x[3:] * jnp.clip(t - edges, 0, jnp.append(jnp.diff(edges), 9.0))))
        return jnp.stack([u(0.5), u(2.0), u(4.0)])

    x = jnp.array([1.0, 2.0 + 1e-9, 3.0, 0.5, 1.5, 0.2, 0.9])
    value, jacobian = value_and_jacobian(end)(x)
    close(value, right(x), 1e-10)
    close(jacobian, jax.jacfwd(right)(x), 1e-9)


def test_gradient_through_a_thousand_events(count=1000):
    """A dose d every h for a solve of u' = -k u: a geometric sum; the memory of its gradient does not follow steps."""

    def end(x):
        doses = ode.PeriodicCallback(lambda p: p[2], lambda t, u, p: u + p[1])
        problem = ode.ODEProblem(lambda t, u, p: -p[0] * u, 1.0, (0.0, 10.0), x, callback=doses)
        return ode.solve(problem, saveat=[10.0], reltol=1e-10, abstol=1e-10, max_events=count).u[0]

    def right(x):
        k, d, h = x
        ages = 10.0 - h * jnp.arange(1, count + 1)
        return jnp.exp(-10 * k) + d * jnp.sum(jnp.where(ages >= 0, jnp.exp(-k * ages), 0))

    x = jnp.array([0.3, 0.02, 10.0 / (count + 0.5)])
    compiled = jax.jit(jax.value_and_grad(end)).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2e6
    value, gradient = compiled(x)
    close(value, right(x), 1e-9)
    close(gradient, jax.grad(right)(x), 1e-9)
