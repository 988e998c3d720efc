"""How one operation is called and timed: on the host, eagerly on a GPU, and from a graph.

    host   wall time of synchronous calls
    eager  two events around the calls of a block, and the wall time that issuing them took
    graph  the same around replays of a graph that holds ten calls
    overlapped  as eager, each call on a stream of its own beside products on the current one

A GPU block begins with a barrier of the timed group and one step that is not timed: the ranks
leave the barrier some microseconds apart, and the untimed step takes that difference in.
"""

from __future__ import annotations

import functools
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from torch_symm.tools.bench.barrier import Call, Replay
from torch_symm.tools.bench.collectives import Collective
from torch_symm.tools.bench.mpi import MpiGroup
from torch_symm.tools.bench.torch_symm_mem import TorchSymmGroup
from torch_symm.tools.ranks.device import group_barrier
from torch_symm.tools.ranks.graph import Recording

_SIDES = (256, 512, 1024, 2048, 4096, 8192)
_ALONE = 10  # times that products are issued to time them

# What an operation runs over.
Group = dist.ProcessGroup | MpiGroup | TorchSymmGroup


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

    def __init__(self, operation: Collective, group: Group) -> None:
        self.operation = operation
        self.group = group
        self._call: Callable[[], object] | None = None

    def call(self) -> None:
        """Issue one call."""
        if self._call is None:  # made here, where a refusal is expected
            if isinstance(self.group, dist.ProcessGroup):
                self._call = functools.partial(self.operation.call, self.group)
            else:
                self._call = self.group.call_of(self.operation)
        self._call()

    def meet(self) -> None:
        """Wait for all ranks before a block."""
        if isinstance(self.group, dist.ProcessGroup):
            group_barrier(self.group, self.operation.context.device)
        else:
            self.group.barrier()

    def prepare(self) -> None:
        """Make ready what the first step needs. The operation has been called before."""

    @abstractmethod
    def block(self, steps: int) -> Sample:
        """Time ``steps`` steps."""

    def close(self) -> None:
        """Give back what ``prepare`` made."""


class HostRunner(Runner):
    """Synchronous calls on the CPU."""

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
        self.meet()
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


class Products:
    """``count`` products of two square matrices of bfloat16, issued on the current stream."""

    def __init__(self, side: int, count: int, device: torch.device) -> None:
        self.side = side
        self.count = count
        self._matrices = [
            torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(3)
        ]

    def issue(self) -> None:
        """Issue all of them."""
        left, right, product = self._matrices
        for _ in range(self.count):
            torch.mm(left, right, out=product)

    def seconds(self) -> float:
        """Return what they take alone, from a block that follows one which is not timed."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for event in (first, last):
            for _ in range(_ALONE):
                self.issue()
            event.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / _ALONE


def fitting(seconds: float, seconds_of: Callable[[int], float]) -> tuple[int, int]:
    """Return side and count of products that take about ``seconds``.

    They are of the largest side of which one product takes no longer, by ``seconds_of`` a side.
    """
    side, one_s = _SIDES[0], seconds_of(_SIDES[0])
    for larger in _SIDES[1:]:
        if (larger_s := seconds_of(larger)) > seconds:
            break
        side, one_s = larger, larger_s
    return side, max(round(seconds / one_s), 1)


class OverlappedRunner(EagerRunner):
    """Calls on a stream of their own, each beside ``products`` on the current stream."""

    def __init__(self, operation: Collective, group: Group, products: Products) -> None:
        super().__init__(operation, group)
        self._products = products
        self._stream = torch.cuda.Stream()

    def step(self) -> None:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self.call()
        self._products.issue()
        current.wait_stream(self._stream)

    def run_once(self) -> None:
        self.step()
        torch.cuda.synchronize()


class GraphRunner(EagerRunner):
    """Replays on the current stream of graphs captured on another one."""

    calls_per_step = 10

    def __init__(self, operation: Collective, group: Group) -> None:
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


def runner_for(
    mode: str, operation: Collective, group: Group, products: Products | None = None
) -> Runner:
    """Return what calls and times ``operation`` in ``mode``, beside ``products`` if there are."""
    if operation.context.device.type == "cpu":
        return HostRunner(operation, group)
    if products is not None:
        return OverlappedRunner(operation, group, products)
    return (GraphRunner if mode == "graph" else EagerRunner)(operation, group)
