"""Forms of the fused all_gather and matmul, to choose from for the example of it: how tiles are
read and written, how the shard is sent."""

from __future__ import annotations

import dataclasses

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import torch_symm
import torch_symm.triton as symm


@dataclasses.dataclass(frozen=True)
class Variant:
    """`tile`: rows and columns of a piece of the result, which a program sums over so many of inner
    at once. `senders` programs send first; `parts` of a row tile have a signal each; `chunk`
    elements are copied at once, by a loop of `copy_stages`. `descriptors`: x, box and w are read by
    them, otherwise by pointers; `stores`: out is written by one. Without `sends` nothing is sent
    and nothing waited for: the product alone. `residents`
    programs share a multiprocessor."""

    tile: tuple[int, int, int]
    warps: int
    stages: int
    senders: int
    parts: int = 1
    chunk: int = 32768
    copy_stages: int = 1
    descriptors: bool = True
    stores: bool = True
    sends: bool = True
    residents: int = 1

    def described(self) -> dict:
        return dataclasses.asdict(self) | {"tile": list(self.tile)}

    def compiled(self) -> Variant:
        """The same for all variants that one compiled kernel serves."""
        return dataclasses.replace(self, senders=8, parts=1, sends=True, residents=1)


@triton.jit
def send(
    x,
    box,
    arrived,
    turn,
    pieces,
    size,
    parts,
    senders,
    ctx,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Pieces of `size` elements go to the right, `parts` of them a row tile: this rank's, then
    those that come."""
    rank, ranks = symm.my_rank(ctx), symm.world_size(ctx)
    right, left = (rank + 1) % ranks, (rank + ranks - 1) % ranks
    for step in range(ranks - 1):
        owner = (rank + ranks - step) % ranks
        for piece in range(tl.program_id(0), pieces, senders):
            flag = arrived + (owner * pieces + piece) // parts
            here, source = box + (owner * pieces + piece) * size, x + piece * size
            if step > 0:
                symm.wait_until(flag, "ge", turn * parts, ctx, source=left)
                source = here
            there = symm.remote(here, right, ctx)
            for first in tl.range(0, size, CHUNK, num_stages=STAGES):
                index = first + tl.arange(0, CHUNK)
                tl.store(there + index, tl.load(source + index))
            symm.signal_add(flag, 1, right, ctx)


@triton.jit
def multiply(
    a, row, w, column, out, out_row, inner, columns,
    TILE: tl.constexpr, DESCRIPTORS: tl.constexpr, STORES: tl.constexpr,
):  # fmt: skip
    """A tile of out, at (out_row, column): rows of `a` from `row` on, columns of w."""
    ROWS: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    DEPTH: tl.constexpr = TILE[2]
    rows, right, depth = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if DESCRIPTORS:
        for k in range(0, inner, DEPTH):
            total = tl.dot(a.load([row, k]), w.load([k, column]), total, input_precision="ieee")
    else:
        left = a + (row + rows[:, None]) * inner + depth[None, :]
        top = w + depth[:, None] * columns + column + right[None, :]
        for _ in range(0, inner, DEPTH):
            total = tl.dot(tl.load(left), tl.load(top), total, input_precision="ieee")
            left += DEPTH
            top += DEPTH * columns
    if STORES:
        out.store([out_row, column], total.to(out.dtype))
    else:
        there = out + (out_row + rows[:, None]) * columns + column + right[None, :]
        tl.store(there, total.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["senders", "parts", "sends"])
def variant_kernel(
    x, box, a_x, a_box, arrived, turns, w, out, rows, inner, columns, parts, senders, sends, ctx,
    TILE: tl.constexpr, DESCRIPTORS: tl.constexpr, STORES: tl.constexpr, CHUNK: tl.constexpr,
    COPY_STAGES: tl.constexpr,
):  # fmt: skip
    """The example's kernel. a_x and a_box: what tiles of x and box are read through."""
    ROWS: tl.constexpr = TILE[0]
    program, rank, ranks = tl.program_id(0), symm.my_rank(ctx), symm.world_size(ctx)
    turn, row_tiles, programs = tl.load(turns + program) + 1, rows // ROWS, tl.num_programs(0)
    half = (turn % 2) * ranks * rows
    tiles = row_tiles * (columns // TILE[1])
    first = program - senders
    if program < senders:
        if sends > 0:
            size = tl.multiple_of(ROWS * inner // parts, CHUNK)
            pieces = row_tiles * parts
            at = box + half * inner
            send(x, at, arrived, turn, pieces, size, parts, senders, ctx, CHUNK, COPY_STAGES)
        first += programs  # in the second round they multiply too
    for tile in range(first, tiles, programs):
        row, column = tile % row_tiles * ROWS, tile // row_tiles * TILE[1]
        there = rank * rows + row
        multiply(a_x, row, w, column, out, there, inner, columns, TILE, DESCRIPTORS, STORES)
    # Behind the last of these.
    first += tl.maximum(0, tl.cdiv(tiles - first, programs)) * programs
    for tile in range(first, ranks * tiles, programs):
        owner, top = (rank + ranks - tile // tiles) % ranks, tile % row_tiles
        column, row = tile % tiles // row_tiles * TILE[1], owner * rows + top * ROWS
        if sends > 0:
            flag = arrived + owner * row_tiles + top
            symm.wait_until(flag, "ge", turn * parts, ctx, source=(rank + ranks - 1) % ranks)
        multiply(a_box, half + row, w, column, out, row, inner, columns, TILE, DESCRIPTORS, STORES)
    tl.debug_barrier()  # all threads have read the turn
    if sends > 0:
        tl.store(turns + program, turn)


class Fused:
    """all_gather(x) @ w for x [rows, inner] of each rank, by the given variant. Collective."""

    def __init__(self, rows: int, inner: int, device: str, dtype: torch.dtype, processors: int):
        ranks, self.device, self.processors = dist.get_world_size(), device, processors
        self.box = torch_symm.zeros(2, ranks, rows, inner, dtype=dtype, device=device)
        self.arrived = {}
        self.turns = {}
        self.contexts = {}

    def programs(self, variant: Variant) -> int:
        return self.processors * variant.residents

    def context(self, variant: Variant, timeout):
        """Signals of its own: those of variants that have failed tell nothing. Collective."""
        ranks, rows = self.box.shape[1:3]
        tiles = rows // variant.tile[0]
        self.arrived[variant] = torch_symm.zeros(
            ranks, tiles, dtype=torch.int32, device=self.device
        )
        self.turns[variant] = torch.zeros(
            self.programs(variant), dtype=torch.int32, device=self.device
        )
        self.contexts[variant] = symm.context(self.box, self.arrived[variant], timeout=timeout)
        return self.contexts[variant]

    def arguments(self, variant: Variant, x, w, out):
        rows, columns, depth = variant.tile
        box = self.box.view(-1, x.shape[1])
        a_x, a_box, b, c = x, box, w, out
        if variant.descriptors:
            a_x, a_box = (TensorDescriptor.from_tensor(one, [rows, depth]) for one in (x, box))
            b = TensorDescriptor.from_tensor(w, [depth, columns])
        if variant.stores:
            c = TensorDescriptor.from_tensor(out, [rows, columns])
        shared = (self.arrived[variant], self.turns[variant])
        numbers = (*x.shape, w.shape[1], variant.parts, variant.senders, int(variant.sends))
        return x, box, a_x, a_box, *shared, b, c, *numbers, self.contexts[variant]

    @staticmethod
    def constants(variant: Variant) -> dict:
        return {
            "TILE": variant.tile,
            "DESCRIPTORS": variant.descriptors,
            "STORES": variant.stores,
            "CHUNK": variant.chunk,
            "COPY_STAGES": variant.copy_stages,
            "num_warps": variant.warps,
            "num_stages": variant.stages,
        }

    def compile(self, variant: Variant, x, w) -> None:
        out = x.new_empty(dist.get_world_size() * x.shape[0], w.shape[1])
        arguments = self.arguments(variant, x, w, out)
        variant_kernel.warmup(*arguments, grid=(self.programs(variant),), **self.constants(variant))

    def __call__(self, variant: Variant, x, w) -> torch.Tensor:
        out = x.new_empty(dist.get_world_size() * x.shape[0], w.shape[1])
        arguments = self.arguments(variant, x, w, out)
        variant_kernel[(self.programs(variant),)](*arguments, **self.constants(variant))
        return out
