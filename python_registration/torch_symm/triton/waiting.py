"""How a kernel waits for a word, and how such a wait ends without it."""

from __future__ import annotations

import triton
import triton.language as tl

from torch_symm.triton import layout
from torch_symm.triton.settings import INTERPRETED

if INTERPRETED:
    from torch_symm.triton._interpreter import (
        ROUNDS_BETWEEN_CHECKS,
        after_acquire,
        before_release,
        gave_up,
        host_word,
        now_of_one,
        pause,
    )
else:
    from torch_symm.triton._gpu import (
        ROUNDS_BETWEEN_CHECKS,
        after_acquire,
        before_release,
        gave_up,
        host_word,
        now_of_one,
        pause,
    )

from torch_symm.triton.timeline import begin, end

ARRIVALS = layout.ARRIVALS
BARRIER = layout.BARRIER
ENDED = layout.ENDED
EPOCHS = layout.EPOCHS
FIRST_RANK = layout.FIRST_RANK
GAVE_UP = layout.GAVE_UP
GONE = layout.GONE
HEADER_WORDS = layout.HEADER_WORDS
PEERS = layout.PEERS
RANK = layout.RANK
SOURCE_GONE = layout.SOURCE_GONE
STATUS = layout.STATUS
TENSORS = layout.TENSORS
TIMED_OUT = layout.TIMED_OUT
TIMEOUT_NS = layout.TIMEOUT_NS
WAIT = layout.WAIT
WHY = layout.WHY
WORLD_SIZE = layout.WORLD_SIZE


@triton.jit
def _look(signal, SCOPE: tl.constexpr):
    """The word, acquired. Adding nothing is a load that every backend has with these orders."""
    return tl.atomic_add(signal, 0, sem="acquire", scope=SCOPE)


@triton.jit
def _holds(word, COMPARE: tl.constexpr, value):
    if COMPARE == "eq":
        holds = word == value
    elif COMPARE == "ne":
        holds = word != value
    elif COMPARE == "gt":
        holds = word > value
    elif COMPARE == "ge":
        holds = word >= value
    elif COMPARE == "lt":
        holds = word < value
    else:
        tl.static_assert(COMPARE == "le", "wait_until: COMPARE: expected eq, ne, gt, ge, lt or le")
        holds = word <= value
    return holds


@triton.jit
def _why_end(status, source, ctx, start, limit):
    """The reason for which a wait must end, 0 where there is none: in the thread whose value a
    scalar atomic takes.

    A rank may leave when it has signalled, so one that has left ends no wait for any rank.
    """
    why = host_word(status + WHY)
    if source >= 0:
        gone = host_word(status + FIRST_RANK + source)
    else:
        others = tl.load(ctx + WORLD_SIZE) - 1
        all_gone = (host_word(status + GONE) >= others) & (others > 0)
        gone = all_gone.to(tl.int64)
    late = (now_of_one() - start) > limit
    why = tl.where((why == 0) & (gone != 0), SOURCE_GONE, why)
    return tl.where((why == 0) & late, TIMED_OUT, why)


@triton.jit
def _await(signal, COMPARE: tl.constexpr, value, ctx, source, SCOPE: tl.constexpr):
    """Looks until the word compares, or a wait of this context has a reason to end.

    All threads of a program must leave the loop in the same round, and their clocks and loads
    differ. What decides is therefore what one thread's atomic has returned to all.
    """
    status = tl.load(ctx + STATUS).to(tl.pointer_type(tl.int64), bitcast=True)
    limit = tl.load(ctx + TIMEOUT_NS)
    start = limit * 0  # the clock takes time to read, and most waits are short
    ended = limit * 0
    rounds = 0
    word = _look(signal, SCOPE)
    while (ended == 0) & (not _holds(word, COMPARE, value)):
        rounds += 1
        # The status words are in the host's memory, far from a GPU.
        if rounds % ROUNDS_BETWEEN_CHECKS == 0:
            start = tl.where(start == 0, now_of_one(), start)
            why = _why_end(status, source, ctx, start, limit)
            tl.atomic_cas(ctx + ENDED, limit * 0, why, sem="relaxed", scope="gpu")
            ended = tl.atomic_add(ctx + ENDED, 0, sem="relaxed", scope="gpu")
        pause()
        # Once more after a reason was found: what a rank did before it ended counts.
        word = _look(signal, SCOPE)
    if not _holds(word, COMPARE, value):
        # The first record stays: the waits that end after it only follow.
        if host_word(status + GAVE_UP) == 0:
            tl.store(status + GAVE_UP, ended + 256 * (source + 1))
        gave_up(ctx)
    return word


@triton.jit
def wait(signal, COMPARE: tl.constexpr, value, ctx, source, SCOPE: tl.constexpr):
    """`wait_until` without its checks."""
    begun = begin(ctx)
    source = tl.cast(source, tl.int64)
    word = _await(signal, COMPARE, value, ctx, source, SCOPE)
    after_acquire()
    end(ctx, begun, WAIT, source, signal)
    return word


@triton.jit
def barrier(ctx, channel=0):
    """Waits for all ranks of the context's group: what each program that takes part did before it
    is seen by all of them after it.

    One program a rank calls it with the same `channel`, below the context's `channels`; programs
    that meet at the same time have a channel each, for instance tl.program_id(0).
    """
    start = begin(ctx)
    rank = tl.load(ctx + RANK)
    ranks = tl.load(ctx + WORLD_SIZE)
    arrivals = tl.load(ctx + ARRIVALS).to(tl.pointer_type(tl.int64), bitcast=True)
    epochs = tl.load(ctx + EPOCHS).to(tl.pointer_type(tl.int64), bitcast=True)
    row = ctx + HEADER_WORDS + tl.load(ctx + TENSORS) * (ranks + PEERS) + PEERS
    mine = arrivals + channel * ranks
    # 64 bits never wrap.
    epoch = tl.load(epochs + channel) + 1
    before_release()
    tl.store(epochs + channel, epoch)
    for step in range(1, ranks):
        peer = (rank + step) % ranks
        there = mine + rank + tl.load(row + peer) // 8
        tl.atomic_xchg(there, epoch, sem="release", scope="sys")
    for step in range(1, ranks):
        peer = (rank + step) % ranks
        wait(mine + peer, "ge", epoch, ctx, peer, "sys")
    end(ctx, start, BARRIER, -1, mine)
