"""What all fault injections share: ranks that loop over a collective, a word of shared memory to
watch them by, and the judgement of the errors that the survivors raise."""

import contextlib
import dataclasses
import mmap
import os
import struct
import tempfile
import time

import torch
import torch.distributed as dist

from errors import unsaid
from harness import DEVICE, IS_SYMM, ON_CUDA, Setup, synchronize
from rank_processes import describe, start_ranks

LONG = 60.0  # a group time-out that no trial may need


@dataclasses.dataclass
class Trial:
    """One injection. `seconds`: one figure for each rank that had something to notice."""

    passed: bool
    seconds: list[float]
    detail: str = ""
    facts: dict = dataclasses.field(default_factory=dict)  # of the whole run, in its row


class Progress:
    """One counter a rank and two words for the injector, shared by fork."""

    NEVER = (1 << 62) - 1

    def __init__(self, world_size: int):
        self._world_size = world_size
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.set_end(self.NEVER)

    def set(self, rank: int, value: int) -> None:
        struct.pack_into("<q", self._memory, 8 * rank, value)

    def get(self, rank: int) -> int:
        return struct.unpack_from("<q", self._memory, 8 * rank)[0]

    def set_end(self, iteration: int) -> None:
        """The iteration before which every rank's loop ends."""
        self.set(self._world_size, iteration)

    def end(self) -> int:
        return self.get(self._world_size)

    def ask_to_end(self) -> None:
        """Rank 0 then chooses the iteration. The injector cannot: it may lose its core for longer
        than the ranks take to get there, and then they end at different ones."""
        self.set(self._world_size + 1, 1)

    def choose_end(self, rank: int, done: int, ahead: int) -> None:
        """Called between two iterations; no rank gets `ahead` of rank 0 while that is here."""
        asked = rank == 0 and self.get(self._world_size + 1) == 1
        if asked and self.end() == self.NEVER:
            self.set_end(done + ahead)

    def furthest(self) -> int:
        return max(self.get(rank) for rank in range(self._world_size))

    def wait_for(self, value: int, limit: float = 20.0) -> bool:
        """Until every rank has reached `value`."""
        deadline = time.monotonic() + limit
        while any(self.get(rank) < value for rank in range(self._world_size)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True


def _numbers(count):
    return torch.arange(count, dtype=torch.float32, device=DEVICE)


def _buffers(rank, world_size, count):
    mine = _numbers(count) + rank
    return (
        mine,
        torch.zeros(count * world_size, device=DEVICE),
        _numbers(count * world_size) + 0.5 * rank,
    )


def _all_reduce(rank, world, count, iteration):
    tensor = _numbers(count) + rank + iteration
    dist.all_reduce(tensor)
    first = world * (world - 1) / 2 + world * iteration
    return tensor[0] == first and tensor[-1] == first + world * (count - 1)


def _async_all_reduce(rank, world, count, iteration):
    works = [dist.all_reduce(torch.ones(count, device=DEVICE), async_op=True) for _ in range(2)]
    for work in works:
        work.wait()
    synchronize()
    return True


def _reduce(rank, world, count, iteration):
    tensor = torch.full((count,), rank + 1.0, device=DEVICE)
    dist.reduce(tensor, iteration % world)
    return rank != iteration % world or bool((tensor == world * (world + 1) / 2).all())


def _broadcast(rank, world, count, iteration):
    tensor = torch.full((count,), float(rank), device=DEVICE)
    dist.broadcast(tensor, iteration % world)
    return bool((tensor == iteration % world).all())


def _all_gather(rank, world, count, iteration):
    mine, out, _ = _buffers(rank, world, count)
    dist.all_gather_into_tensor(out, mine)
    return all(out[r * count] == r for r in range(world))


def _gather(rank, world, count, iteration):
    mine, out, _ = _buffers(rank, world, count)
    root = iteration % world
    dist.gather(mine, list(out.view(world, count)) if rank == root else None, dst=root)
    return rank != root or all(out[r * count] == r for r in range(world))


def _scatter(rank, world, count, iteration):
    mine, _, whole = _buffers(rank, world, count)
    root = iteration % world
    dist.scatter(mine, list(whole.view(world, count)) if rank == root else None, src=root)
    return mine[0] == rank * count + 0.5 * root


def _reduce_scatter(rank, world, count, iteration):
    mine, _, whole = _buffers(rank, world, count)
    dist.reduce_scatter_tensor(mine, whole)
    return mine[0] == world * rank * count + 0.25 * world * (world - 1)


def _all_to_all(rank, world, count, iteration):
    _, out, whole = _buffers(rank, world, count)
    dist.all_to_all_single(out, whole)
    return all(out[r * count] == rank * count + 0.5 * r for r in range(world))


def _barrier(rank, world, count, iteration):
    dist.barrier()
    return True


def _send_recv(rank, world, count, iteration):
    received = torch.zeros(count, device=DEVICE)
    works = [
        dist.isend(torch.full((count,), float(rank), device=DEVICE), (rank + 1) % world),
        dist.irecv(received, (rank - 1) % world),
    ]
    for work in works:
        work.wait()
    return bool((received == (rank - 1) % world).all())


# Word that the error must have: one call on every rank, given (rank, world, count, iteration);
# each says whether its result was right.
COLLECTIVES = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
    "send|recv": _send_recv,
    "all_reduce ": _async_all_reduce,
}


@dataclasses.dataclass
class Ending:
    """How a rank's loop ended."""

    iterations: int
    wrong: int  # iterations with a wrong result
    started: float  # of the last call; CLOCK_MONOTONIC, one clock for all processes
    ended: float
    error: str | None = None
    rebuilt: str | None = None  # what went wrong with a new group of the survivors; "" nothing


def quiet() -> None:
    """What this rank logs about those that it refuses is not shown."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def settle() -> None:
    """On CUDA a call returns before it has run: waits until it has, and for the group's verdict."""
    if ON_CUDA:
        synchronize()
        dist.barrier()


def loop(rank, setup: Setup, progress: Progress, word: str, count: int, victim=None) -> Ending:
    """Carries out one collective again and again until it raises or the injector ends it. On CUDA
    a survivor of `victim` then makes a new group."""
    torch.set_num_threads(1)
    setup.join(rank)
    call, iteration, wrong, started = COLLECTIVES[word], 0, 0, 0.0
    try:
        while iteration < progress.end():
            started = time.monotonic()
            right = call(rank, setup.world_size, count, iteration)
            if not right:
                settle()  # a kernel that has given up leaves anything; then this raises
            wrong += not right
            iteration += 1
            progress.set(rank, iteration)
            progress.choose_end(rank, iteration, 100)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        ending = Ending(iteration, wrong, started, time.monotonic(), text)
        if ON_CUDA and victim is not None:
            ending.rebuilt = rebuild(rank, setup, victim)
        return ending
    return Ending(iteration, wrong, started, time.monotonic())


def rebuild(rank: int, setup: Setup, victim: int) -> str:
    """A group of the survivors in the same processes, on the same GPUs, gives right sums: "", or
    what went wrong."""
    survivors = [r for r in range(setup.world_size) if r != victim]
    try:
        dist.destroy_process_group()
        me, world = survivors.index(rank), len(survivors)
        # Not join(): that one would choose the GPU of another rank.
        again = dataclasses.replace(setup, store_path=setup.store_path + "2", world_size=world)
        again.init(me)
        for iteration, count in enumerate((30, 40_000, 3_000_000)):
            if not _all_reduce(me, world, count, iteration):
                return f"a wrong sum of {count} elements in the new group"
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        return f"no new group: {type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def fresh_setup(world_size: int, timeout: float = LONG):
    with tempfile.TemporaryDirectory(prefix="symm_fault_") as folder:
        yield Setup(os.path.join(folder, "store"), world_size, timeout=timeout)


@contextlib.contextmanager
def looping_ranks(
    world_size: int, word: str, count: int, timeout: float = LONG, victim=None, body=loop
):
    """(ranks, progress) once every rank has done three calls."""
    progress = Progress(world_size)
    with fresh_setup(world_size, timeout) as setup:
        ranks = start_ranks(body, world_size, (setup, progress, word, count, victim))
        if not progress.wait_for(3):
            raise AssertionError("the ranks did not start: " + describe(ranks.finish(0)))
        try:
            yield ranks, progress
        finally:
            ranks.finish(0)


def what_is_missing(text: str | None, words: list[str]) -> str:
    """ "" where `text` has all regular expressions; gloo names nothing, so there any text does."""
    if text is None:
        return "no error was raised"
    return "\n".join(unsaid(text, words)) if IS_SYMM else ""


def words_for(victim: int | None, collective: str | None) -> list[str]:
    """What an error must name: the group, the sequence number (on a device a message has one of
    its own), the rank and the collective."""
    words = ['group "', r"seq \d+|\(message \d+ of its tag channel"]
    if victim is not None:
        words.append(rf"rank {victim}\b")
    if collective is not None:
        words.append(collective.strip())
    return words


def judge(reports, victim, collective, since, limit, named=-1) -> Trial:
    """Every rank but `victim` must have raised the right words within `limit` s of `since`. The
    words name the victim, or `named` where that is given; None stands for nobody."""
    words = words_for(victim if named == -1 else named, collective)
    seconds, problems = [], []
    for report in reports:
        if report.rank == victim:
            continue
        if not isinstance(report.value, Ending):
            problems.append(describe([report]))
            continue
        problem = what_is_missing(report.value.error, words)
        took = max(0.0, report.value.ended - since)
        seconds.append(took)
        if took > limit:
            problem = problem or f"raised after {took:.3f} s: {report.value.error}"
        if report.value.wrong:
            problem = f"{report.value.wrong} wrong results"
        problem = problem or report.value.rebuilt
        if problem:
            problems.append(f"rank {report.rank}: {problem}")
    return Trial(not problems, seconds, "\n".join(problems))
