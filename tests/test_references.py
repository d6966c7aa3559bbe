"""Values and derivatives of whole solves against closed forms and references computed independently to 12 digits.

The typical problems are differentiated by every engine, in reverse mode and, where engines differ in it, in forward
mode; the others by those engines to which something in them is new. The references come from closed forms, or from
SciPy's DOP853 at 1e-13 with variational equations, the complex step and mpmath. Tolerances of the assertions are those
of the solves, relative to the largest entry of what is compared.
"""

import functools
import math
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import odesens as ode

from .problems import BACKSOLVE, DISCRETE, FORWARD, GAUSS, INTERPOLATING, QUADRATURE, check_gradient, close, engines

each_engine = engines()
TIGHT = {"reltol": 1e-13, "abstol": 1e-13, "max_steps": 20_000}
NESTINGS = {
    "fwd-fwd": (jax.jacfwd, jax.jacfwd),
    "fwd-rev": (jax.jacfwd, jax.jacrev),
    "rev-fwd": (jax.jacrev, jax.jacfwd),
    "rev-rev": (jax.jacrev, jax.jacrev),
}


# ---------------------------------------------------------------- growth


def growth(t, u, p):
    return p * u


GROWTH = ode.ODEProblem(growth, 2.0, (0.0, 1.0), 3.0, saveat=0.1, **TIGHT)


@engines(DISCRETE, QUADRATURE)
def test_growth(engine):
    def loss(x):
        return jnp.sum(ode.solve(GROWTH, u0=x[0], p=x[1], sensealg=engine).u)

    check_gradient(engine, loss, [2.0, 3.0], [74.63764911788078, 112.89625175195614], 1e-12, 149.27529823576157)
    close(jax.jacfwd(loss)(jnp.array([2.0, 3.0])), [74.63764911788078, 112.89625175195614], 1e-12)


def _forms(engine):
    """The same solve, written in every way in which u0 and p can be given."""
    options = {"saveat": 0.1, **TIGHT}
    return {
        "keyword": lambda u0, p: ode.solve(GROWTH, u0=u0, p=p, sensealg=engine),
        "built in the loss": lambda u0, p: ode.solve(
            ode.ODEProblem(growth, u0, (0.0, 1.0), p, sensealg=engine, **options)
        ),
        "options in solve": lambda u0, p: ode.solve(
            ode.ODEProblem(growth, u0, (0.0, 1.0), p), ode.Tsit5(), sensealg=engine, **options
        ),
        "remake": lambda u0, p: ode.solve(ode.remake(GROWTH, u0=u0, p=p, sensealg=engine)),
        "lambda": lambda u0, p: ode.solve(ode.remake(GROWTH, f=lambda t, u, p: p * u), u0=u0, p=p, sensealg=engine),
        "captured": lambda u0, p: ode.solve(
            ode.remake(GROWTH, f=lambda t, u, _: p * u, p=None), u0=u0, sensealg=engine
        ),
    }


@engines(DISCRETE, BACKSOLVE)
def test_gradient_is_the_same_to_the_last_bit_in_every_call_form(engine):
    grads = {}
    for name, form in _forms(engine).items():
        grads[name] = jax.grad(lambda u0, p: jnp.sum(form(u0, p).u), argnums=(0, 1))(2.0, 3.0)
    want = grads["keyword"]
    assert {name: g for name, g in grads.items() if g != want} == {}


def test_gradient_is_the_same_to_the_last_bit_for_a_problem_that_holds_the_traced_values():
    def held(u0, p):
        problem = ode.ODEProblem(growth, u0, (0.0, 1.0), p, saveat=0.1, **TIGHT)
        return jnp.sum(ode.solve(problem).u)

    def given(u0, p):
        return jnp.sum(ode.solve(GROWTH, u0=u0, p=p).u)

    at = (2.0, 3.0)
    for transform in (jax.jit, jax.value_and_grad, lambda f: jax.jit(jax.grad(f, argnums=(0, 1)))):
        assert transform(held)(*at) == transform(given)(*at)


# ---------------------------------------------------------------- Lotka-Volterra


def lotka_volterra(t, u, p):
    x, y = u
    return jnp.stack([p[0] * x - p[1] * x * y, p[3] * x * y - p[2] * y])


LV_P = jnp.array([1.5, 1.0, 3.0, 1.0])
LV = ode.ODEProblem(lotka_volterra, jnp.ones(2), (0.0, 10.0), LV_P, saveat=0.1, **TIGHT)
LV_LOSS = 450.76406403953877
LV_GRADIENT = [
    -39.1275412226688,
    -8.78778021899102,
    8.30536266231198,
    -159.48429271513703,
    75.20350821377201,
    -339.19509276606163,
]
LV_HESSIAN = np.array(
    [
        [-56.61576668580634, -78.46633621439967, -76.38305842500057, 77.3761606362728],
        [-78.46633621439967, 338.7544564234309, 8.24737310694906, 28.93959112457716],
        [-76.38305842500057, 8.24737310694906, -7.94034297438187, -110.33742899136716],
        [77.3761606362728, 28.93959112457716, -110.33742899136716, 734.6120684408303],
    ]
)


def lv_loss(u0, p, alg=None, **options):
    return jnp.sum(ode.solve(LV, alg, u0=u0, p=p, **options).u)


@each_engine
def test_lotka_volterra(engine):
    def loss(x):
        return lv_loss(x[:2], x[2:], sensealg=engine)

    check_gradient(engine, loss, [1.0, 1.0, *LV_P], LV_GRADIENT, 1e-11, LV_LOSS)


@pytest.mark.parametrize(
    ("alg", "engine"),
    [(ode.DOP853(), DISCRETE), (ode.Vern9(), FORWARD)],
    ids=["DOP853", "Vern9"],
)
def test_lotka_volterra_by_methods_of_high_order(alg, engine):
    loss = lambda u0, p: lv_loss(u0, p, alg, sensealg=engine)
    value, gradient = jax.value_and_grad(loss, argnums=(0, 1))(jnp.ones(2), LV_P)
    close(value, LV_LOSS, 1e-12)
    close(np.concatenate(gradient), LV_GRADIENT, 1e-11)


@pytest.mark.parametrize("nesting", ["fwd-rev", "rev-fwd"])  # all four: test_closure.py, for the same equations
def test_lotka_volterra_hessian(nesting):
    outer, inner = NESTINGS[nesting]
    hessian = outer(inner(lambda x: lv_loss(x[:2], x[2:])))(jnp.array([1.0, 1.0, *LV_P]))
    close(hessian[2:, 2:], LV_HESSIAN, 1e-11)
    close(hessian[:2, :2], [[77.17314122726457, 10.89300020027351], [10.89300020027351, 34.92779452320738]], 1e-11)


def test_lotka_volterra_hessian_vector_products():
    want = [-134.08900068893377, 297.4750844405569, -186.413457283799, 730.5903912103149]
    v = jnp.ones(4)
    grad = jax.grad(lambda p: lv_loss(jnp.ones(2), p, sensealg=INTERPOLATING))
    forward_over_reverse = jax.jvp(grad, (LV_P,), (v,))[1]
    reverse_over_reverse = jax.grad(lambda p: grad(p) @ v)(LV_P)
    close(forward_over_reverse, want, 1e-11)
    close(reverse_over_reverse, want, 1e-11)


# ---------------------------------------------------------------- forced Lotka-Volterra


def forced(t, u, p):
    """Lotka-Volterra with an interaction that grows in time; the third state integrates (u1 + u2)^2 / 2."""
    x, y, _ = u
    return jnp.stack([p[0] * x - p[1] * x * y * t, p[3] * x * y * t - p[2] * y, (x + y) ** 2 / 2])


FORCED = ode.ODEProblem(forced, jnp.array([1.0, 1.0, 0.0]), (0.0, 10.0), LV_P, **TIGHT)


@engines(DISCRETE, QUADRATURE)
def test_forced_lotka_volterra_sums_and_integral(engine):
    def losses(x):
        sol = ode.solve(FORCED, u0=jnp.append(x[:2], 0.0), p=x[2:], saveat=0.5, sensealg=engine)
        u = sol.u[:, :2]
        return jnp.stack([jnp.sum((2 - u) ** 2) / 2, jnp.sum((1 - u) ** 2) / 2, sol.u[-1, 2]])

    x = jnp.array([1.0, 1.0, *LV_P])
    two = [13.1567195267647, -16.81051404353408, 7.70270813141376, -25.63947585968399]
    one = [7.62134198762913, -17.11961741166002, 25.99720637190154, -27.76462958358823, 12.87734199091915]
    one += [-39.02798208920734]
    integral = [14.54007237765276, -7.45732074881522, 30.72238260670123, -27.05615258473052, 9.63985620713452]
    integral += [-23.50449447766352]
    value = losses(x)
    close(value[0], 64.9120895046475, 1e-12)
    close(value[2], 28.8216993456158, 1e-12)
    modes = (jax.jacrev, jax.jacfwd) if engine in (DISCRETE, FORWARD) else (jax.jacrev,)
    for jacobian in (mode(losses)(x) for mode in modes):
        close(jacobian[0, 2:], two, 1e-11)
        close(jacobian[1], one, 1e-11)
        close(jacobian[2], integral, 1e-11)


@engines(DISCRETE, BACKSOLVE)
def test_saved_times_that_stop_before_the_end_of_the_span(engine):
    """The backward solve starts at the end of the span, where no cotangent need be."""

    def gradient(p, times, weights):
        def loss(p):
            u = ode.solve(FORCED, p=p, saveat=times, sensealg=engine).u[:, :2]
            return jnp.sum(weights[:, None] * (2 - u) ** 2) / 2

        return jax.grad(loss)(p)

    early = gradient(LV_P, jnp.array([0.5, 1.0, 1.0]), jnp.array([1.0, 1.0, 0.0]))
    close(early, [7.1075209782555, -0.90813825693158, 1.0987393553247, -0.93811178261109], 1e-11)
    late = gradient(LV_P, jnp.array([0.5, 1.0, 10.0]), jnp.ones(3))
    close(late, [12.16307491711473, 2.95606191625397, 3.91697965449808, 0.6524179517314], 1e-11)


# ---------------------------------------------------------------- times, forcing, optimum, chaos, a cubic motion


@engines(DISCRETE, INTERPOLATING, BACKSOLVE, FORWARD)
def test_derivatives_in_the_ends_of_the_span(engine):
    problem = ode.ODEProblem(lambda t, u, p: -u / 2, 10.0, (0.0, 1.0), **TIGHT)

    def end(x):
        return ode.solve(problem, tspan=(x[0], x[1]), saveat=x[1:], sensealg=engine).u[-1]

    decay = math.exp(-0.5)
    check_gradient(engine, end, [0.0, 1.0], [5 * decay, -5 * decay], 1e-12, 10 * decay)


def test_hessian_that_includes_the_end_time():
    problem = ode.ODEProblem(lambda t, u, p: -p * u, 10.0, (0.0, 1.0), **TIGHT)

    def end(x):  # 10 exp(-p t1)
        return ode.solve(problem, p=x[0], tspan=(0.0, x[1]), saveat=x[1:]).u[-1]

    decay = math.exp(-0.5)
    want = [[10 * decay, -5 * decay], [-5 * decay, 2.5 * decay]]
    columns = [jax.jvp(jax.grad(end), (jnp.array([0.5, 1.0]),), (v,))[1] for v in jnp.eye(2)]
    close(jnp.stack(columns), want, 1e-12)


@engines(QUADRATURE)
def test_inhomogeneous_equation(engine):
    problem = ode.ODEProblem(lambda t, u, p: -p * u + jnp.exp(-t), 0.0, (0.0, 3.0), saveat=[1.0, 2.0, 3.0], **TIGHT)
    loss = lambda p: jnp.sum(ode.solve(problem, p=p, sensealg=engine).u ** 2)
    check_gradient(engine, loss, 1.0, -0.3487867031164778, 1e-12)


@engines(GAUSS)
def test_gradient_vanishes_at_an_optimum(engine):
    p = jnp.array([1.1, 1.2, 1.3, 1.4])
    problem = ode.ODEProblem(growth, jnp.full(4, 2.0), (0.0, 1.0), p, saveat=0.1)
    data = ode.solve(problem).u
    gradient = jax.grad(lambda p: jnp.sum((ode.solve(problem, p=p, sensealg=engine).u - data) ** 2))(p)
    assert jnp.linalg.norm(gradient) < 1e-9


def lorenz(t, u, p):
    x, y, z = u
    return jnp.stack([p[0] * (y - x), x * (p[1] - z) - y, x * y - p[2] * z])


@engines(INTERPOLATING)
def test_lorenz(engine):
    p = jnp.array([10.0, 28.0, 8 / 3])
    problem = ode.ODEProblem(lorenz, [1.0, 0.0, 0.0], (0.0, 3.0), p, saveat=0.25, **TIGHT)
    loss = lambda u0: jnp.sum(ode.solve(problem, u0=u0, sensealg=engine).u[:, 0])
    want = [-5.71420074016997, -5.23562439657252, 0.95678369219299]
    check_gradient(engine, loss, [1.0, 0.0, 0.0], want, 1e-10, -69.31331302711558)


@engines(QUADRATURE)
def test_falling_mass_and_a_parameter_that_is_not_used(engine):
    problem = ode.ODEProblem(lambda t, u, p: jnp.stack([u[1], -p[0]]), [3.0, 0.5], (0.0, 2.0), saveat=0.05)
    loss = lambda p: jnp.sum(ode.solve(problem, p=p, sensealg=engine).u[:, 0])
    p = jnp.array([9.81, 7.0])
    check_gradient(engine, loss, p, [-27.675, 0.0], 1e-12)
    assert jax.grad(loss)(p)[1] == 0


# ---------------------------------------------------------------- custom derivative rules inside the field


@jax.custom_jvp
def square(x):
    """x^2, whose rule deliberately doubles the tangent."""
    return x**2


@square.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return square(x), 4 * x * dx


@jax.custom_vjp
def square_backward(x):
    return x**2


square_backward.defvjp(lambda x: (square_backward(x), x), lambda x, w: (4 * x * w,))

RULE_P, RULE_U0 = 0.3, 0.8


def rule_end(u0, g=square, engine=None):
    """u(1) of u' = p g(u), by short steps: the mesh controls the error of u but not of its tangents."""
    options = {"saveat": [1.0], "dtmax": 2e-3, **TIGHT}
    problem = ode.ODEProblem(lambda t, u, p: p * g(u), u0, (0.0, 1.0), RULE_P, **options)
    return ode.solve(problem, sensealg=engine).u[-1]


def rule_derivatives():
    """Derivatives in u0 under the doubled rule: s' = 4pu s, q' = 4pu q + 4p s^2, r' = 4pu r + 12p sq.

    With u = u0 / D, D = 1 - p u0 t, each is a linear equation with the solution D^-4 of its homogeneous part.
    """
    d = 1 - RULE_P * RULE_U0
    cubes = (d**-3 - 1) / 3
    first = d**-4
    second = 4 * d**-4 * cubes / RULE_U0
    third = 16 * d**-4 / RULE_U0**2 * ((d**-6 - 1) / 6 - cubes)
    return first, second, third


@engines(INTERPOLATING, BACKSOLVE)
def test_custom_jvp_inside_the_field_is_obeyed(engine):
    end = lambda u0: rule_end(u0, engine=engine)
    check_gradient(engine, end, RULE_U0, rule_derivatives()[0], 1e-12, RULE_U0 / (1 - RULE_P * RULE_U0))


@pytest.mark.parametrize(
    ("nesting", "jitted"), [("fwd-fwd", None), ("fwd-rev", "flow"), ("rev-fwd", "inner"), ("rev-rev", "outer")]
)
def test_custom_jvp_inside_the_field_is_obeyed_at_second_order_with_jit_at_any_level(nesting, jitted):
    outer, inner = NESTINGS[nesting]
    jit = lambda f, level: jax.jit(f) if level == jitted else f
    hessian = jit(outer(jit(inner(jit(rule_end, "flow")), "inner")), "outer")
    close(hessian(RULE_U0), rule_derivatives()[1], 1e-12)


@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev], ids=["fwd-fwd-fwd", "rev-rev-rev"])
def test_custom_jvp_inside_the_field_is_obeyed_at_third_order(mode):
    close(mode(mode(mode(rule_end)))(RULE_U0), rule_derivatives()[2], 1e-12)


def test_custom_jvp_inside_the_field_is_obeyed_at_third_order_in_mixed_modes():
    second = jax.grad(lambda u0: jax.jvp(rule_end, (u0,), (1.0,))[1])
    close(jax.jvp(second, (RULE_U0,), (1.0,))[1], rule_derivatives()[2], 1e-12)


@engines(DISCRETE, INTERPOLATING)
def test_custom_vjp_inside_the_field_is_obeyed_in_reverse_mode(engine):
    end = lambda u0: rule_end(u0, square_backward, engine)
    close(jax.grad(end)(RULE_U0), rule_derivatives()[0], 1e-12)


def test_forward_mode_through_a_custom_vjp_is_refused():
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jacfwd(lambda u0: rule_end(u0, square_backward))(RULE_U0)


# ---------------------------------------------------------------- nothing to do


@engines(DISCRETE, GAUSS)
def test_parameters_that_are_not_used(engine):
    u0 = jnp.array([0.5, -1.0, 2.0])
    problem = ode.ODEProblem(lambda t, u, p: u, u0, (0.0, 1.0), saveat=[1.0], sensealg=engine, **TIGHT)
    loss = lambda u0, p: jnp.sum(ode.solve(problem, u0=u0, p=p).u[-1] ** 2)
    u_bar, p_bar = jax.grad(loss, argnums=(0, 1))(u0, jnp.zeros(123))
    close(u_bar, 2 * math.exp(2) * u0, 1e-12)
    assert p_bar.shape == (123,)
    assert jnp.all(p_bar == 0)
    if engine is DISCRETE:
        u_bar, p_bar = jax.grad(loss, argnums=(0, 1))(u0, None)
        close(u_bar, 2 * math.exp(2) * u0, 1e-12)
        assert p_bar is None


@pytest.mark.parametrize("u0", [jnp.zeros(0), (), {"a": jnp.zeros((2, 0))}], ids=["array", "tuple", "dict"])
def test_no_states(u0):
    problem = ode.ODEProblem(lambda t, u, p: u, u0, (0.0, 1.0), 1.0, saveat=[0.5, 1.0])
    sol = ode.solve(problem)
    assert jax.tree.structure(sol.u) == jax.tree.structure(u0)
    assert [x.shape for x in jax.tree.leaves(sol.u)] == [(2, *x.shape) for x in jax.tree.leaves(u0)]


@each_engine
def test_derivatives_without_states(engine):
    problem = ode.ODEProblem(lambda t, u, p: u, jnp.zeros(0), (0.0, 1.0), 1.0, saveat=[0.5, 1.0], sensealg=engine)
    loss = lambda p: jnp.sum(ode.solve(problem, p=p).u) + p
    assert jax.grad(loss)(1.0) == 1
    assert jax.jacfwd(loss)(1.0) == 1


@engines(DISCRETE, BACKSOLVE)
def test_a_span_of_no_length(engine):
    def end(x):
        return ode.solve(GROWTH, u0=x[0], p=x[1], tspan=(0.5, 0.5), saveat=[0.5], sensealg=engine).u[-1]

    x = jnp.array([2.0, 3.0])
    assert end(x) == 2
    for derivative in (jax.grad, jax.jacfwd):
        assert derivative(end)(x).tolist() == [1, 0]


@engines(INTERPOLATING)
def test_a_parameter_that_is_nan_until_it_is_remade(engine):
    problem = ode.ODEProblem(lambda t, u, p: p, 0.0, (0.0, 1.0), math.nan, saveat=[1.0], sensealg=engine)
    end = lambda p: ode.solve(ode.remake(problem, p=p)).u[-1]
    close(end(2.5), 2.5, 1e-15)
    close(jax.grad(end)(2.5), 1.0, 1e-15)
    close(jax.jacfwd(end)(2.5), 1.0, 1e-15)


# ---------------------------------------------------------------- what a field may hold

FACTOR = 2.0
NUMPY_FACTOR = np.array(2.0)
JAX_FACTOR = jnp.array(2.0)


class Field(eqx.Module):
    factor: float = eqx.field(static=True)

    def __call__(self, t, u, x):
        return self.factor * x**2


@pytest.mark.parametrize(
    "field",
    [
        lambda t, u, x: FACTOR * x**2,
        lambda t, u, x: NUMPY_FACTOR * x**2,
        lambda t, u, x: JAX_FACTOR * x**2,
        Field(2.0),
        functools.partial(lambda factor, t, u, x: factor * x**2, 2.0),
        (lambda factor: lambda t, u, x: factor * x**2)(2.0),
    ],
    ids=["global", "NumPy array", "JAX array", "static field", "partial", "closure"],
)
def test_a_factor_held_by_the_field(field):
    end = lambda x: ode.solve(ode.ODEProblem(field, 0.0, (0.0, 1.0), x, saveat=[1.0], **TIGHT)).u[-1]
    close(jax.grad(end)(3.0), 12.0, 1e-14)


@engines(DISCRETE, QUADRATURE)
def test_a_traced_factor_held_by_the_field(engine):
    def end(x, factor):
        problem = ode.ODEProblem(lambda t, u, x: factor * x**2, 0.0, (0.0, 1.0), x, saveat=[1.0], sensealg=engine)
        return ode.solve(problem).u[-1]

    close(jax.jit(jax.grad(end, argnums=(0, 1)))(3.0, 2.0), [12.0, 9.0], 1e-14)


# ---------------------------------------------------------------- dense output


def test_dense_output_and_its_derivatives():
    problem = ode.ODEProblem(growth, 1.0, (0.0, 1.0), 1.0, dense=True, saveat=[1.0], **TIGHT)
    sol = ode.solve(problem)
    t = jnp.linspace(0.0, 1.0, 23)
    close(sol(t), np.exp(t), 1e-12)
    close(sol(t, deriv=1), sol(t), 1e-12)
    close(sol(t, deriv=2), sol(t), 1e-12)

    def at(x):
        return ode.solve(problem, u0=x[1], p=x[2])(x[0])

    e = math.exp(0.3)
    check_gradient(DISCRETE, at, [0.3, 1.0, 1.0], [e, e, 0.3 * e], 1e-12, e)


def test_dense_output_at_ordinary_tolerances_has_the_order_of_the_interpolant():
    sol = ode.solve(ode.ODEProblem(growth, 1.0, (0.0, 1.0), 1.0, dense=True, saveat=[1.0], reltol=1e-8, abstol=1e-8))
    t = jnp.linspace(0.0, 1.0, 101)
    close(sol(t), np.exp(t), 1e-7)
    close(sol(t, deriv=1), sol(t), 1e-12)


@engines(INTERPOLATING)
def test_last_state_has_the_same_gradient_in_every_spelling(engine):
    first = jax.grad(lambda p: ode.solve(GROWTH, p=p, sensealg=engine)[-1])(3.0)
    second = jax.grad(lambda p: ode.solve(GROWTH, p=p, sensealg=engine).u[-1])(3.0)
    assert first == second


# ---------------------------------------------------------------- continuous adjoints


def test_backsolve_needs_restarts_where_the_backward_equation_is_unstable():
    k = jnp.array([[0.4, -0.9, 0.2], [0.8, 0.3, -0.5], [0.1, 0.6, -0.7]])
    times = jnp.linspace(0.0, 40.0, 81)
    target = jnp.stack([jnp.sin(times), jnp.cos(times), jnp.exp(-times)], axis=1)
    problem = ode.ODEProblem(lambda t, x, k: -x + jnp.tanh(k @ x), [1.0, -0.5, 0.3], (0.0, 40.0), saveat=times, **TIGHT)

    def gradient(engine):
        return jax.grad(lambda k: jnp.sum((ode.solve(problem, p=k, sensealg=engine).u - target) ** 2))(k)

    want = gradient(FORWARD)
    for engine in (INTERPOLATING, ode.BacksolveAdjoint(restart=True)):
        close(gradient(engine), want, 1e-10)
    try:
        astray = gradient(ode.BacksolveAdjoint(restart=False))
    except ode.SolveError:
        return
    assert not np.allclose(astray, want, rtol=1e-2)


def test_quadrature_adjoint_takes_few_backward_steps():
    """max_steps bounds the backward solve alone: had it needed more, the gradient would be NaN.

    u = exp(-p (e^(t-8) - e^-8)); the span ends where an explicit method is not yet limited by stability.
    """
    f = lambda t, u, p: -p * jnp.exp(t - 8) * u
    problem = ode.ODEProblem(f, 1.0, (0.0, 10.0), saveat=[10.0], reltol=1e-6, abstol=1e-6)
    end = lambda p, n: ode.solve(problem, p=p, sensealg=ode.QuadratureAdjoint(max_steps=n)).u[-1]
    growth = math.exp(2) - math.exp(-8)
    close(jax.jit(jax.grad(end), static_argnums=1)(1.0, 299), -growth * math.exp(-growth), 1e-4)
    assert jnp.isnan(jax.jit(jax.grad(end), static_argnums=1)(1.0, 3))


# ---------------------------------------------------------------- complex states


@each_engine
def test_complex_state_with_a_real_parameter(engine):
    problem = ode.ODEProblem(growth, jnp.array([1 + 2j, 2 + 1j]), (0.0, 1.0), saveat=[1.0], **TIGHT)
    loss = lambda p: jnp.sum(jnp.abs(ode.solve(problem, p=p, sensealg=engine).u[-1]))
    assert jax.grad(loss)(1.0).dtype == jnp.float64
    check_gradient(engine, loss, 1.0, 12.156525900873696, 1e-12)


@engines(DISCRETE, BACKSOLVE)
def test_complex_matrix_state_with_complex_parameters(engine):
    a = jnp.array([[1j, 2.0], [3.0, 4.0]])
    v = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    f = lambda t, u, p: a @ u * (t * (p[0] + t * (p[1] + t * (p[2] + t * p[3]))))
    problem = ode.ODEProblem(f, jnp.eye(2, dtype=complex), (0.0, 1.0), saveat=[1.0], **TIGHT)

    def fidelity(u, xp):
        return 1 - xp.abs(xp.trace(u @ xp.conj(v).T) / 2) ** 2

    p = jnp.array([1.5, 1.0, 3.0, 1.0], complex)
    loss = lambda p: fidelity(ode.solve(problem, p=p, sensealg=engine).u[-1], jnp)
    area = float(p.real @ jnp.array([1 / 2, 1 / 3, 1 / 4, 1 / 5]))
    value, gradient = jax.value_and_grad(loss)(p)
    close(value, fidelity(scipy.linalg.expm(np.asarray(a) * area), np), 1e-11)
    close(value, -1.868534469561e8, 1e-11)
    want = (-9.60187125172791e8 - 3.3897957613e7j) * np.array([1, 2 / 3, 1 / 2, 2 / 5])
    close(gradient, want, 1e-11)


@engines(DISCRETE, INTERPOLATING)
def test_complex_gradient_is_that_of_the_realified_problem(engine):
    keys = jax.random.split(jax.random.key(0), 6)
    draws = 64

    def random(key, *shape):
        re, im = jax.random.normal(key, (2, draws, *shape))
        return re + 1j * im

    a, h, u0 = random(keys[0], 3, 3), random(keys[1], 3, 3), random(keys[2], 3, 2)
    p = jax.random.uniform(keys[3], (draws, 3), minval=0.5, maxval=1.5)
    w = random(keys[4], 3, 2)
    options = {"saveat": [1.0], "reltol": 1e-6, "abstol": 1e-6, "sensealg": engine}

    def field(t, u, p, a, h):
        return a @ u * (p[0] * jnp.cos(p[1] * t + p[2])) + h @ u

    def as_complex(p, a, h, u0, w):
        problem = ode.ODEProblem(lambda t, u, p: field(t, u, p, a, h), u0, (0.0, 1.0), p, **options)
        u = ode.solve(problem).u[-1]
        return jnp.real(jnp.sum(w * u))

    def as_real(p, a, h, u0, w):
        def f(t, u, p):
            du = field(t, u[0] + 1j * u[1], p, a, h)
            return jnp.stack([du.real, du.imag])

        problem = ode.ODEProblem(f, jnp.stack([u0.real, u0.imag]), (0.0, 1.0), p, **options)
        u = ode.solve(problem).u[-1]
        return jnp.real(jnp.sum(w * (u[0] + 1j * u[1])))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got, want = (jax.jit(jax.vmap(jax.grad(f)))(p, a, h, u0, w) for f in (as_complex, as_real))
    assert got.dtype == jnp.float64
    error = jnp.linalg.norm(got - want, axis=1) / jnp.linalg.norm(want, axis=1)
    assert jnp.max(error) <= 1e-6


# ---------------------------------------------------------------- single precision


@each_engine
def test_a_second_order_system_in_single_precision(engine):
    """u'' = -p u: u = u0 cos(w t) + v0 / w sin(w t), w^2 = p."""
    u0, v0, p = np.float32([[1.0, 2.0], [0.0, 2.0], [1.01, 0.9]])
    times = np.linspace(0, 1, 20, dtype=np.float32)
    f = lambda t, u, p: jnp.stack([u[1], -p * u[0]])
    problem = ode.ODEProblem(f, np.stack([u0, v0]), (0.0, 1.0), saveat=times, sensealg=engine, reltol=2e-6, abstol=2e-6)
    gradient = jax.grad(lambda p: jnp.sum(ode.solve(problem, p=p).u))(jnp.asarray(p))
    assert gradient.dtype == jnp.float32

    def exact(p):
        t, w = np.float64(times)[:, None], jnp.sqrt(p)
        return jnp.sum(u0 * jnp.cos(w * t) + v0 / w * jnp.sin(w * t) + v0 * jnp.cos(w * t) - u0 * w * jnp.sin(w * t))

    close(gradient, jax.grad(exact)(np.float64(p)), 1e-4)


def test_a_step_of_saves_in_double_precision_beside_a_state_in_single():
    problem = ode.ODEProblem(lambda t, u, p: -p * u, np.float32([1.0]), (np.float32(0.0), np.float32(99.9)))
    sol = ode.solve(problem, p=np.float32(0.01), saveat=np.float64(0.1))
    assert sol.success and sol.u.dtype == jnp.float32
    np.testing.assert_allclose(sol.t[:1000], 0.1 * np.arange(1000), rtol=1e-14)
    assert sol.t[-1] == np.float32(99.9)  # which is not the double precision 99.9
    close(sol.u[:, 0], np.exp(-0.01 * np.asarray(sol.t)), 1e-4)
