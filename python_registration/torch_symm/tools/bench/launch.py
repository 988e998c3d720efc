"""Carries a run past backends that fail.

A backend with settings of its own is measured by another set of ranks, case by case.
A backend that does not capture, dies or outruns the time of a row is out of the case (one
collective in one mode) from that row on; a fresh set of ranks measures the row with what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch_symm.tools.bench.config import BenchConfig
from torch_symm.tools.bench.contender import offers
from torch_symm.tools.bench.results import Row
from torch_symm.tools.bench.session import BackendExcluded
from torch_symm.tools.bench.worker import Start
from torch_symm.tools.ranks.job import Job, RunFailed, Trouble


class BenchJob(Job):
    """Where the run stands, and what each set of ranks is to do. Used by the leader alone.

    A row is told when its last phase has been measured. ``done`` rows have been measured before;
    where backends have processes of their own, all of a case's or none.
    A phase none of whose backends has the collective is left out.
    """

    def __init__(self, config: BenchConfig, on_row: Callable[[Row], None], done: int = 0) -> None:
        self._config = config
        self._on_row = on_row
        self._started = time.monotonic()
        self._start = Start()
        self._rows: list[Row | None] = []  # of the case that is measured, as far as they are known
        for name, _ in config.cases:
            if done < (rows := len(config.counts(name))):
                break
            done -= rows
            self._start.case += 1
        self._start.row = done
        self._rows += [None] * done  # told already
        # Whether the set that runs, or the first one, leaves something to a successor.
        self._left = self._start.case < len(config.cases)

    def assignment(self) -> tuple[BenchConfig, Start] | None:
        """Return what is left; see job.Job."""
        if not self._left:
            return None
        self._left = False
        if self._config.budget_s is not None:
            self._start.left_s = self._config.budget_s - (time.monotonic() - self._started)
        if self._start.phase > 0:
            self._start.matmuls = tuple(row.matmul for row in self._rows)
        return self._config, self._start

    def environment(self, assignment: tuple[BenchConfig, Start]) -> dict[str, str]:
        """Return what the ranks need before they import torch; see job.Job."""
        config, start = assignment
        phase = config.phases[start.phase]
        return dict(phase.environment) if phase.early else {}

    def received(self, content: Row | BackendExcluded) -> None:
        """Keep a row, or that a backend is out; see job.Job."""
        start = self._start
        if isinstance(content, BackendExcluded):
            start.excluded[content.index] = content.reason
            self._left = True
            return
        phases = self._config.phases
        if start.phase == 0:
            self._rows.append(content)
        else:
            members = phases[start.phase].members
            self._rows[start.row] = self._rows[start.row].with_results_of(content, members)
        if self._later_phase() is None:
            self._on_row(self._rows[start.row])
        start.row += 1
        if start.row == len(self._config.counts(content.collective)):
            self._next_phase()

    def _later_phase(self) -> int | None:
        """Return which phase of the case comes next, None behind the last one."""
        config, start = self._config, self._start
        collective, _ = config.cases[start.case]
        for number in range(start.phase + 1, len(config.phases)):
            members = config.phases[number].members
            if any(offers(config.backends[index], collective) for index in members):
                return number
        return None

    def _next_phase(self) -> None:
        """Go to the next phase of the case, or from its last one to the next case."""
        start, phases = self._start, self._config.phases
        if (later := self._later_phase()) is not None:
            self._start = Start(start.case, later, without=start.without)
        else:
            self._start = Start(start.case + 1, without=start.without)
            self._rows = []
        if len(phases) > 1 and self._start.case < len(self._config.cases):
            self._left = True

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
