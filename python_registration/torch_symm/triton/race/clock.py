"""The vector clock of this process, and the lines of kernels that accesses are noted with.

NOTE [Lanes]
The interpreter runs a kernel's programs one after another, on a GPU they run at once: that program
0 has read something orders nothing for program 1. So a rank has several lanes, each with steps of
its own, and a program is in one of them. It knows what the launch knew when it began, and what it
has acquired itself; what all have acquired is known after the launch.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import torch.distributed as dist
import triton

LANES = 8  # beyond them, programs share one
_SITE_BITS, _LANE_BITS = 16, 3
_MOST_SITES = 1024
_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TRITON = os.path.dirname(os.path.abspath(triton.__file__)) + os.sep

_sites: dict[tuple[str, int, str], int] = {}


class Clock:
    """Of this process, in a default group of `ranks`.

    Attributes:
        known: [global rank, lane]: up to which of its steps the current program knows all.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.ranks, self._rank, self._lane = ranks, rank, 0
        self.known = np.zeros((ranks, LANES), dtype=np.int64)
        self._steps = np.ones(LANES, dtype=np.int64)
        self.known[rank] = self._steps
        self._at_launch = self._of_all = self.known

    def stamp(self, site: int) -> int:
        """What an access is noted by."""
        step = int(self._steps[self._lane])
        return (step << _LANE_BITS | self._lane) << _SITE_BITS | site

    def take_in(self, theirs: np.ndarray) -> None:
        np.maximum(self.known, theirs, out=self.known)

    def next_step(self) -> None:
        """The current program's accesses from now on are not known by who has its clock so far."""
        self._steps[self._lane] += 1
        self.known[self._rank, self._lane] = self._steps[self._lane]

    def begin_launch(self) -> None:
        self._at_launch, self._of_all = self.known.copy(), self.known.copy()
        self._steps += 1

    def begin_program(self, number: int) -> None:
        np.maximum(self._of_all, self.known, out=self._of_all)
        self._lane = number % LANES
        self.known = self._at_launch.copy()
        self.known[self._rank, self._lane] = self._steps[self._lane]

    def end_launch(self) -> None:
        np.maximum(self._of_all, self.known, out=self._of_all)
        self.known = self._of_all
        self._lane = 0
        self.known[self._rank] = self._steps

    def tell(self, place: np.ndarray) -> None:
        """Writes the clock of the host's thread, whose later accesses it does not cover."""
        place[...] = self.known
        self._steps += 1
        self.known[self._rank] = self._steps


_clock: Clock | None = None


def clock() -> Clock:
    """Made anew where the default group is of another size."""
    global _clock
    if _clock is None or _clock.ranks != dist.get_world_size():
        _clock = Clock(dist.get_rank(), dist.get_world_size())
    return _clock


def step_of(stamps: np.ndarray) -> np.ndarray:
    return stamps >> (_SITE_BITS + _LANE_BITS)


def lane_of(stamps: np.ndarray) -> np.ndarray:
    return (stamps >> _SITE_BITS) & (LANES - 1)


def site_of(one: int) -> int:
    return one & ((1 << _SITE_BITS) - 1)


def site() -> int:
    """The number of the line of the user's kernel that is carried out. Lines beyond the 1023rd of a
    process share a number."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_LIBRARY, _TRITON)):
        frame = frame.f_back
    if frame is None:
        return 0
    key = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    if key not in _sites:
        _sites[key] = min(len(_sites) + 1, _MOST_SITES - 1)
    return _sites[key]


def sites() -> int:
    """How many names there are."""
    return min(len(_sites) + 1, _MOST_SITES)


def site_names() -> list[str]:
    """By number; the first is for accesses of no kernel."""
    names = ["an unknown line"]
    names += [f"{os.path.basename(file)}:{line} ({name})" for file, line, name in _sites]
    return names[:_MOST_SITES]
