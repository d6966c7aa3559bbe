"""Patterns of Jacobians against their nonzeros; colours, bands, and Jacobians from few directional derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from odesens.pattern import TooDense, pattern
from odesens.sparsity import Sparsity, band, colours

N = 12
RNG = np.random.default_rng(7)
STOICHIOMETRY = RNG.integers(-1, 2, (5, 7)) * (RNG.random((5, 7)) < 0.4)
STOICHIOMETRY[0, 0] = 1
REACTANTS = RNG.integers(0, 5, (7, 2))
KERNEL = np.array([1.0, -2.0, 1.0])


def true_pattern(f, u, reverse=False):
    """The nonzeros of the Jacobian at several random points together."""
    leaves, tree = jax.tree.flatten(u)
    sizes = [x.size for x in leaves]

    def flat(v):
        parts = jnp.split(v, np.cumsum(sizes)[:-1])
        out = f(jax.tree.unflatten(tree, [p.reshape(x.shape) for p, x in zip(parts, leaves, strict=True)]))
        return jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(out)])

    points = jnp.asarray(np.random.default_rng(0).normal(size=(20, sum(sizes))))
    return (np.asarray(jax.jit(jax.vmap(jax.jacobian(flat) if reverse else jax.jacfwd(flat)))(points)) != 0).any(0)


def found_pattern(f, u, **options):
    n = len(jax.tree.leaves(u))
    return pattern(jax.make_jaxpr(f)(u), range(n), **options).toarray()


def check(f, u, exact=True, reverse=False):
    found, true = found_pattern(f, u), true_pattern(f, u, reverse)
    assert found.shape == true.shape
    assert (found | ~true).all(), "a dependence was missed"
    if exact:
        assert (found == true).all()


def diffusion_slices(u):
    inner = u[2:] - 2 * u[1:-1] + u[:-2]
    return jnp.concatenate([u[:1] - u[1:2], inner, u[-1:] ** 2])


def diffusion_pad(u):
    v = jnp.pad(u, 1)
    return v[2:] - 2 * v[1:-1] + v[:-2]


def diffusion_edge(u):
    v = jnp.pad(u, 1, mode="edge")
    return v[2:] - 2 * v[1:-1] + v[:-2]


def roll(u, axis=0):
    return jnp.roll(u, 1, axis) - 2 * u + jnp.roll(u, -1, axis)


def reaction(u, v):
    return 1 + u**2 * v - 4 * u, 3 * u - u**2 * v


def brusselator_interleaved(w):
    w = w.reshape(-1, 2)
    return (jnp.stack(reaction(w[:, 0], w[:, 1]), axis=1) + roll(w)).ravel()


def brusselator_blocked(w):
    u, v = jnp.split(w, 2)
    du, dv = reaction(u, v)
    return jnp.concatenate([du + diffusion_pad(u), dv + diffusion_edge(v)])


def brusselator_tree(w):
    du, dv = reaction(w["u"], w["v"])
    return {"u": du + diffusion_slices(w["u"]), "v": dv + roll(w["v"])}


def laplacian(u):
    v = jnp.pad(u, 1)
    return v[2:, 1:-1] + v[:-2, 1:-1] + v[1:-1, 2:] + v[1:-1, :-2] - 4 * u


def laplacian_convolution(u):
    kernel = jnp.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], u.dtype)
    return jax.lax.conv_general_dilated(u[None, None], kernel[None, None], (1, 1), "SAME")[0, 0]


def grouped_convolution(u):
    kernel = jnp.asarray(np.array([[[1.0, 0, 2]], [[0, 3.0, 1]]]))  # two groups of one feature
    dims = ("NWC", "OIW", "NWC")
    return jax.lax.conv_general_dilated(u.reshape(1, 6, 2), kernel, (1,), "SAME", None, None, dims, 2).ravel()


def mass_action(u):
    rates = jnp.arange(1.0, 8.0) * u[REACTANTS[:, 0]] * u[REACTANTS[:, 1]]
    return jnp.asarray(STOICHIOMETRY, u.dtype) @ rates


def boundary_set(u):
    return roll(u).at[0].set(0.0).at[-1].set(u[3])


def scatter_add(u):
    index = np.array([0, 2, 2, 5])
    return jnp.sin(u).at[index].add(u[:4] * u[4:8]).at[7].multiply(u[1]).at[1].max(u[0] ** 2)


@jax.custom_jvp
def rule(x):
    return x**3


rule.defjvp(lambda x, t: (rule(x[0]), 5 * x[0] * t[0]))


@jax.custom_jvp
def straight(x):
    return jnp.round(x)


straight.defjvp(lambda x, t: (straight(x[0]), t[0]))


@jax.custom_vjp
def backwards(x):
    return x * jnp.flip(x)


backwards.defvjp(lambda x: (backwards(x), x), lambda x, g: (g * jnp.flip(x) + jnp.flip(g * x),))


def chain(u):  # a recurrence: the loop over cells is followed
    def cell(left, x):
        return x, x - left**2

    return jax.lax.scan(cell, u[0], u)[1]


def chain_backwards(u):
    return jax.lax.scan(lambda right, x: (x, (x * right, x)), u[-1], u, reverse=True)[1][0]


def loop_update(u):
    return jax.lax.fori_loop(1, N, lambda i, v: v.at[i].set(u[i] - u[i - 1]), u)


v = jnp.zeros(N)
FIELDS = {
    "elementwise": (lambda u: jnp.sin(u) * jnp.exp(-(u**2)) + 1 / (1 + u**2), v),
    "scalar": (lambda u: jnp.cos(u), jnp.zeros(())),
    "independent": (lambda u: jnp.ones_like(u) + jnp.sign(u), v),
    "slices": (diffusion_slices, v),
    "roll": (roll, v),
    "pad": (diffusion_pad, v),
    "edge": (diffusion_edge, v),
    "convolve": (lambda u: jnp.convolve(u, KERNEL, mode="same"), v),
    "convolve known zeros": (lambda u: jnp.convolve(u, np.array([1.0, 0.0, 2.0, 0.0, 0.0]), mode="same"), v),
    "convolution 2d": (laplacian_convolution, jnp.zeros((4, 5))),
    "convolution of groups": (grouped_convolution, v),
    "interleaved": (brusselator_interleaved, v),
    "blocked": (brusselator_blocked, v),
    "tree": (brusselator_tree, {"u": jnp.zeros(6), "v": jnp.zeros(6)}),
    "laplacian": (laplacian, jnp.zeros((4, 5))),
    "network": (mass_action, jnp.zeros(5)),
    "left product": (lambda u: u @ jnp.asarray(STOICHIOMETRY, u.dtype), jnp.zeros(5)),
    "batched product": (
        lambda u: jnp.einsum("bij,bjk->bik", u, jnp.arange(8.0).reshape(2, 2, 2)),
        jnp.zeros((2, 3, 2)),
    ),
    "product of two": (lambda u: u @ (u.T**2), jnp.zeros((3, 2))),
    "where": (lambda u: jnp.where(u > 0, u, jnp.roll(u, 1)), v),
    "where known": (lambda u: jnp.where(jnp.arange(N) % 2 == 0, u, jnp.roll(u, 1)), v),
    "clip": (lambda u: jnp.clip(u, -3.0, 3.0), v),
    "cond": (lambda u: jax.lax.cond(u[0] > 0, lambda x: x**2, lambda x: jnp.flip(x), u), v),
    "switch known": (lambda u: jax.lax.switch(jnp.array(1), [jnp.cumsum, jnp.sin], u), v),
    "custom_jvp": (lambda u: rule(u) + jax.nn.relu(jnp.roll(u, 1)), v),
    "custom rule of a flat function": (straight, v),
    "custom_vjp": (backwards, v),
    "jit": (jax.jit(lambda u: jax.jit(jnp.tanh)(u) - roll(u)), v),
    "remat": (jax.checkpoint(lambda u: jnp.sin(roll(u))), v),
    "set": (boundary_set, v),
    "add": (scatter_add, v),
    "take": (lambda u: jnp.take(u, jnp.array([3, 1, 40, 0]), mode="fill", fill_value=0.0), v),
    "reduce": (lambda u: jnp.sum(u.reshape(3, 4), axis=1) + jnp.max(u[:3]), v),
    "vmap": (jax.vmap(lambda x: x[0] * x[1:]), jnp.zeros((3, 4))),
    "complex": (lambda u: jnp.real((u[:6] + 1j * u[6:]) ** 2), v),
    "barrier": (lambda u: jax.lax.optimization_barrier((u, u**2))[1] + jnp.roll(u, 1), v),
    "interp": (lambda u: jnp.interp(u, jnp.linspace(-3.0, 3.0, 7), jnp.arange(7.0) ** 2), v),
    "segments": (lambda u: jax.ops.segment_sum(u, np.arange(N) // 3, 5), v),
    "dropped": (lambda u: u.at[jnp.array([1, 2, 20])].set(u[:3], mode="drop"), v),
    "dynamic update": (lambda u: jax.lax.dynamic_update_slice(u, u[:3] ** 2, (5,)), v),
    "derivative": (jax.grad(lambda u: jnp.sum(u[1:] ** 2 * u[:-1])), v),
    "cond of lanes": (jax.vmap(lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.square, x)), v),
    "scan": (chain, v),
    "scan backwards": (chain_backwards, v),
    "fori_loop": (loop_update, v),
    "map": (lambda u: jax.lax.map(lambda x: x**2, u), v),
}
SUPERSETS = {
    "cumsum": (jnp.cumsum, v),
    "sort": (jnp.sort, v),
    "fft": (lambda u: jnp.abs(jnp.fft.fft(u)), v),
    "solve": (lambda u: jnp.linalg.solve(jnp.eye(N) + u[0] * jnp.ones((N, N)), u), v),
    "while": (lambda u: jax.lax.while_loop(lambda s: s[0].sum() < 9, lambda s: s + 1 + s**2, u[None])[0], v),
    "index from the state": (lambda u: u[jnp.argmax(u)] * u, v),
    "dynamic index": (lambda u: jax.lax.dynamic_slice(u, (jnp.int32(u[0]),), (3,)), v),
    "round trip": (lambda u: u * u.astype(int), v),
    "norm": (lambda u: u / jnp.linalg.norm(u), v),
}


@pytest.mark.parametrize("name", FIELDS)
def test_pattern_is_that_of_the_jacobian(name):
    check(*FIELDS[name], reverse=name == "custom_vjp")


@pytest.mark.parametrize("name", SUPERSETS)
def test_pattern_misses_nothing(name):
    check(*SUPERSETS[name], exact=False)


def test_zeros_of_a_parameter_do_not_count_unless_declared_known():
    closed = jax.make_jaxpr(lambda s, u: s @ u)(jnp.zeros((3, 5)), jnp.zeros(5))
    assert pattern(closed, [1]).toarray().all()
    known = np.eye(3, 5)
    assert (pattern(closed, [1], known={0: known}).toarray() == (known != 0)).all()
    closed = jax.make_jaxpr(lambda i, u: u[i])(jnp.zeros(5, int), jnp.zeros(5))
    assert pattern(closed, [1]).toarray().all()
    assert (pattern(closed, [1], known={0: np.arange(5)[::-1]}).toarray() == np.eye(5)[::-1]).all()


def test_only_the_chosen_inputs_count():
    closed = jax.make_jaxpr(lambda t, u, p: t * u + p.sum() * jnp.roll(u, 1))(1.0, jnp.zeros(4), jnp.zeros(3))
    eye = np.eye(4, dtype=bool)
    assert (pattern(closed, [1]).toarray() == eye | np.roll(eye, 1, 0)).all()
    assert pattern(closed, [2]).shape == (4, 3)
    assert pattern(closed, [0, 1]).shape == (4, 5)
    found = pattern(closed, [1])
    assert found.dtype == bool and isinstance(found, sp.csr_array) and found.has_canonical_format


def test_pattern_while_tracing():
    def f(x):
        closed = jax.make_jaxpr(lambda u: roll(u) * x)(jnp.zeros(6))  # a traced constant
        return x * pattern(closed, [0]).sum()

    assert jax.jit(f)(1.0) == 18


def test_large_patterns():
    u = jnp.zeros((100, 100))
    found = pattern(jax.make_jaxpr(laplacian)(u), [0])
    assert found.nnz == 5 * 10**4 - 400
    assert colours(found).max() < 9
    with pytest.raises(TooDense, match="as good as dense"):
        pattern(jax.make_jaxpr(jnp.fft.fft)(u), [0])


# ---------------------------------------------------------------- colours and bands


def tridiagonal(n):
    return sp.diags_array([np.ones(n - 1), np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1], format="csr")


def scrambled(n):
    order = np.random.default_rng(0).permutation(n)
    return tridiagonal(n)[order][:, order]


def is_valid(matrix, colour):
    seeds = colour[:, None] == np.arange(colour.max() + 1)
    return (sp.csr_array(matrix).astype(int) @ seeds.astype(int)).max() <= 1


@pytest.mark.parametrize(
    "matrix, most",
    [
        (tridiagonal(30), 3),
        (tridiagonal(10_000), 3),
        (scrambled(200), 3),
        (found_pattern(roll, v), 3),
        (found_pattern(laplacian, jnp.zeros((20, 20))), 7),
        (found_pattern(brusselator_interleaved, jnp.zeros(40)), 6),
        (np.eye(9), 1),
        (np.ones((6, 6)), 6),
        (RNG.random((40, 40)) < 0.05, 12),
        (sp.csr_array((2, 9), dtype=bool), 1),
    ],
)
def test_colours(matrix, most):
    colour = colours(matrix)
    assert colour.shape == (matrix.shape[1],)
    assert colour.min() == 0 and set(colour) == set(range(colour.max() + 1))
    assert is_valid(matrix, colour) and colour.max() + 1 <= most


def test_band_keeps_a_good_order_and_finds_a_better_one():
    order, lower, upper = band(tridiagonal(20))
    assert (order == np.arange(20)).all() and (lower, upper) == (1, 1)
    order, lower, upper = band(scrambled(50))
    assert sorted(order) == list(range(50)) and (lower, upper) == (1, 1)
    assert band(np.eye(4))[1:] == (0, 0)
    assert band(np.triu(np.ones((4, 4))) * np.tri(4, k=1))[1:] == (0, 1)
    _, lower, upper = band(found_pattern(brusselator_blocked, jnp.zeros(40)))
    assert lower + upper <= 6


FULL = [diffusion_slices, roll, brusselator_interleaved, brusselator_blocked, boundary_set, jnp.cumsum]


@pytest.mark.parametrize("f", FULL, ids=lambda f: f.__name__)
def test_jacobian_from_its_compressed_form(f):
    u = jnp.asarray(np.random.default_rng(1).normal(size=N))
    s = Sparsity.from_pattern(found_pattern(f, u))
    jacobian = np.asarray(jax.jacobian(f)(u))
    compressed = jacobian @ s.seeds
    assert compressed.shape == (N, s.n_colours)
    assert (s.to_dense(compressed) == jacobian).all()
    assert (s.order[s.inverse] == np.arange(N)).all()
    reordered, bands = jacobian[s.order][:, s.order], np.asarray(s.to_band(compressed))
    assert bands.shape == (N, s.lower + s.upper + 1)
    for i in range(N):
        for k in range(bands.shape[1]):
            j = i - s.lower + k
            assert bands[i, k] == (reordered[i, j] if 0 <= j < N else 0)
    many = jax.vmap(s.to_band)(jnp.stack([compressed, 2 * compressed]))
    assert (many[1] == 2 * bands).all()


def test_sparsity_is_a_static_argument():
    a, b = Sparsity.from_pattern(tridiagonal(9)), Sparsity.from_pattern(tridiagonal(9).toarray())
    other = Sparsity.from_pattern(np.eye(9))
    assert a == b and hash(a) == hash(b) and a != other
    assert other != Sparsity.from_pattern(np.eye(8))
    traces = []

    def f(x, s):
        traces.append(s)
        return s.to_dense(x)

    run = jax.jit(f, static_argnums=1)
    assert run(jnp.ones((9, 3)), a).sum() == run(jnp.ones((9, 3)), b).sum() == 25
    assert len(traces) == 1
    assert repr(a) == "<sparsity of 9 states, 25 entries, 3 colours>"


def test_sparsity_always_has_the_diagonal():
    s = Sparsity.from_pattern(np.zeros((3, 3)))
    assert (s.matrix.toarray() == np.eye(3)).all() and s.n_colours == 1 and (s.lower, s.upper) == (0, 0)
    assert Sparsity.from_pattern([[0, 1], [0, 0]]) == Sparsity.from_pattern(np.array([[1, 1], [0, 5.0]]))
    explicit_zero = sp.csr_array((np.zeros(1), ([0], [1])), shape=(2, 2))
    assert Sparsity.from_pattern(explicit_zero) == Sparsity.from_pattern(np.eye(2))


def test_sparsity_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"shape \(n, n\) of a Jacobian, got \(3, 4\)"):
        Sparsity.from_pattern(np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"got \(4,\)"):
        Sparsity.from_pattern(np.ones(4))
    with pytest.raises(ValueError, match=r"got \(2, 3\)"):
        Sparsity.from_pattern(sp.csr_array((2, 3)))
    with pytest.raises(TypeError, match="booleans or numbers, got 'dense'"):
        Sparsity.from_pattern("dense")
