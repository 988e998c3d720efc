"""What every rank executes: a bench among groups that differ in their tables."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from torch_symm.tools.tune.table import merged, staged_bytes

_VARIABLE = "SYMM_TUNING_FILE"


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


@dataclass
class TuneSession(Session):
    """Its first group goes by the table as it is, each other one by candidates."""

    config: TuneConfig = field()

    def make_groups(self, phase: Phase, without: dict[int, str]) -> None:
        """Make the groups that are not in ``without``. Collective."""
        given = os.environ.get(_VARIABLE)
        for index in phase.members:
            if index in without:
                continue
            self.messenger.begin(f"making group {index}", SET_UP_S, [index])
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                if index > 0:
                    json.dump(table_of(self.config.tried[index - 1], self.config), file)
                    file.flush()
                    os.environ[_VARIABLE] = file.name
                try:
                    timeout = timedelta(seconds=self.config.timeout_s)
                    self.groups[index] = dist.new_group(backend="symm", timeout=timeout)
                    self._touch(self.groups[index])
                finally:
                    os.environ.pop(_VARIABLE, None)
                    os.environ.update({} if given is None else {_VARIABLE: given})

    def _touch(self, group: dist.ProcessGroup) -> None:
        """Make what a group makes with its first call, which reads the variable."""
        dist.barrier(group)

    def members(self, collective: str, size: int) -> Iterator[tuple[int, dist.ProcessGroup]]:
        """Yield the groups whose call of ``size`` bytes is none of the others'."""
        staged = staged_bytes(collective, self.config.ranks, size)
        for index, group in super().members(collective, size):
            candidate = self.config.tried[index - 1].get(collective) if index else None
            if index == 0 or (candidate is not None and candidate.at(staged) == candidate):
                yield index, group
