"""A ring all_gather fused with a matrix product: while a rank multiplies by one shard, the next one
is on its way to it."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import torch_symm
import torch_symm.triton as symm
from compare import difference, gathered, random, run
from matmul_options import TINY_TILES, fastest, programs_of


@triton.jit
def send(x, box, arrived, turn, pieces, size, parts, senders, ctx, CHUNK: tl.constexpr):
    """Pieces of `size` elements, `parts` a row tile, go right: this rank's, then all that come."""
    rank, ranks = symm.my_rank(ctx), symm.world_size(ctx)
    right, left = (rank + 1) % ranks, (rank + ranks - 1) % ranks
    for step in range(ranks - 1):
        for piece in range(tl.program_id(0), pieces, senders):
            place = (rank + ranks - step) % ranks * pieces + piece
            flag, here, source = arrived + place // parts, box + place * size, x + piece * size
            if step > 0:
                symm.wait_until(flag, "ge", turn * parts, ctx, source=left)
                source = here
            there = symm.remote(here, right, ctx)
            for first in tl.range(0, size, CHUNK, num_stages=1):
                index = first + tl.arange(0, CHUNK)
                tl.store(there + index, tl.load(source + index))
            symm.signal_add(flag, 1, right, ctx)


@triton.jit
def multiply(a, row, w, column, out, out_row, inner):
    """The tile of out at (out_row, column), from the rows of `a` at `row`."""
    total = tl.full(out.block_shape, 0.0, tl.float32)
    for k in range(0, inner, a.block_shape[1]):
        total = tl.dot(a.load([row, k]), w.load([k, column]), total, input_precision="ieee")
    out.store([out_row, column], total.to(out.dtype))


@triton.jit(do_not_specialize=["parts", "senders"])
def ring_matmul_kernel(x, box, x_tiles, box_tiles, arrived, turns, w, out, rows, inner, columns,
                       parts, senders, ctx, TILE: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """out = x [rows, inner] of all ranks @ w, tile by tile. The halves of box take turns: who has
    every shard of a call knows that all have ended the call before it."""
    program, rank, ranks = tl.program_id(0), symm.my_rank(ctx), symm.world_size(ctx)
    turn, row_tiles, programs = tl.load(turns + program) + 1, rows // TILE[0], tl.num_programs(0)
    half, tiles = (turn % 2) * ranks * rows, row_tiles * (columns // TILE[1])
    first, left = program - senders, (rank + ranks - 1) % ranks
    if program < senders:
        size, pieces = tl.multiple_of(TILE[0] * inner // parts, CHUNK), row_tiles * parts
        send(x, box + half * inner, arrived, turn, pieces, size, parts, senders, ctx, CHUNK)
        first += programs  # in the second round they multiply too
    for tile in range(first, tiles, programs):
        row, column = tile % row_tiles * TILE[0], tile // row_tiles * TILE[1]
        multiply(x_tiles, row, w, column, out, rank * rows + row, inner)
    first += tl.maximum(0, tl.cdiv(tiles - first, programs)) * programs  # the tile after these
    for tile in range(first, ranks * tiles, programs):
        owner, top = (rank + ranks - tile // tiles) % ranks, tile % row_tiles
        column, row = tile % tiles // row_tiles * TILE[1], owner * rows + top * TILE[0]
        symm.wait_until(arrived + owner * row_tiles + top, "ge", turn * parts, ctx, source=left)
        multiply(box_tiles, half + row, w, column, out, row, inner)
    tl.debug_barrier()  # all threads have read the turn
    tl.store(turns + program, turn)


class RingMatmul:
    """all_gather(x) @ w for x [rows, inner] of each rank, by programs that wait for each
    other. Collective."""

    def __init__(self, rows, inner, columns, device, dtype=torch.bfloat16, options=None):
        ranks, self.programs = dist.get_world_size(), programs_of(device)
        self.options = options or fastest(rows, columns, ranks, device)
        self.options.check(rows, inner, columns)
        tiles = rows // self.options.tile[0]
        self.box = torch_symm.empty(2 * ranks * rows, inner, dtype=dtype, device=device)
        self.arrived = torch_symm.zeros(ranks, tiles, dtype=torch.int32, device=device)
        self.turns = torch.zeros(self.programs, dtype=torch.int32, device=device)
        self.ctx = symm.context(self.box, self.arrived)

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        tile, warps, stages, senders, parts, chunk = self.options
        out = x.new_empty(dist.get_world_size() * x.shape[0], w.shape[1])
        tiled, left, right = TensorDescriptor.from_tensor, [tile[0], tile[2]], [tile[2], tile[1]]
        tensors = (x, self.box, tiled(x, left), tiled(self.box, left), self.arrived, self.turns)
        sizes = (tiled(w, right), tiled(out, [*tile[:2]]), *x.shape, w.shape[1], parts, senders)
        options = {"TILE": tile, "CHUNK": chunk, "num_warps": warps, "num_stages": stages}
        ring_matmul_kernel[(self.programs,)](*tensors, *sizes, self.ctx, **options)
        return out


def example(device: str) -> float:
    """Ring all_gather and matmul beside dist.all_gather_into_tensor and a product."""
    distance, w = 0.0, random(64, 96, device=device, seed=7)
    call = RingMatmul(32, 64, 96, device, torch.float32, TINY_TILES)
    for turn in range(3):
        x = random(32, 64, device=device, seed=100 * turn + dist.get_rank())
        distance = max(distance, difference(call(x, w), gathered(x) @ w))
    return distance


if __name__ == "__main__":
    sys.exit(run(example))
