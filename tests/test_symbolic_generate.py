"""Generated functions: right values, sizes that follow shapes and not numbers, derivatives, dtypes, odd cases."""

import math
import random
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from odesens.symbolic.access import segments, take
from odesens.symbolic.generate import generate, sparsity
from odesens.symbolic.templates import BUDGET, LONGEST
from odesens.symbolic.terms import Terms


def graph(n, m=0):
    """A graph with unknowns, parameters and the time, and their places."""
    g = Terms()
    u = [g.unknown(f"x{i}") for i in range(n)]
    p = [g.parameter(f"p{i}") for i in range(m)]
    t = g.time()
    return (
        g,
        u,
        p,
        t,
        {x: ("u", i) for i, x in enumerate(u)} | {x: ("p", i) for i, x in enumerate(p)} | {t: ("t", None)},
    )


def pools(n, m=0, seed=0, dtype=float):
    rng = np.random.default_rng(seed)
    return {"u": rng.uniform(0.5, 1.5, n).astype(dtype), "p": rng.uniform(0.5, 1.5, m).astype(dtype), "t": dtype(0.3)}


FUNCTIONS = {name: getattr(np, name) for name in "sin cos tan sinh cosh tanh exp log sqrt abs sign floor ceil".split()}
FUNCTIONS |= {"share": lambda x: x, "min": min, "max": max, "mod": np.mod, "atan2": np.arctan2}
FUNCTIONS |= {"lt": lambda a, b: a < b, "select": lambda c, a, b: a if c else b}


def plain(g, roots, where, pools):
    """The values of nodes one by one, in Python's numbers."""
    value = {}
    for i in g.below(roots):
        match g.nodes[i]:
            case ("add", constant, terms):
                value[i] = float(constant) + sum(value[c] * float(k) for c, k in terms)
            case ("mul", factors):
                value[i] = math.prod(value[c] ** (e if isinstance(e, int) else float(e)) for c, e in factors)
            case ("power", base, exponent):
                value[i] = value[base] ** value[exponent]
            case ("call", name, args):
                value[i] = FUNCTIONS[name](*(value[a] for a in args))
            case ("number", x):
                value[i] = float(x)
            case _:
                pool, at = where[i]
                value[i] = pools[pool] if at is None else pools[pool][at]
    return np.array([float(value[r]) for r in roots])


def check(g, roots, where, given, tol=1e-13):
    f = generate(g, roots, where)
    got, want = np.asarray(jax.jit(f)(given)), plain(g, roots, where, given)
    assert got.shape == want.shape
    assert np.max(np.abs(got - want)) <= tol * np.max(np.abs(want))
    return f


def size(f, given) -> int:
    def count(jaxpr):
        inner = (q.jaxpr for e in jaxpr.eqns for q in e.params.values() if hasattr(q, "jaxpr"))
        return len(jaxpr.eqns) + sum(map(count, inner))

    return count(jax.make_jaxpr(f)({k: jnp.asarray(v) for k, v in given.items()}).jaxpr)


# ---------------------------------------------------------------- systems


def chain(n):
    g, u, p, _, where = graph(n, 2)
    roots = []
    for i in range(n):
        around = [u[j] for j in (i - 1, i + 1) if 0 <= j < n]
        diffusion = g.product(p[0], g.add([*((x, 1) for x in around), (u[i], -2)]))
        roots.append(g.add([(diffusion, 1), (g.product(p[1], u[i], g.add([(u[i], -1)], 1)), 1)]))
    return g, roots, where, pools(n, 2)


def chain_by_hand(u, p):
    zero = jnp.zeros(1, u.dtype)
    left, right = jnp.concatenate([zero, u[:-1]]), jnp.concatenate([u[1:], zero])
    return p[0] * (left + right - 2 * u) + p[1] * u * (1 - u)


def ring(n):
    """A periodic Brusselator, the two species interleaved."""
    g, u, p, _, where = graph(2 * n, 3)
    roots = []
    laplace = lambda i, s: g.add([(u[2 * ((i - 1) % n) + s], 1), (u[2 * ((i + 1) % n) + s], 1), (u[2 * i + s], -2)])
    for i in range(n):
        a, b = u[2 * i : 2 * i + 2]
        reaction = g.mul([(a, 2), (b, 1)])
        spread = [(g.product(p[2], laplace(i, s)), 1) for s in (0, 1)]
        roots.append(g.add([(p[0], 1), (reaction, 1), (g.product(p[1], a), -1), (a, -1), spread[0]]))
        roots.append(g.add([(g.product(p[1], a), 1), (reaction, -1), spread[1]]))
    return g, roots, where, pools(2 * n, 3)


def grid(n):
    """Diffusion with boundary rows."""
    g, u, p, _, where = graph(n * n, 1)
    roots = []
    for i in range(n):
        for j in range(n):
            near = [
                (a, b) for a, b in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)) if 0 <= min(a, b) and max(a, b) < n
            ]
            terms = [(u[a * n + b], 1) for a, b in near] + [(u[i * n + j], -len(near))]
            roots.append(g.add([(g.product(p[0], g.add(terms)), 1), (g.mul([(u[i * n + j], 3)]), -1)]))
    return g, roots, where, pools(n * n, 1)


def network(n, numeric=False, shared=True):
    """Random reactions, each in three species, or each in one."""
    rng = random.Random(n)
    g, u, p, _, where = graph(n, 3 * n)
    terms = [[] for _ in range(n)]
    for r in range(3 * n):
        rate = lambda r=r: g.product(*([] if numeric else [p[r]]), rng.choice(u), rng.choice(u))
        one, k = rate(), rng.random() if numeric else 1
        for s in rng.sample(range(n), 3):
            terms[s].append((one if shared else rate(), rng.choice([-2, -1, 1, 2]) * k))
    return g, [g.add(x) for x in terms], where, pools(n, 3 * n)


def kuramoto(n):
    g, u, p, _, where = graph(n, n + 1)
    one = lambda i, j: (g.call("sin", g.sub(u[max(i, j)], u[min(i, j)])), 1 if i < j else -1)
    sums = [g.add([one(i, j) for j in range(n) if j != i]) for i in range(n)]
    return g, [g.add([(p[i], 1), (g.product(p[n], sums[i]), 1)]) for i in range(n)], where, pools(n, n + 1)


def lorenz():
    g, (x, y, z), p, _, where = graph(3, 3)
    roots = [g.product(p[0], g.sub(y, x)), g.sub(g.product(x, g.sub(p[1], z)), y)]
    return g, [*roots, g.sub(g.product(x, y), g.product(p[2], z))], where, pools(3, 3)


@pytest.mark.parametrize("model", [chain, ring, grid, network, kuramoto], ids=lambda m: m.__name__)
@pytest.mark.parametrize("n", [3, 5, 17])
def test_values_of_systems(model, n):
    check(*model(n))


@pytest.mark.parametrize("options", [{"numeric": True}, {"shared": False}, {"numeric": True, "shared": False}], ids=str)
def test_values_of_networks(options):
    for n in (4, 40, 300):
        check(*network(n, **options))


def test_a_chain_is_one_size():
    sizes = []
    for n in (10, 1000, 5000):
        g, roots, where, given = chain(n)
        f = generate(g, roots, where)
        np.testing.assert_allclose(jax.jit(f)(given), chain_by_hand(given["u"], given["p"]), rtol=0, atol=1e-14)
        sizes.append(size(f, given))
    assert sizes[0] == sizes[1] == sizes[2] < 60


@pytest.mark.parametrize("model", [ring, grid], ids=lambda m: m.__name__)
def test_regular_systems_are_one_size(model):
    sizes = [size(check(*model(n)), model(n)[-1]) for n in (20, 45)]
    assert sizes[0] == sizes[1] < 120


def test_regular_systems_read_slices():
    for model in (chain, ring):
        g, roots, where, given = model(50)
        assert "gather" not in str(jax.make_jaxpr(generate(g, roots, where))(given))


@pytest.mark.parametrize("options", [{}, {"numeric": True}, {"shared": False}], ids=str)
def test_a_random_network_is_bounded(options):
    sizes = []
    for n in (30, 300, 3000):
        g, roots, where, given = network(n, **options)
        f = generate(g, roots, where)
        sizes.append(size(f, given))
        assert f.n_templates < 25
    assert max(sizes) <= 2.5 * BUDGET
    assert sizes[2] <= sizes[1] + 100


def test_all_to_all_coupling_is_small():
    sizes = [size(generate(*model[:3]), model[-1]) for model in (kuramoto(20), kuramoto(60))]
    assert sizes[0] == sizes[1] < 20


def test_a_dense_linear_system_is_a_matrix():
    n = 30
    g, u, _, _, where = graph(n)
    a = np.random.default_rng(0).normal(size=(n, n))
    f = generate(g, [g.add([(u[j], a[i, j]) for j in range(n)], i) for i in range(n)], where)
    given = pools(n)
    np.testing.assert_allclose(f(given), a @ given["u"] + np.arange(n), rtol=1e-13)
    assert size(f, given) <= 5


def test_a_small_system_is_scalars():
    g, roots, where, given = lorenz()
    f = check(g, roots, where, given)
    assert size(f, given) < 30
    assert f.n_templates == 3


# ---------------------------------------------------------------- random expressions


def random_roots(g, leaves, rng, count):
    """Sums, products, powers and calls, of each other."""
    made = list(leaves)
    for _ in range(count):
        a, b, c = rng.choices(made[-40:], k=3)
        small = lambda x: g.call("sin", x)
        match rng.randrange(7):
            case 0:
                new = g.add(
                    [(a, rng.choice([1, -1, 2, Fraction(1, 3), 0.7])), (b, -1)], rng.choice([0, 1, Fraction(1, 7)])
                )
            case 1:
                new = g.mul([(small(a), 1), (small(b), 2), (g.add([(small(c), 1)], 2), rng.choice([-1, -2, 1]))])
            case 2:
                new = g.call(rng.choice(["sin", "cos", "tanh"]), a)
            case 3:
                new = g.mul([(g.add([(small(a), 1)], 3), rng.choice([0.37, Fraction(1, 2), Fraction(-1, 2), -1.5]))])
            case 4:
                new = g.power(g.add([(small(a), 1)], 2), small(b))
            case 5:
                new = g.call("select", g.call("lt", a, b), b, small(c))
            case _:
                new = g.call(rng.choice(["max", "min", "atan2"]), a, g.add([(small(b), 1)], 2))
        made.append(new)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_random_expressions(seed):
    rng = random.Random(seed)
    g, u, p, t, where = graph(6, 3)
    roots = random_roots(g, [*u, *p, t], rng, 80)
    rng.shuffle(roots)
    check(g, roots, where, pools(6, 3, seed), 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions_many_times(seed):
    """The same expressions of different unknowns: vectorised."""
    n, rng = 30, random.Random(seed)
    g, u, p, t, where = graph(6 * n, 3)
    roots = []
    for i in range(n):
        state = random.Random(seed)
        roots += random_roots(g, [*u[6 * i : 6 * i + 6], *p, t], state, 25)[-12:]
    rng.shuffle(roots)
    f = check(g, roots, where, pools(6 * n, 3, seed), 1e-12)
    assert f.n_templates < 60


# ---------------------------------------------------------------- derivatives


def test_derivatives_are_those_by_hand():
    g, roots, where, given = chain(12)
    f = generate(g, roots, where)
    of = lambda f: lambda u, p: jnp.sum(jnp.sin(f(u, p)))
    ours, hand = of(lambda u, p: f({"u": u, "p": p})), of(chain_by_hand)
    for transform in (jax.grad, jax.hessian):
        for got, want in zip(
            jax.tree.leaves(jax.jit(transform(ours, (0, 1)))(given["u"], given["p"])),
            jax.tree.leaves(jax.jit(transform(hand, (0, 1)))(given["u"], given["p"])),
            strict=True,
        ):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", [ring, grid, network, kuramoto], ids=lambda m: m.__name__)
def test_derivatives_are_those_of_the_graph(model):
    g, roots, where, given = model(10)
    f = generate(g, roots, where)
    of_u = lambda u: f(given | {"u": u})
    jacobian = jax.jit(jax.jacrev(of_u))(given["u"])
    np.testing.assert_allclose(jacobian, jax.jit(jax.jacfwd(of_u))(given["u"]), rtol=0, atol=1e-14)
    leaves = [leaf for leaf, (pool, _) in where.items() if pool == "u"]
    symbolic = jax.jit(generate(g, [g.diff(r, x) for r in roots for x in leaves], where))(given)
    np.testing.assert_allclose(jacobian.ravel(), symbolic, rtol=0, atol=1e-12)


def test_vmap_is_row_by_row():
    g, roots, where, given = network(50)
    f = generate(g, roots, where)
    us = np.random.default_rng(1).uniform(size=(3, 50))
    one = jax.jit(lambda u: f(given | {"u": u}))
    np.testing.assert_allclose(jax.jit(jax.vmap(one))(us), [one(u) for u in us], rtol=1e-13)


# ---------------------------------------------------------------- functions

REFERENCES = {
    **{name: getattr(mpmath, name) for name in "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh".split()},
    **{name: getattr(mpmath, name) for name in "exp log sqrt sign floor ceil erf gamma loggamma re im conj".split()},
    "abs": mpmath.fabs,
    "conjugate": mpmath.conj,
    "digamma": mpmath.digamma,
    "trigamma": lambda x: mpmath.polygamma(1, x),
    "heaviside": lambda x: (mpmath.sign(x) + 1) / 2,
    "share": lambda x: x,
    "not": lambda x: not x,
}
POINTS = [-2.3, -0.4, 0.0, 0.3, 0.9, 1.2, 3.7]


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("count", [1, 7])
def test_functions_of_one(name, count):
    points = [x for x in POINTS if _is_real(REFERENCES[name], x)]
    points = points[-count:] if count == 1 else points
    g, u, _, _, where = graph(len(points))
    got = generate(g, [g.call(name, x) for x in u], where)({"u": np.array(points)})
    want = [float(REFERENCES[name](x)) for x in points]
    np.testing.assert_allclose(got, want, rtol=2e-14, atol=1e-15)


def _is_real(function, x):
    try:
        value = function(x)
    except (ValueError, ZeroDivisionError, OverflowError):
        return False
    return mpmath.im(value) == 0 and mpmath.isfinite(value)


TWO = {
    "mod": lambda a, b: a - b * math.floor(a / b),
    "atan2": math.atan2,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
    "heaviside": lambda a, b: b if a == 0 else float(a > 0),
}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("count", [1, 30])
def test_functions_of_two(name, count):
    pairs = [(a, b) for a in POINTS for b in POINTS if b != 0 or name == "and"][:count]
    g, u, _, _, where = graph(2 * len(pairs))
    roots = [g.call(name, u[2 * i], u[2 * i + 1]) for i in range(len(pairs))]
    got = generate(g, roots, where)({"u": np.array(pairs).ravel()})
    np.testing.assert_allclose(got, [float(TWO[name](a, b)) for a, b in pairs], rtol=1e-14, atol=1e-15)


def test_several_arguments_and_truth():
    g, (a, b, c), _, _, where = graph(3)
    both = g.call("and", g.call("lt", a, b), g.call("true"), g.call("not", g.call("false")))
    roots = [g.call("max", a, b, c), g.call("min", a, b, c), both, g.add([(both, 2)], 1), g.product(both, c)]
    got = generate(g, roots, where)({"u": np.array([1.0, 2.0, 5.0])})
    assert got.tolist() == [5, 1, 1, 3, 5]


def test_select_takes_the_finite_branch():
    n = 5
    g, u, _, _, where = graph(n)
    zero = g.number(0)
    roots = [g.call("select", g.call("gt", x, zero), g.call("log", x), zero) for x in u]
    x = np.array([-1.0, 0.0, 1.0, 2.0, 3.0])
    want = [math.log(v) if v > 0 else 0 for v in x]
    np.testing.assert_allclose(generate(g, roots, where)({"u": x}), want, rtol=1e-15)


@pytest.mark.parametrize("n", [1, 9])
def test_functions_of_the_user(n):
    g, u, p, _, where = graph(n, 1)
    value = [g.call("user:f", x, p[0]) for x in u]
    slopes = [g.diff(v, x) for v, x in zip(value, u, strict=True)]
    mixed = [g.diff(s, p[0]) for s in slopes]
    f = generate(g, value + slopes + mixed, where)
    assert f.functions == {"f"}
    given = pools(n, 1)

    def function(x, k):
        assert jnp.shape(x) == jnp.shape(k) == ()
        return x**3 * k**2

    x, k = given["u"], given["p"][0]
    want = np.concatenate([x**3 * k**2, 3 * x**2 * k**2, 6 * x**2 * k])
    np.testing.assert_allclose(f(given, {"f": function}), want, rtol=1e-14)
    np.testing.assert_allclose(f(given | {"functions": {"f": function}}), want, rtol=1e-14)
    with pytest.raises(KeyError, match="no function for"):
        f(given)
    with pytest.raises(ValueError, match="must give a scalar"):
        f(given, {"f": lambda x, k: jnp.stack([x, k])})


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize("model", [chain, network, kuramoto], ids=lambda m: m.__name__)
def test_single_precision_stays(model):
    g, roots, where, given = model(20)
    f = generate(g, roots, where)
    single = {k: np.float32(v) for k, v in given.items()}
    got = jax.jit(f)(single)
    assert got.dtype == np.float32
    assert "f64" not in str(jax.make_jaxpr(f)({k: jnp.asarray(v) for k, v in single.items()}))
    np.testing.assert_allclose(got, jax.jit(f)(given), rtol=0, atol=2e-5)


def test_complex_pools():
    n = 8
    g, u, p, t, where = graph(n, 1)
    parts = [g.call("re", u[0]), g.call("im", u[1]), g.call("conj", u[2]), g.call("abs", u[3])]
    moving = [g.add([(x, 1j), (g.product(p[0], x), Fraction(1, 3))], g.nodes[0] and 2.0) for x in u]
    late = [g.call("floor", g.product(t, p[0])), g.call("select", g.call("lt", t, p[0]), u[4], u[5])]
    rng = np.random.default_rng(0)
    z = rng.normal(size=n) + 1j * rng.normal(size=n)
    f = generate(g, parts + moving + late, where)
    got = f({"u": z, "p": np.array([2.0]), "t": 0.7})
    assert got.dtype == complex
    want = [z[0].real, z[1].imag, z[2].conj(), abs(z[3]), *(1j * z + 2 * z / 3 + 2), 1, z[4]]
    np.testing.assert_allclose(got, want, rtol=1e-14)
    with pytest.raises(ValueError, match="complex numbers in the expressions"):
        f({"u": z.real, "p": np.array([2.0]), "t": 0.7})


def test_integers_are_taken_as_floats():
    g, (x, y), _, _, where = graph(2)
    got = generate(g, [g.mul([(x, -1)]), g.add([(y, Fraction(1, 3))])], where)({"u": np.array([2, 4])})
    assert got.dtype == float
    np.testing.assert_allclose(got, [0.5, 4 / 3], rtol=1e-15)


def test_fractions_are_the_nearest_floats():
    g, (x,), _, _, where = graph(1)
    got = generate(g, [g.add([(x, Fraction(1, 10))], Fraction(1, 5))], where)({"u": np.array([1.0])})
    assert got[0] == 1.0 * 0.1 + 0.2


def test_a_plain_time_does_not_promote():
    g, u, _, t, where = graph(6)
    f = generate(g, [g.product(t, x) for x in u], where)
    assert f({"u": np.ones(6, np.float32), "t": 0.5}).dtype == np.float32


# ---------------------------------------------------------------- odd cases


def test_no_roots():
    g, _, _, _, where = graph(1)
    for dtype in (np.float32, float, complex):
        got = generate(g, [], where)({"u": np.ones(1, dtype)})
        assert got.shape == (0,)
        assert got.dtype == dtype


def test_leaves_numbers_and_repeated_roots():
    g, u, p, t, where = graph(5, 2)
    big = g.call("sin", u[0])
    roots = [u[3], g.number(2), t, p[1], g.number(Fraction(1, 3)), *u, *[big] * 200, u[0], *[g.number(7)] * 9, *u[::-1]]
    f = check(g, roots, where, pools(5, 2))
    assert f.n_templates == 1
    assert size(f, pools(5, 2)) < 40
    np.testing.assert_array_equal(generate(g, [u[2]] * 30, where)(pools(5)), np.full(30, pools(5)["u"][2]))


def test_constant_systems():
    g, _, _, _, where = graph(1)
    f = generate(
        g, [g.number(1), g.call("user:f", g.number(2)), g.power(g.number(2), g.call("gamma", g.number(3)))], where
    )
    np.testing.assert_allclose(f({}, {"f": lambda x: x**2}), [1, 4, 4], rtol=1e-14)
    assert f({"u": np.ones(1, np.float32)}, {"f": lambda x: x**2}).dtype == np.float32


def test_many_constant_roots_among_others():
    n = 200
    g, u, _, _, where = graph(n)
    check(g, [x for i in range(n) for x in (g.number(i % 3), g.call("cos", u[i]), u[-i])], where, pools(n))


@pytest.mark.parametrize("depth", [5000])
def test_deep_expressions(depth):
    g, (x, y), _, _, where = graph(2)
    nest, tower = x, x
    for i in range(depth):
        nest = g.call("sin", nest)
        if i < 1000:
            tower = g.power(g.number(1.01), tower)
    sums = x
    for _ in range(300):
        sums = g.add([(g.call("sin", sums), 1), (y, Fraction(1, 2))])
    check(g, [nest, tower, sums], where, pools(2), 1e-12)


def test_deep_sums_are_planned_without_recursion():
    g, (x, y), _, _, where = graph(2)
    for _ in range(5000):
        x = g.add([(g.call("sin", x), 1), (y, Fraction(1, 2))])
    assert generate(g, [x], where).n_templates > 1


def test_long_sums():
    n = 10_000
    g, u, _, _, where = graph(n)
    total, weighted = g.add([(x, 1) for x in u]), g.add([(x, i + 1) for i, x in enumerate(u)], 3)
    of_calls = g.add([(g.call("sin", x), -1) for x in u])
    f = check(g, [total, weighted, of_calls], where, pools(n), 1e-12)
    assert size(f, pools(n)) < 40
    products = g.product(*u[:200])
    check(g, [products], where, pools(n), 1e-12)


@pytest.mark.parametrize("terms", [LONGEST, LONGEST + 1])
def test_infinite_terms_stay_in_their_sum(terms):
    """What pads shorter sums is zero, whatever the values are."""
    g, u, _, _, where = graph(60)
    roots = [g.add([(g.call("exp", x), 1) for x in u[i : i + terms - i % 3]]) for i in range(0, 40, 5)]
    u = np.zeros(60)
    u[0] = np.inf
    got = jax.jit(generate(g, roots, where))({"u": u})
    assert got[0] == np.inf
    assert np.all(np.isfinite(got[1:]))


def test_shuffled_equations_still_share_templates():
    g, roots, where, given = chain(400)
    order = np.random.default_rng(0).permutation(400)
    f = check(g, [roots[i] for i in order], where, given)
    assert size(f, given) < 60


def test_errors_say_what_to_do():
    g, u, _, _, where = graph(5)
    roots = [g.mul([(x, 2)]) for x in u]
    f = generate(g, roots, where)
    with pytest.raises(ValueError, match="add them to `where`"):
        generate(g, roots, {})
    with pytest.raises(KeyError, match="need the pool 'u'"):
        f({"v": np.ones(5)})
    with pytest.raises(ValueError, match="has 4 entries"):
        f({"u": np.ones(4)})
    with pytest.raises(ValueError, match="a vector or a scalar"):
        f({"u": np.ones((5, 1))})
    with pytest.raises(ValueError, match="no function 'nonsense'"):
        generate(g, [g.call("nonsense", u[0])], where)({"u": np.ones(5)})


def test_equal_where_the_plans_are():
    g, roots, where, _ = lorenz()
    f, same, other = generate(g, roots, where), generate(g, roots, where), generate(g, roots[::-1], where)
    assert f == same and f != other
    assert len({f, same, other}) == 2
    with pytest.raises(AttributeError):
        f.plan = None


def test_sparsity():
    g, roots, where, given = network(60)
    leaves = [leaf for leaf, (pool, _) in where.items() if pool == "u"]
    got = sparsity(g, roots, leaves)
    f = generate(g, roots, where)
    want = np.asarray(jax.jit(jax.jacfwd(lambda u: f(given | {"u": u})))(given["u"])) != 0
    assert got.dtype == bool
    np.testing.assert_array_equal(got.toarray(), want)
    assert sparsity(g, roots, []).shape == (60, 0)
    assert sparsity(g, [], leaves).shape == (0, 60)


# ---------------------------------------------------------------- reading

PATTERNS = {
    "all": range(40),
    "middle": range(5, 30),
    "backwards": range(30, 3, -1),
    "strided": range(3, 40, 3),
    "one": [7] * 20,
    "window": [4 * i + j for i in range(10) for j in (1, 2)],
    "strided window": [8 * i + 2 * j for i in range(5) for j in range(3)],
    "window at the end": [1 + 13 * i + j for i in range(3) for j in range(13)],
    "interleaved": [i + 20 * s for i in range(20) for s in (0, 1)],
    "interleaved blocks": [i + 13 * s for i in range(10) for s in range(3)],
    "repeated": [i for i in range(10) for _ in range(4)],
    "tiled": list(range(9)) * 4,
    "wrapped": [39, *range(39)],
    "with ends": [30, *[i + 20 * s for i in range(12) for s in (0, 1)], 2, 1, *range(9, 20)],
    "blocks backwards": [4 * i + j for i in range(9, -1, -1) for j in (2, 1)],
    "overlapping": [i + j for i in range(20) for j in range(3)],
}


@pytest.mark.parametrize("name", PATTERNS)
def test_positions_are_read_as_slices(name):
    positions = np.array(PATTERNS[name])
    assert (segments(positions) is None) == (name == "overlapping")
    vector = np.random.default_rng(0).normal(size=40)
    np.testing.assert_array_equal(take(jnp.asarray(vector), positions), vector[positions])


@pytest.mark.parametrize("seed", range(5))
def test_random_positions_are_read_right(seed):
    rng = np.random.default_rng(seed)
    vector = rng.normal(size=40)
    for k in (1, 2, 3, 9, 100):
        steps = rng.choice([0, 1, 1, 1, 1, 2, 7, 40], size=k)
        positions = np.cumsum(steps) % 40
        np.testing.assert_array_equal(take(jnp.asarray(vector), positions), vector[positions])
