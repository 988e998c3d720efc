"""Into how many pieces a call is cut, and the two ways in which pieces travel.

NOTE [Pieces]
A piece is a range of rows, which travels while the caller's thread or stream computes another one.
On the CPU, and where a GPU all_reduces, that is a call of the group, on its thread or stream;
gathers and scatters on a GPU are fetched by copy engines (NOTE [Pieces by copy engines] in
boxes.py). What is promised of the group's calls holds for both: sums in the order of ranks, rounded
once, errors that name a rank, capture into graphs. Ranks must cut alike. So the number comes from
shapes, dtype, device and the size of the group, which are the same on all of them, and from nothing
that one rank alone knows. One piece is one after the other: the collective and the product whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_symm import ccl
from torch_symm.ops.boxes import aligned, boxes

OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG}

# Computes the rows of a product: from the left operands' rows (the matrix, and its scales where it
# has any) into the same rows of each output.
Multiply = Callable[[Sequence[Tensor], Sequence[Tensor]], None]

# Computes a rank's contribution to those rows of everybody's share: into the tensor, or a new one.
Partial = Callable[[slice, Tensor | None], Tensor]


@dataclasses.dataclass(frozen=True)
class Cut:
    """When a device's calls are cut: into pieces of no fewer rows and bytes, `most` of them."""

    rows: int
    nbytes: int
    most: int


# By device, for gathers and for reductions. On the CPU smaller products lose more than the
# hand-over to the group's thread hides, and a reduction is arithmetic for the same cores: there it
# is cut only where a caller says so (measured, docs/fused.md). A GPU's are estimates.
_ON_GPU = Cut(rows=256, nbytes=1 << 20, most=8)
CUTS = {
    "cpu": {"gather": Cut(rows=1024, nbytes=2 << 20, most=4), "reduce": Cut(1, 1, most=1)},
    "cuda": {"gather": _ON_GPU, "reduce": _ON_GPU},
}


# Rows that a piece has a multiple of where there are enough of them: what a GPU's product of 8-bit
# floats with a scale for each row asks for.
GRAIN = 16


def count(
    given: int | None,
    kind: str,
    rows: int,
    nbytes: int,
    device: str,
    world_size: int,
    grain: int = 1,
) -> int:
    """How many pieces `rows` rows become of which a rank sends `nbytes` to each peer.

    `given` is what the caller asked for; no piece is empty in any case, or has less than `grain`
    rows.
    """
    if world_size == 1 or rows == 0 or nbytes == 0:
        return 1
    if given is not None:
        return min(given, max(1, rows // grain))
    cut = CUTS[device][kind]
    return max(1, min(cut.most, rows // cut.rows, nbytes // cut.nbytes))


def ranges(rows: int, pieces: int) -> Iterator[tuple[int, int]]:
    """(first row, one past the last) of each piece; their sizes differ by one row at most, or by
    GRAIN rows and the rest."""
    grain = GRAIN if rows >= GRAIN * pieces else 1
    bounds = [rows // grain * piece // pieces * grain for piece in range(pieces)]
    yield from itertools.pairwise([*bounds, rows])


def gather_and_multiply(
    group: Any,
    shards: Sequence[Tensor],
    wholes: Sequence[Tensor],
    outputs: Sequence[Tensor],
    multiply: Multiply,
    pieces: int,
) -> None:
    """Fills `wholes` with all ranks' shards, and `outputs` with the products of their rows.

    `shards` are [rows, ...], `wholes` and `outputs` [world_size, rows, ...]. This rank's rows are
    multiplied while the first piece of the others' is on its way, and each piece while the next is.
    """
    if pieces == 1:
        for whole, shard in zip(wholes, shards, strict=True):
            ccl.all_gather(whole, shard, group)
        return multiply([w.flatten(0, 1) for w in wholes], [o.flatten(0, 1) for o in outputs])
    bounds = [slice(*bounds) for bounds in ranges(shards[0].shape[0], pieces)]
    rank, peers = group.rank(), _peers(group)
    with _travelling(group, shards, wholes, bounds) as wait:
        multiply(shards, [output[rank] for output in outputs])
        for number, rows in enumerate(bounds):
            for step, peer in peers:
                wait(number, step)
                multiply([w[peer, rows] for w in wholes], [o[peer, rows] for o in outputs])


def _peers(group: Any) -> list[tuple[int, int]]:
    """(steps to it, rank) of each, the next one first."""
    size = group.size()
    return [(step, (group.rank() + step) % size) for step in range(1, size)]


@contextlib.contextmanager
def _travelling(
    group: Any, shards: Sequence[Tensor], wholes: Sequence[Tensor], bounds: Sequence[slice]
) -> Iterator[Callable[[int, int], None]]:
    """All pieces of all shards are on their way; waits for number `number` of the peer `step` ranks
    on, as the thread or the current stream does."""
    if shards[0].device.type == "cpu":
        works = [
            [_all_gather(group, w, s, rows) for w, s in zip(wholes, shards, strict=True)]
            for rows in bounds
        ]
        yield lambda number, _: _wait(works[number])
        return
    nbytes = sum(aligned(shard.nbytes) for shard in shards)
    with boxes(group, shards[0].device, nbytes, "all_gather_matmul") as memory:
        places = [memory.take(tuple(shard.shape), shard.dtype) for shard in shards]
        for shard, whole, place in zip(shards, wholes, places, strict=True):
            place[group.rank()].copy_(shard)
            whole[group.rank()].copy_(shard)
        memory.meet()
        fetched = [
            {
                step: [
                    memory.fetch(step, whole[peer, rows], place[peer][rows])
                    for whole, place in zip(wholes, places, strict=True)
                ]
                for step, peer in _peers(group)
            }
            for rows in bounds
        ]
        yield lambda number, step: fetched[number][step][-1].wait()


def _all_gather(group: Any, whole: Tensor, shard: Tensor, rows: slice) -> dist.Work:
    return dist.all_gather(list(whole[:, rows].unbind()), shard[rows], group, async_op=True)


def multiply_and_scatter(
    group: Any, output: Tensor, partial: Partial, op: str, pieces: int
) -> None:
    """Fills `output` [rows, n] with this rank's share of the ranks' combined products.

    `partial` gives this rank's contribution to those rows of everybody's share, [world_size,
    rows, n] by rank: computed while the piece before it is being combined.
    """
    if pieces > 1 and op == "sum" and output.device.type == "cuda" and output.dtype in _WIDE:
        return _scatter_by_copy_engines(group, output, partial, pieces)
    works = [
        ccl.reduce_scatter(output[rows], partial(rows, None), OPS[op], group, async_op=pieces > 1)
        for rows in (slice(*bounds) for bounds in ranges(len(output), pieces))
    ]
    _wait(works)


# Dtypes whose sums over ranks are made here as everywhere in symm, and in what they are added.
_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


def _scatter_by_copy_engines(group: Any, output: Tensor, partial: Partial, pieces: int) -> None:
    rank, size, width = group.rank(), group.size(), output.shape[1:]
    bounds = [slice(*bounds) for bounds in ranges(len(output), pieces)]
    nbytes = sum(aligned(size * output[rows].nbytes) for rows in bounds)
    travelling = []
    with boxes(group, output.device, nbytes, "matmul_reduce_scatter") as memory:
        for rows in bounds:
            place = memory.take((size, rows.stop - rows.start, *width), output.dtype)
            partial(rows, place[rank])
            memory.meet()
            parts = [
                place[rank][rank] if r == rank else torch.empty_like(output[rows])
                for r in range(size)
            ]
            events = [
                memory.fetch(step, parts[peer], place[peer][rank]) for step, peer in _peers(group)
            ]
            travelling.append((rows, parts, events))
        for rows, parts, events in travelling:
            for event in events:
                event.wait()
            add_up(output[rows], parts)


def add_up(output: Tensor, parts: Sequence[Tensor]) -> None:
    """The sum of `parts` in their order, rounded once."""
    if len(parts) == 2:
        torch.add(*parts, out=output)  # which rounds once too
        return
    total = parts[0].to(_WIDE[output.dtype], copy=True)
    for part in parts[1:]:
        total.add_(part)
    output.copy_(total)


def multiply_and_reduce(
    group: Any, output: Tensor, multiply: Callable[[slice], None], op: str, pieces: int
) -> None:
    """Combines the rows of `output` [rows, n] that `multiply(rows)` computes, piece by piece."""
    works = []
    for bounds in ranges(len(output), pieces):
        rows = slice(*bounds)
        multiply(rows)
        part = output[rows]
        works.append(ccl.all_reduce(part, part, OPS[op], group, async_op=pieces > 1))
    _wait(works)


def _wait(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def matmul(bs: Sequence[Tensor]) -> Multiply:
    def multiply(lefts: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        for b, output in zip(bs, outputs, strict=True):
            torch.mm(lefts[0], b, out=output)

    return multiply
