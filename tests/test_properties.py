"""Properties that hold for every problem, on problems that are drawn at random.

Right values are closed forms: the matrix exponential and its Frechet derivatives by SciPy, exponentials, a transform
applied to the closed form itself. Few shapes are drawn, since each compiles. ODESENS_EXAMPLES=500 draws as many, anew
in each run; by default they are few and always the same.
"""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import odesens as ode

from .problems import BACKSOLVE, DISCRETE, FORWARD, GAUSS, INTERPOLATING, QUADRATURE

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

EXAMPLES = int(os.environ.get("ODESENS_EXAMPLES", "0"))


def draws(few: int):
    """`few` examples, always the same, or as many as the environment asks for."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=EXAMPLES or few, deadline=None, derandomize=not EXAMPLES, suppress_health_check=slow)


def numbers(low: float, high: float, shape=()):
    """Arrays of numbers of ordinary size; zero, repeats and the bounds are likely."""
    elements = st.floats(low, high, allow_subnormal=False).map(lambda x: x if abs(x) > 1e-6 else 0.0)
    return npst.arrays(float, shape, elements=elements)


# ---------------------------------------------------------------- linear systems

N = 3
MATRICES, VECTORS, SPANS = numbers(-2, 2, (N, N)), numbers(-2, 2, (N,)), st.floats(-1.5, 1.5)


def linear(alg, engine, dtype=float):
    """A, u0, t -> u(t) of u' = A u; t < 0 is backwards in time."""
    problem = ode.ODEProblem(lambda t, u, a: a @ u, jnp.zeros(N, dtype), (0.0, 1.0), jnp.zeros((N, N), dtype))

    def end(a, u0, t):
        options = {"reltol": 1e-9, "abstol": 1e-11, "sensealg": engine, "throw": False}
        return ode.solve(problem, alg, u0=u0, p=a, tspan=(0.0, t), saveat=jnp.reshape(t, 1), **options).u[-1]

    return end


WAYS = {
    f"{type(alg).__name__}, {type(engine).__name__}": (alg, engine)
    for alg, engine in [
        (ode.Tsit5(), DISCRETE),
        (ode.Vern7(), GAUSS),
        (ode.DOP853(), INTERPOLATING),
        (ode.Tsit5(), QUADRATURE),
        (ode.Vern7(), BACKSOLVE),
        (ode.Tsit5(), FORWARD),
        (ode.Rodas5P(), DISCRETE),
        (ode.Kvaerno5(), GAUSS),
        (ode.AutoTsit5(ode.Rodas5P()), DISCRETE),
        (ode.FBDF(), FORWARD),
    ]
}


@functools.cache
def gradients(way):
    """a, u0, t, w -> w' u(t) and its gradients in a, u0, t, for lanes."""
    end = linear(*WAYS[way])
    return jax.jit(jax.vmap(jax.value_and_grad(lambda a, u0, t, w: w @ end(a, u0, t), argnums=(0, 1, 2))))


LANES = 3


@pytest.mark.parametrize("way", WAYS)
@given(a=st.tuples(*[MATRICES] * LANES), u0=VECTORS, w=VECTORS, t=st.tuples(*[SPANS] * LANES))
@draws(15)
def test_gradients_of_linear_systems(way, a, u0, w, t):
    """w' exp(A t) u0, three at a time; in A by the Frechet derivative L of exp: t L(A' t, w u0')."""
    a, t = np.stack(a), np.array(t)
    u0s, ws = np.stack([u0, u0[::-1], w]), np.stack([w, u0, w])
    value, (by_a, by_u0, by_t) = gradients(way)(a, u0s, t, ws)
    for i in range(LANES):
        flow, by_flow = scipy.linalg.expm_frechet(a[i].T * t[i], np.outer(ws[i], u0s[i]))
        flow, tol = flow.T, 1e-6 * largest(a[i], t[i], u0s[i], ws[i])
        np.testing.assert_allclose(value[i], ws[i] @ flow @ u0s[i], rtol=0, atol=tol)
        np.testing.assert_allclose(by_u0[i], flow.T @ ws[i], rtol=0, atol=tol)
        np.testing.assert_allclose(by_t[i], ws[i] @ a[i] @ flow @ u0s[i], rtol=0, atol=3 * tol)
        np.testing.assert_allclose(by_a[i], t[i] * by_flow, rtol=0, atol=tol)


def largest(a, t, *vectors):
    """What the terms of the flow can add up to at most, times the sizes of vectors."""
    return np.linalg.norm(scipy.linalg.expm(np.abs(a * t))) * np.prod([1 + np.linalg.norm(v) for v in vectors])


@jax.jit
def tangents_of_complex(primals, tangents):
    return [
        jax.jvp(linear(alg, s, complex), primals, tangents) for alg, s in ((ode.Tsit5(), DISCRETE), (None, FORWARD))
    ]


@given(a=st.tuples(*[MATRICES] * 4), u=st.tuples(*[VECTORS] * 4), t=SPANS, s=SPANS)
@draws(15)
def test_tangents_of_complex_linear_systems(a, u, t, s):
    """d exp(A t) u0 = L(A t, dA t + A dt) u0 + exp(A t) du0."""
    (a, da), (u0, du0) = ((x[0] + 1j * x[1], x[2] + 1j * x[3]) for x in (a, u))
    flow, change = scipy.linalg.expm_frechet(a * t, da * t + a * s)
    tol = 1e-6 * largest(a, t, da, u0, du0)
    for value, tangent in tangents_of_complex((a, u0, t), (da, du0, s)):
        np.testing.assert_allclose(value, flow @ u0, rtol=0, atol=tol)
        np.testing.assert_allclose(tangent, change @ u0 + flow @ du0, rtol=0, atol=3 * tol)


@jax.jit
def second(a, da, u0, t, w):
    """w' u twice along dA: forward over forward, and reverse over reverse."""
    end = lambda r: w @ linear(ode.Tsit5(), DISCRETE)(a + r * da, u0, t)
    return jax.jacfwd(jax.jacfwd(end))(0.0), jax.grad(jax.grad(end))(0.0)


@given(a=MATRICES, da=MATRICES, u0=VECTORS, w=VECTORS, t=SPANS)
@draws(15)
def test_second_derivatives_of_linear_systems(a, da, u0, w, t):
    """The upper right block of exp of [[A, E, 0], [0, A, E], [0, 0, A]] is half the second derivative along E."""
    block = np.kron(np.eye(3), a) + np.kron(np.eye(3, k=1), da)
    want = 2 * w @ scipy.linalg.expm(block * t)[:N, -N:] @ u0
    tol = 1e-6 * largest(block, t, da, u0, w)
    np.testing.assert_allclose(second(a, da, u0, t, w), [want, want], rtol=0, atol=tol)


# ---------------------------------------------------------------- pytrees

LEAVES = [
    None,
    np.array(0.7),
    np.array([0.5 - 0.25j]),
    np.array([[0.3, -0.6]], np.float32),
    np.zeros((0, 2)),
    np.array([-0.8, 0.2, 0.1]),
]
TREES = st.recursive(
    st.sampled_from(LEAVES),
    lambda parts: st.one_of(
        st.dictionaries(st.sampled_from("abc"), parts, max_size=3), st.lists(parts, max_size=3), st.tuples(parts, parts)
    ),
    max_leaves=5,
)
MOST = 16  # entries of a tree
FIXED = {"dt0": 1 / 8, "saveat": [0.5, 1.0], "reltol": 1e-4}


def coupled(t, u, p):
    """Each entry decays at a rate of its own and is driven by the sum of all of them."""
    total = sum((jnp.sum(x).real.astype(float) for x in jax.tree.leaves(u)), jnp.zeros(()))
    return jax.tree.map(lambda x, k: (-k * x + jnp.sin(total + t)).astype(x.dtype), u, p)


def loss_of(us):
    return sum((jnp.sum(jnp.abs(x) ** 2).astype(float) for x in jax.tree.leaves(us)), jnp.zeros(()))


def solved(f, u0, p):
    us = ode.solve(ode.ODEProblem(f, u0, (0.0, 1.0), p), ode.RK4(), **FIXED).u
    return loss_of(us), us


@jax.jit
def flattened(u0, p, mask):
    """The same as one complex vector, of which the mask's entries take part."""

    def f(t, u, p):
        return mask * (-p * u + jnp.sin(jnp.sum(u).real + t))

    return jax.value_and_grad(lambda *x: solved(f, *x), argnums=(0, 1), has_aux=True)(u0, p)


def padded(tree):
    flat = np.concatenate([np.zeros(0), *(np.ravel(x) for x in jax.tree.leaves(tree))])
    return np.pad(flat.astype(complex), (0, MOST - flat.size)), np.arange(MOST) < flat.size


@given(u0=TREES)
@draws(15)
def test_trees_are_solved_as_their_flattened_entries(u0):
    leaves = jax.tree.leaves(u0)
    assume(u0 is not None and sum(x.size for x in leaves) <= MOST)
    p = jax.tree.map(lambda x: (x * 0.5 + 1).astype(x.dtype), u0)
    (value, us), bars = jax.value_and_grad(lambda *x: solved(coupled, *x), argnums=(0, 1), has_aux=True)(u0, p)
    assert jax.tree.structure(us) == jax.tree.structure(u0)
    (u_flat, mask), (p_flat, _) = padded(u0), padded(p)
    (want, want_us), want_bars = flattened(u_flat, p_flat, mask)
    tol = 1e-12 if all(x.dtype != np.float32 for x in leaves) else 1e-5
    np.testing.assert_allclose(value, want, rtol=tol)
    start = 0
    for i, x in enumerate(leaves):
        assert jax.tree.leaves(us)[i].dtype == x.dtype and jax.tree.leaves(us)[i].shape == (2, *x.shape)
        part = slice(start, start := start + x.size)
        np.testing.assert_allclose(jax.tree.leaves(us)[i].reshape(2, -1), want_us[:, part], rtol=tol, atol=tol)
        for got, right in zip(bars, want_bars, strict=True):
            got, right = jax.tree.leaves(got)[i], right[part]
            assert got.dtype == x.dtype
            right = right if np.iscomplexobj(x) else right.real
            np.testing.assert_allclose(got.reshape(-1), right, rtol=10 * tol, atol=10 * tol)


# ---------------------------------------------------------------- saved times

PARTS = [0.1, 0.25, 0.3, 1.0, 2.5]  # of the span
TIMES = st.sampled_from([0, 1, 3, 6]).flatmap(
    lambda m: st.lists(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)), min_size=m, max_size=m)
)
ENDS = st.floats(-50, 50).map(lambda x: round(x, 3))


@given(t0=ENDS, length=st.floats(1e-3, 4), backwards=st.booleans(), how=st.one_of(st.sampled_from(PARTS), TIMES))
@draws(40)
def test_saved_times(t0, length, backwards, how):
    """u = exp(-(t - t0) / 2), at the times asked for, in the order of the integration, however often each."""
    sign = -1 if backwards else 1
    t1 = t0 + sign * length
    if isinstance(how, float):
        step = how * abs(t1 - t0)
        times = t0 + sign * step * np.arange(int(np.ceil(1 / how * (1 - 1e-9))))
        times, saveat = np.append(times, t1), step
    else:
        times = np.clip(t0 + (t1 - t0) * np.sort(how), *sorted((t0, t1)))
        saveat = list(times) if len(how) == 3 else times
    problem = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (t0, t1), 0.5, reltol=1e-8, abstol=1e-10)
    sol = ode.solve(problem, ode.Tsit5(), saveat=saveat)
    assert sol.success and len(sol) == len(times)
    np.testing.assert_allclose(sol.t, times, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(sol.u, np.exp(-(times - t0) / 2), rtol=1e-6)
    assert not len(times) or np.all(np.diff(sol.t) * sign >= 0)


# ---------------------------------------------------------------- transforms of transforms


def end(x):
    """u(1) of u' = x u (1 - u), u(0) = 0.3, by short steps."""
    problem = ode.ODEProblem(lambda t, u, x: x * u * (1 - u), 0.3, (0.0, 1.0), x, saveat=[1.0])
    return ode.solve(problem, ode.RK4(), dt0=1 / 64).u[0]


def closed_form(x):
    return 1 / (1 + (1 / 0.3 - 1) * jnp.exp(-x))


POINTS = np.array([1.0, 0.5, -1.5])
TRANSFORMS = {  # of a function of a number into another one: (how, the order of its derivatives)
    "grad": (jax.grad, 1),
    "jacfwd": (jax.jacfwd, 1),
    "jacrev": (jax.jacrev, 1),
    "hessian": (jax.hessian, 2),
    "jit": (jax.jit, 0),
    "checkpoint": (jax.checkpoint, 0),
    "vmap": (lambda f: lambda x: jnp.sum(jax.vmap(f)(x * POINTS) * POINTS), 0),
    "scan": (lambda f: lambda x: jax.lax.scan(lambda c, s: (c + s * f(x * s), None), 0.0 * x, POINTS)[0], 0),
}


@given(names=st.lists(st.sampled_from(sorted(TRANSFORMS)), min_size=1, max_size=3), x=st.floats(-2, 2))
@draws(15)
def test_nestings_of_transforms(names, x):
    """The same transforms of the closed form."""
    assume(sum(TRANSFORMS[name][1] for name in names) <= 3)
    got, want = end, closed_form
    for name in names:
        got, want = TRANSFORMS[name][0](got), TRANSFORMS[name][0](want)
    np.testing.assert_allclose(got(x), want(x), rtol=1e-6, atol=1e-6)
