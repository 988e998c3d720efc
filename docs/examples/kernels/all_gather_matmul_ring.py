"""A ring all_gather fused with a matrix product: while a rank multiplies by one shard, the shard is
on its way to the next rank."""

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
def ring_matmul_kernel(
    x,
    box,
    arrived,
    w,
    out,
    turn,
    ctx,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """x [ROWS, INNER] of this rank; box [ranks, ROWS, INNER] for those of the others; each program
    has COLUMNS columns of w [INNER, all] and of out [ranks * ROWS, all]. Program 0 forwards."""
    program, rank, ranks = tl.program_id(0), symm.my_rank(ctx), symm.world_size(ctx)
    width = tl.num_programs(0) * COLUMNS
    row, inner = tl.arange(0, ROWS)[:, None], tl.arange(0, INNER)
    column = program * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    shard = row * INNER + inner[None, :]
    weights = tl.load(w + inner[:, None] * width + column)
    for step in range(ranks):
        owner = (rank + ranks - step) % ranks
        place = box + owner * ROWS * INNER + shard
        if step == 0:
            tile = tl.load(x + shard)
        else:
            symm.wait_until(arrived + owner, "ge", turn, ctx, source=(rank + ranks - 1) % ranks)
            tile = tl.load(place)
        if (program == 0) & (step < ranks - 1):
            right = (rank + 1) % ranks
            symm.store(place, tile, right, ctx)
            symm.signal_set(arrived + owner, turn, right, ctx)
        product = tl.dot(tile, weights, input_precision="ieee")
        tl.store(out + owner * ROWS * width + row * width + column, product)
    symm.barrier(ctx, program)  # every program of every rank has read its box


class RingMatmul:
    """all_gather(x) @ w, for x [rows, inner] of each rank. Collective."""

    def __init__(self, rows: int, inner: int, device: str) -> None:
        ranks = dist.get_world_size()
        self.box = torch_symm.empty(ranks, rows, inner, dtype=torch.float32, device=device)
        self.arrived = torch_symm.zeros(ranks, dtype=torch.int32, device=device)
        self.ctx, self.turn = symm.context(self.box, self.arrived), 0

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        rows, inner, columns = *x.shape, 32
        out = x.new_full((dist.get_world_size() * rows, w.shape[1]), float("nan"))
        arguments = (x, self.box, self.arrived, w, out, self.turn, self.ctx)
        grid = (w.shape[1] // columns,)
        ring_matmul_kernel[grid](*arguments, ROWS=rows, INNER=inner, COLUMNS=columns)
        return out


def example(device: str) -> float:
    """Ring all_gather and matmul beside dist.all_gather_into_tensor and a product."""
    rank, ranks, distance = dist.get_rank(), dist.get_world_size(), 0.0
    multiply = RingMatmul(16, 64, device)
    w = random(64, 96, device=device, seed=7)
    for turn in range(3):
        x = random(16, 64, device=device, seed=100 * turn + rank)
        gathered = x.new_empty(ranks * 16, 64)
        dist.all_gather_into_tensor(gathered, x)
        distance = max(distance, difference(multiply(x, w), gathered @ w))
    return distance


if __name__ == "__main__":
    sys.exit(run(example))
