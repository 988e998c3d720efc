"""Operators of symm_mem that symm has for GPUs, in CUDA graphs. Splits of all_to_all_vdev are data:
a replay moves what they then say."""

import random

import pytest
import torch
import torch.distributed as dist

import model
from graph_operations import captured
from harness import WORLD_SIZE, check, few
from operators import ops
from symmetric import allocate, destroy, member_of_each, use_symm

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(120)]

TOKENS, HIDDEN, ALIGN = 600, 24, 8
GROUPS = {2: [[0, 1]], 3: [[0, 1, 2], [0, 2]], 4: [[0, 1, 2, 3], [1, 3]]}


def splits_of(rank: int, slots: int, replay: int) -> list[int]:
    draw = random.Random(977 * replay + rank)
    return [draw.choice([0, 1, 2, 7, TOKENS // slots]) for _ in range(slots)]


def tokens_of(rank: int, replay: int) -> torch.Tensor:
    numbers = torch.arange(TOKENS * HIDDEN, dtype=torch.int64)
    return ((numbers * 3 + 101 * rank + 7 * replay) % 1009).to(torch.float32).view(TOKENS, HIDDEN)


class Experts:
    """Tokens go to their experts, which double them, and come back."""

    def __init__(self, group, ranks, rank, experts):
        self.rank, self.slots, self.name = rank, len(ranks) * experts, group.group_name
        self.tokens = allocate(TOKENS, HIDDEN)
        self.inside = allocate(len(ranks) * TOKENS + self.slots * ALIGN, HIDDEN)
        self.back = allocate(TOKENS, HIDDEN)
        self.splits = allocate(self.slots, dtype=torch.int64)
        self.there = allocate(2, self.slots, dtype=torch.int64)
        self.here = allocate(2, self.slots, dtype=torch.int64)

    def fill(self, replay):
        self.tokens.copy_(tokens_of(self.rank, replay))
        self.splits.copy_(torch.tensor(splits_of(self.rank, self.slots, replay)))
        self.back.fill_(-77.0)
        self.inside.fill_(0)

    def step(self):
        ops.all_to_all_vdev_2d(self.tokens, self.inside, self.splits, self.there, self.name, ALIGN)
        self.inside.mul_(2)
        ops.all_to_all_vdev_2d_offset(self.inside, self.back, self.there, self.here, self.name)

    def wrong(self, what, replay, back, here):
        splits = splits_of(self.rank, self.slots, replay)
        expected = torch.full((TOKENS, HIDDEN), -77.0)
        sent = sum(splits)
        expected[:sent] = 2 * tokens_of(self.rank, replay)[:sent]
        begins = [sum(splits[:slot]) for slot in range(self.slots)]
        problems = model.mismatch(f"{what} {replay}: tokens", back, expected)
        return problems + model.mismatch(
            f"{what} {replay}: splits", here, torch.tensor([splits, begins])
        )


def replays(rank, lists, experts):
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        these = Experts(group, ranks, rank, experts)
        these.fill(0)
        these.step()
        problems += these.wrong(f"eager of {ranks}", 0, these.back, these.here)
        graph = captured(these.step)
        for replay in few(range(30), 8):
            these.fill(replay)
            graph.replay()
            problems += these.wrong(f"replay of {ranks}", replay, these.back, these.here)
        kept = []
        for replay in few(range(100, 112), 4):  # nothing waits between them
            these.fill(replay)
            graph.replay()
            kept.append((replay, these.back.clone(), these.here.clone()))
        for one in kept:
            problems += these.wrong(f"queued replay of {ranks}", *one)
        del graph
    destroy(groups)
    return problems


@pytest.mark.parametrize("experts", [1, 5])
def test_replays_with_other_splits(experts):
    check(replays, WORLD_SIZE, GROUPS[WORLD_SIZE], experts)


def unread(rank):
    """The host reads nothing: a call returns while its splits are not yet written."""
    use_symm()
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    given, out = allocate(64, 8), allocate(64 * size, 8)
    splits, results = allocate(size, dtype=torch.int64), allocate(2, size, dtype=torch.int64)
    splits.fill_(1)
    ops.all_to_all_vdev(given, out, splits, results, name)
    torch.cuda.synchronize()
    given.fill_(rank)
    torch.cuda._sleep(200_000_000)
    splits.fill_(3)
    ops.all_to_all_vdev(given, out, splits, results, name)
    running = not torch.cuda.current_stream().query()
    expected = torch.arange(float(size)).repeat_interleave(3 * 8).view(3 * size, 8)
    problems = model.mismatch("rows", out[: 3 * size], expected)
    return problems if running else [*problems, "the call waited for the device"]


def test_a_call_does_not_wait_for_the_device():
    check(unread, WORLD_SIZE)


SIDE = 40


def matrix(rank: int, replay: int) -> torch.Tensor:
    return model.make_input(torch.bfloat16, SIDE * SIDE, rank, replay).view(SIDE, SIDE)


def sums(rank):
    """A quadrant to each root, and a strided tile to the last rank."""
    use_symm()
    size, name, problems = dist.get_world_size(), dist.group.WORLD.group_name, []
    given, out, some = (allocate(SIDE, SIDE, dtype=torch.bfloat16) for _ in range(3))
    half = SIDE // 2
    quadrants = [(slice(0, half), slice(0, half)), (slice(half, SIDE), slice(half, SIDE))]
    place = quadrants[rank] if rank < 2 else quadrants[0]

    def step():
        ops.multi_root_tile_reduce([given[q] for q in quadrants], out[place], [0, 1], name)
        ops.tile_reduce(given[::3, 1::2], some[::3, 1::2], size - 1, name)

    step()
    torch.cuda.synchronize()
    graph = captured(step)
    for replay in few(range(20), 6):
        given.copy_(matrix(rank, replay))
        out.fill_(-77)
        some.fill_(-77)
        graph.replay()
        total = model.reduced([matrix(peer, replay).flatten() for peer in range(size)], "SUM")
        total = total.view(SIDE, SIDE)
        expected = torch.full((SIDE, SIDE), -77, dtype=torch.bfloat16)
        strided = expected.clone()
        if rank < 2:
            expected[place] = total[place]
        if rank == size - 1:
            strided[::3, 1::2] = total[::3, 1::2]
        problems += model.mismatch(f"replay {replay}: quadrant", out, expected)
        problems += model.mismatch(f"replay {replay}: strided", some, strided)
    return problems


def test_replays_of_tile_reductions():
    check(sums, WORLD_SIZE)
