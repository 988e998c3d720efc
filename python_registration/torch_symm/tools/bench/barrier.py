"""Whether a barrier waits for its last rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch_symm.tools.ranks.graph import Recording
from torch_symm.tools.ranks.session import RankSession

# A barrier that does not wait is over long before this.
_ENDS_S = 0.02


class Call(ABC):
    """One way to run an operation: eagerly, or by replay of a graph."""

    @abstractmethod
    def run_once(self) -> None:
        """Run the operation, leave the result of one call, and wait for it."""

    def enter(self, announce: Callable[[], None]) -> bool:
        """Run a barrier whose last rank waits for ``announce``; tell whether it ended before."""
        announce()
        self.run_once()
        return False


class Replay(Call):
    """Runs an operation by replay of its recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def run_once(self) -> None:
        self._recording.replay()
        self._recording.wait()

    def enter(self, announce: Callable[[], None]) -> bool:
        self._recording.replay()
        early = self._recording.ends_within(_ENDS_S)
        announce()
        self._recording.wait()
        return early


def times_left_early(call: Call, session: RankSession) -> int:
    """Return in how many rounds this rank left the barrier before all had entered. Collective.

    In round r, rank r enters only after it has seen every other rank announce itself, so a
    barrier that does not block lets the others out too early.
    """
    early = 0
    store, ranks = session.store, range(session.config.ranks)
    for late in ranks:
        serial = next(session.serials)
        keys = [f"barrier/{serial}/{other}" for other in ranks]
        others = [key for other, key in enumerate(keys) if other != late]

        # Not set(): that returns before the server has the key, so that a peer could miss it.
        def announce(key: str = keys[session.rank]) -> None:
            store.add(key, 1)

        left = False
        if session.rank != late:
            left = call.enter(announce)
        else:
            if others:
                store.wait(others)
            announce()
            call.run_once()
        early += left or not store.check(keys)
    return early
