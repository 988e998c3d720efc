"""Starts a run: as local processes of its own, or inside the processes that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
import torch.multiprocessing as mp

from torch_symm.bench.config import BenchConfig
from torch_symm.bench.results import Row
from torch_symm.bench.worker import run_worker

_POLL_S = 0.05
_LOOPBACK = "127.0.0.1"


def launched_world_size() -> int | None:
    """Return the number of ranks that torchrun (or the like) has started, None outside of it."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return None


def launched_rank() -> int:
    """Return this process's rank under torchrun, 0 outside of it."""
    return int(os.environ.get("RANK", "0"))


def run_launched(config: BenchConfig, on_row: Callable[[Row], None]) -> None:
    """Run as one of torchrun's ranks; ``on_row`` is called on rank 0. Collective."""
    timeout = timedelta(seconds=config.timeout_s)
    store, rank, _ = next(iter(dist.rendezvous("env://", timeout=timeout)))
    run_worker(config, rank, store, on_row)


def run_spawned(config: BenchConfig, on_row: Callable[[Row], None]) -> None:
    """Start ``config.ranks`` local processes, call ``on_row`` here as rows arrive, and wait.

    Raises what torch.multiprocessing raises when a rank fails; the others are ended then.
    """
    # Threads of its own in every rank would fight for the cores that the ranks share.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # This process keeps the store, on a port that the system chooses, so no port is guessed.
    store = dist.TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
    rows = mp.get_context("spawn").SimpleQueue()
    ranks = mp.spawn(
        _spawned_rank, args=(config, store.port, rows), nprocs=config.ranks, join=False
    )
    finished = False
    while not finished:
        finished = ranks.join(timeout=_POLL_S)
        while not rows.empty():
            on_row(rows.get())


def _spawned_rank(rank: int, config: BenchConfig, port: int, rows: mp.SimpleQueue) -> None:
    timeout = timedelta(seconds=config.timeout_s)
    store = dist.TCPStore(_LOOPBACK, port, is_master=False, timeout=timeout)
    run_worker(config, rank, store, rows.put)
