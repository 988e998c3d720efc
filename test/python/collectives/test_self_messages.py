"""Messages of a rank to itself, which need both ends in one batch, alone and beside those of
others, on the CPU and on GPUs."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

import model
from harness import (
    DEVICE,
    IS_SYMM,
    WORLD_SIZE,
    check,
    crowded,
    device_of_rank,
)

pytestmark = pytest.mark.skipif(not IS_SYMM, reason="gloo has no messages to oneself")

SIZES = [0, 1, 3 << 20]  # bytes


def message(sender: int, receiver: int, number: int, count: int) -> torch.Tensor:
    """Bytes that depend on who sends them to whom and which message it is."""
    return model.make_input(torch.uint8, count, sender + 16 * receiver, number)


def poisoned(count: int, dtype=torch.uint8) -> torch.Tensor:
    return torch.full((count,), 0xA5, dtype=torch.uint8, device=DEVICE).view(dtype)


def run(body, *args, world_size=WORLD_SIZE):
    check(body, world_size, *args)


def send(tensor, peer, tag=0):
    return dist.P2POp(dist.isend, tensor, peer, tag=tag)


def recv(tensor, peer, tag=0):
    return dist.P2POp(dist.irecv, tensor, peer, tag=tag)


def exchange(operations):
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def mismatches(what, got, expected):
    """`got` and `expected`: lists of tensors."""
    return [
        line
        for number, (tensor, content) in enumerate(zip(got, expected, strict=True))
        for line in model.mismatch(f"{what} {number}", tensor, content)
    ]


def alone(rank, count, send_first):
    """Nobody but rank 0 calls anything: a message to oneself needs no peer."""
    if rank != 0:
        return []
    received = poisoned(count)
    operations = [recv(received, 0), send(message(0, 0, 1, count).to(DEVICE), 0)]
    exchange(operations[::-1] if send_first else operations)
    return mismatches("alone", [received], [message(0, 0, 1, count)])


@pytest.mark.parametrize("send_first", [True, False])
@pytest.mark.parametrize("count", SIZES)
def test_one_rank_alone(count, send_first):
    run(alone, count, send_first)


@pytest.mark.parametrize("count", SIZES)
def test_a_group_of_one(count):
    run(alone, count, True, world_size=1)


def one_tag(rank, sizes):
    """Messages of one tag match in order, whatever their sizes and whichever end comes first."""
    sent = [message(rank, rank, n, size) for n, size in enumerate(sizes)]
    received = [poisoned(size) for size in sizes]
    sends = [send(tensor.to(DEVICE), rank, 5) for tensor in sent]
    recvs = [recv(tensor, rank, 5) for tensor in received]
    exchange([recvs[0], recvs[1], *sends, *recvs[2:]])
    return mismatches("message", received, sent)


def test_messages_of_one_tag_keep_their_order():
    run(one_tag, [*SIZES, 17, 300_000, 5])


def many_tags(rank, sizes):
    """Sent in one order of tags, received in the other."""
    tags = [3, 0, 11, 4, 7, 1][: len(sizes)]
    sent = [message(rank, rank, tag, size) for tag, size in zip(tags, sizes, strict=True)]
    received = [poisoned(size) for size in sizes]
    sends = [send(tensor.to(DEVICE), rank, tag) for tensor, tag in zip(sent, tags, strict=True)]
    recvs = [recv(tensor, rank, tag) for tensor, tag in zip(received, tags, strict=True)]
    exchange([*sends[:2], *recvs[::-1], *sends[2:]])
    return mismatches("tags", received, sent)


def test_tags_in_another_order():
    run(many_tags, [*SIZES, 17, 300_000, 5])


def everybody(rank, count, rounds):
    """Every rank to every rank, itself included, two tags, again and again."""
    problems, ranks = [], range(WORLD_SIZE)
    for number in range(rounds):
        parts = [2 * number, 2 * number + 1]
        received = {(peer, part): poisoned(count + part % 2) for peer in ranks for part in parts}
        operations = []
        for peer in ranks:
            for part in parts:
                mine = message(rank, peer, part, count + part % 2).to(DEVICE)
                operations.append(send(mine, peer, part % 2))
                operations.append(recv(received[peer, part], peer, part % 2))
        exchange(operations[number % 5 :] + operations[: number % 5])
        expected = [message(peer, rank, part, count + part % 2) for peer, part in received]
        problems += mismatches(f"round {number}", received.values(), expected)
    return problems


@pytest.mark.parametrize("count", SIZES)
def test_beside_messages_of_others(count):
    run(everybody, count, 2 if count > 1000 or crowded(WORLD_SIZE) else 10)


def odd_tensors(rank):
    """A view with holes is sent as its elements; a tensor is received into itself."""
    grid = torch.arange(600.0).reshape(20, 30).add_(rank).to(DEVICE)
    columns, same = poisoned(4 * 20 * 10, torch.float32), grid.clone()
    exchange(
        [
            send(grid[:, ::3], rank, 1),
            recv(columns, rank, 1),
            send(same, rank, 2),
            recv(same, rank, 2),
        ]
    )
    whole = torch.arange(600.0).reshape(20, 30).add_(rank)
    expected = [whole[:, ::3].reshape(-1), whole]
    return mismatches("odd", [columns, same], expected)


def test_views():
    run(odd_tensors)


def results_of_a_batch(rank):
    """The Works of a batch: nothing to wait for before its end, everything after it."""
    group, received, problems = dist.group.WORLD, poisoned(1000), []
    sent = message(rank, rank, 1, 1000).to(DEVICE)
    with _coalescing_manager(group, device_of_rank(), async_ops=True) as manager:
        receiving = dist.irecv(received, rank)
        sending = dist.isend(sent, rank)
        for work in (receiving, sending):
            if work.is_completed():
                problems.append("completed before the end of the block")
            try:
                work.wait()
                problems.append("wait() inside the block did not raise")
            except ValueError as error:
                if "coalescing block that has not ended" not in str(error):
                    problems.append(f"wait() inside the block: {error}")
    manager.wait()
    receiving.wait()
    sending.wait()
    return problems + mismatches("block", [received], [message(rank, rank, 1, 1000)])


def test_works_of_a_block():
    run(results_of_a_batch)


def refused_then_right(rank, world_size):
    """Nothing of a refused batch was sent: the message after it is the first that arrives."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    problems = []
    for number, lonely in enumerate((send, recv)):
        wrong = message(rank, right, 100 + number, 64).to(DEVICE)
        try:
            dist.batch_isend_irecv([send(wrong, right, 1), lonely(poisoned(64), rank, 1)])
            problems.append("did not raise")
        except ValueError as error:
            if "in the same batch" not in str(error):
                problems.append(str(error))
        received, own = poisoned(64), poisoned(64)
        exchange(
            [
                send(message(rank, right, number, 64).to(DEVICE), right, 1),
                recv(own, rank, 1),
                recv(received, left, 1),
                send(message(rank, rank, number, 64).to(DEVICE), rank, 1),
            ]
        )
        expected = [message(left, rank, number, 64), message(rank, rank, number, 64)]
        problems += mismatches("after a refusal", [received, own], expected)
    return problems


def test_nothing_of_a_refused_batch_is_sent():
    run(refused_then_right, WORLD_SIZE)
