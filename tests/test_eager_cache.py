"""Eager calls are quick because a known field is not traced again; what f captures never goes stale for that."""

import functools
import math
import types
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode
from odesens import trace as trace_module
from odesens.fingerprint import Fingerprint, Unknown

from .test_opacity import compilations

# u' = -k u from u(0) = 1: u(1) = exp(-k), with du/dk = -exp(-k)
RATE = 1.0
ARRAY = jnp.asarray(1.0)
HOLDER = types.SimpleNamespace(rate=1.0)
BOX = [1.0]


def rate_of_global():
    return RATE


def u_end(f, p=None):
    """By a method that is quick to compile, and accurate to 1e-6 for the rates here."""
    return ode.solve(ode.ODEProblem(f, jnp.ones(()), (0.0, 1.0), p), ode.RK4(), dt0=1 / 256, saveat=[1.0]).u[0]


def near(value, want):
    np.testing.assert_allclose(value, want, rtol=1e-6)


@pytest.fixture
def traces(monkeypatch):
    """The number of times a field was traced so far, in a list."""
    count = [0]
    hoist = trace_module.hoist

    def counted(*args, **options):
        count[0] += 1
        return hoist(*args, **options)

    monkeypatch.setattr(trace_module, "hoist", counted)
    return count


def is_known(f) -> bool:
    try:
        Fingerprint().value(f)
    except Unknown:
        return False
    return True


# ---------------------------------------------------------------- quick


def test_a_thousand_calls_trace_once_and_compile_nothing(traces):
    prob = ode.ODEProblem(lambda t, u, p: -p * u, jnp.ones(2), (0.0, 1.0), 0.5)
    loss = lambda p: jnp.sum(ode.solve(prob, p=p, saveat=[1.0]).u)
    values = [jnp.asarray(0.1 + 0.001 * i) for i in range(1000)]
    loss(values[0])

    def run():
        for p in values:
            near(loss(p), 2 * math.exp(-float(p)))

    assert compilations(run) == 0
    assert traces == [1]


def test_gradients_and_new_lambdas_are_traced_once(traces):
    def once(p, scale):
        f = lambda t, u, p: -p * u * scale  # a new function, the same code on the same number
        prob = ode.ODEProblem(f, jnp.ones(()), (0.0, 1.0))
        return jax.grad(lambda p: ode.solve(prob, p=p, saveat=[1.0]).u[0])(p)

    near(once(0.5, 1.0), -math.exp(-0.5))
    assert compilations(lambda: [once(0.5 + 0.01 * i, 1.0) for i in range(20)]) == 0
    assert traces == [1]
    near(once(0.5, 2.0), -2 * math.exp(-1.0))
    assert traces == [2]


def test_every_step_is_saved_without_compiling(traces):
    prob = ode.ODEProblem(lambda t, u, p: -p * u, jnp.ones(2), (0.0, 1.0), 0.5)
    ode.solve(prob)
    for p in (0.5, 5.0, 50.0):  # as many rows as there were steps
        sols = []
        assert compilations(lambda: sols.append(ode.solve(prob, p=jnp.asarray(p)))) == 0
        near(sols[0].t[-1], 1.0)
        assert len(sols[0]) == int(sols[0].stats.naccept) + 1
    assert traces == [1]


# ---------------------------------------------------------------- what f captures


def test_rebound_globals(monkeypatch):
    direct = lambda t, u, p: -RATE * u
    through = lambda t, u, p: -rate_of_global() * u
    nested = lambda t, u, p: (lambda x: -RATE * x)(u)
    bound = functools.partial(lambda scale, t, u, p: -scale * rate_of_global() * u, 1.0)
    for f in (direct, through, nested, bound):
        for k in (1.0, 2.0, jnp.asarray(3.0), np.asarray(0.5), 1, True, 0.25):
            monkeypatch.setitem(globals(), "RATE", k)
            near(u_end(f), math.exp(-float(k)))


def test_gradients_of_globals_and_of_closures(monkeypatch):
    def of_global(k):
        monkeypatch.setitem(globals(), "RATE", k)
        return u_end(lambda t, u, p: -rate_of_global() * u)

    def of_closure(k):
        return u_end(lambda t, u, p: -k * u)

    def of_default(k):
        return u_end(lambda t, u, p, k=k: -k * u)

    def of_partial(k):
        return u_end(functools.partial(lambda k, t, u, p: -k * u, k))

    def of_tuple(k):
        ks = (k, 1.0)
        return u_end(lambda t, u, p: -ks[0] * ks[1] * u)

    for loss in (of_global, of_closure, of_default, of_partial, of_tuple):
        for k in (1.0, 2.0):  # first plain, then traced, then plain again
            near(loss(k), math.exp(-k))
            near(loss(jnp.asarray(k)), math.exp(-k))
            near(jax.grad(loss)(k), -math.exp(-k))
            near(jax.jit(jax.grad(loss))(k), -math.exp(-k))
            near(jax.jvp(loss, (k,), (1.0,))[1], -math.exp(-k))
            near(jax.hessian(loss)(k), math.exp(-k))
            near(jax.vmap(loss)(jnp.asarray([k, k + 1])), np.exp([-k, -k - 1]))
            near(loss(k), math.exp(-k))


def test_captured_arrays_are_not_confused():
    def make(k):
        return lambda t, u, p: -k * u

    arrays = [jnp.asarray(float(k)) for k in (1, 2, 3)]
    for k in (*arrays, *arrays[::-1]):
        near(u_end(make(k)), math.exp(-float(k)))
    for k in (1.0, 2.0, 1.0):  # new arrays, whose addresses may be those of old ones
        near(u_end(make(jnp.asarray(k))), math.exp(-k))
    near(u_end(lambda t, u, p: -ARRAY * u), math.exp(-1.0))


def test_mutated_values_are_seen():
    array = np.ones(())
    table = {"rate": 1.0}
    as_array, as_item = lambda t, u, p: -array * u, lambda t, u, p: -table["rate"] * u
    as_attribute, as_list = lambda t, u, p: -HOLDER.rate * u, lambda t, u, p: -BOX[0] * u
    method = types.MethodType(lambda self, t, u, p: -self.rate * u, HOLDER)

    def helper(u):
        return -helper.rate * u

    as_function = lambda t, u, p: helper(u)
    for k in (1.0, 2.0, 1.5):
        array[...] = table["rate"] = HOLDER.rate = BOX[0] = helper.rate = k
        for f in (as_array, as_item, as_attribute, as_list, method, as_function):
            near(u_end(f), math.exp(-k))
            assert not is_known(f)


def test_rebound_variables_and_defaults():
    k = 1.0

    def f(t, u, p):
        return -k * u

    def g(t, u, p, k=1.0, *, scale=1.0):
        return -k * scale * u

    near(u_end(f), math.exp(-1.0))
    k = 2.0
    near(u_end(f), math.exp(-2.0))
    near(u_end(g), math.exp(-1.0))
    g.__defaults__ = (2.0,)
    near(u_end(g), math.exp(-2.0))
    g.__kwdefaults__ = {"scale": 2.0}
    near(u_end(g), math.exp(-4.0))
    g.__code__ = (lambda t, u, p, k=1.0, *, scale=1.0: k * scale * u).__code__
    near(u_end(g), math.exp(4.0))


def test_signs_types_and_nan_are_told_apart():
    def make(k):
        return lambda t, u, p: jnp.where(jnp.signbit(jnp.asarray(k, float)), -1.0, 1.0) * u

    near(u_end(make(0.0)), math.exp(1.0))
    near(u_end(make(-0.0)), math.exp(-1.0))
    parity = lambda k: lambda t, u, p: (-1.0 if isinstance(k, bool) else 1.0) * u
    near(u_end(parity(1)), math.exp(1.0))
    near(u_end(parity(True)), math.exp(-1.0))
    near(u_end(parity(1.0)), math.exp(1.0))


def test_a_library_replaced_is_seen(monkeypatch):
    f = lambda t, u, p: -jnp.abs(u) * abs(1.0)
    near(u_end(f), math.exp(-1.0))
    monkeypatch.setattr(jnp, "abs", lambda x: 2 * x)
    near(u_end(f), math.exp(-2.0))
    monkeypatch.setitem(globals(), "abs", lambda x: 3.0)
    near(u_end(f), math.exp(-6.0))


def test_state_of_libraries_is_not_trusted():
    assert not is_known(lambda t, u, p: u * jax.config.jax_enable_x64)
    assert not is_known(lambda t, u, p: u * np.random.rand())
    assert not is_known(lambda t, u, p: u * np.load("x.npy"))
    assert not is_known(lambda t, u, p: u * jax.device_count())
    assert not is_known(lambda t, u, p: jax.lax.psum(u, "i"))
    assert not is_known(lambda t, u, p: print(u))
    assert not is_known(lambda t, u, p: u * globals()["RATE"])
    assert not is_known(lambda t, u, p: u * len(u_end.__name__))


def test_assignments_outside_are_not_trusted():
    calls = 0

    def counts(t, u, p):
        nonlocal calls
        calls += 1
        return -calls * u

    def sets(t, u, p):
        global RATE
        RATE = 1.0
        return -u

    def imports(t, u, p):
        import math

        return -math.e * u

    for f in (counts, sets, imports):
        assert not is_known(f)
    near(u_end(counts), math.exp(-calls))
    near(u_end(counts), math.exp(-calls))
    assert calls == 2


def test_collectives_see_the_axis_at_hand():
    f = lambda t, u, p: -u * jax.lax.psum(1, "i")
    for n in (2, 3):
        near(jax.vmap(lambda x: u_end(f) * x, axis_name="i")(jnp.ones(n)), np.exp([-n] * n))


# ---------------------------------------------------------------- what else a trace depends on


class Rates(NamedTuple):
    k: float


class RatesWithMethod(NamedTuple):
    k: float

    def rate(self):
        return self.k * RATE


def test_methods_of_parameters(monkeypatch):
    f = lambda t, u, p: -p.rate() * u
    for k in (1.0, 2.0):
        monkeypatch.setitem(globals(), "RATE", k)
        near(u_end(f, RatesWithMethod(1.5)), math.exp(-1.5 * k))


def test_static_parameters_and_structures(traces):
    f = lambda t, u, p: -u * (p["k"] if isinstance(p, dict) else p[0]) * (2.0 if "double" in p else 1.0)
    for _ in range(2):
        near(u_end(f, {"k": 1.0}), math.exp(-1.0))
        near(u_end(f, {"k": jnp.asarray(1.0), "double": 0}), math.exp(-2.0))
        near(u_end(f, (1.5, "single")), math.exp(-1.5))
        near(u_end(f, (1.5, "double")), math.exp(-3.0))
    assert traces == [4]
    g = lambda t, u, p: -p.k * u
    near(u_end(g, Rates(1.0)), math.exp(-1.0))
    near(u_end(g, Rates(2.0)), math.exp(-2.0))
    assert traces == [5]


def test_functions_as_parameters(monkeypatch):
    f = lambda t, u, p: p[0](u, p[1])
    for k in (1.0, 2.0):
        monkeypatch.setitem(globals(), "RATE", k)
        near(u_end(f, (lambda u, q: -RATE * q * u, 1.0)), math.exp(-k))


def test_random_keys_and_integers_pass_through(traces):
    f = lambda t, u, p: -u * p["n"] * (1 + 0 * jax.random.normal(p["key"]))
    for seed, n in ((0, 1), (1, 2)):
        near(u_end(f, {"key": jax.random.key(seed), "n": jnp.asarray(n)}), math.exp(-n))
    assert traces == [1]


def test_a_network_is_traced_once(traces):
    f = lambda t, u, net: net(u)
    make = lambda seed, act: eqx.nn.MLP(2, 2, 4, 1, activation=act, key=jax.random.key(seed))
    loss = lambda net: jnp.sum(ode.solve(ode.ODEProblem(f, jnp.ones(2), (0.0, 1.0), net), saveat=[1.0]).u)
    values = [float(loss(make(seed, jax.nn.tanh))) for seed in (0, 1, 0)]
    assert values[0] == values[2] != values[1]
    assert traces == [1]
    assert float(loss(make(0, jax.nn.sigmoid))) != values[0]
    assert traces == [2]


def test_dtypes_and_precision(traces):
    f = lambda t, u, p: -p * u
    run = lambda dtype: ode.solve(ode.ODEProblem(f, jnp.ones(2, dtype), (0.0, 1.0), jnp.ones((), dtype)), saveat=[1.0])
    for _ in range(2):
        assert run(jnp.float64).u.dtype == jnp.float64
        assert run(jnp.float32).u.dtype == jnp.float32
    assert traces == [2]
    with jax.enable_x64(False):
        assert run(jnp.float32).u.dtype == jnp.float32
    assert traces == [3]


def test_dtype_promotion_is_part_of_the_key():
    f = lambda t, u, p: -u * jnp.asarray(1, jnp.int32)
    near(u_end(f), math.exp(-1.0))
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="promotion"):
        u_end(f)


def test_donated_constants_are_made_again():
    prob = ode.ODEProblem(lambda t, u, p: -u, jnp.ones(2), (0.0, 1.0))
    first = ode.solve(prob, saveat=[0.5, 1.0])
    for x in (first.t, *first._operands):
        if isinstance(x, jax.Array) and x is not prob.u0:
            x.delete()
    near(ode.solve(prob, saveat=[0.5, 1.0]).u[-1], [math.exp(-1.0)] * 2)


def test_memory_is_bounded():
    before = trace_module._TRACED_MAX
    for i in range(before + 20):
        trace_module.trace_field(functools.partial(lambda i, t, u, p: -i * u, i), jnp.ones(()), None)
    assert len(trace_module._TRACED) <= before
    large = jnp.zeros(2**18)
    assert not is_known(lambda t, u, p: u * large[0])


def test_custom_rules_that_differ_deep_inside_are_different_fields():
    """Rules within rules, three deep; and a rule that asks which tangents are symbolic zeros."""

    def tower(slope):
        inner = jax.custom_jvp(lambda x: jnp.cos(x))
        inner.defjvp(lambda x, d: (jnp.cos(x[0]), slope * jnp.sin(x[0]) * d[0]))
        middle = jax.custom_jvp(lambda x: jnp.sin(x))
        middle.defjvp(lambda x, d: (jnp.sin(x[0]), inner(x[0]) * d[0]))
        outer = jax.custom_jvp(lambda x: x**2)
        outer.defjvp(lambda x, d: (x[0] ** 2, middle(x[0]) * d[0]))
        return outer

    def third(rule):
        prob = ode.ODEProblem(lambda t, u, p: rule(p) + 0 * u, 0.0, (0.0, 1.0))
        end = lambda p: ode.solve(prob, ode.RK4(), p=p, dt0=0.5, saveat=[1.0]).u[0]
        return float(jax.grad(jax.grad(jax.grad(end)))(1.0))

    for slope in (-1.0, 5.0):
        np.testing.assert_allclose(third(tower(slope)), slope * np.sin(1.0), rtol=1e-6)

    def asks(factor):
        from jax.custom_derivatives import SymbolicZero

        product = jax.custom_jvp(lambda x, y: x * y)

        def rule(primals, tangents):
            (x, y), (dx, dy) = primals, tangents
            if type(dy) is SymbolicZero:
                return x * y, factor * y * dx
            return x * y, y * dx + x * dy

        product.defjvp(rule, symbolic_zeros=True)
        return product

    def slope_of(rule):
        prob = ode.ODEProblem(lambda t, u, p: rule(p, jnp.ones(())) + 0 * u, 0.0, (0.0, 1.0))
        return float(jax.grad(lambda p: ode.solve(prob, ode.RK4(), p=p, dt0=0.5, saveat=[1.0]).u[0])(1.0))

    for factor in (3.0, 21.0):
        np.testing.assert_allclose(slope_of(asks(factor)), factor, rtol=1e-9)
