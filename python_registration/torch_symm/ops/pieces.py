"""Into how many pieces a call is cut, and the two ways in which pieces travel.

NOTE [Pieces]
A piece is a range of rows. Its collective runs on the group's thread (CPU) or on the group's stream
(a GPU; gathers by copy engines) while the caller's thread or stream computes the next piece, so
every call of a collective is one of the group, in its order, and what is promised of those holds
here: sums in the order of ranks, errors that name a rank, capture into graphs. Ranks must cut
alike. So the number comes from shapes, dtype, device and the size of the group, which are the same
on all of them, and from nothing that one rank alone knows. One piece is one after the other: the
collective and the product whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_symm import ccl
from torch_symm.ops.landing import aligned, landing

OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG}

# Computes the rows of a product: from the left operands' rows (the matrix, and its scales where it
# has any) into the same rows of each output.
Multiply = Callable[[Sequence[Tensor], Sequence[Tensor]], None]


@dataclasses.dataclass(frozen=True)
class Cut:
    """When a device's calls are cut: into pieces of no fewer rows and bytes, `most` of them."""

    rows: int
    nbytes: int
    most: int


# By device, for gathers and for reductions; measured, docs/fused.md. Smaller products lose more
# than the hand-over hides. A reduction is arithmetic for the same cores, or multiprocessors: it is
# cut only where a caller says so.
_NOT_CUT = Cut(rows=1, nbytes=1, most=1)
CUTS = {
    "cpu": {"gather": Cut(rows=1024, nbytes=2 << 20, most=4), "reduce": _NOT_CUT},
    "cuda": {"gather": Cut(rows=1024, nbytes=16 << 20, most=2), "reduce": _NOT_CUT},
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
    wholes: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    multiply: Multiply,
    pieces: int,
) -> None:
    """Fills `wholes` with all ranks' shards, and `outputs` with the products of their rows.

    `shards` are [rows, ...], `wholes` and `outputs` [world_size, rows, ...]; wholes may be None
    unless `comes_into_wholes`. This rank's rows are multiplied while the first piece of the others'
    is on its way, and each piece while the next is.
    """
    if pieces == 1:
        for whole, shard in zip(wholes, shards, strict=True):
            ccl.all_gather(whole, shard, group)
        return multiply([w.flatten(0, 1) for w in wholes], [o.flatten(0, 1) for o in outputs])
    bounds = [slice(*bounds) for bounds in ranges(shards[0].shape[0], pieces)]
    with _gathers(group, shards, wholes, bounds) as gather:
        _multiply_as_they_come(group, shards, wholes, outputs, multiply, bounds, gather)


@functools.cache
def _by_copy_engines() -> ccl.Config:
    """NOTE [Pieces by copy engines] in landing.py."""
    return ccl.Config(algorithm="copy_engine")


def comes_into_wholes(device: str, pieces: int) -> bool:
    """Whether pieces of a gather go to their places at once, and not to its landing memory."""
    return device == "cpu" or pieces == 1


# Begins to gather one piece of a tensor: its number, its rows. Gives the work and, by rank, where
# the rows come: a view of the whole, or another place.
Gather = Callable[[int, slice], tuple[dist.Work, Tensor]]


def _multiply_as_they_come(
    group: Any,
    shards: Sequence[Tensor],
    wholes: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    multiply: Multiply,
    bounds: Sequence[slice],
    gather: Gather,
) -> None:
    rank, size = group.rank(), group.size()
    travelling = [(rows, [gather(i, rows) for i in range(len(shards))]) for rows in bounds]
    multiply(shards, [output[rank] for output in outputs])
    for rows, coming in travelling:
        for work, _ in coming:
            work.wait()
        came = [places for _, places in coming]
        for peer in ((rank + step) % size for step in range(1, size)):
            multiply([places[peer] for places in came], [o[peer, rows] for o in outputs])
        for whole, places in zip(wholes, came, strict=True):
            if whole is not None and not comes_into_wholes(whole.device.type, len(bounds)):
                whole[:, rows].copy_(places)


@contextlib.contextmanager
def _gathers(
    group: Any,
    shards: Sequence[Tensor],
    wholes: Sequence[Tensor | None],
    bounds: Sequence[slice],
) -> Iterator[Gather]:
    if comes_into_wholes(shards[0].device.type, len(bounds)):
        yield lambda number, rows: _by_the_group(group, shards[number], wholes[number], rows)
        return
    size = group.size()
    nbytes = sum(aligned(size * s[rows].nbytes) for rows in bounds for s in shards)
    with landing(group, shards[0].device, nbytes, "all_gather_matmul") as memory:

        def by_copy_engines(number: int, rows: slice) -> tuple[dist.Work, Tensor]:
            part = shards[number][rows]
            places = memory.take((size, *part.shape), part.dtype)
            return ccl.all_gather(places, part, group, True, _by_copy_engines()), places

        yield by_copy_engines


def _by_the_group(
    group: Any, shard: Tensor, whole: Tensor, rows: slice
) -> tuple[dist.Work, Tensor]:
    places = whole[:, rows]
    return dist.all_gather(list(places.unbind()), shard[rows], group, async_op=True), places


def multiply_and_scatter(
    group: Any, output: Tensor, partial: Callable[[slice], Tensor], op: str, pieces: int
) -> None:
    """Fills `output` [rows, n] with this rank's share of the ranks' combined products.

    `partial(rows)` is this rank's contribution to those rows of everybody's share, [world_size,
    rows, n] by rank: computed while the piece before it is being combined.
    """
    works = [
        ccl.reduce_scatter(output[rows], partial(rows), OPS[op], group, async_op=pieces > 1)
        for rows in (slice(*bounds) for bounds in ranges(len(output), pieces))
    ]
    _wait(works)


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
