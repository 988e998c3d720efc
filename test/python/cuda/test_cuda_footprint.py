"""What groups on a GPU cost and give back: device memory, descriptors, threads."""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import model
from harness import GPUS, PROCESSES, WORLD_SIZE, crowded, expect_no_mismatch, resources, run_ranks
from symmetric import granules, use_symm

pytestmark = [pytest.mark.cuda, pytest.mark.alone]

MIB = 1 << 20
CYCLES = 20 if crowded(WORLD_SIZE) else 100
WARM_CYCLES = 4


def free_memory():
    """Bytes free on this rank's GPU when every rank has given back what it will."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    dist.barrier()
    free = torch.cuda.mem_get_info()[0]
    dist.barrier()
    return free


def make_and_destroy(rank, repeat):
    group = dist.new_group(list(range(WORLD_SIZE)))
    problems = []
    for count in (100, 300_007):
        every = [model.make_input(torch.float32, count, r, repeat) for r in range(WORLD_SIZE)]
        tensor = every[rank].cuda()
        dist.all_reduce(tensor, group=group)
        problems += model.mismatch(f"cycle {repeat}", tensor, model.reduced(every, "SUM"))
    dist.all_reduce(torch.ones(3, device="cuda"), group=group, async_op=True).wait()
    torch.cuda.synchronize()
    dist.destroy_process_group(group)
    return problems


def cycles(rank):
    problems, free, found = [], [], []
    for repeat in range(CYCLES):
        problems += make_and_destroy(rank, repeat)
        if repeat in (WARM_CYCLES, CYCLES - 1):
            free.append(free_memory())
            found.append(resources())
    return problems, free, found


def test_groups_made_and_destroyed_leave_nothing():
    results = run_ranks(cycles, WORLD_SIZE, time_limit=110, fresh=PROCESSES)
    expect_no_mismatch([problems for problems, _, _ in results])
    for rank, (_, free, found) in enumerate(results):
        lost = (free[0] - free[1]) / MIB
        assert lost < 4, f"rank {rank}: {lost:.1f} MiB of the GPU's memory are gone"
        for what in ("descriptors", "threads"):
            grown = found[1][what] - found[0][what]
            assert grown <= 0, f"rank {rank}: {grown} more {what}"
        # The driver maps areas of its own now and then; one a cycle would be a leak.
        grown = found[1]["mappings"] - found[0]["mappings"]
        assert grown < (CYCLES - WARM_CYCLES) // 2, f"rank {rank}: {grown} more mappings"


def first_use(rank):
    """(MiB that a group takes at its first call, at the second, at many more)."""
    # The kernels' code is loaded at a process's first use and is not a group's.
    before = dist.new_group(list(range(WORLD_SIZE)))
    dist.all_reduce(torch.ones(5_000, device="cuda"), group=before)
    dist.destroy_process_group(before)
    group, free = dist.new_group(list(range(WORLD_SIZE))), [free_memory()]
    for calls in (1, 1, 20):
        for _ in range(calls):
            tensor = torch.ones(5_000, device="cuda")
            dist.all_reduce(tensor, group=group)
            del tensor
        free.append(free_memory())
    dist.destroy_process_group(group)
    return [(before - after) / MIB for before, after in itertools.pairwise(free)]


def test_workspace_is_bounded_and_made_once():
    """At most 64 MiB for each rank on the GPU, and 8 MiB for signals and boxes of messages; nothing
    grows after that. The driver's own tables grow now and then, in pieces of 2 MiB."""
    ranks_on_one_gpu = max(1, WORLD_SIZE // GPUS)
    for rank, (first, second, more) in enumerate(run_ranks(first_use, WORLD_SIZE, fresh=PROCESSES)):
        most = ranks_on_one_gpu * (64 + 8 + 2)
        assert 0 < first <= most, f"rank {rank}: the first call took {first:.1f} MiB"
        assert second <= 0.5, f"rank {rank}: the second call took {second:.1f} MiB more"
        assert more <= 0.5, f"rank {rank}: twenty calls took {more:.1f} MiB more"


def buffers_of_a_granule(rank, number):
    """MiB that `number` shared buffers of 2 MiB take, of all ranks on this GPU together."""
    use_symm()
    first = granules(1), granules(1)  # the group's first pads, and what a process makes once
    for tensor in first:
        symm_mem.rendezvous(tensor, dist.group.WORLD).barrier()
    before, held = free_memory(), []
    for _ in range(number):
        tensor = granules(1)
        held.append((tensor, symm_mem.rendezvous(tensor, dist.group.WORLD)))
    for _, handle in held:
        handle.barrier()
    return (before - free_memory()) / MIB


def test_buffers_take_their_granules_and_no_more():
    number, ranks_on_one_gpu = 40, max(1, WORLD_SIZE // GPUS)
    for rank, taken in enumerate(
        run_ranks(buffers_of_a_granule, WORLD_SIZE, number, fresh=PROCESSES)
    ):
        # What the driver keeps of mappings is less than half a granule a buffer.
        most = ranks_on_one_gpu * number * 3
        assert 0 < taken < most, f"rank {rank}: {number} buffers of 2 MiB took {taken:.1f} MiB"
