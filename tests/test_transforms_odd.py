"""Unusual nestings of transforms and every way a field can capture a value give the closed form's derivatives.

The problem is u' = -a u, u(0) = 1, so that u(1) = exp(-a) and every derivative in a is known. Also here: rules inside
the field (`custom_jvp`, `custom_vjp`, control flow, callbacks, a solve), what a program contains and how often it is
compiled and f is called.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

FIXED = {"alg": ode.RK4(), "dt0": 1 / 64}  # accurate to 1e-8 on the problems here, and quick to compile
AT = jnp.array([1.0])


def end(f, u0=1.0, p=None, **options):
    return ode.solve(ode.ODEProblem(f, u0, (0.0, 1.0), p), **{"saveat": AT, **FIXED, **options}).u[0]


def near(got, want, rtol=1e-6):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-12)


def by_p(a):
    return end(lambda t, u, p: -p * u, 1.0, a)


def by_closure(a):
    return end(lambda t, u, p: -a * u)


A, B = 2.0, np.array([0.5, 2.0])


# ---------------------------------------------------------------- nestings


NESTINGS = {
    "grad": (lambda: jax.grad(by_closure)(A), -np.exp(-A)),
    "jit grad": (lambda: jax.jit(jax.grad(by_closure))(A), -np.exp(-A)),
    "jacfwd": (lambda: jax.jacfwd(by_closure)(A), -np.exp(-A)),
    "hessian": (lambda: jax.jit(jax.hessian(by_closure))(A), np.exp(-A)),
    "third": (lambda: jax.jit(jax.grad(jax.grad(jax.grad(by_p))))(A), -np.exp(-A)),
    "vmap grad": (lambda: jax.vmap(jax.grad(by_closure))(B), -np.exp(-B)),
    "grad vmap": (lambda: jax.grad(lambda a: jnp.sum(jax.vmap(by_closure)(a)))(B), -np.exp(-B)),
    "vmap vmap grad": (lambda: jax.jit(jax.vmap(jax.vmap(jax.grad(by_p))))(B[:, None] * B), -np.exp(-B[:, None] * B)),
    "jvp grad vmap": (
        lambda: jax.jvp(jax.grad(lambda a: jnp.sum(jax.vmap(by_p)(a))), (B,), (np.ones(2),))[1],
        np.exp(-B),
    ),
    "checkpoint": (lambda: jax.jit(jax.grad(jax.checkpoint(by_p)))(A), -np.exp(-A)),
    "cond": (lambda: jax.grad(lambda a: jax.lax.cond(a > 1, by_p, lambda a: a, a))(A), -np.exp(-A)),
    "vmap grad cond": (
        lambda: jax.vmap(jax.grad(lambda a: jax.lax.cond(a > 1, by_p, lambda a: a, a)))(B),
        [1.0, -np.exp(-2)],
    ),
    "grad scan": (
        lambda: jax.grad(lambda a: jax.lax.scan(lambda c, x: (end(lambda t, u, p: -x * u, c), c), 1.0, a)[0])(B),
        [-np.exp(-2.5)] * 2,
    ),
    "grad map": (lambda: jax.grad(lambda a: jnp.sum(jax.lax.map(by_p, a)))(B), -np.exp(-B)),
    "grad fori_loop": (
        lambda: jax.grad(lambda a: jax.lax.fori_loop(0, 3, lambda i, x: x * by_p(a), 1.0))(A),
        -3 * np.exp(-3 * A),
    ),
}


@pytest.mark.parametrize(("got", "want"), NESTINGS.values(), ids=NESTINGS.keys())
def test_nesting(got, want):
    near(got(), want)


def test_only_the_cotangent_or_the_tangent_is_mapped():
    def f(p):
        return end(lambda t, u, p: -p * u, jnp.ones(2), p)

    want = np.diag(-np.exp(-B))
    _, pull = jax.vjp(f, jnp.asarray(B))
    near(jax.vmap(pull)(jnp.eye(2))[0], want)
    _, push = jax.linearize(f, jnp.asarray(B))
    near(jax.vmap(push)(jnp.eye(2)), want)
    near(jax.linear_transpose(push, jnp.asarray(B))(jnp.ones(2))[0], -np.exp(-B))


def test_lanes_over_tolerances():
    def f(tol, p=A):
        return end(lambda t, u, p: -p * u, 1.0, p, alg=ode.BS3(), dt0=None, reltol=tol, abstol=tol)

    tols = jnp.array([1e-2, 1e-8])
    values, grads = jax.vmap(jax.value_and_grad(lambda p, tol: f(tol, p)), (None, 0))(A, tols)
    near(values[1], np.exp(-A))
    near(grads[1], -np.exp(-A))
    assert 1e-7 < abs(values[0] - values[1]) < 1e-2
    assert values[0] == f(1e-2)


def test_lanes_over_start_and_saved_times():
    def f(t0, ts):
        prob = ode.ODEProblem(lambda t, u, p: -2 * t * u, 1.0, (t0, 2.0))
        return ode.solve(prob, ode.RK4(), dt0=1 / 64, saveat=ts).u

    starts, ts = np.array([0.0, 0.5]), np.array([[1.0, 2.0], [0.7, 1.9]])
    exact = lambda t0, ts: np.exp(t0**2 - ts**2)
    near(jax.vmap(f)(starts, ts), exact(starts[:, None], ts))
    near(jax.vmap(f, (0, None))(starts, ts[0]), exact(starts[:, None], ts[0]))
    near(jax.vmap(f, (None, 1))(0.0, ts.T), exact(0.0, ts))
    got = jax.vmap(jax.grad(lambda t0, ts: f(t0, ts).sum()), (0, None))(starts, ts[0])
    near(got, (exact(starts[:, None], ts[0]) * 2 * starts[:, None]).sum(1))
    got = jax.vmap(jax.jacfwd(f, 1), (None, 0))(0.0, ts)
    near(got, [np.diag(-2 * t * exact(0.0, t)) for t in ts])


def test_derivatives_in_both_ends_of_the_span():
    def f(t0, t1):
        prob = ode.ODEProblem(lambda t, u, p: -2 * jnp.cos(t) * u, 1.0, (t0, t1))
        return ode.solve(prob, ode.RK4(), dt0=1 / 128)[-1]

    for t0, t1 in ((0.2, 0.9), (0.9, 0.2)):
        value = np.exp(2 * np.sin(t0) - 2 * np.sin(t1))
        got = jax.grad(f, (0, 1))(t0, t1)
        near(got, [2 * np.cos(t0) * value, -2 * np.cos(t1) * value])


# ---------------------------------------------------------------- captured values


class Decay:
    def __init__(self, a):
        self.a = a

    def field(self, t, u, p):
        return -self.a * u

    __call__ = field


def test_fields_of_every_kind():
    def with_rate(a, t, u, p):
        return -a * u

    fields = [
        Decay(A),
        Decay(A).field,
        jax.jit(Decay(A)),
        functools.partial(with_rate, A),
        functools.partial(lambda t, u, p, a: -a * u, a=A),
        lambda *args: -A * args[1],
        lambda t, u, p=None, extra=3: -A * u,
    ]
    for f in fields:
        near(end(f), np.exp(-A))
    near(jax.grad(lambda a: end(Decay(a).field))(A), -np.exp(-A))


def test_captured_integers_and_keys():
    order, scale = jnp.array([1, 0]), np.array([2.0, 1.0])

    def f(a):
        return jnp.sum(end(lambda t, u, p: -a[order] * scale * u, jnp.ones(2)))

    near(jax.grad(f)(jnp.asarray(B)), jax.grad(lambda a: jnp.sum(jnp.exp(-a[order] * scale)))(jnp.asarray(B)))
    near(jax.vmap(lambda i: end(lambda t, u, p: -jnp.asarray(B)[i] * u))(order), np.exp(-B[::-1]))

    keys = jax.random.split(jax.random.key(0), 3)
    x = np.asarray(jax.vmap(jax.random.uniform)(keys))

    def captured(key, b):
        return end(lambda t, u, p: -b * jax.random.uniform(key) * u)

    def in_p(key, b):
        return end(lambda t, u, p: -p[1] * jax.random.uniform(p[0]) * u, 1.0, (key, b))

    for g in (captured, in_p):
        near(jax.jit(jax.vmap(jax.grad(g, 1), (0, None)))(keys, 1.0), -x * np.exp(-x))


def test_captured_inside_control_flow():
    def scanned(a):
        return end(lambda t, u, p: jax.lax.scan(lambda c, x: (c - x * u, None), 0 * u, a)[0])

    def branched(a):
        return end(lambda t, u, p: jax.lax.cond(a[1] < 1, lambda u: -a[0] * u, lambda u: -a[1] * u, u))

    def looped(a):
        return end(lambda t, u, p: jax.lax.fori_loop(0, 2, lambda i, x: x - a[i] * u, 0 * u))

    near(jax.grad(scanned)(B), [-np.exp(-2.5)] * 2)
    near(jax.jacfwd(looped)(B), [-np.exp(-2.5)] * 2)
    near(jax.vmap(jax.grad(branched))(jnp.array([B, B[::-1]])), [[0, -np.exp(-2)], [-np.exp(-2), 0]])


def test_a_solve_inside_the_field():
    def f(a):
        return end(lambda t, u, p: -by_p(p) * u, 1.0, a)

    near(jax.jit(jax.grad(f))(1.0), np.exp(-np.exp(-1.0)) * np.exp(-1.0))


# ---------------------------------------------------------------- rules inside the field


def double_jvp(slope):
    @jax.custom_jvp
    def h(x):
        return 2 * x

    h.defjvp(lambda x, dx: (2 * x[0], slope * dx[0]))
    return h


def double_vjp(slope):
    @jax.custom_vjp
    def h(x):
        return 2 * x

    h.defvjp(lambda x: (2 * x, None), lambda _, g: (slope * g,))
    return h


@pytest.mark.parametrize("make", [double_jvp, double_vjp])
def test_custom_rules_are_used_and_not_mixed_up(make):
    """Fields of equal values and different rules are different programs: u(1) = exp(-2 a), d/du0 as the rule says."""
    for slope in (2.0, 1.0):
        h = make(slope)
        got = jax.grad(lambda u0: end(lambda t, u, p: -h(u), u0))(1.0)
        near(got, np.exp(-slope))


@pytest.mark.parametrize("sensealg", [ode.InterpolatingAdjoint(alg=ode.BS3(), reltol=1e-6, abstol=1e-8)])
def test_custom_vjp_needs_no_forward_mode(sensealg):
    h = double_vjp(2.0)
    got = jax.grad(lambda a: end(lambda t, u, p: -p * h(u), 1.0, a, alg=ode.BS3(), dt0=1e-2, sensealg=sensealg))(1.0)
    near(got, -2 * np.exp(-2), rtol=1e-3)


def test_custom_vjp_that_captures_a_traced_value():
    def f(c, a):
        @jax.custom_vjp
        def h(x):
            return x * 1.0

        h.defvjp(lambda x: (x * 1.0, None), lambda _, g: (c * g,))
        return end(lambda t, u, p: -p * h(u), 1.0, a)

    with pytest.raises(TypeError, match="pass that value to the function as an argument"):
        jax.jit(lambda c, a: jax.grad(f, 1)(c, a))(1.0, 2.0)
    near(jax.grad(f, 1)(1.0, 2.0), -np.exp(-2))  # captured as a number, it is part of the rule


def test_rules_outlive_the_transform_under_which_they_were_traced():
    def f(a):
        return end(lambda t, u, p: -jax.nn.relu(p * u), 1.0, a)

    near(jax.jit(jax.grad(f))(A), -np.exp(-A))
    near(jax.grad(f)(A), -np.exp(-A))
    near(jax.vmap(jax.grad(f))(B), -np.exp(-B))


def test_callbacks_in_the_field():
    seen = []

    def f(t, u, p):
        jax.debug.callback(lambda u: seen.append(float(np.sum(u))), u)
        return -p * u

    def g(a):
        return end(f, 1.0, a)

    for call in (lambda: g(A), lambda: jax.jit(jax.grad(g))(A), lambda: jax.vmap(g)(B)):
        seen.clear()
        jax.block_until_ready(call())
        jax.effects_barrier()
        assert len(seen) > 64


# ---------------------------------------------------------------- programs


def test_no_solver_in_the_program():
    def program(alg, n, sensealg=None):
        def loss(p):
            prob = ode.ODEProblem(lambda t, u, p: -p * u, jnp.ones(n), (0.0, 1.0), p)
            return jnp.sum(ode.solve(prob, alg, saveat=AT, sensealg=sensealg).u)

        return [eqn.primitive.name for eqn in jax.make_jaxpr(jax.grad(loss))(A).jaxpr.eqns]

    programs = [program(alg, n) for alg in (ode.Tsit5(), ode.Vern9()) for n in (2, 200)]
    programs.append(program(ode.Tsit5(), 2, ode.GaussAdjoint()))
    assert len({len(names) for names in programs}) == 1
    assert not {"while", "scan", "cond"} & set(programs[0])


def test_f_is_called_once():
    calls = 0

    def f(t, u, p):
        nonlocal calls
        calls += 1
        return -p * u

    def g(a):
        return end(f, 1.0, a)

    for call in (g, jax.jit(g), jax.jit(jax.grad(g)), jax.jit(jax.hessian(g))):
        calls = 0
        call(A)
        assert calls <= 2


class Compilations:
    """Counts the programs that XLA is given."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self)

    def __call__(self, name, *args, **kwargs):
        self.count += "backend_compile" in name

    def of(self, call):
        before = self.count
        call()
        return self.count - before


COMPILATIONS = Compilations()


def scaled(a):
    return lambda t, u, p: -p * a * u


def drawn(key):
    return lambda t, u, p: -p * jax.random.uniform(key) * u


def through(h):
    return lambda t, u, p: -p * h(u)


FIELDS = {
    "plain": lambda: lambda t, u, p: -p * u,
    "relu": lambda: lambda t, u, p: -jax.nn.relu(p * u),
    "softplus": lambda: lambda t, u, p: -jax.nn.softplus(p * u),
    "gelu": lambda: lambda t, u, p: -jax.nn.gelu(p * u),
    "custom_jvp": lambda: through(double_jvp(2.0)),
    "custom_vjp": lambda: through(double_vjp(2.0)),
    "scan": lambda: lambda t, u, p: -jax.lax.scan(lambda c, x: (c * x, None), u, jnp.ones(2) * p)[0],
    "cond": lambda: lambda t, u, p: jax.lax.cond(t < 0.5, lambda u: -p * u, lambda u: -u, u),
    "jit": lambda: jax.jit(lambda t, u, p: -p * u),
    "checkpoint": lambda: lambda t, u, p: jax.checkpoint(lambda u: -p * u)(u),
    "captured": lambda: scaled(jnp.arange(1.0, 2.0)),
    "key": lambda: drawn(jax.random.key(0)),
}


@pytest.mark.parametrize("make", FIELDS.values(), ids=FIELDS.keys())
def test_a_second_call_compiles_nothing(make):
    """With other numbers and a new function of the same program."""

    def call(a):
        return jax.grad(lambda a: jnp.sum(end(make(), jnp.ones(1) * a, a)))(a)

    call(2.0)
    assert COMPILATIONS.of(lambda: call(2.5)) == 0


def test_every_step_saved_compiles_nothing_again():
    """The number of accepted steps is not a shape of the compiled programs."""

    def call(a):
        return ode.solve(ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), a), ode.BS3()).u

    call(1.0), call(2.0)
    assert COMPILATIONS.of(lambda: call(9.0)) == 0


# ---------------------------------------------------------------- configurations


CHECKS = [
    ("jax_numpy_rank_promotion", "raise"),
    ("jax_numpy_dtype_promotion", "strict"),
    ("jax_debug_nans", True),
    ("jax_enable_checks", True),
    ("jax_check_tracer_leaks", True),
]


@pytest.mark.parametrize(("option", "value"), CHECKS, ids=[c[0] for c in CHECKS])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_strict_settings(option, value, dtype):
    tols = {"reltol": 1e-3, "abstol": 1e-3, "max_steps": 64}

    def f(a):
        prob = ode.ODEProblem(lambda t, u, p: -p * u, jnp.ones(2, dtype), (0.0, 1.0), a)
        return jnp.sum(ode.solve(prob, ode.BS3(), saveat=jnp.array([0.5, 1.0], dtype), **tols).u[-1])

    a = jnp.asarray(A, dtype)
    old = getattr(jax.config, option)
    jax.config.update(option, value)
    try:
        got = jax.jit(jax.grad(f))(a)
    finally:
        jax.config.update(option, old)
    near(got, -2 * np.exp(-2), rtol=1e-2)
