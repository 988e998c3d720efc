"""Processes that stay, in which one function after another is carried out.

NOTE [Closures that travel]
pickle sends a function by its name, which one inside another function has not. A rank was forked
from this process and has the same modules, and so the closure's code among the constants of the
function around it: packed() sends where it stands, its defaults, and what it has closed over.
"""

import atexit
import contextlib
import importlib
import io
import pickle
import time
import traceback
import types

from rank_processes import RankFailure, describe
from torch_symm.tools.ranks.supervisor import RankReport, Supervisor


def packed(value) -> bytes:
    """As pickle.dumps(); takes closures, too: NOTE [Closures that travel]."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value):
        if not isinstance(value, types.FunctionType) or "<locals>" not in value.__qualname__:
            return NotImplemented
        place = value.__qualname__.replace(".<locals>", "").split(".")
        _code_at(value.__module__, place)  # raises here if it is not to be found there
        contents = [cell.cell_contents for cell in value.__closure__ or ()]
        defaults = value.__defaults__, value.__kwdefaults__
        return _rebuilt, (value.__module__, place, contents, *defaults)


def _code_at(module: str, place: list[str]) -> types.CodeType:
    outermost, *inner = place
    code = getattr(importlib.import_module(module), outermost).__code__
    for name in inner:
        found = [c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name]
        if len(found) != 1:
            raise pickle.PicklingError(f"{'.'.join(place)}: {len(found)} functions have this name")
        code = found[0]
    return code


def _rebuilt(module, place, contents, defaults, keyword_defaults) -> types.FunctionType:
    names = importlib.import_module(module).__dict__
    cells = tuple(types.CellType(content) for content in contents)
    function = types.FunctionType(_code_at(module, place), names, place[-1], defaults, cells)
    function.__kwdefaults__ = keyword_defaults
    return function


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
    modules (closures travel by packed()), `function(rank, *args)` in the first N of them each.
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
