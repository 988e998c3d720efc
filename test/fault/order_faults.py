"""Groups used in another order by each rank: from two threads, asynchronously, on two streams, and
from one thread, where it cannot work."""

import contextlib
import datetime
import itertools
import random
import threading
import time

import torch
import torch.distributed as dist

import model
from harness import DEVICE, IS_SYMM, ON_CUDA, WORLD_SIZE, crowded, synchronize, use_device
from misuse_faults import judged
from rank_processes import start_ranks
from trials import Ending, Trial, fresh_setup, judge

WORLD = min(3, WORLD_SIZE)
CALLS = 10 if crowded(WORLD) else 60
TIMEOUT = 1.0
HANG = 5.0


def _stream():
    """Threads that share a stream share its order."""
    return torch.cuda.stream(torch.cuda.Stream()) if ON_CUDA else contextlib.nullcontext()


def _start(group, rank, count, salt, async_op):
    """(work, tensor, expected)"""
    every = [model.make_input(torch.float32, count, r, salt) for r in range(WORLD)]
    tensor = every[rank].to(DEVICE, copy=True)
    work = dist.all_reduce(tensor, group=group, async_op=async_op)
    return work, tensor, model.reduced(every, "SUM")


def _check(started, label):
    work, tensor, expected = started
    if work is not None:
        work.wait()
    if ON_CUDA:
        # While a copy to pageable memory waits for its stream, those of other threads stand still.
        torch.cuda.current_stream().synchronize()
    return model.mismatch(label, tensor, expected, exact=IS_SYMM)


def _in_turns(groups, rank, rng):
    """(group index, count, salt): every rank makes the same calls of a group in the same order, and
    mixes the groups as it likes."""
    left = [
        [(g, 1 + call * 331 % 70_000, call) for call in range(CALLS)] for g in range(len(groups))
    ]
    while any(left):
        queue = rng.choice([queue for queue in left if queue])
        yield queue.pop(0)


def threads_of_their_own(rank, groups, rng):
    """A thread a group, all at once."""
    problems = [[] for _ in groups]

    def use(index):
        use_device(rank)
        with _stream():
            for call in range(CALLS):
                started = _start(groups[index], rank, 1 + call * 331, call, False)
                problems[index] += _check(started, f"group {index} call {call}")

    threads = [threading.Thread(target=use, args=(index,)) for index in range(len(groups))]
    rng.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(itertools.chain.from_iterable(problems))


def asynchronously(rank, groups, rng):
    """One thread, all calls in flight, mixed and waited for in another order on each rank. On a GPU
    the first call of a group is a meeting (docs/gpu.md, First use)."""
    if ON_CUDA:
        for group in groups:
            dist.all_reduce(torch.ones(1, device=DEVICE), group=group)
    started = []
    for index, count, salt in _in_turns(groups, rank, rng):
        with _stream() if rng.random() < 0.1 else contextlib.nullcontext():
            started.append((_start(groups[index], rank, count, salt, True), f"{index} {salt}"))
    rng.shuffle(started)
    return [line for call, label in started for line in _check(call, label)]


def from_side_threads(rank, groups, rng):
    """Each call from a new thread, one after the other, and waited for in yet another one."""
    problems = []

    def run(body):
        thread = threading.Thread(target=lambda: (use_device(rank), body()))
        thread.start()
        thread.join()

    for call in range(CALLS // 4):
        for group in groups:
            box = []
            run(
                lambda group=group, box=box, call=call: box.append(
                    _start(group, rank, 1 + call * 331, call, bool(call % 2))
                )
            )
            run(lambda box=box, call=call: problems.extend(_check(box[0], f"call {call}")))
            run(synchronize)
    return problems


FORMS = [threads_of_their_own, asynchronously, from_side_threads]


def _wait_crosswise(rank, setup):
    """Synchronous calls of two groups in opposite orders, which wait for each other."""
    torch.set_num_threads(1)
    setup.join(rank)
    limit = datetime.timedelta(seconds=TIMEOUT)
    groups = [dist.new_group(list(range(WORLD)), timeout=limit) for _ in range(2)]
    for group in groups:  # the first use of a device may take longer
        dist.all_reduce(torch.ones(10, device=DEVICE), group=group)
    synchronize()
    dist.barrier()
    started = time.monotonic()
    try:
        in_order = groups[::-1] if rank == 0 else groups
        for group in in_order:
            dist.all_reduce(torch.ones(10, device=DEVICE), group=group)
            synchronize()
        # First in the group whose call gave up: one that gives up first may meet the other's call
        # in the other group yet.
        for group in in_order:
            dist.barrier(group=group)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Ending(0, 0, started, time.monotonic(), text)
    return Ending(2, 0, started, time.monotonic())


def _crosswise() -> Trial:
    """Ends at the time-out, with who waits for whom."""
    with fresh_setup(WORLD) as setup:
        reports = start_ranks(_wait_crosswise, WORLD, (setup,)).finish(TIMEOUT + 4 * HANG)
    trial = judge(reports, None, "all_reduce", 0.0, limit=float("inf"))
    endings = [r.value for r in reports if isinstance(r.value, Ending)]
    trial.seconds = [ending.ended - ending.started for ending in endings]
    if any(took > TIMEOUT + 1 for took in trial.seconds):
        trial.passed = False
        trial.detail += f"\nraised after {trial.seconds}"
    return trial


def opposite_orders(index: int) -> Trial:
    form = index % (len(FORMS) + 1)
    if form == len(FORMS):
        return _crosswise()

    def body(rank):
        rng = random.Random(index * WORLD + rank)
        groups = [dist.new_group(list(range(WORLD))) for _ in range(2 + index % 3)]
        problems = FORMS[form](rank, groups, rng)
        for group in groups:
            dist.destroy_process_group(group)
        return problems

    return judged(body, WORLD, FORMS[form].__name__)
