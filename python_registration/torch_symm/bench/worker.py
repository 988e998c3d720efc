"""What every rank executes: the groups, then every collective at every size."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from torch_symm.bench.collectives import CLASSES
from torch_symm.bench.config import BenchConfig
from torch_symm.bench.measure import Session, measure_row
from torch_symm.bench.results import Row


def row_total(config: BenchConfig) -> int:
    """Return how many rows a run has at most; sizes that round to the same count are one row."""
    return sum(1 if name == "barrier" else len(config.sizes) for name in config.collectives)


def run_worker(
    config: BenchConfig, rank: int, store: dist.Store, on_row: Callable[[Row], None]
) -> None:
    """Measure everything as ``rank`` and hand each row to ``on_row`` on rank 0. Collective.

    ``store`` reaches all ranks. The default group is made here and destroyed at the end.
    """
    torch.set_num_threads(1)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(
        config.backend,
        store=dist.PrefixStore("bench_groups", store),
        rank=rank,
        world_size=config.ranks,
        timeout=timeout,
    )
    try:
        groups = [dist.group.WORLD]
        if config.against is not None:
            groups.append(dist.new_group(backend=config.against, timeout=timeout))
        session = Session(
            config=config,
            rank=rank,
            groups=tuple(groups),
            control=dist.new_group(backend="gloo", timeout=timeout),
            store=dist.PrefixStore("bench_checks", store),
        )
        for name in config.collectives:
            _run_collective(session, name, on_row)
    finally:
        dist.destroy_process_group()


def _run_collective(session: Session, name: str, on_row: Callable[[Row], None]) -> None:
    config = session.config
    kind = CLASSES[name]
    seen: set[int] = set()
    for size in config.sizes:
        count = kind.count_of(size, config.torch_dtype.itemsize, config.ranks)
        if count in seen:
            continue
        seen.add(count)
        row = measure_row(session, name, count)
        if session.rank == 0:
            on_row(row)
