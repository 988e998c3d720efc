"""Signal pads of allocations that come and go: whose they are, clean when they are used again."""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from errors import message_of
from harness import check, expect_no_mismatch, run_ranks, synchronize
from symmetric import (
    descriptors,
    granules,
    meet,
    pads_not_zero,
    shared,
    signal_pad_size,
    use_symm,
)

pytestmark = pytest.mark.timeout(90)


def share(group=None):
    """(tensor that fills its allocation, handle)"""
    use_symm()
    tensor = granules(1, torch.uint8)
    return tensor, symm_mem.rendezvous(tensor, group or dist.group.WORLD)


def overlaps(handles):
    """Pads that share a byte, of all these handles as this rank has them mapped."""
    pads = sorted(
        (pad, pad + handle.signal_pad_size) for handle in handles for pad in handle.signal_pad_ptrs
    )
    return [f"{one} and {next}" for one, next in itertools.pairwise(pads) if one[1] > next[0]]


def many_at_once(rank):
    """More allocations than one pad segment serves, in two groups; every pad is one's own."""
    size = dist.get_world_size()
    group = dist.new_group(list(range(size)))
    held = [share() for _ in range(40)]
    held += [(tensor, symm_mem.rendezvous(tensor, group)) for tensor, _ in held[:10]]
    handles = [handle for _, handle in held]
    problems = overlaps(handles)
    peer = (rank + 1) % size
    for number, handle in enumerate(handles):
        handle.get_signal_pad(peer).view(torch.int32).fill_(number + 1)
    meet()
    for number, handle in enumerate(handles):
        pad = handle.get_signal_pad(rank).view(torch.int32)
        if not pad.eq(number + 1).all():
            problems.append(f"pad {number} has {sorted(set(pad.tolist()))}")
        pad.zero_()
    meet()
    for handle in handles:
        handle.barrier()
    meet()
    dist.destroy_process_group(group)
    return problems


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_allocation_has_pads_of_its_own(world_size):
    check(many_at_once, world_size)


def left_full(rank):
    """Signals that nobody took are not there for whoever gets the pad next."""
    problems, addresses, found = [], set(), []
    for cycle in range(30):
        tensor, handle = share()
        meet()
        problems += pads_not_zero(handle, f"cycle {cycle}")
        addresses.add(handle.signal_pad_ptrs[rank])
        meet()
        for peer in range(handle.world_size):
            handle.get_signal_pad(peer).view(torch.int32).fill_(1 + rank)
            handle.get_signal_pad(peer).view(torch.int32)[0] = 7
        synchronize()
        del tensor, handle
        meet()
        found.append(descriptors())
    if len(addresses) > 3:
        problems.append(f"30 allocations, one at a time, had {len(addresses)} pads")
    if found[-1] > found[5]:
        problems.append(f"descriptors grew from {found[5]} to {found[-1]}")
    return problems


def test_pads_are_clean_when_they_are_used_again():
    expect_no_mismatch(run_ranks(left_full, 3, fresh=True))


def one_rank_keeps_its_handle(rank):
    """The pads of an allocation are nobody else's while any rank can still signal through them."""
    tensor, handle = share()
    mine = handle.signal_pad_ptrs[rank]
    if rank != 1:
        del tensor, handle
    others = [share() for _ in range(5)]
    problems = [f"pad {i}" for i, one in enumerate(others) if one[1].signal_pad_ptrs[rank] == mine]
    meet()
    if rank == 1:
        for peer in range(handle.world_size):
            handle.get_signal_pad(peer).view(torch.int32).fill_(9)
        synchronize()
        del tensor, handle
    meet()
    for _, other in others:
        problems += pads_not_zero(other, "written by who kept the old one")
    meet()
    _, last = share()
    meet()
    if last.signal_pad_ptrs[rank] != mine:
        problems.append("a pad that all have let go of is not used again")
    problems += pads_not_zero(last, "used again")
    meet()
    return problems


def test_pads_are_used_again_once_all_ranks_have_let_go():
    expect_no_mismatch(run_ranks(one_rank_keeps_its_handle, 3, fresh=True))


def sizes_take_turns(rank):
    problems, held = [], []
    before = symm_mem.get_signal_pad_size()
    for size in (before, 64, 5 * before, 3 << 20, before):
        with signal_pad_size(size):
            tensor, handle = share()
            held.append((tensor, handle))
            if handle.signal_pad_size != size:
                problems.append(f"{handle.signal_pad_size} bytes for {size}")
            last = size // 4 // handle.world_size - 1
            problems += pads_not_zero(handle, f"{size} bytes")
            meet()
            handle.barrier(channel=last)
            handle.barrier(channel=0)
            meet()
            problems += pads_not_zero(handle, f"{size} bytes, used")
            meet()
            text = message_of(RuntimeError, handle.barrier, last + 1)
            problems += [] if "channel" in text else [f"{size} bytes: {text}"]
    meet()
    return problems


def test_pads_of_several_sizes():
    check(sizes_take_turns, 3)


def pads_that_nobody_has(rank):
    """What is too large for a pad is found out by all ranks, and the group goes on."""
    with signal_pad_size(1 << 50):
        tensor, text = granules(1), ""
        text = message_of(RuntimeError, symm_mem.rendezvous, tensor, dist.group.WORLD)
    _, handle = shared(100)
    handle.barrier()
    meet()
    return text


def test_pads_that_are_too_large_raise_on_every_rank():
    for text in run_ranks(pads_that_nobody_has, 2, fresh=True):
        assert str(1 << 50) in text, text


def sizes_differ(rank):
    size = symm_mem.get_signal_pad_size()
    with signal_pad_size(size * (1 + rank)):
        tensor = granules(1)
        text = message_of(RuntimeError, symm_mem.rendezvous, tensor, dist.group.WORLD)
    _, handle = shared(100)
    handle.barrier()
    meet()
    return text, size


def test_pads_of_differing_sizes_raise_on_every_rank():
    for text, size in run_ranks(sizes_differ, 2, fresh=True):
        assert all(word in text for word in ("signal pads", str(size), str(2 * size))), text
