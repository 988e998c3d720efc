"""CUDA graphs of kernels over torch_symm.triton: captured once with their context, replayed with
new data; what a replay has met is told."""

import datetime
import functools

import example_kernels
import pytest
import torch
from kernel_runs import (
    NEEDS_TRITON,
    TIME_LIMIT,
    differs,
    error_of,
    launch,
    ordinary,
    symmetric,
)

from graph_operations import captured
from harness import DEVICE, check, crowded, run_ranks
from symmetric import meet

pytestmark = [pytest.mark.cuda, NEEDS_TRITON, pytest.mark.timeout(150)]

COUNT = 101
WORLD_SIZES = [2, 4]


def replays(world_size: int) -> int:
    return 6 if crowded(world_size) else 50


def contents(ranks, number):
    """[rank, number, COUNT] on the CPU: what each rank puts in each turn, whole numbers."""
    places = torch.arange(COUNT) % 13
    return places + 100 * torch.arange(ranks)[:, None, None] + torch.arange(number)[:, None]


def relay(ctx, box, flag):
    """(the launch of relay_kernel, what it puts, what has come)."""
    import library_kernels as kernels

    source = ordinary(COUNT, dtype=torch.float32)
    out = ordinary(COUNT, dtype=torch.float32)
    turns = ordinary(1, value=0)
    arguments = (box, flag, turns, source, out, COUNT, ctx)
    call = functools.partial(launch, kernels.relay_kernel, *arguments, BLOCK=128)
    call()  # compiles, loads, and counts: the first turn
    return functools.partial(kernels.relay_kernel[(1,)], *arguments, BLOCK=128), source, out


def symmetric_ring():
    return symmetric(128, dtype=torch.float32), symmetric(1, value=0)


def signals(rank, ranks):
    """Queued replays and eager launches of a ring of puts take turns."""
    import library_kernels as kernels

    ring, problems = symmetric_ring(), []
    ctx = kernels.symm.context(*ring)
    call, source, out = relay(ctx, *ring)
    graph = captured(call)
    turns = replays(ranks)
    every = contents(ranks, turns)
    mine, got = every[rank].to(DEVICE, torch.float32), []
    for turn in range(turns):
        source.copy_(mine[turn])
        call() if turn % 4 == 3 else graph.replay()
        got.append(out.clone())
    torch.cuda.synchronize()
    ctx.check()
    for turn in range(turns):
        problems += differs(f"turn {turn}", got[turn], every[(rank - 1) % ranks, turn])
    meet()
    return problems


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replays_of_signals(world_size):
    check(signals, world_size, world_size, time_limit=TIME_LIMIT)


def barriers(rank, ranks):
    """The one-shot all_reduce of the examples, twice in one graph."""
    example, turns = example_kernels.load("all_reduce_one_shot"), replays(ranks)
    all_reduce = example.AllReduce(COUNT, DEVICE)
    every = contents(ranks, turns)
    mine, got, problems = every[rank].to(DEVICE, torch.float32), [], []
    x = torch.zeros(COUNT, device=DEVICE)
    all_reduce(x)
    torch.cuda.synchronize()
    outputs = []
    graph = captured(lambda: outputs.extend((all_reduce(x), all_reduce(2 * x))))
    for turn in range(turns):
        x.copy_(mine[turn])
        graph.replay()
        got.append(torch.stack(outputs))
    torch.cuda.synchronize()
    all_reduce.ctx.check()
    for turn in range(turns):
        total = every[:, turn].sum(dim=0)
        problems += differs(f"turn {turn}", got[turn], torch.stack((total, 2 * total)))
    meet()
    return problems


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replays_of_barriers(world_size):
    check(barriers, world_size, world_size, time_limit=TIME_LIMIT)


def products(rank, ranks):
    """The ring of shards with its product, of the examples, twice in one graph."""
    example, turns = example_kernels.load("all_gather_matmul_ring"), replays(ranks)
    multiply = example.RingMatmul(32, 64, 96, DEVICE, torch.float32, example.TINY_TILES)
    rows = torch.arange(turns * ranks * 32 * 64).view(turns, ranks * 32, 64) % 11
    w = (torch.arange(64 * 96).view(64, 96) % 7).float()
    mine, weights = rows[:, rank * 32 :][:, :32].to(DEVICE, torch.float32), w.to(DEVICE)
    x, got, problems = torch.zeros(32, 64, device=DEVICE), [], []
    multiply(x, weights)
    torch.cuda.synchronize()
    outputs = []
    graph = captured(lambda: outputs.extend((multiply(x, weights), multiply(3 * x, weights))))
    for turn in range(turns):
        x.copy_(mine[turn])
        graph.replay()
        got.append(torch.stack(outputs))
    torch.cuda.synchronize()
    multiply.ctx.check()
    for turn in range(turns):
        product = rows[turn].float() @ w
        problems += differs(f"turn {turn}", got[turn], torch.stack((product, 3 * product)))
    meet()
    return problems


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replays_of_products(world_size):
    check(products, world_size, world_size, time_limit=TIME_LIMIT)


def without_a_peer(rank):
    """Rank 0 alone replays: (what its context tells then, what the next launch with it raises)."""
    import library_kernels as kernels

    ring = symmetric_ring()
    ctx = kernels.symm.context(*ring, timeout=datetime.timedelta(seconds=5))
    call, *_ = relay(ctx, *ring)
    graph, raised = captured(call), []
    meet()
    if rank == 0:
        graph.replay()
        torch.cuda.synchronize()
        raised = [error_of(ctx.check), error_of(call)]
    meet()
    return raised


def test_a_replay_whose_peer_does_not_come():
    for kind, text in run_ranks(without_a_peer, 2, time_limit=TIME_LIMIT)[0]:
        assert kind == "DistBackendError"
        assert "Timed out after 5000 ms waiting for rank 1" in text
