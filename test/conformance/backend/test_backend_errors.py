"""Mistakes and absences: what raises, of which type, how soon, and what works afterwards."""

import contextlib
import datetime
import os
import time

import pytest
import torch
import torch.distributed as dist

from backend import (
    NAME,
    WORLD_SIZE,
    conforms,
    conforms_alone,
    join,
    mine,
    need,
    need_cuda,
    of_all,
    reduced,
    same,
    still_works,
    within,
)
from harness import DEVICE, ON_CUDA, synchronize

ERRORS = (RuntimeError, ValueError, TypeError)  # NotImplementedError is a RuntimeError


def ones(*shape, dtype=torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=DEVICE)


def listed(*shape, dtype=torch.float32) -> list[torch.Tensor]:
    return [ones(*shape, dtype=dtype) for _ in range(WORLD_SIZE)]


def halves(*shape) -> list[torch.Tensor]:
    """A list whose last tensor has another dtype than the others."""
    return [*listed(*shape)[:-1], ones(*shape, dtype=torch.float16)]


HALF = torch.float16

# Every rank makes the same mistake, which it can see by itself. By name: (call, types of errors).
MISTAKES = {
    "all_reduce of a list": (lambda me: dist.all_reduce([ones(3)]), TypeError),
    "all_reduce of a number": (lambda me: dist.all_reduce(3.0), TypeError),
    "broadcast from no rank": (lambda me: dist.broadcast(ones(3), WORLD_SIZE), ERRORS),
    "broadcast from a negative rank": (lambda me: dist.broadcast(ones(3), -1), ERRORS),
    "reduce to no rank": (lambda me: dist.reduce(ones(3), WORLD_SIZE), ERRORS),
    "reduce to a negative rank": (lambda me: dist.reduce(ones(3), -1), ERRORS),
    "gather to no rank": (lambda me: dist.gather(ones(3), None, WORLD_SIZE), ERRORS),
    "scatter from no rank": (lambda me: dist.scatter(ones(3), None, WORLD_SIZE), ERRORS),
    "all_gather to an empty list": (lambda me: dist.all_gather([], ones(3)), ERRORS),
    "all_gather to a short list": (lambda me: dist.all_gather(listed(3)[1:], ones(3)), ERRORS),
    "all_gather to a long list": (lambda me: dist.all_gather(listed(3) * 2, ones(3)), ERRORS),
    "all_gather to other sizes": (lambda me: dist.all_gather(listed(5), ones(3)), ERRORS),
    "all_gather to another dtype": (
        lambda me: dist.all_gather(listed(3, dtype=HALF), ones(3)),
        ERRORS,
    ),
    "all_gather to two dtypes": (lambda me: dist.all_gather(halves(3), ones(3)), ERRORS),
    "all_gather to no tensors": (
        lambda me: dist.all_gather([1.0] * WORLD_SIZE, ones(3)),
        TypeError,
    ),
    "all_gather into a wrong size": (
        lambda me: dist.all_gather_into_tensor(ones(3 * WORLD_SIZE + 1), ones(3)),
        ERRORS,
    ),
    "all_gather into another dtype": (
        lambda me: dist.all_gather_into_tensor(ones(3 * WORLD_SIZE, dtype=HALF), ones(3)),
        ERRORS,
    ),
    "gather to a short list": (lambda me: dist.gather(ones(3), listed(3)[1:], me), ERRORS),
    "gather to two dtypes": (lambda me: dist.gather(ones(3), halves(3), me), ERRORS),
    "gather to other sizes": (lambda me: dist.gather(ones(3), listed(5), me), ERRORS),
    "scatter of a long list": (lambda me: dist.scatter(ones(3), listed(3) * 2, me), ERRORS),
    "scatter of two dtypes": (lambda me: dist.scatter(ones(3), halves(3), me), ERRORS),
    "scatter of other sizes": (lambda me: dist.scatter(ones(3), listed(5), me), ERRORS),
    "reduce_scatter of a short list": (
        lambda me: dist.reduce_scatter(ones(3), listed(3)[1:]),
        ERRORS,
    ),
    "reduce_scatter of two dtypes": (lambda me: dist.reduce_scatter(ones(3), halves(3)), ERRORS),
    "reduce_scatter of another size": (lambda me: dist.reduce_scatter(ones(3), listed(5)), ERRORS),
    "reduce_scatter_tensor of a wrong size": (
        lambda me: dist.reduce_scatter_tensor(ones(3), ones(3 * WORLD_SIZE + 1)),
        ERRORS,
    ),
    "reduce_scatter_tensor of another dtype": (
        lambda me: dist.reduce_scatter_tensor(ones(3), ones(3 * WORLD_SIZE, dtype=HALF)),
        ERRORS,
    ),
    "all_to_all of a short list": (lambda me: dist.all_to_all(listed(3), listed(3)[1:]), ERRORS),
    "all_to_all of two dtypes": (lambda me: dist.all_to_all(listed(3), halves(3)), ERRORS),
    "all_to_all_single of another dtype": (
        lambda me: dist.all_to_all_single(ones(4 * WORLD_SIZE, dtype=HALF), ones(4 * WORLD_SIZE)),
        ERRORS,
    ),
    "all_to_all_single that does not divide": (
        lambda me: dist.all_to_all_single(ones(WORLD_SIZE + 1), ones(WORLD_SIZE + 1)),
        ERRORS,
    ),
    "all_to_all_single with wrong input splits": (
        lambda me: dist.all_to_all_single(ones(4), ones(4), None, [3] * WORLD_SIZE),
        ERRORS,
    ),
    "all_to_all_single with too many splits": (
        lambda me: dist.all_to_all_single(ones(4), ones(4), None, [4] + [0] * WORLD_SIZE),
        ERRORS,
    ),
    "all_reduce_coalesced of two dtypes": (
        lambda me: dist.all_reduce_coalesced([ones(3), ones(3, dtype=HALF)]),
        ERRORS,
    ),
    "bitwise operation on floats": (
        lambda me: dist.all_reduce(ones(3), op=dist.ReduceOp.BAND),
        ERRORS,
    ),
    "no operation": (lambda me: dist.all_reduce(ones(3), op="sum"), ERRORS),
    "send to no rank": (lambda me: dist.send(ones(3), WORLD_SIZE), ERRORS),
    "send of no tensor": (lambda me: dist.send([1.0], (me + 1) % WORLD_SIZE), TypeError),
    "recv to integers' list": (lambda me: dist.recv([1], (me + 1) % WORLD_SIZE), TypeError),
    "isend and irecv without a list": (
        lambda me: dist.batch_isend_irecv(dist.P2POp(dist.isend, ones(3), 0)),
        ERRORS,
    ),
}


def is_refused(rank, mistake):
    call, errors = MISTAKES[mistake]
    with within(10), pytest.raises(errors):
        call(rank)
    still_works(rank)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_all_ranks_raises_and_the_group_works_on(mistake):
    conforms(is_refused, mistake)


def takes_no_tensors_of_elsewhere(rank):
    elsewhere = torch.ones(3)
    for call in (
        lambda: dist.all_gather([elsewhere] * WORLD_SIZE, ones(3)),
        lambda: dist.all_gather_into_tensor(elsewhere.repeat(WORLD_SIZE), ones(3)),
        lambda: dist.reduce_scatter_tensor(elsewhere, ones(3 * WORLD_SIZE)),
    ):
        with pytest.raises(ERRORS):
            call()
    still_works(rank)


def test_tensors_of_two_devices_in_one_call():
    need_cuda("a second device")
    conforms(takes_no_tensors_of_elsewhere)


# -- Ranks that disagree --------------------------------------------------------------------------

SLOW = 12.0  # seconds, by which an error of a group of 3 s has to be there


def calls_another_collective(rank, kind):
    def call():
        if kind == "collectives" and rank == 1:
            dist.all_gather(listed(3), ones(3))
        elif kind == "sizes":
            dist.all_reduce(ones(3 + rank))
        elif kind == "dtypes":
            dist.all_reduce(ones(4, dtype=torch.float32 if rank else torch.float64))
        else:
            dist.all_reduce(ones(3))

    with within(SLOW), pytest.raises(RuntimeError):
        call()


def joins_and_disagrees(rank, path, kind):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    join(rank, 2, dist.FileStore(path, 2), timeout=3.0)
    tensor = mine(rank, 4)
    dist.all_reduce(tensor)
    same(tensor, reduced("SUM", of_all(4, ranks=range(2))), "what both ranks called")
    calls_another_collective(rank, kind)


@pytest.mark.parametrize("kind", ["collectives", "sizes", "dtypes"])
def test_debug_detail_finds_calls_that_differ(kind):
    conforms_alone(joins_and_disagrees, 2, kind)


# -- Ranks that do not come -----------------------------------------------------------------------

CALLS = {
    "all_reduce": lambda: dist.all_reduce(ones(3)),
    "broadcast": lambda: dist.broadcast(ones(3), src=1),
    "all_gather": lambda: dist.all_gather([ones(3), ones(3)], ones(3)),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(ones(3), ones(6)),
    "all_to_all": lambda: dist.all_to_all_single(ones(4), ones(4)),
    "barrier": lambda: dist.barrier(),
    "recv": lambda: dist.recv(ones(3), src=1),
    "all_gather_object": lambda: dist.all_gather_object([None, None], "me"),
}


def fails_in_time(call) -> None:
    """On a GPU, where a call returns before it has run, its failure is raised by the next one."""
    with within(SLOW):
        if ON_CUDA:
            with contextlib.suppress(RuntimeError):  # a call that the host waits for raises itself
                call()
            synchronize()
        with pytest.raises(RuntimeError):
            call()


def waits_in_vain(rank, path, call):
    join(rank, 2, dist.FileStore(path, 2), timeout=1.0)
    dist.all_reduce(ones(3))
    store = dist.FileStore(path + "_ends", 2)
    if rank == 1:
        store.wait(["rank 0 has raised"], datetime.timedelta(seconds=30))
        return
    try:
        fails_in_time(CALLS[call])
    finally:
        store.set("rank 0 has raised", "")


@pytest.mark.parametrize("call", CALLS)
def test_a_collective_whose_other_rank_does_not_come_raises(call):
    need("time-outs that raise")
    conforms_alone(waits_in_vain, 2, call)


def waits_shortly(rank, path, way):
    """The limit of one work, or of one group, which is shorter than that of the default group."""
    join(rank, 2, dist.FileStore(path, 2), timeout=60.0)
    limit = datetime.timedelta(seconds=1)
    group = dist.new_group([0, 1], timeout=limit) if way == "group" else None
    dist.all_reduce(ones(3), group=group)
    store = dist.FileStore(path + "_ends", 2)
    if rank == 1:
        store.wait(["rank 0 has raised"], datetime.timedelta(seconds=30))
        return
    calls = {
        "group": lambda: dist.all_reduce(ones(3), group=group),
        "wait": lambda: dist.all_reduce(ones(3), async_op=True).wait(limit),
        "monitored_barrier": lambda: dist.monitored_barrier(timeout=limit),
    }
    try:
        if way == "group":
            fails_in_time(calls[way])
        else:
            with within(SLOW), pytest.raises(RuntimeError):
                calls[way]()
    finally:
        store.set("rank 0 has raised", "")


@pytest.mark.parametrize("way", ["group", "wait", "monitored_barrier"])
def test_time_limits_of_their_own(way):
    need("time-outs that raise")
    if way == "monitored_barrier":
        need("monitored_barrier")
    conforms_alone(waits_shortly, 2, way)


def joins_without_the_other(rank, path, way):
    def begin():
        if way == "tcp":
            join(0, 2, init_method="tcp://127.0.0.1:0", rank=0, world_size=2, timeout=1.0)
        else:
            join(0, 2, dist.FileStore(path, 2), timeout=1.0)
        dist.all_reduce(ones(3))

    start = time.monotonic()
    with within(SLOW), pytest.raises(RuntimeError):
        begin()
    assert time.monotonic() - start > 0.8, "raised before its time"


@pytest.mark.parametrize("way", ["tcp", "file"])
def test_init_of_a_rank_whose_other_does_not_come(way):
    if way == "file":
        need("time-outs that raise")
    conforms_alone(joins_without_the_other, 1, way)


def go_on_for_ever():
    while True:
        dist.all_reduce(ones(3))


def loses_the_other(rank, path):
    join(rank, 2, dist.FileStore(path, 2), timeout=20.0)
    dist.all_reduce(ones(3))
    if rank == 1:
        return
    with within(SLOW), pytest.raises(RuntimeError):
        go_on_for_ever()


def test_a_rank_that_has_ended_is_noticed_before_the_time_limit():
    need("time-outs that raise")
    conforms_alone(loses_the_other, 2)


def stores_time_out(rank, path):
    store = dist.TCPStore("127.0.0.1", 0, 1, True, datetime.timedelta(seconds=1))
    with within(SLOW), pytest.raises(RuntimeError):
        store.get("what nobody sets")
    join(0, 1, store)
    dist.all_reduce(ones(3))
    assert dist.get_backend() == NAME
    dist.destroy_process_group()


def test_a_store_that_timed_out_serves_a_group():
    conforms_alone(stores_time_out, 1)


def names_what_there_is_not(rank, path):
    with pytest.raises((ValueError, AssertionError, RuntimeError)):
        dist.init_process_group("no such backend", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises((ValueError, RuntimeError)):
        dist.all_reduce(ones(3))
    with pytest.raises((ValueError, RuntimeError)):
        dist.init_process_group(NAME, init_method="nowhere://", rank=0, world_size=1)
    join(0, 1, dist.HashStore())
    with pytest.raises(ValueError, match="twice"):
        join(0, 1, dist.HashStore())
    dist.destroy_process_group()
    with pytest.raises((ValueError, AssertionError, RuntimeError)):
        dist.destroy_process_group()


def test_init_refuses_what_is_not_there():
    conforms_alone(names_what_there_is_not, 1)
