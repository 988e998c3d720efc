"""Ranks that stay: one default group in which one function after another is carried out."""

import atexit
import contextlib
import tempfile
import time
import traceback

from rank_processes import RankFailure, describe
from torch_symm.tools.ranks.supervisor import RankReport, Supervisor


def _serve(rank, messenger, world_size, join, folder):
    """A rank's life in RankPool: (function, args) come in, ("value", result) or ("error", text) go
    out, until None comes in."""
    join(rank, world_size, folder)
    while (call := messenger.receive()) is not None:
        function, args = call
        try:
            outcome = ("value", function(rank, *args))
        except BaseException:
            outcome = ("error", traceback.format_exc())
        messenger.send(outcome)


class RankPool:
    """N ranks in one default group that carry out functions of modules (no closures: they travel
    by name), all ranks each. A pool in which one has failed or hung is closed."""

    _current: "RankPool | None" = None

    @classmethod
    def of(cls, world_size: int, join) -> "RankPool":
        """The one pool that is kept, remade for another world size and after a failure.
        `join(rank, world_size, folder)` makes the group; it runs in each rank."""
        pool = cls._current
        if pool is None or pool.world_size != world_size or pool.closed:
            cls.close_current()
            cls._current = pool = cls(world_size, join)
        return pool

    @classmethod
    def close_current(cls) -> None:
        if cls._current is not None:
            cls._current.close()
            cls._current = None

    def __init__(self, world_size: int, join):
        self.world_size, self.closed = world_size, False
        self._folder = tempfile.TemporaryDirectory(prefix="symm_pool_")
        settings = (world_size, join, self._folder.name)
        self._ranks = Supervisor(_serve, range(world_size), settings)

    def run(self, function, args, time_limit: float) -> list:
        outcomes: dict = {}
        try:
            for rank in self._ranks.running():
                self._ranks.send(rank, (function, args))
            self._gather(outcomes, time.monotonic() + time_limit)
        except BaseException:  # also pytest-timeout's
            self.close()
            raise
        values = [content for kind, content in outcomes.values() if kind == "value"]
        if len(values) < self.world_size:
            reports = self.close()
            for report in reports:
                kind, content = outcomes.get(report.rank, (None, None))
                if kind == "error":
                    report.error = content
            raise RankFailure(f"{self.world_size} ranks in use again:\n" + describe(reports))
        return [outcomes[rank][1] for rank in range(self.world_size)]

    def _gather(self, outcomes: dict, deadline: float) -> None:
        """Fills in outcomes by rank; has none of a rank that died or was late. After a first
        failure the others have two seconds."""
        while time.monotonic() < deadline:
            messages = self._ranks.listen()
            outcomes.update(messages)
            running = self._ranks.running()
            if not set(running) - outcomes.keys():
                return
            if len(running) < self.world_size or any(o[0] == "error" for _, o in messages):
                deadline = min(deadline, time.monotonic() + 2.0)

    def close(self) -> list[RankReport]:
        """Ends the ranks: at once where they wait for a call, else by force."""
        if self.closed:
            return []
        self.closed = True
        for rank in self._ranks.running():
            with contextlib.suppress(OSError):  # the rank may be gone
                self._ranks.send(rank, None)
        reports = self._ranks.finish(3.0, grace=1.0)
        self._folder.cleanup()
        return reports


atexit.register(RankPool.close_current)
