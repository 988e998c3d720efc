"""Ranks that stay: one default group in which one function after another is carried out."""

import atexit
import contextlib
import functools
import pickle
import select
import socket
import struct
import tempfile
import time
import traceback

from rank_processes import RankFailure, RankReport, Ranks, describe


def _send_object(connection: socket.socket, value) -> None:
    payload = pickle.dumps(value)
    connection.sendall(struct.pack("<Q", len(payload)) + payload)


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(min(1 << 20, count - len(data)))
        if not piece:
            raise EOFError("the other end has closed")
        data += piece
    return data


def _receive_object(connection: socket.socket):
    (length,) = struct.unpack("<Q", _receive_bytes(connection, 8))
    return pickle.loads(_receive_bytes(connection, length))


def _serve(rank, prepare, connections):
    """A rank's life in RankPool: calls come in, ("value", result) or ("error", text) go out."""
    connection = connections[rank]
    for other in connections:
        if other is not connection:
            other.close()  # else nobody would see that another rank has ended
    prepare(rank)
    while True:
        try:
            function, args = _receive_object(connection)
        except EOFError:
            return
        try:
            outcome = ("value", function(rank, *args))
        except BaseException:
            outcome = ("error", traceback.format_exc())
        _send_object(connection, outcome)


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
        pairs = [socket.socketpair() for _ in range(world_size)]
        self._mine = [pair[0] for pair in pairs]
        theirs = [pair[1] for pair in pairs]
        prepare = functools.partial(join, world_size=world_size, folder=self._folder.name)
        self._ranks = Ranks(_serve, world_size, (prepare, theirs))
        for connection in theirs:
            connection.close()

    def run(self, function, args, time_limit: float) -> list:
        outcomes: list = [None] * self.world_size
        try:
            for connection in self._mine:
                _send_object(connection, (function, args))
            self._gather(outcomes, time.monotonic() + time_limit)
        except BaseException:  # also pytest-timeout's
            self.close()
            raise
        failed = [o for o in outcomes if o is None or o[0] != "value"]
        if failed:
            reports = self.close()
            for report, outcome in zip(reports, outcomes, strict=True):
                if outcome is not None and outcome[0] == "error":
                    report.error = outcome[1]
            raise RankFailure(f"{self.world_size} ranks in use again:\n" + describe(reports))
        return [outcome[1] for outcome in outcomes]

    def _gather(self, outcomes: list, deadline: float) -> None:
        """Fills in outcomes; leaves None where a rank died or was late. After a first failure the
        others have two seconds."""
        waiting = {self._mine[rank]: rank for rank in range(self.world_size)}
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            ready = select.select(list(waiting), [], [], left)[0]
            if not ready:
                return
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    outcomes[rank] = _receive_object(connection)
                except (EOFError, ConnectionError):
                    outcomes[rank] = None
                if outcomes[rank] is None or outcomes[rank][0] == "error":
                    deadline = min(deadline, time.monotonic() + 2.0)

    def close(self) -> list[RankReport]:
        """Ends the ranks: at once where they wait for a call, else by force."""
        if self.closed:
            return []
        self.closed = True
        for connection in self._mine:
            with contextlib.suppress(OSError):  # the rank may be gone
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        reports = self._ranks.finish(3.0, grace=1.0)
        self._folder.cleanup()
        return reports


atexit.register(RankPool.close_current)
