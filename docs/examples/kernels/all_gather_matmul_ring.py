"""A ring all_gather fused with a matrix product: while a rank multiplies by one shard, the next one
is on its way to it."""

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
def send(x, box, arrived, turn, tiles, size, senders, ctx, CHUNK: tl.constexpr):
    """Row tiles of `size` elements go to the right: this rank's, then those that come."""
    rank, ranks = symm.my_rank(ctx), symm.world_size(ctx)
    right, left = (rank + 1) % ranks, (rank + ranks - 1) % ranks
    for step in range(ranks - 1):
        for tile in range(tl.program_id(0), tiles, senders):
            place = (rank + ranks - step) % ranks * tiles + tile
            here, source = box + place * size, x + tile * size
            if step > 0:
                symm.wait_until(arrived + place, "ge", turn, ctx, source=left)
                source = here
            there = symm.remote(here, right, ctx)
            for first in range(0, size, CHUNK):
                index = first + tl.arange(0, CHUNK)
                tl.store(there + index, tl.load(source + index))
            symm.signal_set(arrived + place, turn, right, ctx)


@triton.jit
def ring_matmul_kernel(
    x, box, arrived, turns, w, out, rows, inner, columns, senders, ctx, TILE: tl.constexpr
):
    """out [ranks * rows, columns] = x [rows, inner] of all ranks @ w [inner, columns]. The first
    programs send, the others multiply, tile after tile. The halves of box [2, ranks, rows, inner]
    take turns: who has every shard of a call knows that all have ended the call before it."""
    ROWS: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    DEPTH: tl.constexpr = TILE[2]
    program, rank, ranks = tl.program_id(0), symm.my_rank(ctx), symm.world_size(ctx)
    turn, row_tiles = tl.load(turns + program) + 1, rows // ROWS
    box += (turn % 2) * ranks * rows * inner
    if program < senders:
        send(x, box, arrived, turn, row_tiles, ROWS * inner, senders, ctx, ROWS * COLUMNS)
    row, column, depth = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    tiles, multipliers = row_tiles * (columns // COLUMNS), tl.num_programs(0) - senders
    first = tl.where(program < senders, ranks * tiles, program - senders)
    for tile in range(first, ranks * tiles, multipliers):
        owner, top = (rank + ranks - tile // tiles) % ranks, tile % row_tiles
        a, left = x + top * ROWS * inner, tile % tiles // row_tiles * COLUMNS
        if owner != rank:
            place = owner * row_tiles + top
            symm.wait_until(arrived + place, "ge", turn, ctx, source=(rank + ranks - 1) % ranks)
            a = box + place * ROWS * inner
        a += row[:, None] * inner + depth[None, :]
        b = w + depth[:, None] * columns + left + column[None, :]
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for _ in range(0, inner, DEPTH):
            total = tl.dot(tl.load(a), tl.load(b), total, input_precision="ieee")
            a += DEPTH
            b += DEPTH * columns
        there = out + (owner * rows + top * ROWS + row[:, None]) * columns + left + column[None, :]
        tl.store(there, total.to(out.dtype.element_ty))
    tl.debug_barrier()  # all threads have read the turn
    tl.store(turns + program, turn)


class RingMatmul:
    """all_gather(x) @ w for x [rows, inner] of each rank. `tile`: rows and columns of a piece of
    the result, which a program sums over so many of inner at once. The programs wait for each
    other: there are no more than run at once. Collective."""

    def __init__(self, rows, inner, device, dtype=torch.float32, tile=(16, 32, 32), senders=2):
        ranks, self.tile, self.senders, self.options = dist.get_world_size(), tile, senders, {}
        on_gpu = device == "cuda" and torch.cuda.get_device_properties(device)
        self.programs = on_gpu.multi_processor_count if on_gpu else 8
        self.box = torch_symm.empty(2, ranks, rows, inner, dtype=dtype, device=device)
        self.arrived = torch_symm.zeros(ranks, rows // tile[0], dtype=torch.int32, device=device)
        self.turns = torch.zeros(self.programs, dtype=torch.int32, device=device)
        self.ctx = symm.context(self.box, self.arrived)

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out, grid = x.new_empty(dist.get_world_size() * x.shape[0], w.shape[1]), (self.programs,)
        arguments = (x, self.box, self.arrived, self.turns, w, out, *x.shape, w.shape[1])
        ring_matmul_kernel[grid](*arguments, self.senders, self.ctx, TILE=self.tile, **self.options)
        return out


def example(device: str) -> float:
    """Ring all_gather and matmul beside dist.all_gather_into_tensor and a product."""
    rank, ranks, distance = dist.get_rank(), dist.get_world_size(), 0.0
    multiply = RingMatmul(32, 64, device)
    w = random(64, 96, device=device, seed=7)
    for turn in range(3):
        x = random(32, 64, device=device, seed=100 * turn + rank)
        gathered = x.new_empty(ranks * 32, 64)
        dist.all_gather_into_tensor(gathered, x)
        distance = max(distance, difference(multiply(x, w), gathered @ w))
    return distance


if __name__ == "__main__":
    sys.exit(run(example))
