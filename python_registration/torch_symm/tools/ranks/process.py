"""What runs in the process of a rank, and what it tells the process that watches it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

from torch_symm.tools.ranks.graph import first_line

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Begin:
    """The rank starts ``what`` and has ``limit_s`` from now on, until it says the next thing.

    ``tag`` is the tool's own: it comes back with the trouble, if there is any.
    """

    what: str
    limit_s: float
    tag: Any = None


@dataclass(frozen=True)
class Complaint:
    """What the rank has begun went wrong; it goes on, and the others may not know yet."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The rank's work raised."""

    reason: str


@dataclass(frozen=True)
class Finished:
    """The rank's work is done; what is left is to leave the groups and end."""


class Messenger:
    """The rank's end of the line to its watcher. Not thread safe; a message costs microseconds."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, what: str, limit_s: float, tag: Any = None) -> None:
        """Say what the rank does next and how long that may take."""
        self.send(Begin(what, limit_s, tag))

    def complain(self, reason: str) -> None:
        """Say that what was begun went wrong here, before asking the others how they fared.

        If they hang in it, this is what counts, and not that they hang.
        """
        self.send(Complaint(reason))

    def finish(self) -> None:
        """Say that the work is done, before leaving the groups."""
        self.send(Finished())

    def send(self, content: Any) -> None:
        """Hand ``content`` to the watcher; the tool's own of rank 0 reaches its job."""
        self._connection.send(content)


@dataclass(frozen=True)
class RankContext:
    """The rank of a process, and how it reaches the store of its set of ranks."""

    rank: int
    world_size: int
    host: str
    port: int
    prefix: str
    environment: dict[str, str]

    def connect(self, timeout_s: float) -> dist.Store:
        """Return the store that all ranks of this set share and no other set does."""
        timeout = timedelta(seconds=timeout_s)
        store = dist.TCPStore(self.host, self.port, is_master=False, timeout=timeout)
        return dist.PrefixStore(self.prefix, store)


Work = Callable[[RankContext, Any, Messenger], None]


def run_rank(work: Work, context: RankContext, assignment: Any, connection: Connection) -> None:
    """Do ``assignment`` as one rank. The main function of a rank's process."""
    # The watcher may be killed, and its ranks must not outlive it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.environ.update(context.environment)
    try:
        work(context, assignment, Messenger(connection))
    except Exception as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send(Failed(f"raised {type(error).__name__}: {first_line(error)}"))
        _exit(1)
    _exit(0)


def _exit(code: int) -> None:
    """End without the destructors, which in a broken group wait for peers that are not coming."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
