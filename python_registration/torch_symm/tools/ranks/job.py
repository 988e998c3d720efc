"""Gives a job's assignments to sets of ranks, and starts a fresh set where one broke.

NOTE [How sets of ranks follow each other]
Every watching process supervises the ranks of ``local_ranks``: all of them where the tool was
started plainly, one where torchrun started it. The watcher of rank 0 leads. For each set:

 1. The leader asks its job what is to be done and publishes it; None ends everything.
 2. Every watcher starts its ranks. They get a store prefix that no other set has.
 3. A rank that dies, raises or outruns its limit is a trouble. Its watcher publishes that; all
    watchers then end their ranks.
 4. When the ranks of all watchers have ended, so that their memory and their GPUs are free, the
    leader tells its job about the gravest trouble, if any, and the next set follows.

A set starts in a fraction of a second, or where it must import torch anew in some seconds, and each
rank is a process in which no operation has run.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Any, Protocol

import torch.distributed as dist

from torch_symm.tools.ranks.launched import launched_world_size
from torch_symm.tools.ranks.process import (
    Messenger,
    RankContext,
    Status,
    Work,
)
from torch_symm.tools.ranks.supervisor import RankReport, Supervisor

_POLL_S = 0.05
# Time for the other ranks of a broken set to show their own trouble, which may be the graver one.
_GRACE_S = 0.5
# A rank that has done its work may take this long to leave its groups.
_LEAVE_S = 10.0
_START_S = 120.0
_LEADER_TIMEOUT = timedelta(minutes=10)
_LOOPBACK = "127.0.0.1"


class RunFailed(RuntimeError):
    """The ranks could not be set up at all; the message says on which rank and why."""


class Gravity(IntEnum):
    """How much a trouble explains; a lesser one may follow from a graver one, which is lower."""

    DIED = 0
    RAISED = 1
    LATE = 2


@dataclass(frozen=True)
class Trouble:
    """Why a set of ranks was ended. ``what`` and ``tag`` are the rank's status."""

    rank: int
    gravity: Gravity
    reason: str
    what: str
    tag: Any

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.reason} ({self.what})"


class Job(Protocol):
    """What the leader asks and tells. All calls come from the thread of supervise()."""

    def assignment(self) -> Any | None:
        """Return what the next set of ranks does; None: nothing is left."""

    def environment(self, assignment: Any) -> dict[str, str]:
        """Return what the ranks must find in their environment before they import torch.

        Every watcher asks, so that ``assignment`` alone may say. Empty: nothing of the kind, and
        the ranks start sooner, as forks of a process that has imported torch.
        """
        del assignment
        return {}

    def received(self, content: Any) -> None:
        """Take what rank 0 sent."""

    def ended(self, trouble: Trouble | None) -> None:
        """Take the end of a set: None where every rank has finished."""


@dataclass
class _Watched:
    """What a watcher knows of one rank by what it said."""

    report: RankReport
    deadline: float
    status: Status = field(default_factory=lambda: Status("starting", _START_S))
    # The set is broken, so a complaint is no longer the ranks' own matter.
    blamed: bool = False

    def take(self, message: Any) -> bool:
        """Note what the rank says of itself; tell whether ``message`` is that."""
        if not isinstance(message, Status):
            return False
        self.status = message
        if message.finished:
            self.deadline = time.monotonic() + _LEAVE_S
        elif message.complaint is None:
            self.deadline = time.monotonic() + message.limit_s
        return True

    def trouble(self) -> Trouble | None:
        """Return what is wrong with the rank, None while it works and after it has finished."""
        if self.status.finished:
            return None
        if self.report.error is not None:
            return self._trouble(Gravity.RAISED, self.report.reason)
        if self.status.complaint is not None and self.blamed:
            return self._trouble(Gravity.RAISED, self.status.complaint)
        if self.report.exit_code is not None:
            return self._trouble(Gravity.DIED, _exit_text(self.report.exit_code))
        if self.late():
            return self._trouble(Gravity.LATE, f"did not finish within {self.status.limit_s:.0f} s")
        return None

    def late(self) -> bool:
        """Tell whether the rank's time for what it does is over."""
        return time.monotonic() > self.deadline

    def show_end(self) -> None:
        """Print what the rank raised, and how it ended where that was after its work."""
        code = self.report.exit_code
        if self.report.error is not None:
            print(self.report.error, file=sys.stderr)
        if self.status.finished and code not in (0, -signal.SIGKILL):
            how = f"{_exit_text(code)} after its work, on leaving its groups"
            print(f"rank {self.report.rank} {how}", file=sys.stderr)

    def _trouble(self, gravity: Gravity, reason: str) -> Trouble:
        return Trouble(self.report.rank, gravity, reason, self.status.what, self.status.tag)


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _do_work(
    rank: int, messenger: Messenger, work: Work, place: tuple[int, str, int, str], assignment: Any
) -> None:
    # A launcher has set LOCAL_RANK for its ranks already.
    if launched_world_size() is None:
        os.environ["LOCAL_RANK"] = str(rank)
    work(RankContext(rank, *place), assignment, messenger)


def _await_count(store: dist.Store, key: str, arrived: int, total: int) -> None:
    """Add ``arrived`` to the count at ``key`` and wait until it is ``total``."""
    count = store.add(key, arrived)
    while count < total:
        time.sleep(_POLL_S)
        count = store.add(key, 0)


@dataclass
class _JobRunner:
    """Runs a job's assignments as sets of ranks.

    ``work`` is a function of a module, called in every rank. ``store`` is at ``address``, host and
    port, and reaches all watchers; ``prefix`` keeps this run apart from others on it. Not thread
    safe.
    """

    work: Work
    job: Job
    world_size: int
    local_ranks: Sequence[int]
    store: dist.Store
    address: tuple[str, int]
    prefix: str = "symm_ranks"

    def run(self) -> None:
        """Run sets of ranks until the job has nothing left. Collective over the watchers."""
        for number in itertools.count():
            assignment = self._agree(number)
            if assignment is None:
                return
            trouble = self._run_set(number, assignment)
            if 0 in self.local_ranks:
                self.job.ended(trouble)

    def _key(self, number: int, name: str) -> str:
        return f"{self.prefix}/{number}/{name}"

    def _agree(self, number: int) -> Any | None:
        key = self._key(number, "assignment")
        if 0 in self.local_ranks:
            assignment = self.job.assignment()
            self.store.set(key, pickle.dumps(assignment))
            return assignment
        self.store.wait([key], _LEADER_TIMEOUT)
        return pickle.loads(self.store.get(key))

    def _run_set(self, number: int, assignment: Any) -> Trouble | None:
        """Run one set to its end; return the gravest trouble of all ranks, on the leader."""
        place = (self.world_size, *self.address, self._key(number, "ranks"))
        work = (self.work, place, assignment)
        # Not forks of this process: the store has a thread here.
        environment = self.job.environment(assignment)
        method = "spawn" if environment else "forkserver"
        supervisor = Supervisor(_do_work, self.local_ranks, work, method, environment)
        limit = time.monotonic() + _START_S
        ranks = {rank: _Watched(supervisor.report(rank), limit) for rank in self.local_ranks}
        broken = self._key(number, "broken")
        try:
            while not self._all_left(supervisor, ranks):
                self._listen(supervisor, ranks)
                if self._publish(number, ranks) or self.store.check([broken]):
                    self._linger(number, supervisor, ranks)
                    break
        finally:
            supervisor.kill()
        for rank in ranks.values():
            rank.show_end()
        _await_count(self.store, self._key(number, "ended"), len(self.local_ranks), self.world_size)
        return self._gravest(number) if 0 in self.local_ranks else None

    def _all_left(self, supervisor: Supervisor, ranks: dict[int, _Watched]) -> bool:
        """Tell whether all ranks have done their work and ended; kill those that do not leave."""
        running = supervisor.running()
        for rank in running:
            if ranks[rank].status.finished and ranks[rank].late():
                print(f"rank {rank} was ended: it did not leave its groups", file=sys.stderr)
                supervisor.kill([rank])
        return not running and all(rank.status.finished for rank in ranks.values())

    def _listen(self, supervisor: Supervisor, ranks: dict[int, _Watched]) -> None:
        """Wait for news of the ranks, at most one poll interval, and take it."""
        for rank, message in supervisor.listen(_POLL_S):
            if not ranks[rank].take(message) and rank == 0:
                self.job.received(message)

    def _publish(self, number: int, ranks: dict[int, _Watched]) -> bool:
        """Publish the troubles of the local ranks; tell whether there are any."""
        found = [trouble for rank in ranks.values() if (trouble := rank.trouble()) is not None]
        for trouble in found:
            self.store.set(self._key(number, f"trouble/{trouble.rank}"), pickle.dumps(trouble))
        if found:
            self.store.set(self._key(number, "broken"), "1")
        return bool(found)

    def _linger(self, number: int, supervisor: Supervisor, ranks: dict[int, _Watched]) -> None:
        until = time.monotonic() + _GRACE_S
        while supervisor.running() and time.monotonic() < until:
            self._listen(supervisor, ranks)
        for rank in ranks.values():
            rank.blamed = True
        self._publish(number, ranks)

    def _gravest(self, number: int) -> Trouble | None:
        troubles = []
        for rank in range(self.world_size):
            key = self._key(number, f"trouble/{rank}")
            if self.store.check([key]):
                troubles.append(pickle.loads(self.store.get(key)))
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
        _JobRunner(work, job, world_size, range(world_size), store, address).run()
        return
    store, rank, _ = next(iter(dist.rendezvous("env://", timeout=_LEADER_TIMEOUT)))
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    prefix = f"symm_ranks/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    _JobRunner(work, job, world_size, (rank,), store, address, prefix).run()
    # The process that keeps the store, if it is one of these, must not end before the others.
    _await_count(store, f"{prefix}/done", 1, world_size if rank == 0 else 1)
