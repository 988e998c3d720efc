"""The hook of ended operations, and waiting for those that are pending, as ProcessGroupNCCL has
them: ProcessGroup._register_on_completion_hook, _wait_for_pending_works, _has_hooks."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType

from errors import CALL_ERRORS, message_of, unsaid
from harness import DEVICE, ON_CUDA, check, new_group_in_order, run_ranks, synchronize

pytestmark = pytest.mark.timeout(60)

LISTS = {2: [[0, 1], [1, 0]], 4: [[0, 2], [1, 3], [3, 0, 1]]}


def issue_one_of_each(group, ranks, rank):
    """The types of the collectives, in order, and of the messages, alone and in a batch."""
    me, size = ranks.index(rank), len(ranks)
    one, parts = torch.ones(6, device=DEVICE), torch.zeros(size, 6, device=DEVICE)
    after, before = ranks[(me + 1) % size], ranks[me - 1]
    dist.all_reduce(one, group=group)
    dist.broadcast(one, ranks[-1], group=group)
    dist.all_gather_into_tensor(parts, one, group=group)
    works = [dist.all_reduce(one, group=group, async_op=True) for _ in range(3)]
    works += [
        dist.reduce_scatter_tensor(one, parts, group=group, async_op=True),
        dist.isend(parts[0], after, group=group),
        dist.irecv(parts[1], before, group=group),
    ]
    for work in works:
        work.wait()
    types = [OpType.ALLREDUCE, OpType.BROADCAST, OpType._ALLGATHER_BASE]
    types += [OpType.ALLREDUCE] * 3 + [OpType._REDUCE_SCATTER_BASE]
    dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, parts[0], after, group),
            dist.P2POp(dist.irecv, parts[1], before, group),
        ]
    )
    return types, [OpType.SEND, OpType.RECV]


def told(rank, lists):
    problems = []
    for ranks in lists:
        group, ranks = new_group_in_order(ranks)
        if rank not in ranks:
            continue
        if group._has_hooks():
            problems.append("a hook before one was given")
        dist.all_reduce(torch.ones(2, device=DEVICE), group=group)  # before the hook: not told
        records, threads = [], set()

        def hook(record, records=records, threads=threads):
            records.append(record)
            threads.add(threading.get_native_id())

        begin = datetime.datetime.now()
        group._register_on_completion_hook(hook)
        if not group._has_hooks():
            problems.append("no hook after one was given")
        collectives, messages = issue_one_of_each(group, ranks, rank)
        group._wait_for_pending_works()
        got = [r.op_type for r in records if r.op_type not in (*messages, OpType.COALESCED)]
        if got != collectives:
            problems.append(f"{ranks}: collectives {collectives}, told of {got}")
        # A batch is one operation on a GPU.
        counts = [len([r for r in records if r.op_type == type_]) for type_ in messages]
        if counts != ([1, 1] if ON_CUDA else [2, 2]):
            problems.append(f"{ranks}: told of {counts} sends and recvs")
        sequence = [r.seq for r in records if r.op_type in collectives]
        if sequence != list(range(2, 2 + len(collectives))):
            problems.append(f"{ranks}: sequence numbers {sequence}")
        for record in records:
            spent = record.time_finished - record.time_started
            if spent < datetime.timedelta(0) or record.active_duration < datetime.timedelta(0):
                problems.append(f"{record.op_type}: took {spent}, {record.active_duration}")
        if len(threads) != 1 or threading.get_native_id() in threads:
            problems.append(f"{ranks}: told on threads {threads}")
        if datetime.datetime.now() - begin > datetime.timedelta(seconds=20):
            problems.append("something waited for a time-out")
        dist.barrier(group)
        dist.destroy_process_group(group)
    return problems


@pytest.mark.parametrize("world_size", LISTS)
def test_each_operation_is_told_once(world_size):
    check(told, world_size, LISTS[world_size], fresh=True)


def slow_hook(rank):
    """Waiting waits for the hook as well, and operations do not wait for it."""
    group, told_of, problems = dist.new_group(), [], []

    def hook(record):
        time.sleep(0.05)
        told_of.append(record.seq)

    group._register_on_completion_hook(hook)
    one = torch.ones(4, device=DEVICE)
    begin = time.monotonic()
    for _ in range(8):
        dist.all_reduce(one, group=group)
    spent = time.monotonic() - begin
    if not ON_CUDA and spent > 0.3:  # without waiting for a hook of 0.4 s
        problems.append(f"8 all_reduces took {spent} s")
    group._wait_for_pending_works()
    if told_of != list(range(1, 9)):
        problems.append(f"told of {told_of}")
    dist.destroy_process_group(group)
    return problems


def test_waiting_waits_for_the_hook():
    check(slow_hook, 2, fresh=True)


def without_hook(rank):
    """What was issued has ended; the last rank comes late."""
    problems, size = [], dist.get_world_size()
    group = dist.new_group()
    if rank == size - 1:
        time.sleep(0.3)
    values = torch.full((8,), rank + 1.0, device=DEVICE)
    got = torch.zeros(8, device=DEVICE)
    works = [
        dist.all_reduce(values, group=group, async_op=True),
        dist.isend(torch.full((8,), float(rank), device=DEVICE), (rank + 1) % size, group=group),
        dist.irecv(got, (rank - 1) % size, group=group),
    ]
    group._wait_for_pending_works()
    if not all(work.is_completed() for work in works):
        problems.append("an operation is pending after the wait")
    if values.tolist() != [sum(range(1, size + 1))] * 8 or got.tolist() != [(rank - 1) % size] * 8:
        problems.append(f"{values.tolist()}, {got.tolist()}")
    group._wait_for_pending_works()  # nothing is pending
    synchronize()
    dist.destroy_process_group(group)
    return problems


def test_waiting_without_a_hook():
    check(without_hook, 3, fresh=True)


def mistakes(rank):
    problems, inside = [], []
    group = dist.new_group()

    def hook(record):
        inside.append(message_of(CALL_ERRORS, group._wait_for_pending_works))
        raise RuntimeError("this hook fails")

    group._register_on_completion_hook(hook)
    refused = message_of(CALL_ERRORS, group._register_on_completion_hook, print)
    problems += unsaid(refused, ["ValueError", "hook: expected one for the group"])
    for _ in range(2):  # a hook that raises ends nothing
        dist.all_reduce(torch.ones(2, device=DEVICE), group=group)
        # Never made, so it has not ended.
        of_integers = dist.ReduceOp.BAND
        message_of(CALL_ERRORS, dist.all_reduce, torch.ones(2, device=DEVICE), of_integers, group)
    group._wait_for_pending_works()
    if len(inside) != 2:
        problems.append(f"told of {len(inside)} operations in place of 2")
    problems += [line for text in inside for line in unsaid(text, ["outside of the completion"])]
    dist.destroy_process_group(group)
    late = message_of(CALL_ERRORS, group._wait_for_pending_works)
    return problems + unsaid(late, ["was destroyed"])


def test_mistakes():
    check(mistakes, 2, fresh=True)


def failed(rank):
    """An operation that fails has ended, and waiting for it raises nothing."""
    told_of = []
    dist.group.WORLD._register_on_completion_hook(lambda record: told_of.append(record.op_type))
    if rank == 1:
        time.sleep(3)
        return []
    work = dist.all_reduce(torch.ones(4), async_op=True)
    dist.group.WORLD._wait_for_pending_works()
    problems = [] if told_of == [OpType.ALLREDUCE] else [f"told of {told_of}"]
    return problems + unsaid(message_of(CALL_ERRORS, work.wait), ["Timed out"])


@pytest.mark.cpu("on a GPU a failure is seen by the group's next call")
def test_failed_operations_are_told():
    results = run_ranks(failed, 2, timeout=1.0)
    assert results == [[], []]


def dropped_with_a_hook(rank):
    """The process ends with the hook at work and nothing destroyed."""
    group = dist.new_group()
    group._register_on_completion_hook(lambda record: time.sleep(0.02))
    for _ in range(20):
        dist.all_reduce(torch.ones(4, device=DEVICE), group=group)
    return []


def test_the_process_ends_while_a_hook_runs():
    check(dropped_with_a_hook, 2, fresh=True)
