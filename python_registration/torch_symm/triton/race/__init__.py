"""The race checker of Triton's interpreter, SYMM_RACE_CHECK=1.

NOTE [Clocks of ranks]
Each rank has a vector clock: for every rank, up to which of its steps it knows all. A release
writes the clock beside the word that is signalled, then begins the rank's next step; an acquire
takes in what was written there. Each access of a context's tensors, of any rank's part, is noted
beside the memory, granule by granule, by the rank that makes it: its step, and the line of the
kernel. Two accesses of which one writes are a race where the later one's rank does not know the
step of the earlier one, in whatever order they came about, so one run shows also what goes well by
luck. Each side notes first and looks then, with a fence between, so that of two at once one finds
the other. All of it lies in symmetric memory of its own.

Not seen: what torch does to a tensor outside kernels; programs of one rank's kernel among each
other, and what only tells programs apart whose numbers differ by a multiple of 8 (NOTE [Lanes] in
clock.py); point-to-point messages and asynchronous collectives, which order nothing here. A release
may be seen a moment before its signal is, and several words may share clocks in allocations of more
than 4096 granules: both can hide a race, and neither invents one.
"""

from __future__ import annotations

from torch_symm.triton.race.check import RaceCheck, RaceError, report
from torch_symm.triton.race.hooks import install, launch

__all__ = ["RaceCheck", "RaceError", "install", "launch", "report"]
