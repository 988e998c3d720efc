"""Kernels over the multimem functions of torch_symm.triton, for their tests and for compilers."""

import triton
import triton.language as tl

import torch_symm.triton as symm


@triton.jit
def load_reduce_kernel(box, out, count, ctx, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    inside = index < count
    value = symm.multimem_load_reduce(box + index, ctx, mask=inside, OPERATION=OPERATION)
    tl.store(out + index, value, mask=inside)


@triton.jit
def store_to_all_kernel(box, source, count, ctx, BLOCK: tl.constexpr):
    """Each rank its own part of every rank's box."""
    index = tl.arange(0, BLOCK)
    inside = index < count
    there = box + symm.my_rank(ctx) * BLOCK + index
    symm.multimem_store(there, tl.load(source + index, mask=inside), ctx, mask=inside)
    symm.barrier(ctx)


@triton.jit
def square_kernel(box, out, ctx, BLOCK: tl.constexpr):
    """A block of two dimensions, without a mask: all of it, and back to all."""
    place = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + place, symm.multimem_load_reduce(box + place, ctx))
    symm.barrier(ctx)
    symm.multimem_store(box + place, 7.0, ctx)
    symm.barrier(ctx)


@triton.jit
def reduce_kernel(word, value, ctx, OPERATION: tl.constexpr):
    symm.multimem_reduce(word, value, ctx, OPERATION=OPERATION)
    symm.barrier(ctx)


@triton.jit
def arrive_kernel(box, flag, out, ctx, SEM: tl.constexpr):
    """A barrier of its own: what each rank has stored to all is there when all have arrived."""
    rank, ranks = symm.my_rank(ctx), symm.world_size(ctx)
    for peer in range(ranks):
        symm.store(box + rank, rank + 10, peer, ctx)
    symm.multimem_reduce(flag, 1, ctx, SEM=SEM)
    symm.wait_until(flag, "ge", ranks, ctx)
    total = 0
    for peer in range(ranks):
        total += tl.load(box + peer)
    tl.store(out, total)


@triton.jit
def relaxed_kernel(word, ctx):
    symm.multimem_reduce(word, 1, ctx, SEM="relaxed")


@triton.jit
def block_kernel(words, ctx):
    symm.multimem_reduce(words + tl.arange(0, 8), 1, ctx)
