"""How one operation is called and timed: on the host, eagerly on a GPU, and from a graph.

    host   wall time of synchronous calls
    eager  two events around the calls of a block, and the wall time that issuing them took
    graph  the same around replays of a graph that holds ten calls

A GPU block begins with a barrier of the timed group and one step that is not timed: the ranks
leave the barrier some microseconds apart, and the untimed step takes that difference in.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from torch_symm.tools.bench.barrier import Call, Replay
from torch_symm.tools.bench.collectives import Collective
from torch_symm.tools.bench.mpi import MpiGroup
from torch_symm.tools.ranks.device import group_barrier
from torch_symm.tools.ranks.graph import Recording


@dataclass(frozen=True)
class Sample:
    """One block on this rank: seconds a call, and of these the launching thread's, if apart."""

    time_s: float
    launch_s: float | None


class Runner(Call):
    """Calls ``operation`` on ``group``. Everything here is collective over the group.

    A step is what is issued at once: ``calls_per_step`` calls.
    """

    calls_per_step = 1

    def __init__(self, operation: Collective, group: dist.ProcessGroup) -> None:
        self.operation = operation
        self.group = group

    def call(self) -> None:
        """Issue one call."""
        self.operation.call(self.group)

    def prepare(self) -> None:
        """Make ready what the first step needs. The operation has been called before."""

    @abstractmethod
    def block(self, steps: int) -> Sample:
        """Time ``steps`` steps."""

    def close(self) -> None:
        """Give back what ``prepare`` made."""


class HostRunner(Runner):
    """Synchronous calls on the CPU."""

    def meet(self) -> None:
        """Wait for all ranks before a block."""
        dist.barrier(group=self.group)

    def run_once(self) -> None:
        self.call()

    def block(self, steps: int) -> Sample:
        self.meet()
        start = time.perf_counter()
        for _ in range(steps):
            self.call()
        return Sample((time.perf_counter() - start) / steps, None)


class EagerRunner(Runner):
    """Eager calls on the current stream of a GPU."""

    def step(self) -> None:
        """Issue one step."""
        self.call()

    def run_once(self) -> None:
        self.call()
        torch.cuda.synchronize()

    def block(self, steps: int) -> Sample:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        group_barrier(self.group, self.operation.context.device)
        self.step()
        first.record()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        issued_s = time.perf_counter() - start
        last.record()
        last.synchronize()
        calls = steps * self.calls_per_step
        return Sample(first.elapsed_time(last) * 1e-3 / calls, issued_s / calls)


class GraphRunner(EagerRunner):
    """Replays on the current stream of graphs captured on another one."""

    calls_per_step = 10

    def __init__(self, operation: Collective, group: dist.ProcessGroup) -> None:
        super().__init__(operation, group)
        self._timed: Recording | None = None
        self._checked: Recording | None = None

    def prepare(self) -> None:
        stream = torch.cuda.Stream()

        def calls() -> None:
            for _ in range(self.calls_per_step):
                self.call()

        self._timed = Recording(calls, stream)
        # Ten reductions into the same buffer are not one; then a graph of one call is checked.
        self._checked = self._timed
        if not self.operation.repeatable or self.operation.count == 0:
            self._checked = Recording(self.call, stream)

    def step(self) -> None:
        self._timed.replay()

    def run_once(self) -> None:
        self._checked.replay()
        torch.cuda.synchronize()

    def enter(self, announce: Callable[[], None]) -> bool:
        return Replay(self._checked).enter(announce)

    def close(self) -> None:
        for recording in (self._timed, self._checked):
            if recording is not None:
                recording.close()
        self._timed = self._checked = None


class MpiRunner(HostRunner):
    """Synchronous calls of MPI."""

    def __init__(self, operation: Collective, group: MpiGroup) -> None:
        super().__init__(operation, group)
        self._call: Callable[[], object] | None = None

    def call(self) -> None:
        if self._call is None:  # made here, where a refusal is expected
            self._call = self.group.call_of(self.operation)
        self._call()

    def meet(self) -> None:
        self.group.barrier()


def runner_for(mode: str, operation: Collective, group: dist.ProcessGroup | MpiGroup) -> Runner:
    """Return what calls and times ``operation`` in ``mode``."""
    if isinstance(group, MpiGroup):
        return MpiRunner(operation, group)
    if operation.context.device.type == "cpu":
        return HostRunner(operation, group)
    return (GraphRunner if mode == "graph" else EagerRunner)(operation, group)
