"""SYMM_TIMELINE=1: what kernels did when, as a trace."""

import json
import time

import pytest
import torch
import torch.distributed as dist
from kernel_runs import NEEDS_TRITON, TIME_LIMIT, launch, symmetric

from harness import DEVICE, PROCESSES, run_ranks

pytestmark = [NEEDS_TRITON, pytest.mark.timeout(150)]

ENV = {"SYMM_TIMELINE": "1"}
LATE = 0.4  # seconds


def ring(rank, path):
    import library_kernels as kernels

    box, flag = symmetric(64, dtype=torch.float32), symmetric(1)
    source = torch.ones(64, device=DEVICE)
    ctx = kernels.symm.context(box, flag)
    for turn in (2, 3):  # in the first one the kernel is compiled, or its text read
        dist.barrier()
        if (turn, rank) == (3, 0):
            time.sleep(LATE)
        launch(kernels.ring_kernel, box, flag, source, 64, turn, ctx, BLOCK=64)
    kernels.symm.write_timeline(path, ctx)
    return [tuple(one) for one in kernels.symm.events(ctx)]


def test_a_trace_of_all_ranks(tmp_path):
    path = tmp_path / "trace.json"
    results = run_ranks(ring, 3, str(path), env=ENV, time_limit=TIME_LIMIT)
    for rank, events in enumerate(results):
        turn = [
            ("put", (rank + 1) % 3, 256, 0),
            ("signal", (rank + 1) % 3, 4, 0),
            ("wait", (rank - 1) % 3, 4, 0),
        ]
        assert [event[:4] for event in events] == turn * 2
        assert all(begin <= end for *_, begin, end in events)
    # Rank 1 alone waits for the late one.
    lengths = [(events[5][5] - events[5][4]) / 1e9 for events in results]
    assert max(lengths) == lengths[1] > 0.5 * LATE

    records = json.loads(path.read_text())["traceEvents"]
    names = {one["args"]["name"]: one["pid"] for one in records if one["ph"] == "M"}
    assert names == {f"rank {rank}": rank for rank in range(3)}
    waits = [one for one in records if one["ph"] == "X" and one["cat"] == "wait"]
    longest = max(waits, key=lambda one: one["dur"])
    assert (longest["name"], longest["pid"], longest["tid"]) == ("wait rank 0", 1, 0)
    assert longest["dur"] > 0.5e6 * LATE
    assert min(one["ts"] for one in records if one["ph"] == "X") == 0


def many(rank):
    """More events than the ring has; the last ones stay."""
    import library_kernels as kernels

    box = symmetric(128)
    ctx = kernels.symm.context(box)
    launch(kernels.fill_kernel, box, 4100, ctx)
    events = kernels.symm.events(ctx)
    return len(events), [event.kind for event in events[-2:]], events[0].begin < events[-1].begin


@pytest.mark.long
def test_a_full_ring_keeps_the_last():
    assert run_ranks(many, 1, env=ENV, time_limit=TIME_LIMIT) == [(4096, ["put", "signal"], True)]


def without(rank):
    import library_kernels as kernels

    ctx = kernels.symm.context(dist.group.WORLD)
    try:
        kernels.symm.events(ctx)
    except RuntimeError as error:
        return str(error)
    return ""


def test_without_the_variable():
    assert "set SYMM_TIMELINE=1" in run_ranks(without, 1, fresh=PROCESSES)[0]
