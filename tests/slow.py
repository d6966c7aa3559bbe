"""Tests that run with `pytest --slow` only: further combinations of what quicker tests of the same kind cover always.

Owns: which they are, as patterns of their names by file.
"""

import re

TESTS = {
    "bdf": r"""
        all_nestings_of_a_hessian  lanes_equal_single_solves  transposes_of_a_record_with_checkpoints
        decay_by_every_engine\[(Backsolve|Gauss|Interpolating|Quadrature)  every_jacobian_takes_the_same_steps
        tangent_and_adjoint_are_transposes\[complex
        """,
    "cases": r"""
        field_that_is_not_defined_before_the_span\[Interpolating
        a_sum_over_saves_at_the_start_and_long_after_the_transient\[(Tsit5|Rodas5P-Forward)
        derivatives_that_grow_with_chaos\[Gauss
        """,
    "checking": r"""
        the_estimated_error_is_within_a_factor_ten_of_the_true_one\[(robertson|brusselator|oscillator|sir|forced)
        diagnoses_of_odd_solutions  events_and_pytrees_and_what_is_not_differentiated_pass
        complex_and_jitted_and_vmapped_losses_pass  right_gradients_pass\[(rosenbrock|interpolating)
        a_wrong_custom_rule_in_the_field_is_found\[jvp
        """,
    "closure": r"""
        every_nesting_agrees_with_an_independent_derivative\[(?!discrete).*(third|rev-rev|rev-fwd|fwd-fwd|hvp)
        every_nesting_agrees_with_an_independent_derivative\[(quadrature|backsolve)-hessian
        every_nesting_agrees_with_an_independent_derivative\[discrete-third.rev-rev-rev
        a_wrong_rule_inside_the_field_shows_at_every_order\[gauss  second_order_with_vmap\[gauss
        """,
    "compat": r"""
        events\[(3-0|True-0)  event_times_are_differentiable\[True  odeint_values_and_gradients
        robertson_with_the_default_tolerances
        """,
    "ensemble": r"""
        every_engine\[(backsolve|interpolating|quadrature)  nestings\[(vmap|jit)
        gradients_are_sums_of_single_ones\[Ensemble(Vectorized.lanes=None|Sharded)
        trajectories_that_an_event_ends\[EnsembleVectorized  failed_trajectories_leave.*lanes=2
        loss_of_one_trajectory_out_of_three\[queue
        """,
    "pairing": r"""
        pairing_for_every_method_and_size\[(Vern|DOP853|DP5|BS3).*-(1|30|300)  jacobians_and_steps_in_sequence_agree\[2
        """,
    "progress": r"events$  other_methods  hessian_has_the_bar_of_its_forward_pass",
    "properties": r"gradients_of_linear_systems\[(DOP853|FBDF|Rodas5P|Tsit5.*Quadrature|Vern7.*Backsolve)",
    "references": r"complex_gradient_is_that_of_the_realified_problem\[Interpolating  lotka_volterra_hessian\[rev-fwd",
    "sharding": r"""
        hessian_inside_shard_map  shard_map_with_varying_axes_checked\[(quadrature|interpolating|backsolve)
        algebraic_equations_and_no_sum_over_devices_inside_a_loop\[(esdirk|gauss)
        """,
    "stiff": r"""
        a_complex_dae_whose_algebraic_equation_is_not_holomorphic\[Gauss  a_dae_of_many_states_at_its_end\[gauss
        a_regular_mass_matrix_is_the_same_problem  second_order_agrees_with_the_exact_solution\[Kvaerno5
        a_full_mass_matrix_leaves_no_pattern  a_start_refused_by_check_init  lanes_get_what_they_get_alone\[ode
        tangent_and_adjoint_are_transposes\[(complex-Kv|dae-Kv|regular.mass-Kv|ode-(Kenc|KenCarp4|Kvaerno3|TRBDF2|Rodas4))
        gradients_by_every_method\[(Kvaerno3|KenCarp4|Rodas4|Rosenbrock23|Rodas5P)  a_split_problem\[KenCarp4
        switching_with_every_engine_and_with_no_states  derivatives_in_time_of_a_dae
        """,
    "stiff_gradients": r"""
        robertson_hessian\[(fwd-rev|rev-fwd|rev-rev)  pollu\[(forward|gauss)  cubic_constraints\[interpolating
        other_methods_and_problems\[(BRUSSELATOR|OREGO|VDPOL)
        """,
}
SLOW = re.compile("|".join(rf"test_{file}\.py::test_{name}" for file, names in TESTS.items() for name in names.split()))
