"""Processes that stay, in which one function after another is carried out."""

import atexit
import contextlib
import time
import traceback

from rank_processes import RankFailure, describe
from torch_symm.tools.ranks.supervisor import RankReport, Supervisor


def _serve(rank, messenger, prepare):
    """A rank's life in RankPool: (function, args) come in, ("value", result) or ("error", text) go
    out, until None comes in."""
    prepare()
    while (call := messenger.receive()) is not None:
        function, args = call
        try:
            outcome = ("value", function(rank, *args))
        except BaseException:
            outcome = ("error", traceback.format_exc())
        messenger.send(outcome)


class RankPool:
    """Ranks 0, 1, ... as processes, started as they are asked for, that carry out functions of
    modules (no closures: they travel by name), `function(rank, *args)` in the first N of them each.
    A pool in which one has failed or hung is closed."""

    _current: "RankPool | None" = None

    @classmethod
    def current(cls, prepare) -> "RankPool":
        """The one pool that is kept, remade after a failure."""
        if cls._current is None or cls._current.closed:
            cls._current = cls(prepare)
        return cls._current

    @classmethod
    def close_current(cls) -> None:
        if cls._current is not None:
            cls._current.close()
            cls._current = None

    def __init__(self, prepare):
        """`prepare()` is called first in each process."""
        self.closed, self._started = False, 0
        self._ranks = Supervisor(_serve, (), (prepare,))

    def run(self, world_size, function, args, time_limit: float) -> list:
        """What the function returned, by rank. Raises RankFailure."""
        while self._started < world_size:
            self._ranks.start(self._started)
            self._started += 1
        outcomes: dict = {}
        try:
            for rank in range(world_size):
                self._ranks.send(rank, (function, args))
            self._gather(outcomes, world_size, time.monotonic() + time_limit)
        except BaseException:  # also pytest-timeout's
            self.close()
            raise
        values = [content for kind, content in outcomes.values() if kind == "value"]
        if len(values) < world_size:
            reports = self.close()[:world_size]
            for report in reports:
                kind, content = outcomes.get(report.rank, (None, None))
                if kind == "error":
                    report.error = content
            raise RankFailure(f"{world_size} ranks in use again:\n" + describe(reports))
        return [outcomes[rank][1] for rank in range(world_size)]

    def _gather(self, outcomes: dict, world_size: int, deadline: float) -> None:
        """Fills in outcomes by rank; has none of a rank that died or was late. After a first
        failure the others have two seconds."""
        while time.monotonic() < deadline:
            messages = self._ranks.listen()
            outcomes.update(messages)
            running = [rank for rank in self._ranks.running() if rank < world_size]
            if not set(running) - outcomes.keys():
                return
            if len(running) < world_size or any(o[0] == "error" for _, o in messages):
                deadline = min(deadline, time.monotonic() + 2.0)

    def close(self) -> list[RankReport]:
        """Ends the ranks: at once where they wait for a call, else by force."""
        if self.closed:
            return []
        self.closed = True
        for rank in self._ranks.running():
            with contextlib.suppress(OSError):  # the rank may be gone
                self._ranks.send(rank, None)
        return self._ranks.finish(3.0, grace=1.0)


atexit.register(RankPool.close_current)
