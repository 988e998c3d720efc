"""Attention of one query over keys and values that lie on all ranks: each rank attends to its own,
and the partial results are combined by their maxima and sums, as in flash decoding."""

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
def decode_kernel(
    q, k, v, partial, arrived, out, turn, ctx, KEYS: tl.constexpr, WIDTH: tl.constexpr
):
    """A program a head. q and out [heads, WIDTH], k and v [heads, KEYS, WIDTH]; a head's partial
    result is WIDTH numbers, then their sum of exponentials, then the maximum: partial
    [heads, ranks, 2 * WIDTH] has everybody's, arrived [heads, ranks] tells whose."""
    head, rank, ranks = tl.program_id(0), symm.my_rank(ctx), symm.world_size(ctx)
    column, key = tl.arange(0, WIDTH), tl.arange(0, KEYS)
    query = tl.load(q + head * WIDTH + column)
    place = head * KEYS * WIDTH + key[:, None] * WIDTH + column[None, :]
    scores = tl.sum(tl.load(k + place) * query[None, :], axis=1)
    highest = tl.max(scores, axis=0)
    weights = tl.exp(scores - highest)
    own = tl.sum(weights[:, None] * tl.load(v + place), axis=0)
    rows = partial + head * ranks * 2 * WIDTH
    for peer in range(ranks):
        row = rows + rank * 2 * WIDTH
        symm.store(row + column, own, peer, ctx)
        symm.store(row + WIDTH, tl.sum(weights, axis=0), peer, ctx)
        symm.store(row + WIDTH + 1, highest, peer, ctx)
        symm.signal_set(arrived + head * ranks + rank, turn, peer, ctx)
    total, mass = tl.zeros((WIDTH,), dtype=tl.float32), 0.0
    top = highest
    for peer in range(ranks):
        symm.wait_until(arrived + head * ranks + peer, "ge", turn, ctx, source=peer)
        row = rows + peer * 2 * WIDTH
        theirs = tl.load(row + WIDTH + 1)
        new_top = tl.maximum(top, theirs)
        old_scale, scale = tl.exp(top - new_top), tl.exp(theirs - new_top)
        total = total * old_scale + tl.load(row + column) * scale
        mass = mass * old_scale + tl.load(row + WIDTH) * scale
        top = new_top
    tl.store(out + head * WIDTH + column, total / mass)
    symm.barrier(ctx, head)  # the partial results are read


class Decode:
    """softmax(q k) v over the keys of all ranks, for the same q on every rank. Collective."""

    def __init__(self, heads: int, width: int, device: str) -> None:
        ranks = dist.get_world_size()
        shape = (heads, ranks, 2 * width)
        self.partial = torch_symm.empty(shape, dtype=torch.float32, device=device)
        self.arrived = torch_symm.zeros(heads, ranks, dtype=torch.int32, device=device)
        self.ctx, self.turn = symm.context(self.partial, self.arrived), 0

    def __call__(self, q, k, v) -> torch.Tensor:
        self.turn += 1
        out = torch.full_like(q, float("nan"))
        heads, keys, width = k.shape
        arguments = (q, k, v, self.partial, self.arrived, out, self.turn, self.ctx)
        decode_kernel[(heads,)](*arguments, KEYS=keys, WIDTH=width)
        return out


def example(device: str) -> float:
    """Flash-decode combine beside attention over gathered keys and values."""
    rank, ranks, distance, heads, keys, width = (
        dist.get_rank(),
        dist.get_world_size(),
        0.0,
        3,
        16,
        32,
    )
    decode = Decode(heads, width, device)
    for turn in range(3):
        q = random(heads, width, device=device, seed=turn)
        k, v = (random(heads, keys, width, device=device, seed=10 * seed + rank) for seed in (1, 2))
        gathered = q.new_empty(2, ranks, heads, keys, width)
        dist.all_gather_into_tensor(gathered[0], k)
        dist.all_gather_into_tensor(gathered[1], v)
        keys_of_all, values = gathered.transpose(1, 2).flatten(2, 3)
        weights = torch.einsum("hw,hkw->hk", q, keys_of_all).softmax(dim=1)
        expected = torch.einsum("hk,hkw->hw", weights, values)
        distance = max(distance, difference(decode(q, k, v), expected))
    return distance


if __name__ == "__main__":
    sys.exit(run(example))
