"""The closure table, cell by cell: every nesting of derivatives, on every engine, against JAX's own derivatives of a
plain RK4 solution that knows nothing of odesens."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .problems import ENGINES, V0, loss_of, rk4_saved, saved

D = jnp.array([0.3, -0.2, 0.5, 0.1, -0.4, 0.2])

DERIVATIVES = {
    "grad": jax.grad,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian fwd-rev": lambda f: jax.jacfwd(jax.grad(f)),
    "hessian rev-rev": lambda f: jax.jacrev(jax.grad(f)),
    "hessian rev-fwd": lambda f: jax.jacrev(jax.jacfwd(f)),
    "hessian fwd-fwd": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "hvp": lambda f: lambda v: jax.jvp(jax.grad(f), (v,), (D,))[1],
    "third rev-rev-rev": lambda f: lambda v: jax.grad(jax.grad(jax.grad(lambda e: f(v + e * D))))(0.0),
    "third fwd-rev-fwd": lambda f: lambda v: jax.jacfwd(jax.grad(jax.jacfwd(lambda e: f(v + e * D))))(0.0),
}
ORDER = {"grad": "grad", "jacfwd": "grad", "jacrev": "grad", "hvp": "hvp"}


@cache
def reference(kind: str):
    """Derivatives of the RK4 solution, one nesting an order."""
    f = lambda v: loss_of(rk4_saved(v))
    chosen = {"grad": jax.jacfwd, "hvp": DERIVATIVES["hvp"]}.get(kind)
    chosen = chosen or (DERIVATIVES["hessian fwd-rev"] if "hessian" in kind else DERIVATIVES["third fwd-rev-fwd"])
    return np.asarray(jax.jit(chosen(f))(V0))


REVERSE = ("grad", "hessian fwd-rev", "hessian rev-rev", "third rev-rev-rev")  # the others share their forward mode
# the first two engines in full, but for one of the second's third orders, the slowest
FULL = {"discrete": DERIVATIVES, "interpolating": [k for k in DERIVATIVES if k != "third rev-rev-rev"]}
CELLS = [(e, k) for e in ENGINES for k in FULL.get(e, REVERSE)]


@cache
def derivative(engine: str, kind: str):
    """The compiled derivative as a function of v and of the tolerance, shared by the tests of this module."""
    f = lambda tol: lambda v: loss_of(saved(v, ENGINES[engine], reltol=tol, abstol=tol))
    return jax.jit(lambda v, tol: DERIVATIVES[kind](f(tol))(v))


@pytest.mark.parametrize("engine, kind", CELLS)
def test_every_nesting_agrees_with_an_independent_derivative(engine, kind):
    got = np.asarray(derivative(engine, kind)(V0, 1e-10))
    want = reference(ORDER.get(kind, kind.split()[0]))
    np.testing.assert_allclose(got, want, rtol=3e-8, atol=3e-8 * np.abs(want).max())


def test_nestings_of_the_discrete_engine_agree_to_rounding():
    hessians = [np.asarray(derivative("discrete", k)(V0, 1e-6)) for k in DERIVATIVES if k.startswith("hessian")]
    for h in hessians[1:]:
        np.testing.assert_allclose(h, hessians[0], rtol=1e-10, atol=1e-10 * np.abs(h).max())


VS = jnp.stack([V0, V0 * 1.05, V0 * 0.9])
BATCHED = {
    "grad of vmap": lambda f: jax.grad(lambda vs: jnp.sum(jax.vmap(f)(vs))),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
    "vmap of jacfwd": lambda f: jax.vmap(jax.jacfwd(f)),
    "jit of vmap of jit of grad": lambda f: jax.vmap(jax.jit(jax.grad(jax.jit(f)))),
}


BATCHES = [(e, k) for e in ENGINES for k in BATCHED if e == "discrete" or k == "vmap of grad"]


@pytest.mark.parametrize("engine, kind", BATCHES)
def test_vmap_inside_and_outside(engine, kind):
    f = lambda v: loss_of(saved(v, ENGINES[engine], reltol=1e-8, abstol=1e-8))
    one = derivative(engine, "jacfwd" if "jacfwd" in kind else "grad")
    got = np.asarray(jax.jit(BATCHED[kind](f))(VS))
    np.testing.assert_allclose(got, [one(v, 1e-8) for v in VS], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["discrete", "gauss"])
def test_second_order_with_vmap(engine):
    f = lambda v: loss_of(saved(v, ENGINES[engine], reltol=1e-8, abstol=1e-8))
    one = np.asarray(derivative(engine, "hessian fwd-rev")(V0, 1e-8))
    tolerance = {"rtol": 1e-10, "atol": 1e-10 * np.abs(one).max()}
    many = jax.jit(jax.vmap(jax.hessian(f)))(VS)
    np.testing.assert_allclose(many[0], one, **tolerance)
    both = jax.jit(jax.hessian(lambda v: jnp.sum(jax.vmap(f)(jnp.stack([v, v])))))(V0)
    np.testing.assert_allclose(both / 2, one, **tolerance)


@pytest.mark.parametrize("engine", ["discrete", "gauss", "backsolve"])
def test_shared_parameters_of_a_batch_get_the_sum(engine):
    options = {"reltol": 1e-8, "abstol": 1e-8}
    of = lambda u0, p: loss_of(saved(jnp.concatenate([u0, p]), ENGINES[engine], **options))
    batch = jax.jit(jax.grad(lambda p: jnp.sum(jax.vmap(of, (0, None))(VS[:, :2], p))))
    single = derivative(engine, "grad")
    want = sum(single(jnp.concatenate([v[:2], V0[2:]]), 1e-8)[2:] for v in VS)
    np.testing.assert_allclose(batch(V0[2:]), want, rtol=1e-12)


CONTROL = {
    "jit": lambda f, v: jax.jit(jax.grad(f))(v),
    "eager": lambda f, v: jax.grad(f)(v),
    "scan": lambda f, v: jax.grad(lambda v: jax.lax.scan(lambda c, _: (c + f(v), None), 0.0, None, length=3)[0] / 3)(v),
    "cond": lambda f, v: jax.grad(lambda v: jax.lax.cond(v[0] > 0.5, f, lambda v: 0.0 * v[0], v))(v),
    "checkpoint": lambda f, v: jax.grad(jax.checkpoint(f))(v),
    "linearize": lambda f, v: jax.vmap(jax.linearize(f, v)[1])(jnp.eye(v.size)),
    "vjp": lambda f, v: jax.vjp(f, v)[1](1.0)[0],
    "linear_transpose": lambda f, v: jax.linear_transpose(jax.linearize(f, v)[1], v)(1.0)[0],
}


@pytest.mark.parametrize("control", CONTROL)
def test_control_flow_and_partial_evaluation(control):
    f = lambda v: loss_of(saved(v))
    np.testing.assert_allclose(CONTROL[control](f, V0), reference("grad"), rtol=1e-8, atol=1e-8)


# ---------------------------------------------------------------- custom rules inside the field


@jax.custom_jvp
def wrong_square(x):
    return x * x


@wrong_square.defjvp
def _(primals, tangents):
    (x,), (d,) = primals, tangents
    return x * x, 2 * (2 * x * d)  # deliberately twice the right tangent


@pytest.mark.parametrize("engine", ["discrete", "gauss"])
def test_a_wrong_rule_inside_the_field_shows_at_every_order(engine):
    import odesens as ode

    def value(v):
        f = lambda t, u, p: -p * wrong_square(u) + jnp.sin(t)
        prob = ode.ODEProblem(f, v[0], (0.0, 1.0), v[1])
        return ode.solve(
            prob, ode.Tsit5(), saveat=[0.5, 1.0], reltol=1e-11, abstol=1e-11, sensealg=ENGINES[engine]
        ).u.sum()

    def rk4(v, square=wrong_square):
        """Plain steps of the same field: JAX's own derivatives of the wrong rule."""
        f = lambda t, u: -v[1] * square(u) + jnp.sin(t)
        h = 1 / 400

        def step(u, t):
            k1 = f(t, u)
            k2 = f(t + h / 2, u + h / 2 * k1)
            k3 = f(t + h / 2, u + h / 2 * k2)
            k4 = f(t + h, u + h * k3)
            u = u + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return u, u

        us = jax.lax.scan(step, v[0], jnp.arange(400) * h)[1]
        return us[199] + us[399]

    # along one direction, since a rule that is no derivative makes mixed second derivatives depend on their order
    on_line = lambda g: lambda e: g(jnp.array([0.8 + e, 1.3 - 2 * e]))
    f = on_line(value)
    wants, g, smooth = [], on_line(rk4), on_line(lambda v: rk4(v, jnp.square))
    for _ in range(3):
        g, smooth = jax.jacfwd(g), jax.jacfwd(smooth)
        wants.append(jax.jit(g)(0.0))
        assert not np.allclose(wants[-1], jax.jit(smooth)(0.0), rtol=1e-2)
    # each nesting by the discrete engine; by the other one those whose forward mode it does not share with it
    kinds = [k for k in DERIVATIVES if "hessian" in k and (engine == "discrete" or k.endswith("rev"))]
    third = lambda f: jax.jacfwd(jax.jacfwd(jax.grad(f)))
    for order, nesting in [(1, jax.grad), *((2, DERIVATIVES[k]) for k in kinds), (3, third)]:
        np.testing.assert_allclose(jax.jit(nesting(f))(0.0), wants[order - 1], rtol=2e-8, err_msg=f"order {order}")


def test_a_custom_vjp_inside_the_field_works_in_reverse_mode():
    import odesens as ode

    @jax.custom_vjp
    def double_back(x):
        return x

    double_back.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))
    for engine, sensealg in ENGINES.items():
        if engine == "forward":
            continue  # it needs the field's forward mode, which a custom_vjp does not have
        prob = ode.ODEProblem(lambda t, u, p: double_back(p * jnp.ones_like(u)), jnp.zeros(2), (0.0, 1.0))
        g = jax.grad(lambda p: ode.solve(prob, p=p, saveat=[1.0], sensealg=sensealg).u.sum())(0.7)
        assert g == pytest.approx(4.0, abs=1e-12), engine
