"""What a call costs before any backend does anything: the least that an eager time can be.

The same operation is called on a group of PyTorch's fake backend, which returns at once: what is
left is Python, c10d and the dispatcher. On a GPU a launch comes on top: that of a kernel which does
nothing, from Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from torch_symm.tools.bench.results import Floor

if TYPE_CHECKING:
    from torch_symm.tools.bench.collectives import Collective
    from torch_symm.tools.bench.session import Session

_CALLS = 200  # of a block; nothing waits, so that a queue of launches must have room for them


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - start) / _CALLS


def _launch() -> None:
    torch.cuda._sleep(0)


class FloorBlocks:
    """Blocks that are timed between those of the backends; no rank waits for another."""

    def __init__(self, session: Session, operation: Collective) -> None:
        self._session = session
        self._calls = [lambda: operation.call(session.fake)]
        if session.device.type == "cuda":
            self._calls.append(_launch)
        self._seconds: list[list[float]] = [[] for _ in self._calls]

    def block(self) -> None:
        """Time one block of each part."""
        for call, seconds in zip(self._calls, self._seconds, strict=True):
            seconds.append(_seconds(call))
            if self._session.device.type == "cuda":
                torch.cuda.synchronize()

    def result(self, slowest_us: Callable[[list[float]], float]) -> Floor:
        """Collective."""
        c10d, *launch = map(slowest_us, self._seconds)
        return Floor(c10d, launch[0] if launch else None)
