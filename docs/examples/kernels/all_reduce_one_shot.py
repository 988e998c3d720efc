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
def all_reduce_kernel(x, box, turns, out, count, most, ctx, BLOCK: tl.constexpr):
    """Each program has a block, and meets its namesakes of the other ranks for it. The halves of
    box [2, most] take turns: who puts into a half again has met all of those who have read it, in
    the call between, so that one barrier a call does."""
    program = tl.program_id(0)
    index = program * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    turn = tl.load(turns + program)
    place = box + (turn % 2) * most + index
    mine = tl.load(x + index, mask=inside)
    tl.store(place, mine, mask=inside)
    symm.barrier(ctx, program)  # everybody's block is there
    tl.store(turns + program, turn + 1)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for peer in range(symm.world_size(ctx)):
        part = mine
        if peer != symm.my_rank(ctx):
            part = symm.load(place, peer, ctx, mask=inside)
        total += part
    tl.store(out + index, total, mask=inside)


class AllReduce:
    """Of up to `count` float32, `block` a program. Collective."""

    def __init__(self, count: int, device: str, block: int = 512, warps: int = 4) -> None:
        programs = triton.cdiv(count, block)
        self.most, self.block, self.warps = programs * block, block, warps
        self.box = torch_symm.empty(2, self.most, dtype=torch.float32, device=device)
        self.turns = torch.zeros(programs, dtype=torch.int32, device=device)
        self.ctx = symm.context(self.box, channels=programs)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        arguments = (x, self.box, self.turns, out, x.numel(), self.most, self.ctx)
        grid = (triton.cdiv(x.numel(), self.block),)
        all_reduce_kernel[grid](*arguments, BLOCK=self.block, num_warps=self.warps)
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
