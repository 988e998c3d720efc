"""When puts, gets, signals and waits of a kernel began and ended, with SYMM_TIMELINE=1.

A kernel writes its events into a ring of its context, by the clock of the device; `trace.py` reads
them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from torch_symm.triton import layout
from torch_symm.triton.settings import INTERPRETED, TIMELINE

if INTERPRETED:
    from torch_symm.triton._interpreter import now
else:
    from torch_symm.triton._gpu import now

EVENT_WORDS = layout.EVENT_WORDS
RING = layout.RING
RING_EVENTS = layout.RING_EVENTS


@triton.jit
def begin(ctx):
    """The time, where there is a timeline."""
    return now() if TIMELINE else 0


@triton.jit
def end(ctx, start, KIND: tl.constexpr, peer, ptr):
    """Writes the event that began at `start`; `ptr` tells how many bytes it is about."""
    if TIMELINE:
        ring = tl.load(ctx + RING).to(tl.pointer_type(tl.int64), bitcast=True)
        stop = now()
        place = tl.atomic_add(ring, 1, sem="relaxed", scope="gpu") % RING_EVENTS
        event = ring + 1 + place * EVENT_WORDS
        BITS: tl.constexpr = ptr.dtype.element_ty.primitive_bitwidth
        bytes_of_it = ptr.numel * BITS // 8 if ptr.type.is_block() else BITS // 8
        program = tl.program_id(0) + tl.num_programs(0) * (
            tl.program_id(1) + tl.num_programs(1) * tl.program_id(2)
        )
        tl.store(event, KIND)
        tl.store(event + 1, tl.cast(peer, tl.int64))
        tl.store(event + 2, bytes_of_it)
        tl.store(event + 3, tl.cast(program, tl.int64))
        tl.store(event + 4, start)
        tl.store(event + 5, stop)
