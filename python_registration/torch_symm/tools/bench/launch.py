"""Carries a run past backends that fail.

A backend that does not capture, dies or outruns the time of a row is out of the case (one
collective in one mode) from that row on; a fresh set of ranks measures the row with what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch_symm.tools.bench.config import BenchConfig
from torch_symm.tools.bench.results import Row
from torch_symm.tools.bench.session import BackendExcluded
from torch_symm.tools.bench.worker import Start
from torch_symm.tools.ranks.job import RunFailed, Trouble


class BenchJob:
    """Where the run stands, and what each set of ranks is to do. Used by the leader alone."""

    def __init__(self, config: BenchConfig, on_row: Callable[[Row], None]) -> None:
        self._config = config
        self._on_row = on_row
        self._started = time.monotonic()
        self._start = Start()
        # Whether the set that runs, or the first one, leaves something to a successor.
        self._left = True

    def assignment(self) -> tuple[BenchConfig, Start] | None:
        """Return what is left; see job.Job."""
        if not self._left:
            return None
        self._left = False
        if self._config.budget_s is not None:
            self._start.left_s = self._config.budget_s - (time.monotonic() - self._started)
        return self._config, self._start

    def received(self, content: Row | BackendExcluded) -> None:
        """Keep a row, or that a backend is out; see job.Job."""
        start = self._start
        if isinstance(content, BackendExcluded):
            start.excluded[content.index] = content.reason
            self._left = True
            return
        self._on_row(content)
        start.row += 1
        if start.row == len(self._config.counts(content.collective)):
            self._start = Start(start.case + 1, without=start.without)

    def ended(self, trouble: Trouble | None) -> None:
        """Draw the consequences of a set's end; see job.Job."""
        if trouble is None:
            return
        self._left = True
        if isinstance(trouble.tag, int):
            self._start.excluded[trouble.tag] = str(trouble)
        elif isinstance(trouble.tag, list):
            self._start.without[trouble.tag[0]] = str(trouble)
        else:
            raise RunFailed(str(trouble))
