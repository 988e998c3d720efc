"""The bench with a backend that is wrong, refuses, dies or hangs: it says so and goes on.

Runs over Gloo, because it is the bench that is tested here and not the backend under it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from torch_symm.tools.bench import collectives
from torch_symm.tools.bench.collectives import AllReduce, Barrier
from torch_symm.tools.bench.config import BenchConfig
from torch_symm.tools.bench.launch import BenchJob
from torch_symm.tools.bench.pattern import OPS
from torch_symm.tools.bench.results import Row
from torch_symm.tools.bench.session import Session
from torch_symm.tools.bench.worker import Start, bench_rank, run_worker
from torch_symm.tools.ranks.job import supervise
from torch_symm.tools.ranks.process import Messenger, RankContext

pytestmark = pytest.mark.timeout(120)


class ToQueue(Messenger):
    """Keeps what a rank reports in a queue, without what only a watcher needs."""

    def __init__(self, rows: mp.SimpleQueue) -> None:
        self._rows = rows

    def send(self, content: object) -> None:
        if isinstance(content, Row):
            self._rows.put(content)


def corrupting_all_reduce(operation: AllReduce, group: dist.ProcessGroup) -> None:
    """Reduce, then alter the last element on rank 1 alone."""
    dist.all_reduce(operation.output, op=OPS[operation.context.op], group=group)
    if operation.context.rank == 1:
        operation.output[-1] += 1


def faulty_rank(rank: int, path: str, rows: mp.SimpleQueue) -> None:
    AllReduce.call = corrupting_all_reduce
    Barrier.call = lambda operation, group: None
    config = BenchConfig(
        collectives=("all_reduce", "broadcast", "barrier"),
        backend="gloo",
        min_bytes=64,
        max_bytes=64,
        iters=1,
        blocks=1,
    )
    run_worker(config, rank, dist.FileStore(path, 2), ToQueue(rows), Start())


def rows_of(rank_main: Callable[[int, str, mp.SimpleQueue], None], path: Path) -> Iterator[Row]:
    """Run ``rank_main`` as two ranks and yield their rows.

    The ranks meet in a file: a TCPStore here would start a thread in the process that other
    tests fork from.
    """
    queue = mp.get_context("fork").SimpleQueue()
    mp.start_processes(rank_main, args=(str(path), queue), nprocs=2, start_method="fork")
    while not queue.empty():
        yield queue.get()


def test_a_wrong_backend_is_counted_over_the_ranks(tmp_path: Path) -> None:
    reduced, broadcast, barrier = rows_of(faulty_rank, tmp_path / "store")
    # Two checks run for each variant, and each has one wrong element on one rank.
    assert reduced.wrong == 2
    assert broadcast.wrong == 0
    assert barrier.wrong > 0, "a barrier that does not wait passed"


def refusing_rank(rank: int, path: str, rows: mp.SimpleQueue) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("all_gather: not for this dtype")

    collectives.all_gather_tensor = refuse
    config = BenchConfig(
        collectives=("all_gather", "all_to_all"), backend="gloo", max_bytes=8, iters=1, blocks=1
    )
    run_worker(config, rank, dist.FileStore(path, 2), ToQueue(rows), Start())


def test_a_refusal_is_reported_and_the_run_goes_on(tmp_path: Path) -> None:
    refused, measured = rows_of(refusing_rank, tmp_path / "store")
    assert refused.results[0].error == "all_gather: not for this dtype"
    assert refused.results[0].out_of_place is None
    assert measured.results[0].error is None
    assert measured.results[0].out_of_place is not None


def wounded_rank(place: RankContext, assignment: dict, messenger: Messenger) -> None:
    """A rank whose first backend fails in all_reduce from 128 bytes on, as WOUND says."""
    running: list[int | None] = [None]
    begin, call = Session.begin, AllReduce.call

    def noting_begin(session: Session, what: str, index: int | None) -> None:
        running[0] = index
        begin(session, what, index)

    def wounded_call(operation: AllReduce, group: dist.ProcessGroup) -> None:
        if running[0] == 0 and operation.count >= 32 and operation.context.rank == 1:
            if os.environ["WOUND"] == "abort":
                os.abort()
            if os.environ["WOUND"] == "hang":
                threading.Event().wait()
            raise RuntimeError("the link is gone")
        call(operation, group)

    Session.begin, AllReduce.call = noting_begin, wounded_call
    bench_rank(place, assignment, messenger)


def watch_wounded(wound: str, rows: mp.SimpleQueue) -> None:
    os.environ["WOUND"] = wound
    config = BenchConfig(
        collectives=("all_reduce", "broadcast"),
        backend="gloo",
        against=("gloo",),
        min_bytes=8,
        max_bytes=512,
        iters=1,
        blocks=1,
        case_s=10.0,
    )
    supervise(wounded_rank, BenchJob(config, rows.put), config.ranks)


@pytest.mark.parametrize(
    ("wound", "reason"),
    [
        (
            "abort",
            r"rank 1: was ended by SIGABRT \(gloo all_reduce 128 eager in_place, first call\)",
        ),
        pytest.param(
            "hang",
            r"rank [01]: did not finish within 10 s \(gloo all_reduce 128 eager in_place",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "raise",
            r"rank 1: the link is gone \(gloo all_reduce 128 eager in_place, first call\)",
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_run_goes_on_without_a_backend_that_fails(wound: str, reason: str) -> None:
    context = mp.get_context("fork")
    queue = context.Queue()
    # In a process of its own: the store's thread must not be in the one that other tests fork from.
    watcher = context.Process(target=watch_wounded, args=(wound, queue))
    watcher.start()
    rows = [queue.get(timeout=90) for _ in range(8)]
    watcher.join(timeout=30)
    assert watcher.exitcode == 0
    assert [(row.collective, row.size) for row in rows] == [
        (name, size) for name in ("all_reduce", "broadcast") for size in (8, 32, 128, 512)
    ]
    for row in rows:
        failing, sound = row.results
        assert sound.error is None
        assert sound.in_place is not None
        if row.collective == "broadcast" or row.size < 128:
            assert failing.error is None
            assert failing.in_place is not None
        else:
            assert failing.in_place is None
            assert re.match(reason, failing.error), failing.error
