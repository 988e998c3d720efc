"""Messages and all_to_all with and without reads of the peers' processes: the same results."""

import pytest
import torch
import torch.distributed as dist

from harness import run_ranks

pytestmark = pytest.mark.cpu("memory of a process is ordinary memory")


def _numbers(count, sender, receiver):
    return torch.arange(count, dtype=torch.int64) * 3 + 1000 * sender + receiver


def _messages(rank, world):
    """From every rank to the next, below and above what is read, from the middle of a tensor."""
    for count in (61, 9_000, 300_000, 600_000):
        sent = torch.zeros(count + 5, dtype=torch.int64)
        sent[5:] = _numbers(count, rank, (rank + 1) % world)
        got = torch.zeros(count + 3, dtype=torch.int64)
        works = [
            dist.isend(sent[5:], (rank + 1) % world),
            dist.irecv(got[3:], (rank - 1) % world),
        ]
        for work in works:
            work.wait()
        assert got[:3].eq(0).all()
        assert got[3:].equal(_numbers(count, (rank - 1) % world, rank))


def _exchanges(rank, world):
    """Uneven shares, empty ones among them; a list of tensors; both twice, over the same memory."""
    for most in (10, 20_000, 400_000, 700_000):
        sizes = [[most * ((a + 2 * b) % 3) // 2 for b in range(world)] for a in range(world)]
        sent = [_numbers(sizes[rank][peer], rank, peer) for peer in range(world)]
        wanted = [_numbers(sizes[peer][rank], peer, rank) for peer in range(world)]
        for _ in range(2):
            got = torch.zeros(sum(len(one) for one in wanted), dtype=torch.int64)
            dist.all_to_all_single(
                got, torch.cat(sent), [len(one) for one in wanted], [len(one) for one in sent]
            )
            assert got.equal(torch.cat(wanted))
            parts = [torch.zeros_like(one) for one in wanted]
            dist.all_to_all(parts, sent)
            assert all(one.equal(other) for one, other in zip(parts, wanted, strict=True))


def _body(rank, world):
    _messages(rank, world)
    _exchanges(rank, world)
    return True


@pytest.mark.parametrize("choice", ["0", "1", "auto"])
@pytest.mark.parametrize("world", [2, 3])
def test_results_are_the_same_with_and_without_reads(choice, world):
    assert run_ranks(_body, world, world, env={"SYMM_SINGLE_COPY": choice}) == [True] * world
