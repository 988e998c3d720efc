"""The forms whose pieces go by copy engines beside the product: NOTE [Pieces by copy engines] in
landing.py."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_symm import ccl
from torch_symm.ops.landing import MOST_PIECES, aligned, exchange

# Dtypes whose sums over ranks are made here as everywhere in symm, and in what they are added.
WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


@dataclasses.dataclass(frozen=True)
class Tail:
    """How a scatter ends: what is left when the others' pieces are on their way.

    The own share is multiplied in ranges of rows, and behind each the pieces that have come for its
    rows are taken and added to it. The sums are the same however it is cut.

    own: the sizes of the ranges, one to another; None for those of the pieces that travel.
    aside: the priority of a stream on which a range is added up beside the next one's product, all
        but the last; None for the caller's stream, where the product may still be in the cache.
    onward: whether a matmul_all_reduce puts each range to the others behind its sum, into their
        landing memory and by copy engines, instead of gathering the sums by a call of the group.
    """

    own: tuple[int, ...] | None = None
    aside: int | None = None
    onward: bool = False


TAILS = {
    "end": Tail(own=(1,)),
    "pieces": Tail(),
    "beside": Tail(aside=0),
    "first": Tail(aside=-1),
    "onward": Tail(onward=True),
}
# The same on every rank. fused_speed.py compares them.
TAIL = TAILS["end"]


def gather_and_multiply(
    group: Any,
    shards: Sequence[Tensor],
    wholes: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    multiply: Callable[[Sequence[Tensor], Sequence[Tensor]], None],
    bounds: Sequence[slice],
) -> None:
    """As pieces.gather_and_multiply, with these ranges of rows of each shard on their way."""
    size = group.size()
    nbytes = sum(aligned(size * shard.nbytes) for shard in shards)
    alike = _number_of("gather", shards, len(bounds))
    with exchange(group, shards[0].device, nbytes, "all_gather_matmul", alike) as pieces:
        rank = pieces.rank
        places = [pieces.places.take((size, *s.shape), s.dtype) for s in shards]
        for number, rows in enumerate(bounds):
            for peer in pieces.peers:
                to = [place[peer][rank, rows] for place in places]
                pieces.put(peer, number, list(zip(to, (s[rows] for s in shards), strict=True)))
        multiply(shards, [output[rank] for output in outputs])
        came = [place[rank] for place in places]
        for number, rows in enumerate(bounds):
            for peer in pieces.peers:
                pieces.take(peer, number)
                multiply([p[peer, rows] for p in came], [o[peer, rows] for o in outputs])
        for whole, shard, place in zip(wholes, shards, came, strict=True):
            if whole is not None:
                whole.copy_(place)
                whole[rank].copy_(shard)


def multiply_and_scatter(
    group: Any,
    output: Tensor,
    share: Callable[[int, slice], Tensor],
    bounds: Sequence[slice],
    own: Sequence[slice],
    caller: str,
    whole: Tensor | None = None,
) -> None:
    """Fills `output` [rows, n] with the sum of the ranks' `share(this rank, all rows)`.

    `share(peer, rows)` computes this rank's contribution to those rows of the share of `peer`, in
    the ranges `bounds`: of this rank last, in the ranges `own`, while the others' are on their way.
    Every rank's sums also go to `whole` [world_size, rows, n], where it is given; `output` is this
    rank's part of it then, and no more than MOST_PIECES are in `bounds` and `own` together.
    """
    size, tail = group.size(), TAIL
    alike = _number_of(caller, [output], len(bounds), len(own), whole is not None)
    nbytes = aligned(size * output.nbytes) * (1 if whole is None else 2)
    with exchange(group, output.device, nbytes, caller, alike) as pieces:
        rank = pieces.rank
        places = pieces.places.take((size, *output.shape), output.dtype)
        sums = None if whole is None else pieces.places.take(whole.shape, whole.dtype)
        read = []  # on other streams, and to be kept until they have
        for peer in pieces.peers:
            for number, rows in enumerate(bounds):
                read.append(share(peer, rows))
                pieces.fork(peer)
                pieces.put(peer, number, [(places[peer][rank, rows], read[-1])])
        coming = list(enumerate(bounds))
        for number, rows in enumerate(own):
            product = share(rank, rows)
            while coming and coming[0][1].start < rows.stop:
                came, _ = coming.pop(0)
                for peer in pieces.peers:
                    pieces.take(peer, came)
            parts = [product if r == rank else places[rank][r, rows] for r in range(size)]
            if tail.aside is not None and number + 1 < len(own):
                read.append(product)
                with pieces.aside(tail.aside):
                    add_up(output[rows], parts)
            else:
                add_up(output[rows], parts)
            del product, parts  # whose memory, which is in the cache, is for the next range
            if sums is not None:
                for peer in pieces.peers:
                    pieces.fork(peer)
                    to = sums[peer][rank, rows]
                    pieces.put(peer, len(bounds) + number, [(to, output[rows])])
        if whole is not None and sums is not None:
            for number, rows in enumerate(own, len(bounds)):
                for peer in pieces.peers:
                    pieces.take(peer, number)
                    whole[peer, rows].copy_(sums[rank][peer, rows])


def multiply_and_reduce(
    group: Any,
    output: Tensor,
    multiply: Callable[[slice], Tensor],
    bounds: Sequence[slice],
    own: Sequence[slice],
) -> None:
    """Fills `output` [rows, n] with the sum of the ranks' `multiply(all rows)`, where the world
    size divides the rows: each rank adds up a share of them, which all gather then."""
    shares = output.unflatten(0, (group.size(), -1))
    count, mine = shares.shape[1], shares[group.rank()]

    def share(peer: int, rows: slice) -> Tensor:
        first = peer * count
        return multiply(slice(first + rows.start, first + rows.stop))

    onward = TAIL.onward and TAIL.aside is None and len(bounds) + len(own) <= MOST_PIECES
    whole = shares if onward else None
    multiply_and_scatter(group, mine, share, bounds, own, "matmul_all_reduce", whole)
    if not onward:
        ccl.all_gather(output, mine, group)


def add_up(output: Tensor, parts: Sequence[Tensor]) -> None:
    """The sum of `parts` in their order, rounded once."""
    if len(parts) == 2:
        torch.add(*parts, out=output)  # which rounds once too
        return
    total = parts[0].to(WIDE[output.dtype], copy=True)
    for part in parts[1:]:
        total.add_(part)
    output.copy_(total)


def _number_of(what: str, tensors: Sequence[Tensor], *numbers: int) -> int:
    """The same on ranks that make the same call."""
    facts = (what, [(tuple(t.shape), str(t.dtype)) for t in tensors], numbers)
    return zlib.crc32(repr(facts).encode())
