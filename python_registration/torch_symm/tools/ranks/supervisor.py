"""Starts a set of processes, one a rank, listens to them, and ends them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from torch_symm._environment import variables_set
from torch_symm.tools.ranks.process import Raised, Returned, run_rank

_POLL_S = 0.05
# Time for ranks that are to be killed to write where they are.
_STACKS_S = 0.3
_PRELOADED = ["torch", "torch.distributed", "torch_symm.tools.ranks.process"]


@dataclass
class RankReport:
    """What is known of one rank."""

    rank: int
    value: Any = None  # what its function returned
    reason: str = ""  # what its function raised: the type, and the first line of the text
    error: str | None = None  # the same with the traceback
    exit_code: int | None = None  # negative: the signal that ended it; None: it runs
    seconds: float = 0.0  # from the start of the set to its end
    stacks: str = ""  # where its threads were, if it had to be killed

    @property
    def returned(self) -> bool:
        """Tell whether the rank's function returned and its process ended well."""
        return self.exit_code == 0 and self.error is None


def _kill_all(processes: dict[int, BaseProcess]) -> None:
    for process in processes.values():
        process.kill()
        process.join()


class Supervisor:
    """A set of processes, one a rank, in each of which ``function(rank, messenger, *args)`` runs.

    With ``method`` "fork" they are forks of this process, which must have no threads; nothing is
    pickled, so ``function`` may be a closure. With "forkserver" they are forks of a server process
    that has imported torch and nothing else. With "spawn" they are new programs, which have
    ``environment`` besides this process's own. All are dead when kill() or finish() has returned,
    or when the supervisor is gone. Not thread safe.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        ranks: Iterable[int],
        args: tuple[Any, ...] = (),
        method: str = "fork",
        environment: dict[str, str] | None = None,
    ) -> None:
        self._environment = environment or {}
        self._work = (function, args)
        self._method = method
        self._reports: dict[int, RankReport] = {}
        self._processes: dict[int, BaseProcess] = {}
        self._connections: dict[int, Connection] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="symm_stacks_")
        self._started = time.monotonic()
        # Else the end of this process would wait for ranks that nobody has ended.
        Finalize(self, _kill_all, (self._processes,), exitpriority=0)
        self._context = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(_PRELOADED)
        for rank in ranks:
            self.start(rank)

    def start(self, rank: int) -> None:
        """Add a rank to the set: its process begins."""
        function, args = self._work
        self._reports[rank] = RankReport(rank)
        ours, theirs = self._context.Pipe()
        self._connections[rank] = ours
        inherited = list(self._connections.values()) if self._method == "fork" else []
        settings = (function, rank, args, theirs, self._stack_file(rank), inherited)
        process = self._context.Process(target=run_rank, args=settings, name=f"rank {rank}")
        with variables_set(self._environment):
            process.start()
        self._processes[rank] = process
        theirs.close()

    def report(self, rank: int) -> RankReport:
        """Return what is known of ``rank`` so far."""
        return self._reports[rank]

    def running(self) -> list[int]:
        """Return the ranks whose processes have not ended, as far as is known."""
        return [rank for rank, report in self._reports.items() if report.exit_code is None]

    def send(self, rank: int, content: Any) -> None:
        """Hand ``content`` to Messenger.receive of ``rank``. Raises OSError where it has ended."""
        self._connections[rank].send_bytes(pickle.dumps(content))

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to ``rank``, if it runs."""
        process = self._processes[rank]
        if process.exitcode is None:  # asked now: else the number may be another process's by now
            os.kill(process.pid, number)

    def listen(self, timeout_s: float = _POLL_S) -> list[tuple[int, Any]]:
        """Wait for news at most ``timeout_s``; return messages, each with the rank that sent it.

        The messages of a rank come in their order, and all of them before its end is known.
        """
        return self._listen_to(self.running(), timeout_s)

    def _listen_to(self, running: list[int], timeout_s: float) -> list[tuple[int, Any]]:
        lines = [self._connections[rank] for rank in running]
        sources = [self._processes[rank].sentinel for rank in running]
        sources += [line for line in lines if not line.closed]
        if sources:
            wait(sources, max(0.0, timeout_s))
        return [(rank, message) for rank in running for message in self._take(rank)]

    def collect(
        self, deadline: float, leave_out: int | None = None, stop_on_failure: bool = False
    ) -> None:
        """Listen until all ranks but ``leave_out`` have ended, or ``deadline`` (monotonic) is past.

        With ``stop_on_failure``, also until one rank has failed. Drops the ranks' own messages.
        """
        while waiting := [rank for rank in self.running() if rank != leave_out]:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.listen(min(left, _POLL_S))
            ended = set(waiting) - set(self.running())
            if stop_on_failure and not all(self._reports[rank].returned for rank in ended):
                return

    def finish(self, time_limit: float, grace: float | None = None) -> list[RankReport]:
        """Wait at most ``time_limit`` seconds for all ranks, kill what is left, return the reports.

        With ``grace``, wait at most that much longer once one rank has failed.
        """
        deadline = time.monotonic() + time_limit
        try:
            self.collect(deadline, stop_on_failure=grace is not None)
            if grace is not None:
                self.collect(min(deadline, time.monotonic() + grace))
        finally:  # also where a test's time limit raises in this process
            self.kill()
        return list(self._reports.values())

    def kill(self, ranks: Iterable[int] | None = None) -> None:
        """Kill those ranks that run, of ``ranks`` or of all; note where their threads were.

        Drops their own messages.
        """
        asked = [rank for rank in self.running() if ranks is None or rank in ranks]
        self._listen_to(asked, 0.0)
        remaining = [rank for rank in asked if self._reports[rank].exit_code is None]
        for rank in remaining:
            self.signal(rank, signal.SIGCONT)
            if os.path.exists(self._stack_file(rank)):
                self.signal(rank, signal.SIGUSR1)
        deadline = time.monotonic() + _STACKS_S
        while time.monotonic() < deadline and (left := set(remaining) & set(self.running())):
            self._listen_to(list(left), deadline - time.monotonic())
        for rank in remaining:
            if self._reports[rank].exit_code is None:
                self._processes[rank].kill()
                self._processes[rank].join()
                self._take(rank)
            self._reports[rank].stacks = self._stacks(rank)
        if not self.running():
            self._folder.cleanup()

    def _take(self, rank: int) -> list[Any]:
        """Return the messages that have arrived from ``rank``; note its last one and its end."""
        exit_code = self._processes[rank].exitcode  # first: all that it sent has arrived after that
        report, line, messages = self._reports[rank], self._connections[rank], []
        try:
            while not line.closed and line.poll():
                message = pickle.loads(line.recv_bytes())
                if isinstance(message, Returned):
                    report.value = message.value
                elif isinstance(message, Raised):
                    report.reason, report.error = message.reason, message.traceback
                else:
                    messages.append(message)
        except (EOFError, OSError):
            line.close()
        if exit_code is not None:
            report.exit_code = exit_code
            report.seconds = time.monotonic() - self._started
            line.close()
        return messages

    def _stack_file(self, rank: int) -> str:
        return os.path.join(self._folder.name, f"rank_{rank}")

    def _stacks(self, rank: int) -> str:
        """Return what the rank wrote, without the frames below that of its main function."""
        path = Path(self._stack_file(rank))
        lines = path.read_text().splitlines() if path.exists() else []
        last = next((i for i, line in enumerate(lines) if line.endswith(" in run_rank")), None)
        return "\n".join(lines[:last]) or "no stack was written"
