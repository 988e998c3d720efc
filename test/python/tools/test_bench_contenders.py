"""The bench with backends in processes of their own, which differ by their environment.

Runs over Gloo with settings of the test's own; NCCL's are looked at by name alone.
"""

from __future__ import annotations

import os

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from torch_symm.tools.bench.collectives import AllReduce
from torch_symm.tools.bench.config import BenchConfig
from torch_symm.tools.bench.contender import PINNED, c10d_name, spelled_out
from torch_symm.tools.bench.launch import BenchJob
from torch_symm.tools.bench.worker import bench_rank
from torch_symm.tools.ranks.job import supervise
from torch_symm.tools.ranks.process import Messenger, RankContext

pytestmark = pytest.mark.timeout(120)


def test_pinned_nccl_runs_in_processes_of_its_own() -> None:
    against = spelled_out(("nccl", "nccl-deterministic"))
    assert against == ("nccl", "nccl-tree-1", "nccl-tree-8", "nccl-ring-1", "nccl-ring-8")
    config = BenchConfig(device="cuda", against=against)
    assert [phase.members for phase in config.phases] == [(0, 1), (2,), (3,), (4,), (5,)]
    assert config.phases[0].environment == ()
    assert dict(config.phases[4].environment) == {
        "NCCL_ALGO": "allreduce:ring",
        "NCCL_PROTO": "Simple",
        "NCCL_MIN_NCHANNELS": "8",
        "NCCL_MAX_NCHANNELS": "8",
    }
    assert {c10d_name(name) for name in against} == {"nccl"}


SETTINGS = {"gloo-off": (("OFF_BY", "3"),), "gloo-dies": (("DIES", "1"),)}


def pinned_rank(place: RankContext, assignment: tuple, messenger: Messenger) -> None:
    """A rank whose all_reduce is off by what the environment says, and that dies once if told."""
    call = AllReduce.call

    def pinned_call(operation: AllReduce, group: dist.ProcessGroup) -> None:
        call(operation, group)
        operation.output[-1] += int(os.environ.get("OFF_BY", "0"))
        if operation.count == 32 and os.environ.get("DIES"):
            os.abort()

    AllReduce.call = pinned_call
    PINNED.update(SETTINGS)
    bench_rank(place, assignment, messenger)


def watch_pinned(rows: mp.SimpleQueue) -> None:
    PINNED.update(SETTINGS)
    config = BenchConfig(
        collectives=("all_reduce", "broadcast"),
        backend="gloo",
        against=("gloo-off", "gloo", "gloo-dies"),
        min_bytes=8,
        max_bytes=512,
        iters=1,
        blocks=1,
    )
    supervise(pinned_rank, BenchJob(config, rows.put), config.ranks)


def test_backends_with_settings_of_their_own_have_processes_of_their_own() -> None:
    context = mp.get_context("fork")
    queue = context.Queue()
    watcher = context.Process(target=watch_pinned, args=(queue,))
    watcher.start()
    rows = [queue.get(timeout=90) for _ in range(8)]
    watcher.join(timeout=30)
    assert watcher.exitcode == 0
    assert queue.empty()
    assert [(row.collective, row.size) for row in rows] == [
        (name, size) for name in ("all_reduce", "broadcast") for size in (8, 32, 128, 512)
    ]
    for row in rows:
        plain, off, again, dies = row.results
        assert [result.backend for result in row.results] == [
            *("gloo", "gloo-off", "gloo", "gloo-dies")
        ]
        reduces = row.collective == "all_reduce"
        assert plain.in_place.wrong == again.in_place.wrong == 0
        # Two checks, each wrong on both ranks.
        assert off.in_place.wrong == (4 if reduces else 0)
        if reduces and row.size >= 128:
            assert dies.in_place is None
            assert "SIGABRT" in dies.error
        else:
            assert dies.error is None
            assert dies.in_place.wrong == 0
