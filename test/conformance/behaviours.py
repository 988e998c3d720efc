#!/usr/bin/env python3
"""Prints the table of behaviours of docs/conformance.md from reports of test/conformance/backend.

    python test/conformance/behaviours.py build/reports/backend/pytest.xml gloo/pytest.xml - -

A column is a report of test/run_tests.py (JUnit), in the order symm CPU, gloo CPU, symm GPUs, nccl
GPUs; "-" stands for one that was not run. The exit code is 1 where a report has a test that no row
has.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

COLUMNS = ("symm, CPU", "gloo, CPU", "symm, GPUs", "nccl, GPUs")

# (file, behaviour, after which tests of PyTorch, names of tests without test_)
ROWS = [
    (
        "reductions",
        "all_reduce of each operation and dtype",
        "`O.allreduce_ops`, `G.allreduce_basics`, `D.all_reduce_*`",
        "all_reduce_of_each_operation all_reduce_of_int16 all_reduce_of_a_million "
        "sums_keep_nan_and_infinity",
    ),
    ("reductions", "all_reduce of float8", "`O.allreduce_float8`", "all_reduce_of_float8"),
    (
        "reductions",
        "all_reduce of bool",
        "`C.bool_tensors`, `D.nccl_backend_bool_allreduce`",
        "all_reduce_of_bool",
    ),
    (
        "reductions",
        "all_reduce of complex numbers; operations refused there",
        "`D.all_reduce_sum_complex`, `D.all_reduce_complex_unsupported_ops`",
        "all_reduce_of_complex all_reduce_of_complex_has_sums_alone",
    ),
    (
        "reductions",
        "reductions of inputs multiplied first",
        "`O.allreduce_ops`, `O.reduce_op_premul_sum`",
        "all_reduce_of_multiplied_inputs reduce_and_reduce_scatter_of_multiplied_inputs",
    ),
    (
        "reductions",
        "all_reduce in its place, of views, of any order of dimensions",
        "`G.allreduce_basics`",
        "all_reduce_is_in_place_and_leaves_what_is_around "
        "all_reduce_of_dense_tensors_of_any_order_of_dimensions",
    ),
    ("reductions", "reductions of nothing", "`O.empty_tensors`", "reductions_of_nothing"),
    (
        "reductions",
        "reduce to each root; what other ranks keep",
        "`O.reduce_ops`, `G.reduce_basics`",
        "reduce_to_each_root reduce_leaves_the_tensors_of_other_ranks",
    ),
    (
        "reductions",
        "reduce_scatter of lists, also of different sizes",
        "`O.reduce_scatter_ops`, `O.reduce_scatter_v`",
        "reduce_scatter_of_a_list reduce_scatter_of_tensors_of_different_sizes",
    ),
    (
        "reductions",
        "reduce_scatter of a tensor, joined and stacked",
        "`O.reduce_scatter_base_ops`, `O.reduce_scatter_bfloat16`, `D.reduce_scatter_tensor_cuda`",
        "reduce_scatter_of_a_tensor reduce_scatter_of_a_stacked_tensor",
    ),
    (
        "reductions",
        "coalesced all_reduce and all_gather, the coalescing manager",
        "`G.allreduce_coalesced_basics`, `D.all_gather_coalesced_simple`, `D.coalescing_manager`",
        "all_reduce_coalesced all_gather_coalesced coalescing_manager "
        "coalescing_manager_of_a_device",
    ),
    (
        "reductions",
        "all_reduce of sparse tensors",
        "`G.sparse_allreduce_basics`, `O.sparse_allreduce_ops`",
        "all_reduce_of_sparse_tensors",
    ),
    (
        "movement",
        "broadcast from each root, of views, transposed, of nothing",
        "`O.broadcast_ops`, `G.broadcast_basics`, `G.empty_tensors`",
        "broadcast_from_each_root broadcast_of_views_and_of_nothing "
        "broadcast_of_transposed_tensors roots_by_global_rank_and_by_rank_of_the_group",
    ),
    (
        "movement",
        "all_gather to a list, also of different sizes",
        "`O.allgather_ops`, `O.all_gather_v`",
        "all_gather_to_a_list all_gather_of_different_sizes",
    ),
    (
        "movement",
        "all_gather into a tensor, joined and stacked",
        "`O.allgather_base_ops`, `D.all_gather_into_cat_tensor_cuda`, "
        "`D.all_gather_into_stack_tensor_cuda`",
        "all_gather_into_a_tensor all_gather_into_a_stacked_tensor "
        "all_gather_into_a_tensor_from_its_own_part",
    ),
    (
        "movement",
        "tensors with gaps: carried as they are, or refused",
        "`G.allgather_noncontiguous_input`",
        "layouts_with_gaps_are_carried_or_refused",
    ),
    (
        "movement",
        "gather and scatter; who gives a list",
        "`O.gather_ops`, `O.scatter_ops`, `D.gather_checks`, `D.scatter_checks`",
        "gather_to_each_root scatter_from_each_root only_the_root_gives_a_list",
    ),
    (
        "movement",
        "all_to_all of lists, also of different sizes",
        "`D.all_to_all`, `D.all_to_all_complex`",
        "all_to_all_of_lists all_to_all_of_lists_of_different_sizes",
    ),
    (
        "movement",
        "all_to_all of a tensor, with splits and without",
        "`D.all_to_all_single_equal_split`, `D.all_to_all_single_unequal_split`",
        "all_to_all_single_with_splits all_to_all_single_without_splits "
        "all_to_all_single_of_nothing",
    ),
    (
        "movement",
        "barrier, also among unfinished calls; monitored_barrier",
        "`O.barrier`, `G.barrier_implies_wait`, `D.barrier`, `D.monitored_barrier_gloo`",
        "barrier_waits_for_the_last_rank barrier_of_a_device "
        "barrier_among_unfinished_collectives monitored_barrier",
    ),
    (
        "works",
        "asynchronous calls: wait, its limit, is_completed",
        "`D.all_reduce_sum_async`, `G.allreduce_stress`",
        "wait_of_each_collective wait_with_a_time_limit "
        "an_asynchronous_call_does_not_wait_for_other_ranks works_that_nobody_keeps "
        "inputs_that_the_caller_drops",
    ),
    (
        "works",
        "futures: values, chains, errors in callbacks",
        "`D.get_future`, `G.allreduce_coalesced_async`",
        "future_of_each_collective_has_its_outputs futures_chain "
        "an_error_in_a_callback_reaches_its_future",
    ),
    (
        "works",
        "many calls at once",
        "`G.allreduce_stress`, `G.broadcast_stress`, `O.gather_stress`",
        "many_collectives_waited_for_in_any_order collectives_of_all_kinds_at_once",
    ),
    (
        "messages",
        "send and recv: dtypes, order, nothing, groups, gaps, oneself",
        "`O.send_recv`, `O.send_recv_complex`, `D.send_recv`, `D.isend`, `D.irecv`",
        "send_and_recv isend_and_irecv_around_a_ring "
        "messages_arrive_in_the_order_of_their_sends messages_of_nothing messages_in_a_group "
        "messages_among_collectives messages_with_gaps_are_carried_or_refused "
        "messages_to_oneself_are_refused",
    ),
    (
        "messages",
        "recv from any rank",
        "`D.send_recv_any_source`",
        "recv_from_any_rank recv_from_any_rank_of_a_group_names_the_global_rank",
    ),
    ("messages", "tags", "`D.send_recv_with_tag`", "tags_choose_among_messages"),
    (
        "messages",
        "batch_isend_irecv",
        "`D.batch_isend_irecv_*`",
        "batches_in_any_order batches_of_several_messages_for_one_rank "
        "batches_of_two_ranks_alone batches_in_a_group batches_of_anything_else_are_refused",
    ),
    (
        "messages",
        "collectives and messages of objects",
        "`D.all_gather_object_default_pg`, `D.gather_object`, `D.broadcast_object_list`, "
        "`D.scatter_object_list`, `O.send_recv_object_list`",
        "all_gather_object gather_object broadcast_object_list scatter_object_list "
        "send_and_recv_object_list objects_in_a_group objects_that_cannot_be_pickled",
    ),
    (
        "groups",
        "groups of some ranks, of one, that share ranks",
        "`D.get_rank_size_group`, `D.all_reduce_group_sum`",
        "new_group_of_some_ranks every_collective_in_a_group_of_one_rank "
        "groups_that_share_ranks groups_of_ranks_that_there_are_not",
    ),
    (
        "groups",
        "calls of strangers; ranks of groups and of the world",
        "`C.warn_not_in_group`, `C.rank_membership`",
        "calls_of_a_rank_that_is_no_member_warn_and_do_nothing ranks_of_groups_and_of_the_world",
    ),
    (
        "groups",
        "new_subgroups, split_group",
        "`D.new_subgroups`, `D.new_subgroups_by_enumeration`, `N.comm_split_group`",
        "new_subgroups new_subgroups_by_enumeration split_group",
    ),
    (
        "groups",
        "names and descriptions; a backend for each device",
        "`D.get_backend`, `D.Backend_enum_class`",
        "names_of_backends description_of_a_group backends_named_by_device "
        "a_backend_for_each_device a_group_of_gloo_beside_the_backend tensors_of_the_cpu",
    ),
    (
        "groups",
        "init by env, tcp, file and stores; destroy, init again",
        "`D.destroy_group`, `D.destroy_full_group`",
        "a_group_that_was_destroyed destroy_and_init_again init_by "
        "init_of_one_rank_by_a_store_of_its_own destroy_ends_all_groups",
    ),
    (
        "errors",
        "wrong arguments raise; the group works on",
        "`G.*_checks`, `O.*_checks`, `O.allgather_base_basics`, `C.tensor_dtype_mismatch`",
        "a_mistake_of_all_ranks_raises_and_the_group_works_on "
        "tensors_of_two_devices_in_one_call init_refuses_what_is_not_there",
    ),
    (
        "errors",
        "`TORCH_DISTRIBUTED_DEBUG=DETAIL` finds calls that differ",
        "`W.collectives_op_mismatch_debug_mode`, `W.collective_shape_mismatch_debug_mode`",
        "debug_detail_finds_calls_that_differ",
    ),
    (
        "errors",
        "time-outs of collectives, works, groups and init",
        "`W.collective_hang`, `D.barrier_timeout_global`, `G.default_store_timeout_gloo`",
        "a_collective_whose_other_rank_does_not_come_raises time_limits_of_their_own "
        "init_of_a_rank_whose_other_does_not_come "
        "a_rank_that_has_ended_is_noticed_before_the_time_limit "
        "a_store_that_timed_out_serves_a_group",
    ),
    (
        "functional",
        "functional all_reduce, broadcast, permute_tensor",
        "`F.all_reduce_eager`, `F.broadcast`, `F.permute_tensor_with_sub_group`",
        "all_reduce all_reduce_of_bits broadcast permute_tensor",
    ),
    (
        "functional",
        "functional all_gather, reduce_scatter, all_to_all along a dimension",
        "`F.all_gather_tensor`, `F.reduce_scatter_tensor`, `F.all_to_all_single`",
        "all_gather_tensor reduce_scatter_tensor all_to_all_single forms_that_write_to_an_output",
    ),
    (
        "functional",
        "functional coalesced forms",
        "`F.all_reduce_coalesced_eager`, `F.all_gather_into_tensor_coalesced`, "
        "`F.reduce_scatter_into_tensor_coalesced`",
        "coalesced_forms",
    ),
    (
        "functional",
        "groups by ranks, mesh, dimension and name",
        "`F.expand_1d_rank_list`, `F.expand_device_mesh`, `F.expand_device_mesh_tuple`",
        "groups_by_ranks_mesh_dimension_and_name groups_by_dimensions_of_a_mesh "
        "groups_and_operations_that_there_are_not",
    ),
    (
        "functional",
        "results that wait when they are used",
        "`F.add_triggers_wait`, `F.view_does_not_trigger_wait`, `F.dead_wrapper_triggers_wait`",
        "async_tensors_wait_when_they_are_used results_that_nobody_uses "
        "results_that_are_the_next_call_s_inputs",
    ),
    (
        "functional",
        "gradients",
        "`F.all_reduce` of `TestGradCollectives`",
        "gradient_of_all_gather gradient_of_reduce_scatter gradient_of_all_to_all_single "
        "gradients_of_torch_distributed_nn",
    ),
    ("functional", "compiled without a break", "`F.tracing`", "compiled_without_a_break"),
    (
        "mesh",
        "meshes: groups, sub-meshes, coordinates, from groups, flattened",
        "`M.get_group`, `M.get_local_rank`, `M.device_mesh_2d`, `M.get_item`, "
        "`M.from_group_with_global_pg`",
        "mesh_of_one_dimension mesh_of_two_dimensions_and_its_sub_meshes a_flattened_mesh "
        "mesh_from_a_group meshes_that_cannot_be",
    ),
    (
        "mesh",
        "collectives along the dimensions of a mesh",
        "`M.broadcast_1d`, `M.scatter_1d`, `M.scatter_uneven`",
        "collectives_along_the_dimensions_of_a_mesh",
    ),
    (
        "mesh",
        "distribute_tensor, also of sizes that do not divide",
        "`T` (test_api.py, test_dtensor.py)",
        "distribute_tensor_from_rank_0",
    ),
    (
        "mesh",
        "redistribute from each placement to each",
        "`T` (test_redistribute.py: `partial_to_shard` and its neighbours)",
        "redistribute redistribute_on_two_dimensions",
    ),
    (
        "mesh",
        "operators, products and gradients of DTensors; random numbers",
        "`T` (test_dtensor_ops.py, test_matrix_ops.py, test_random_ops.py)",
        "matmul_of_placements gradients_of_distributed_tensors "
        "operators_of_distributed_tensors random_numbers_of_replicated_tensors",
    ),
    (
        "training",
        "DDP averages, with unused parameters, buffers, no_sync, join",
        "`D.DistributedDataParallelCPU`, `D.ddp_broadcast_buffer`, "
        "`D.accumulate_gradients_no_sync`, `D.ddp_uneven_inputs`",
        "ddp_averages_gradients ddp_with_unused_parameters "
        "ddp_broadcasts_parameters_and_buffers ddp_accumulates_without_reducing "
        "ddp_join_of_uneven_inputs sync_batch_norm",
    ),
    (
        "training",
        "DDP's hooks",
        "`G.ddp_comm_hook_future_passing_cpu`, `D.ddp_hook_parity_allreduce`",
        "ddp_hook",
    ),
    (
        "training",
        "FSDP2 and HSDP: a step is that of one process",
        "`S.train_parity_hsdp` and its neighbours, `S.fully_shard_communication_count`",
        "fsdp_step_is_that_of_one_process hsdp_step_is_that_of_one_process",
    ),
    (
        "training",
        "FSDP2: other dtypes, accumulation, clipping, states",
        "`S.reduce_dtype`, `S.gradient_accumulation`, `S.clip_grad_norm_1d`",
        "fsdp_reduces_in_another_dtype fsdp_computes_in_bfloat16 fsdp_accumulates "
        "fsdp_divides_gradients_by_a_factor fsdp_clips_by_the_norm_of_all_shards "
        "fsdp_state_dict_whole_and_broadcast",
    ),
]


def results_of(path: str) -> dict[tuple[str, str], collections.Counter]:
    """By (file, test), without the marks of both: how many cases passed, failed, were skipped."""
    results: dict = collections.defaultdict(collections.Counter)
    for case in ElementTree.parse(path).iter("testcase"):
        file = case.get("classname", "").split(".")[-1].removeprefix("test_backend_")
        name = re.sub(r"\[.*", "", case.get("name", ""), flags=re.DOTALL).removeprefix("test_")
        outcome = "passed"
        for child in case:
            outcome = {"failure": "failed", "error": "failed", "skipped": "skipped"}.get(
                child.tag, outcome
            )
        results[file, name][outcome] += 1
    return results


def cell(results: dict | None, keys) -> str:
    if results is None:
        return "not run"
    total = sum((results.get(key, collections.Counter()) for key in keys), collections.Counter())
    parts = [f"{total[what]} {what}" for what in ("passed", "failed", "skipped") if total[what]]
    return ", ".join(parts) or "not run"


def main(paths: list[str]) -> int:
    reports = [None if path == "-" else results_of(path) for path in paths]
    known = {(file, name) for file, _, _, names in ROWS for name in names.split()}
    unknown = sorted(set().union(*(report or {} for report in reports)) - known)
    for file, name in unknown:
        print(f"{file}: test_{name} is in no row", file=sys.stderr)
    print("| behaviour | after | " + " | ".join(COLUMNS) + " |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    for file, behaviour, after, names in ROWS:
        cells = [cell(report, [(file, name) for name in names.split()]) for report in reports]
        print(f"| {behaviour} | {after} | " + " | ".join(cells) + " |")
    return 1 if unknown else 0


if __name__ == "__main__":
    if len(sys.argv) != 1 + len(COLUMNS):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
