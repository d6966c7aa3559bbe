"""Bad input raises before anything is traced and says what was given and what was expected; odd but good input works.

The table `BAD` holds (name, call, exception, words that the message must contain). The good inputs are checked against
the closed form u(t) = u0 exp(-p t).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

FIXED = {"alg": ode.RK4(), "dt0": 1 / 64}  # accurate to 1e-8 on the problems here, and quick to compile


def decay(t, u, p):
    return jax.tree.map(lambda x: -x, u)


def rate(t, u, p):
    return -p * u


def problem(u0=1.0, tspan=(0.0, 1.0), p=None, f=decay, **options):
    return ode.ODEProblem(f, u0, tspan, p, **options)


def of_field(f, u0=None):
    return lambda: ode.solve(problem(jnp.ones(2) if u0 is None else u0, f=f))


def given(**options):
    return lambda: ode.solve(problem(), **options)


def with_tspan(*tspan):
    return lambda: ode.solve(problem(tspan=tspan))


BAD = [
    # the field
    ("swapped", of_field(lambda u, t, p: -u), TypeError, ["f(t, u, p)", "f(u, t, p)"]),
    ("time last", of_field(lambda u, p, t: -u), TypeError, ["f(t, u, p)", "f(u, p, t)"]),
    ("in place", of_field(lambda du, u, p, t: None), TypeError, ["three arguments", "return du/dt"]),
    ("two arguments", of_field(lambda t, u: -u), TypeError, ["three arguments", "f(t, u)"]),
    ("no arguments", of_field(lambda: 1.0), TypeError, ["three arguments"]),
    ("returns None", of_field(lambda t, u, p: None), TypeError, ["must return du/dt", "(2,)"]),
    ("returns a list", of_field(lambda t, u, p: [u[0], u[1]]), TypeError, ["must return du/dt", "jnp.stack"]),
    ("returns a part", of_field(lambda t, u, p: u[:1]), ValueError, ["(2,)", "(1,)"]),
    ("returns a scalar", of_field(lambda t, u, p: u[0]), ValueError, ["(2,)", "()"]),
    ("returns complex", of_field(lambda t, u, p: 1j * u), TypeError, ["complex128", "float64", "complex u0"]),
    ("returns wider", of_field(lambda t, u, p: u * jnp.float64(2), jnp.float32(1)), TypeError, ["float64", "float32"]),
    ("other key", of_field(lambda t, u, p: {"b": u["a"]}, {"a": 1.0}), TypeError, ["'a'", "'b'"]),
    ("returns text", of_field(lambda t, u, p: "a", 1.0), TypeError, ["must return du/dt"]),
    ("no function", lambda: ode.ODEProblem(3, 1.0, (0.0, 1.0)), TypeError, ["f(t, u, p)", "int"]),
    ("arguments swapped", lambda: ode.ODEProblem(1.0, decay, (0.0, 1.0)), TypeError, ["f(t, u, p)", "float"]),
    # the problem
    ("no problem", lambda: ode.solve(decay), TypeError, ["ODEProblem", "function"]),
    ("method first", lambda: ode.solve(ode.Tsit5(), problem()), TypeError, ["ODEProblem", "Tsit5"]),
    ("unknown option", given(rtol=1e-3), TypeError, ["rtol", "reltol"]),
    ("unknown problem option", lambda: problem(rtol=1e-3), TypeError, ["rtol", "reltol"]),
    ("remake", lambda: ode.remake(problem(), q=3), TypeError, ["remake", "'q'"]),
    ("u0 is None", lambda: ode.solve(problem(None)), TypeError, ["u0", "None"]),
    ("u0 is text", lambda: ode.solve(problem("abc")), TypeError, ["u0", "'abc'"]),
    ("u0 is a dtype's name", lambda: ode.solve(problem("float32")), TypeError, ["u0", "'float32'"]),
    ("u0 is a type", lambda: ode.solve(problem(float)), TypeError, ["u0", "float"]),
    ("u0 is boolean", lambda: ode.solve(problem(True)), TypeError, ["u0", "bool"]),
    ("u0 is a key", lambda: ode.solve(problem(jax.random.key(0))), TypeError, ["u0", "key"]),
    # the span
    ("tspan is a number", lambda: problem(tspan=1.0), ValueError, ["pair (t0, t1)", "1.0"]),
    ("tspan is a triple", lambda: problem(tspan=(0.0, 1.0, 2.0)), ValueError, ["pair (t0, t1)"]),
    ("tspan is None", lambda: problem(tspan=None), ValueError, ["pair (t0, t1)", "None"]),
    ("tspan of text", with_tspan("a", "b"), TypeError, ["t0", "'a'"]),
    ("tspan with NaN", with_tspan(0.0, np.nan), ValueError, ["t1", "finite"]),
    ("tspan infinite", with_tspan(0.0, np.inf), ValueError, ["t1", "finite"]),
    ("tspan complex", with_tspan(0.0, 1j), TypeError, ["t1", "real"]),
    ("tspan of arrays", with_tspan(jnp.zeros(2), 1.0), ValueError, ["t0", "(2,)"]),
    # methods
    ("method's class", given(alg=ode.Tsit5), TypeError, ["Tsit5()", "instance"]),
    ("method's name", given(alg="Tsit5"), TypeError, ["alg", "'Tsit5'"]),
    ("sensitivity as method", given(alg=ode.DiscreteAdjoint()), TypeError, ["alg", "DiscreteAdjoint"]),
    ("sensitivity's class", given(sensealg=ode.GaussAdjoint), TypeError, ["GaussAdjoint()", "instance"]),
    ("sensitivity's name", given(sensealg="adjoint"), TypeError, ["sensealg", "'adjoint'"]),
    ("backward method's class", given(sensealg=ode.GaussAdjoint(alg=ode.Tsit5)), TypeError, ["alg", "Tsit5()"]),
    ("backward fixed steps", given(sensealg=ode.GaussAdjoint(alg=ode.RK4())), ValueError, ["RK4", "error estimate"]),
    ("backward tolerance", lambda: ode.GaussAdjoint(reltol=-1.0), ValueError, ["reltol", "-1.0"]),
    ("backward tolerance text", lambda: ode.GaussAdjoint(reltol="a"), (TypeError, ValueError), ["reltol", "'a'"]),
    ("backward max_steps", lambda: ode.GaussAdjoint(max_steps=1.5), (TypeError, ValueError), ["max_steps", "1.5"]),
    ("controller", given(controller="PI"), TypeError, ["controller", "'PI'"]),
    ("controller's function", given(controller=ode.PIController), TypeError, ["controller", "PIController()"]),
    ("controller's safety", lambda: ode.PIController(safety=2.0), ValueError, ["safety", "2.0"]),
    # tolerances
    ("reltol negative", given(reltol=-1e-6), ValueError, ["reltol", "-1e-06"]),
    ("reltol NaN", given(reltol=np.nan), ValueError, ["reltol", "nan"]),
    ("reltol numeric text", given(reltol="1e-3"), (TypeError, ValueError), ["reltol", "'1e-3'"]),
    ("reltol text", given(reltol="tight"), (TypeError, ValueError), ["reltol", "'tight'"]),
    ("reltol boolean", given(reltol=True), (TypeError, ValueError), ["reltol", "True"]),
    ("reltol complex", given(reltol=1e-3j), (TypeError, ValueError), ["reltol"]),
    ("abstol zero", given(abstol=0.0), ValueError, ["abstol", "0.0"]),
    (
        "abstol shape",
        lambda: ode.solve(problem(jnp.ones(3)), abstol=jnp.ones(2)),
        ValueError,
        ["abstol", "broadcast"],
    ),
    ("abstol tree", lambda: ode.solve(problem(jnp.ones(3)), abstol={"a": 1e-3}), ValueError, ["abstol", "structure"]),
    (
        "abstol partial tree",
        lambda: ode.solve(problem({"a": 1.0, "b": 1.0}), abstol={"a": 1e-3}),
        ValueError,
        ["abstol", "structure"],
    ),
    # saved times
    ("saveat text", given(saveat="all"), TypeError, ["saveat", "'all'"]),
    ("saveat numeric text", given(saveat=["0.1"]), TypeError, ["saveat"]),
    ("saveat mapping", given(saveat={"a": 0.1}), TypeError, ["saveat"]),
    ("saveat boolean", given(saveat=True), TypeError, ["saveat", "True"]),
    ("saveat negative", given(saveat=-0.1), ValueError, ["saveat", "-0.1"]),
    ("saveat zero", given(saveat=0.0), ValueError, ["saveat", "positive"]),
    ("saveat NaN", given(saveat=[0.1, np.nan]), ValueError, ["saveat", "finite"]),
    ("saveat outside", given(saveat=[0.1, 2.0]), ValueError, ["saveat", "(0, 1)", "2"]),
    ("saveat turning back", given(saveat=[0.5, 0.1]), ValueError, ["saveat", "0.5 before 0.1", "sort"]),
    ("saveat of two axes", given(saveat=np.zeros((2, 2))), ValueError, ["saveat", "(2, 2)"]),
    ("saveat complex", given(saveat=[1j]), TypeError, ["saveat", "complex128"]),
    (
        "saveat as a traced step",
        lambda: jax.jit(lambda h: ode.solve(problem(), saveat=h).u)(0.1),
        ValueError,
        ["saveat", "linspace"],
    ),
    # steps
    ("fixed steps of what size", given(alg=ode.RK4()), ValueError, ["RK4", "dt0"]),
    ("adaptive=False", given(adaptive=False), ValueError, ["dt0"]),
    ("adaptive without estimate", given(alg=ode.RK4(), adaptive=True), ValueError, ["RK4", "Tsit5()"]),
    ("adaptive as text", given(adaptive="no"), (TypeError, ValueError), ["adaptive", "'no'"]),
    ("dt0 zero", given(dt0=0.0), ValueError, ["dt0", "0.0"]),
    ("dt0 array", given(dt0=[0.1, 0.2]), TypeError, ["dt0", "[0.1, 0.2]"]),
    ("dt0 text", given(dt0="a"), (TypeError, ValueError), ["dt0", "'a'"]),
    ("dtmin negative", given(dtmin=-1.0), ValueError, ["dtmin", "-1.0"]),
    ("dtmax zero", given(dtmax=0.0), ValueError, ["dtmax", "0.0"]),
    ("dtmin above dtmax", given(dtmin=1.0, dtmax=0.1), ValueError, ["dtmin", "dtmax"]),
    ("max_steps zero", given(max_steps=0), ValueError, ["max_steps", "0"]),
    ("max_steps float", given(max_steps=1e4), ValueError, ["max_steps", "integer"]),
]


@pytest.mark.parametrize(("call", "error", "words"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_bad_input(call, error, words):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert [w for w in words if w not in message] == [], message


# ---------------------------------------------------------------- the solution's own arguments


@pytest.fixture(scope="module")
def solution():
    return ode.solve(problem(p=2.0, f=rate), saveat=0.25, dense=True, **FIXED)


def test_bad_arguments_of_a_solution(solution):
    with pytest.raises(TypeError, match="indexed by number"):
        solution["a"]
    for outside in (1.5, -0.1, np.nan, [0.5, 2.0]):
        with pytest.raises(ValueError, match="within tspan"):
            solution(np.asarray(outside))
    with pytest.raises(ValueError, match="deriv"):
        solution(0.1, deriv=-1)
    with pytest.raises(TypeError, match="real times"):
        solution(1j)


def test_index_beyond_the_end(solution):
    """As for every Python sequence; an array's clamping would hand out the last state instead."""
    assert len(solution) == len(list(solution)) == 5
    with pytest.raises(IndexError):
        solution[100]


@pytest.mark.parametrize("t", [0.3, 1, np.array([0.7, 0.1, 0.1]), np.array([[0.2, 0.9], [0.0, 1.0]]), np.array([0, 1])])
def test_solution_at_any_shape_of_times(solution, t):
    x = np.asarray(t, float)
    for order in (0, 1, 2):
        np.testing.assert_allclose(solution(t, deriv=order), (-2.0) ** order * np.exp(-2 * x), rtol=1e-6)


def test_outside_is_nan_under_jit(solution):
    again = ode.solve(problem(p=2.0, f=rate), saveat=0.25, **FIXED)  # solves again to interpolate
    for sol in (solution, again):
        assert np.all(np.isnan(jax.jit(sol)(jnp.array([1.5, -0.5]))))


# ---------------------------------------------------------------- good odd input


class Leaves(eqx.Module):
    rate: jax.Array
    nothing: None
    count: int
    flag: bool
    name: str
    function: object
    key: jax.Array
    whole: jax.Array


def test_every_kind_of_leaf_in_p():
    leaves = Leaves(
        jnp.array([1.5, 0.5]), None, 3, True, "name", jnp.tanh, jax.random.key(0), jnp.array([1, 1], jnp.int32)
    )

    def f(t, u, p):
        assert p.nothing is None and p.name == "name" and p.count == 3 and p.flag is True
        return -p.rate * u * p.whole + p.function(0.0 * u) * jax.random.normal(p.key, (2,))

    def loss(leaves):
        return jnp.sum(ode.solve(problem(jnp.ones(2), p=leaves, f=f), saveat=[1.0], **FIXED).u)

    got = eqx.filter_grad(loss)(leaves)
    np.testing.assert_allclose(got.rate, -np.exp(-np.array([1.5, 0.5])), rtol=1e-7)
    assert got.whole is None and got.key is None


STATES = {
    "float": 1.0,
    "int": 1,
    "numpy scalar": np.float64(1.0),
    "0-d": np.array(1.0),
    "int list": [1, 2],
    "int8": np.array([1, 2], np.int8),
    "tuple": (1.0, 2),
    "nested": {"a": jnp.arange(1.0, 4.0), "b": (jnp.float64(2.0), [jnp.ones((2, 2)), None])},
}


@pytest.mark.parametrize("u0", STATES.values(), ids=STATES.keys())
def test_states(u0):
    sol = ode.solve(problem(u0), saveat=[1.0], **FIXED)
    start = np.asarray(u0) if isinstance(u0, list) else u0
    for got, want in zip(jax.tree.leaves(sol.u), jax.tree.leaves(start), strict=True):
        assert got.dtype == jnp.float64 and got.shape == (1, *np.shape(want))
        np.testing.assert_allclose(got[0], np.asarray(want) * np.exp(-1), rtol=1e-7)
    repr(sol)


@pytest.mark.parametrize("u0", [jnp.zeros(0), {}, ()], ids=["zeros(0)", "{}", "()"])
def test_nothing_to_solve(u0):
    for p in (None, {}):
        sol = ode.solve(problem(u0, p=p), saveat=0.5)
        assert sol.success and len(sol) == 3
        repr(sol), sol(0.3)


@pytest.mark.parametrize("x64", [True, False])
def test_python_numbers_do_not_widen_single_precision(x64):
    """A Python float in p is as weak as one written in f."""
    with jax.enable_x64(x64):
        for p in (2.0, np.float32(2.0), jnp.float32(2.0)):
            sol = ode.solve(problem(jnp.float32(1.0), p=p, f=rate), saveat=[1.0], **FIXED)
            assert sol.u.dtype == jnp.float32
            np.testing.assert_allclose(sol.u, [np.exp(-2)], rtol=1e-5)


def test_mixed_precision_and_complex_leaves():
    def f(t, u, p):
        return {"z": 1j * p * u["z"], "x": -u["x"], "s": -2 * u["s"]}

    def end(p, x, z):
        u0 = {"z": z, "x": x, "s": jnp.float32(1)}
        sol = ode.solve(problem(u0, p=p, f=f), saveat=[1.0], **FIXED)
        assert [sol.u[k].dtype.name for k in "zxs"] == ["complex128", "float64", "float32"]
        return jnp.real(sol.u["z"][0] * (1 - 2j)) + sol.u["x"][0] + sol.u["s"][0].astype(x.dtype)

    def exact(p, x, z):
        return jnp.real(z * jnp.exp(1j * p) * (1 - 2j)) + x * jnp.exp(-1.0) + jnp.exp(-2.0)

    at = (jnp.float64(0.7), jnp.float64(1.3), jnp.complex128(0.5 + 0.2j))
    np.testing.assert_allclose(end(*at), exact(*at), rtol=1e-6)
    for got, want in zip(jax.grad(end, (0, 1, 2))(*at), jax.grad(exact, (0, 1, 2))(*at), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-6)


SAVES = [
    0.25,
    np.float32(0.25),
    [0.0, 0.25, 1.0],
    (0.0, 1),
    np.array([0, 1]),
    [0.0, 0.0, 0.5, 0.5, 1.0, 1.0],
    [1],
    [0],
    [],
]


@pytest.mark.parametrize("saveat", SAVES, ids=str)
@pytest.mark.parametrize("tspan", [(0.0, 1.0), (1, 0)], ids=["forward", "reversed"])
def test_saved_times(saveat, tspan):
    step = np.ndim(saveat) == 0
    times = np.linspace(*tspan, 5) if step else np.asarray(saveat, float)
    if tspan[0] > tspan[1] and not step:
        times = times[::-1]
    sol = ode.solve(problem(tspan=tspan), saveat=saveat if step else list(times), **FIXED)
    np.testing.assert_allclose(sol.t, times, atol=1e-15)
    np.testing.assert_allclose(sol.u, np.exp(tspan[0] - times), rtol=1e-7)


def test_traced_times_outside_the_span_or_out_of_order_are_never_wrong():
    """Where times cannot be checked, what comes back is right or NaN."""
    at = jax.jit(lambda ts: ode.solve(problem(), saveat=ts, **FIXED).u)
    for ts in ([-0.5, 0.2, 1.5], [0.8, 0.2, 0.5], [0.5, 0.0, 0.2], [0.1, np.nan, 0.2]):
        ts = np.array(ts)
        got = np.asarray(at(ts))
        inside = (ts >= 0) & (ts <= 1)
        assert np.all(np.isnan(got[~inside])), (ts, got)
        known = np.isfinite(got)
        np.testing.assert_allclose(got[known], np.exp(-ts[known]), rtol=1e-7, err_msg=str(ts))


SPAN = {"saveat": 0.1}, {"saveat": [1.0, 1.0]}, {}


@pytest.mark.parametrize("how", SPAN, ids=str)
def test_an_empty_span_returns_u0(how):
    sol = ode.solve(problem(2.0, (1.0, 1.0)), **how, **FIXED)
    assert sol.success and np.all(np.asarray(sol.u) == 2.0) and sol(1.0) == 2.0
    repr(sol)


def test_gradients_of_an_empty_span():
    """u(t1) moves with t1 and against t0, also where the two meet."""

    def end(t0, t1, u0):
        return ode.solve(problem(), u0=u0, tspan=(t0, t1), **FIXED)[-1]

    for transform in (lambda f: f, jax.jit):
        got = transform(jax.grad(end, (0, 1, 2)))(1.0, 1.0, 2.0)
        np.testing.assert_allclose(got, [2.0, -2.0, 1.0], rtol=1e-12)


def test_tolerances_of_each_component():
    tree = {"a": 1.0, "b": jnp.ones(2)}
    sol = ode.solve(problem(tree), saveat=[1.0], abstol={"a": 1e-11, "b": np.array([1e-11, 1e-3])}, reltol=1e-9)
    np.testing.assert_allclose(sol.u["a"], [np.exp(-1)], rtol=1e-8)
    sol = ode.solve(problem([1.0, 1.0]), saveat=[1.0], abstol=[1e-11, 1e-11], reltol=1e-9)  # as u0 may be a list
    np.testing.assert_allclose(sol.u, [[np.exp(-1)] * 2], rtol=1e-8)


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_sizes(size):
    sol = ode.solve(problem(size), saveat=[1.0], reltol=1e-9, abstol=1e-12 * size)
    np.testing.assert_allclose(sol.u / size, [np.exp(-1)], rtol=1e-7)


@pytest.mark.parametrize("size", [1e30, 1e200])
def test_a_large_field_from_a_zero_state(size):
    sol = ode.solve(problem(0.0, f=lambda t, u, p: size * jnp.cos(t)), saveat=[1.0], reltol=1e-9)
    np.testing.assert_allclose(sol.u / size, [np.sin(1)], rtol=1e-7)


def test_long_span_of_single_precision():
    """Times of single precision have steps of 0.06 at the end: small steps must neither stall nor miss t1."""
    start, stop = np.float32(1e6 - 16), np.float32(1e6)
    prob = problem(jnp.float32(0.0), (start, stop), f=lambda t, u, p: jnp.ones_like(u))
    with jax.enable_x64(False):
        sol = ode.solve(prob, ode.RK4(), saveat=np.array([stop]), dt0=1 / 128)
    assert sol.t[0] == stop and sol.stats.naccept == 2048
    np.testing.assert_allclose(sol.u, [16.0], rtol=1e-5)


def test_the_end_alone_has_a_derivative_where_every_step_is_saved():
    end = lambda t1: ode.solve(ode.ODEProblem(lambda t, u, p: -2 * u, 1.0, (0.0, t1)), reltol=1e-9).u[-1]
    np.testing.assert_allclose([jax.grad(end)(1.0), jax.jacfwd(end)(1.0)], -2 * np.exp(-2.0), rtol=1e-7)
