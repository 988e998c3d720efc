"""What torch.profiler shows of a group's operations: a range of each, with the tensors that it
reads, and beside it the event record_param_comms that tools know from ProcessGroupNCCL."""

import itertools
import json
import os
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from harness import DEVICE, check, new_group_in_order, synchronize
from symmetric import TORCH

pytestmark = pytest.mark.timeout(60)


def profiled(body) -> list[dict]:
    """The events that `body` makes, in order."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as watched:
        body()
    synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        watched.export_chrome_trace(path)
        with open(path) as trace:
            events = json.load(trace)["traceEvents"]
    return sorted((e for e in events if "dur" in e), key=lambda event: event["ts"])


def calls_of(group, ranks, me):
    """[(call, what its event says)] for one group; tensors have shapes of their own."""
    size = len(ranks)
    wide = torch.ones(3, 4, device=DEVICE)
    halves = torch.ones(2, 5, dtype=torch.bfloat16, device=DEVICE)
    parts = torch.zeros(size * 3, 4, device=DEVICE)
    # Rank r sends r + 1 rows to everybody.
    rows = torch.ones(size * (me + 1), 2, device=DEVICE)
    rows_in, rows_out = [me + 1] * size, [r + 1 for r in range(size)]
    received = torch.zeros(sum(rows_out), 2, device=DEVICE)
    after, before = ranks[(me + 1) % size], ranks[me - 1]
    return [
        (lambda: dist.all_reduce(wide, group=group), "allreduce", [wide], 12, False),
        (
            lambda: dist.broadcast(halves, ranks[0], group=group, async_op=True).wait(),
            *("broadcast", [halves], 10, True),
        ),
        (
            lambda: dist.all_gather_into_tensor(parts, wide, group=group),
            *("_allgather_base", [wide], 12 * size, False),
        ),
        (
            lambda: dist.reduce_scatter_tensor(wide, parts, group=group),
            *("_reduce_scatter_base", [parts], 12, False),
        ),
        (
            lambda: dist.all_to_all_single(received, rows, rows_out, rows_in, group=group),
            *("all_to_allv" if size > 1 else "all_to_all", [rows], received.numel(), False),
        ),
        (
            lambda: [
                work.wait()
                for work in (
                    dist.isend(wide, after, group=group),
                    dist.irecv(parts[:3], before, group=group),
                )
            ],
            *("send", [wide], 12, True),
        ),
        (lambda: dist.barrier(group), "barrier", [], 0, False),
    ]


NAMES = {
    "allreduce": "symm:all_reduce",
    "broadcast": "symm:broadcast",
    "_allgather_base": "symm:all_gather_single",
    "_reduce_scatter_base": "symm:reduce_scatter_single",
    "all_to_allv": "symm:all_to_all_single",
    "send": "symm:send",
    "barrier": "symm:barrier",
}
DTYPES = {torch.float32: ("Float", "float"), torch.bfloat16: ("BFloat16", "c10::BFloat16")}


def range_is_wrong(event, inputs) -> bool:
    arguments = event["args"]
    return (
        arguments.get("Input Dims", []) != [list(t.shape) for t in inputs]
        or arguments.get("Input Strides", []) != [list(t.stride()) for t in inputs]
        or arguments.get("Input type", []) != [DTYPES[t.dtype][1] for t in inputs]
    )


def in_group(rank, lists):
    problems = []
    for ranks in lists:
        group, ranks = new_group_in_order(ranks)
        if rank not in ranks:
            continue
        me, size = ranks.index(rank), len(ranks)
        steps = {b - a for a, b in itertools.pairwise(ranks)}
        for call, name, inputs, outputs, is_async in calls_of(group, ranks, me):
            events = profiled(call)
            seen = [e["args"] for e in events if e["name"] == "record_param_comms"]
            seen = [args for args in seen if args["Collective name"] == name]
            if len(seen) != 1:
                problems.append(f"{name}: events {[e['name'] for e in events]}")
                continue
            expected = {
                "In msg nelems": sum(t.numel() for t in inputs),
                "Out msg nelems": outputs,
                "Group size": size,
                "dtype": DTYPES[inputs[0].dtype][0] if inputs else "Byte",
                "Rank": (me + 1) % size if name == "send" else me,
                "Process Group Name": group.group_name,
            }
            if TORCH >= (2, 13):
                expected["Is asynchronized op"] = int(is_async)
            if len(steps) == 1 and min(steps) > 0:
                expected |= {"Global rank start": ranks[0], "Global rank stride": min(steps)}
            if name == "all_to_allv":
                expected["In split size"] = "[]"  # equal ones
                expected["Out split size"] = str([r + 1 for r in range(size)])
            for key, value in expected.items():
                if seen[0].get(key) != value:
                    problems.append(f"{name} in {ranks}: {key} in {seen[0]} is not {value!r}")
            ranges = [e for e in events if e["name"] == NAMES[name]]
            if len(ranges) != 1 or range_is_wrong(ranges[0], inputs):
                problems.append(f"{name} in {ranks}: ranges {ranges}")
        dist.barrier(group)
        dist.destroy_process_group(group)
    return problems


@pytest.mark.parametrize(
    "lists", [[[0, 1, 2, 3]], [[0, 2], [1, 3]], [[3, 0, 1]]], ids=["all", "strided", "unordered"]
)
def test_a_profile_shows_the_operations(lists):
    check(in_group, 4, lists, fresh=True)
