"""all_reduce in one step: every rank reads what every rank has, and adds in the order of ranks, so
that all have the same bits."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import triton
import triton.language as tl

import torch_symm
import torch_symm.triton as symm
from compare import difference, random, run


@triton.jit
def all_reduce_kernel(x, box, out, count, ctx, BLOCK: tl.constexpr):
    """Each program has a block, and meets its namesakes of the other ranks for it."""
    program = tl.program_id(0)
    index = program * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    tl.store(box + index, tl.load(x + index, mask=inside), mask=inside)
    symm.barrier(ctx, program)  # everybody's block is there
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for peer in range(symm.world_size(ctx)):
        total += symm.load(box + index, peer, ctx, mask=inside)
    tl.store(out + index, total, mask=inside)
    symm.barrier(ctx, program)  # nobody reads any more


class AllReduce:
    """Of up to `count` float32. Collective."""

    def __init__(self, count: int, device: str) -> None:
        self.box = torch_symm.empty(count, dtype=torch.float32, device=device)
        self.ctx = symm.context(self.box)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(x, float("nan"))
        block = 256
        programs = triton.cdiv(x.numel(), block)  # at most 64, a barrier's channels
        all_reduce_kernel[(programs,)](x, self.box, out, x.numel(), self.ctx, BLOCK=block)
        return out


def example(device: str) -> float:
    """One-shot all_reduce beside dist.all_reduce."""
    all_reduce, distance = AllReduce(1500, device), 0.0
    for turn in range(3):
        x = random(1001 + 100 * turn, device=device, seed=100 * turn + dist.get_rank())
        expected = x.clone()
        dist.all_reduce(expected)
        distance = max(distance, difference(all_reduce(x), expected))
    return distance


if __name__ == "__main__":
    sys.exit(run(example))
