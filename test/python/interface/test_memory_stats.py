"""Backend.memory_stats: what a group has allocated on a rank, in bytes."""

import pytest
import torch
import torch.distributed as dist

from errors import CALL_ERRORS, message_of, unsaid
from harness import DEVICE, ON_CUDA, PROCESSES, check

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(
        not hasattr(torch._C._distributed_c10d.Backend, "memory_stats"),
        reason="this torch has no memory_stats",
    ),
]

MIB = 1 << 20


def stats_of(group) -> dict[str, int]:
    return group._get_backend(torch.device(DEVICE)).memory_stats()


def grows(rank):
    problems, group = [], dist.new_group()
    before = stats_of(group)
    if set(before) != {"suspend", "suspended", "persist", "total", "host", "device"}:
        problems.append(f"says {before}")
    if not 0.5 * MIB < before["host"] < 3 * MIB or before["device"] != 0:
        problems.append(f"before a call: {before}")
    dist.all_reduce(torch.ones(1_000_000, device=DEVICE), group=group)
    after = stats_of(group)
    place = "device" if ON_CUDA else "host"
    if after[place] - before[place] < 8 * MIB:
        problems.append(f"after a large call: {after}")
    total = after["total"]
    if total != after["host"] + after["device"] or total != after["persist"] + after["suspend"]:
        problems.append(f"does not add up: {after}")
    dist.all_reduce(torch.ones(1_000_000, device=DEVICE), group=group)
    if stats_of(group) != after:
        problems.append(f"a warm call has allocated: {stats_of(group)} after {after}")
    backend = group._get_backend(torch.device(DEVICE))
    dist.destroy_process_group(group)
    return problems + unsaid(message_of(CALL_ERRORS, backend.memory_stats), ["was destroyed"])


def test_it_grows_with_what_a_group_needs():
    check(grows, 2, fresh=PROCESSES)


def alone(rank):
    stats = stats_of(dist.group.WORLD)
    return [f"{stats}"] if stats["total"] != 0 else []


def test_a_group_of_one_has_no_memory():
    check(alone, 1)
