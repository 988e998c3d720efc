"""recv from any rank on GPUs: who has sent, which message, and what a killed rank leaves."""

import datetime
import os
import signal
import tempfile
import time

import pytest
import torch
import torch.distributed as dist

import model
from errors import ERRORS, message_of, unsaid
from harness import WORLD_SIZE, Setup, check, crowded, expect_no_mismatch
from rank_processes import describe, start_ranks

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(120)]

SIZES = [0, 4, 4_096, 65_536, 300_007, 8 << 20]  # bytes: boxes, chunks, more than the slots
ROUNDS = 20 if crowded(WORLD_SIZE) else 200


def message(sender, number, count):
    return model.make_input(torch.uint8, count, sender + 10 * number, number)


def poisoned(count):
    return torch.full((count,), 0xA5, dtype=torch.uint8, device="cuda")


def run(body, *args, **settings):
    check(body, WORLD_SIZE, *args, **settings)


def one_of_each(rank, count):
    """Rank 0 hears every other rank once a round, in whatever order they come."""
    problems = []
    for number in range(3):
        if rank != 0:
            dist.send(message(rank, number, count).cuda(), 0, tag=number)
        else:
            sources = []
            for _ in range(WORLD_SIZE - 1):
                tensor = poisoned(count)
                source = dist.recv(tensor, src=None, tag=number)
                sources.append(source)
                problems += model.mismatch(
                    f"round {number}", tensor, message(source, number, count)
                )
            if sorted(sources) != list(range(1, WORLD_SIZE)):
                problems.append(f"round {number}: from {sources}")
        torch.cuda.synchronize()
        dist.barrier()
    return problems


@pytest.mark.parametrize("count", SIZES)
def test_sizes(count):
    run(one_of_each, count)


def called_before_the_message(rank):
    """The call returns at once; wait() and the program's streams see the message."""
    problems = []
    dist.barrier()
    if rank == 0:
        tensor = poisoned(5_000)
        work = dist.irecv(tensor)
        if work.is_completed():
            problems.append("it is complete before anybody has sent")
        beside = torch.ones(1000, device="cuda")
        dist.send(beside, 1, tag=1)
        work.wait()
        doubled = tensor.to(torch.int32) * 2
        if work._source_rank() != 1:
            problems.append(f"from rank {work._source_rank()}")
        expected = message(1, 0, 5_000).to(torch.int32) * 2
        problems += model.mismatch("behind wait()", doubled, expected)
    elif rank == 1:
        dist.recv(torch.empty(1000, device="cuda"), 0, tag=1)
        torch.cuda.synchronize()
        time.sleep(0.2)
        dist.send(message(1, 0, 5_000).cuda(), 0)
    torch.cuda.synchronize()
    return problems


def test_called_before_the_message():
    run(called_before_the_message)


def nobody_waits(rank):
    """A large message is taken although the receiver is in a barrier, not in wait()."""
    count, problems = 16 << 20, []
    if rank == 0:
        tensor = poisoned(count)
        work = dist.irecv(tensor)
    elif rank == 1:
        dist.send(message(1, 0, count).cuda(), 0)
        torch.cuda.synchronize()
    dist.barrier()
    if rank == 0:
        work.wait()
        problems += model.mismatch("large", tensor, message(1, 0, count))
    return problems


def test_nobody_waits():
    run(nobody_waits)


def mixed_with_named(rank):
    """Recvs of one tag are in the order of the calls: the first that fits gets the message."""
    problems = []
    for number in range(ROUNDS):
        count = [1, 3_000, 70_001, 700_001][number % 4]
        if rank == 1:
            for part in range(3):
                dist.send(message(1, 3 * number + part, count).cuda(), 0)
        if rank == 0:
            received = [poisoned(count) for _ in range(3)]
            works = [
                dist.irecv(received[0], 1),
                dist.irecv(received[1]),
                dist.irecv(received[2], 1),
            ]
            for work in works:
                work.wait()
            for part, tensor in enumerate(received):
                expected = message(1, 3 * number + part, count)
                problems += model.mismatch(f"round {number}, part {part}", tensor, expected)
    torch.cuda.synchronize()
    dist.barrier()
    return problems


def test_mixed_with_recvs_that_name_a_rank():
    run(mixed_with_named)


def tags_of_one_channel(rank):
    """Tags that are equal modulo 4 are told apart, also where another rank's comes first."""
    problems, count = [], 10_000
    for tag in {1: [1, 5], 2: [9]}.get(rank, []):
        dist.send(message(rank, tag, count).cuda(), 0, tag=tag)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 0:
        for tag in (9, 1, 5):
            tensor = poisoned(count)
            source = dist.recv(tensor, src=None, tag=tag)
            problems += model.mismatch(f"tag {tag}", tensor, message(source, tag, count))
    torch.cuda.synchronize()
    dist.barrier()
    return problems


@pytest.mark.skipif(WORLD_SIZE == 2, reason="one sender alone keeps its order")
def test_tags_of_one_channel():
    run(tags_of_one_channel)


def refusal_of(call, *args) -> str:
    """What `call` raises, without the device being waited for, which no capture allows."""
    try:
        call(*args)
    except NotImplementedError as error:
        return str(error)
    return "nothing was raised"


def refused(rank):
    """In a capture and in a batch; nothing has been put anywhere, and the group goes on."""
    problems, tensor = [], torch.ones(8, device="cuda")
    if rank == 0:
        dist.recv(torch.empty(8, device="cuda"), src=None)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.add_(1)
            text = refusal_of(dist.irecv, tensor)
        problems += unsaid(text, ["any rank", "captured into a graph", "name the rank"])
        backend = dist.group.WORLD._get_backend(torch.device("cuda"))
        backend._start_coalescing()
        text = message_of(NotImplementedError, backend.recv_anysource, [tensor], 0)
        problems += unsaid(text, ["recv: src", "any rank", "batch", "cuda"])
        backend._end_coalescing()
    elif rank == 1:
        dist.send(tensor, 0)
    torch.cuda.synchronize()
    dist.barrier()
    return problems


def test_what_it_cannot_be_part_of():
    run(refused, fresh=True)


def one_is_killed(rank, setup):
    """While the others wait for a message from anybody; the last one to live is told."""
    setup.join(rank)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    text = message_of(ERRORS, dist.recv, torch.empty(4, device="cuda"), src=None)
    problems = unsaid(text, ["DistBackendError", "recv from any rank", "rank 1"])
    if time.monotonic() - begin > 5.0:
        problems.append(f"raised after {time.monotonic() - begin:.1f} s")
    return problems


def test_the_only_other_rank_is_killed():
    with tempfile.TemporaryDirectory(prefix="symm_test_") as folder:
        setup = Setup(os.path.join(folder, "store"), 2, timeout=60.0)
        reports = start_ranks(one_is_killed, 2, (setup,)).finish(90)
    assert reports[0].returned, describe(reports)
    expect_no_mismatch([reports[0].value])


def nobody_sends(rank):
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    dist.barrier()
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    problems = []
    if rank == 0:
        tensor = torch.empty(4, device="cuda")
        text = message_of(ERRORS, dist.recv, tensor, src=None, group=group)
        problems += unsaid(text, ["DistBackendError", "recv from any rank", "Timed out after 2"])
    dist.barrier()
    return problems


def test_a_time_out():
    run(nobody_sends, fresh=True)
