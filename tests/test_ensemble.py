"""Ensembles: references, one answer for all algorithms, gradients as sums of single ones, failure, hostile input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from .problems import ENGINES, close, lotka_volterra
from .test_opacity import compilations

SERIAL, VECTORIZED, SHARDED = ode.EnsembleSerial(), ode.EnsembleVectorized(), ode.EnsembleSharded()
QUEUED = ode.EnsembleVectorized(lanes=2)  # fewer lanes than trajectories: the queue, and derivatives in batches
TS = np.linspace(0.0, 1.0, 4)
P = jnp.array([1.5, 1.0, 3.0, 1.1])
PROB = ode.ODEProblem(lotka_volterra, jnp.array([1.0, 1.2]), (0.0, 1.0), P, saveat=TS, reltol=1e-8, abstol=1e-8)
FACTORS = 1 + 0.02 * jnp.arange(5)


def scaled(p, **parts):
    return ode.EnsembleProblem(PROB, prob_func=lambda prob, i, _: ode.remake(prob, p=p * (1 + 0.02 * i)), **parts)


def states(p, algorithm=QUEUED, **options):
    return ode.solve(scaled(p), ode.Tsit5(), algorithm, trajectories=5, **options).u


def single(p, **options):
    return jnp.stack([ode.solve(PROB, ode.Tsit5(), p=p * f, **options).u for f in FACTORS])


@pytest.fixture(scope="module")
def right():
    """Loss, gradient and Hessian as sums over solves of one problem at a time."""
    one = lambda p: jnp.sum(jnp.sin(ode.solve(PROB, ode.Tsit5(), p=p).u))
    at = [P * f for f in FACTORS]
    gradient = sum(f * jax.grad(one)(p) for f, p in zip(FACTORS, at, strict=True))
    hessian = sum(f**2 * jax.hessian(one)(p) for f, p in zip(FACTORS, at, strict=True))
    return sum(one(p) for p in at), gradient, hessian


def loss(p, algorithm=QUEUED, **options):
    return jnp.sum(jnp.sin(states(p, algorithm, **options)))


# ---------------------------------------------------------------- references


def ensemble_of_three(algorithm):
    """Lotka-Volterra in its usual order of parameters (a, b, d, c), batched u0 and p."""

    def field(t, u, p):
        a, b, d, c = p
        return jnp.stack([a * u[0] - b * u[0] * u[1], -d * u[1] + c * u[0] * u[1]])

    p = jnp.array([2.2, 1.0, 2.0, 0.4])
    prob = ode.ODEProblem(field, jnp.ones(2), (0.0, 10.0), p, saveat=0.1, reltol=1e-11, abstol=1e-11)

    def loss(u0, p):
        sol = ode.solve(ode.EnsembleProblem(prob, u0=u0, p=p), ode.Vern7(), algorithm)
        np.testing.assert_allclose(sol.t, np.linspace(0, 10, 101))
        return jnp.sum(sol.u[0, -1])

    return loss, jnp.ones((3, 2)), jnp.stack([p, p * 1.1, p * 0.9])


@pytest.mark.parametrize("algorithm", [VECTORIZED, QUEUED], ids=["lanes", "queue"])
def test_loss_of_one_trajectory_out_of_three(algorithm):
    loss, u0, p = ensemble_of_three(algorithm)
    value, (u0_bar, p_bar) = jax.value_and_grad(loss, (0, 1))(u0, p)
    close(value, 3.4075455277964175, 1e-9)
    close(p_bar[0], [-10.8257239981832, -3.95942875875624, -7.25593717042272, -16.34537422325081], 1e-9)
    assert np.all(p_bar[1:] == 0) and np.all(u0_bar[1:] == 0)
    close(jax.jacfwd(loss, 1)(u0, p)[0], p_bar[0], 1e-11)


@pytest.mark.parametrize("dense", [False, True])
def test_growth_of_scaled_initial_states(dense):
    prob = ode.ODEProblem(lambda t, u, p: p * u, np.array([1.0, 0.1]), (0.0, 1.0), saveat=0.1, reltol=1e-9)

    def loss(p, solve):
        u = solve(p)
        return jnp.sum(u[:, -1] ** 2) + jnp.sum(u)

    func = lambda prob, i, _: ode.remake(prob, u0=prob.u0 * (i + 1))
    together = lambda p: (
        ode.solve(
            ode.EnsembleProblem(ode.remake(prob, p=p), prob_func=func), ode.Tsit5(), trajectories=3, dense=dense
        ).u
    )
    apart = lambda p: jnp.stack(
        [ode.solve(prob, ode.Tsit5(), p=p, u0=np.array([1.0, 0.1]) * i, dense=dense).u for i in (1, 2, 3)]
    )
    p = jnp.array([1.0, 2.0])
    close(jax.grad(loss)(p, together), jax.grad(loss)(p, apart), 1e-12)
    # in closed form: 14 (u0^2 e^(2p)) and 6 sum_j u0 e^(p t_j)
    u0, t = np.array([1.0, 0.1]), np.linspace(0, 1, 11)
    exact = 14 * 2 * u0**2 * np.exp(2 * p) + 6 * u0 * np.sum(t[:, None] * np.exp(np.outer(t, p)), axis=0)
    close(jax.grad(loss)(p, together), exact, 1e-6)


@pytest.mark.parametrize("algorithm", [SERIAL, QUEUED, SHARDED], ids=repr)
def test_trajectories_that_an_event_ends(algorithm):
    """Each stops where u2 = i e^(p2 t) / 10 is 1/2, at t_i = log(5 / i) / p2; the state is held from there on."""
    stop = ode.ContinuousCallback(lambda t, u, p: 0.5 - u[1], terminate=True)
    options = {"saveat": np.linspace(0, 1, 11), "reltol": 1e-10, "abstol": 1e-12, "callback": stop, "max_events": 1}
    prob = ode.ODEProblem(lambda t, u, p: p * u, np.array([1.0, 0.1]), (0.0, 1.0), **options)
    func = lambda prob, i, _: ode.remake(prob, u0=prob.u0 * (i + 1))
    eprob = lambda p: ode.EnsembleProblem(ode.remake(prob, p=p), prob_func=func)

    def loss(u):
        return jnp.sum(u[:, -1] ** 2) + jnp.sum(u)

    together = lambda p: loss(ode.solve(eprob(p), ode.Tsit5(), algorithm, trajectories=3).u)
    apart = lambda p: loss(
        jnp.stack([ode.solve(prob, ode.Tsit5(), p=p, u0=np.array([1.0, 0.1]) * i).u for i in (1, 2, 3)])
    )

    def exact(p):
        i, t = jnp.arange(1.0, 4.0)[:, None], jnp.linspace(0, 1, 11)
        t = jnp.minimum(t, jnp.log(5 / i) / p[1])
        return loss(jnp.stack([i * jnp.exp(p[0] * t), i / 10 * jnp.exp(p[1] * t)], axis=-1))

    p = jnp.array([1.0, 2.0])
    value, gradient = jax.value_and_grad(together)(p)
    close(value, exact(p), 1e-9)
    close(gradient, jax.grad(exact)(p), 1e-8)
    close(gradient, jax.grad(apart)(p), 1e-12)


def test_ten_steps_of_adam_improve_the_loss_tenfold():
    prob = ode.ODEProblem(lambda t, u, p: 1.01 * p * u, 0.5, (0.0, 1.0), saveat=0.1)

    @jax.jit
    def loss(theta):
        func = lambda prob, i, _: ode.remake(prob, u0=0.5 + (i + 1) / 100 * theta[0], p=theta[1])
        sol = ode.solve(ode.EnsembleProblem(prob, prob_func=func), ode.Tsit5(), trajectories=100)
        return jnp.sum((1 - sol.u) ** 2)

    theta, m, v = jnp.array([1.0, 3.0]), jnp.zeros(2), jnp.zeros(2)
    gradient = jax.jit(jax.grad(loss))
    start = loss(theta)
    for k in range(1, 11):
        g = gradient(theta)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta - 0.1 * (m / (1 - 0.9**k)) / (jnp.sqrt(v / (1 - 0.999**k)) + 1e-8)
    assert 10 * loss(theta) < start


# ---------------------------------------------------------------- one answer


@pytest.mark.parametrize("algorithm", [SERIAL, VECTORIZED, QUEUED, SHARDED], ids=repr)
def test_values_and_numbers_of_steps_are_those_of_single_solves(algorithm):
    sol = ode.solve(scaled(P), ode.Tsit5(), algorithm, trajectories=5)
    alone = [ode.solve(PROB, ode.Tsit5(), p=P * f) for f in FACTORS]
    close(sol.u, jnp.stack([s.u for s in alone]), 1e-12)
    for name in ("nf", "naccept", "nreject"):
        assert np.array_equal(getattr(sol.stats, name), [getattr(s.stats, name) for s in alone])
    assert sol.success and len(sol) == 5 and np.all(sol.converged)


@pytest.mark.parametrize("algorithm", [SERIAL, VECTORIZED, QUEUED, SHARDED], ids=repr)
def test_gradients_are_sums_of_single_ones(algorithm, right):
    value, gradient = jax.value_and_grad(loss)(P, algorithm)
    close(value, right[0], 1e-12)
    close(gradient, right[1], 1e-12)


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "discrete"])
def test_every_engine(engine):
    options = {"sensealg": ENGINES[engine], "reltol": 1e-6, "abstol": 1e-6}
    got = jax.grad(lambda p: jnp.sum(jnp.sin(states(p, QUEUED, **options))))(P)
    one = jax.grad(lambda p: jnp.sum(jnp.sin(ode.solve(PROB, ode.Tsit5(), p=p, **options).u)))
    close(got, sum(f * one(P * f) for f in FACTORS), 1e-12)


NESTINGS = {
    "jit of grad": lambda f: jax.jit(jax.grad(f))(P),
    "grad of jit": lambda f: jax.grad(jax.jit(f))(P),
    "forward mode": lambda f: jax.jacfwd(f)(P),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f))(jnp.stack([P * 1.1, P]))[1],
    "grad of vmap": lambda f: jax.grad(lambda ps: jnp.sum(jax.vmap(f)(ps)))(jnp.stack([P * 1.1, P]))[1],
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f))(P),
}


@pytest.mark.parametrize("nesting", NESTINGS)
def test_nestings(nesting, right):
    close(NESTINGS[nesting](lambda p: loss(p, batch_size=3)), right[1], 1e-11)


def test_second_derivatives(right):
    close(jax.jvp(jax.grad(loss), (P,), (jnp.ones(4),))[1], right[2] @ jnp.ones(4), 1e-11)
    close(jax.jit(jax.hessian(loss))(P), right[2], 1e-11)


def test_reduction_and_output_batch_by_batch(right):
    add = lambda u, batch, index: u + jnp.sum(batch)
    eprob = lambda p: scaled(p, output_func=lambda sol, i: jnp.sum(jnp.sin(sol.u)), reduction=add, u_init=0)
    reduced = lambda p: ode.solve(eprob(p), ode.Tsit5(), QUEUED, trajectories=5, batch_size=3).u
    value, gradient = jax.value_and_grad(reduced)(P)
    close(value, right[0], 1e-12)
    close(gradient, right[1], 1e-12)


def test_indices_given_to_a_reduction_are_each_trajectory_once():
    mark = lambda u, batch, index: u.at[index].add(1)
    for size in (1, 2, 5, 9):
        sol = ode.solve(
            scaled(P, reduction=mark, u_init=jnp.zeros(5)), ode.Tsit5(), SHARDED, trajectories=5, batch_size=size
        )
        assert np.array_equal(sol.u, np.ones(5))


def test_stiff_trajectories_of_unlike_lengths():
    """Robertson-like decay whose stiffness varies: the queue, a stiff method, and gradients of each trajectory."""
    field = lambda t, u, p: jnp.stack([-p * (u[0] - jnp.cos(t)), u[0] - u[1]])
    prob = ode.ODEProblem(field, jnp.zeros(2), (0.0, 2.0), saveat=np.array([2.0]), reltol=1e-6, abstol=1e-8)
    p = jnp.array([1.0, 1e4, 30.0, 1e2, 1e3])

    def total(p, algorithm):
        return jnp.sum(
            ode.solve(ode.EnsembleProblem(prob, p=p), ode.Rodas5P(), algorithm).u * jnp.arange(1.0, 6)[:, None, None]
        )

    one = jax.grad(lambda p: jnp.sum(ode.solve(prob, ode.Rodas5P(), p=p).u))
    close(jax.grad(total)(p, QUEUED), jnp.stack([(i + 1) * one(x) for i, x in enumerate(p)]), 1e-12)


# ---------------------------------------------------------------- prob_func


def test_prob_func_is_traced_once_where_it_can_be():
    calls = []

    def func(prob, i, repeat):
        calls.append(i)
        return ode.remake(prob, p=P * jnp.asarray(FACTORS)[i])

    ode.solve(ode.EnsembleProblem(PROB, prob_func=func), ode.Tsit5(), trajectories=5)
    assert 0 < len(calls) < 10 and all(isinstance(i, jax.core.Tracer) for i in calls)


def test_prob_func_that_needs_a_concrete_index():
    table = np.asarray(FACTORS)
    func = lambda prob, i, _: ode.remake(prob, p=np.asarray(P) * table[i])
    sol = ode.solve(ode.EnsembleProblem(PROB, prob_func=func), ode.Tsit5(), QUEUED, trajectories=5)
    close(sol.u, single(P), 1e-12)

    def gradient(p):
        func = lambda prob, i, _: ode.remake(prob, p=p * float(table[int(i)]))
        return jnp.sum(jnp.sin(ode.solve(ode.EnsembleProblem(PROB, prob_func=func), ode.Tsit5(), trajectories=5).u))

    close(jax.grad(gradient)(P), jax.grad(loss)(P), 1e-11)


def test_prob_func_with_random_numbers_from_outside_jax():
    generator = np.random.default_rng(0)
    func = lambda prob, i, _: ode.remake(prob, p=P * generator.uniform(0.9, 1.1))
    ends = ode.solve(ode.EnsembleProblem(PROB, prob_func=func), ode.Tsit5(), trajectories=5).u[:, -1, 0]
    assert len(set(np.asarray(ends))) == 5


def test_prob_func_that_changes_the_span_or_the_state_alone():
    spans = lambda prob, i, _: ode.remake(prob, tspan=(0.0, 1.0 + i), saveat=None)
    sol = ode.solve(ode.EnsembleProblem(ode.remake(PROB, saveat=None), prob_func=spans), trajectories=3)
    np.testing.assert_allclose(sol.t, [[0, 1], [0, 2], [0, 3]])
    close(sol[2][-1], ode.solve(PROB, tspan=(0.0, 3.0), saveat=[3.0]).u[0], 1e-12)
    state = lambda prob, i, _: ode.remake(prob, u0=prob.u0 + 0.1 * i)
    sol = ode.solve(ode.EnsembleProblem(PROB, prob_func=state), trajectories=3)
    close(sol[1].u, ode.solve(PROB, u0=PROB.u0 + 0.1).u, 1e-12)


def test_states_that_are_pytrees_in_single_precision():
    field = lambda t, u, p: {"x": -p["k"] * u["x"], "y": u["x"].sum()}
    u0 = {"x": jnp.ones((4, 2), jnp.float32), "y": jnp.zeros(4, jnp.float32)}
    prob = ode.ODEProblem(field, jax.tree.map(lambda x: x[0], u0), (0.0, 1.0), saveat=np.array([1.0], np.float32))
    total = lambda k: jnp.sum(
        ode.solve(ode.EnsembleProblem(prob, u0=u0, p={"k": k, "name": "decay"}), ode.Tsit5(), QUEUED).u["y"]
    )
    k = jnp.array([0.5, 1.0, 1.5, 2.0], jnp.float32)
    gradient = jax.grad(total)(k)
    assert gradient.dtype == jnp.float32
    exact = 2 * (np.exp(-k) * (k + 1) - 1) / k**2
    close(gradient, exact, 1e-4)


def test_keys_and_captured_values():
    def total(scale):
        func = lambda prob, i, _: ode.remake(
            prob, u0=prob.u0 + scale * jax.random.uniform(jax.random.fold_in(jax.random.key(0), i), (2,))
        )
        return jnp.sum(ode.solve(ode.EnsembleProblem(PROB, prob_func=func), ode.Tsit5(), QUEUED, trajectories=3).u)

    draws = jnp.stack([jax.random.uniform(jax.random.fold_in(jax.random.key(0), i), (2,)) for i in range(3)])
    one = jax.grad(lambda u0: jnp.sum(ode.solve(PROB, ode.Tsit5(), u0=u0).u))
    want = sum(jnp.vdot(one(PROB.u0 + 0.1 * d), d) for d in draws)
    close(jax.grad(total)(0.1), want, 1e-12)


# ---------------------------------------------------------------- failure


def blow_up(**options):
    """u' = u^2 c: runs to infinity before t = 1 for u0 c > 1; not a number from the start for c = NaN."""
    return ode.ODEProblem(lambda t, u, c: c * u**2, 1.0, (0.0, 1.0), 0.5, saveat=TS, **options)


@pytest.mark.parametrize("algorithm", [VECTORIZED, QUEUED, SHARDED], ids=repr)
def test_failed_trajectories_leave_the_others_alone(algorithm):
    good, bad = jnp.array([0.5, 0.4, 0.3, 0.2]), jnp.array([0.5, jnp.nan, 0.3, 2.0])
    solve = lambda c: ode.solve(ode.EnsembleProblem(blow_up(), p=c), ode.Tsit5(), algorithm, throw=False)
    before, after = solve(good), solve(bad)
    assert np.array_equal(before.u[::2], after.u[::2])
    assert list(after.converged) == [True, False, True, False] and not after.success
    assert after.retcodes[1] == ode.ReturnCode.NonFinite
    assert np.all(np.isnan(after.u[3, -1])) and np.all(np.isfinite(after.u[3, 1]))
    gradient = lambda c, use: jax.grad(lambda c: jnp.sum(jnp.where(use[:, None], solve(c).u, 0)))(c)
    use = jnp.array([True, False, True, False])
    got = gradient(bad, use)
    assert np.array_equal(got[::2], gradient(good, use)[::2]) and np.all(got[1::2] == 0)
    assert np.array_equal(np.isnan(gradient(bad, use.at[3].set(True))), [False, False, False, True])
    assert np.all(np.isfinite(after.summary().mean)) and after.summary().count == 2


def test_error_names_trajectories_and_causes():
    with pytest.raises(ode.EnsembleError) as caught:
        ode.solve(ode.EnsembleProblem(blow_up(max_steps=500), p=jnp.array([0.5, jnp.nan, 0.3, 2.0])), ode.Tsit5())
    error, text = caught.value, str(caught.value)
    assert list(error.indices) == [1, 3] and "2 of 4" in text
    assert "NonFinite, i = 1" in text and "i = 3" in text
    assert np.all(np.isfinite(error.solution.u[0])) and error.retcode == ode.ReturnCode.NonFinite


def test_too_many_steps_in_one_lane():
    field = lambda t, u, p: -p * (u - jnp.cos(t))
    prob = ode.ODEProblem(field, 0.0, (0.0, 5.0), saveat=np.array([5.0]), max_steps=300)
    sol = ode.solve(ode.EnsembleProblem(prob, p=jnp.array([1.0, 1e4, 2.0])), ode.Tsit5(), QUEUED, throw=False)
    assert list(sol.retcodes) == [0, ode.ReturnCode.MaxSteps, 0]
    close(sol.u[2], ode.solve(prob, ode.Tsit5(), p=2.0).u, 1e-12)


# ---------------------------------------------------------------- solutions and input


def test_solution_access():
    sol = ode.solve(scaled(P), ode.Tsit5(), trajectories=5)
    alone = ode.solve(PROB, ode.Tsit5(), p=P * FACTORS[3])
    close(sol[3](0.37), alone(0.37), 1e-12)
    assert sol[-2].stats.naccept == alone.stats.naccept and sol[3].retcode is ode.ReturnCode.Success
    assert len(list(sol)) == 5 and "5 Success" in repr(sol)
    summary = sol.summary((0.0, 0.5, 1.0))
    np.testing.assert_allclose(summary.quantiles[1], np.median(sol.u, axis=0))
    np.testing.assert_allclose(summary.mean, np.mean(sol.u, axis=0))
    assert summary.quantiles.shape == (3, 4, 2) and np.array_equal(summary.t, TS)
    again = jax.jit(lambda p: ode.solve(scaled(p), ode.Tsit5(), trajectories=5))(P)
    assert np.array_equal(again.u, sol.u)
    with pytest.raises(IndexError, match="5 trajectories"):
        sol[5]


def test_none_and_one():
    none = ode.solve(scaled(P), ode.Tsit5(), trajectories=0)
    assert len(none) == 0 and none.u.shape == (0, 4, 2) and none.success
    gradient = jax.grad(lambda p: jnp.sum(ode.solve(ode.EnsembleProblem(PROB, p=p), ode.Tsit5()).u))
    assert gradient(jnp.zeros((0, 4))).shape == (0, 4)
    add = lambda u, batch, index: u + jnp.sum(batch)
    assert ode.solve(scaled(P, reduction=add, u_init=3.0), ode.Tsit5(), trajectories=0).u == 3.0
    for algorithm in (SERIAL, VECTORIZED, SHARDED):
        close(ode.solve(scaled(P), ode.Tsit5(), algorithm, trajectories=1, batch_size=10).u[0], single(P)[0], 1e-12)


def test_second_call_compiles_nothing():
    run = lambda p: jax.grad(lambda p: loss(p, VECTORIZED, batch_size=4))(p)
    other = P * 1.01
    assert compilations(lambda: run(P)) > 0
    assert compilations(lambda: run(other)) == 0


def wrong(match, error, *args, prob=PROB, **options):
    parts = {k: options.pop(k) for k in [f.name for f in dataclasses.fields(ode.EnsembleProblem)] if k in options}
    with pytest.raises(error, match=match):
        ode.solve(ode.EnsembleProblem(prob, **parts), ode.Tsit5(), *args, **options)


def test_wrong_input():
    wrong("trajectories=N", ValueError)
    wrong("leading axis", ValueError, p=jnp.ones((3, 4)), u0=jnp.ones((2, 2)))
    wrong("leading axis", ValueError, p=jnp.ones((3, 4)), trajectories=4)
    wrong("EnsembleSerial", TypeError, ode.EnsembleSerial, trajectories=2)
    wrong("batch_size", ValueError, trajectories=2, batch_size=0)
    wrong("integer >= 0", ValueError, trajectories=-1)
    wrong("unknown options", TypeError, trajectories=2, rtol=1e-3)
    wrong("must return an ODEProblem", TypeError, trajectories=2, prob_func=lambda prob, i, r: prob.u0)
    wrong("u_init", ValueError, trajectories=2, reduction=lambda u, b, i: u)
    wrong("shapes of u_init", ValueError, trajectories=2, reduction=lambda u, b, i: b, u_init=0.0)
    different = lambda prob, i, r: ode.remake(prob, f=(lambda t, u, p: -u) if int(i) else (lambda t, u, p: u))
    wrong("more than the values", ValueError, trajectories=2, prob_func=different)
    with pytest.raises(TypeError, match="ODEProblem first"):
        ode.EnsembleProblem(lotka_volterra)
