"""Problems on which differential equation solvers have been seen to give wrong, missing or NaN derivatives.

Each test states one such problem and its right values, which come from closed forms, from mpmath at 30 digits or more,
or from two independent SciPy computations that agree. Assertions are relative to the largest entry of what is compared.
"""

import contextlib
import math
import pathlib
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from .problems import BACKSOLVE, DISCRETE, FORWARD, GAUSS, INTERPOLATING, QUADRATURE, check_gradient, close, engines

# Which test has which case, by the number that the cases have in the collection they come from; those of a topic of
# their own are in that topic's module. Then, by topic, the tests of further reference values.
WHERE = """
01 loss over saves, implicit method  test_a_sum_over_saves_at_the_start_and_long_after_the_transient
02 a rate that switches at rest      test_rate_that_switches_while_the_state_rests
03 options in problem or in solve    test_options_given_to_the_problem_or_to_solve
03                                   test_loss_on_one_state_only
04 observation at t0                 test_observation_at_the_initial_time
06 scale of a mass matrix' row       test_stiff_gradients::test_scale_of_a_row_drops_out
07 every engine, every mode          test_every_engine_in_every_mode
09 root of a sum of squares          test_root_of_a_sum_of_squares
10 residual zero                     test_residuals_that_vanish
11 Hill exponent at zero             test_power_of_a_concentration_that_starts_at_zero
13 field undefined outside the span  test_field_that_is_not_defined_before_the_span
13                                   test_field_that_is_not_defined_after_a_short_span
14 NaN in an unused parameter        test_nan_in_a_parameter_that_is_not_used
15 compilation                       test_second_call_with_other_numbers_compiles_nothing
15                                   test_program_does_not_grow_with_the_number_of_steps_or_saves
16 max_steps inside a gradient       test_too_many_steps_inside_a_gradient
16                                   test_the_same_by_a_stiff_method_and_by_default
18 Hessian of logistic growth        test_hessian_of_logistic_growth
20 forward mode                      test_forward_mode
21 complex growth rate               test_complex_growth_rate
21                                   test_complex_decay_with_a_real_rate
23 ensemble, shared parameters       test_trajectories_that_share_parameters
23                                   test_ensemble::test_gradients_are_sums_of_single_ones
26 time of a switch                  test_event_cases::test_derivative_in_the_time_of_a_switch
27 projectile, time of the hit       test_event_cases::test_where_a_projectile_lands_and_when
28 an event freezes a rate           test_event_cases::test_an_event_that_freezes_a_rate
30 a callback changes a parameter    test_event_cases::test_a_callback_that_changes_a_parameter
31 bolus triggered by the state      test_event_cases::test_a_bolus_triggered_by_the_state
31                                   test_event_cases::test_lanes_of_which_one_reaches_it_three_times_and_another_never
32 event inside a step               test_event_cases::test_event_time_inside_a_step
32                                   test_event_cases::test_event_time_where_the_field_is_constant
34 condition zero at t0              test_event_cases::test_a_condition_that_is_zero_at_the_start
36 a stop before some saves          test_event_cases::test_a_stop_before_some_saves
38 empty span, repeated saves        test_a_span_of_no_length_beside_one_that_has_a_length
38                                   test_saved_times_that_repeat
39 step of saves misses the end      test_step_of_saves_that_does_not_divide_the_span
39                                   test_array_of_saves_that_misses_the_end_of_the_span
40 gradients in times                test_derivatives_in_saved_times
40                                   test_derivatives_in_the_initial_time_and_saved_times_of_a_forced_equation
40                                   test_derivatives_in_both_ends_of_the_span_of_a_nonlinear_equation
42 backward in time                  test_backward_in_time
42                                   test_ascending_saves_on_a_descending_span_are_refused
44 loss on the solver's own steps    test_loss_on_whatever_steps_were_taken
46 fast relaxation                   test_fast_relaxation
47 Robertson as a DAE                test_stiff_gradients::test_jacobian_of_robertson_as_a_dae
47                                   test_stiff_gradients::test_robertson_as_a_dae
47                                   test_symbolic_dae::test_robertson
49 initial value of a DAE            test_stiff_gradients::test_initial_value_found_by_the_solve
49                                   test_symbolic_dae::test_initial_value_gradient_of_a_dae
49                                   test_ivp::test_a_start_that_cannot_be_put_right_is_refused
51 captured parameters               test_parameter_captured_under_vmap_and_grad
51                                   test_captured_noise_beside_a_parameter
52 integer leaves                    test_integer_leaves_among_the_parameters
53 structured parameters             test_parameters_and_state_with_structure
54 derivative of dense output        test_dense_output_of_the_van_der_pol_oscillator
54                                   test_derivative_of_dense_output_does_not_jump_between_steps
54                                   test_dense_call_after_two_saves_is_not_a_straight_line
55 large steady state                test_steady_state::test_many_cells
55                                   test_steady_state::test_a_long_solve_has_the_gradient_of_the_steady_state
57 lag of a dose                     test_event_cases::test_the_lag_of_a_dose
58 doses for ever                    test_event_cases::test_doses_for_ever
58                                   test_event_cases::test_fifty_doses_are_not_for_ever
60 scalar states                     test_scalar_states
60                                   test_scalar_state_with_other_engines
62 square wave, pulse                test_event_cases::test_a_square_wave_of_charge_and_discharge
62                                   test_event_cases::test_a_pulse_after_a_long_rest
63 diffusion on a line               test_diffusion_and_decay_on_a_line
65 neural network as field           test_neural_network_as_the_field
65                                   test_neural_network_as_the_field_in_single_precision
66 log density of a flow             test_log_density_of_a_flow_whose_field_differentiates_itself
67 Lorenz, chaos                     test_derivatives_that_grow_with_chaos
"""
REFERENCES = """
growth                       test_references::test_growth
                             test_references::test_gradient_is_the_same_to_the_last_bit_in_every_call_form
Lotka-Volterra, Hessians     test_references::test_lotka_volterra
                             test_references::test_lotka_volterra_hessian
                             test_references::test_lotka_volterra_hessian_vector_products
forced Lotka-Volterra        test_references::test_forced_lotka_volterra_sums_and_integral
                             test_references::test_saved_times_that_stop_before_the_end_of_the_span
times                        test_references::test_derivatives_in_the_ends_of_the_span
                             test_references::test_hessian_that_includes_the_end_time
inhomogeneous                test_references::test_inhomogeneous_equation
gradient at an optimum       test_references::test_gradient_vanishes_at_an_optimum
Lorenz                       test_references::test_lorenz
falling mass                 test_references::test_falling_mass_and_a_parameter_that_is_not_used
custom rules in f            test_references::test_custom_jvp_inside_the_field_is_obeyed_at_third_order
                             test_references::test_custom_vjp_inside_the_field_is_obeyed_in_reverse_mode
null problems                test_references::test_parameters_that_are_not_used
                             test_references::test_no_states
                             test_references::test_a_span_of_no_length
                             test_references::test_a_parameter_that_is_nan_until_it_is_remade
globals and captures         test_references::test_a_factor_held_by_the_field
                             test_references::test_a_traced_factor_held_by_the_field
dense output                 test_references::test_dense_output_and_its_derivatives
                             test_references::test_last_state_has_the_same_gradient_in_every_spelling
tracking, backsolve          test_references::test_backsolve_needs_restarts_where_the_backward_equation_is_unstable
backward cost                test_references::test_quadrature_adjoint_takes_few_backward_steps
complex states               test_references::test_complex_state_with_a_real_parameter
                             test_references::test_complex_matrix_state_with_complex_parameters
                             test_references::test_complex_gradient_is_that_of_the_realified_problem
one bounce                   test_events::test_one_bounce
injection                    test_events::test_injection
fixed time against root      test_events::test_a_known_time_against_a_root
event time of any order      test_events::test_event_time_to_third_order
second-order saltation       test_events::test_second_order_saltation
ball with all affects        test_events::test_ball_with_all_that_may_happen
switch over thresholds       test_events::test_switch_over_thresholds
branching field              test_events::test_branching_field
steady state                 test_steady_state::test_reference
Robertson                    test_stiff_gradients::test_robertson
                             test_ivp::test_robertson_by_every_other_method
cubic constraints            test_stiff_gradients::test_cubic_constraints
                             test_symbolic_dae::test_cubic_constraints
every stiff method           test_stiff::test_gradients_by_every_method
consistency of steps         test_stiff::test_the_derivative_of_a_decay_in_its_start
second order in float32      test_references::test_a_second_order_system_in_single_precision
                             test_references::test_a_step_of_saves_in_double_precision_beside_a_state_in_single
IVP test set, DETEST         test_ivp::test_end_values
LV ensemble                  test_ensemble::test_loss_of_one_trajectory_out_of_three
ensemble with an event       test_ensemble::test_growth_of_scaled_initial_states
                             test_ensemble::test_trajectories_that_an_event_ends
ensemble fit                 test_ensemble::test_ten_steps_of_adam_improve_the_loss_tenfold
symbolic decay, call forms   test_symbolic::test_decay_is_the_same_to_the_last_bit_in_all_call_forms
symbolic null                test_symbolic::test_null_problem
                             test_symbolic::test_a_parameter_built_as_nan_and_remade
symbolic second order        test_symbolic_dae::test_second_order_system_with_an_observed_value
                             test_symbolic_dae::test_fifteen_initialisations_of_one_problem_have_one_gradient
initial parameter solved for test_symbolic_dae::test_a_parameter_that_is_solved_for
observed, tangent of a DAE   test_symbolic::test_derivatives_through_names
                             test_symbolic_dae::test_tangent_along_the_constraint
missing p                    test_symbolic::test_messages_about_values
"""


def test_the_table_of_cases_names_tests_that_exist():
    assert len({line[:2] for line in WHERE.split("\n") if line}) == 46
    for module, name in re.findall(r"(?:(test_\w+)::)?(test_\w+)", WHERE + REFERENCES):
        source = pathlib.Path(__file__).with_name(f"{module or 'test_cases'}.py").read_text()
        assert f"def {name}(" in source, f"{module}::{name}"


TIGHT = {"reltol": 1e-12, "abstol": 1e-12, "max_steps": 20_000}


@contextlib.contextmanager
def compilations():
    """A list that grows by one with each program that is compiled."""
    seen = []

    def listen(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def decay(t, u, p):
    return -p * u


def growth(t, u, p):
    return p * u


def lotka_volterra(t, u, p):
    x, y = u
    return jnp.stack([p[0] * x - p[1] * x * y, p[3] * x * y - p[2] * y])


LV_P = jnp.array([1.5, 1.0, 3.0, 1.0])
LV_X = jnp.array([1.0, 1.0, *LV_P])
LV_SUM_AT_UNITS = 46.757797332691965
LV_SUM_AT_UNITS_GRADIENT = [
    -6.465177892994102,
    -0.9371334661489881,
    -7.555862073981286,
    -16.824915246868326,
    5.111403856979906,
    -37.335193444966734,
]

# ---------------------------------------------------------------- every engine, every mode


@engines()
def test_every_engine_in_every_mode(engine):
    problem = ode.ODEProblem(decay, 1.0, (0.0, 1.0), saveat=[1.0], sensealg=engine, **TIGHT)
    end = lambda p: ode.solve(problem, p=p).u[-1]
    e = 0.6065306597126334
    value, tangent = jax.jvp(end, (0.5,), (1.0,))
    gradient, second = jax.jvp(jax.grad(end), (0.5,), (1.0,))
    close(jnp.stack([value, tangent, gradient, second]), [e, -e, -e, e], 1e-11)


@pytest.mark.parametrize(
    ("alg", "engine"),
    [(ode.Kvaerno5(), DISCRETE), (ode.Rodas5P(), INTERPOLATING), (ode.Rodas5P(), FORWARD), (ode.Tsit5(), GAUSS)],
    ids=lambda x: type(x).__name__,
)
def test_a_sum_over_saves_at_the_start_and_long_after_the_transient(alg, engine):
    f = lambda t, y, p: jnp.stack([2 - p[0] * y[0], y[0] - p[1] * y[1]])
    options = {"saveat": [0.0, 0.5, 0.75, 20.0], "reltol": 1e-8, "abstol": 1e-8, "sensealg": engine}
    problem = ode.ODEProblem(f, [1.0, 1.0], (0.0, 20.0), **options)
    loss = lambda p: jnp.sum((ode.solve(problem, alg, p=p).u - 1) ** 2)
    p, want = jnp.array([2.5, 4.5]), [0.56137446016991219, 0.28128532769636382]
    value, gradient = jax.jit(jax.value_and_grad(loss))(p)
    close(value, 1.891614932449128, 1e-7)
    close(gradient, want, 1e-6)
    close(jax.grad(loss)(p), gradient, 1e-13)


@engines(QUADRATURE)
def test_hessian_of_logistic_growth(engine):
    f = lambda t, y, p: p[0] * y * (1 - y / p[1])

    def end(x):
        problem = ode.ODEProblem(f, x[2], (0.0, 4.0), x[:2], saveat=[4.0], sensealg=engine, **TIGHT)
        return ode.solve(problem).u[-1]

    x = jnp.array([0.8, 3.0, 0.2])
    close(jax.grad(end)(x), [2.7758536734678913, 0.38882654996214324, 3.7176611698230687], 1e-11)
    want = [
        [-3.0350213172090916, 1.1962686040020136, -4.0647606926907477],
        [1.1962686040020136, -0.10090864730998444, 1.5136297096497666],
        [-4.0647606926907477, 1.5136297096497666, -22.704445644746499],
    ]
    columns = [jax.jvp(jax.grad(end), (x,), (v,))[1] for v in jnp.eye(3)]
    close(jnp.stack(columns), want, 1e-11)


@pytest.mark.parametrize("options", [{"adaptive": False, "dt0": 1e-4}, {}], ids=["fixed steps", "adaptive"])
def test_forward_mode(options):
    problem = ode.ODEProblem(decay, 1.0, (0.0, 0.1), saveat=[0.1], **TIGHT, **options)
    end = lambda a: ode.solve(problem, p=a).u[-1]
    x, dx, ddx = 0.7945336025033340, -0.0794533602503334, 0.0079453360250333401
    value, tangent = jax.jit(lambda a: jax.jvp(end, (a,), (1.0,)))(2.3)
    close(value, x, 1e-12)
    close(tangent, dx, 1e-12)
    if options:
        return
    # The solve controls the error of x, a hundred times the second derivative.
    close(jax.jacfwd(jax.jacfwd(end))(2.3), ddx, 1e-10)
    lanes = jax.jit(jax.vmap(jax.jacfwd(end)))(jnp.array([2.3, 1.0, 0.0]))
    close(lanes, [dx, -0.1 * math.exp(-0.1), -0.1], 1e-12)


# ---------------------------------------------------------------- options and saved times


def test_options_given_to_the_problem_or_to_solve():
    bare = ode.ODEProblem(lotka_volterra, jnp.ones(2), (0.0, 10.0), LV_P)
    options = {"saveat": 1.0, "sensealg": INTERPOLATING, **TIGHT}
    held = ode.remake(bare, **options)
    in_problem = lambda x: jnp.sum(ode.solve(held, u0=x[:2], p=x[2:]).u)
    in_solve = lambda x: jnp.sum(ode.solve(bare, u0=x[:2], p=x[2:], **options).u)
    first, second = jax.value_and_grad(in_problem)(LV_X), jax.value_and_grad(in_solve)(LV_X)
    close(first[0], LV_SUM_AT_UNITS, 1e-11)
    close(first[1], LV_SUM_AT_UNITS_GRADIENT, 1e-10)
    assert first[0] == second[0]
    assert jnp.all(first[1] == second[1])


@engines(BACKSOLVE)
def test_loss_on_one_state_only(engine):
    problem = ode.ODEProblem(lotka_volterra, jnp.ones(2), (0.0, 10.0), LV_P, saveat=0.1, **TIGHT)
    loss = lambda x: jnp.sum(ode.solve(problem, u0=x[:2], p=x[2:], sensealg=engine).u[:, 1])
    want = [-10.475629159277513, -1.216818453966449, 75.939851340703161, -151.91333095011244, -6.3086618959016036]
    check_gradient(engine, loss, LV_X, [*want, -10.475629159277513], 1e-10, 150.69651249614599)


@engines()
def test_observation_at_the_initial_time(engine):
    """The cotangent of the state saved at t0 reaches u0 without any integration; leaving it out is easy."""

    def f(t, u, p):
        h, low = u
        return jnp.stack([p[0] * h - p[1] * h * low, 0.02 * h * low - 0.9 * low])

    problem = ode.ODEProblem(f, [1.0, 4.0], (0.0, 10.0), saveat=[0.0, 5.0, 10.0], sensealg=engine, **TIGHT)
    loss = lambda x: jnp.sum(ode.solve(problem, u0=jnp.stack([10 ** x[2], 4.0]), p=x[:2]).u)
    value, gradient = jax.value_and_grad(loss)(jnp.array([0.8, 0.05, 1.5]))
    close(value, 169.90071886737886, 1e-10)
    close(gradient, [253.46254326420329, 25.658526090483081, 213.79782969802118], 1e-10)


@engines(DISCRETE, BACKSOLVE)
def test_saved_times_that_repeat(engine):
    times = [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    problem = ode.ODEProblem(growth, 1.0, (0.0, 1.0), saveat=times, sensealg=engine, **TIGHT)
    loss = lambda x: jnp.sum(ode.solve(problem, u0=x[0], p=x[1], tspan=(x[2], x[3])).u)
    value = 4.402546787020246
    want = [value, 1.6978586973015325, 0.7 * value, 0.0]
    check_gradient(engine, loss, [1.0, -0.7, 0.0, 1.0], want, 1e-11, value)


@engines(DISCRETE)
def test_a_span_of_no_length_beside_one_that_has_a_length(engine):
    problem = ode.ODEProblem(growth, 1.0, (0.0, 0.0), 1.0, saveat=[0.0, 0.0], sensealg=engine, **TIGHT)
    assert ode.solve(problem).u.tolist() == [1, 1]

    def end(u0, p, t1):
        return ode.solve(problem, u0=u0, p=p, tspan=(0.0, t1), saveat=jnp.stack([0 * t1, t1])).u[-1]

    lanes = jnp.array([0.0, 1.0])
    values, grads = jax.vmap(jax.value_and_grad(end, argnums=(0, 1, 2)), in_axes=(None, None, 0))(1.0, 1.0, lanes)
    e = math.e
    close(values, [1, e], 1e-11)
    assert (grads[0][0], grads[1][0]) == (1, 0)
    close(jnp.stack(grads), [[1, e], [0, e], [1, e]], 1e-11)


@engines(INTERPOLATING)
def test_step_of_saves_that_does_not_divide_the_span(engine):
    problem = ode.ODEProblem(lambda t, y, p: -p * y + jnp.sin(t), 1.0, (0.0, 10.0), sensealg=engine, **TIGHT)
    loss = lambda p: jnp.sum(ode.solve(problem, p=p, saveat=2.3).u ** 2)
    assert len(ode.solve(problem, p=0.4, saveat=2.3)) == 6
    check_gradient(engine, loss, 0.4, -9.1764484635921521, 1e-11, 4.8819878754923952)


@engines(QUADRATURE)
def test_array_of_saves_that_misses_the_end_of_the_span(engine):
    problem = ode.ODEProblem(lambda t, y, p: -p * y + jnp.sin(t), 1.0, (0.0, 10.0), sensealg=engine, **TIGHT)
    times = 2.3 * np.arange(5)
    loss = lambda p: jnp.sum(ode.solve(problem, p=p, saveat=times).u ** 2)
    check_gradient(engine, loss, 0.4, -7.8197503251292917, 1e-11, 4.5572599684036735)


def test_derivatives_in_saved_times():
    problem = ode.ODEProblem(decay, 1.0, (0.0, 0.5), 1.0, **TIGHT)
    loss = lambda ts: jnp.sum(ode.solve(problem, saveat=ts).u)
    check_gradient(DISCRETE, loss, [0.3, 0.5], [-0.7408182206817179, -0.6065306597126334], 1e-12)


@engines(DISCRETE, BACKSOLVE)
def test_derivatives_in_the_initial_time_and_saved_times_of_a_forced_equation(engine):
    def values(x):
        t0, early, late, a = x
        problem = ode.ODEProblem(lambda t, y, a: jnp.cos(a * t), 0.0, (t0, 1.1), a, sensealg=engine, **TIGHT)
        return ode.solve(problem, saveat=jnp.stack([early, late])).u

    x = jnp.array([0.2, 0.45, 1.1, 1.5])
    close(values(x), [0.21958474004424018, 0.46756321452838618], 1e-11)
    want = [
        [-0.95533648912560602, 0.78070695113244687, 0.0, -0.039555939906506858],
        [-0.95533648912560602, 0.0, -0.079120888806733952, -0.49710899336060982],
    ]
    close(jax.jacrev(values)(x), want, 1e-11)
    if engine in (DISCRETE, FORWARD):
        close(jax.jacfwd(values)(x), want, 1e-11)


def test_derivatives_in_both_ends_of_the_span_of_a_nonlinear_equation():
    def end(x):
        u0, t0, t1 = x
        return ode.solve(ode.ODEProblem(lambda t, x, p: x**2, u0, (t0, t1), **TIGHT), saveat=t1[None]).u[-1]

    check_gradient(DISCRETE, end, [0.5, 0.0, 0.5], [16 / 9, -4 / 9, 4 / 9], 1e-11, 2 / 3)


@engines(DISCRETE, BACKSOLVE)
def test_backward_in_time(engine):
    times = [1.0, 0.75, 0.25, 0.0]
    problem = ode.ODEProblem(growth, 0.1, (1.0, 0.0), saveat=times, sensealg=engine, **TIGHT)

    def values(x):
        u = ode.solve(problem, u0=x[0], p=x[1]).u
        return jnp.stack([u[-1], jnp.sum(u)])

    x = jnp.array([0.1, 1.01])
    close(values(x), [0.036421897957152332, 0.2609912248164498], 1e-11)
    want = [[0.36421897957152332, -0.036421897957152332], [2.609912248164498, -0.091006082459659763]]
    close(jax.jacrev(values)(x), want, 1e-11)
    if engine in (DISCRETE, FORWARD):
        close(jax.jacfwd(values)(x), want, 1e-11)


def test_ascending_saves_on_a_descending_span_are_refused():
    with pytest.raises(ValueError, match="sort it"):
        ode.solve(ode.ODEProblem(growth, 0.1, (1.0, 0.0), 1.01, saveat=[0.0, 0.25, 1.0]))


@engines(DISCRETE, BACKSOLVE)
def test_loss_on_whatever_steps_were_taken(engine):
    """du(t_i)/dp = 1 - exp(-t_i) at the times that the solution reports."""
    problem = ode.ODEProblem(lambda t, u, p: p - u, 1.0, (0.0, 1.0), reltol=1e-10, abstol=1e-10, max_steps=200)

    def loss(p):
        sol = ode.solve(problem, p=p, sensealg=engine)
        return jnp.sum(sol.u), sol

    gradient, sol = jax.grad(loss, has_aux=True)(0.0)
    assert 5 < len(sol) < 200
    assert jnp.all(jnp.diff(sol.t) > 0)
    close(gradient, jnp.sum(1 - jnp.exp(-sol.t)), 1e-9)
    if engine is not DISCRETE:
        return
    close(jax.jacfwd(lambda p: loss(p)[0])(0.0), gradient, 1e-9)
    padded, sol = jax.jit(jax.grad(loss, has_aux=True))(0.0)
    assert len(sol) == 201
    close(padded, jnp.sum(1 - jnp.exp(-sol.t)), 1e-9)


# ---------------------------------------------------------------- fits


SIR_TIMES = np.linspace(0.0, 30.0, 101)
SIR_TRUTH = jnp.array([1 / 2, 1 / 14])


def sir(x, engine, tol):
    def f(t, u, p):
        s, i, _ = u
        new, gone = p[0] * s * i, p[1] * i
        return jnp.stack([-new, new - gone, gone])

    problem = ode.ODEProblem(f, [0.95, 0.05, 0.0], (0.0, 30.0), x, saveat=SIR_TIMES, reltol=tol, abstol=tol)
    return ode.solve(problem, sensealg=engine).u


@engines(GAUSS)
def test_root_of_a_sum_of_squares(engine):
    data = sir(SIR_TRUTH, engine, 1e-9)
    loss = lambda x: jnp.sqrt(jnp.sum((sir(x, engine, 1e-9) - data) ** 2))
    value, gradient = jax.value_and_grad(loss)(jnp.array([0.4, 0.1]))
    close(value, 1.7384302785800643, 1e-7)
    close(gradient, [-13.169767347358419, 23.623775425395222], 1e-7)


@engines(DISCRETE)
def test_residuals_that_vanish(engine):
    data = sir(SIR_TRUTH, engine, 1e-11)
    squares = lambda x: jnp.sum((sir(x, engine, 1e-11) - data) ** 2)
    assert jnp.max(jnp.abs(jax.grad(squares)(SIR_TRUTH))) < 1e-12
    want = [[235.62530017244239, 140.03215475844661], [140.03215475844661, 4819.8250831886735]]
    hessian = [jax.jvp(jax.grad(squares), (SIR_TRUTH,), (v,))[1] for v in jnp.eye(2)]
    close(jnp.stack(hessian), want, 1e-9)
    # The root of a square has no derivative at zero: NaN is JAX's own answer, and is passed on as it is.
    roots = lambda x: jnp.sum(jnp.sqrt((sir(x, engine, 1e-11) - data) ** 2))
    assert jnp.all(jnp.isnan(jax.grad(roots)(SIR_TRUTH)))


@engines(DISCRETE)
def test_trajectories_that_share_parameters(engine):
    starts = jnp.array([[1.0, 1.0], [1.2, 0.8], [0.7, 1.1]])
    problem = ode.ODEProblem(lotka_volterra, starts[0], (0.0, 10.0), LV_P, saveat=1.0, sensealg=engine, **TIGHT)
    one = lambda u0, p: jnp.sum(ode.solve(problem, u0=u0, p=p).u)
    shared = lambda p: jnp.sum(jax.vmap(one, (0, None))(starts, p))
    rows = [
        [-7.5558620739812845, -16.824915246868327, 5.1114038569799059, -37.33519344496673],
        [10.477640711386367, -15.486940707868558, 8.9850095922249304, -29.391055089169262],
        [1.6588280517759687, -16.266052429671435, 7.8024888432709102, -34.379154686233453],
    ]
    total = [4.5806066891810515, -48.57790838440832, 21.898902292475746, -101.10540322036945]
    value, gradient = jax.value_and_grad(shared)(LV_P)
    close(value, 141.05381603717596, 1e-11)
    close(gradient, total, 1e-10)
    own = jax.grad(lambda ps: jnp.sum(jax.vmap(one)(starts, ps)))(jnp.tile(LV_P, (3, 1)))
    close(own, rows, 1e-10)
    close(jnp.stack([jax.grad(one, argnums=1)(u0, LV_P) for u0 in starts]), rows, 1e-10)


def _spiral_net():
    i, j = np.arange(8)[:, None], np.arange(2)[None, :]
    w1 = 0.12 * np.sin(1 + 3 * i + 7 * j)
    b1 = 0.1 * np.cos(np.arange(8))
    w2 = (0.4 * np.cos(2 + 5 * j + 3 * i)).T
    return w1, b1, w2, np.array([0.05, -0.05])


class Net(eqx.Module):
    w1: jax.Array
    b1: jax.Array
    w2: jax.Array
    b2: jax.Array

    def __call__(self, z):
        return self.w2 @ jnp.tanh(self.w1 @ z**3 + self.b1) + self.b2


def spiral_loss(net, dtype, tol, engine=None):
    times = 0.15 * np.arange(1, 11)
    target = np.stack([2 * np.cos(times), -2 * np.sin(times)], axis=1) * np.exp(-times / 10)[:, None]
    problem = ode.ODEProblem(lambda t, z, net: net(z), jnp.array([2.0, 0.0], dtype), (0.0, 1.5), net)
    sol = ode.solve(problem, saveat=times.astype(dtype), reltol=tol, abstol=tol, sensealg=engine)
    return jnp.mean((sol.u - target.astype(dtype)) ** 2)


def check_spiral(dtype, solve_tol, tol, engine=None):
    net = Net(*(jnp.asarray(x, dtype) for x in _spiral_net()))
    loss, gradient = jax.value_and_grad(spiral_loss)(net, dtype, solve_tol, engine)
    assert isinstance(gradient, Net)
    assert gradient.w1.dtype == dtype
    flat = jnp.concatenate([x.reshape(-1) for x in (gradient.w1, gradient.b1, gradient.w2, gradient.b2)])
    close(loss, 3.2424630332806164, tol)
    close(jnp.linalg.norm(flat), 27.100572881714815, tol)
    want = [1.8148548495181329, 0.362788527607125, 0.24680532771244473, 2.088273183715347, -1.9861986054337888]
    close(flat[jnp.array([0, 5, 16, 24, 33, 40, 41])], [*want, 2.9164942527021038, 3.3491121620226623], tol)


@engines(GAUSS, BACKSOLVE)
def test_neural_network_as_the_field(engine):
    check_spiral(jnp.float64, 1e-12, 1e-10, engine)


def test_neural_network_as_the_field_in_single_precision():
    check_spiral(jnp.float32, 1e-5, 1e-3)


# ---------------------------------------------------------------- fields that are not smooth or not defined everywhere


@engines(INTERPOLATING, FORWARD)
def test_power_of_a_concentration_that_starts_at_zero(engine):
    def f(t, u, p):
        a, c, e = u
        ka, ke, km, h = p
        power = (c / km) ** h
        return jnp.stack([-ka * a, ka * a / 10 - ke * c, 1 - 0.9 * power / (1 + power) - 0.2 * e])

    problem = ode.ODEProblem(f, [100.0, 0.0, 5.0], (0.0, 24.0), saveat=[24.0], sensealg=engine, **TIGHT)
    end = lambda p: ode.solve(problem, p=p).u[-1, 2]
    right = {
        1.0: (3.8487848997594199, [0.088902470196687331, 13.366085482272566, 0.3854684010576339, 0.77351267847911114]),
        1.7: (4.2431101223067762, [0.09401596848356595, 13.072100678188584, 0.40853398508694895, 0.38598495204196292]),
    }
    for hill, (value, want) in right.items():
        got, gradient = jax.value_and_grad(end)(jnp.array([1.2, 0.15, 2.0, hill]))
        close(got, value, 1e-10)
        close(gradient, want, 1e-9)


calls: list = []


def note(t):
    calls.append(np.asarray(t))


def called_at():
    jax.effects_barrier()
    times = np.concatenate([np.ravel(t) for t in calls])
    calls.clear()
    return times


@engines(DISCRETE, INTERPOLATING)
def test_field_that_is_not_defined_before_the_span(engine):
    def f(t, y, p):
        jax.debug.callback(note, t)
        return p * jnp.sqrt(t)

    # Near the singular derivative at t = 0 the error of a step is many times its estimate, hence the tight tolerance.
    problem = ode.ODEProblem(f, 1.0, (0.0, 2.0), sensealg=engine, reltol=1e-14, abstol=1e-14)
    end = lambda p, t1: ode.solve(problem, p=p, tspan=(0.0, t1), saveat=jnp.reshape(t1, 1)).u[-1]
    wanted = (0, 1) if engine is DISCRETE else (0,)
    both = jax.jit(jax.value_and_grad(end, argnums=wanted))
    for t1, value, want in [
        (0.008, 1.0002385139176, [0.00047702783519995514, 0.044721359549995794]),
        (2.0, 1.9428090415820634, [1.8856180831641267, 0.70710678118654752]),
    ]:
        calls.clear()
        got, gradient = both(0.5, t1)
        close(got, value, 1e-10)
        close(jnp.stack(gradient), want[: len(wanted)], 1e-9)
        times = called_at()
        assert times.size > 0
        assert times.min() >= 0
        assert times.max() <= t1


@engines(DISCRETE, BACKSOLVE)
def test_field_that_is_not_defined_after_a_short_span(engine):
    def f(t, z, p):
        jax.debug.callback(note, t)
        return jnp.where((t >= 0) & (t <= 1e-4), 2 * z, jnp.nan)

    end = lambda z0: ode.solve(ode.ODEProblem(f, z0, (0.0, 1e-4), saveat=[1e-4], sensealg=engine)).u[-1]
    calls.clear()
    value, gradient = jax.jit(jax.value_and_grad(end))(1.0)
    close(jnp.stack([value, gradient]), [1.0002000200013334, 1.0002000200013334], 1e-11)
    times = called_at()
    assert times.min() >= 0
    assert times.max() <= 1e-4


@engines(DISCRETE, GAUSS)
def test_nan_in_a_parameter_that_is_not_used(engine):
    value, want = 0.24659696394160648, -0.49319392788321295
    options = {"saveat": [2.0], "sensealg": engine, **TIGHT}
    named = ode.ODEProblem(lambda t, y, p: -p["k"] * y, 1.0, (0.0, 2.0), **options)
    flat = ode.ODEProblem(lambda t, y, p: -p[0] * y, 1.0, (0.0, 2.0), **options)
    if engine is DISCRETE:
        got, gradient = jax.value_and_grad(lambda p: ode.solve(named, p=p).u[-1])({"k": 0.7, "unused": math.nan})
        close(got, value, 1e-11)
        close(gradient["k"], want, 1e-11)
    for unused in (math.nan, 3.0):
        gradient = jax.grad(lambda p: ode.solve(flat, p=p).u[-1])(jnp.array([0.7, unused]))
        close(gradient[0], want, 1e-11)
        assert gradient[1] == 0 or math.isnan(unused)


@engines(DISCRETE, QUADRATURE)
def test_rate_that_switches_while_the_state_rests(engine):
    """Solved from switch to switch, since no error estimate of a resting state sees the switches.

    The discrete engine differentiates the mesh of the resting state, so its steps need a bound.
    """

    def f(t, u, a):
        x, y = u
        return jnp.stack([a * x - x * y, x * y - a * y])

    bound = {"dtmax": 0.02} if engine is DISCRETE else {}

    def loss(p):
        def interval(u0, step):
            start, a = step
            times = start + 0.1 * jnp.arange(11)
            problem = ode.ODEProblem(f, u0, (start, start + 1), a, sensealg=engine, **TIGHT, **bound)
            u = ode.solve(problem, saveat=times.at[-1].set(start + 1)).u
            return u[-1], u[1:]

        _, us = jax.lax.scan(interval, jnp.ones(2), (jnp.arange(4.0), p))
        return 2.0 + jnp.sum(us)

    want = [37.607133321739757, 35.924588944055818, 19.601050931211528, 3.6443048523634649]
    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.ones(4))
    close(value, 82.0, 1e-14)
    close(gradient, want, 1e-9)


# ---------------------------------------------------------------- stiff, unstable, too long


def test_too_many_steps_inside_a_gradient():
    f = lambda t, y, lam: -lam * (y - jnp.cos(t))
    problem = ode.ODEProblem(f, 0.0, (0.0, 1.0), 1e6, saveat=[0.0, 1.0], max_steps=1000)
    end = lambda lam: ode.solve(problem, ode.Tsit5(), p=lam).u[-1]
    for eager in (end, jax.grad(end), jax.jacfwd(end)):
        with pytest.raises(ode.SolveError, match=r"(?s)max_steps.*t = 0\.00"):
            eager(1e6)
    sol = jax.jit(lambda lam: ode.solve(problem, ode.Tsit5(), p=lam))(1e6)
    assert sol.retcode == ode.ReturnCode.MaxSteps
    assert not sol.success
    assert sol.u[0] == 0
    assert jnp.isnan(sol.u[-1])
    assert jnp.isnan(jax.jit(jax.grad(end))(1e6))
    assert jnp.isnan(jax.jit(jax.jacfwd(end))(1e6))


@pytest.mark.parametrize("alg", [None, ode.Rodas5P()], ids=repr)
def test_the_same_by_a_stiff_method_and_by_default(alg):
    """Where no method is named, an eager call that Tsit5 fails for stiffness switches."""
    f = lambda t, y, log_lam: -jnp.exp(log_lam) * (y - jnp.cos(t))
    options = {"saveat": [1.0], "max_steps": 1000, "reltol": 1e-9, "abstol": 1e-12}
    problem = ode.ODEProblem(f, 0.0, (0.0, 1.0), **options)
    end = lambda log_lam: ode.solve(problem, alg, p=log_lam).u[-1]
    value, gradient = jax.value_and_grad(end)(math.log(1e6))
    close(value, 0.54030314733858422, 1e-9)
    close(gradient, -8.4146990420076036e-7, 1e-5)


@engines(DISCRETE, INTERPOLATING)
def test_fast_relaxation(engine):
    f = lambda t, y, log_lam: -jnp.exp(log_lam) * (y - jnp.cos(t))
    problem = ode.ODEProblem(f, 2.0, (0.0, 1.0), saveat=0.1, sensealg=engine, **TIGHT)
    loss = lambda x: jnp.sum(ode.solve(problem, p=x[0], u0=x[1]).u)
    value, gradient = jax.value_and_grad(loss)(jnp.array([math.log(1000.0), 2.0]))
    close(value, 10.182853271945979, 1e-11)
    close(gradient[0], -0.0049975102769295426, 1e-8)
    close(gradient[1], 1.0, 1e-10)


def lorenz(t, u, rho):
    x, y, z = u
    return jnp.stack([10 * (y - x), x * (rho - z) - y, x * y - 8 / 3 * z])


@pytest.mark.parametrize(
    ("engine", "mode"),
    [(DISCRETE, jax.jacrev), (GAUSS, jax.jacrev), (FORWARD, jax.jacfwd)],
    ids=["discrete", "Gauss", "forward"],
)
def test_derivatives_that_grow_with_chaos(engine, mode):
    options = {"reltol": 1e-13, "abstol": 1e-13, "max_steps": 20_000, "saveat": [5.0, 10.0, 20.0]}
    problem = ode.ODEProblem(lorenz, [0.0, 1.0, 1.05], (0.0, 20.0), sensealg=engine, **options)
    states = lambda rho: ode.solve(problem, ode.Vern7(), p=rho).u
    values = [
        [-6.6192860474955032, -6.0465667271637264, 25.608257722489569],
        [-6.062674619366819, -3.6090447296407445, 27.516563356046355],
        [8.5350730503164558, 11.703346860419905, 22.544297862696454],
    ]
    want = [
        [0.12545888212606091, -1.598527664350001, -1.7979399590162977],
        [5.1975975436702021, -0.34145254498730041, -10.731068375856307],
        [3621.2700536267709, 4685.7311928827448, 3150.6725035849716],
    ]
    for got, right, tol in zip(states(28.0), values, (1e-9, 1e-8, 1e-5), strict=True):
        close(got, right, tol)
    for got, right, tol in zip(mode(states)(28.0), want, (1e-7, 1e-6, 1e-3), strict=True):
        close(got, right, tol)


# ---------------------------------------------------------------- what a field may hold, what parameters may be


@engines(DISCRETE, GAUSS)
def test_parameter_captured_under_vmap_and_grad(engine):
    thetas = jnp.array([0.4, 1.1, 2.5])

    def end(theta):
        problem = ode.ODEProblem(lambda t, y, p: -theta * y, 1.0, (0.0, 1.3), saveat=[1.3], sensealg=engine, **TIGHT)
        return ode.solve(problem).u[-1]

    want = [-0.77287671236125264, -0.31110159891688089, -0.050406470181238613]
    total = lambda thetas: jnp.sum(jax.vmap(end)(thetas))
    close(jax.grad(total)(thetas), want, 1e-11)
    if engine is DISCRETE:
        close(jax.jit(jax.grad(total))(thetas), want, 1e-11)
        with jax.checking_leaks():
            close(jax.vmap(jax.grad(end))(thetas), want, 1e-11)


@engines(INTERPOLATING)
def test_captured_noise_beside_a_parameter(engine):
    def loss(theta, eps):
        f = lambda t, u, theta: (eps * theta, -theta)
        problem = ode.ODEProblem(f, (jnp.array([0.3, 0.7]), 0.0), (0.0, 1.0), theta, saveat=[1.0], sensealg=engine)
        z, lp = ode.solve(problem, **TIGHT)[-1]
        return z @ z + lp

    value, gradient = jax.value_and_grad(jax.jit(loss))(0.5, jnp.array([1.0, -2.0]))
    close(value, 0.23, 1e-12)
    close(gradient, 1.8, 1e-12)


@engines(QUADRATURE)
def test_integer_leaves_among_the_parameters(engine):
    f = lambda t, y, p: -p["a"] * y[p["index"]] + p["n"]
    problem = ode.ODEProblem(f, [2.0, 3.0], (0.0, 1.0), saveat=[1.0], sensealg=engine, **TIGHT)
    fixed = {"n": jnp.array(1, jnp.int32), "index": jnp.array([0, 1])}
    end = lambda a: ode.solve(problem, p={"a": a, **fixed}).u[-1]
    close(end(0.2), [2.5438077407660544, 3.3625384938440363], 1e-11)
    want = [-2.075538913816508, -2.8942696668944898]
    close(jax.jacfwd(end)(0.2), want, 1e-11)
    gradient = jax.grad(lambda p: ode.solve(problem, p=p).u[-1, 0], allow_int=True)({"a": 0.2, **fixed})
    close(gradient["a"], want[0], 1e-11)
    assert gradient["n"].dtype == jax.dtypes.float0


class Oscillator(eqx.Module):
    mass: jax.Array
    spring: dict
    damping: tuple


@engines(DISCRETE, FORWARD)
def test_parameters_and_state_with_structure(engine):
    def f(t, u, p):
        return {"v": -(p.damping[0] * u["v"] + p.spring["k"] * u["x"]) / p.mass, "x": u["v"]}

    p = Oscillator(jnp.array(1.5), {"k": jnp.array(4.0), "label": "soft"}, (jnp.array(0.6), None))
    problem = ode.ODEProblem(f, {"x": 1.0, "v": 0.0}, (0.0, 2.0), saveat=[2.0], sensealg=engine, **TIGHT)

    def end(p):
        sol = ode.solve(problem, p=p)
        assert set(sol.u) == {"x", "v"}
        return sol.u["x"][-1]

    value, gradient = eqx.filter_value_and_grad(end)(p)
    close(value, -0.67522644860312091, 1e-11)
    assert isinstance(gradient, Oscillator)
    assert gradient.damping[1] is None
    assert gradient.spring["label"] is None
    got = [gradient.mass, gradient.spring["k"], gradient.damping[0]]
    close(jnp.stack(got), [-0.16076074451149487, -0.0053369090603845764, 0.43748125501463435], 1e-11)


def pharmacokinetics(u0, x, engine=None):
    times = [0.5, 1, 2, 3, 6, 9, 12, 24, 36, 48, 72]
    data = jnp.array([0, 1.9, 3.3, 6.6, 9.1, 10.8, 8.6, 5.6, 4, 2.7, 0.8])

    def f(t, u, p):
        clearance, volume, available, ka, dose = p
        return available * ka * dose * jnp.exp(-ka * t) - clearance / volume * u

    sol = ode.solve(ode.ODEProblem(f, u0, (0.0, 72.0), x, saveat=times, sensealg=engine, **TIGHT))
    return jnp.sum((sol.u.reshape(-1) - data) ** 2)


PK_X = jnp.array([1.0, 10.0, 0.5, 1.0, 100.0])
PK_VALUE = 4027.901037186745
PK_GRADIENT = [-2268.5609668447768, 226.85609668447768, 19104.081915557886, 2332.4361024367813, 95.520409577789428]


def test_scalar_states():
    for u0 in (0.0, 0, np.float64(0), jnp.array(0.0), jnp.zeros(1), [0.0]):
        value, gradient = jax.value_and_grad(pharmacokinetics, argnums=1)(u0, PK_X)
        close(value, PK_VALUE, 1e-11)
        close(gradient, PK_GRADIENT, 1e-10)


@engines(BACKSOLVE)
def test_scalar_state_with_other_engines(engine):
    close(jax.grad(pharmacokinetics, argnums=1)(0.0, PK_X, engine), PK_GRADIENT, 1e-10)


# ---------------------------------------------------------------- complex states


@engines(GAUSS, BACKSOLVE)
def test_complex_growth_rate(engine):
    problem = ode.ODEProblem(growth, 1 + 0.5j, (0.0, 1.5), saveat=[1.5], sensealg=engine, **TIGHT)
    alpha = 0.3 + 1.1j
    end = lambda alpha: ode.solve(problem, p=alpha).u[-1]
    close(end(alpha), -0.90578403974905596 + 1.501352444392078j, 1e-11)
    close(jax.grad(lambda a: jnp.abs(end(a)) ** 2)(alpha), 9.2235116668385612 + 0j, 1e-11)
    close(jax.grad(lambda a: end(a).real)(alpha), -1.3586760596235839 + 2.252028666588117j, 1e-11)
    parts = jax.jacfwd(lambda x: end(x[0] + 1j * x[1]).real)(jnp.array([0.3, 1.1]))
    close(parts, [-1.3586760596235839, -2.252028666588117], 1e-11)


@engines(DISCRETE)
def test_complex_decay_with_a_real_rate(engine):
    problem = ode.ODEProblem(decay, 1 + 1j, (0.0, 1.0), saveat=[1.0], sensealg=engine, **TIGHT)
    loss = lambda p: jnp.abs(ode.solve(problem, p=p).u[-1])
    assert jax.grad(loss)(1.0).dtype == jnp.float64
    check_gradient(engine, loss, 1.0, -0.5202600950228889, 1e-11, 0.5202600950228889)


# ---------------------------------------------------------------- dense output


@engines(DISCRETE, BACKSOLVE)
def test_dense_output_of_the_van_der_pol_oscillator(engine):
    f = lambda t, u, mu: jnp.stack([u[1], mu * (1 - u[0] ** 2) * u[1] - u[0]])
    problem = ode.ODEProblem(f, [2.0, 0.0], (0.0, 5.0), 1.0, saveat=[0.0, 5.0], dense=True, sensealg=engine, **TIGHT)
    sol = ode.solve(problem)
    for t, (x, v, dv, ddv) in {
        1.234: (1.3104423077103336, -0.91500674166620083, -0.65414544890827011, -0.81010397719887315),
        4.321: (-1.5172130653210371, 0.77639019300036583, 0.50640312239689006, 0.39340224995077256),
    }.items():
        close(sol(t), [x, v], 1e-10)
        close(sol(t, deriv=1), [v, dv], 1e-10)
        close(sol(t, deriv=2), [dv, ddv], 1e-10)
    by_mu = jax.jacrev(lambda mu: ode.solve(problem, p=mu)(1.234))(1.0)
    close(by_mu, [0.43462398966095981, 0.74517611121789442], 1e-9)


def test_derivative_of_dense_output_does_not_jump_between_steps():
    f = lambda t, u, mu: jnp.stack([u[1], mu * (1 - u[0] ** 2) * u[1] - u[0]])
    sol = ode.solve(ode.ODEProblem(f, [2.0, 0.0], (0.0, 5.0), 1.0, reltol=1e-8, abstol=1e-8))
    ends = sol.t[1:-1]
    before, after = sol(ends - 1e-9, deriv=1), sol(ends + 1e-9, deriv=1)
    assert jnp.max(jnp.abs(after - before)) < 1e-7


@pytest.mark.parametrize("dense", [True, False])
def test_dense_call_after_two_saves_is_not_a_straight_line(dense):
    sol = ode.solve(ode.ODEProblem(growth, 1.0, (0.0, 1.0), 1.0, saveat=[0.0, 1.0], dense=dense, **TIGHT))
    close(sol(0.5), 1.6487212707001281, 1e-11)


# ---------------------------------------------------------------- larger and nested problems


@engines(DISCRETE, GAUSS)
def test_diffusion_and_decay_on_a_line(engine):
    n = 100
    h = 1 / (n + 1)
    x = h * np.arange(1, n + 1)
    u0 = np.sin(np.pi * x) + 0.5 * np.sin(3 * np.pi * x)

    def f(t, u, p):
        diffusivity, k = p
        inner = jnp.pad(u, 1)
        return diffusivity * (inner[:-2] - 2 * u + inner[2:]) / h**2 - k * u

    # Steps are at the stability limit, where the method hardly damps the rough modes that the rate of one cell excites:
    # there the derivative of the discrete solution needs a tight tolerance (2 % off at 1e-8), the continuous one not.
    tol = 1e-12 if engine is DISCRETE else 1e-10
    problem = ode.ODEProblem(f, u0, (0.0, 0.2), saveat=[0.2], sensealg=engine, reltol=tol, abstol=tol)
    loss = lambda p: h * jnp.sum(ode.solve(problem, p=p).u[-1] ** 2)
    value, (by_d, by_k) = jax.value_and_grad(loss)((0.3, jnp.full(n, 0.5)))
    close(value, 0.12525734663519205, 1e-8)
    close(by_d, -0.49453275023055149, 1e-8)
    close(jnp.sum(by_k), -0.050102938654076821, 1e-8)
    cells = [-1.2634041791571805e-6, -0.00054153769969100523, -0.00088723670402728567]
    close(by_k[jnp.array([0, 24, 49])], cells, 1e-8)


@engines(DISCRETE, BACKSOLVE)
def test_log_density_of_a_flow_whose_field_differentiates_itself(engine):
    def f(t, state, p):
        a, b = p
        move = lambda z: a @ z + b
        return move(state[0]), -jnp.trace(jax.jacfwd(move)(state[0]))

    x = jnp.array([0.7, -0.4])
    problem = ode.ODEProblem(f, (x, 0.0), (1.0, 0.0), saveat=[0.0], sensealg=engine, **TIGHT)

    def log_density(p):
        z, change = ode.solve(problem, p=p)[-1]
        return -z @ z / 2 - math.log(2 * math.pi) - change

    p = (jnp.array([[0.2, -0.5], [0.3, 0.1]]), jnp.array([0.1, -0.2]))
    value, (by_a, by_b) = jax.value_and_grad(log_density)(p)
    close(value, -2.2373099090886286, 1e-11)
    want_a = [[-0.83894426099310557, -0.11798808658142099], [-0.1038033869866403, -0.92100288783630884]]
    close(by_a, want_a, 1e-11)
    close(by_b, [0.32287010212945651, -0.21988714925415297], 1e-11)


# ---------------------------------------------------------------- compilation


def units_loss(x, **options):
    problem = ode.ODEProblem(lotka_volterra, x[:2], (0.0, 10.0), x[2:], reltol=1e-9, abstol=1e-9)
    return jnp.sum(ode.solve(problem, **{"saveat": 1.0, **options}).u)


def test_second_call_with_other_numbers_compiles_nothing():
    new_x = LV_X * 1.01
    lanes = jnp.stack([LV_X * (1 + i / 100) for i in range(8)])
    new_lanes = lanes * 1.01
    gradient = jax.grad(lambda x: units_loss(x))
    close(gradient(LV_X), LV_SUM_AT_UNITS_GRADIENT, 1e-6)
    programs = {"eager": gradient, "jit": jax.jit(gradient), "vmap": jax.jit(jax.vmap(gradient))}
    for name, program in programs.items():
        first, second = (lanes, new_lanes) if name == "vmap" else (LV_X, new_x)
        jax.block_until_ready(program(first))
        with compilations() as seen:
            jax.block_until_ready(program(second))
        assert not seen, name
    with compilations() as seen:
        jax.block_until_ready(jax.grad(lambda x: units_loss(x))(LV_X))
    assert not seen, "a new lambda"


def test_program_does_not_grow_with_the_number_of_steps_or_saves():
    def lines(**options):
        return len(jax.jit(jax.grad(lambda x: units_loss(x, **options))).lower(LV_X).as_text().splitlines())

    times = lambda m: jnp.linspace(0.0, 10.0, m)
    want = lines(saveat=times(11), max_steps=5_000)
    assert lines(saveat=times(11), max_steps=50_000) == want
    assert lines(saveat=times(1001), max_steps=5_000) == want
