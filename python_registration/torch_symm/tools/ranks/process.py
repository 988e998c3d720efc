"""What runs in the process of a rank, and what it tells its supervisor."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

from torch_symm.tools.ranks.graph import first_line

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Status:
    """The rank does ``what`` and has ``limit_s`` from its beginning until it says the next thing.

    ``tag`` is the tool's own: it comes back with the trouble, if there is any. ``complaint`` says
    what went wrong in it; the rank goes on, and the others may not know yet. Where it has
    ``finished`` its work, what is left is to leave the groups and end.
    """

    what: str
    limit_s: float
    tag: Any = None
    complaint: str | None = None
    finished: bool = False


@dataclass(frozen=True)
class Returned:
    """The last message of a rank whose function returned."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """The last message of a rank whose function raised; ``reason`` is its first line."""

    reason: str
    traceback: str


class Messenger:
    """The rank's end of the line to its supervisor. Not thread safe; a message costs microseconds.

    What is sent is pickled by value: torch would share a tensor's memory, which ends with the rank.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, what: str, limit_s: float, tag: Any = None) -> None:
        """Say what the rank does next and how long that may take."""
        self._say(Status(what, limit_s, tag))

    def complain(self, reason: str) -> None:
        """Say that what was begun went wrong here, before asking the others how they fared.

        If they hang in it, this is what counts, and not that they hang.
        """
        self._say(replace(self._status, complaint=reason))

    def finish(self) -> None:
        """Say that the work is done, before leaving the groups."""
        self._say(replace(self._status, finished=True))

    def _say(self, status: Status) -> None:
        self._status = status
        self.send(status)

    def send(self, content: Any) -> None:
        """Hand ``content`` to the supervisor; the tool's own of rank 0 reaches its job."""
        self._connection.send_bytes(pickle.dumps(content))

    def receive(self) -> Any:
        """Return what Supervisor.send gave; blocks. Raises EOFError where it has hung up."""
        return pickle.loads(self._connection.recv_bytes())


@dataclass(frozen=True)
class RankContext:
    """Where a rank stands and how it reaches the store of its set of ranks."""

    rank: int
    world_size: int
    host: str
    port: int
    prefix: str

    def connect(self, timeout_s: float) -> dist.Store:
        """Return the store that all ranks of this set share and no other set does."""
        timeout = timedelta(seconds=timeout_s)
        store = dist.TCPStore(self.host, self.port, is_master=False, timeout=timeout)
        return dist.PrefixStore(self.prefix, store)


Work = Callable[[RankContext, Any, Messenger], None]


def run_rank(
    function: Callable[..., Any],
    rank: int,
    args: tuple[Any, ...],
    connection: Connection,
    stack_file: str,
    inherited: Sequence[Connection] = (),
) -> None:
    """Call ``function(rank, messenger, *args)`` and tell how it ended. Never returns.

    The main function of a rank's process. Once there is a ``stack_file``, SIGUSR1 makes it write
    there where its threads are. ``inherited`` are the supervisor's ends of lines, which a fork has
    too: were they open here, nobody at the other ends would see that the supervisor hung up.
    """
    # The supervisor may be killed, and its ranks must not outlive it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for other in inherited:
        other.close()
    stacks = open(f"{stack_file}.new", "w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    os.rename(stacks.name, stack_file)  # from now on SIGUSR1 does not end the process
    messenger = Messenger(connection)
    try:
        last = Returned(function(rank, messenger, *args))
    except BaseException as error:
        reason = f"raised {type(error).__name__}: {first_line(error)}"
        last = Raised(reason, traceback.format_exc())
    try:
        messenger.send(last)
    except OSError:  # the supervisor has hung up
        _exit(1)
    except Exception:
        messenger.send(Raised("returned what cannot be pickled", traceback.format_exc()))
        _exit(1)
    _exit(0 if isinstance(last, Returned) else 1)


def _exit(code: int) -> None:
    """End without the destructors, which in a broken group wait for peers that are not coming."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
