"""Carries a run past operations that fail, die or hang."""

from __future__ import annotations

from collections.abc import Callable

from torch_symm.tools.probe.config import ProbeConfig
from torch_symm.tools.probe.verdict import Result, Verdict
from torch_symm.tools.ranks.job import Gravity, Job, RunFailed, Trouble

_VERDICTS = {
    Gravity.DIED: Verdict.DIED,
    Gravity.RAISED: Verdict.NO_CALL,
    Gravity.LATE: Verdict.NOT_FINISHED,
}


class ProbeJob(Job):
    """Which operation is next. Used by the leader alone; see job.Job."""

    def __init__(self, config: ProbeConfig, on_result: Callable[[Result], None]) -> None:
        self._config = config
        self._on_result = on_result
        self._case = 0

    def assignment(self) -> tuple[ProbeConfig, int] | None:
        """Return where the next set of ranks begins, None after the last operation."""
        if self._case == len(self._config.cases):
            return None
        return self._config, self._case

    def received(self, content: Result) -> None:
        """Take the result of one operation."""
        self._case += 1
        self._on_result(content)

    def ended(self, trouble: Trouble | None) -> None:
        """Make a death, a hang or an exception the result of the operation that was examined."""
        if trouble is None:
            return
        if trouble.tag is None:
            raise RunFailed(str(trouble))
        # A rank may be in trouble about an operation whose result has arrived already.
        if trouble.tag == self._case:
            backend, name = self._config.cases[trouble.tag]
            reason = f"{trouble.reason} ({trouble.what.partition(': ')[2]})"
            verdict = _VERDICTS[trouble.gravity]
            self.received(Result(backend, name, verdict, reason, trouble.rank))
