"""The kernels that kernel_speed.py times: copies to and from the next rank, and a signal's way."""

from __future__ import annotations

import triton
import triton.language as tl

import torch_symm.triton as symm


@triton.jit
def copy_kernel(
    box,
    plain,
    count,
    active,
    ctx,
    FORM: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Rank `active`, or every rank where it is -1, copies `count` elements to the next rank's box
    or from it, each program some of the tiles. The barrier tells that they are there."""
    program, rank = tl.program_id(0), symm.my_rank(ctx)
    peer = (rank + 1) % symm.world_size(ctx)
    there = symm.remote(box, peer, ctx)
    if (active < 0) | (active == rank):
        for tile in tl.range(program, count // BLOCK, tl.num_programs(0), num_stages=STAGES):
            index = tile * BLOCK + tl.arange(0, BLOCK)
            if FORM == "put":
                symm.put(box + index, plain + index, peer, ctx)
            elif FORM == "get":
                symm.get(plain + index, box + index, peer, ctx)
            elif FORM == "put by remote":
                tl.store(there + index, tl.load(plain + index))
            else:
                tl.store(plain + index, tl.load(there + index))
    symm.barrier(ctx, program)


@triton.jit
def ping_pong_kernel(flag, turns, rounds, ctx, WAY: tl.constexpr):
    """Rank 0 and rank 1 signal each other in turn. "signal": signal_set and wait_until; "remote":
    the same, the address asked for once; "relaxed": signal_set that publishes nothing."""
    rank = symm.my_rank(ctx)
    there = symm.remote(flag, 1 - rank, ctx)
    before = tl.load(turns)
    for one in range(2 * rounds):
        if one % 2 == rank:
            if WAY == "signal":
                symm.signal_set(flag, before + one + 1, 1 - rank, ctx)
            elif WAY == "relaxed":
                symm.signal_set(flag, before + one + 1, 1 - rank, ctx, SEM="relaxed")
            else:
                tl.debug_barrier()
                tl.atomic_xchg(there, before + one + 1, sem="release", scope="sys")
        else:
            symm.wait_until(flag, "ge", before + one + 1, ctx, source=1 - rank)
    tl.store(turns, before + 2 * rounds)
    symm.barrier(ctx)
