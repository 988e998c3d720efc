"""Into how many pieces a call is cut, and how they travel.

NOTE [Pieces]
A piece is a range of rows, which travels while the caller's thread or stream computes another one.
On the CPU, and of what is reduced by kernels on a GPU, that is a call of the group, on its thread
or stream; otherwise pieces of GPUs go by copy engines (NOTE [Pieces by copy engines] in
landing.py). What is promised of the group's calls holds for both: sums in the order of ranks,
rounded once, errors that name a rank, capture into graphs. Ranks must cut alike. So the number
comes from shapes, dtype, device and the size of the group, which are the same on all of them, and
from nothing that one rank alone knows. One piece is one after the other: the collective and the
product whole.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_symm import ccl
from torch_symm.ops import beside
from torch_symm.ops.landing import MOST_PIECES

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


# By device and by what travels; measured, docs/fused.md. Smaller products lose more than the
# hand-over hides. A reduction by the group is arithmetic for the same cores, or multiprocessors: it
# is cut only where a caller says so.
_NOT_CUT = Cut(rows=1, nbytes=1, most=1)
CUTS = {
    "cpu": {"gather": Cut(rows=1024, nbytes=2 << 20, most=4), "reduce": _NOT_CUT},
    "cuda": {
        "gather": Cut(rows=256, nbytes=2 << 20, most=2),
        "scatter": Cut(rows=256, nbytes=2 << 20, most=2),
        "all_reduce": Cut(rows=256, nbytes=4 << 20, most=2),
        "reduce": _NOT_CUT,
    },
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


def slices(rows: int, pieces: int) -> list[slice]:
    return [slice(*bounds) for bounds in ranges(rows, pieces)]


def travelling(rows: int, pieces: int) -> list[slice]:
    """The rows of each piece that goes to a peer by copy engines, where `pieces` counts what this
    rank keeps as one."""
    return slices(rows, min(pieces - 1, MOST_PIECES))


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
    rows, rank, size = len(shards[0]), group.rank(), group.size()
    if pieces == 1:
        for whole, shard in zip(wholes, shards, strict=True):
            ccl.all_gather(whole, shard, group)
        return multiply([w.flatten(0, 1) for w in wholes], [o.flatten(0, 1) for o in outputs])
    if not comes_into_wholes(shards[0].device.type, pieces):
        bounds = travelling(rows, pieces)
        return beside.gather_and_multiply(group, shards, wholes, outputs, multiply, bounds)
    coming = [
        (part, [_all_gather(group, w, s, part) for w, s in zip(wholes, shards, strict=True)])
        for part in slices(rows, pieces)
    ]
    multiply(shards, [output[rank] for output in outputs])
    for part, works in coming:
        _wait(works)
        for peer in ((rank + step) % size for step in range(1, size)):
            multiply([whole[peer, part] for whole in wholes], [o[peer, part] for o in outputs])


def comes_into_wholes(device: str, pieces: int) -> bool:
    """Whether what is gathered goes to its places at once, and not to landing memory."""
    return device == "cpu" or pieces == 1


def _all_gather(group: Any, whole: Tensor, shard: Tensor, rows: slice) -> dist.Work:
    return dist.all_gather(list(whole[:, rows].unbind()), shard[rows], group, async_op=True)


def adds_up_shares(device: str, dtype: torch.dtype, op: str) -> bool:
    """Whether the ranks' shares, where they are ranges of rows, go to their ranks by copy engines
    and are added up there; else a collective of the group combines them."""
    return device == "cuda" and op == "sum" and dtype in beside.WIDE


def multiply_and_scatter(
    group: Any, output: Tensor, partial: Callable[[slice], Tensor], op: str, pieces: int
) -> None:
    """Fills `output` [rows, n] with this rank's share of the ranks' combined products.

    `partial(rows)` is this rank's contribution to those rows of everybody's share, [world_size,
    rows, n] by rank: computed while the piece before it is being combined.
    """
    works = [
        ccl.reduce_scatter(output[rows], partial(rows), OPS[op], group, async_op=pieces > 1)
        for rows in slices(len(output), pieces)
    ]
    _wait(works)


def multiply_and_reduce(
    group: Any, output: Tensor, multiply: Callable[[slice], None], op: str, pieces: int
) -> None:
    """Combines the rows of `output` [rows, n] that `multiply(rows)` computes, piece by piece."""
    works = []
    for rows in slices(len(output), pieces):
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
