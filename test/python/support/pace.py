"""How long the machine itself kept a thread waiting, for tests that measure time."""

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_QUEUE = Path("/proc/thread-self/schedstat")  # not of every kernel


def _seconds_waited() -> float:
    """By this thread, for a processor; and what was stolen from a virtual machine's processors."""
    queued = int(_QUEUE.read_text().split()[1]) / 1e9 if _QUEUE.exists() else 0.0
    with open("/proc/stat") as file:
        stolen = int(file.readline().split()[8]) / _TICK
    return queued + stolen


class Pace:
    """`held_up`: seconds inside the with block in which this thread could have run and had no
    processor; what the program itself waits for does not count."""

    held_up = 0.0

    def __enter__(self):
        self._before = _seconds_waited()
        return self

    def __exit__(self, *_):
        self.held_up = _seconds_waited() - self._before
