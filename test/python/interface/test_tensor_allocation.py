"""Tensors that a group allocates (Backend.allocate_tensor) are in memory that can become symmetric,
and what is freed comes again."""

import gc
import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import model
from errors import CALL_ERRORS, message_of, unsaid
from harness import check, new_group_in_order

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.cpu("a group allocates tensors of the CPU alone"),
]

CPU = torch.device("cpu")
MIB = 1 << 20


def backend_of(group=None):
    return (group or dist.group.WORLD)._get_backend(CPU)


def allocated(count, dtype=torch.float32, group=None):
    return backend_of(group).allocate_tensor(count, dtype=dtype, device=CPU)


def kinds_and_sizes(rank):
    import torch_symm

    problems = []
    if not backend_of().supports_tensor_alloc(CPU):
        problems.append("says that it cannot allocate")
    if backend_of().supports_tensor_alloc(torch.device("cuda", 0)):
        problems.append("says that it allocates on a GPU")
    for dtype in (torch.uint8, torch.bfloat16, torch.float64, torch.complex64, torch.bool):
        for count in (0, 1, 7, 16_384, 16_385, 300_000):
            tensor = allocated(count, dtype)
            right = tensor.shape == (count,) and tensor.dtype == dtype and tensor.is_contiguous()
            if not right or not torch_symm.is_symmetric(tensor):
                problems.append(f"{count} of {dtype}: {tensor.shape}, {tensor.dtype}")
    return problems


def test_kinds_and_sizes():
    check(kinds_and_sizes, 2)


def in_groups(rank, lists):
    """Peers read and write what each has allocated, also through collectives."""
    problems = []
    for ranks in lists:
        group, ranks = new_group_in_order(ranks)
        if rank not in ranks:
            continue
        size, me = len(ranks), ranks.index(rank)
        mine = allocated(5_000, group=group)
        handle = symm_mem.rendezvous(mine, group.group_name)
        mine.fill_(rank)
        handle.barrier()
        for peer, other in enumerate(ranks):
            theirs = handle.get_buffer(peer, (5_000,), torch.float32)
            problems += model.mismatch(f"of {other}", theirs, torch.full((5_000,), float(other)))
        handle.barrier()
        whole = allocated(size * 5_000, group=group)
        whole.fill_(-1)
        dist.all_gather_into_tensor(whole, mine, group=group)
        expected = torch.tensor(ranks).float().repeat_interleave(5_000)
        problems += model.mismatch("all_gather", whole, expected)
        dist.reduce_scatter_tensor(mine, whole, group=group)
        problems += model.mismatch("shares", mine, torch.full((5_000,), float(ranks[me] * size)))
        dist.barrier(group)
        dist.destroy_process_group(group)
    return problems


@pytest.mark.parametrize("lists", [[[0, 1, 2, 3]], [[0, 2], [1, 3]], [[3, 1, 0]]], ids=str)
def test_in_groups(lists):
    check(in_groups, 4, lists, fresh=True)


def comes_again(rank):
    problems, places = [], set()
    for repeat in range(20):
        first, second = allocated(200_000), allocated(300_000, torch.float64)
        places |= {first.data_ptr(), second.data_ptr()}
        first.fill_(repeat)
        second.fill_(-repeat)
        dist.all_reduce(first)
        size = dist.get_world_size()
        problems += model.mismatch("sum", first, torch.full((200_000,), float(repeat * size)))
        del first, second
    if len(places) != 2:
        problems.append(f"20 times two tensors were at {len(places)} places")
    # Memory that has joined a group does not: one rank may have freed it alone.
    name, size = dist.group.WORLD.group_name, dist.get_world_size()
    joined = allocated(MIB)
    symm_mem.rendezvous(joined, name).barrier()
    if rank == 0:
        del joined
    mine = allocated(MIB)
    handle = symm_mem.rendezvous(mine, name)  # one that is new on all ranks
    mine.fill_(rank)
    handle.barrier()
    peer = handle.get_buffer((rank + 1) % size, (MIB,), torch.float32)
    problems += model.mismatch("of the peer", peer, torch.full((MIB,), float((rank + 1) % size)))
    handle.barrier()
    return problems


def test_what_is_freed_comes_again():
    check(comes_again, 2, fresh=True)


def mapped_bytes() -> int:
    """Of memory that is allocated as a whole, with all its pages."""
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps if "/memfd:" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def keeps_little(rank):
    """At most 256 MiB of what was freed stays."""
    before = mapped_bytes()
    tensors = [allocated(100 * MIB, torch.uint8) for _ in range(5)]
    most = mapped_bytes() - before
    del tensors
    left = mapped_bytes() - before
    if most < 500 * MIB or left > 257 * MIB:
        return [f"{most / MIB} MiB, and {left / MIB} MiB when all was freed"]
    return []


def test_it_keeps_little():
    check(keeps_little, 1, fresh=True)


def in_a_child(rank):
    """What a forked child allocates and frees is no longer its parent's."""
    kept = allocated(50_000)
    place = kept.data_ptr()
    del kept
    held = allocated(90_000)
    held.fill_(3)
    pid = os.fork()
    if pid == 0:
        one = allocated(50_000)
        one.fill_(7)
        inherited = held.data_ptr()
        del held
        gc.collect()
        two = allocated(90_000)
        two.fill_(8)
        right = one.data_ptr() != place and two.data_ptr() != inherited
        os._exit(0 if right else 1)
    _, status = os.waitpid(pid, 0)
    problems = [] if status == 0 else ["the child was given memory that its parent has"]
    problems += model.mismatch("what the parent has", held, torch.full((90_000,), 3.0))
    again = allocated(50_000)
    if again.data_ptr() != place or (again == 7).any():
        problems.append("the parent's freed memory was used by the child")
    return problems


def test_a_forked_child_has_memory_of_its_own():
    check(in_a_child, 1, fresh=True)


def refused(rank):
    def text_of(count, device=CPU, dtype=torch.float32):
        return message_of(
            CALL_ERRORS, backend_of().allocate_tensor, count, dtype=dtype, device=device
        )

    problems = unsaid(text_of(-1), ["ValueError", "size: expected 0 to .* got -1"])
    problems += unsaid(text_of(2**61), ["ValueError", "size: expected 0 to"])
    problems += unsaid(text_of(2**45), ["shared memory failed", "available"])
    wrong_device = text_of(4, torch.device("cuda", 0))
    return problems + unsaid(wrong_device, ["NotImplementedError", "device: expected cpu"])


def test_refused():
    check(refused, 1)
