"""What the one argument of a kernel points to: a table of 64-bit words, the same on every backend.

The table has a header, a row for each tensor, and a row for the context's own memory, in which the
ranks meet. A row is [first address here, address behind the last one, the distance in bytes from
this rank's memory to the multicast address, or 0, and for each rank the distance to that rank's
memory]. The status words are in memory of the
host: the group's watchdog (kernel_watch.hpp) writes WHY and GONE, a kernel whose wait has ended
without its signal writes GAVE_UP.
"""

from __future__ import annotations

import triton.language as tl

# Words of the header.
RANK = tl.constexpr(0)
WORLD_SIZE = tl.constexpr(1)
STATUS = tl.constexpr(2)  # address of the status words
TIMEOUT_NS = tl.constexpr(3)
TENSORS = tl.constexpr(4)  # rows before the one of the context's own memory
ARRIVALS = tl.constexpr(5)  # address: [channel, rank] of barriers, in the context's own memory
EPOCHS = tl.constexpr(6)  # address: [channel], of this rank alone
RING = tl.constexpr(7)  # address of the timeline's ring, 0 where there is none
CHANNELS = tl.constexpr(8)
ENDED = tl.constexpr(9)  # the reason of the first wait that has ended without its signal, or 0
HEADER_WORDS = tl.constexpr(16)

# Words of a row: FIRST at 0, LAST at 1.
MULTICAST = tl.constexpr(2)
PEERS = tl.constexpr(3)  # + rank

# Status words.
WHY = tl.constexpr(0)
GONE = tl.constexpr(1)  # how many ranks
GAVE_UP = tl.constexpr(2)  # reason + 256 * (rank waited for + 1)
FIRST_RANK = tl.constexpr(8)  # + rank: 1 where it is gone

# Reasons; the first two are what the watchdog writes as WHY.
GROUP_FAILED = tl.constexpr(1)
RANK_DIED = tl.constexpr(2)
SOURCE_GONE = tl.constexpr(3)
TIMED_OUT = tl.constexpr(4)
BAD_PEER = tl.constexpr(5)
NO_MULTICAST = tl.constexpr(6)

# The ring: a count of all events so far, then RING_EVENTS times EVENT_WORDS.
RING_EVENTS = tl.constexpr(4096)
EVENT_WORDS = tl.constexpr(6)  # kind, peer, bytes, program, begin, end
PUT = tl.constexpr(1)
GET = tl.constexpr(2)
SIGNAL = tl.constexpr(3)
WAIT = tl.constexpr(4)
BARRIER = tl.constexpr(5)
EVENT_NAMES = {1: "put", 2: "get", 3: "signal", 4: "wait", 5: "barrier"}

# Defaults of functions for kernels, which Triton before 3.9 takes as constants in this form alone.
SET = tl.constexpr("set")
ADD = tl.constexpr("add")
RELEASE = tl.constexpr("release")
SYSTEM = tl.constexpr("sys")
ACQUIRE_RELEASE = tl.constexpr("acq_rel")
