"""Tensors of more than 2^31 elements and of more than 4 GiB, on two ranks.

Needs about 16 GiB of memory: run with `make huge`. Values are compared piece by piece, on
the device, so that the test itself needs no further copy.
"""

import functools

import pytest
import torch
import torch.distributed as dist

from harness import DEVICE, expect_no_mismatch, run_ranks

pytestmark = [pytest.mark.huge, pytest.mark.timeout(900)]

PIECE = 1 << 26
PERIOD = 241  # of the pattern
MANY = (1 << 31) + 12345  # elements; as int8 a little over 2 GiB
BEYOND_4_GIB = (1 << 32) + 4321  # bytes


@functools.cache
def pattern_from_any_phase(rank: int) -> torch.Tensor:
    index = torch.arange(PERIOD + PIECE, dtype=torch.int32) % PERIOD
    return (index + 57 * rank).to(torch.int8).to(DEVICE)


def pattern(rank: int, start: int, count: int) -> torch.Tensor:
    """int8 values that depend on rank and position with a period that is no power of two."""
    phase = start % PERIOD
    return pattern_from_any_phase(rank)[phase : phase + count]


def fill(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    for start in range(0, tensor.numel(), PIECE):
        piece = tensor[start : start + PIECE]
        piece.copy_(pattern(rank, start, piece.numel()))
    return tensor


def wrong_pieces(what: str, tensor: torch.Tensor, expected) -> list[str]:
    """`expected(start, count)` gives what tensor[start:start + count] must be."""
    return [
        f"{what}: elements from {start} are wrong"
        for start in range(0, tensor.numel(), PIECE)
        if not torch.equal(
            tensor[start : start + PIECE],
            expected(start, min(PIECE, tensor.numel() - start)),
        )
    ]


def run_huge(body):
    expect_no_mismatch(run_ranks(body, 2, time_limit=800, timeout=600))


@pytest.mark.parametrize("count", [MANY, BEYOND_4_GIB])
def test_all_reduce(count):
    def body(rank):
        tensor = fill(torch.empty(count, dtype=torch.int8, device=DEVICE), rank)
        dist.all_reduce(tensor)
        return wrong_pieces("sum", tensor, lambda s, n: pattern(0, s, n) + pattern(1, s, n))

    run_huge(body)


@pytest.mark.parametrize("count", [MANY, BEYOND_4_GIB])
def test_broadcast(count):
    def body(rank):
        tensor = torch.full((count,), 77, dtype=torch.int8, device=DEVICE)
        if rank == 1:
            fill(tensor, 1)
        dist.broadcast(tensor, src=1)
        return wrong_pieces("broadcast", tensor, lambda s, n: pattern(1, s, n))

    run_huge(body)


def test_all_gather_into_tensor():
    """2^31 + ... elements a rank, so the output is beyond 4 GiB."""

    def body(rank):
        mine = fill(torch.empty(MANY, dtype=torch.int8, device=DEVICE), rank)
        out = torch.full((2 * MANY,), 77, dtype=torch.int8, device=DEVICE)
        dist.all_gather_into_tensor(out, mine)
        problems = []
        for r in range(2):
            part = out[r * MANY : (r + 1) * MANY]
            problems += wrong_pieces(f"part {r}", part, lambda s, n, r=r: pattern(r, s, n))
        return problems

    run_huge(body)


def test_reduce_scatter_tensor():
    def body(rank):
        whole = fill(torch.empty(2 * MANY, dtype=torch.int8, device=DEVICE), rank)
        out = torch.full((MANY,), 77, dtype=torch.int8, device=DEVICE)
        dist.reduce_scatter_tensor(out, whole)

        def expected(s, n):
            at = s + rank * MANY
            return pattern(0, at, n) + pattern(1, at, n)

        return wrong_pieces("part of the sum", out, expected)

    run_huge(body)


def test_all_to_all_single():
    def body(rank):
        share = MANY // 2 + 1
        whole = fill(torch.empty(2 * share, dtype=torch.int8, device=DEVICE), rank)
        out = torch.full((2 * share,), 77, dtype=torch.int8, device=DEVICE)
        dist.all_to_all_single(out, whole)
        problems = []
        for r in range(2):
            part = out[r * share : (r + 1) * share]
            problems += wrong_pieces(
                f"from {r}", part, lambda s, n, r=r: pattern(r, s + rank * share, n)
            )
        return problems

    run_huge(body)


@pytest.mark.parametrize("count", [MANY, BEYOND_4_GIB])
def test_send_recv(count):
    def body(rank):
        tensor = torch.full((count,), 77, dtype=torch.int8, device=DEVICE)
        if rank == 0:
            dist.send(fill(tensor, 0), dst=1)
            return []
        dist.recv(tensor, src=0)
        return wrong_pieces("received", tensor, lambda s, n: pattern(0, s, n))

    run_huge(body)


def test_float32_beyond_4_gib():
    """Byte offsets beyond 2^32 with elements of four bytes."""
    count = (1 << 30) + 1025

    def body(rank):
        tensor = torch.full((count,), 0.5 + rank, device=DEVICE)
        tensor[:: 1 << 20] = 7.0
        dist.all_reduce(tensor)
        expected = torch.full((PIECE,), 2.0, device=DEVICE)
        expected[:: 1 << 20] = 14.0
        return wrong_pieces("sum", tensor, lambda s, n: expected[:n])

    run_huge(body)
