"""torch.distributed._dist2: groups that torch.distributed's functions do not know."""

import datetime
import gc
import os
from importlib.util import find_spec

import pytest
import torch
from torch.distributed import TCPStore

import model
from errors import message_of, unsaid
from harness import DEVICE, IS_SYMM, expect_no_mismatch
from programs import free_port
from rank_processes import describe, run_processes, served_store

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="of symm's own registration"),
    pytest.mark.skipif(
        find_spec("torch.distributed._dist2") is None, reason="this torch has no such module"
    ),
]

TIMEOUT = datetime.timedelta(seconds=30)
SIZE = 3


def summed(group, count, what):
    tensor = torch.full((count,), group.rank() + 1.0, device=DEVICE)
    group.allreduce([tensor]).wait()
    expected = group.size() * (group.size() + 1) / 2
    return [] if bool((tensor == expected).all()) else [f"{what}: {tensor[:4]}, not {expected}"]


def groups_of_their_own(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
    from torch.distributed import _dist2

    if DEVICE == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    first = _dist2.new_group("symm", TIMEOUT, DEVICE)
    second = _dist2.new_group("symm", TIMEOUT, DEVICE, algorithm="ring")
    problems = []
    for count in (5, 300_007):
        problems += summed(first, count, "the first group")
        problems += summed(second, count, "the second group")
    with _dist2.process_group(second):
        problems += [] if _dist2.current_process_group() == second else ["not the current group"]
    part = first.split_group([0, 2], timeout=TIMEOUT)
    if (part is None) != (rank == 1):
        problems.append(f"rank {rank} got {part} of a split")
    if part is not None:
        problems += summed(part, 1000, "a part")
    first.barrier().wait()
    wrong = {
        KeyError: ({"colour": "red"}, ["'colour'"]),
        ValueError: ({"algorithm": "rings"}, ["algorithm", "rings"]),
    }
    for kind, (fields, words) in wrong.items():
        text = message_of(kind, _dist2.new_group, "symm", TIMEOUT, DEVICE, **fields)
        problems += unsaid(text, words)
    return problems


def test_groups_of_dist2():
    # A rank that is refused lets go of its own store at once.
    with served_store() as (port, _):
        reports = run_processes(groups_of_their_own, SIZE, port)
    assert all(report.returned for report in reports), describe(reports)
    expect_no_mismatch([report.value for report in reports])


def merged_from_two(rank, ports):
    """Groups of two and of one rank become one of three."""
    from torch.distributed import PrefixStore, _dist2

    part = 0 if rank < 2 else 1
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[part])}
    os.environ |= {"RANK": str(rank % 2), "WORLD_SIZE": str(2 - part)}
    if DEVICE == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    group = _dist2.new_group("symm", TIMEOUT, DEVICE)
    problems = summed(group, 100, "before")
    store = TCPStore("127.0.0.1", ports[2], is_master=rank == 0, wait_for_workers=False)
    merged = group.merge_remote_group(PrefixStore("merged", store), SIZE, TIMEOUT)
    if (merged.rank(), merged.size()) not in [(r, SIZE) for r in range(SIZE)]:
        problems.append(f"rank {merged.rank()} of {merged.size()}")
    problems += summed(merged, 100_003, "merged")
    merged.barrier().wait()
    return problems


def test_groups_are_merged():
    reports = run_processes(merged_from_two, SIZE, [free_port() for _ in range(3)])
    assert all(report.returned for report in reports), describe(reports)
    expect_no_mismatch([report.value for report in reports])


def in_torch_symm(rank, port):
    """There is no default group; each group is found by its name, as long as it is there."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
    import torch.distributed._symmetric_memory as symm_mem
    from torch.distributed import _dist2

    import torch_symm
    from torch_symm import ccl, ops

    if DEVICE == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    first, second = (_dist2.new_group("symm", TIMEOUT, DEVICE) for _ in range(2))
    problems, names = [], [first.group_name, second.group_name]
    if len(set(names)) != 2 or "" in names:
        problems.append(f"named {names}")
    for group in (first, second, names[0]):
        total, gathered = torch.zeros(5, device=DEVICE), torch.empty(SIZE, 5, device=DEVICE)
        mine = torch.full((5,), rank + 1.0, device=DEVICE)
        ccl.all_reduce(total, mine, group=group)
        problems += model.mismatch("all_reduce", total, torch.full((5,), 6.0))
        ccl.broadcast(total, mine if rank == 1 else None, src=1, group=group)
        problems += model.mismatch("broadcast", total, torch.full((5,), 2.0))
        shared = torch_symm.as_symmetric(torch_symm.empty(5, device=DEVICE).copy_(mine), group)
        gathered.copy_(torch_symm.contiguous_view(shared, group).view(SIZE, 5))
        expected = torch.arange(1.0, SIZE + 1).repeat_interleave(5).view(SIZE, 5)
        problems += model.mismatch("contiguous_view", gathered, expected)
        (product,) = ops.all_gather_matmul(mine.view(1, 5), [mine.new_ones(5, 2)], 0, group)
        problems += model.mismatch("all_gather_matmul", product, expected[:, :2] * 5)
    if symm_mem.rendezvous(symm_mem.empty(4, device=DEVICE), names[1]).rank != rank:
        problems.append("torch's rendezvous has another rank")
    if torch_symm.local_group(first) is not first:
        problems.append("the ranks of this host are another group")
    first.barrier().wait()
    del first, group
    gc.collect()
    text = message_of(ValueError, ccl.device_barrier, names[0])
    problems += unsaid(text, [f"no group named '{names[0]}'"])
    ccl.device_barrier(second)
    return problems


def test_torch_symm_knows_the_groups_by_name():
    with served_store() as (port, _):
        reports = run_processes(in_torch_symm, SIZE, port)
    assert all(report.returned for report in reports), describe(reports)
    expect_no_mismatch([report.value for report in reports])


def over_hosts(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE)}
    os.environ |= {"SYMM_HOST_ID": "host-" + "aab"[rank], "TORCHELASTIC_USE_AGENT_STORE": "True"}
    from torch.distributed import _dist2

    import torch_symm

    group = _dist2.new_group("symm", TIMEOUT, "cpu")
    text = message_of(NotImplementedError, torch_symm.local_group, group)
    problems = unsaid(text, ["local_group: group", repr(group.group_name), "several hosts"])
    return problems + summed(group, 5, "after it")


@pytest.mark.cpu("the group is the same")
def test_a_host_of_theirs_has_no_group():
    with served_store() as (port, _):
        reports = run_processes(over_hosts, SIZE, port)
    assert all(report.returned for report in reports), describe(reports)
    expect_no_mismatch([report.value for report in reports])
