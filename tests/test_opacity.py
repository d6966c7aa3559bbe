"""What AD and the compiler see of a solve: one equation, whatever the method and the model; and nothing twice."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode
from odesens.extension import count_equations as equations
from odesens.extension import subjaxprs

from .problems import ENGINES

LOOPS = ("while", "scan", "cond")


def primitives(jaxpr) -> set:
    names = {e.primitive.name for e in jaxpr.eqns}
    return names.union(*(primitives(inner) for inner in subjaxprs(jaxpr)))


def decay_chain(n):
    """A chain of n states; its operations grow with n."""

    def f(t, u, p):
        parts = [-p * u[0]]
        for i in range(1, n):
            parts.append(p * (u[i - 1] - u[i]))
        return jnp.stack(parts)

    return ode.ODEProblem(f, jnp.ones(n), (0.0, 1.0), 0.5)


def loss(prob, alg=None, **options):
    return lambda p: jnp.sum(ode.solve(prob, alg, p=p, saveat=[0.5, 1.0], **options).u ** 2)


def test_no_solver_internals_outside_the_primitive():
    for engine in ENGINES.values():
        jaxpr = jax.make_jaxpr(jax.grad(loss(decay_chain(2), sensealg=engine)))(0.5).jaxpr
        assert not primitives(jaxpr) & set(LOOPS)
        assert "ode_flow" in primitives(jaxpr)


def test_the_program_outside_does_not_depend_on_method_call_or_model():
    count = lambda prob, alg: equations(jax.make_jaxpr(jax.grad(loss(prob, alg)))(0.5).jaxpr)
    first = count(decay_chain(2), ode.Tsit5())
    assert count(decay_chain(2), ode.Vern9()) == first
    assert count(decay_chain(200), ode.Tsit5()) == first
    assert [count(decay_chain(2), ode.Tsit5()) for _ in range(9)] == [first] * 9


@pytest.mark.parametrize("derivative", [lambda g: g, jax.grad, jax.hessian], ids=["solve", "grad", "hessian"])
def test_f_is_traced_once(derivative):
    calls = itertools.count()
    called = []

    def f(t, u, p):
        called.append(next(calls))
        return -p * u

    prob = ode.ODEProblem(f, jnp.ones(2), (0.0, 1.0), 0.5)
    jax.jit(derivative(loss(prob)))(0.5)
    assert len(called) == 1


COMPILED: list[str] = []


@jax.monitoring.register_event_duration_secs_listener
def listen(event, duration, **_):
    if event.endswith("backend_compile_duration"):
        COMPILED.append(event)


def compilations(run) -> int:
    """The number of XLA compilations while `run()` runs."""
    before = len(COMPILED)
    run()
    return len(COMPILED) - before


@jax.custom_jvp
def cube(x):
    return x**3


cube.defjvp(lambda x, d: (x[0] ** 3, 3 * x[0] ** 2 * d[0]))

FIELDS = {
    "plain": lambda: lambda t, u, p: -p * u,
    "captured array": lambda: (lambda c: lambda t, u, p: -p * u * c)(np.array([1.0, 2.0])),
    "relu and softplus": lambda: lambda t, u, p: jax.nn.relu(-p * u) + jax.nn.softplus(u),
    "custom_jvp": lambda: lambda t, u, p: -p * cube(u),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_second_eager_call_compiles_nothing(field):
    def gradient(p):
        prob = ode.ODEProblem(FIELDS[field](), jnp.ones(2), (0.0, 1.0), p)  # a new function at each call
        jax.block_until_ready(jax.grad(loss(prob))(p))
        jax.block_until_ready(ode.solve(prob, saveat=[0.5, 1.0]).u)

    assert compilations(lambda: gradient(0.4)) > 0
    assert compilations(lambda: gradient(0.7)) == 0


def test_one_primal_solve_for_each_gradient():
    def flows(jaxpr):
        mine = [e for e in jaxpr.eqns if e.primitive.name == "ode_flow"]
        return mine + [e for inner in subjaxprs(jaxpr) for e in flows(inner)]

    found = flows(jax.make_jaxpr(jax.grad(loss(decay_chain(2))))(0.5).jaxpr)
    calls = [e.params["call"] for e in found]
    assert [(c.order, c.adjoint) for c in calls] == [(0, False), (0, True)]
    assert calls[1].given_record


def test_what_is_not_perturbed_costs_nothing():
    """A gradient in u0 alone asks for no parameter integral, and one in p alone for no gradient in u0."""
    prob = decay_chain(2)
    of = lambda u0, p: jnp.sum(ode.solve(prob, u0=u0, p=p, saveat=[1.0]).u)
    wants = []
    for argument in (0, 1):
        jaxpr = jax.make_jaxpr(jax.grad(of, argument))(jnp.ones(2), 0.5).jaxpr
        wants.append([e.params["call"].want for e in jaxpr.eqns if e.primitive.name == "ode_flow"][-1])
    assert wants == [(1, 0, 0, 0), (0, 1, 0, 0)]


def test_a_large_field_is_compiled_a_constant_number_of_times():
    """Whatever the number of stages: the operation that f has once is in the program as often for 16 as for 10."""

    def f(t, u, p):
        for i in range(40):
            u = u + jnp.sin(i * u) * p
        return jnp.arcsinh(u)

    prob = ode.ODEProblem(f, jnp.ones(2), (0.0, 1.0), 0.1)
    program = lambda derivative, alg: derivative(loss(prob, alg))
    count = lambda derivative, alg: jax.jit(program(derivative, alg)).lower(0.1).as_text().count("asinh")
    identity = lambda g: g
    # at the start, for the first step size, and in the loop over the stages
    assert count(identity, ode.Tsit5()) == count(identity, ode.DP5()) == 3
    # and for the first stage and in the loop over those of dense output
    assert count(identity, ode.Vern7()) == count(identity, ode.Vern9()) == 5
    assert count(jax.grad, ode.Tsit5()) == count(jax.grad, ode.DP5())
    assert count(jax.grad, ode.Vern7()) == count(jax.grad, ode.Vern9())


def test_memory_does_not_follow_max_steps():
    """The temporary memory of a compiled gradient: at most 1024 checkpoints, a chunk and a stack of them."""
    prob = ode.ODEProblem(lambda t, u, p: jnp.stack([p * u[1], -p * u[0]]), jnp.ones(2), (0.0, 1.0))

    def bytes_of(max_steps, lanes=None):
        gradient = jax.grad(lambda p: jnp.sum(ode.solve(prob, p=p, saveat=[1.0], max_steps=max_steps).u))
        gradient = gradient if lanes is None else jax.vmap(gradient)
        p = jnp.ones(()) if lanes is None else jnp.ones(lanes)
        return jax.jit(gradient).lower(p).compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(10**8) < 2 * bytes_of(5_000) < 1e6
    assert bytes_of(10**8, 100) < 2 * bytes_of(5_000, 100)


def test_the_choice_without_a_sensitivity_algorithm():
    chosen = lambda n, n_p, **options: type(
        ode.solve(
            ode.ODEProblem(lambda t, u, p: -u * jnp.sum(p), jnp.ones(n), (0.0, 1e-3), jnp.ones(n_p)),
            saveat=[1e-3],
            **options,
        )._call.spec.sensealg
    )
    assert chosen(2, 3) is ode.DiscreteAdjoint
    assert chosen(65, 3) is ode.GaussAdjoint
    assert chosen(65, 1000) is ode.DiscreteAdjoint
    assert chosen(65, 3, adaptive=False, dt0=1e-3) is ode.DiscreteAdjoint
    assert chosen(65, 3, sensealg=ode.BacksolveAdjoint()) is ode.BacksolveAdjoint
