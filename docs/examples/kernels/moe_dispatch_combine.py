"""all_to_all-v of a mixture of experts, a rank an expert: tokens go to the experts that they are
routed to, and results come back. How many each rank gets is known on the device alone."""

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
def moe_kernel(
    x, expert, weight, inbox, origin, counts, out, done, tokens, turn, ctx, WIDTH: tl.constexpr
):
    """x [tokens, WIDTH], expert [tokens]; inbox [ranks, tokens, WIDTH], origin [ranks, tokens] and
    counts [ranks] are where others put; out [tokens, WIDTH] is where results come back."""
    rank, ranks, column = symm.my_rank(ctx), symm.world_size(ctx), tl.arange(0, WIDTH)
    for peer in range(ranks):  # dispatch
        slot = rank * tokens
        for token in range(tokens):
            if tl.load(expert + token) == peer:
                symm.put(inbox + slot * WIDTH + column, x + token * WIDTH + column, peer, ctx)
                symm.store(origin + slot, token, peer, ctx)
                slot += 1
        # The count is the signal: with the turn above it, so that an old one is none.
        symm.signal_set(counts + rank, turn * 65536 + slot - rank * tokens, peer, ctx)
    scale = tl.load(weight + column)
    for source in range(ranks):  # this rank's expert, and back
        count = symm.wait_until(counts + source, "ge", turn * 65536, ctx, source=source) % 65536
        for index in range(count):
            slot = source * tokens + index
            token = tl.load(origin + slot)
            result = tl.load(inbox + slot * WIDTH + column) * scale
            symm.store(out + token * WIDTH + column, result, source, ctx)
        symm.signal_add(done, 1, source, ctx)
    symm.wait_until(done, "ge", turn * ranks, ctx)  # every expert has answered, and read the inbox


class Experts:
    """y[t] = x[t] * weight of rank expert[t], for x [tokens, width] of each rank. Collective."""

    def __init__(self, tokens: int, width: int, device: str) -> None:
        ranks = dist.get_world_size()
        self.inbox = torch_symm.empty(ranks, tokens, width, dtype=torch.float32, device=device)
        self.origin = torch_symm.empty(ranks, tokens, dtype=torch.int32, device=device)
        self.counts = torch_symm.zeros(ranks, dtype=torch.int32, device=device)
        self.out = torch_symm.empty(tokens, width, dtype=torch.float32, device=device)
        self.done = torch_symm.zeros(1, dtype=torch.int32, device=device)
        self.shared = (self.inbox, self.origin, self.counts, self.out, self.done)
        self.ctx, self.turn = symm.context(*self.shared), 0

    def __call__(self, x, expert, weight) -> torch.Tensor:
        self.turn += 1
        self.out.fill_(float("nan"))
        tokens, width = x.shape
        arguments = (x, expert, weight, *self.shared, tokens, self.turn, self.ctx)
        moe_kernel[(1,)](*arguments, WIDTH=width)
        return self.out.clone()


def by_all_to_all(x, expert, weight) -> torch.Tensor:
    """The same with torch.distributed, for which the counts come to the host."""
    ranks = dist.get_world_size()
    order = expert.argsort(stable=True)
    sent = torch.bincount(expert, minlength=ranks)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    inbox = x.new_empty(int(received.sum()), x.shape[1])
    dist.all_to_all_single(inbox, x[order], received.tolist(), sent.tolist())
    back = torch.empty_like(x)
    dist.all_to_all_single(back, inbox * weight, sent.tolist(), received.tolist())
    return torch.empty_like(x).index_copy_(0, order, back)


def example(device: str) -> float:
    """Dispatch and combine beside three dist.all_to_all_single."""
    rank, ranks, distance, tokens, width = dist.get_rank(), dist.get_world_size(), 0.0, 9, 32
    experts = Experts(tokens, width, device)
    weight = random(width, device=device, seed=500 + rank)
    for turn in range(2):
        x = random(tokens, width, device=device, seed=100 * turn + rank)
        # Uneven, and in the second turn some experts get nothing.
        expert = (torch.arange(tokens) ** 2 + rank) % (ranks if turn == 0 else 2)
        expert = expert.to(device, torch.int32)
        expected = by_all_to_all(x, expert.long(), weight)
        distance = max(distance, difference(experts(x, expert, weight), expected))
    return distance


if __name__ == "__main__":
    sys.exit(run(example))
