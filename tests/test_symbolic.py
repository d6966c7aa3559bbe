"""Symbolic problems: values by name in every call form, what solutions know of names, remake, tunables, messages.

Right values: closed forms, and the "symbolic" entries of the reference page.
"""

import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sp
from scipy.integrate import quad

import odesens as ode
from odesens import trace as trace_module
from odesens.status import ReturnCode
from odesens.symbolic import (
    D,
    InitialValueError,
    StructureError,
    System,
    equations,
    parameters,
    t,
    unknowns,
)

from .problems import close
from .test_opacity import compilations

X, Y, Z = unknowns("X Y Z")
k, c = parameters("k c")
DECAY = System([(D(X), -k * X)], t, defaults={X: 1.0}, name="decay")
PROB = ode.ODEProblem(DECAY, {}, (0.0, 1.0), {k: 0.5}, saveat=0.1)

# an observed value, an initial value that depends on a parameter, a parameter that is not tunable
g = parameters("g", tunable=False)
RICH = System([(D(X), -k * X), (Y, g * X + t)], t, defaults={X: 2 * k}, name="rich")
RICH_PROB = ode.ODEProblem(RICH, {}, (0.0, 1.0), {k: 0.5, g: 3.0}, saveat=[0.0, 1.0], reltol=1e-10, abstol=1e-12)


# ---------------------------------------------------------------- the decay model

J = np.arange(11)
DECAY_LOSS = np.sum(np.exp(-0.05 * J)), -np.sum(0.1 * J * np.exp(-0.05 * J))


def in_the_problem(q):
    prob = ode.ODEProblem(DECAY, {X: 1.0}, (0.0, 1.0), {k: q})
    return jnp.sum(ode.solve(prob, saveat=0.1)[X])


def built_in_the_loss(q):
    x = unknowns("x")
    system = System([(D(x), -parameters("a") * x)], t)
    return jnp.sum(ode.solve(ode.ODEProblem(system, {x: 1}, (0.0, 1.0), {"a": q}, saveat=0.1)).u)


def local():
    prob = ode.ODEProblem(DECAY, {"X": 1.0}, (0.0, 1.0), {"k": 0.1}, saveat=0.1)
    return lambda q: jnp.sum(ode.solve(prob, p={k: q}).u)


def by_scan(q):
    def body(total, row):
        return total + row, None

    return jax.lax.scan(body, 0.0, ode.solve(PROB, p={k: q})[X])[0]


FORMS = {
    "p by keyword": lambda q: jnp.sum(ode.solve(PROB, p={k: q})[X]),
    "by string": lambda q: jnp.sum(ode.solve(PROB, p={"k": q})["X"]),
    "in the problem, saveat in solve": in_the_problem,
    "remake": lambda q: jnp.sum(ode.solve(ode.remake(PROB, p={k: q})).u),
    "tunables": lambda q: jnp.sum(ode.solve(PROB, p=PROB.tunables.replace({k: q}))[X]),
    "tunables in remake": lambda q: jnp.sum(ode.solve(ode.remake(PROB, p=PROB.tunables.replace(q[None])))[X]),
    "vector": lambda q: jnp.sum(ode.solve(PROB, p=jnp.stack([q]))[X]),
    "parameters": lambda q: jnp.sum(ode.solve(PROB, p=PROB.p._replace(tunable=q[None]))[X]),
    "local": local(),
    "built in the loss": built_in_the_loss,
    "NaN until then": lambda q: jnp.sum(ode.solve(ode.remake(NAN, p={k: q})).u),
    "from an expression": lambda q: jnp.sum(ode.solve(EXPRESSION, p={c: q}).u),
    "jit inside": lambda q: jax.jit(FORMS["p by keyword"])(q),
}
NAN = ode.ODEProblem(DECAY, {}, (0.0, 1.0), {k: np.nan}, saveat=0.1)
EXPRESSION = ode.ODEProblem(System([(D(X), -k * X)], t, symbols=[c]), {X: 1.0}, (0.0, 1.0), {k: c, c: 1.0}, saveat=0.1)


def test_decay_is_the_same_to_the_last_bit_in_all_call_forms():
    q = jnp.asarray(0.5)
    want = jax.value_and_grad(FORMS["p by keyword"])(q)
    close(want[0], DECAY_LOSS[0], 1e-9)
    close(want[1], DECAY_LOSS[1], 1e-7)
    for name, loss in FORMS.items():
        assert jax.value_and_grad(loss)(q) == want, name
    both = jax.value_and_grad(FORMS["p by keyword"])
    assert jax.jit(both)(q) == want
    assert jax.lax.scan(lambda _, q: (None, both(q)), None, q[None])[1] == want
    value, slope = jax.vmap(both)(jnp.array([0.5, 0.5]))  # lanes share their steps: equal lanes are one problem
    assert (value[0], slope[0]) == (value[1], slope[1]) == want


def test_decay_under_scan_sums_row_by_row():
    value, slope = jax.value_and_grad(by_scan)(0.5)
    close(value, DECAY_LOSS[0], 1e-9)
    close(slope, DECAY_LOSS[1], 1e-7)


def test_lanes_with_different_values():
    qs = jnp.array([0.3, 0.5, 2.0])
    value, slope = jax.vmap(jax.value_and_grad(FORMS["p by keyword"]))(qs)
    for i, q in enumerate(qs):
        close(value[i], np.sum(np.exp(-0.1 * J * q)), 1e-7)
        close(slope[i], -np.sum(0.1 * J * np.exp(-0.1 * J * q)), 1e-6)


# ---------------------------------------------------------------- nothing left to solve, NaN placeholders


def test_null_problem():
    prob = ode.ODEProblem(System([(0, X - Y), (0, Y)], t), {}, (0.0, 1.0), saveat=0.25)
    sol = ode.solve(prob)
    assert prob.system.unknowns == () and sol.u.shape == (5, 0)
    np.testing.assert_array_equal(sol.t, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(sol[[X, Y]], np.zeros((5, 2)))
    assert sol(0.3, idxs=X) == 0
    empty = ode.solve(ode.ODEProblem(System([], t, observed=[(X, t**2)]), {}, (0.0, 2.0), saveat=[2.0]))
    assert empty[X] == 4 and empty[X + t] == 6
    dummy = System([(0, X - Y), (0, Y), (D(Z), 0)], t)
    assert np.all(ode.solve(ode.ODEProblem(dummy, {Z: 7.0}, (0.0, 1.0), saveat=0.5))[X + Z] == 7)


@pytest.mark.parametrize("equation", [(D(X), k), (X, k * t)], ids=["differential", "algebraic"])
def test_a_parameter_built_as_nan_and_remade(equation):
    prob = ode.ODEProblem(System([equation], t, defaults={X: 0.0}), {}, (0.0, 1.0), {k: np.nan}, saveat=[1.0])
    loss = lambda q: ode.solve(ode.remake(prob, p={k: q}))[X][-1]
    got = jax.value_and_grad(loss)(1.0)
    if prob.system.unknowns:  # a sum of steps, in the value and in the derivative: 1 to rounding, as by hand
        hand = ode.ODEProblem(lambda t, u, p: p + 0 * u, jnp.zeros(1), (0.0, 1.0), saveat=[1.0])
        want = jax.value_and_grad(lambda q: ode.solve(hand, p=jnp.stack([q])).u[0, 0])(1.0)
        close(want, np.ones(2), 3e-16)
    else:
        want = 1.0, 1.0
    assert got == want
    assert jax.jit(jax.value_and_grad(loss))(1.0) == want


def test_nan_that_nothing_reads_does_no_harm():
    # case 14: y' = -k y with another parameter that is never used, NaN or finite
    system = System([(D(X), -k * X)], t, symbols=[c], defaults={X: 1.0})
    prob = ode.ODEProblem(system, {}, (0.0, 2.0), {k: 0.7, c: np.nan}, saveat=[2.0], reltol=1e-12, abstol=1e-14)
    loss = lambda p: ode.solve(prob, p=p)[X][0]
    slope = jax.grad(loss)(prob.tunables)
    close(slope[k], -0.49319392788321295, 1e-10)
    assert slope[c] == 0
    slope = jax.grad(loss)(prob.tunables.replace({c: 3.0}))
    close(slope[k], -0.49319392788321295, 1e-10)
    assert slope[c] == 0


def test_nan_where_it_is_read_fails_and_says_so():
    with pytest.raises(ode.SolveError, match="never set"):
        ode.solve(NAN)


# ---------------------------------------------------------------- solutions by name


def test_solution_by_names():
    sol = ode.solve(RICH_PROB)
    x1 = np.exp(-0.5)
    close(sol[X], [1, x1], 1e-9)
    close(sol["Y"], [3, 3 * x1 + 1], 1e-9)
    close(sol[X + k * Y], [2.5, x1 + 0.5 * (3 * x1 + 1)], 1e-9)
    close(sol[[X, Y, k]], [[1, 3, 0.5], [x1, 3 * x1 + 1, 0.5]], 1e-9)
    close(sol[D(X)], [-0.5, -0.5 * x1], 1e-9)
    close(sol[D(Y)], [-0.5, -1.5 * x1 + 1], 1e-9)
    close(sol[t], [0, 1], 0)
    close(sol(0.5, idxs=Y), 3 * np.exp(-0.25) + 0.5, 1e-9)
    close(sol(np.array([0.0, 0.5]), idxs=[X, 2 * Y]), [[1, 6], [np.exp(-0.25), 6 * np.exp(-0.25) + 1]], 1e-9)
    close(sol(0.5, idxs=Y, deriv=1), -1.5 * np.exp(-0.25) + 1, 1e-9)
    assert (sol.ps[k], sol.ps["g"], sol.ps[2 * k + g]) == (0.5, 3.0, 4.0)
    close(sol.ps[[k, g]], [0.5, 3], 0)
    assert RICH_PROB.ps[g] == 3 and RICH_PROB.u0 == 1.0
    close(sol[0], [1.0], 0)  # numbers are still those of saved times
    empty = ode.solve(RICH_PROB, saveat=[])
    assert empty[Y].shape == (0,) and empty[[X, Y]].shape == (0, 2)


def test_arrays_of_symbols():
    x, a = unknowns("x", shape=3), parameters("a", shape=3)
    prob = ode.ODEProblem(
        System(equations(D(x), -a * x), t),
        {x: [1.0, 2.0, 3.0]},
        (0.0, 1.0),
        {a: np.array([1.0, 2.0, 3.0])},
        saveat=[1.0],
    )
    sol = ode.solve(prob, reltol=1e-10, abstol=1e-12)
    want = np.array([1, 2, 3]) * np.exp(-np.array([1.0, 2, 3]))
    close(sol[x], want[None], 1e-9)
    close(sol[a * x], (want * [1, 2, 3])[None], 1e-9)
    slope = jax.grad(lambda v: jnp.sum(ode.solve(prob, u0={x: v})[x]))(jnp.ones(3))
    close(slope, np.exp(-np.array([1.0, 2, 3])), 1e-5)
    with pytest.raises(ValueError, match=r"array of \(3,\) symbols"):
        ode.remake(prob, u0={x: np.ones(2)})


def test_solutions_leave_jit_and_vmap():
    sol = jax.jit(lambda q: ode.solve(RICH_PROB, p={k: q}))(0.25)
    close(sol[k * Y], [0.375, 0.25 * (1.5 * np.exp(-0.25) + 1)], 1e-9)
    assert sol.ps[k] == 0.25
    close(sol(0.5, idxs=X), 0.5 * np.exp(-0.125), 1e-9)
    qs = np.array([0.25, 1.0])
    sols = jax.vmap(lambda q: ode.solve(RICH_PROB, p={k: q}))(jnp.asarray(qs))
    close(sols[X], np.stack([2 * qs, 2 * qs * np.exp(-qs)], 1), 1e-9)
    close(sols[k * X], qs[:, None] * np.stack([2 * qs, 2 * qs * np.exp(-qs)], 1), 1e-9)
    close(sols.ps[2 * k], 2 * qs, 0)
    nested = jax.vmap(jax.vmap(lambda q: ode.solve(RICH_PROB, p={k: q})))(jnp.asarray(qs)[None])
    close(nested[k * X][0], sols[k * X], 1e-12)


def test_derivatives_through_names():
    loss = lambda q: ode.solve(RICH_PROB, p={k: q})[Y][-1]
    close(jax.grad(loss)(0.5), 6 * (1 - 0.5) * np.exp(-0.5), 1e-8)  # Y(1) = 6 k e^-k + 1: u0 follows k
    close(jax.jvp(loss, (0.5,), (1.0,))[1], 3 * np.exp(-0.5), 1e-8)
    close(jax.grad(lambda q: ode.solve(RICH_PROB, p={k: q})(0.5, idxs=Y))(0.5), 6 * 0.75 * np.exp(-0.25), 1e-8)
    close(jax.grad(lambda s: ode.solve(RICH_PROB)(s, idxs=Y))(0.5), -1.5 * np.exp(-0.25) + 1, 1e-8)
    assert jax.grad(lambda q: ode.solve(RICH_PROB, p={k: q}).ps[k * g])(0.5) == 3.0
    assert jax.grad(lambda q: ode.remake(RICH_PROB, p={k: q}).u0[0])(0.5) == 2.0


# ---------------------------------------------------------------- remake, tunables


def test_remake_is_partial_and_in_any_order():
    one = ode.remake(ode.remake(RICH_PROB, p={g: 5.0}), u0={X: 4.0})
    two = ode.remake(ode.remake(RICH_PROB, u0={"X": 4.0}), p={"g": 5.0}, reltol=1e-8)
    for prob in (one, two):
        assert prob.u0 == 4.0 and (prob.ps[k], prob.ps[g]) == (0.5, 5.0)
    assert two.options["reltol"] == 1e-8 and RICH_PROB.ps[g] == 3.0
    assert ode.remake(one, u0={X: k + g}).u0 == 5.5  # an expression again
    assert ode.remake(ode.remake(one, u0={X: k + g}), p={k: 1.0}).u0 == 6.0
    assert ode.remake(one, p={k: sp.Rational(1, 4)}).ps[k] == 0.25


def test_none_takes_a_value_back():
    prob = ode.ODEProblem(DECAY, {X: 3.0}, (0.0, 1.0), {k: 2.0})
    by_rate = ode.remake(prob, u0={X: None, D(X): -8.0}, guesses={X: 1.0})
    assert by_rate.u0 == 4.0
    assert ode.remake(prob, u0={X: None, "X_t": -8.0}, guesses={X: 1.0}).u0 == 4.0  # D(X) by its name
    with pytest.raises(InitialValueError, match=r"no value for the parameter k\b"):
        ode.remake(prob, p={k: None})
    with pytest.raises(InitialValueError, match=r"no initial value for X\b"):
        ode.remake(prob, u0={X: None})


def test_tunables():
    assert RICH_PROB.tunables.names == ("k",) and dict(RICH_PROB.tunables) == {"k": 0.5}  # g is not tunable
    system = System([(D(X), c * Y - k * X), (D(Y), -g * Y)], t, defaults={X: 1.0, Y: 1.0})
    prob = ode.ODEProblem(system, {}, (0.0, 1.0), {g: 1.0, k: 2.0, c: 3.0}, saveat=[1.0])
    assert prob.tunables.names == ("c", "k")  # the order of their first appearance
    new = prob.tunables.replace({"k": 7.0, c: 4.0})
    assert (new[k], new[c]) == (7.0, 4.0) and new is not prob.tunables
    slope = jax.grad(lambda p: ode.solve(prob, p=p)[X][0])(prob.tunables)
    assert slope.names == ("c", "k")
    close(slope[c], np.exp(-1) - np.exp(-2), 1e-5)  # X = e^-2s (1 - c) + c e^-s
    assert len(jax.tree.leaves(prob.tunables)) == 1
    stepped = jax.tree.map(lambda p, d: p - 0.1 * d, prob.tunables, slope)
    assert ode.remake(prob, p=stepped).ps[c] == stepped[c]
    with pytest.raises(KeyError, match="g is not among the tunable parameters c, k"):
        prob.tunables.replace({g: 1.0})
    with pytest.raises(ValueError, match="vector of 2"):
        prob.tunables.replace(jnp.ones(3))


def test_values_traced_in_mappings():
    def loss(v):
        prob = ode.ODEProblem(RICH, {X: v[0] + 0 * v[1]}, (0.0, v[2]), {k: v[1], g: 1.0}, saveat=jnp.stack([v[2]]))
        return ode.solve(prob, reltol=1e-10, abstol=1e-12)[X][0]

    x0, q, end = v = jnp.array([2.0, 0.5, 1.5])
    slope = np.array([1, -end * x0, -q * x0]) * np.exp(-q * end)
    close(jax.grad(loss)(v), slope, 1e-8)
    close(jax.jit(jax.vmap(jax.grad(loss)))(v[None])[0], slope, 1e-8)


def test_time_is_differentiable_and_may_run_backwards():
    at = jnp.array([1.0])
    loss = lambda t0: ode.solve(RICH_PROB, tspan=(t0, 1.0), saveat=at)[X][0]
    close(jax.grad(loss)(0.0), 0.5 * np.exp(-0.5), 1e-8)
    back = ode.solve(RICH_PROB, tspan=(1.0, 0.0), saveat=[1.0, 0.0])
    close(back[Y], [4.0, 3 * np.exp(0.5)], 1e-9)
    close(
        jax.grad(lambda q: ode.solve(RICH_PROB, tspan=(1.0, 0.0), saveat=[0.0], p={k: q})[X][0])(0.5),
        3 * np.exp(0.5),
        1e-8,
    )


# ---------------------------------------------------------------- numbers of other kinds


def test_precision_is_that_of_what_is_given():
    build = lambda x, q: ode.ODEProblem(DECAY, {X: x}, (0, 1), {k: q}, saveat=[1.0])
    for x, q in ((np.float32(1), 0.5), (jnp.float32(1), 0.5), (1.0, jnp.float32(0.5)), (1, np.float32(0.5))):
        sol = ode.solve(build(x, q))
        assert sol.u.dtype == sol[k * X].dtype == sol.ps[k].dtype == np.float32
        close(sol[X], [np.exp(-0.5)], 1e-4)
    prob = build(np.float32(1), 0.5)
    value, slope = jax.value_and_grad(lambda q: ode.solve(prob, p={k: q})[X][0])(0.5)  # a weak number that is traced
    assert value.dtype == np.float32
    close(slope, -np.exp(-0.5), 1e-4)
    assert ode.remake(prob, p={k: np.float64(0.5)}).u0.dtype == np.float64
    assert ode.solve(build(1, 2)).u.dtype == np.float64


def test_complex_values():
    build = lambda x, q: ode.ODEProblem(DECAY, {X: x}, (0.0, 1.0), {k: q}, saveat=[1.0], reltol=1e-10, abstol=1e-12)
    close(ode.solve(build(1 + 2j, 0.5))[X], [(1 + 2j) * np.exp(-0.5)], 1e-9)
    close(ode.solve(build(1.0, 1j))[k * X], [1j * np.exp(-1j)], 1e-9)
    real = build(1 + 2j, 0.5)
    slope = jax.grad(lambda p: jnp.abs(ode.solve(real, p=p)[X][0]))(real.tunables)
    assert slope[k].dtype == np.float64  # of a real parameter the gradient is real
    close(slope[k], -np.sqrt(5) * np.exp(-0.5), 1e-8)
    rotating = System([(D(X), sp.I * k * X)], t)
    end = ode.solve(ode.ODEProblem(rotating, {X: 1 + 0j}, (0.0, 1.0), {k: 2.0}, saveat=[1.0]))[X]
    close(end, [np.exp(2j)], 1e-5)


def test_single_precision_without_x64():
    """A fresh process with JAX's default of 32 bits: no warning, no double precision anywhere."""
    code = """
import warnings; warnings.simplefilter("error")
import jax, jax.numpy as jnp, numpy as np
import odesens as ode
from odesens.symbolic import D, System, parameters, t, unknowns
x, z = unknowns("x z"); k = parameters("k")
system = System([(D(x), -k * z), (0, z**3 + z - x)], t, guesses={z: 1.0})
prob = ode.ODEProblem(system, {x: 2.0}, (0.0, 0.5), {k: 1.0}, saveat=[0.0, 0.5])
sol = ode.solve(prob)
assert sol.u.dtype == sol[x * k].dtype == np.float32, sol.u.dtype
assert abs(float(sol[z][0]) - 1) < 1e-5
"""
    env = {key: value for key, value in os.environ.items() if key != "JAX_ENABLE_X64"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=300)


# ---------------------------------------------------------------- functions, branches, names


class Rate(eqx.Module):
    a: jax.Array

    def __call__(self, x):
        return -self.a * x


def test_undefined_functions():
    F = sp.Function("F")
    system = System([(D(X), F(X))], t, functions={F: Rate(jnp.asarray(1.0))}, defaults={X: 1.0})
    prob = ode.ODEProblem(system, {}, (0.0, 1.0), saveat=[1.0], reltol=1e-10, abstol=1e-12)
    close(ode.solve(prob)[X], [np.exp(-1)], 1e-9)
    loss = lambda m: ode.solve(ode.remake(prob, functions={F: m}))[X][0]
    two = Rate(jnp.asarray(2.0))
    close(loss(two), np.exp(-2), 1e-9)
    close(jax.grad(loss)(two).a, -np.exp(-2), 1e-8)
    close(jax.jit(jax.grad(loss))(two).a, -np.exp(-2), 1e-8)
    close(ode.solve(prob, p=prob.p._replace(functions={"F": two}))[X], [np.exp(-2)], 1e-9)
    close(ode.solve(ode.remake(prob, functions={"F": lambda x: -3 * x}))[F(X)], [-3 * np.exp(-3)], 1e-9)
    with pytest.raises(KeyError, match="no function G; there is F"):
        ode.remake(prob, functions={"G": two})


def test_piecewise():
    half = sp.Rational(1, 2)
    system = System([(D(X), sp.Piecewise((-k, t < half), (-2 * k * t, True)))], t, defaults={X: 1.0})
    prob = ode.ODEProblem(system, {}, (0.0, 1.0), {k: 1.0}, saveat=[1.0], tstops=[0.5])
    value, slope = jax.value_and_grad(lambda q: ode.solve(prob, p={k: q})[X][0])(1.0)
    close(value, 1 - 0.5 - 0.75, 1e-6)
    close(slope, -1.25, 1e-6)


def test_discontinuities_of_a_subsystem():
    law = [(D(X), -sp.Piecewise((k, t <= 2 * c), (3 * k, True)) * X)]
    inner = System(law, t, discontinuities=[2 * c], defaults={X: 1.0}, name="inner")
    prob = ode.ODEProblem(
        System([], t, systems=[inner]), {}, (0.0, 1.0), {"inner.k": 0.5, "inner.c": 0.2}, saveat=[1.0]
    )
    last = lambda q: ode.solve(prob, p={"inner.c": q}, reltol=1e-10, abstol=1e-12)["inner.X"][0]
    value, slope = jax.value_and_grad(last)(0.2)
    close(value, np.exp(-0.2 - 0.9), 1e-9)
    close(slope, 2 * np.exp(-0.2 - 0.9), 1e-9)
    with pytest.raises(
        TypeError, match="a time of discontinuities must be a number or depend on parameters only, got X"
    ):
        System(law, t, discontinuities=[X])


def test_division_by_zero_is_named():
    with pytest.raises(TypeError, match="divides by zero"):
        ode.ODEProblem(System([(D(X), X + sp.zoo)], t), {X: 1.0}, (0.0, 1.0))


def test_negative_factors_stay_real():
    system = System([(D(X), -0.5 * X + (-0.2 * Y) ** 3), (Y, -0.7 * t)], t)
    prob = ode.ODEProblem(system, {X: 1.0}, (0.0, 1.0), saveat=[1.0], reltol=1e-10, abstol=1e-12)
    cubes = lambda s: s**3 * np.exp(-0.5 * (1 - s))
    want = np.exp(-0.5) + 0.14**3 * quad(cubes, 0, 1, epsabs=1e-14)[0]
    close(ode.solve(prob)[X], [want], 1e-9)


def test_systems_of_one_name_are_told_apart():
    ends = []
    for factor in (1, 2, 3):
        system = System([(D(X), -factor * k * X)], t, name="same")
        ends.append(ode.solve(ode.ODEProblem(system, {X: 1.0}, (0.0, 1.0), {k: 1.0}, saveat=[1.0]))[X][0])
    close(np.array(ends), np.exp([-1.0, -2.0, -3.0]), 1e-5)


def test_parameters_of_one_name():
    with_default = parameters("k", default=3.0)
    prob = ode.ODEProblem(System([(D(X), -k * X + with_default)], t), {X: 1.0}, (0.0, 1.0))
    assert prob.ps[k] == prob.ps[with_default] == prob.ps["k"] == 3.0
    with pytest.raises(ValueError, match=r"k has default 3\.0 in one place and 2\.0 in another"):
        System([(D(X), -with_default * X + parameters("k", default=2.0))], t).flatten()
    with pytest.raises(TypeError, match="k is both an unknown and a parameter"):
        System([(D(X), -k * X), (D(unknowns("k")), 1)], t)


# ---------------------------------------------------------------- what is compiled and traced


def test_other_numbers_compile_and_trace_nothing(monkeypatch):
    traced = [0]
    hoist = trace_module.hoist

    def counted(*args, **options):
        traced[0] += 1
        return hoist(*args, **options)

    monkeypatch.setattr(trace_module, "hoist", counted)
    w = unknowns("w")
    system = System([(D(X), -k * w), (0, w**3 + w - X)], t, guesses={w: 1.0})
    prob = ode.ODEProblem(system, {X: 2.0}, (0.0, 0.5), {k: 1.0}, saveat=[0.0, 0.5])
    loss = lambda q: jnp.sum(ode.solve(ode.remake(prob, p={k: q}, u0={X: 2 * q}))[X * w])
    value, slope = jax.value_and_grad(loss), jax.jit(jax.grad(loss))
    for run in (loss, value, slope):
        run(1.0)
    before = traced[0]

    def again():
        for q in (1.1, 1.2, 1.3):
            loss(q), value(q), slope(q)

    assert compilations(again) == 0
    assert traced[0] == before


# ---------------------------------------------------------------- events, ensembles, steady states


def test_ensembles_keep_what_depends_on_parameters():
    qs = np.array([0.25, 0.5, 1.0])
    want = np.stack([2 * qs, 2 * qs * np.exp(-qs)], 1)  # X0 = 2 k
    traced = ode.EnsembleProblem(RICH_PROB, prob_func=lambda p, i, r: ode.remake(p, p={k: jnp.asarray(qs)[i]}))
    by_number = ode.EnsembleProblem(RICH_PROB, prob_func=lambda p, i, r: ode.remake(p, p={k: float(qs[i])}))
    arrays = ode.EnsembleProblem(RICH_PROB, p={k: qs})
    tunables = ode.EnsembleProblem(RICH_PROB, p=jax.vmap(RICH_PROB.tunables.replace)(jnp.asarray(qs)[:, None]))
    for ensemble in (traced, by_number, arrays, tunables):
        sol = ode.solve(ensemble, trajectories=3)
        close(sol.u[..., 0], want, 1e-8)
        close(sol[2][k * Y], 3 * want[2] + [0, 1], 1e-8)
        assert sol[0].ps[k] == 0.25
    given = ode.solve(ode.EnsembleProblem(RICH_PROB, u0={X: qs}, output_func=lambda sol, i: sol[X][-1]))
    close(given.u, qs * np.exp(-0.5), 1e-8)

    def loss(q):
        prob = ode.remake(RICH_PROB, p={k: q})
        func = lambda p, i, r: ode.remake(p, p={g: 1.0 * i})
        return jnp.sum(ode.solve(ode.EnsembleProblem(prob, prob_func=func), trajectories=3).u[:, -1])

    close(jax.grad(loss)(0.5), 3 * 2 * (1 - 0.5) * np.exp(-0.5), 1e-8)


def test_inconsistent_values_fail_within_transforms_too():
    prob = ode.ODEProblem(System([(D(X), -X), (Y, X)], t), {X: 1.0, Y: 1.0}, (0.0, 1.0), saveat=[1.0])
    sol = jax.jit(lambda y: ode.solve(prob, u0={Y: y}))(2.0)
    assert sol.retcode == ReturnCode.InitialisationFailure and np.isnan(sol[X][0]) and not sol.success
    sols = ode.solve(ode.EnsembleProblem(prob, u0={Y: np.array([1.0, 2.0])}), throw=False)
    assert list(sols.retcodes) == [ReturnCode.Success, ReturnCode.InitialisationFailure]


def test_steady_states_by_name():
    system = System([(D(X), k - c * X), (Y, X * k)], t)
    prob = ode.ODEProblem(system, {X: 2 * k}, (0.0, 1.0), {k: 0.5, c: 2.0})
    rest = ode.SteadyStateProblem(prob, p={k: 3.0})
    sol = ode.solve(rest, p={c: 4.0})
    close(sol[[X, Y]], [0.75, 2.25], 1e-9)
    assert sol.ps[k] == 3.0
    close(jax.grad(lambda q: ode.solve(rest, p={k: q})[Y])(3.0), 3.0, 1e-9)  # Y = k^2 / c
    close(ode.solve(ode.remake(rest, p={c: 4.0}), ode.DynamicSS())[Y], 2.25, 1e-6)


def test_jacobian_and_pattern():
    n = 50
    x = unknowns("x", shape=n)
    left, right = np.roll(x, 1), np.roll(x, -1)
    system = System(equations(D(x), k * (left - 2 * x + right) - x**3), t, defaults={x: np.linspace(0.5, 1.5, n)})
    prob = ode.ODEProblem(system, {}, (0.0, 0.1), {k: 1.0}, saveat=[0.1])
    assert prob.jac_sparsity.nnz == 3 * n
    ode.check_jacobian(prob)
    assert ode.remake(prob, p={k: 2.0}).jac_sparsity is prob.jac_sparsity
    own = ode.remake(prob, jac_sparsity=False)
    assert own.jac_sparsity is False and ode.remake(own, p={k: 2.0}).jac_sparsity is False
    ends = [ode.solve(q, ode.Rodas5P(), reltol=1e-8, abstol=1e-10)[x] for q in (prob, own)]
    close(ends[0], ends[1], 1e-7)
    small = ode.ODEProblem(RICH, {}, (0.0, 1.0), {k: 0.5, g: 1.0}, jac=True)
    assert ode.check_jacobian(small) < 1e-12
    assert ode.remake(small, p={k: 1.0}).jac is small.jac and ode.remake(small, jac=False).jac is None


# ---------------------------------------------------------------- messages


def says(kind, match, run):
    with pytest.raises(kind, match=match):
        run()


def test_messages_about_names():
    sol = ode.solve(PROB)
    says(KeyError, "decay has no kk; did you mean k", lambda: ode.remake(PROB, p={"kk": 1.0}))
    says(KeyError, "decay has no Q", lambda: ode.remake(PROB, u0={unknowns("Q"): 1.0}))
    says(KeyError, "decay has no Q", lambda: ode.solve(PROB, u0={"Q": 1.0}))
    says(KeyError, "decay has no Q", lambda: ode.remake(PROB, u0={X: 2 * parameters("Q")}))
    says(KeyError, "decay has no Q", lambda: sol["Q"])
    says(KeyError, "decay has no Q", lambda: sol[unknowns("Q") + X])
    says(KeyError, "decay has no Q", lambda: sol(0.5, idxs="Q"))
    says(KeyError, "decay has no Q", lambda: sol.ps["Q"])
    says(KeyError, r"take sol\[X\]", lambda: sol.ps[X])
    says(KeyError, "k is not a symbol of the system", lambda: ode.remake(PROB, p={sp.Symbol("k"): 1.0}))
    says(KeyError, r"X \+ 1 is not a symbol", lambda: ode.remake(PROB, u0={X + 1: 1.0}))
    says(ValueError, "k is given in u0: give it in p", lambda: ode.remake(PROB, u0={k: 1.0}))
    says(ValueError, "X is given in p: give it in u0", lambda: ode.remake(PROB, p={X: 1.0}))


def test_messages_about_values():
    says(InitialValueError, r"parameter k\b", lambda: ode.ODEProblem(DECAY, {}, (0.0, 1.0)))
    says(InitialValueError, r"initial value for X\b", lambda: ode.ODEProblem(RICH, {X: None}, (0.0, 1.0), {k: 1, g: 1}))
    says(InitialValueError, "parameters k, g", lambda: ode.ODEProblem(RICH, {}, (0.0, 1.0)))
    says(
        ValueError, r"value of k must be .* got ArrayImpl of shape \(2,\)", lambda: ode.remake(PROB, p={k: jnp.ones(2)})
    )
    says(ValueError, "value of k must be .* got str: 'abc'", lambda: ode.remake(PROB, p={k: "abc"}))
    says(ValueError, r"1 tunable parameters, got ArrayImpl of shape \(3,\)", lambda: ode.remake(PROB, p=jnp.ones(3)))
    says(ValueError, r"1 states X, got ArrayImpl of shape \(2,\)", lambda: ode.remake(PROB, u0=jnp.ones(2)))
    says(ValueError, "needs tspan", lambda: ode.ODEProblem(DECAY, {}, p={k: 1.0}))
    says(TypeError, "unknown options", lambda: ode.ODEProblem(DECAY, {}, (0.0, 1.0), {k: 1.0}, step=1))


def test_messages_about_equations():
    build = lambda *pairs: ode.ODEProblem(System(list(pairs), t), {X: 1.0}, (0.0, 1.0))
    says(StructureError, r"too few equations, \[D\(X\) = -Y\].*\[X, Y\]", lambda: build((D(X), -Y)))
    says(
        StructureError, r"too many equations, .*Y\*\*2 = t.*\[X\]", lambda: build((D(X), -Y), (Y, X), (Y**2 + X, t + 1))
    )
    says(StructureError, r"D\(X\) = -Y contradicts .*1 = 0", lambda: build((D(X), -Y), (Y, 1), (Y**2, X)))
    says(StructureError, "equation Y = 2 contradicts", lambda: build((D(X), -Y), (Y, 1), (Y, 2)))
    says(StructureError, "k = 2 has no unknown", lambda: build((D(X), -X * k), (k, 2)))
    redundant = ode.ODEProblem(System([(D(X), -Y), (Y, 1), (2 * Y, 2)], t), {X: 1.0}, (0.0, 1.0))
    assert redundant.system.names == ("X",)
