"""A rank that comes when the others have given up, and have used their memory again, raises."""

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from errors import ERRORS, message_of
from harness import Setup
from operators import ops
from rank_processes import describe, run_processes
from symmetric import use_symm

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.cpu("a GPU's kernels give up on the device; they say nothing to late ones"),
]

COUNT = 1000
LATE = 2
WORLD = 3
ORIGINAL, USED_AGAIN = 1.0, 4711.0


def broadcast(tensor):
    dist.broadcast(tensor, 0)


def reduce(tensor):
    dist.reduce(tensor, LATE)


def gather(tensor):
    parts = [torch.zeros(COUNT) for _ in range(WORLD)] if dist.get_rank() == LATE else None
    dist.gather(tensor, parts, LATE)


def scatter(tensor):
    """The root's parts are one tensor in symmetric memory."""
    share = torch.zeros(COUNT // WORLD)
    parts = list(tensor[: WORLD * share.numel()].chunk(WORLD)) if dist.get_rank() == 0 else None
    dist.scatter(share, parts, 0)


def one_shot_all_reduce(tensor):
    ops.one_shot_all_reduce(tensor, "sum", dist.group.WORLD.group_name)


CALLS = [broadcast, reduce, gather, scatter, one_shot_all_reduce]


def wait_for(folder, names):
    until = time.monotonic() + 30
    while not all((folder / name).exists() for name in names):
        assert time.monotonic() < until
        time.sleep(0.01)


def calls_late(rank, folder, number):
    """(what the call raised, what the tensor holds after it) of a rank."""
    folder = Path(folder)
    Setup(os.path.join(folder, "store"), WORLD, timeout=3.0).join(rank)
    use_symm()
    tensor = symm_mem.empty(COUNT)
    symm_mem.rendezvous(tensor, dist.group.WORLD)
    tensor.fill_(ORIGINAL)
    CALLS[number](tensor)  # with everybody, which maps what is needed
    tensor.fill_(ORIGINAL)
    dist.barrier()
    if rank == LATE:
        wait_for(folder, ["gave up 0", "gave up 1"])
        text = message_of(ERRORS, CALLS[number], tensor)
        (folder / "came").touch()
        return text
    try:
        CALLS[number](tensor)
        text = ""  # a rank that waits for nobody
    except ERRORS as error:
        text = str(error)
    tensor.fill_(USED_AGAIN)
    (folder / f"gave up {rank}").touch()
    wait_for(folder, ["came"])
    return text


@pytest.mark.parametrize("number", range(len(CALLS)), ids=[call.__name__ for call in CALLS])
def test_a_late_rank_does_not_take_memory_in_use_again_for_data(number, tmp_path):
    reports = run_processes(calls_late, WORLD, str(tmp_path), number, time_limit=60)
    assert all(report.returned for report in reports), describe(reports)
    assert reports[0].value, describe(reports)
    assert "gave up" in reports[LATE].value or "has given up" in reports[LATE].value
    assert "rank 0" in reports[LATE].value
