"""Which test shows what: kinds of faults that users of gradient checkpointing report, each with the tests that would show it.

What this package does not do at all, and why, is in docs/limitations.md.
"""

from __future__ import annotations

import importlib

import pytest

TABLE: dict[str, tuple[str, ...]] = {
    # memory does not go down
    "one region around everything moves the peak instead of lowering it": (
        "test_faults::test_regions_save_more_memory_than_one_region_around_everything",
    ),
    "a region per layer hides nothing that was not its input anyway": (
        "test_faults::test_regions_save_more_memory_than_one_region_around_everything",
    ),
    "the compiler merges recomputation with the first computation": (
        "test_faults::test_recomputation_is_not_merged_back_by_the_compiler",
        "test_policy::test_the_recomputation_survives_compilation",
    ),
    "memory of a loop grows with its length": (
        "test_loop_faults::test_backpropagation_through_time_in_more_than_a_constant_factor_less",
    ),
    "lengths of loops must factor": ("test_loop_faults::test_lengths_that_do_not_factor_and_results_out_of_order",),
    "cheap work is recomputed where that only hurts": (
        "test_faults::test_elementwise_chains_are_left_alone",
        "test_policy::test_a_budget_that_keeping_all_meets_gives_the_plain_program",
    ),
    "a loop and the same written out are estimated alike": (
        "test_loop_faults::test_a_loop_and_the_same_written_out_are_both_predicted",
    ),
    "values returned beside the loss are said to be freed": (
        "test_faults::test_activations_returned_as_aux_are_in_no_budget_but_in_the_total",
        "test_plan::test_results_are_not_counted_in_the_budget_but_in_the_total",
    ),
    "results of a loop that nobody reads are kept": (
        "test_loop_faults::test_results_that_nobody_reads_are_neither_counted_nor_kept",
    ),
    "the last segment is computed twice for nothing": ("test_classic::test_the_last_segment_is_not_recomputed",),
    # measuring
    "the figure that is measured is the same for all plans": (
        "test_plan::test_measure_shows_both_schedulers_and_separates_plans",
    ),
    "the body of a loop is charged once": ("test_costs::test_a_scan_costs_its_body_times_its_length",),
    "what fusion never writes is counted": ("test_planning_faults::test_what_fusion_never_writes_is_not_counted",),
    "sizes of keys, masks and narrow types are wrong": (
        "test_costs::test_extended_types_are_counted_in_bytes_they_take",
        "test_planning_faults::test_values_of_every_type_have_their_size_and_their_gradients",
    ),
    "views are counted like what they show": ("test_fuse::test_views_share_the_node_of_what_they_rename",),
    "planning uses up donated arguments": ("test_plan::test_a_donated_parameter_may_still_be_donated",),
    "planning allocates the model": (
        "test_trace::test_planning_allocates_nothing_of_the_arguments_size",
        "test_replay_settings::test_planning_allocates_nothing_of_the_models_size",
    ),
    "every call compiles again": (
        "test_transforms::test_eager_calls_and_a_second_application_compile_nothing_again",
        "test_remat::test_calls_in_a_loop_compile_once",
        "test_remat::test_a_new_decorator_with_equal_options_makes_an_equal_policy",
    ),
    # policies and names
    "a misspelt name is ignored": (
        "test_faults::test_a_misspelt_name_is_refused_with_those_that_exist",
        "test_remat::test_a_misspelt_name_lists_the_names_that_exist",
    ),
    "names in the body of a loop are not seen, or counted once": (
        "test_faults::test_names_inside_a_loop_survive",
        "test_remat::test_names_inside_a_loop_are_saved_once_per_step",
    ),
    "products with batch dimensions are never worth keeping": (
        "test_faults::test_products_with_batch_dimensions_are_kept_for_what_they_cost",
    ),
    "unknown operations are taken to be cheap": (
        "test_faults::test_an_opaque_call_runs_once",
        "test_costs::test_an_unknown_primitive_is_never_free",
    ),
    "what a custom rule keeps is not counted, or never dropped": (
        "test_faults::test_what_a_custom_rule_keeps_is_counted_and_can_be_dropped",
    ),
    "one result of an operation is kept and the others with it": (
        "test_fuse::test_a_result_with_several_parts_has_a_node_for_each",
    ),
    "checkpoints of the user are recomputed twice over, or lost": (
        "test_faults::test_existing_checkpoints_are_not_recomputed_twice_over",
    ),
    "excluded names are kept under another name": ("test_remat::test_excluded_names_are_excluded_and_so_are_their_aliases",),
    "another implementation of jax.checkpoint keeps other values": (
        "test_transforms::test_all_of_it_holds_in_another_environment",
        "test_remat::test_all_of_it_holds_in_another_environment",
    ),
    "a policy that answers nonsense fails late": (
        "test_remat::test_a_policy_that_answers_anything_but_a_bool_is_refused_before_differentiation",
    ),
    # arguments, results, closures
    "static arguments work by position only": (
        "test_remat::test_static_arguments_work_by_position_by_keyword_and_left_out",
        "test_trace::test_a_static_argument_may_be_passed_in_any_way",
    ),
    "names of static arguments are accepted and ignored": (
        "test_remat::test_static_arguments_work_by_position_by_keyword_and_left_out",
        "test_remat::test_a_keyword_only_string_is_static_without_being_declared",
    ),
    "a flag of Python is traced": (
        "test_faults::test_python_values_stay_python_values",
        "test_remat::test_a_traced_argument_used_as_a_bool_is_named_with_the_ways_to_make_it_static",
    ),
    "functions among the leaves of a model are refused": (
        "test_trace::test_functions_among_the_leaves_of_a_module_are_static",
        "test_remat::test_self_may_be_any_object_that_holds_arrays",
    ),
    "None and empty containers lose their places": (
        "test_faults::test_trees_with_none_functions_and_empty_containers_come_back_as_they_were",
    ),
    "integers get gradients of another type": (
        "test_faults::test_integers_keep_their_float0_gradients",
        "test_trace::test_integers_and_keys_get_the_gradients_of_allow_int",
    ),
    "a plan is replayed on another shape": (
        "test_faults::test_another_shape_is_never_served_from_an_old_trace",
        "test_plan::test_other_arguments_are_refused_by_name",
    ),
    "arrays around the function are frozen when it is planned": (
        "test_faults::test_captured_arrays_and_tracers_are_read_at_each_call",
        "test_trace::test_arrays_that_the_loss_closes_over_are_read_at_each_call",
    ),
    "planning inside a trace leaks tracers or loses gradients": (
        "test_faults::test_captured_arrays_and_tracers_are_read_at_each_call",
        "test_trace::test_a_loss_may_close_over_what_an_outer_jit_traces",
    ),
    "dtypes or weak types change": (
        "test_faults::test_weak_types_do_not_change",
        "test_remat::test_dtypes_and_weak_types_are_kept",
    ),
    # randomness, discrete choices
    "another dropout mask in the backward pass": (
        "test_faults::test_dropout_masks_are_those_of_the_loss",
        "test_replay::test_dropout_is_equal_bit_for_bit",
    ),
    "masks are kept where their key would do": (
        "test_planning_faults::test_masks_are_drawn_again_from_their_key_where_memory_is_short",
    ),
    "bits of a generator that need not repeat itself are drawn twice": (
        "test_faults::test_what_rounding_or_compilation_could_change_is_kept",
        "test_plan::test_bits_that_may_depend_on_compilation_are_not_drawn_twice",
    ),
    "tokens are routed elsewhere in the backward pass": (
        "test_faults::test_what_rounding_or_compilation_could_change_is_kept",
        "test_replay::test_routing_is_that_of_plain_jax",
        "test_replay::test_the_maximum_of_something_computed_twice_has_a_gradient",
    ),
    # state and side effects
    "prints appear twice": (
        "test_replay::test_a_debug_callback_runs_once_and_sees_the_value",
        "test_remat::test_unordered_debug_callbacks_run_at_most_once_more",
    ),
    "side effects are repeated, or fail far from their line": (
        "test_replay::test_an_io_callback_runs_once_in_an_exact_schedule_and_is_refused_in_a_region",
        "test_remat::test_an_io_callback_is_refused_with_its_line",
        "test_plan::test_ordered_effects_keep_their_order_and_run_once",
    ),
    "checks of checkify are lost": (
        "test_replay::test_checks_report_once_what_they_find",
        "test_remat::test_a_failed_check_is_still_reported",
    ),
    "a counter in a reference counts twice, or a reference is read after it changed": (
        "test_replay::test_a_counter_counts_once",
        "test_replay::test_what_was_read_before_a_reference_is_overwritten_stays_what_it_was",
        "test_remat::test_a_mutable_reference_is_written_once",
    ),
    "running statistics are updated twice or not at all": ("test_linen::test_statistics_are_updated_once_per_step",),
    "state and keys of Haiku leak out of the region": (
        "test_frameworks::test_haiku_parameters_state_and_keys_drawn_inside_are_those_drawn_without",
    ),
    "values that a function stores elsewhere are tracers": (
        "test_remat::test_python_side_effects_happen_once_and_leak_nothing_usable",
        "test_trace::test_a_plan_keeps_neither_arrays_nor_tracers_alive",
    ),
    # transformations and control flow
    "the batch is in another axis": ("test_transforms::test_every_axis_may_be_the_batch",),
    "second or forward-mode derivatives are lost": (
        "test_transforms::test_a_transformed_plan_is_the_transformed_loss",
        "test_remat::test_every_transformation_agrees_with_the_plain_function",
    ),
    "loops without a gradient are in the way": (
        "test_faults::test_loops_without_a_known_end_are_opaque_or_refused_in_jaxs_words",
        "test_loop_faults::test_loops_without_a_gradient_stay_and_unbounded_ones_say_that_they_have_none",
    ),
    "custom_jvp rules are replaced by derivatives of the body": (
        "test_faults::test_custom_rules_hold_at_the_points_where_they_matter",
        "test_remat::test_custom_derivative_rules_survive_bit_for_bit",
    ),
    "gradients that a user chose otherwise are replaced": (
        "test_remat::test_custom_derivative_rules_survive_bit_for_bit",
        "test_flatten::test_a_straight_through_estimator_keeps_its_gradient",
    ),
    "collectives run again in the backward pass": (
        "test_transforms::test_regions_do_not_repeat_collectives_on_several_devices",
        "test_replay::test_collectives_run_as_often_as_written",
        "test_replay::test_collectives_run_as_often_as_written_on_four_devices",
    ),
    "empty, reversed and unrolled loops, or counters in a carry": (
        "test_faults::test_scans_of_every_form_keep_their_order",
        "test_loop_faults::test_a_counter_in_the_carry_in_every_form_of_scan",
    ),
    "settings for debugging work only without the plan": (
        "test_replay_settings::test_plans_work_under_settings_for_debugging",
        "test_transforms::test_debug_nans_finds_a_nan_inside",
        "test_remat::test_debugging_modes_of_jax_keep_working",
    ),
    # frameworks
    "self is not counted among the arguments": (
        "test_linen::test_a_wrong_index_is_told_that_self_is_index_0_and_which_index_would_be_right",
    ),
    "flags of modules work by position only": (
        "test_linen::test_names_streams_statistics_and_gradients_are_those_of_the_plain_module",
    ),
    "an instance of a module cannot be decorated": (
        "test_planning_faults::test_an_instance_of_a_module_may_be_decorated_where_it_is_made",
        "test_linen::test_functions_of_modules_and_bound_methods_inside_a_module",
    ),
    "a decorated method forgets its object": ("test_remat::test_methods_keep_binding_counting_self_and_their_documentation",),
    # solving
    "an impossible budget does not say what would be possible": (
        "test_plan::test_an_impossible_budget_says_what_would_do_and_which_line_stands_in_the_way",
        "test_promise::test_plain_jax_is_the_plan_where_it_fits_and_a_schedule_would_recompute",
    ),
    "units are mixed up": ("test_budget::test_forms_of_a_budget", "test_budget::test_what_is_not_a_budget_says_why"),
    "a smaller budget needs more memory": (
        "test_faults::test_every_budget_is_kept_when_compiled",
        "test_promise::test_the_compiled_step_keeps_the_budget_under_the_plans_own_options",
    ),
    "a solver that runs out of time has nothing": ("test_robustness::test_no_time_returns_a_schedule_that_is_cheap_to_find",),
    "deep programs exceed the recursion limit": (
        "test_robustness::test_ten_thousand_nodes_in_a_line",
        "test_planning_faults::test_a_chain_of_more_operations_than_python_recurses",
    ),
    "the smallest and the largest budget follow other rules": (
        "test_planning_faults::test_the_ends_of_the_budget_follow_the_same_rules",
    ),
    "an argument that is returned, or a view of one": ("test_plan::test_an_argument_returned_unchanged_and_a_view_of_one",),
    "the program grows out of proportion": (
        "test_planning_faults::test_the_program_grows_with_what_is_recomputed_and_no_faster",
    ),
    "layers of uneven size are cut evenly": (
        "test_classic::test_within_the_budget_and_never_below_the_optimum",
        "test_classic::test_segments_even_in_bytes",
    ),
    "gradients and optimizer state are forgotten": (
        "test_device_memory::test_classes_count_what_is_there",
        "test_device_memory::test_the_compiled_step_and_all_else_fit_the_device",
    ),
}

NOT_HAD = {
    "unknown operations are taken to be cheap": "Prices by name of an operation",
    "side effects are repeated, or fail far from their line": "Effects inside of regions",
    "prints appear twice": "A print in a decorated function",
    "a counter in a reference counts twice, or a reference is read after it changed": "A reference in a decorated function",
    "another implementation of jax.checkpoint keeps other values": "Policies under JAX_REMAT3",
    "planning inside a trace leaks tracers or loses gradients": "Gradients of what an exact schedule is closed over by",
    "a plan is replayed on another shape": "A plan is for one program",
    "memory of a loop grows with its length": "Regions in a loop",
    "the program grows out of proportion": "Regions in a loop",
    "loops without a gradient are in the way": "Loops without a known length",
    "a smaller budget needs more memory": "Budgets under other compiler options",
    "an impossible budget does not say what would be possible": "The smallest budget that an error names",
    "the figure that is measured is the same for all plans": "Memory that XLA does not count",
}
"""What is left open, as a heading of docs/limitations.md."""


@pytest.mark.parametrize("fault", TABLE)
def test_every_fault_has_tests_that_are_collected(fault):
    by_default = 0
    for node in TABLE[fault]:
        module, name = node.split("::")
        test = getattr(importlib.import_module(module), name, None)
        assert callable(test), f"{node} does not exist"
        by_default += not {mark.name for mark in getattr(test, "pytestmark", [])} & {"slow", "skip", "gpu"}
    assert by_default, f"no test of {fault!r} runs by default"


@pytest.mark.parametrize("fault", NOT_HAD)
def test_what_cannot_be_had_is_documented_with_its_reason(checkout, fault):
    assert fault in TABLE
    sections = (checkout / "docs" / "limitations.md").read_text().split("\n## ")
    (section,) = (part for part in sections if part.startswith(f"{NOT_HAD[fault]}\n"))
    assert len(section.split()) > 20
