"""Loads that combine what all ranks have, and stores that reach all ranks, on a multicast address.

On NVIDIA's GPUs from compute capability 9.0 on, joined by NVLink switches that can: PTX's multimem
instructions. The interpreter does the same rank by rank. Other GPUs are refused when the kernel is
compiled. The context must be made with `multicast=True`, which says on the host where there is no
such address; with another one the interpreter raises, and on a GPU nothing is loaded or stored and
`Context.check` raises. **No multimem instruction of this library has been run on a GPU.**

`ptr` is this rank's own address, as in device.py. A block of float32, float16 or bfloat16 goes in
pieces of 16 bytes: neighbours in the block's last dimension, four or eight of them, must lie side
by side in memory from a multiple of 16 bytes on, and a mask takes or leaves a piece whole. The
interpreter checks that. Integers of 32 and 64 bits and float64 go one by one.

    dtype                OPERATION of multimem_load_reduce    of multimem_reduce
    float32, float64     add                                  add
    float16, bfloat16    add (float32 in between), min, max   -
    integers             add, min, max, and, or               add, min, max, and, or

The switch chooses the order in which it adds, so a sum of floats may have other bits than another
algorithm's, and than the same load by another rank. min and max promise nothing about NaN.

Memory order: relaxed at system scope, element by element, which orders nothing. A signal or a
barrier publishes them and is needed before them, as with `store` and `load`; multimem_reduce with
SEM "release", its default, is such a signal.
"""

from __future__ import annotations

import triton
import triton.language as tl

from torch_symm.triton import layout
from torch_symm.triton.settings import INTERPRETED

if INTERPRETED:
    from torch_symm.triton._multimem_ranks import load_reduced, reduce_all, store_all
else:
    from torch_symm.triton._multimem_ptx import load_reduced, reduce_all, store_all

from torch_symm.triton.timeline import begin, end

ADD = layout.ADD
GET = layout.GET
PUT = layout.PUT
RELEASE = layout.RELEASE
SIGNAL = layout.SIGNAL


@triton.jit
def multimem_load_reduce(ptr, ctx, mask=None, OPERATION: tl.constexpr = ADD):
    """What all ranks have at `ptr`, combined, in the dtype of `ptr`; 0 where the mask is false."""
    start = begin(ctx)
    value = load_reduced(ptr, ctx, mask, OPERATION)
    end(ctx, start, GET, -1, ptr)
    return value


@triton.jit
def multimem_store(ptr, value, ctx, mask=None):
    """Writes `value` at `ptr` of every rank, this one too."""
    start = begin(ctx)
    store_all(ptr, value, ctx, mask)
    end(ctx, start, PUT, -1, ptr)


@triton.jit
def multimem_reduce(ptr, value, ctx, OPERATION: tl.constexpr = ADD, SEM: tl.constexpr = RELEASE):
    """Combines `value` into the word at `ptr` of every rank, this one too, atomically: one address.

    SEM "release": a signal to all ranks of all that this program did before, for `wait_until`;
    "relaxed": no order.
    """
    tl.static_assert(not ptr.type.is_block(), "multimem_reduce: ptr: expected one address")
    tl.static_assert(
        SEM == "release" or SEM == "relaxed", "multimem_reduce: SEM: expected release or relaxed"
    )
    start = begin(ctx)
    reduce_all(ptr, value, ctx, OPERATION, SEM)
    end(ctx, start, SIGNAL, -1, ptr)
