"""Derivatives of symbolic problems against those of the same field written by hand: engines, nestings, events, size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sp

import odesens as ode
from odesens.symbolic import (
    ContinuousEvent,
    D,
    DiscreteEvent,
    PeriodicEvent,
    PresetTimeEvent,
    System,
    equations,
    parameters,
    t,
    unknowns,
)

from .problems import (
    DISCRETE,
    FORWARD,
    GAUSS,
    INTERPOLATING,
    QUADRATURE,
    TS,
    V0,
    close,
    engines,
    loss_of,
    lotka_volterra,
)

x, y = unknowns("x y")
a, b, c, d = parameters("a b c d")
SYSTEM = System([(D(x), a * x - b * x * y), (D(y), -c * y + d * x * y)], t)
VALUES = dict(zip((a, b, c, d), V0[2:], strict=True))
PROB = ode.ODEProblem(SYSTEM, {x: V0[0], y: V0[1]}, (0.0, 1.0), VALUES, saveat=TS, reltol=1e-10, abstol=1e-10)
HAND = ode.ODEProblem(lotka_volterra, V0[:2], (0.0, 1.0), V0[2:], saveat=TS, reltol=1e-10, abstol=1e-10)


def named(v, alg=None, engine=None):
    """The loss by names, of v = (u0, p)."""
    p = {c: v[4], a: v[2], d: v[5], "b": v[3]}  # in no order
    return loss_of(ode.solve(PROB, alg, u0={y: v[1], x: v[0]}, p=p, sensealg=engine)[[x, y]])


def by_hand(v, alg=None, engine=None):
    return loss_of(ode.solve(HAND, alg, u0=v[:2], p=v[2:], sensealg=engine).u)


@engines()
def test_every_engine_in_reverse_mode(engine):
    got = jax.value_and_grad(lambda v: named(v, engine=engine))(V0)
    want = jax.value_and_grad(lambda v: by_hand(v, engine=engine))(V0)
    close(got[0], want[0], 1e-12)
    close(got[1], want[1], 1e-12)


@engines(DISCRETE, FORWARD, GAUSS)
def test_forward_mode(engine):
    close(jax.jacfwd(lambda v: named(v, engine=engine))(V0), jax.jacfwd(lambda v: by_hand(v, engine=engine))(V0), 1e-12)


NESTINGS = {
    "fwd-rev": lambda f: jax.jacfwd(jax.jacrev(f)),
    "rev-fwd": lambda f: jax.jacrev(jax.jacfwd(f)),
    "fwd-fwd": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "rev-rev": lambda f: jax.jacrev(jax.jacrev(f)),
}


@pytest.mark.parametrize("nesting", NESTINGS)
def test_hessians(nesting):
    close(NESTINGS[nesting](named)(V0), NESTINGS["fwd-rev"](by_hand)(V0), 1e-9 if nesting == "rev-rev" else 1e-12)


def test_third_order():
    v, along = V0, jnp.array([1.0, -0.5, 0.3, 0.2, -0.1, 0.4])

    def third(f):
        line = lambda s: f(v + s * along)
        return jax.jvp(jax.grad(jax.grad(line)), (0.0,), (1.0,))[1]

    close(third(named), third(by_hand), 1e-12)


@pytest.mark.parametrize("alg", [ode.Rodas5P(), ode.Kvaerno5(), ode.Vern7()], ids=lambda alg: type(alg).__name__)
def test_other_methods(alg):
    close(jax.grad(lambda v: named(v, alg))(V0), jax.grad(lambda v: by_hand(v, alg))(V0), 1e-12)


# ---------------------------------------------------------------- an algebraic equation


z = unknowns("z")
DAE = ode.ODEProblem(
    System([(D(x), -a * x + z), (0, z**3 + z - b * x)], t),
    {x: 1.0},
    (0.0, 0.5),
    {a: 2.0, b: 2.0},
    guesses={z: 0.5},
    saveat=[0.0, 0.5],
    reltol=1e-9,
    abstol=1e-9,
)


def algebraic(t, u, p):
    return jnp.stack([-p[0] * u[0] + u[1], u[1] ** 3 + u[1] - p[1] * u[0]])


DAE_HAND = ode.ODEProblem(
    algebraic,
    jnp.array([1.0, 0.9]),
    (0.0, 0.5),
    None,
    mass_matrix=[1.0, 0.0],
    saveat=[0.0, 0.5],
    reltol=1e-9,
    abstol=1e-9,
)


def of_dae(v, engine):
    return loss_of(ode.solve(DAE, sensealg=engine, u0={x: v[0]}, p={a: v[1], b: v[2]})[[x, z]])


V_DAE = jnp.array([1.0, 2.0, 2.0])


def test_an_algebraic_equation():
    """The start is consistent to rounding in both, found outside the solve here and inside it by hand."""
    hand = lambda v: loss_of(ode.solve(DAE_HAND, u0=jnp.stack([v[0], 0.9]), p=v[1:]).u)
    got, want = jax.value_and_grad(of_dae)(V_DAE, DISCRETE), jax.value_and_grad(hand)(V_DAE)
    close(got[0], want[0], 1e-12)
    close(got[1], want[1], 1e-12)


@engines(INTERPOLATING, QUADRATURE, GAUSS, FORWARD)
def test_every_engine_with_an_algebraic_equation(engine):
    close(jax.grad(of_dae)(V_DAE, engine), jax.grad(of_dae)(V_DAE, DISCRETE), 1e-6)


# ---------------------------------------------------------------- events


h, v = unknowns("h v")
g, e = parameters("g e")
BALL = ode.ODEProblem(
    System([(D(h), v), (D(v), -g)], t, events=[ContinuousEvent(h, {v: -e * v}, direction=-1)]),
    {h: 1.0, v: 0.0},
    (0.0, 1.0),
    {g: 9.8, e: 0.8},
    saveat=[0.25, 1.0],
    reltol=1e-10,
    abstol=1e-10,
)
BOUNCE = ode.ContinuousCallback(lambda t, u, p: u[0], lambda t, u, p: jnp.stack([u[0], -p[1] * u[1]]), direction=-1)
BALL_HAND = ode.ODEProblem(
    lambda t, u, p: jnp.stack([u[1], -p[0]]),
    jnp.array([1.0, 0.0]),
    (0.0, 1.0),
    jnp.array([9.8, 0.8]),
    callback=BOUNCE,
    saveat=[0.25, 1.0],
    reltol=1e-10,
    abstol=1e-10,
)
ONE_BOUNCE = [[-0.09342144369263694, 2.427188724235731], [-0.5934214436926369, 4.427188724235731]]  # d(x, v)/d(g, e)


def test_bouncing_ball():
    sol = ode.solve(BALL)
    assert int(sol.events.count) == 1
    close(sol.events.t, [np.sqrt(2 / 9.8)], 1e-10)
    state = lambda p: ode.solve(BALL, p={g: p[0], e: p[1]}, u0={h: p[2]})[[h, v]][1]
    p = jnp.array([9.8, 0.8, 1.0])
    reverse = jax.jacrev(state)(p)
    close(reverse[:, :2], ONE_BOUNCE, 1e-9)
    hand = lambda p: ode.solve(BALL_HAND, p=p[:2], u0=jnp.stack([p[2], 0.0])).u[1]
    close(reverse, jax.jacrev(hand)(p), 1e-12)
    along = lambda f: lambda s: jnp.sum(f(p + s * jnp.array([1.0, 0.1, 0.3])))
    close(jax.grad(jax.grad(along(state)))(0.0), jax.grad(jax.grad(along(one_bounce)))(0.0), 1e-8)


def one_bounce(p):
    """The closed form of height and velocity at 1."""
    g, e, h = p
    v = jnp.sqrt(2 * g * h)
    s = 1 - v / g
    return jnp.stack([e * v * s - g * s**2 / 2, e * v - g * s])


def test_a_parameter_that_an_event_changes():
    # x' = -k x; where x falls to 1/2, k becomes k / 2: x(1) = x1 = exp(-k/2 (1 - s)) / 2, s = log(2) / k
    k = parameters("k")
    prob = ode.ODEProblem(
        System([(D(x), -k * x)], t, events=[ContinuousEvent(x - sp.Rational(1, 2), {k: k / 2}, direction=-1)]),
        {x: 1.0},
        (0.0, 1.0),
        {k: 1.2},
        saveat=[0.0, 0.25, 1.0],
        reltol=1e-10,
        abstol=1e-10,
    )
    sol = ode.solve(prob)
    close(sol[k], [1.2, 1.2, 0.6], 1e-12)
    assert sol.ps[k] == 1.2 and sol(1.0, idxs=k) == 0.6
    end = lambda q: ode.solve(prob, p={k: q})[x][-1]
    want = np.exp(-0.6 + np.log(2) / 2) / 2
    close(end(1.2), want, 1e-9)
    close(jax.grad(end)(1.2), -want / 2, 1e-8)
    close(jax.jvp(end, (1.2,), (1.0,))[1], -want / 2, 1e-8)
    again = ode.remake(prob, p={k: 2.0})
    close(ode.solve(again)[k], [2.0, 2.0, 1.0], 1e-12)
    assert prob.tunables.names == ("k",)
    hand = ode.ODEProblem(
        lambda t, u, p: jnp.stack([-u[1] * u[0], 0 * u[0]]),
        jnp.array([1.0, 1.2]),
        (0.0, 1.0),
        callback=ode.ContinuousCallback(
            lambda t, u, p: u[0] - 0.5, lambda t, u, p: jnp.stack([u[0], u[1] / 2]), direction=-1
        ),
        saveat=[0.0, 0.25, 1.0],
        reltol=1e-10,
        abstol=1e-10,
    )
    by_hand = lambda q: ode.solve(hand, u0=jnp.stack([1.0, q])).u[-1, 0]
    close(jax.grad(end)(1.2), jax.grad(by_hand)(1.2), 1e-12)


def test_events_at_given_times():
    # x' = -k x with doses q at 0.5, 1.0, 1.5 (period 1/2), one of 2 q at s, and an end where x exceeds a bound
    k, q, s = parameters("k q s")
    system = lambda *events: System([(D(x), -k * x)], t, events=events, symbols=[q, s])
    make = lambda event: ode.ODEProblem(
        system(event), {x: 1.0}, (0.0, 1.75), {k: 0.7, q: 0.5, s: 0.3}, saveat=[1.75], reltol=1e-10, abstol=1e-12
    )
    ends = lambda prob: lambda p: ode.solve(prob, p=p)[x][0]
    once = make(PresetTimeEvent([s, 2 * s], {x: x + q}))
    slope = jax.grad(ends(once))({"k": 0.7, "q": 0.5, "s": 0.3})
    decay = lambda time: np.exp(-0.7 * (1.75 - time))
    close(ends(once)({}), np.exp(-0.7 * 1.75) + 0.5 * (decay(0.3) + decay(0.6)), 1e-9)
    close(slope["q"], decay(0.3) + decay(0.6), 1e-8)
    close(slope["s"], 0.5 * 0.7 * (decay(0.3) + 2 * decay(0.6)), 1e-8)
    periodic = make(PeriodicEvent(0.5, {x: x + q}))
    close(jax.grad(ends(periodic))({"q": 0.5})["q"], decay(0.5) + decay(1.0) + decay(1.5), 1e-8)
    ending = make(DiscreteEvent(x < sp.Rational(1, 2), terminate=True))
    sol = ode.solve(ending, saveat=[0.1, 1.75])
    assert sol.success and sol[x][1] < 0.5 and np.isinf(sol.t[1])


# ---------------------------------------------------------------- size


LEFT = lambda n: np.maximum(np.arange(n) - 1, 0)
RIGHT = lambda n: np.minimum(np.arange(n) + 1, n - 1)


def chain(n):
    """The problem of a reaction-diffusion chain of n unknowns, closed at both ends."""
    u = unknowns("u", shape=n)
    k, r = parameters("k r")
    rates = k * (u[LEFT(n)] - 2 * u + u[RIGHT(n)]) + r * u * (1 - u)
    system = System(equations(D(u), rates), t, defaults={u: np.linspace(0.1, 0.9, n)})
    return ode.ODEProblem(system, {}, (0.0, 0.1), {k: 1.0, r: 2.0}, saveat=[0.1])


def count(jaxpr) -> int:
    """Equations of a jaxpr and of those within it."""
    inner = [x for eqn in jaxpr.eqns for p in eqn.params.values() for x in (p if isinstance(p, (list, tuple)) else [p])]
    jaxprs = [getattr(x, "jaxpr", x) for x in inner]
    return len(jaxpr.eqns) + sum(count(x) for x in jaxprs if hasattr(x, "eqns"))


def test_programs_do_not_grow_with_the_number_of_equations():
    sizes = []
    for n in (10, 1000):
        prob = chain(n)
        loss = lambda q, prob=prob: jnp.sum(ode.solve(prob, ode.Tsit5(), p={"k": q}).u)
        field = jax.make_jaxpr(prob.f)(0.0, prob.u0, prob.p)
        programs = field, jax.make_jaxpr(loss)(1.0), jax.make_jaxpr(jax.grad(loss))(1.0)
        sizes.append([count(program.jaxpr) for program in programs])
        u = np.linspace(0.1, 0.9, n)
        want = u[LEFT(n)] - 2 * u + u[RIGHT(n)] + 2 * u * (1 - u)
        close(prob.f(0.0, prob.u0, prob.p), want, 1e-14)
    assert sizes[0] == sizes[1]
    assert sizes[0][0] < 60


def test_the_gradient_of_a_large_model():
    prob = chain(1000)
    u0 = jnp.linspace(0.1, 0.9, 1000)
    rates = lambda t, u, p: p[0] * (u[LEFT(1000)] - 2 * u + u[RIGHT(1000)]) + p[1] * u * (1 - u)
    hand = ode.ODEProblem(rates, u0, (0.0, 0.1), jnp.array([1.0, 2.0]), saveat=[0.1])
    loss = lambda prob, p: jnp.sum(ode.solve(prob, ode.Tsit5(), p=p).u ** 2)
    got = jax.grad(lambda p: loss(prob, p))(prob.tunables)
    want = jax.grad(lambda p: loss(hand, p))(hand.p)
    close([got["k"], got["r"]], want, 1e-12)
