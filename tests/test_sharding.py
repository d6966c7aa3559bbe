"""Solves and their derivatives on several devices: `shard_map` that checks varying axes, explicit and other meshes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import odesens as ode

from .problems import ENGINES, V0, loss_of, saved

VS = jnp.stack([V0 * (1 + 0.02 * i) for i in range(4)])
OPTIONS = {"reltol": 1e-8, "abstol": 1e-8}


def mesh(kind):
    return jax.make_mesh((2,), ("i",), axis_types=(kind,))


def loss(sensealg=None):
    return lambda v: loss_of(saved(v, sensealg, **OPTIONS))


@pytest.fixture(scope="module")
def gradients():
    return np.asarray(jax.jit(jax.vmap(jax.grad(loss())))(VS))


def test_there_are_devices_to_test_on():
    assert len(jax.devices()) == 8


def shards(f):
    return jax.shard_map(f, mesh=mesh(AxisType.Auto), in_specs=P("i"), out_specs=P("i"), check_vma=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_shard_map_with_varying_axes_checked(engine):
    f = loss(ENGINES[engine])
    want = jax.jit(jax.vmap(jax.grad(f)))(VS)
    inside = jax.jit(shards(jax.vmap(jax.grad(f))))(VS)
    np.testing.assert_allclose(inside, want, rtol=1e-12, atol=1e-12)


def test_gradient_of_a_sharded_loss(gradients):
    outside = jax.jit(jax.grad(lambda vs: jnp.sum(shards(jax.vmap(loss()))(vs))))(VS)
    np.testing.assert_allclose(outside, gradients, rtol=1e-12, atol=1e-12)


def test_parameters_shared_by_the_shards_get_the_sum():
    of = lambda u0, p: loss_of(saved(jnp.concatenate([u0, p]), **OPTIONS))
    batch = lambda u0s, p: jax.vmap(of, (0, None))(u0s, p)
    sharded = jax.shard_map(batch, mesh=mesh(AxisType.Auto), in_specs=(P("i"), P()), out_specs=P("i"), check_vma=True)
    got = jax.jit(jax.grad(lambda p: jnp.sum(sharded(VS[:, :2], p))))(V0[2:])
    want = jax.jit(jax.grad(lambda p: jnp.sum(batch(VS[:, :2], p))))(V0[2:])
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_hessian_inside_shard_map():
    got = jax.jit(shards(jax.vmap(jax.hessian(loss()))))(VS)
    np.testing.assert_allclose(got[2], jax.jit(jax.hessian(loss()))(VS[2]), rtol=1e-10, atol=1e-9)


def test_explicit_mesh(gradients):
    explicit = mesh(AxisType.Explicit)
    with jax.set_mesh(explicit):
        vs = jax.device_put(VS, NamedSharding(explicit, P("i")))
        values = jax.jit(jax.vmap(loss()))(vs)
        got = jax.jit(jax.grad(lambda vs: jnp.sum(jax.vmap(loss())(vs))))(vs)
        assert jax.typeof(values).sharding.spec == P("i")
        assert jax.typeof(got).sharding.spec[0] == "i"
    np.testing.assert_allclose(got, gradients, rtol=1e-12, atol=1e-12)


def test_automatic_sharding_of_a_batch(gradients):
    vs = jax.device_put(VS, NamedSharding(mesh(AxisType.Auto), P("i")))
    got = jax.jit(jax.grad(lambda vs: jnp.sum(jax.vmap(loss())(vs))))(vs)
    np.testing.assert_allclose(got, gradients, rtol=1e-12, atol=1e-12)


def dae(alg, sensealg=None):
    """The sum of squares of x' = -a x + y, 0 = y^3 - b x, whose y at t0 is solved for."""

    def field(t, u, p):
        return jnp.stack([-p[0] * u[0] + u[1], u[1] ** 3 - p[1] * u[0]])

    def of(v):
        prob = ode.ODEProblem(field, jnp.stack([v[0], 0.5 * v[0]]), (0.0, 1.0), v[1:], mass_matrix=[1.0, 0.0])
        return jnp.sum(ode.solve(prob, alg, saveat=np.array([0.0, 0.5, 1.0]), sensealg=sensealg).u ** 2)

    return of


DAES = {
    "rodas": (ode.Rodas5P(), None),
    "esdirk": (ode.Kvaerno5(), None),
    "bdf": (ode.FBDF(), None),
    "gauss": (ode.Rodas5P(), ode.GaussAdjoint()),
    "forward": (ode.Rodas5P(), ode.ForwardSensitivity()),
}


@pytest.mark.parametrize("name", DAES)
def test_algebraic_equations_and_no_sum_over_devices_inside_a_loop(name):
    """Devices make different numbers of steps: a collective operation in the loop would wait forever."""
    gradient = jax.jit(shards(jax.vmap(jax.grad(dae(*DAES[name])))))
    vs = VS[:2, :3]
    assert "all_reduce" not in gradient.lower(vs).as_text()
    if name in ("rodas", "bdf"):
        alone = jax.jit(jax.grad(dae(*DAES[name])))  # whether Newton iterates once more may turn on rounding in lanes
        want = jnp.stack([alone(v) for v in vs])
        np.testing.assert_allclose(gradient(vs), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_sums_over_devices(engine):
    hessian = jax.jit(shards(jax.vmap(jax.hessian(loss(ENGINES[engine])))))
    assert "all_reduce" not in hessian.lower(VS).as_text()
