"""Injections again and again into the same processes, or over the same machine: groups rebuilt
after errors, every rank killed, thousands of groups. Nothing of them may stay."""

import datetime
import os
import resource
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from harness import BACKEND, DEVICE, ON_CUDA, Setup, resources, synchronize, use_device
from rank_processes import describe, start_ranks
from trials import (
    COLLECTIVES,
    LONG,
    Progress,
    Trial,
    fresh_setup,
    loop,
    settle,
    what_is_missing,
)

HANG = 30.0  # a cycle that takes longer has hung
MIB = 1 << 20


def held() -> dict[str, int]:
    """What this process holds: resources() and its memory."""
    pages = Path("/proc/self/statm").read_text().split()
    size = resource.getpagesize()
    memory = {"address_space": int(pages[0]) * size, "resident": int(pages[1]) * size}
    return resources() | memory


# By how much each may differ at the end. A thread's arena or stack comes and goes with all of its
# address space, and the heap maps a few areas of its own.
SLACK = {"descriptors": 0, "threads": 0, "mappings": 16, "address_space": 80 * MIB}
SLACK |= {"resident": 8 * MIB}
if ON_CUDA:  # the driver maps areas and keeps memory of its own accord
    SLACK |= {"mappings": 64, "address_space": 1024 * MIB, "resident": 64 * MIB}


def growth(before: dict, after: dict) -> tuple[dict, list[str]]:
    """({what: by how much it grew}, a line for each that grew too much)."""
    grown = {what: after[what] - before[what] for what in before}
    lines = [
        f"{what} grew by {by}, from {before[what]} to {after[what]}"
        for what, by in grown.items()
        if by > SLACK[what]
    ]
    return grown, lines


def most(dicts: list[dict]) -> dict:
    return {key: max(each[key] for each in dicts) for key in dicts[0]}


# Errors after which the group is made again, with the words that the survivors' must have. Rank 2
# is a process of its own in each cycle.
ERRORS = {
    "kill": [r"rank 2\b"],
    "abort": ["abort"],
    "timeout": [r"rank 2\b", "Timed out"],
    "mismatch": [r"rank 2\b", "count"],
}
SHORT = datetime.timedelta(seconds=0.2)


def _use(rank, world):
    """Each kind of memory and thread that a group has: slots, workspace, queue, messages."""
    for word in ("all_reduce", "all_reduce ", "send|recv"):
        for count in (30, 200_000):
            if not COLLECTIVES[word](rank, world, count, 1):
                raise AssertionError(f"a wrong {word} of {count} elements")
    settle()


def _call(count=40, timeout=None):
    options = dist.AllreduceOptions()
    if timeout is not None:
        options.timeout = timeout
    dist.group.WORLD.allreduce([torch.ones(count, device=DEVICE)], options).wait()
    settle()


def _fail(kind, rank) -> None:
    """This rank's part of an error of that kind. Ends by raising it."""
    dist.barrier()  # nobody is in a call that came before
    if kind == "kill" and rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "abort" and rank == 0:
        dist.group.WORLD._get_backend(torch.device(DEVICE)).abort()
    if kind == "timeout" and rank == 2:
        time.sleep(2 * SHORT.total_seconds())
    for _ in range(100_000):
        _call(41 if kind == "mismatch" and rank == 2 else 40, SHORT if kind == "timeout" else None)


def _error_of(kind, rank) -> str | None:
    try:
        _fail(kind, rank)
    except RuntimeError as error:
        return str(error)
    return None


def _join(store, rank, world=3):
    dist.init_process_group(
        BACKEND,
        store=store,
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=LONG),
    )


WARM = 25  # cycles: the allocator's stores, torch's own


def _newcomer(_, path, kind):
    torch.set_num_threads(1)
    use_device(2)
    _join(dist.FileStore(path, -1), 2)
    _use(2, 3)
    _error_of(kind, 2)
    dist.destroy_process_group()


def _survivor(rank, path, progress, kinds):
    torch.set_num_threads(1)
    use_device(rank)
    store = dist.FileStore(path, -1)
    seconds, problems, before, again = [], [], None, time.monotonic()
    for cycle, kind in enumerate(kinds):
        progress.set(rank, cycle + 1)
        _join(store, rank)
        _use(rank, 3)
        seconds.append(time.monotonic() - again)
        missing = what_is_missing(_error_of(kind, rank), ERRORS[kind])
        problems += [f"cycle {cycle}, {kind}: rank {rank}: {missing}"] if missing else []
        again = time.monotonic()
        dist.destroy_process_group()
        synchronize()
        if cycle + 1 == min(WARM, len(kinds) // 2):
            before = held()
    return seconds, problems, before, held()


def rebuilt_after_errors(cycles: int) -> Iterator[Trial]:
    """Ranks 0 and 1 make the group again in the same processes over the same Store, after errors
    of each kind in turn; rank 2 is a fresh process each time."""
    kinds = [list(ERRORS)[cycle % len(ERRORS)] for cycle in range(cycles)]
    progress = Progress(2)
    with fresh_setup(3) as setup:
        ranks = start_ranks(_survivor, 2, (setup.store_path, progress, kinds))
        try:
            for cycle, kind in enumerate(kinds):
                if not progress.wait_for(cycle + 1, HANG):
                    break
                if cycle > 0:
                    yield Trial(True, [])  # what was wrong with it is told at the end
                newcomer = start_ranks(_newcomer, 1, (setup.store_path, kind))
                newcomer.finish(HANG)
        finally:
            reports = ranks.finish(HANG)
    if not all(report.returned for report in reports):
        yield Trial(False, [], describe(reports))
        return
    seconds, problems, grown = [], [], []
    for rank, report in enumerate(reports):
        took, wrong, before, after = report.value
        more, lines = growth(before, after)
        seconds += took[1:]  # the first one follows no error
        problems += wrong + [f"rank {rank}: {line}" for line in lines]
        grown.append(more)
    yield Trial(not problems, seconds, "\n".join(problems), {"grown": most(grown)})


def _left_behind(folder: Path) -> list[str]:
    """What of symm is in `folder`, in /dev/shm and among the abstract sockets."""
    left = [f"{folder.name}/{name}" for name in os.listdir(folder)]
    left += [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "symm" in name]
    abstract = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    return left + [name for name in abstract if name.startswith("@") and "symm" in name]


def _shared_memory() -> int:
    """Bytes of shared memory on the machine, memfds among them."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))


WORLD = 3


def _killed_at(index: int, folder: Path) -> Trial:
    """Ranks that are killed together, anywhere from their first instruction to their hundredth
    call."""
    word = list(COLLECTIVES)[index % len(COLLECTIVES)]
    count = [30, 40_000, 400_000][index // len(COLLECTIVES) % 3]
    progress = Progress(WORLD)
    with tempfile.TemporaryDirectory(prefix="symm_fault_") as other:
        env = (("TMPDIR", str(folder)),)
        setup = Setup(os.path.join(other, "store"), WORLD, timeout=LONG, env=env)
        ranks = start_ranks(loop, WORLD, (setup, progress, word, count))
        time.sleep((index * 37 % 101) * 0.0006)
        killed = time.monotonic()
        for rank in range(WORLD):
            ranks.signal(rank, signal.SIGKILL)
        reports = ranks.finish(HANG)
    took = time.monotonic() - killed
    survived = [r.rank for r in reports if r.exit_code != -signal.SIGKILL]
    # Those killed in set-up leave a folder each, which the next process to set up removes.
    left = _left_behind(folder)
    problem = f"ranks {survived} were not killed" if survived else ""
    if len(left) > 4 * WORLD:
        problem += f"{len(left)} things are left, such as {left[:5]}"
    return Trial(not problem, [took], problem)


def every_rank_killed(cycles: int) -> Iterator[Trial]:
    before = _shared_memory()
    most_left = 0
    with tempfile.TemporaryDirectory(prefix="symm_left_") as name:
        folder = Path(name)
        trial = None
        for index in range(cycles):
            if trial is not None:
                yield trial
            trial = _killed_at(index, folder)
            most_left = max(most_left, len(_left_behind(folder)))
        progress = Progress(WORLD)
        progress.set_end(3)
        with fresh_setup(WORLD, LONG) as setup:
            setup = Setup(setup.store_path, WORLD, env=(("TMPDIR", name),))
            reports = start_ranks(loop, WORLD, (setup, progress, "all_reduce", 40)).finish(HANG)
        left = _left_behind(folder)
    if left or not all(r.returned for r in reports):
        trial = Trial(False, trial.seconds, f"left at the end: {left}\n{describe(reports)}")
    grown = _shared_memory() - before
    trial.facts = {"left_at_the_end": len(left), "most_left": most_left}
    trial.facts |= {"shared_memory_grown": grown}
    yield trial


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _join_by_tcp(rank, port):
    """The default group over a TCPStore: a FileStore and its readers keep every value ever set."""
    limit = datetime.timedelta(seconds=LONG)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, limit, wait_for_workers=False)
    _join(store, rank, 2)


def _one_group(rank, number):
    # Its name is that of its ranks, so that the Store does not grow.
    group = dist.new_group([0, 1], use_local_synchronization=True)
    # Every hundredth one has a workspace too.
    tensor = torch.full((300_000 if number % 100 == 0 else 100,), rank + 1.0)
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    if tensor[0] != 3.0 or tensor[-1] != 3.0:
        raise AssertionError(f"group {number}: a wrong sum, {tensor[0]}")


def _bytes_of_a_group() -> int:
    """By how much this rank's resident memory grows with a group that has done a small call."""
    some, before = [], held()["resident"]
    for number in range(20):
        group = dist.new_group([0, 1], group_desc=f"kept {number}")
        dist.all_reduce(torch.ones(100), group=group)
        some.append(group)
    after = held()["resident"]
    for group in some:
        dist.destroy_process_group(group)
    return (after - before) // len(some)


def _many_groups(rank, port, progress, count):
    torch.set_num_threads(1)
    # The flight record keeps the groups of its last calls: of so few that it is full before memory
    # is looked at.
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    _join_by_tcp(rank, port)
    for number in range(200):
        _one_group(rank, number)
    bytes_a_group = _bytes_of_a_group()
    before, seconds = held(), []
    for number in range(count):
        start = time.monotonic()
        _one_group(rank, number)
        seconds.append(time.monotonic() - start)
        progress.set(rank, number + 1)
    after = held()
    dist.barrier()
    if rank == 1:  # rank 0 serves the store
        dist.destroy_process_group()
    return seconds, before, after, bytes_a_group


def groups_made_and_destroyed(count: int) -> Iterator[Trial]:
    progress, told = Progress(2), 0
    ranks = start_ranks(_many_groups, 2, (_free_port(), progress, count))
    last_step = time.monotonic()
    try:
        while ranks.running() and time.monotonic() - last_step < HANG:
            ranks.listen(0.05)
            done = min(progress.get(0), count - 1)
            last_step = time.monotonic() if done > told else last_step
            while told < done:
                told += 1
                yield Trial(True, [])
    finally:
        reports = ranks.finish(0)
    if not all(report.returned for report in reports):
        yield Trial(False, [], describe(reports))
        return
    values = [report.value for report in reports]
    grown = [growth(before, after) for _, before, after, _ in values]
    problems = [f"rank {r}: {line}" for r, (_, lines) in enumerate(grown) for line in lines]
    facts = {"grown": most([more for more, _ in grown])}
    facts |= {"resident_bytes_grown_a_group": round(facts["grown"]["resident"] / count, 1)}
    facts |= {"resident_bytes_of_a_group": max(value[3] for value in values)}
    seconds = [took for value in values for took in value[0]]
    yield Trial(not problems, seconds, "\n".join(problems), facts)
