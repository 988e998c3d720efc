"""Backend.suspend and Backend.resume: a group without its memory for a while."""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist

from errors import ERRORS, message_of, unsaid
from harness import DEVICE, IS_SYMM, ON_CUDA, WORLD_SIZE, Setup, check, expect_no_mismatch
from rank_processes import describe, start_ranks

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(not IS_SYMM, reason="of what symm has beyond gloo"),
    pytest.mark.skipif(
        not hasattr(torch._C._distributed_c10d.Backend, "suspend"),
        reason="this torch suspends no groups",
    ),
]

LARGE = 1_000_000  # elements: a call that needs the workspace
SUSPENDED = ["DistBackendError", r"group \"", "is suspended", r"resume\(\)"]


def backend_of(group=None):
    return (group or dist.group.WORLD)._get_backend(torch.device(DEVICE))


def summed(what, group=None):
    """What is wrong with a call of each size."""
    problems = []
    for count in (5, LARGE):
        tensor = torch.full((count,), dist.get_rank() + 1.0, device=DEVICE)
        dist.all_reduce(tensor, group=group)
        expected = WORLD_SIZE * (WORLD_SIZE + 1) / 2
        if not bool((tensor == expected).all()):
            problems.append(f"{what}, {count} elements: {tensor[:3]}, not {expected}")
    return problems


def shared_bytes():
    """Of all shared memory of the system."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Shmem:"))


def cycles(rank):
    problems, group = [], dist.new_group()
    backend = backend_of(group)
    for cycle in range(3):
        problems += summed(f"cycle {cycle}", group)
        before = backend.memory_stats()
        if before["suspended"] != 0 or before["suspend"] < 8 << 20:
            problems.append(f"before: {before}")
        if before["total"] != before["persist"] + before["suspend"]:
            problems.append(f"does not add up: {before}")
        backend.suspend()
        meanwhile = backend.memory_stats()
        expected = {**before, "suspended": 1, "total": before["persist"]}
        place = "device" if ON_CUDA else "host"
        expected[place] = before[place] - before["suspend"]
        if meanwhile != expected:
            problems.append(f"suspended: {meanwhile}, not {expected}")
        problems += unsaid(
            message_of(ERRORS, dist.all_reduce, torch.ones(3), group=group), SUSPENDED
        )
        backend.resume()
        if backend.memory_stats() != before:
            problems.append(f"resumed: {backend.memory_stats()}, not {before}")
    problems += summed("afterwards", group)
    dist.destroy_process_group(group)
    return problems


def test_cycles():
    check(cycles, WORLD_SIZE)


def gives_back(rank):
    problems, group = [], dist.new_group()
    problems += summed("before", group)
    dist.barrier()
    before = shared_bytes()
    dist.barrier()
    backend_of(group).suspend()
    meanwhile = shared_bytes()
    dist.barrier()
    # Others use the machine too: all but a part of what the ranks have given back.
    if before - meanwhile < WORLD_SIZE * (6 << 20):
        problems.append(f"the system has {before} bytes in shared memory before, {meanwhile} after")
    backend_of(group).resume()
    problems += summed("afterwards", group)
    dist.destroy_process_group(group)
    return problems


@pytest.mark.cpu("the memory of a GPU is counted by its driver")
@pytest.mark.alone
def test_pages_go_back_to_the_system():
    check(gives_back, WORLD_SIZE)


def calls(rank):
    """All kinds of calls are refused, and those that are in order are not."""
    problems, group = summed("before"), dist.new_group()
    backend = backend_of(group)
    problems += unsaid(message_of(ERRORS, backend.resume), ["DistBackendError", "is not suspended"])
    problems += summed("before", group)
    backend.suspend()
    tensor, peer = torch.ones(3, device=DEVICE), (rank + 1) % WORLD_SIZE
    for call in [
        lambda: dist.all_reduce(tensor, group=group),
        lambda: dist.all_reduce(tensor, group=group, async_op=True),
        lambda: dist.barrier(group=group),
        lambda: dist.isend(tensor, peer, group=group),
        lambda: dist.irecv(tensor, peer, group=group),
        backend._start_coalescing,
        backend.suspend,
    ]:
        problems += unsaid(message_of(ERRORS, call), SUSPENDED)
    problems += summed("of the world meanwhile")
    backend.resume()
    problems += summed("afterwards", group)
    backend.suspend()
    dist.destroy_process_group(group)
    return problems


def test_calls_of_a_suspended_group():
    check(calls, WORLD_SIZE, fresh=True)


def behind_queued_calls(rank):
    """What was issued before ends before."""
    tensors = [torch.full((LARGE,), rank + 1.0, device=DEVICE) for _ in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    backend_of().suspend()
    problems = []
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        if not bool((tensor == WORLD_SIZE * (WORLD_SIZE + 1) / 2).all()):
            problems.append(f"{tensor[:3]}")
    backend_of().resume()
    return problems + summed("afterwards")


def test_it_comes_behind_what_was_issued():
    check(behind_queued_calls, WORLD_SIZE)


def with_messages(rank):
    """A message may be sent before and received afterwards."""
    right, left = (rank + 1) % WORLD_SIZE, (rank - 1) % WORLD_SIZE
    problems = summed("before")
    sent = torch.arange(50.0, device=DEVICE) + rank
    sending = dist.isend(sent, right)
    if ON_CUDA:
        torch.cuda.synchronize()
    backend_of().suspend()
    backend_of().resume()
    received = torch.zeros(50, device=DEVICE)
    dist.recv(received, left)
    sending.wait()
    if not torch.equal(received.cpu(), torch.arange(50.0) + left):
        problems.append(f"received {received}")
    return problems + summed("afterwards")


def test_a_message_that_is_under_way():
    check(with_messages, WORLD_SIZE)


def one_is_late(rank):
    dist.barrier()
    if rank == 1:
        return []
    text = message_of(ERRORS, backend_of().suspend)
    problems = unsaid(text, ["DistBackendError", r"suspend\(\)", "rank 1"])
    if backend_of().memory_stats()["suspended"] != 0:
        problems.append("it is suspended")
    return problems


def test_a_rank_that_does_not_come_is_named():
    check(one_is_late, 3, timeout=2.0)


def one_dies(rank, setup):
    setup.join(rank)
    dist.all_reduce(torch.ones(LARGE, device=DEVICE))
    backend_of().suspend()
    if rank == 1:
        os._exit(0)
    problems = unsaid(message_of(ERRORS, backend_of().resume), ["DistBackendError", "rank 1"])
    if backend_of().memory_stats()["suspended"] != 1:
        problems.append("it is not suspended")
    return problems


def test_a_rank_that_has_died_meanwhile_is_named():
    with tempfile.TemporaryDirectory(prefix="symm_test_") as folder:
        setup = Setup(os.path.join(folder, "store"), 3, timeout=20.0)
        reports = start_ranks(one_dies, 3, (setup,)).finish(60)
    left = [report for report in reports if report.rank != 1]
    assert all(report.returned for report in left), describe(reports)
    expect_no_mismatch([report.value for report in left])


def symmetric_memory_stays(rank):
    import torch.distributed._symmetric_memory as symm_mem

    problems = summed("before")
    tensor = symm_mem.empty(1000, device=DEVICE).fill_(float(rank))
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD.group_name)
    handle.barrier()
    backend_of().suspend()
    other = handle.get_buffer((rank + 1) % WORLD_SIZE, (1000,), torch.float32)
    if not bool((other == (rank + 1) % WORLD_SIZE).all()):
        problems.append(f"the peer's tensor is {other[:3]}")
    fresh = symm_mem.empty(1000, device=DEVICE)
    name = dist.group.WORLD.group_name
    problems += unsaid(message_of(ERRORS, symm_mem.rendezvous, fresh, name), SUSPENDED)
    handle.barrier()
    del other, handle, tensor
    backend_of().resume()
    return problems + summed("afterwards")


def test_symmetric_memory_stays():
    check(symmetric_memory_stays, WORLD_SIZE, fresh=True)


def in_a_block(rank):
    backend = backend_of()
    backend._start_coalescing()
    text = message_of(ERRORS, backend.suspend)
    backend._end_coalescing()
    return unsaid(text, ["ValueError", "coalescing block"]) + summed("afterwards")


def test_not_in_a_coalescing_block():
    check(in_a_block, WORLD_SIZE)
