"""Algebraic equations in symbolic problems: initialisation, index reduction, the pendulum, networks.

Right values: closed forms, the reference page, the pendulum's angle form.
"""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sp

import odesens as ode
from odesens.symbolic import (
    D,
    InitialValueError,
    StructureError,
    System,
    UndeterminedWarning,
    connect,
    equations,
    parameters,
    t,
    unknowns,
)

from .problems import close

TIGHT = dict(reltol=1e-10, abstol=1e-10)

# ---------------------------------------------------------------- a Lorenz-like system of second order

x, y, z, w, w2 = unknowns("x y z w w2")
s, r, b, y0 = parameters("s r b y0")
LORENZ = [(D(D(x)), s * (y - x)), (D(y), x * (r - z) - y), (D(z), x * y - b * z)]
OBSERVED = [(w, x + y + z + 2 * b)]
VALUES = {s: 28.0, r: 10.0, b: 8 / 3}


def with_state(sol, i, state):
    """The solution with another state at the saved time i."""
    return eqx.tree_at(lambda sol: sol.u, sol, sol.u.at[i].set(state))


def test_second_order_system_with_an_observed_value():
    prob = ode.ODEProblem(
        System(LORENZ, t, observed=OBSERVED), {D(x): 2.0, x: 1.0, y: 0.0, z: 0.0}, (0.0, 100.0), VALUES, saveat=10.0
    )
    sol = ode.solve(prob)
    assert prob.system.names == ("x", "y", "z", "x_t") and sol.success
    close(sol[w], sol[x] + sol[y] + sol[z] + 2 * sol.ps[b], 1e-12)
    close(sol[w], sol[x + y + z + 2 * b], 1e-12)
    at = lambda key: jax.grad(lambda u: with_state(sol, 3, u)[key][3])(sol.u[3])
    np.testing.assert_array_equal(at(w), [1, 1, 1, 0])
    np.testing.assert_array_equal(at(w + z), [1, 1, 2, 0])
    np.testing.assert_array_equal(
        jax.grad(lambda u: jnp.sum(eqx.tree_at(lambda q: q.u, sol, u)[w]))(sol.u)[0], [1, 1, 1, 0]
    )


CONSTRAINED = [*LORENZ, (0, x**2 + y**2 - w2**2)]
PLAIN = System(CONSTRAINED, t, observed=OBSERVED, symbols=[y0])
START = {D(x): 2.0, x: 1.0, y: 0.5, z: 0.0}
W2 = -np.sqrt(1.25)


def build(u0=START, system=PLAIN, p=(), **options):
    options = dict(saveat=[0.0, 0.2], **TIGHT, **options)
    return ode.ODEProblem(system, u0, (0.0, 0.2), {**VALUES, y0: 0.5, **dict(p)}, **options)


def without(key, **more):
    return {k: v for k, v in START.items() if k is not key} | more


def vector_by_numbers():
    made = build(guesses={w2: -1.0})
    order = {"x": 1.0, "y": 0.5, "z": 0.0, "x_t": 2.0, "w2": W2}
    return ode.remake(made, u0=np.array([order[name] for name in made.system.names]))


def in_the_system(**more):
    return System(CONSTRAINED, t, observed=OBSERVED, symbols=[y0], defaults=more.pop("defaults", START), **more)


# the same start each time, found in another way; the loss does not see the sign of w2
INITIALISATIONS = {
    "good guess": lambda: build(guesses={w2: -1.0}),
    "poor guess": lambda: build(guesses={w2: 0.0}),
    "large guess": lambda: build(guesses={w2: -1e6}),
    "guess by an expression": lambda: build(guesses={w2: -x - 2 * y}),
    "guess of the symbol": lambda: build(system=in_the_system(guesses={w2: -1.0}, initial=[]), u0={}),
    "time-dependent expression": lambda: build(without(y) | {y: 0.5 + t * x}, guesses={w2: -1.0}),
    "expression of a parameter": lambda: build(without(y) | {y: y0, z: y0 - 0.5}, guesses={w2: -1.0}),
    "parameter by an expression": lambda: build(without(y) | {y: y0}, p={y0: s / 56}, guesses={w2: -1.0}),
    "overdetermined but consistent": lambda: build(START | {w2: W2}),
    "condition on w in place of z": lambda: build(without(z) | {w: 1.5 + 2 * b}, guesses={w2: -1.0}),
    "condition on D(y) in place of z": lambda: build(without(z) | {D(y): 10.0 - 0.5}, guesses={w2: -1.0}),
    "w2 in place of y": lambda: build(without(y) | {w2: W2}, guesses={y: 1.0}),
    "initial equations": lambda: build(
        {x: 1.0, z: 0.0}, in_the_system(defaults={}, initial=[(D(x) + 2 * y, 3), (D(x), 4 * y)]), guesses={w2: -1.0}
    ),
    "defaults": lambda: build({}, in_the_system(), guesses={w2: -1.0}),
    "defaults that yield": lambda: build(
        {}, in_the_system(defaults=START | {y: 7.0}, initial=[(y, 0.5 * x)]), guesses={w2: -1.0}
    ),
    "defaults overridden": lambda: build({y: 0.5}, in_the_system(defaults=START | {y: 7.0}), guesses={w2: -1.0}),
    "remake from another": lambda: ode.remake(build(START | {y: 3.0, w2: -np.sqrt(10)}), u0={y: 0.5, w2: W2}),
    "taken back": lambda: ode.remake(build(START | {w2: -5.0}), u0={w2: None}, guesses={w2: -1.0}),
    "by strings": lambda: build({"x_t": 2.0, "x": 1.0, "y": 0.5, "z": 0.0}, guesses={"w2": -1.0}),
    "by an array": vector_by_numbers,
}


def loss(prob):
    keys = [x, y, z, w2**2, w, D(x)]

    def of(v):
        values = ode.solve(prob, p={s: v[0], r: v[1], b: v[2]})[keys]
        return jnp.sum(jnp.sin(values)), values[0]

    return of


V0 = jnp.array([28.0, 10.0, 8 / 3])
VARYING = ("parameter by an expression", "condition on w in place of z", "condition on D(y) in place of z")


def test_fifteen_initialisations_of_one_problem_have_one_gradient():
    assert len(INITIALISATIONS) >= 15
    reference = ode.ODEProblem(
        System(LORENZ, t), START, (0.0, 0.2), VALUES, saveat=[0.0, 0.2], reltol=1e-12, abstol=1e-12
    )

    def expected(v):
        sol = ode.solve(reference, ode.Vern9(), p={s: v[0], r: v[1], b: v[2]})
        return jnp.sum(jnp.sin(sol[[x, y, z, x**2 + y**2, x + y + z + 2 * b, D(x)]]))

    value, slope = jax.value_and_grad(expected)(V0)
    for name, made in INITIALISATIONS.items():
        prob = made()
        (got, start), gradient = jax.value_and_grad(loss(prob), has_aux=True)(V0)
        close(start, [1, 0.5, 0, 1.25, 1.5 + 16 / 3, 2], 1e-12)
        close(got, value, 1e-7)
        if name not in VARYING:  # where the start depends on s, r or b as well, the gradient is another one
            close(gradient, slope, 1e-7)


def test_starts_that_depend_on_parameters():
    """The three that are left out above: the initial values' derivatives by the implicit function theorem."""
    start = lambda name: lambda p: ode.remake(INITIALISATIONS[name](), p=p).u0
    of = lambda name, key, at: jax.jacfwd(lambda q: start(name)({key: q}))(at)
    both = lambda name, key, at: (of(name, key, at), jax.jacrev(lambda q: start(name)({key: q}))(at))
    names = build(guesses={w2: -1.0}).system.names
    row = lambda **values: np.array([values.get(name, 0.0) for name in names])
    for got in both("parameter by an expression", s, 28.0):  # y = s / 56, w2 = -sqrt(1 + y^2)
        close(got, row(y=1 / 56, w2=0.5 / W2 / 56), 1e-12)
    for got in both("condition on D(y) in place of z", r, 10.0):  # 9.5 = r - z - y
        close(got, row(z=1.0), 1e-12)


def test_a_parameter_that_is_solved_for():
    # 10.5 + 2 b0 = x r + y + z + 2 b at t0 determines r = 10.5 + 2 b0 - 2 b - y - z, or b for a given r
    system = System(CONSTRAINED, t, observed=[(w, x * r + y + z + 2 * b)])
    target = 10.5 + 16 / 3
    make = lambda p, **guesses: ode.ODEProblem(
        system, {**START, w: target}, (0.0, 0.2), p, guesses={w2: -1.0, **guesses}, saveat=[0.2], **TIGHT
    )
    prob = make({s: 28.0, b: 8 / 3}, r=5.0)
    assert prob.tunables.names == ("s", "b")
    found = lambda v: ode.remake(prob, u0={w: v[0], y: v[1]}, p={b: v[2]}).ps[r]
    v = jnp.array([target, 0.5, 8 / 3])
    close(found(v), 10.0, 1e-13)
    close(jax.grad(found)(v), [1, -1, -2], 1e-13)
    close(jax.jacfwd(found)(v), [1, -1, -2], 1e-13)
    known = make({s: 28.0, r: 10.0}, b=1.0)
    close(known.ps[b], 8 / 3, 1e-13)
    # through the solve: the chain rule over the problem with all parameters given
    full = build(guesses={w2: -1.0})
    outside = lambda q, c: jnp.sum(ode.solve(full, p={r: q, b: c})[[x, y, z]][-1])
    d_r, d_b = jax.grad(outside, (0, 1))(10.0, 8 / 3)
    got = jax.grad(lambda c: jnp.sum(ode.solve(prob, p={b: c})[[x, y, z]][-1]))(8 / 3)
    close(got, d_b - 2 * d_r, 1e-7)


def test_a_parameter_solved_for_in_a_nonlinear_equation():
    # c^3 + c = x at t0, x' = -c x: x(1) = x0 exp(-c), dc/dx0 = 1 / (3 c^2 + 1); at x0 = 2, c = 1
    c = parameters("c", guess=0.5)
    prob = ode.ODEProblem(
        System([(D(x), -c * x)], t, initial=[(c**3 + c, x)]), {x: 2.0}, (0.0, 1.0), saveat=[1.0], **TIGHT
    )
    assert "c" not in prob.tunables
    end = lambda a: ode.solve(prob, u0={x: a})[x][0]
    close(end(2.0), 2 * np.exp(-1), 1e-8)
    slope = np.exp(-1) * (1 - 2 / 4)
    close(jax.grad(end)(2.0), slope, 1e-8)
    close(jax.jvp(end, (2.0,), (1.0,))[1], slope, 1e-8)
    # d2: c'' = -6 c c'^3 = -6/64; x'' = e^-c (-2 c' + x0 c'^2 - x0 c'')
    second = np.exp(-1) * (-2 / 4 + 2 / 16 + 2 * 6 / 64)
    close(jax.jacfwd(jax.grad(end))(2.0), second, 1e-7)
    close(jax.grad(jax.grad(end))(2.0), second, 1e-7)


# ---------------------------------------------------------------- other right values


def test_tangent_along_the_constraint():
    # u' = -a u + v, 0 = v^2 - b s, s = 2 u + v: along (dv, du) = (2 b, 2 v - b) s moves by 4 v
    u, v, s = unknowns("u v s")
    a, b = parameters("a b")
    system = System([(D(u), -a * u + v), (0, v**2 - b * s), (s, 2 * u + v)], t)
    prob = ode.ODEProblem(system, {u: 1.0}, (0.0, 1.0), {a: 2.0, b: 0.5}, guesses={v: 1.0}, saveat=[0.0, 1.0])
    sol = ode.solve(prob)
    assert prob.system.names == ("u", "v")
    for i in (0, 1):
        at = sol[v][i]
        tangent = jnp.array([2 * at - 0.5, 1.0])
        got = jax.jvp(lambda state: with_state(sol, i, state)[s][i], (sol.u[i],), (tangent,))[1]
        close(got, 4 * at, 1e-12)


def test_initial_value_gradient_of_a_dae():
    # case 49: x' = -z, 0 = z^2 - p x
    p = parameters("p")
    system = System([(D(x), -z), (0, z**2 - p * x)], t)
    prob = ode.ODEProblem(system, {x: 4.0}, (0.0, 1.5), {p: 0.5}, guesses={z: 1.0}, saveat=[0.0, 1.5], **TIGHT)

    def loss(v):
        sol = ode.solve(prob, p={p: v[0]}, u0={x: v[1]})
        return sol[z][0] + sol[x][-1] + sol[z][-1]

    v = jnp.array([0.5, 4.0])
    value, slope = jax.value_and_grad(loss)(v)
    close(value, 4.6133567811865475, 1e-9)
    close(slope, [0.51960678118654752, 1.0883883476483184], 1e-8)
    close(jax.jacfwd(loss)(v), slope, 1e-8)
    close(jax.grad(lambda q: ode.remake(prob, p={p: q}).u0[1])(0.5), np.sqrt(2), 1e-14)
    none = System([(D(x), -z), (0, z**2 + 1 + x)], t)
    with pytest.raises(ode.SolveError, match=r"InitialisationFailure.*Z\*\*2|z\*\*2.*off by"):
        ode.solve(ode.ODEProblem(none, {x: 4.0}, (0.0, 1.5), guesses={z: 1.0}))


def test_a_default_of_an_algebraic_state_is_its_guess():
    system = System([(D(x), -y), (0, y**2 - x)], t, defaults={x: 2.0, y: -1.0})
    prob = ode.ODEProblem(system, {}, (0.0, 0.1))
    close(prob.u0, [2.0, -np.sqrt(2)], 1e-12)
    start = lambda v: ode.remake(prob, u0={x: v}).u0[1]
    close(jax.grad(start)(2.0), -0.5 / np.sqrt(2), 1e-12)


def test_cubic_constraints():
    # the reference page: x' = a x + y + z, 0 = y^3 + y - b x, 0 = z^3 + z - c y
    a, b, c, x0 = parameters("a b c x0")
    system = System([(D(x), a * x + y + z), (0, y**3 + y - b * x), (0, z**3 + z - c * y)], t, defaults={x: x0})
    at = {a: -0.5, b: 2.0, c: 1.5, x0: 1.0}
    prob = ode.ODEProblem(
        system, {}, (0.0, 0.1), at, guesses={y: 0.5, z: 0.5}, saveat=[0.1], reltol=1e-12, abstol=1e-12
    )
    start = lambda v: ode.remake(prob, p=v).u0
    close(start(jnp.array([-0.5, 2.0, 1.5, 1.0])), [1, 1, 0.8612240997395736], 1e-12)
    jac = jax.jacrev(start)(prob.tunables.array)
    order = prob.tunables.names
    want = {"b": (0, 1 / 4, 0.11627471262346), "c": (0, 0, 0.31006590032923), "x0": (1, 1 / 2, 0.23254942524692)}
    for name, column in want.items():
        close(jac[:, order.index(name)], column, 1e-12)
    slope = jax.grad(lambda v: jnp.sum(ode.solve(prob, p=v).u))(prob.tunables)
    got = np.array([slope[q] for q in (a, b, c, x0)])
    close(got, [0.17844054791, 0.434445277625, 0.367314262889, 1.687493693081], 1e-9)


def test_robertson():
    # case 47, as an index-1 problem with a conserved sum
    a, b, c = parameters("k1 k2 k3")
    system = System([(D(x), -a * x + c * y * z), (D(y), a * x - b * y**2 - c * y * z), (0, x + y + z - 1)], t)
    prob = ode.ODEProblem(
        system,
        {x: 1.0, y: 0.0},
        (0.0, 100.0),
        {a: 0.04, b: 3e7, c: 1e4},
        saveat=[1.0, 10.0, 100.0],
        reltol=1e-9,
        abstol=1e-13,
    )
    assert prob.system.names == ("x", "y")  # z is explicit
    loss = lambda p: jnp.sum(ode.solve(prob, ode.Rodas5P(), p=p)[x])
    value, slope = jax.value_and_grad(loss)(prob.tunables)
    close(value, 2.425064543570564, 1e-8)
    want = np.array([-8.6866176770399335, -4.214404483769266e-9, 2.5288837334185677e-5])
    close([slope[q] for q in (a, b, c)] / want, np.ones(3), 1e-5)


# ---------------------------------------------------------------- index 3: the pendulum

T, angle = unknowns("T angle")
length, theta, gravity = parameters("L theta g", default=1.0)
PENDULUM = System(
    [(D(D(x)), T * x), (D(D(y)), T * y - gravity), (x**2 + y**2, length**2)], t, symbols=[theta], name="pendulum"
)
ANGLE_FORM = System([(D(D(angle)), -gravity / length * sp.sin(angle))], t, symbols=[theta])
TIMES = np.linspace(0, 10, 6)
SIZES = {length: 1.2, theta: 0.5, gravity: 9.81}
SWING = dict(u0={x: length * sp.sin(theta), D(x): 0.0}, guesses={y: -1.0, T: -1.0, D(y): 0.0})
REFERENCE = ode.ODEProblem(
    ANGLE_FORM, {angle: theta, D(angle): 0.0}, (0.0, 10.0), SIZES, saveat=TIMES, reltol=1e-12, abstol=1e-12
)


def pendulum(stabilization=None, u0=SWING["u0"], guesses=SWING["guesses"], p=SIZES, tol=1e-8):
    return ode.ODEProblem(
        PENDULUM, u0, (0.0, 10.0), p, guesses=guesses, saveat=TIMES, reltol=tol, abstol=tol, stabilization=stabilization
    )


def by_angle(v):
    sol = ode.solve(REFERENCE, ode.Vern9(), p={length: v[0], theta: v[1]})
    return sol[[length * sp.sin(angle), -length * sp.cos(angle)]]


WEIGHTS = np.arange(1.0, 13.0).reshape(6, 2)
ENERGY = (D(x) ** 2 + D(y) ** 2) / 2 + gravity * y


@pytest.mark.parametrize("stabilization", [None, 5.0], ids=["dummy derivatives", "stabilization"])
def test_pendulum_against_the_angle_form(stabilization):
    prob = pendulum(stabilization)
    assert len(prob.system.differential) == (2 if stabilization is None else 4)
    sol = ode.solve(prob)
    v = jnp.array([1.2, 0.5])
    close(sol[[x, y]], by_angle(v), 1e-6)
    energy = sol[ENERGY]
    assert np.max(np.abs(energy - energy[0])) < 1e-6
    assert np.max(np.abs(sol[x**2 + y**2 - length**2])) < 1e-7
    close(
        sol[T], sol[(gravity * y - D(x) ** 2 - D(y) ** 2) / length**2], 1e-6
    )  # from the constraint's second derivative
    loss = lambda of: lambda v: jnp.sum(WEIGHTS * of(v))
    by_name = lambda v: ode.solve(prob, p={length: v[0], theta: v[1]})[[x, y]]
    close(jax.grad(loss(by_name))(v), jax.grad(loss(by_angle))(v), 1e-6)


def test_pendulum_from_a_horizontal_start():
    start = dict(u0={x: length, y: 0.0, D(y): 0.0}, guesses={D(x): 0.0, T: 0.0})
    sol = ode.solve(pendulum(5.0, **start, tol=1e-9))
    close(sol[[x, y]], by_angle(jnp.array([1.2, np.pi / 2])), 1e-6)
    energy = sol[ENERGY]
    assert np.max(np.abs(energy - energy[0])) < 1e-6


def test_velocities_against_a_constraint_are_refused():
    prob = pendulum(5.0, {x: length, y: 0.0, D(x): 1.0, D(y): 0.0}, {T: 0.0})
    with pytest.raises(ode.SolveError, match=r"D\(x\).*off by"):
        ode.solve(prob)


# ---------------------------------------------------------------- networks, loops, singular systems


def pin(name):
    v, i = unknowns("v", connect="equal"), unknowns("i", connect="flow")
    return System([], t, symbols=[v, i], name=name)


def two_pins(name, law, symbols=()):
    """A component between two pins with u = v(p) - v(n) and the current i."""
    a, n, u, i = pin("p"), pin("n"), unknowns("u"), unknowns("i")
    return System([(u, a.v - n.v), (i, a.i), (a.i + n.i, 0), law(u, i)], t, symbols=symbols, systems=[a, n], name=name)


def test_network_of_components():
    R, C, V = parameters("R C V")
    resistor = two_pins("resistor", lambda u, i: (u, R * i))
    capacitor = two_pins("capacitor", lambda u, i: (C * D(u), i))
    source = two_pins("source", lambda u, i: (u, V))
    ground = pin("ground")
    circuit = System(
        [
            connect(source.p, resistor.p),
            connect(resistor.n, capacitor.p),
            connect(capacitor.n, source.n, ground),
            (ground.v, 0),
        ],
        t,
        systems=[resistor, capacitor, source, ground],
        name="circuit",
    )
    prob = ode.ODEProblem(
        circuit,
        {circuit.capacitor.u: 0.0},
        (0.0, 1.0),
        {circuit.resistor.R: 2.0, "capacitor.C": 0.5, circuit.source.V: 3.0},
        saveat=[0.0, 1.0],
        **TIGHT,
    )
    assert len(prob.system.unknowns) == 1
    sol = ode.solve(prob)
    close(sol[circuit.capacitor.u], [0, 3 * (1 - np.exp(-1))], 1e-9)
    close(sol["resistor.i"], [1.5, 1.5 * np.exp(-1)], 1e-9)
    close(sol[circuit.source.u * circuit.source.i], [-4.5, -4.5 * np.exp(-1)], 1e-9)
    slope = jax.grad(lambda q: ode.solve(prob, p={circuit.resistor.R: q})["capacitor.u"][-1])(2.0)
    close(slope, -3 * np.exp(-1) / 2, 1e-8)  # d/dR of 3 (1 - exp(-1 / (R C)))


def test_a_loop_of_linear_equations():
    # 4 x_i - x_(i-1) - x_(i+1) = q, around a ring of 300: x_i = q / 2, and a state that follows
    n = 300
    v = unknowns("v", shape=n)
    system = System([*equations(4 * v - np.roll(v, 1) - np.roll(v, -1), x), (D(x), -v[7])], t)
    prob = ode.ODEProblem(system, {x: 1.0}, (0.0, 1.0), saveat=[1.0], guesses={v: 0.0}, reltol=1e-8, abstol=1e-8)
    sol = ode.solve(prob)
    close(sol[x], [np.exp(-0.5)], 1e-6)
    close(sol[v], np.full((1, n), np.exp(-0.5) / 2), 1e-6)


def test_singular_systems_are_named():
    build = lambda *pairs: ode.ODEProblem(System(list(pairs), t), {x: 1.0}, (0.0, 1.0))
    with pytest.raises(StructureError, match=r"too few equations, .*\[x, y, z\]"):
        build((D(x), y + z), (D(x) - y, z))
    with pytest.raises(StructureError, match=r"too many equations.*y\*\*2 = x.*for the unknowns \[.*y.*\]"):
        build((D(x), -x), (y**2, x), (y, x**3), (z, y))
    with pytest.raises(StructureError, match="contradicts"):
        build((D(x), -y), (y + z, 1), (z, 2), (y, 3))
    assert build((D(x), -y), (y, x**2)).system.names == ("x",)  # no alias


def test_a_hidden_index_is_refused():
    # the second algebraic equation is the first one in disguise: no structure shows it
    system = System([(D(x), y - z), (y + z, 1), (2 * y + 2 * z + x, 3)], t)
    with pytest.raises(StructureError, match=r"do not determine y, z: together they say 0 = .*x"):
        ode.ODEProblem(system, {x: 1.0}, (0.0, 1.0), guesses={y: 1.0, z: 0.0})


def test_two_values_for_aliases():
    system = System([(D(x), -x), (z, -x)], t)
    prob = ode.ODEProblem(system, {z: -1.0}, (0.0, 1.0), saveat=[1.0])
    close(ode.solve(prob)[[x, z]], [[np.exp(-1), -np.exp(-1)]], 1e-5)
    both = ode.remake(prob, u0={x: 1.0})
    close(ode.solve(both)[x], [np.exp(-1)], 1e-5)
    with pytest.raises(ode.SolveError, match=r"-x = the value given for z, off by 2"):
        ode.solve(ode.remake(both, u0={x: 3.0}))
    with pytest.raises(ode.SolveError, match=r"z = 2\*t \+ 2, off by 3"):
        ode.solve(ode.remake(both, u0={z: 2 * t + 2}))


def test_initial_values_that_are_missing_contradict_or_are_guessed():
    with pytest.raises(InitialValueError, match=r"no initial value for w2: .*guess"):
        build()
    with pytest.raises(InitialValueError, match="no initial value for z"):
        build(without(z), guesses={w2: -1.0})
    with pytest.raises(ode.SolveError, match=r"w2\*\*2.*off by 2.75"):
        ode.solve(build(START | {w2: -2.0}))
    with pytest.raises(ode.SolveError, match=r"x \+ y = 3, off by 1.5"):
        ode.solve(build(system=in_the_system(defaults={}, initial=[(x + y, 3)]), guesses={w2: -1.0}))
    with pytest.warns(UndeterminedWarning, match="no equation determines the initial value of z"):
        prob = build(without(z), guesses={w2: -1.0, z: 0.25})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ode.solve(prob)[z][0] == 0.25


def test_initial_values_under_transforms():
    prob = build(guesses={w2: -1.0})
    start = lambda q: ode.remake(prob, u0={y: q}).u0[-1]
    qs = np.array([0.5, 1.0, 2.0])
    close(jax.vmap(start)(jnp.asarray(qs)), -np.sqrt(1 + qs**2), 1e-14)
    close(jax.vmap(jax.grad(start))(jnp.asarray(qs)), -qs / np.sqrt(1 + qs**2), 1e-13)
    close(jax.jit(jax.hessian(start))(0.5), -(1.25**-1.5), 1e-13)
    close(jax.lax.scan(lambda _, q: (None, start(q)), None, jnp.asarray(qs))[1], -np.sqrt(1 + qs**2), 1e-14)
    bad = jax.jit(lambda q: ode.solve(build(START | {w2: -2.0}), u0={y: q}))(0.5)
    assert not bad.success and bool(jnp.all(jnp.isnan(bad.u)))
