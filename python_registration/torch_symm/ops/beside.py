"""The forms whose pieces go by copy engines beside the product: NOTE [Pieces by copy engines] in
landing.py."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_symm import ccl
from torch_symm.ops.landing import aligned, exchange

# Dtypes whose sums over ranks are made here as everywhere in symm, and in what they are added.
WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


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
    alike = _number_of("gather", shards, bounds)
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
    caller: str,
) -> None:
    """Fills `output` [rows, n] with the sum of the ranks' `share(this rank, all rows)`.

    `share(peer, rows)` computes this rank's contribution to those rows of the share of `peer`: of
    this rank last, while the others' are on their way.
    """
    size = group.size()
    alike = _number_of(caller, [output], bounds)
    nbytes = aligned(size * output.nbytes)
    with exchange(group, output.device, nbytes, caller, alike) as pieces:
        rank = pieces.rank
        places = pieces.places.take((size, *output.shape), output.dtype)
        sent = []  # to be kept until it is there
        for peer in pieces.peers:
            for number, rows in enumerate(bounds):
                sent.append(share(peer, rows))
                pieces.fork(peer)
                pieces.put(peer, number, [(places[peer][rank, rows], sent[-1])])
        own = share(rank, slice(0, len(output)))
        for peer in pieces.peers:
            for number in range(len(bounds)):
                pieces.take(peer, number)
        add_up(output, [own if r == rank else places[rank][r] for r in range(size)])


def multiply_and_reduce(
    group: Any, output: Tensor, multiply: Callable[[slice], Tensor], bounds: Sequence[slice]
) -> None:
    """Fills `output` [rows, n] with the sum of the ranks' `multiply(all rows)`, where the world
    size divides the rows: each rank adds up a share of them, which all gather then."""
    shares = output.unflatten(0, (group.size(), -1))
    count, mine = shares.shape[1], shares[group.rank()]

    def share(peer: int, rows: slice) -> Tensor:
        first = peer * count
        return multiply(slice(first + rows.start, first + rows.stop))

    multiply_and_scatter(group, mine, share, bounds, "matmul_all_reduce")
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


def _number_of(what: str, tensors: Sequence[Tensor], bounds: Sequence[slice]) -> int:
    """The same on ranks that make the same call."""
    facts = (what, [(tuple(t.shape), str(t.dtype)) for t in tensors], len(bounds))
    return zlib.crc32(repr(facts).encode())
