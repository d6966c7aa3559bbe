"""Small loops compiled to one native function: which programs are marked, and that marking changes no value."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import odesens as ode
from odesens import extension, primitive
from odesens.evaluate import evaluate
from odesens.extension import subjaxprs
from odesens.primitive import flow

from .problems import ENGINES, V0, close, loss_of, saved

A = jnp.array([[-0.3, 1.2], [-1.1, -0.2]])


@jax.custom_jvp
def cube(x):
    return x**3


cube.defjvp(lambda x, d: (x[0] ** 3, 3 * x[0] ** 2 * d[0]))

WHOLE = {
    "arithmetic": lambda t, u, p: jnp.stack([p[0] * u[1] * jnp.cos(t), -(u[0] ** 3) + p[1] / (1 + u[1] ** 2)]),
    "functions": lambda t, u, p: jnp.tanh(p) * jnp.exp(-(u**2)) + jax.scipy.special.erf(u) - jnp.arctan2(u, p),
    "matrix": lambda t, u, p: A @ u * p,
    "reductions": lambda t, u, p: -p * u * jnp.sum(u**2) + jnp.prod(u) - u * jnp.linalg.norm(p),
    "shapes": lambda t, u, p: jnp.roll(u, 1) - jnp.concatenate([u[1:], u[:1] * p[0]]) + p[::-1],
    "branches": lambda t, u, p: jax.lax.cond(u[0] > 0, lambda: -u * p, lambda: u + p),
    "loops": lambda t, u, p: jax.lax.scan(lambda c, x: (0.9 * c + x, None), -u, jnp.stack([p, u]))[0],
    "custom rule": lambda t, u, p: -p * cube(u),
    "index": lambda t, u, p: p * u[jnp.array([1, 0])] - u,
    "largest": lambda t, u, p: -p * u * (1 + 0.1 * jnp.argmax(jnp.stack([u, p, 0 * u]), axis=0)),
    "tile": lambda t, u, p: -p * u + jnp.sum(jnp.tile(u, (2, 3)), axis=0)[2:4] * 0.1,
}
OTHER = {
    "scatter": lambda t, u, p: (-p * u).at[jnp.array([0, 1, 0])].add(0.1 * u[0]),
    "maximum": lambda t, u, p: -p * u + jnp.max(u),
    "sort": lambda t, u, p: -p * jnp.sort(u),
    "linear solve": lambda t, u, p: jnp.linalg.solve(A, p * u),
    "fft": lambda t, u, p: -p * jnp.fft.fft(u).real,
    "large product": lambda t, u, p: -p * u + (jnp.ones((64, 64)) @ jnp.repeat(u, 32))[:2] * 1e-3,
}


def endpoint(f, v, **options):
    prob = ode.ODEProblem(f, v[:2], (0.0, 1.5), v[2:])
    return ode.solve(prob, saveat=[0.4, 0.9, 1.5], reltol=1e-7, abstol=1e-7, **options).u


def primitives(jaxpr) -> set:
    return {e.primitive.name for e in jaxpr.eqns}.union(*(primitives(inner) for inner in subjaxprs(jaxpr)))


def marked(f, derivative) -> list[bool]:
    """Of each call of the flow in a derivative of the field's flow: whether its program has a marked part."""
    start = jnp.array([0.7, -0.4, 0.6, 0.8])
    jaxpr = jax.make_jaxpr(derivative(lambda v: loss_of(endpoint(f, v))))(start).jaxpr

    def calls(jaxpr):
        mine = [e for e in jaxpr.eqns if e.primitive.name == "ode_flow"]
        return mine + [e for inner in subjaxprs(jaxpr) for e in calls(inner)]

    found = []
    for eqn in calls(jaxpr):
        operands = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        inside = jax.make_jaxpr(functools.partial(evaluate, eqn.params["call"], flow))(*operands)
        found.append("compiled_whole" in primitives(inside.jaxpr))
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_small_fields_run_whole_and_give_the_same_values(name, monkeypatch):
    start = jnp.array([0.7, -0.4, 0.6, 0.8])
    f = WHOLE[name]
    assert marked(f, lambda g: g) == [True]
    if name != "index":  # the transpose of an indexing is a scatter
        assert marked(f, jax.grad) == [True, True]
    loss = lambda v: loss_of(endpoint(f, v))
    value, gradient = jax.jit(jax.value_and_grad(loss))(start)
    forward = jax.jit(jax.jacfwd(loss))(start)
    monkeypatch.setattr(extension, "_WHOLE_TESTED", False)
    jax.clear_caches()
    primitive._compiled.cache_clear()
    assert marked(f, jax.grad) == [False, False]
    value2, gradient2 = jax.jit(jax.value_and_grad(loss))(start)
    primitive._compiled.cache_clear()
    close(value, value2, 1e-13)
    close(gradient, gradient2, 1e-11)
    close(forward, gradient2, 1e-10)


@pytest.mark.parametrize("alg", [ode.Rodas5P(), ode.Kvaerno5(), ode.AutoTsit5(ode.Rodas5P())], ids=repr)
def test_stiff_methods_run_whole_and_give_the_same_values(alg, monkeypatch):
    start = jnp.array([0.7, -0.4, 0.6, 0.8])
    f = lambda t, u, p: jnp.stack([p[0] * u[1] * jnp.cos(t), -300 * (u[1] - u[0] ** 2) + p[1]])
    loss = lambda v: loss_of(endpoint(f, v, alg=alg))
    value, gradient = jax.jit(jax.value_and_grad(loss))(start)
    asked = []
    monkeypatch.setattr(extension, "can_be_whole", lambda jaxpr: asked.append(jaxpr))
    jax.clear_caches()
    primitive._compiled.cache_clear()
    value2, gradient2 = jax.jit(jax.value_and_grad(loss))(start)
    primitive._compiled.cache_clear()
    monkeypatch.undo()
    assert len(asked) >= 2 and all(extension.can_be_whole(jaxpr) for jaxpr in asked)
    close(value, value2, 1e-11)
    close(gradient, gradient2, 1e-9)


@pytest.mark.parametrize("name", OTHER)
def test_what_cannot_run_whole_is_not_marked(name):
    start = jnp.array([0.7, -0.4, 0.6, 0.8])
    assert not any(marked(OTHER[name], jax.grad))
    loss = lambda v: loss_of(endpoint(OTHER[name], v))
    close(jax.jit(jax.grad(loss))(start), jax.jit(jax.jacfwd(loss))(start), 1e-9)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex128, jnp.complex64])
def test_other_dtypes_run_whole(dtype):
    """u' = p u: u(1) = exp(p) u0."""
    f = lambda t, u, p: p * u
    prob = ode.ODEProblem(f, jnp.ones(2, dtype), (0.0, 1.0), 0.5)
    value, slope = jax.jit(jax.value_and_grad(lambda p: jnp.sum(jnp.real(ode.solve(prob, p=p, saveat=[1.0]).u))))(0.5)
    np.testing.assert_allclose([value, slope], 2 * np.exp(0.5), rtol=2e-5)


def test_a_problem_of_constants_alone_compiles():
    """XLA would move constants into the function; every one of its parameters must stay in use."""
    solution = jax.jit(lambda: ode.solve(ode.ODEProblem(WHOLE["arithmetic"], [1.0, 0.5], (0, 1), [0.3, 0.2])).u)()
    eager = ode.solve(ode.ODEProblem(WHOLE["arithmetic"], [1.0, 0.5], (0, 1), [0.3, 0.2])).u
    np.testing.assert_allclose(solution[: len(eager)], eager, rtol=1e-12)
    gradient = lambda: jax.grad(
        lambda p: ode.solve(ode.ODEProblem(WHOLE["arithmetic"], [1.0, 0.5], (0, 1), p)).u[-1, 0]
    )
    np.testing.assert_allclose(jax.jit(lambda: gradient()(jnp.array([0.3, 0.2])))(), gradient()(jnp.array([0.3, 0.2])))


@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("i")])
def test_under_automatic_sharding(spec):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("i",))
    v = jax.device_put(V0, NamedSharding(mesh, spec))
    got = jax.jit(jax.grad(lambda v: loss_of(saved(v))))(v)
    close(got, jax.grad(lambda v: loss_of(saved(v)))(V0), 1e-12)


def test_lanes_and_states_sharded_by_their_inputs():
    """Inputs on several devices without a mesh being set: XLA partitions the program, loops included."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    spread = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec("x")))
    one = lambda u0, rate: ode.solve(ode.ODEProblem(lambda t, u, p: -p * u, u0, (0.0, 1.0), rate), saveat=[1.0]).u[0]
    rates = jnp.linspace(0.1, 1.0, 8)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(one, (None, 0)))(1.0, spread(rates)), np.exp(-rates), rtol=1e-5, err_msg="lanes"
    )
    slope = jax.jit(jax.vmap(jax.grad(one, 1), (None, 0)))(1.0, spread(rates))
    np.testing.assert_allclose(slope, -np.exp(-rates), rtol=1e-5)
    total = lambda u0: jnp.sum(one(u0, 0.5))
    for program in (jax.jit(jax.grad(total)), jax.grad(total)):
        np.testing.assert_allclose(program(spread(jnp.ones(4))), np.full(4, np.exp(-0.5)), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_runs_whole(engine):
    loss = lambda v: loss_of(saved(v, ENGINES[engine]))
    jaxpr = jax.make_jaxpr(jax.grad(loss))(V0).jaxpr
    for eqn in (e for e in jaxpr.eqns if e.primitive.name == "ode_flow"):
        operands = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        inside = jax.make_jaxpr(functools.partial(evaluate, eqn.params["call"], flow))(*operands)
        assert "compiled_whole" in primitives(inside.jaxpr)


PROGRAM = """
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
import odesens as ode
f = lambda t, u, p: jnp.stack([p * u[1], -jnp.sin(u[0])])
loss = lambda p: ode.solve(ode.ODEProblem(f, jnp.ones(2), (0.0, 2.0), p), saveat=[2.0]).u[0, 0]
print(repr(float(jax.jit(jax.grad(loss))(1.3))))
"""


@pytest.mark.parametrize("flags", ["", "--xla_backend_optimization_level=0", "--xla_cpu_enable_fast_math=true"])
def test_with_other_compiler_flags(flags):
    """In processes of their own, since flags are read once, and XLA ends a process where it cannot do as it is told."""
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    out = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr[-2000:]
    loss = lambda p: ode.solve(
        ode.ODEProblem(lambda t, u, p: jnp.stack([p * u[1], -jnp.sin(u[0])]), jnp.ones(2), (0.0, 2.0), p), saveat=[2.0]
    ).u[0, 0]
    assert float(out.stdout) == pytest.approx(float(jax.jit(jax.grad(loss))(1.3)), rel=1e-9)
