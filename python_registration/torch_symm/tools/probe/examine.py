"""The examination of one operation on one backend, as one rank.

NOTE [What a replay is compared with]
Call number i has the inputs of salt i, different for every call. Before a replay the outputs are
poisoned with a value that no right result has, and the inputs of that salt are written to the
captured tensors; in-place operations have their inputs in place of the poison. Then come the
replay, the wait for it and a copy to the host, where every element is compared with the expected
one. A graph that replays stale inputs, does nothing, or writes to memory that was the output only
at capture therefore leaves a wrong value.

The ranks agree after every stage, because a rank that went on alone would wait for the others.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from torch_symm.tools.bench.barrier import Call, Replay, times_left_early
from torch_symm.tools.bench.collectives import Collective
from torch_symm.tools.bench.config import format_size
from torch_symm.tools.bench.pattern import DTYPES, first_wrong
from torch_symm.tools.bench.timing import runner_for
from torch_symm.tools.probe.operations import Operation
from torch_symm.tools.probe.verdict import Finding, Verdict
from torch_symm.tools.ranks.device import synchronize
from torch_symm.tools.ranks.graph import CaptureError, Recording, first_line
from torch_symm.tools.ranks.session import RankSession

_COLD_REFUSAL = re.compile(r"call (it )?once before capture")
_EAGER_CALLS = 2
_GOOD = Finding(Verdict.CAPTURES)

# Captures what a function puts on a stream; a test may put something else in its place.
Recorder = Callable[[Callable[[], Any]], Recording]


def record(function: Callable[[], Any]) -> Recording:
    """Capture ``function`` on a side stream."""
    return Recording(function, torch.cuda.Stream())


@dataclass
class Surroundings(RankSession):
    """What an examination needs besides the operation; ``case`` is its place in the cases."""

    recorder: Recorder = record
    case: int = 0

    def progress(self, what: str) -> None:
        """Say which stage comes next."""
        backend, name = self.config.cases[self.case]
        self.say(f"{name} on {backend}: {what}", self.case)

    def agree(self, finding: Finding) -> list[Finding]:
        """Return every rank's finding. Collective."""
        if not finding.verdict.good:
            self.messenger.complain(finding.reason)
        return self.gather(finding)


def examine(
    around: Surroundings, operation: Operation, size: int, group: dist.ProcessGroup
) -> list[Finding]:
    """Examine ``operation`` with about ``size`` bytes; return every rank's finding. Collective.

    Before a cold operation, the refusal of the first call of a fresh ``group`` under capture is
    examined. It must ask for a call before capture, leave the capture usable and the group as
    usable as if nothing had been called.
    """
    examination = _Examination(around, operation, size, group)
    if operation.cold:
        around.progress("cold call under capture")
        problem = _cold_problem(around, examination.call)
        verdict = Verdict.COLD_NOT_REFUSED if problem else Verdict.COLD_REFUSED
        findings = around.agree(Finding(verdict, problem))
        if not _all_good(findings):
            return findings
    findings = examination.run()
    if operation.cold and _all_good(findings):
        return [Finding(Verdict.COLD_REFUSED)] * len(findings)
    return findings


def _all_good(findings: list[Finding]) -> bool:
    return all(finding.verdict.good for finding in findings)


def _cold_problem(around: Surroundings, call: Callable[[], None]) -> str:
    """Return what is wrong with the refusal of ``call`` under capture, or ""."""
    marks = torch.zeros(16, device=around.device)
    refusal: list[Exception] = []

    def cold() -> None:
        try:
            call()
        except Exception as error:
            refusal.append(error)
        # Captured after the refusal, if the capture has survived it.
        marks.add_(1)

    try:
        recording = around.recorder(cold)
    except CaptureError as error:
        said = f" after {first_line(refusal[0])!r}" if refusal else ""
        return f"the capture was lost{said}: {error}"
    if not refusal:
        return "the first call of a group was captured"
    if not _COLD_REFUSAL.search(str(refusal[0])):
        return f"it does not ask for a call before capture: {first_line(refusal[0])}"
    marks.fill_(41)
    recording.replay()
    recording.wait()
    seen = marks.tolist()
    recording.close()
    if seen != [42] * len(seen):
        return f"what was captured after the refusal gives {seen[0]} at replay, expected 42"
    return ""


class _Examination:
    """One operation with buffers of its own."""

    def __init__(
        self, around: Surroundings, operation: Operation, size: int, group: dist.ProcessGroup
    ) -> None:
        self._around = around
        self._size = size
        self._group = group
        self._salts = itertools.count()
        config = around.config
        self._buffers: Collective = operation.make(
            around.rank, config.ranks, DTYPES[config.dtype], around.device, size
        )

    def call(self) -> None:
        """Run the operation once."""
        self._buffers.call(self._group)

    def run(self) -> list[Finding]:
        """Call eagerly, capture, replay, call eagerly again; the first failing stage decides."""
        recordings: list[Recording] = []
        stages: list[Callable[[], Finding]] = [
            *[lambda: self._eager("call")] * _EAGER_CALLS,
            lambda: self._capture(recordings),
            lambda: self._replays(recordings[0]),
            lambda: self._eager("call after the replays"),
        ]
        for stage in stages:
            findings = self._around.agree(stage())
            if not _all_good(findings):
                return findings
        recordings[0].close()
        return findings

    def _progress(self, what: str) -> None:
        self._around.progress(f"{what}, {format_size(self._size)}")

    def _eager(self, what: str) -> Finding:
        self._progress(f"eager {what}")
        call = runner_for("eager", self._buffers, self._group)
        try:
            wrong = self._wrong_value(call)
        except Exception as error:
            return Finding(Verdict.NO_CALL, f"{type(error).__name__}: {first_line(error)}")
        if wrong is None:
            return _GOOD
        return Finding(Verdict.WRONG_EAGERLY, self._reason(f"eager {what}", wrong))

    def _capture(self, recordings: list[Recording]) -> Finding:
        self._progress("capture")
        try:
            recordings.append(self._around.recorder(self.call))
        except CaptureError as error:
            return Finding(Verdict.NO_CAPTURE, str(error))
        return _GOOD

    def _replays(self, recording: Recording) -> Finding:
        """Replay and compare; every rank does all replays, also after a wrong value."""
        finding = _GOOD
        call = Replay(recording)
        for number in range(1, self._around.config.replays + 1):
            self._progress(f"replay {number}")
            try:
                wrong = self._wrong_value(call)
            except Exception as error:
                wrong = f"raised {type(error).__name__}: {first_line(error)}"
            if wrong is not None and finding is _GOOD:
                reason = self._reason(f"replay {number}", wrong)
                finding = Finding(Verdict.WRONG_AT_REPLAY, reason)
        return finding

    def _reason(self, what: str, wrong: str) -> str:
        return f"{what}, {format_size(self._size)}: {wrong}"

    def _wrong_value(self, call: Call) -> str | None:
        """Run ``call`` once on fresh inputs; return what is wrong with what it left."""
        around = self._around
        if self._buffers.count == 0:
            early = times_left_early(call, around)
            return (
                f"left the barrier before all ranks had entered, {early} times" if early else None
            )
        pattern = self._buffers.pattern(next(self._salts))
        self._buffers.prepare_check(pattern)
        synchronize(around.device)
        call.run_once()
        return wrong_value(self._buffers, pattern)


def wrong_value(buffers: Collective, pattern: Any) -> str | None:
    """Return the first wrong element after a call with the inputs of ``pattern``, None if none.

    Outside of in-place operations a changed input is wrong as well. Local; compares on the host.
    """
    for what, seen, expected in buffers.outcome(pattern):
        wrong = first_wrong(seen.cpu(), expected.cpu())
        if wrong is not None:
            return f"{what} {wrong}"
    return None
