"""Starts sets of ranks, watches them, and starts a fresh set where one broke.

NOTE [How sets of ranks follow each other]
Every watching process runs the ranks of ``local_ranks``: all of them where the tool was started
plainly, one where torchrun started it. The watcher of rank 0 leads. For each set:

 1. The leader asks its job what is to be done and publishes it; None ends everything.
 2. Every watcher starts its ranks. They get a store prefix that no other set has.
 3. A rank that dies, raises or outruns its limit is a trouble. Its watcher publishes that; all
    watchers then end their ranks.
 4. When the ranks of all watchers have ended, so that their memory and their GPUs are free, the
    leader tells its job about the gravest trouble, if any, and the next set follows.

The ranks are forks of a server process that has imported torch and nothing else, so a set starts
in a fraction of a second, and each rank is a process in which no operation has run.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from enum import IntEnum
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch.distributed as dist

from torch_symm.tools.ranks.launched import launched_world_size
from torch_symm.tools.ranks.process import (
    Begin,
    Complaint,
    Failed,
    Finished,
    RankContext,
    Work,
    run_rank,
)

_POLL_S = 0.05
# Time for the other ranks of a broken set to show their own trouble, which may be the graver one.
_GRACE_S = 0.5
# A rank that has done its work may take this long to leave its groups.
_LEAVE_S = 10.0
_START_S = 120.0
_LEADER_TIMEOUT = timedelta(minutes=10)
_LOOPBACK = "127.0.0.1"
_PRELOADED = ["torch", "torch.distributed", "torch_symm.tools.ranks.process"]


class RunFailed(RuntimeError):
    """The ranks could not be set up at all; the message says on which rank and why."""


class Gravity(IntEnum):
    """How much a trouble explains; a lesser one may follow from a graver one, which is lower."""

    DIED = 0
    RAISED = 1
    LATE = 2


@dataclass(frozen=True)
class Trouble:
    """Why a set of ranks was ended. ``what`` and ``tag`` are the rank's latest Begin."""

    rank: int
    gravity: Gravity
    reason: str
    what: str
    tag: Any

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.reason} ({self.what})"


class Job(Protocol):
    """What the leader asks and tells. All calls come from the thread of Supervisor.run."""

    def assignment(self) -> Any | None:
        """Return what the next set of ranks does, ready for JSON; None: nothing is left."""

    def received(self, content: Any) -> None:
        """Take what rank 0 sent."""

    def ended(self, trouble: Trouble | None) -> None:
        """Take the end of a set: None where every rank has finished."""


@dataclass
class _Watched:
    """One rank's process and what is known of it."""

    rank: int
    process: BaseProcess
    connection: Connection
    deadline: float
    latest: Begin = field(default_factory=lambda: Begin("starting", _START_S))
    failure: str | None = None
    complaint: str | None = None
    # The set is broken, so a complaint is no longer the ranks' own matter.
    blamed: bool = False
    finished: bool = False
    closed: bool = False

    def take(self) -> list[Any]:
        """Return the tool's own messages that have arrived, and note the others."""
        contents = []
        try:
            while not self.closed and self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, Begin):
                    self.latest = message
                    self.complaint = None
                    self.deadline = time.monotonic() + message.limit_s
                elif isinstance(message, Complaint):
                    self.complaint = message.reason
                elif isinstance(message, Failed):
                    self.failure = message.reason
                elif isinstance(message, Finished):
                    self.finished = True
                    self.deadline = time.monotonic() + _LEAVE_S
                else:
                    contents.append(message)
        except (EOFError, OSError):
            self.closed = True
        return contents

    def trouble(self) -> Trouble | None:
        """Return what is wrong with the rank, None while it works and after it has finished."""
        if self.finished:
            return None
        if self.failure is not None:
            return self._trouble(Gravity.RAISED, self.failure)
        if self.complaint is not None and self.blamed:
            return self._trouble(Gravity.RAISED, self.complaint)
        code = self.process.exitcode
        # Not before the end of the line is reached: its last message may still be on it.
        if code is not None and self.closed:
            return self._trouble(Gravity.DIED, _exit_text(code))
        if time.monotonic() > self.deadline:
            return self._trouble(Gravity.LATE, f"did not finish within {self.latest.limit_s:.0f} s")
        return None

    def ended(self) -> bool:
        """Tell whether the process has ended; one that does not leave after its work is killed."""
        if self.process.exitcode is None and self.finished and time.monotonic() > self.deadline:
            print(f"rank {self.rank} was ended: it did not leave its groups", file=sys.stderr)
            self.process.kill()
            self.process.join()
        return self.process.exitcode is not None

    def end(self) -> None:
        """Kill the process if it runs, and wait for its end."""
        if self.process.exitcode is None:
            self.process.kill()
        elif self.finished and self.process.exitcode not in (0, -signal.SIGKILL):
            print(
                f"rank {self.rank} {_exit_text(self.process.exitcode)} after its work, on leaving "
                "its groups",
                file=sys.stderr,
            )
        self.process.join()
        self.connection.close()

    def _trouble(self, gravity: Gravity, reason: str) -> Trouble:
        return Trouble(self.rank, gravity, reason, self.latest.what, self.latest.tag)


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class Supervisor:
    """Runs a job's assignments as sets of ranks.

    ``work`` is a function of a module, called in every rank. ``store`` is at ``host``:``port`` and
    reaches all watchers; ``prefix`` keeps this run apart from others on it. Not thread safe.
    """

    def __init__(
        self,
        work: Work,
        job: Job,
        world_size: int,
        local_ranks: Sequence[int],
        store: dist.Store,
        address: tuple[str, int],
        prefix: str = "symm_ranks",
    ) -> None:
        self._work = work
        self._job = job
        self._world_size = world_size
        self._local_ranks = local_ranks
        self._leads = 0 in local_ranks
        self._store = store
        self._address = address
        self._prefix = prefix
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)

    def run(self) -> None:
        """Run sets of ranks until the job has nothing left. Collective over the watchers."""
        for number in itertools.count():
            assignment = self._agree(number)
            if assignment is None:
                return
            trouble = self._run_set(number, assignment)
            if self._leads:
                self._job.ended(trouble)

    def _key(self, number: int, name: str) -> str:
        return f"{self._prefix}/{number}/{name}"

    def _agree(self, number: int) -> Any | None:
        key = self._key(number, "assignment")
        if self._leads:
            assignment = self._job.assignment()
            self._store.set(key, json.dumps(assignment))
            return assignment
        self._store.wait([key], _LEADER_TIMEOUT)
        return json.loads(self._store.get(key))

    def _start(self, number: int, rank: int, assignment: Any) -> _Watched:
        # A launcher has set LOCAL_RANK for its ranks already.
        alone = len(self._local_ranks) == self._world_size
        host, port = self._address
        prefix = self._key(number, "ranks")
        environment = {"LOCAL_RANK": str(rank)} if alone else {}
        context = RankContext(rank, self._world_size, host, port, prefix, environment)
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=run_rank, args=(self._work, context, assignment, theirs), name=f"rank {rank}"
        )
        process.start()
        theirs.close()
        return _Watched(rank, process, ours, time.monotonic() + _START_S)

    def _run_set(self, number: int, assignment: Any) -> Trouble | None:
        """Run one set to its end; return the gravest trouble of all ranks, on the leader."""
        ranks = [self._start(number, rank, assignment) for rank in self._local_ranks]
        broken = self._key(number, "broken")
        try:
            while not all(rank.finished and rank.ended() for rank in ranks):
                self._listen(ranks)
                if self._publish(number, ranks) or self._store.check([broken]):
                    self._linger(number, ranks)
                    break
        finally:
            for rank in ranks:
                rank.end()
        self._await_all_ended(number)
        return self._gravest(number) if self._leads else None

    def _listen(self, ranks: list[_Watched]) -> None:
        """Wait for news of the ranks, at most one poll interval, and take it."""
        wait(
            [rank.connection for rank in ranks if not rank.closed]
            + [rank.process.sentinel for rank in ranks if not rank.closed],
            timeout=_POLL_S,
        )
        for rank in ranks:
            contents = rank.take()
            if rank.rank == 0:
                for content in contents:
                    self._job.received(content)

    def _publish(self, number: int, ranks: list[_Watched]) -> bool:
        """Publish the troubles of the local ranks; tell whether there are any."""
        troubles = [trouble for rank in ranks if (trouble := rank.trouble()) is not None]
        for trouble in troubles:
            self._store.set(
                self._key(number, f"trouble/{trouble.rank}"), json.dumps(asdict(trouble))
            )
        if troubles:
            self._store.set(self._key(number, "broken"), "1")
        return bool(troubles)

    def _linger(self, number: int, ranks: list[_Watched]) -> None:
        until = time.monotonic() + _GRACE_S
        while time.monotonic() < until:
            self._listen(ranks)
        for rank in ranks:
            rank.blamed = True
        self._publish(number, ranks)

    def _await_all_ended(self, number: int) -> None:
        key = self._key(number, "ended")
        ended = self._store.add(key, len(self._local_ranks))
        while ended < self._world_size:
            time.sleep(_POLL_S)
            ended = self._store.add(key, 0)

    def _gravest(self, number: int) -> Trouble | None:
        troubles = []
        for rank in range(self._world_size):
            key = self._key(number, f"trouble/{rank}")
            if self._store.check([key]):
                troubles.append(Trouble(**json.loads(self._store.get(key))))
        return min(troubles, key=lambda trouble: (trouble.gravity, trouble.rank), default=None)


def supervise(work: Work, job: Job, world_size: int) -> None:
    """Run ``job`` over ``world_size`` ranks: local processes, or one a process of torchrun.

    Only the watcher of rank 0 uses ``job``.
    """
    # Threads of its own in every rank would fight for the cores that the ranks share.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if launched_world_size() is None:
        # This process keeps the store, on a port that the system chooses, so no port is guessed.
        store = dist.TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
        address = (_LOOPBACK, store.port)
        Supervisor(work, job, world_size, range(world_size), store, address).run()
        return
    store, rank, _ = next(iter(dist.rendezvous("env://", timeout=_LEADER_TIMEOUT)))
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    prefix = f"symm_ranks/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    Supervisor(work, job, world_size, (rank,), store, address, prefix).run()
    # The process that keeps the store, if it is one of these, must not end before the others.
    done = store.add(f"{prefix}/done", 1)
    while rank == 0 and done < world_size:
        time.sleep(_POLL_S)
        done = store.add(f"{prefix}/done", 0)
