"""What every rank executes: a bench among groups that differ in their tables."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torch_symm._registration import load
from torch_symm.tools.bench.contender import Phase
from torch_symm.tools.bench.session import Session
from torch_symm.tools.bench.worker import Start, run_worker
from torch_symm.tools.ranks.process import Messenger, RankContext
from torch_symm.tools.ranks.session import SET_UP_S
from torch_symm.tools.tune.candidates import Candidate
from torch_symm.tools.tune.config import TuneConfig
from torch_symm.tools.tune.table import merged, staged_bytes, tuning_file


def tune_rank(
    context: RankContext, assignment: tuple[TuneConfig, Start], messenger: Messenger
) -> None:
    """Be one rank of a set that the supervisor started."""
    config, start = assignment
    store = context.connect(config.timeout_s)
    run_worker(config, context.rank, store, messenger, start, TuneSession)


def table_of(tried: dict[str, Candidate], config: TuneConfig) -> dict[str, Any]:
    """Return a tuning file in which each collective goes by its candidate, whatever the size."""
    rows: list[dict[str, Any]] = []
    now = json.loads(load().plan_tables())[config.rows_key]
    for collective, candidate in tried.items():
        worlds = {"min_world": config.ranks, "max_world": config.ranks, "max_bytes": None}
        row = {"collective": collective, **worlds, **candidate.row_fields(config.device)}
        rows += merged(now, collective, config.ranks, [row])
    return {config.rows_key: rows}


def new_group_by(table: dict[str, Any], timeout: timedelta) -> dist.ProcessGroup:
    """Return a group of all ranks whose plan table is ``table``. Collective."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(table, file)
        file.flush()
        with tuning_file(file.name):
            return dist.new_group(backend="symm", timeout=timeout)


@dataclass
class TuneSession(Session):
    """Its first group goes by the table as it is, each other one by candidates."""

    config: TuneConfig

    def make_groups(self, phase: Phase, without: dict[int, str]) -> None:
        """Make the groups that are not in ``without``. Collective."""
        for index in phase.members:
            if index in without:
                continue
            self.messenger.begin(f"making group {index}", SET_UP_S, [index])
            timeout = timedelta(seconds=self.config.timeout_s)
            if index == 0:
                self.groups[index] = dist.new_group(backend="symm", timeout=timeout)
            else:
                table = table_of(self.config.tried[index - 1], self.config)
                self.groups[index] = new_group_by(table, timeout)

    def members(self, collective: str, size: int) -> Iterator[tuple[int, dist.ProcessGroup]]:
        """Yield the groups whose call of ``size`` bytes is none of the others'."""
        staged = staged_bytes(collective, self.config.ranks, size)
        for index, group in super().members(collective, size):
            candidate = self.config.tried[index - 1].get(collective) if index else None
            if index == 0 or (candidate is not None and candidate.at(staged) == candidate):
                yield index, group
