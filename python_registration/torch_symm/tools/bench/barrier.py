"""Whether a barrier waits for its last rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch.distributed as dist

# A barrier that does not wait is over long before this.
BARRIER_ENDS_S = 0.02


class BarrierCall(Protocol):
    """One way to run a barrier: eagerly, or by replay of a graph."""

    def run_once(self) -> None:
        """Run the barrier and wait for its end."""

    def enter(self, announce: Callable[[], None]) -> bool:
        """Run a barrier whose last rank waits for ``announce``; tell whether it ended before."""


def times_left_early(
    call: BarrierCall, rank: int, world_size: int, store: dist.Store, serials: Iterator[int]
) -> int:
    """Return in how many rounds this rank left the barrier before all had entered. Collective.

    In round r, rank r enters only after it has seen every other rank announce itself, so a
    barrier that does not block lets the others out too early. ``serials`` gives names in ``store``
    that no earlier check has used; every rank draws from it equally often.
    """
    early = 0
    for late in range(world_size):
        serial = next(serials)
        keys = [f"barrier/{serial}/{other}" for other in range(world_size)]
        others = [key for other, key in enumerate(keys) if other != late]

        # Not set(): that returns before the server has the key, so that a peer could miss it.
        def announce(key: str = keys[rank]) -> None:
            store.add(key, 1)

        left = False
        if rank != late:
            left = call.enter(announce)
        else:
            if others:
                store.wait(others)
            announce()
            call.run_once()
        early += left or not store.check(keys)
    return early
