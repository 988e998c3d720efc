"""How kernel_speed.py times a call: microseconds of the slowest rank, by CUDA's events around
replays of a graph or around plain calls; on a CPU by its clock."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

Call = Callable[[], object]


class Timing:
    """`calls` of a graph, or of a loop; `rounds` of which the median is told."""

    def __init__(self, device: str, rounds: int) -> None:
        self.device, self.rounds = device, rounds

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def meet(self) -> None:
        """Every rank is here, and its device has nothing left to do."""
        self.synchronize()
        dist.barrier()
        self.synchronize()

    def graph_of(self, call: Call, calls: int) -> torch.cuda.CUDAGraph:
        call()  # compiles, and makes what a group makes at its first call
        self.meet()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        # torch.cuda.graph would collect garbage first, which takes longer than what is timed.
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(calls):
                    call()
            finally:
                graph.capture_end()
        return graph

    def captured(self, call: Call, calls: int) -> float:
        """Microseconds of a call in a replay, that one before has brought all ranks together for.
        On a CPU the same as `eager`."""
        if self.device == "cpu":
            return self.eager(call, calls)
        return self._replays(self.graph_of(call, calls).replay, calls)

    def eager(self, call: Call, calls: int) -> float:
        call()

        def loop() -> None:
            for _ in range(calls):
                call()

        return self._replays(loop, calls)

    def _replays(self, replay: Call, calls: int) -> float:
        found = []
        for _ in range(self.rounds):
            self.meet()
            replay()
            found.append(self._once(replay) / calls)
        return slowest(statistics.median(found))

    def _once(self, replay: Call) -> float:
        if self.device == "cpu":
            start = time.perf_counter()
            replay()
            return (time.perf_counter() - start) * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3


def everybody(value: object) -> list:
    found: list = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def slowest(microseconds: float) -> float:
    return round(max(everybody(microseconds)), 3)


def differing(got: torch.Tensor, expected: torch.Tensor) -> int:
    """Of all ranks: how many elements are not what they must be."""
    return sum(everybody(int((got != expected).sum())))


@contextlib.contextmanager
def errors_in(rows: list[dict], **what: object) -> Iterator[None]:
    """What fails is a row that says so; the others go on. Every rank meets the same."""
    try:
        yield
    except Exception as error:
        rows.append({**what, "error": f"{type(error).__name__}: {error}"[:600]})
        tell(rows[-1])


def tell(row: dict) -> None:
    if dist.get_rank() == 0:
        print(row, flush=True)
