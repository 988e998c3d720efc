"""Ranks that are forks of this process, which must have no threads; how a report of what became of
them reads; and a Store for them."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import torch.distributed as dist

from torch_symm.tools.ranks.supervisor import RankReport, Supervisor


class RankFailure(AssertionError):
    """At least one rank failed or hung; the message has what every rank was doing."""


def _without_messenger(rank, messenger, function, args):
    return function(rank, *args)


def start_ranks(function, world_size, args=()) -> Supervisor:
    """`function(rank, *args)` begins to run in `world_size` processes."""
    return Supervisor(_without_messenger, range(world_size), (function, args))


def run_processes(function, world_size, *args, time_limit=60.0) -> list[RankReport]:
    """Runs `function(rank, *args)` on `world_size` processes; reports, whatever happened."""
    return start_ranks(function, world_size, args).finish(time_limit)


def describe(reports: list[RankReport]) -> str:
    lines = []
    for r in reports:
        how = "returned" if r.returned else f"exit code {r.exit_code}"
        if r.stacks:
            how = "still running at the time limit or after another rank had failed; killed"
        lines.append(f"--- rank {r.rank}: {how} after {r.seconds:.2f} s")
        if r.error:
            lines.append(r.error.rstrip())
        if r.stacks:
            lines.append(r.stacks.rstrip())
    return "\n".join(lines)


def _serve(rank: int, port: Connection) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port.send(server.port)
    while True:
        signal.pause()


@contextlib.contextmanager
def served_store() -> Iterator[tuple[int, Callable[[], None]]]:
    """(port, what kills the process that serves a TCPStore there).

    A fork of the process in which a Store has its thread can find locks of the C library taken:
    that thread looks up the name of each client, and a child forked meanwhile waits for ever when
    it looks up its own, in glibc's `resolv_conf_get`.
    """
    port, port_of_server = multiprocessing.Pipe(duplex=False)
    server = start_ranks(_serve, 1, (port_of_server,))
    port_of_server.close()  # else nobody would see here that the server has ended
    try:
        yield port.recv(), lambda: server.signal(0, signal.SIGKILL)
    finally:
        server.kill()
