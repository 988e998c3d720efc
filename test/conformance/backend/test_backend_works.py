"""What an asynchronous call gives: a work, its future, its time-out; many of them at once."""

import datetime

import pytest
import torch
import torch.distributed as dist

from backend import (
    WORLD_SIZE,
    conforms,
    here,
    mine,
    need,
    numbers,
    of_all,
    reduced,
    same,
)
from harness import DEVICE, synchronize

COUNT = 1001


def blanks(number=WORLD_SIZE):
    return [torch.zeros(COUNT, device=DEVICE) for _ in range(number)]


def _all_reduce(rank):
    tensor = mine(rank, COUNT)
    return dist.all_reduce(tensor, async_op=True), [tensor], [reduced("SUM", of_all(COUNT))]


def _broadcast(rank):
    tensor = mine(rank, COUNT)
    return dist.broadcast(tensor, src=1, async_op=True), [tensor], [numbers(1, COUNT)]


def _reduce(rank):
    tensor = mine(rank, COUNT)
    work = dist.reduce(tensor, dst=0, async_op=True)
    return (work, [tensor], [reduced("SUM", of_all(COUNT))]) if rank == 0 else (work, [], [])


def _all_gather(rank):
    outputs = blanks()
    work = dist.all_gather(outputs, mine(rank, COUNT), async_op=True)
    return work, outputs, of_all(COUNT)


def _all_gather_into_tensor(rank):
    output = torch.zeros(WORLD_SIZE * COUNT, device=DEVICE)
    work = dist.all_gather_into_tensor(output, mine(rank, COUNT), async_op=True)
    return work, [output], [torch.cat(of_all(COUNT))]


def _gather(rank):
    outputs = blanks() if rank == 0 else None
    work = dist.gather(mine(rank, COUNT), outputs, dst=0, async_op=True)
    return (work, outputs, of_all(COUNT)) if rank == 0 else (work, [], [])


def _scatter(rank):
    output = torch.zeros(COUNT, device=DEVICE)
    inputs = [here(n) for n in of_all(COUNT)] if rank == 0 else None
    return dist.scatter(output, inputs, src=0, async_op=True), [output], [numbers(rank, COUNT)]


def _reduce_scatter(rank):
    output = torch.zeros(COUNT, device=DEVICE)
    inputs = [mine(rank, COUNT, salt=taker) for taker in range(WORLD_SIZE)]
    work = dist.reduce_scatter(output, inputs, async_op=True)
    return work, [output], [reduced("SUM", of_all(COUNT, salt=rank))]


def _reduce_scatter_tensor(rank):
    output = torch.zeros(COUNT, device=DEVICE)
    parts = [mine(rank, COUNT, salt=taker) for taker in range(WORLD_SIZE)]
    work = dist.reduce_scatter_tensor(output, torch.cat(parts), async_op=True)
    return work, [output], [reduced("SUM", of_all(COUNT, salt=rank))]


def _all_to_all(rank):
    outputs = blanks()
    inputs = [mine(rank, COUNT, salt=taker) for taker in range(WORLD_SIZE)]
    return dist.all_to_all(outputs, inputs, async_op=True), outputs, of_all(COUNT, salt=rank)


def _all_to_all_single(rank):
    output = torch.zeros(WORLD_SIZE * COUNT, device=DEVICE)
    parts = [mine(rank, COUNT, salt=taker) for taker in range(WORLD_SIZE)]
    work = dist.all_to_all_single(output, torch.cat(parts), async_op=True)
    return work, [output], [torch.cat(of_all(COUNT, salt=rank))]


def _barrier(rank):
    return dist.barrier(async_op=True), [], []


STARTS = [_all_reduce, _broadcast, _reduce, _all_gather, _all_gather_into_tensor, _gather]
STARTS += [_scatter, _reduce_scatter, _reduce_scatter_tensor, _all_to_all, _all_to_all_single]
STARTS += [_barrier]
of_each_call = pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__[1:])


def need_the_call_of(start) -> None:
    if start is _all_to_all:
        need("all_to_all of lists")


def finishes(rank, start):
    work, outputs, expected = start(rank)
    assert isinstance(work, dist.Work)
    assert work.wait() is not False
    same(outputs, expected)
    synchronize()
    assert work.is_completed()
    work.wait()  # a second time


@of_each_call
def test_wait_of_each_collective(start):
    need_the_call_of(start)
    conforms(finishes, start)


def finishes_in_time(rank, start):
    work, outputs, expected = start(rank)
    work.wait(datetime.timedelta(seconds=20))
    same(outputs, expected)


@of_each_call
def test_wait_with_a_time_limit(start):
    need_the_call_of(start)
    conforms(finishes_in_time, start)


def has_a_future(rank, start):
    work, outputs, expected = start(rank)
    future = work.get_future()
    value = future.wait()
    same(outputs, expected, "the outputs")
    if outputs:
        flat = [t for v in value for t in (v if isinstance(v, (list, tuple)) else [v])]
        same(torch.cat(flat), torch.cat(expected), "the future's value")
    assert future.done()
    work.wait()


@pytest.mark.parametrize("start", STARTS[:-1], ids=lambda start: start.__name__[1:])
def test_future_of_each_collective_has_its_outputs(start):
    need_the_call_of(start)
    conforms(has_a_future, start)


def chains(rank):
    future = dist.all_reduce(mine(rank, COUNT), async_op=True).get_future()
    doubled = future.then(lambda done: [tensor * 2 for tensor in done.value()])
    more = doubled.then(lambda done: done.value()[0] + 1)
    same(more.wait(), reduced("SUM", of_all(COUNT)) * 2 + 1)


def test_futures_chain():
    conforms(chains)


def raise_in_callback(done):
    raise ArithmeticError("of the callback")


def callback_fails(rank):
    future = dist.all_reduce(mine(rank, COUNT), async_op=True).get_future()
    with pytest.raises((ArithmeticError, RuntimeError), match="of the callback"):
        future.then(raise_in_callback).wait()
    again = mine(rank, COUNT)
    dist.all_reduce(again)
    same(again, reduced("SUM", of_all(COUNT)))


def test_an_error_in_a_callback_reaches_its_future():
    conforms(callback_fails)


def is_not_done_early(rank, path):
    """Rank 0 comes when the calls of all others have returned."""
    store = dist.FileStore(path, WORLD_SIZE)
    tensor = mine(rank, COUNT)
    if rank == 0:
        others = [f"rank {peer} goes on" for peer in range(1, WORLD_SIZE)]
        store.wait(others, datetime.timedelta(seconds=20))
        dist.all_reduce(tensor)
    else:
        work = dist.all_reduce(tensor, async_op=True)
        early = work.is_completed()
        store.set(f"rank {rank} goes on", "")
        work.wait()
        assert not early, "rank 0 had not come"
    same(tensor, reduced("SUM", of_all(COUNT)))


def test_an_asynchronous_call_does_not_wait_for_other_ranks(tmp_path):
    conforms(is_not_done_early, str(tmp_path / "store"))


def many_at_once(rank, kind):
    tensors, works = [], []
    for number in range(300):
        tensors.append(mine(rank, 1 + number % 17, salt=number))
        if kind == "all_reduce":
            works.append(dist.all_reduce(tensors[-1], async_op=True))
        else:
            works.append(dist.broadcast(tensors[-1], src=number % WORLD_SIZE, async_op=True))
    for work in reversed(works):
        work.wait()
    for number, tensor in enumerate(tensors):
        count = 1 + number % 17
        if kind == "all_reduce":
            same(tensor, reduced("SUM", of_all(count, salt=number)), f"{number}")
        else:
            same(tensor, numbers(number % WORLD_SIZE, count, salt=number), f"{number}")


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_many_collectives_waited_for_in_any_order(kind):
    conforms(many_at_once, kind)


def all_kinds_at_once(rank):
    started = [start(rank) for _ in range(4) for start in STARTS]
    for number, (work, outputs, expected) in reversed(list(enumerate(started))):
        work.wait()
        same(outputs, expected, f"{number}")


def test_collectives_of_all_kinds_at_once():
    need_the_call_of(_all_to_all)
    conforms(all_kinds_at_once)


def forgets_works(rank):
    tensors = [mine(rank, COUNT, salt=number) for number in range(20)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)  # the work is dropped
    dist.barrier()
    dist.all_reduce(last := mine(rank, COUNT))
    same(last, reduced("SUM", of_all(COUNT)))
    if DEVICE == "cuda":
        synchronize()
        same(tensors, [reduced("SUM", of_all(COUNT, salt=number)) for number in range(20)])


def test_works_that_nobody_keeps():
    conforms(forgets_works)


def inputs_may_go(rank):
    """The work keeps what it reads and writes, as PyTorch's own backends do."""
    works = []
    for number in range(20):
        output = torch.zeros(WORLD_SIZE * 20000, device=DEVICE)
        given = mine(rank, 20000, salt=number)
        works.append((dist.all_gather_into_tensor(output, given, async_op=True), output))
        del given
        torch.full((20000,), -1.0, device=DEVICE)  # takes the memory of what has gone
    for number, (work, output) in enumerate(works):
        work.wait()
        same(output, torch.cat(of_all(20000, salt=number)), f"{number}")


def test_inputs_that_the_caller_drops():
    conforms(inputs_may_go)
