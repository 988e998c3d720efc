"""Processes that are forks of this one, what becomes of them, and how a report of it reads."""

import ctypes
import dataclasses
import faulthandler
import os
import pickle
import select
import signal
import struct
import sys
import tempfile
import time
import traceback

_PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class RankFailure(AssertionError):
    """At least one rank failed or hung; the message has what every rank was doing."""


@dataclasses.dataclass
class RankReport:
    """What one rank's process left behind."""

    rank: int
    value: object = None
    error: str | None = None  # formatted traceback
    exit_code: int | None = None  # negative: the signal that ended it
    seconds: float = 0.0
    stacks: str = ""  # where its threads stood, if it had to be killed

    @property
    def returned(self) -> bool:
        return self.exit_code == 0 and self.error is None


def _die_with_parent() -> None:
    LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _child(rank, function, args, pipe_fd, stack_file) -> None:
    """The life of a rank; never returns."""
    _die_with_parent()
    signal.alarm(0)
    faulthandler.register(signal.SIGUSR1, file=stack_file, all_threads=True)
    try:
        outcome = ("value", function(rank, *args))
    except BaseException:
        outcome = ("error", traceback.format_exc())
    try:
        payload = pickle.dumps(outcome)
    except Exception:
        payload = pickle.dumps(("error", "result is not picklable: " + traceback.format_exc()))
    with os.fdopen(pipe_fd, "wb") as pipe:
        pipe.write(struct.pack("<Q", len(payload)) + payload)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if outcome[0] == "value" else 1)


class Ranks:
    """N running rank processes. `function(rank, *args)` runs in each."""

    def __init__(self, function, world_size, args=()):
        self.pids: list[int] = []
        self._started = time.monotonic()
        self._pipes: list[int] = []
        self._buffers = [b"" for _ in range(world_size)]
        self._stack_files = [tempfile.TemporaryFile("w+") for _ in range(world_size)]
        self._reports = [RankReport(rank) for rank in range(world_size)]
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(world_size):
            read_fd, write_fd = os.pipe()
            pid = os.fork()
            if pid == 0:
                for fd in [*self._pipes, read_fd]:
                    os.close(fd)
                _child(rank, function, args, write_fd, self._stack_files[rank])
            os.close(write_fd)
            self.pids.append(pid)
            self._pipes.append(read_fd)

    def running(self) -> list[int]:
        return [r.rank for r in self._reports if r.exit_code is None]

    def signal(self, rank: int, number: int) -> None:
        if self._reports[rank].exit_code is None:
            os.kill(self.pids[rank], number)

    def _reap(self, rank: int) -> None:
        """The pipe of `rank` has closed, so its process is ending: fill in its report."""
        report = self._reports[rank]
        _, status = os.waitpid(self.pids[rank], 0)
        report.exit_code = os.waitstatus_to_exitcode(status)
        report.seconds = time.monotonic() - self._started
        os.close(self._pipes[rank])
        data = self._buffers[rank]
        if len(data) >= 8 and len(data) == 8 + struct.unpack("<Q", data[:8])[0]:
            kind, content = pickle.loads(data[8:])
            if kind == "value":
                report.value = content
            else:
                report.error = content

    def _read_once(self, deadline: float) -> list[int]:
        """Waits for output of any rank; the ranks that have ended."""
        by_fd = {self._pipes[rank]: rank for rank in self.running()}
        left = max(0.0, deadline - time.monotonic())
        ended = []
        for fd in select.select(list(by_fd), [], [], left)[0]:
            data = os.read(fd, 1 << 20)
            if data:
                self._buffers[by_fd[fd]] += data
            else:
                self._reap(by_fd[fd])
                ended.append(by_fd[fd])
        return ended

    def collect(self, deadline: float, stop_on_failure: bool = False) -> None:
        """Gathers reports until all ranks have ended, `deadline` (monotonic) has passed, or, with
        stop_on_failure, one rank has failed."""
        while self.running() and time.monotonic() < deadline:
            ended = self._read_once(deadline)
            if stop_on_failure and not all(self._reports[rank].returned for rank in ended):
                return

    def collect_but(self, stopped: int, deadline: float) -> None:
        """Gathers the reports of all ranks but one, which is not running."""
        while [rank for rank in self.running() if rank != stopped]:
            if time.monotonic() > deadline:
                return
            self._read_once(deadline)

    def kill(self) -> None:
        """Records where the remaining ranks stand, then ends them."""
        remaining = self.running()
        for rank in remaining:
            os.kill(self.pids[rank], signal.SIGCONT)
            os.kill(self.pids[rank], signal.SIGUSR1)
        self.collect(time.monotonic() + 0.3)
        for rank in self.running():
            os.kill(self.pids[rank], signal.SIGKILL)
            self._reap(rank)
        for rank in remaining:
            self._stack_files[rank].seek(0)
            # Below _child() stand only the frames of the zygote.
            lines = self._stack_files[rank].read().splitlines()
            last = next((i for i, line in enumerate(lines) if line.endswith(" in _child")), None)
            self._reports[rank].stacks = "\n".join(lines[:last]) or "no stack was written"

    def finish(self, time_limit: float, grace: float | None = None) -> list[RankReport]:
        """Waits at most `time_limit` seconds for all ranks; with `grace`, at most that much longer
        once one rank has failed. Kills what is left and returns all reports."""
        deadline = time.monotonic() + time_limit
        try:
            self.collect(deadline, stop_on_failure=grace is not None)
            if grace is not None:
                self.collect(min(deadline, time.monotonic() + grace))
        finally:  # also when pytest-timeout raises in this process
            self.kill()
        for file in self._stack_files:
            file.close()
        return self._reports


def describe(reports: list[RankReport]) -> str:
    lines = []
    for r in reports:
        how = "returned" if r.returned else f"exit code {r.exit_code}"
        if r.stacks:
            how = "still running at the time limit or after another rank had failed; killed"
        lines.append(f"--- rank {r.rank}: {how} after {r.seconds:.2f} s")
        if r.error:
            lines.append(r.error.rstrip())
        if r.stacks:
            lines.append(r.stacks.rstrip())
    return "\n".join(lines)


def run_processes(function, world_size, *args, time_limit=60.0) -> list[RankReport]:
    """Runs `function(rank, *args)` on `world_size` processes; reports, whatever happened."""
    return Ranks(function, world_size, args).finish(time_limit)
