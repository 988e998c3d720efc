"""dist.shrink_group: the ranks that are left go on as a smaller group."""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist

from errors import ERRORS, message_of, unsaid
from harness import IS_SYMM, Setup, expect_no_mismatch, run_ranks
from rank_processes import describe, start_ranks

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="of what symm has beyond gloo"),
    pytest.mark.skipif(not hasattr(dist, "shrink_group"), reason="this torch shrinks no groups"),
    pytest.mark.cpu("torch gives a shrunk group a GPU only where the group was bound to one"),
]

WORLD = 4


def summed(group, was):
    """`was`: the members' ranks before."""
    problems = []
    for count in (5, 300_007):
        tensor = torch.full((count,), was[dist.get_rank(group)] + 1.0)
        dist.all_reduce(tensor, group=group)
        if not bool((tensor == sum(rank + 1.0 for rank in was)).all()):
            problems.append(f"{count} elements of {was}: {tensor[:3]}")
    return problems


def one_dies(rank, setup, dead):
    """Then the others shrink the world twice: without the dead rank, and without a living one."""
    setup.join(rank)
    dist.all_reduce(torch.ones(3))
    if rank == dead:
        os._exit(0)
    problems = unsaid(message_of(ERRORS, dist.all_reduce, torch.ones(3)), [f"rank {dead}"])
    smaller = dist.shrink_group([dead])
    left = [one for one in range(WORLD) if one != dead]
    if smaller is not dist.group.WORLD or dist.get_rank() != left.index(rank):
        problems.append(f"rank {dist.get_rank()} of {smaller}")
    problems += summed(smaller, left)
    gone = left.pop(0)
    if rank != gone:
        smaller = dist.shrink_group([0], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
        problems += summed(smaller, left)
    return problems


@pytest.mark.parametrize("dead", [0, 2])
def test_a_world_without_a_dead_rank(dead):
    with tempfile.TemporaryDirectory(prefix="symm_test_") as folder:
        setup = Setup(os.path.join(folder, "store"), WORLD, timeout=20.0)
        reports = start_ranks(one_dies, WORLD, (setup, dead)).finish(60)
    left = [report for report in reports if report.rank != dead]
    assert all(report.returned for report in left), describe(reports)
    expect_no_mismatch([report.value for report in left])


def a_part_shrinks(rank):
    """The world is left alone, and the options go on."""
    import torch_symm

    options = torch_symm.Options(algorithm="ring")
    part = dist.new_group([0, 1, 3], pg_options=options)
    problems = []
    if rank in (0, 3):
        backend = part._get_backend(torch.device("cpu"))
        for excluded in ([dist.get_rank(part)], [3], [-1]):
            text = message_of(ValueError, backend.shrink, excluded)
            problems += unsaid(text, ["shrink: ranks_to_exclude", "got"])
        smaller = dist.shrink_group([1], part)
        problems += summed(smaller, [0, 3])
        if smaller._get_backend(torch.device("cpu")).options.algorithm != "ring":
            problems.append("the options are lost")
    problems += summed(dist.group.WORLD, list(range(WORLD)))
    return problems


def test_a_part_of_the_world_shrinks():
    expect_no_mismatch(run_ranks(a_part_shrinks, WORLD, fresh=True))
