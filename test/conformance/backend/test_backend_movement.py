"""Collectives that carry values as they are: broadcast, gathers, scatter, all_to_all; barrier."""

import time

import pytest
import torch
import torch.distributed as dist

from backend import (
    WORLD_SIZE,
    carries_or_refuses,
    conforms,
    here,
    mine,
    need,
    need_cuda,
    numbers,
    of_all,
    same,
    still_works,
    subgroup,
)
from harness import DEVICE

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]
DTYPES += [torch.int8, torch.uint8, torch.bool, torch.complex64]
SHAPES = [(), (1,), (3, 5), (70, 1000)]

of_each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def blank(*shape, dtype=torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


# -- broadcast ------------------------------------------------------------------------------------


def broadcasts(rank, dtype):
    for root in range(WORLD_SIZE):
        for shape in SHAPES:
            tensor = mine(rank, *shape, dtype=dtype, salt=root)
            dist.broadcast(tensor, src=root)
            same(tensor, numbers(root, *shape, dtype=dtype, salt=root), f"from {root}, {shape}")


@of_each_dtype
def test_broadcast_from_each_root(dtype):
    conforms(broadcasts, dtype)


def broadcasts_views(rank):
    memory = blank(6, 8)
    memory[2:4].copy_(mine(rank, 2, 8))
    dist.broadcast(memory[2:4], src=1)
    expected = torch.zeros(6, 8)
    expected[2:4] = numbers(1, 2, 8)
    same(memory, expected, "rows")
    nothing = blank(0, 3)
    dist.broadcast(nothing, src=0)
    assert nothing.shape == (0, 3)


def test_broadcast_of_views_and_of_nothing():
    conforms(broadcasts_views)


def broadcasts_transposed(rank):
    transposed = mine(rank, 5, 4).t()
    dist.broadcast(transposed, src=0)
    same(transposed, numbers(0, 5, 4).t())


def test_broadcast_of_transposed_tensors():
    need("transposed tensors")
    conforms(broadcasts_transposed)


def broadcasts_in_a_group(rank):
    members = [WORLD_SIZE - 1, 0]
    with subgroup(members) as group:
        if rank in members:
            tensor = mine(rank, 9)
            dist.broadcast(tensor, src=WORLD_SIZE - 1, group=group)
            same(tensor, numbers(WORLD_SIZE - 1, 9), "src is a rank of the default group")
            tensor = mine(rank, 9)
            dist.broadcast(tensor, group=group, group_src=0)
            root = dist.get_global_rank(group, 0)
            same(tensor, numbers(root, 9), "group_src is a rank of the group")


def test_roots_by_global_rank_and_by_rank_of_the_group():
    conforms(broadcasts_in_a_group)


# -- all_gather -----------------------------------------------------------------------------------


def all_gathers(rank, dtype):
    for shape in SHAPES:
        outputs = [blank(*shape, dtype=dtype) for _ in range(WORLD_SIZE)]
        dist.all_gather(outputs, mine(rank, *shape, dtype=dtype))
        same(outputs, of_all(*shape, dtype=dtype), f"{shape}")


@of_each_dtype
def test_all_gather_to_a_list(dtype):
    conforms(all_gathers, dtype)


def all_gathers_into_tensor(rank, dtype, joined):
    for count in (1, 6, 20000):
        expected = joined(of_all(count, 2, dtype=dtype))
        output = blank(*expected.shape, dtype=dtype)
        dist.all_gather_into_tensor(output, mine(rank, count, 2, dtype=dtype))
        same(output, expected, f"{count}")


@of_each_dtype
def test_all_gather_into_a_tensor(dtype):
    conforms(all_gathers_into_tensor, dtype, torch.cat)


def test_all_gather_into_a_stacked_tensor():
    conforms(all_gathers_into_tensor, torch.float32, torch.stack)


def all_gathers_in_place(rank):
    output = blank(WORLD_SIZE * 6)
    part = output[rank * 6 : rank * 6 + 6]
    part.copy_(mine(rank, 6))
    dist.all_gather_into_tensor(output, part)
    same(output, torch.cat(of_all(6)))


def test_all_gather_into_a_tensor_from_its_own_part():
    conforms(all_gathers_in_place)


def all_gathers_uneven(rank):
    outputs = [blank(3 * peer, 2) for peer in range(WORLD_SIZE)]
    dist.all_gather(outputs, mine(rank, 3 * rank, 2))
    same(outputs, [numbers(peer, 3 * peer, 2) for peer in range(WORLD_SIZE)])


def test_all_gather_of_different_sizes():
    need("uneven all_gather")
    conforms(all_gathers_uneven)


def gathers_to_transposed(rank):
    outputs = [blank(5, 4).t() for _ in range(WORLD_SIZE)]
    if carries_or_refuses(lambda: dist.all_gather(outputs, mine(rank, 4, 5))):
        same(outputs, of_all(4, 5))
    still_works(rank)


def gathers_columns(rank):
    outputs = [blank(6, 4) for _ in range(WORLD_SIZE)]
    columns = mine(rank, 6, 8)[:, ::2]
    if carries_or_refuses(lambda: dist.all_gather(outputs, columns)):
        same(outputs, [tensor[:, ::2] for tensor in of_all(6, 8)])
    still_works(rank)


def broadcasts_columns(rank):
    tensor = mine(rank, 6, 8)
    expected = numbers(rank, 6, 8)
    if carries_or_refuses(lambda: dist.broadcast(tensor[:, ::2], src=0)):
        expected[:, ::2] = numbers(0, 6, 8)[:, ::2]
    same(tensor, expected)
    still_works(rank)


LAYOUTS = [gathers_to_transposed, gathers_columns, broadcasts_columns]


@pytest.mark.parametrize("body", LAYOUTS, ids=lambda body: body.__name__)
def test_layouts_with_gaps_are_carried_or_refused(body):
    conforms(body)


# -- gather and scatter ---------------------------------------------------------------------------


def gathers(rank, dtype):
    for root in range(WORLD_SIZE):
        for shape in SHAPES[:3]:
            there = rank == root
            outputs = [blank(*shape, dtype=dtype) for _ in range(WORLD_SIZE)] if there else None
            dist.gather(mine(rank, *shape, dtype=dtype), outputs, dst=root)
            if there:
                same(outputs, of_all(*shape, dtype=dtype), f"{shape}")


@of_each_dtype
def test_gather_to_each_root(dtype):
    conforms(gathers, dtype)


def scatters(rank, dtype):
    for root in range(WORLD_SIZE):
        for shape in SHAPES[:3]:
            inputs = None
            if rank == root:
                inputs = [here(n) for n in of_all(*shape, dtype=dtype, salt=root)]
            output = blank(*shape, dtype=dtype)
            dist.scatter(output, inputs, src=root)
            same(output, numbers(rank, *shape, dtype=dtype, salt=root), f"{shape}")


@of_each_dtype
def test_scatter_from_each_root(dtype):
    conforms(scatters, dtype)


def only_the_root_has_a_list(rank):
    listed = [blank(3) for _ in range(WORLD_SIZE)]
    other = (rank + 1) % WORLD_SIZE
    with pytest.raises(ValueError, match="list"):
        dist.gather(blank(3), None, dst=rank)
    with pytest.raises(ValueError, match="list"):
        dist.gather(blank(3), listed, dst=other)
    with pytest.raises(ValueError, match="list"):
        dist.scatter(blank(3), None, src=rank)
    with pytest.raises(ValueError, match="list"):
        dist.scatter(blank(3), listed, src=other)


def test_only_the_root_gives_a_list():
    conforms(only_the_root_has_a_list)


# -- all_to_all -----------------------------------------------------------------------------------


def between(sender, receiver, *shape, **settings) -> torch.Tensor:
    return numbers(sender, *shape, salt=receiver, **settings)


def exchanges_lists(rank, rows, dtype):
    everyone = range(WORLD_SIZE)
    inputs = [here(between(rank, peer, rows(rank, peer), 3, dtype=dtype)) for peer in everyone]
    outputs = [blank(rows(peer, rank), 3, dtype=dtype) for peer in everyone]
    dist.all_to_all(outputs, inputs)
    same(outputs, [between(p, rank, rows(p, rank), 3, dtype=dtype) for p in everyone])


def even(sender, receiver):
    return 5


def uneven(sender, receiver):
    return sender + 2 * receiver + 1


def some_nothing(sender, receiver):
    return (sender + receiver) % 3


def mostly_nothing(sender, receiver):
    return 7 if (sender, receiver) == (0, 1) else 0


splits = pytest.mark.parametrize(
    "rows", [uneven, some_nothing, mostly_nothing], ids=lambda rows: rows.__name__
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64], ids=str)
def test_all_to_all_of_lists(dtype):
    need("all_to_all of lists")
    conforms(exchanges_lists, even, dtype)


@splits
def test_all_to_all_of_lists_of_different_sizes(rows):
    need("all_to_all of lists")
    conforms(exchanges_lists, rows, torch.float32)


def exchanges_single(rank, rows, dtype):
    everyone = range(WORLD_SIZE)
    give = [rows(rank, peer) for peer in everyone]
    take = [rows(peer, rank) for peer in everyone]
    tensor = torch.cat([between(rank, p, n, 3, dtype=dtype) for p, n in enumerate(give)])
    output = blank(sum(take), 3, dtype=dtype)
    dist.all_to_all_single(output, here(tensor), take, give)
    parts = [between(p, rank, n, 3, dtype=dtype) for p, n in enumerate(take)]
    same(output, torch.cat(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64], ids=str)
@splits
def test_all_to_all_single_with_splits(rows, dtype):
    conforms(exchanges_single, rows, dtype)


def exchanges_equally(rank):
    tensor = torch.cat([between(rank, peer, 4, 2) for peer in range(WORLD_SIZE)])
    output = blank(4 * WORLD_SIZE, 2)
    dist.all_to_all_single(output, here(tensor))
    same(output, torch.cat([between(peer, rank, 4, 2) for peer in range(WORLD_SIZE)]))


def test_all_to_all_single_without_splits():
    conforms(exchanges_equally)


def exchanges_nothing(rank):
    output = blank(0, 4)
    dist.all_to_all_single(output, blank(0, 4))
    dist.all_to_all_single(output, blank(0, 4), [0] * WORLD_SIZE, [0] * WORLD_SIZE)
    assert output.shape == (0, 4)


def test_all_to_all_single_of_nothing():
    conforms(exchanges_nothing)


# -- barrier --------------------------------------------------------------------------------------


def waits_for_the_last(rank, asynchronous, options):
    dist.barrier()
    late = 0.3 if rank == WORLD_SIZE - 1 else 0.0
    start = time.monotonic()
    time.sleep(late)
    if asynchronous:
        dist.barrier(async_op=True, **options).wait()
    else:
        dist.barrier(**options)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    waited = time.monotonic() - start
    assert waited > 0.2, f"rank {rank} left the barrier after {waited:.3f} s"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["waits", "async"])
def test_barrier_waits_for_the_last_rank(asynchronous):
    conforms(waits_for_the_last, asynchronous, {})


def waits_on_a_device(rank):
    waits_for_the_last(rank, False, {"device_ids": [torch.cuda.current_device()]})


def test_barrier_of_a_device():
    need_cuda("device_ids")
    conforms(waits_on_a_device)


def comes_after_what_was_started(rank):
    tensors = [mine(rank, 1000, salt=n) for n in range(8)]
    works = [dist.broadcast(tensor, src=0, async_op=True) for tensor in tensors]
    dist.barrier()
    for work in works:
        work.wait()
    same(tensors, [numbers(0, 1000, salt=n) for n in range(8)])


def test_barrier_among_unfinished_collectives():
    conforms(comes_after_what_was_started)


def monitors(rank):
    dist.monitored_barrier()
    dist.monitored_barrier(wait_all_ranks=True)


def test_monitored_barrier():
    need("monitored_barrier")
    conforms(monitors)
