"""Starts a run and carries it past backends that fail.

A backend that does not capture, dies or outruns the time of a row is out of the case (one
collective in one mode) from that row on; a fresh set of ranks measures the row with what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch_symm.tools.bench.config import BenchConfig
from torch_symm.tools.bench.results import Row
from torch_symm.tools.bench.session import Excluded
from torch_symm.tools.bench.worker import CaseBegins, OutOfTime, Start, bench_rank
from torch_symm.tools.ranks.job import RunFailed, Trouble, supervise


class BenchJob:
    """Where the run stands, and what each set of ranks is to do. Used by the leader alone."""

    def __init__(self, config: BenchConfig, on_row: Callable[[Row], None]) -> None:
        self.out_of_time = False
        self._config = config
        self._on_row = on_row
        self._started = time.monotonic()
        self._case = 0
        self._row = 0
        self._excluded: dict[int, str] = {}
        self._without: dict[int, str] = {}
        self._done = False
        # Whether the set that runs has been asked for something that its successor need not do.
        self._moved_on = False

    def assignment(self) -> dict[str, Any] | None:
        """Return what is left; see job.Job."""
        if self._done:
            return None
        self._moved_on = False
        start = Start(
            self._case, self._row, dict(self._excluded), dict(self._without), self._left_s()
        )
        return {"config": self._config.to_json(), "start": asdict(start)}

    def received(self, content: Any) -> None:
        """Keep a row or a mark of progress; see job.Job."""
        if isinstance(content, Row):
            self._row += 1
            self._on_row(content)
        elif isinstance(content, CaseBegins) and content.case != self._case:
            self._case, self._row, self._excluded = content.case, 0, {}
        elif isinstance(content, Excluded):
            self._excluded[content.index] = content.reason
            self._moved_on = True
        elif isinstance(content, OutOfTime):
            self.out_of_time = True

    def ended(self, trouble: Trouble | None) -> None:
        """Draw the consequences of a set's end; see job.Job."""
        if trouble is None:
            self._done = not self._moved_on
            return
        if isinstance(trouble.tag, int):
            self._excluded[trouble.tag] = str(trouble)
        elif isinstance(trouble.tag, list):
            self._without[trouble.tag[0]] = str(trouble)
        else:
            raise RunFailed(str(trouble))

    def _left_s(self) -> float | None:
        if self._config.budget_s is None:
            return None
        return self._config.budget_s - (time.monotonic() - self._started)


def run(config: BenchConfig, on_row: Callable[[Row], None]) -> bool:
    """Measure all of ``config``; tell whether it was complete and not cut short by its budget.

    ``on_row`` is called in the process of rank 0 of torchrun, or in the only one. Collective over
    torchrun's processes. Raises RunFailed.
    """
    job = BenchJob(config, on_row)
    supervise(bench_rank, job, config.ranks)
    return not job.out_of_time
