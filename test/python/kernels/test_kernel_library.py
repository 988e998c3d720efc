"""torch_symm.triton: kernels of several processes over symmetric memory, compiled on a GPU, in
Triton's interpreter on the CPU."""

import pytest
import torch
import torch.distributed as dist
from kernel_runs import NEEDS_TRITON, TIME_LIMIT, differs, launch, ordinary, symmetric

from harness import DEVICE, check, run_ranks
from symmetric import destroy, meet, member_of_each

pytestmark = [NEEDS_TRITON, pytest.mark.timeout(150)]


def run(body, world_size, *args):
    check(body, world_size, *args, time_limit=TIME_LIMIT)


def ring(rank, dtype, count):
    import library_kernels as kernels

    ranks, problems = dist.get_world_size(), []
    left = (rank - 1) % ranks
    whole, flag = symmetric(200, dtype=dtype, value=99), symmetric(3)
    box = whole[7:]  # an interior pointer
    ctx = kernels.symm.context(whole, flag)
    for turn in range(1, 4):
        source = (torch.arange(128) % 11 + 20 * rank + turn).to(DEVICE, dtype)
        launch(kernels.ring_kernel, box, flag[1:], source, count, turn, ctx, BLOCK=128)
        expected = (torch.arange(128) % 11 + 20 * left + turn).to(dtype)
        problems += differs(f"turn {turn}", box[:count], expected[:count])
        problems += differs("behind the mask", box[count:128], [99] * (128 - count))
        problems += differs("flags", flag, [-1, turn, -1])
        dist.barrier()  # the box is read before it is written again
    return problems


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ring_of_puts(world_size):
    run(ring, world_size, torch.float32, 101)


DTYPES = [torch.int8, torch.float16, torch.bfloat16, torch.int64, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_dtypes_of_a_put(dtype):
    run(ring, 2, dtype, 128)


def exchange(rank, ways):
    import library_kernels as kernels

    ranks, count, problems = dist.get_world_size(), 37, []
    box = symmetric(ranks * count)
    ctx = kernels.symm.context(box)
    for salt, way in enumerate(ways):
        position = torch.arange(ranks * count, dtype=torch.int32, device=DEVICE)
        source = position + 10_000 * rank + 100_000 * salt
        out = torch.full_like(source, -1)
        launch(kernels.exchange_kernel, box, source, out, count, ctx, WAY=way, BLOCK=64)
        mine = torch.arange(rank * count, (rank + 1) * count)
        expected = torch.cat([mine + 10_000 * peer + 100_000 * salt for peer in range(ranks)])
        problems += differs(way, out, expected)
    return problems


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_store_load_and_get(world_size):
    run(exchange, world_size, ["store", "load", "get", "store"])


def counting(rank, repeats):
    import library_kernels as kernels

    words = symmetric(2, value=0)
    ctx = kernels.symm.context(words)
    old = ordinary(repeats)
    launch(kernels.count_kernel, words, old, repeats, ctx)
    return words.tolist(), old.tolist()


def test_atomics_of_processes_lose_nothing():
    repeats, ranks = 300, 3
    results = run_ranks(counting, ranks, repeats, time_limit=TIME_LIMIT)
    assert results[0][0] == [ranks * repeats] * 2
    assert results[1][0] == [0, 0]
    # Each value was seen by one rank, once: no two adds have met.
    assert sorted(value for _, old in results for value in old) == list(range(ranks * repeats))


def each_atomic(rank):
    import library_kernels as kernels

    ranks = dist.get_world_size()
    left = (rank - 1) % ranks
    words, out = (make(8, dtype=torch.int64) for make in (symmetric, ordinary))
    words.copy_(torch.arange(10, 18))
    ctx = kernels.symm.context(words)
    launch(kernels.atomics_kernel, words, out, ctx)
    expected = [15, 100 + left, -7, 70, 14 & 12, 15 | 12, 1000, 17]
    return differs("old", out, range(10, 18)) + differs("new", words, expected)


def test_each_atomic():
    run(each_atomic, 3)


def comparisons(rank):
    import library_kernels as kernels

    word, other = symmetric(1, value=0), symmetric(1, value=0)
    out = ordinary(6)
    launch(kernels.compare_kernel, word, other, out, kernels.symm.context(word, other))
    return differs("seen", out, [1, 2, 3, 4, -4, -9] if rank == 1 else [-1] * 6)


def test_each_comparison():
    run(comparisons, 3)


def summed(rank):
    import library_kernels as kernels

    ranks = dist.get_world_size()
    box, count = symmetric(8 * (ranks + 1)), symmetric(1, value=0)
    ctx = kernels.symm.context(box, count)
    launch(kernels.gather_sum_kernel, box, count, 10**rank, ctx, BLOCK=8)
    value = sum(10**r for r in range(ranks))
    expected = [value + ranks * i for i in range(8)] if rank == 0 else [-1] * 8
    return differs("sum", box[:8], expected)


def test_signals_add_up():
    run(summed, 4)


def strided_groups(rank):
    import library_kernels as kernels

    groups, problems = member_of_each([[0, 2], [1, 3]]), []
    ((group, ranks),) = groups
    tile = symmetric(2, 4, 8)
    world, part = kernels.symm.context(tile), kernels.symm.context(tile, group=group)
    assert (part.rank, part.world_size) == (ranks.index(rank), 2)
    block = torch.arange(32).view(4, 8)
    for _ in range(2):
        launch(kernels.two_groups_kernel, tile, world, part, ROWS=4, COLUMNS=8)
        problems += differs("world", tile[0], 1000 * ((rank - 1) % 4) + block)
        problems += differs("part", tile[1], 1000 * (1 - ranks.index(rank)) + block)
        meet()
        tile.fill_(-1)
        meet()
    destroy(groups)
    return problems


def test_strided_groups_in_one_kernel():
    run(strided_groups, 4)


def many_programs(rank):
    import library_kernels as kernels

    box = symmetric(128, value=0)
    ctx = kernels.symm.context(box, channels=5)
    launch(kernels.programs_kernel, box, 4, ctx, programs=5)
    return differs("wrong rounds of each program", box[64:69], [0] * 5)


def test_programs_meet_by_channels():
    run(many_programs, 3)


def messages(rank, order):
    import library_kernels as kernels

    data, flag = symmetric(256), symmetric(1, value=0)
    wrong = ordinary(1)
    ctx = kernels.symm.context(data, flag)
    launch(kernels.message_kernel, data, flag, wrong, 80, ctx, ORDER=order, BLOCK=256)
    return differs("words older than their signal", wrong, [0])


@pytest.mark.parametrize("order", ["signal", "fence", "quiet"])
def test_data_comes_before_its_signal(order):
    run(messages, 2, order)


def alone(rank):
    import library_kernels as kernels

    box, flag = symmetric(128, dtype=torch.float32), symmetric(1)
    ctx = kernels.symm.context(box, flag)
    source = torch.arange(128, dtype=torch.float32, device=DEVICE)
    launch(kernels.ring_kernel, box, flag, source, 128, 1, ctx, BLOCK=128)
    launch(kernels.barrier_kernel, kernels.symm.context(dist.group.WORLD))
    return differs("box", box, range(128))


def test_a_group_of_one():
    run(alone, 1)
