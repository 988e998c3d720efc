"""barrier, put_signal and wait_signal of symmetric memory: order, channels, time-outs, failures."""

import datetime
import os
import re
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import model
from errors import ERRORS, message_of
from graph_operations import captured
from harness import (
    DEVICE,
    IS_SYMM,
    PROCESSES,
    Setup,
    check,
    crowded,
    expect_no_mismatch,
    run_ranks,
    synchronize,
)
from rank_processes import describe, run_processes
from symmetric import (
    WORLD_SIZES,
    allocate,
    pads_not_zero,
    pattern,
    shared,
    signal_pad_size,
    use_symm,
)

pytestmark = pytest.mark.timeout(90)

# A wait that a time-out or a hang-up ends; nothing else may end it, so it is far away.
LONG_MS = 60_000


def rounds_of(world_size: int) -> int:
    return 10 if crowded(world_size) else 100


def barriers_order_writes(rank, channels):
    """Everybody writes its number of the round, and finds everybody's, round after round."""
    use_symm()
    tensor, handle = shared(1)
    size, problems = handle.world_size, []
    peers = [handle.get_buffer(peer, (1,), torch.float32) for peer in range(size)]
    for number in range(rounds_of(size)):
        channel = channels[number % len(channels)]
        tensor.fill_(number * size + rank)
        handle.barrier(channel)
        found = torch.cat([peer.cpu() for peer in peers])
        expected = torch.tensor([float(number * size + r) for r in range(size)])
        problems += model.mismatch(f"round {number} on channel {channel}", found, expected)
        handle.barrier(channel)
    synchronize()
    dist.barrier()
    return problems + pads_not_zero(handle, "after barriers")


@pytest.mark.parametrize("channels", [[0], [0, 1], [5, 200, 3]], ids=str)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_barriers_order_writes(world_size, channels):
    check(barriers_order_writes, world_size, channels)


def round_the_ring(rank):
    """A number travels from rank to rank; only a signal says that it has come."""
    use_symm()
    size, problems = dist.get_world_size(), []
    tensor, handle = shared(1)
    after, before = (rank + 1) % size, (rank - 1) % size
    there = handle.get_buffer(after, (1,), torch.float32)
    for lap in range(8 if crowded(size) else 50):
        first = lap * size
        if rank > 0:
            handle.wait_signal(before, 3, LONG_MS)
            problems += model.mismatch(f"lap {lap}", tensor, torch.tensor([float(first + rank)]))
        there.fill_(float(first + rank + 1))
        handle.put_signal(after, 3, LONG_MS)
        if rank == 0:
            handle.wait_signal(before, 3, LONG_MS)
            problems += model.mismatch(f"lap {lap}", tensor, torch.tensor([float(first + size)]))
    synchronize()
    dist.barrier()
    return problems + pads_not_zero(handle, "after the ring")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_signals_go_round_a_ring(world_size):
    check(round_the_ring, world_size)


def where_a_signal_stands(rank):
    """Slot channel * world_size + source of the destination's pad; a wait takes it away."""
    use_symm()
    size, problems = dist.get_world_size(), []
    _tensor, handle = shared(1)
    for channel in (0, 1, 7):
        for destination in range(size):
            handle.put_signal(destination, channel)
        synchronize()
        dist.barrier()
        pad = handle.get_signal_pad(rank).cpu().view(torch.int32)
        expected = torch.zeros_like(pad)
        expected[channel * size : (channel + 1) * size] = 1
        problems += model.mismatch(f"pad of {rank}, channel {channel}", pad, expected)
        dist.barrier()
        for source in range(size):
            handle.wait_signal(source, channel, LONG_MS)
        synchronize()
        problems += pads_not_zero(handle, f"channel {channel}")
        dist.barrier()
    return problems


@pytest.mark.parametrize("world_size", [2, 3])
def test_where_a_signal_stands(world_size):
    check(where_a_signal_stands, world_size)


def channels_are_apart(rank):
    """What comes on one channel does not end a wait on another."""
    use_symm()
    _tensor, handle = shared(1)
    problems, peer = [], 1 - rank
    if rank == 0:
        handle.put_signal(1, channel=2)
    synchronize()
    dist.barrier()
    if rank == 1:
        text = message_of(ERRORS, waits_in_vain, handle, 0, 1)
        problems += [] if "channel 1" in text else [f"does not name the channel: {text}"]
        handle.wait_signal(0, 2, LONG_MS)
    dist.barrier()
    handle.put_signal(peer, 1)
    handle.wait_signal(peer, 1, LONG_MS)
    synchronize()
    dist.barrier()
    return problems + pads_not_zero(handle)


def waits_in_vain(handle, source, channel):
    """On a GPU the kernel gives up, and the next call of the host says so."""
    handle.wait_signal(source, channel, 150)
    synchronize()
    handle.put_signal(handle.rank, channel + 1)


@pytest.mark.cpu("a time-out on a GPU ends the handle; test_a_time_out_on_a_gpu looks at it")
def test_channels_are_apart():
    check(channels_are_apart, 2)


def nobody_comes(rank, call):
    """Rank 0 waits for rank 1, which does nothing; what it is told, and when."""
    use_symm()
    _tensor, handle = shared(1)
    told = None
    if rank == 0:
        started = time.monotonic()
        if call == "barrier":
            text = message_of(ERRORS, barrier_in_vain, handle)
        elif call == "put_signal":
            handle.put_signal(1, 4)
            text = message_of(ERRORS, puts_in_vain, handle)
        else:
            text = message_of(ERRORS, waits_in_vain, handle, 1, 4)
        told = text, time.monotonic() - started
    dist.barrier()
    return told


def barrier_in_vain(handle):
    handle.barrier(4, 150)
    synchronize()
    handle.barrier(5, 150)


def puts_in_vain(handle):
    """The slot still holds the signal before, which nobody has taken."""
    handle.put_signal(1, 4, 150)
    synchronize()
    handle.put_signal(1, 5)


@pytest.mark.parametrize("call", ["barrier", "put_signal", "wait_signal"])
def test_time_outs(call):
    text, seconds = run_ranks(nobody_comes, 2, call, fresh=True)[0]
    assert "channel 4" in text, text
    assert "rank 1" in text, text
    assert "0.150 s" in text or "150 ms" in text, text
    assert 0.14 < seconds < 10, seconds


def wrong_arguments(rank):
    use_symm()
    _tensor, handle = shared(1)
    size, words = handle.world_size, handle.signal_pad_size // 4
    problems = []
    for name in ("put_signal", "wait_signal"):
        for peer in (-1, size, 1000):
            text = message_of(ValueError, getattr(handle, name), peer)
            if f"{name}: rank" not in text or not text.endswith(f"got {peer}"):
                problems.append(f"{name}({peer}): {text}")
    for channel in (-1, words // size, 1 << 30):
        calls = [
            lambda c: handle.barrier(c),
            lambda c: handle.put_signal(0, c),
            lambda c: handle.wait_signal(0, c),
        ]
        for call in calls:
            text = message_of(ERRORS, call, channel)
            if "channel" not in text or str(channel) not in text:
                problems.append(f"channel {channel}: {text}")
    handle.barrier()
    synchronize()
    dist.barrier()
    return problems + pads_not_zero(handle, "after refusals")


@pytest.mark.parametrize("world_size", [2, 3])
def test_wrong_arguments(world_size):
    check(wrong_arguments, world_size)


def the_last_channel(rank):
    """Of a pad whose size is not a multiple of what one channel takes."""
    use_symm()
    size = dist.get_world_size()
    with signal_pad_size(4 * (size * 5 + 1) + 4):
        tensor = allocate(6_543_217, dtype=torch.uint8)
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
        problems = []
        tensor.fill_(1)
        for _ in range(5):
            handle.barrier(4)
        text = message_of(ERRORS, handle.barrier, 5)
        problems += [] if "channel" in text else [text]
        synchronize()
        dist.barrier()
        if not tensor.eq(1).all():
            problems.append("a barrier wrote into the buffer")
        problems += pads_not_zero(handle)
        dist.barrier()
    return problems


def test_the_last_channel_that_fits():
    check(the_last_channel, 3)


def two_threads(rank):
    """Barriers of two threads on channels of their own, at different speeds."""
    use_symm()
    handles = [shared(1)[1] for _ in range(2)]
    failures = []

    def meet(number):
        try:
            for lap in range(30):
                if (lap + rank + number) % 3 == 0:
                    os.sched_yield()
                handles[0].barrier(10 + number, LONG_MS)
                handles[number].barrier(20, LONG_MS)
        except Exception as error:
            failures.append(f"thread {number}: {error}")

    # Channel 20 of two allocations: what belongs to one is not seen by the other.
    threads = [threading.Thread(target=meet, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dist.barrier()
    return failures + pads_not_zero(handles[0]) + pads_not_zero(handles[1])


@pytest.mark.cpu("two streams are the same for a GPU: test_two_streams")
def test_two_threads():
    expect_no_mismatch(run_ranks(two_threads, 3, fresh=True))


def dies_before_the_signal(rank, folder, call):
    Setup(os.path.join(folder, "store"), 2).join(rank)
    use_symm()
    _tensor, handle = shared(1)
    if rank == 1:
        os._exit(7)
    started = time.monotonic()
    if call == "barrier":
        text = message_of(ERRORS, handle.barrier, 0, LONG_MS)
    else:
        text = message_of(ERRORS, handle.wait_signal, 1, 0, LONG_MS)
    return text, time.monotonic() - started


@pytest.mark.cpu("a GPU's kernel waits for its time-out; the host does not wait")
@pytest.mark.parametrize("call", ["barrier", "wait_signal"])
def test_a_dead_peer_ends_the_wait_at_once(call, tmp_path):
    reports = run_processes(dies_before_the_signal, 2, str(tmp_path), call, time_limit=40)
    assert reports[1].exit_code == 7, describe(reports)
    assert reports[0].returned, describe(reports)
    text, seconds = reports[0].value
    assert "rank 1" in text, text
    assert seconds < 5, seconds


def two_streams(rank):
    """Each stream has a channel; what is written before a barrier is seen after it."""
    use_symm()
    size, problems = dist.get_world_size(), []
    tensors = [allocate(1000) for _ in range(2)]
    handles = [symm_mem.rendezvous(tensor, dist.group.WORLD) for tensor in tensors]
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = [[], []]
    synchronize()
    dist.barrier()
    for number in range(5):
        for which, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                tensors[which].fill_(number * 100 + which * 10 + rank)
                handles[which].barrier(which)
                peer = handles[which].get_buffer((rank + 1) % size, (1000,), torch.float32)
                found[which].append(peer.clone())
                handles[which].barrier(which)
    synchronize()
    for which in range(2):
        for number, copy in enumerate(found[which]):
            value = float(number * 100 + which * 10 + (rank + 1) % size)
            expected = torch.full((1000,), value)
            problems += model.mismatch(f"stream {which}, round {number}", copy, expected)
    dist.barrier()
    return problems + pads_not_zero(handles[0]) + pads_not_zero(handles[1])


@pytest.mark.cuda
def test_two_streams():
    check(two_streams, 2)


def in_a_graph(rank):
    """A barrier, a put and a wait are captured, and each replay carries new data."""
    use_symm()
    size, count, problems = dist.get_world_size(), 1000, []
    tensor, handle = shared(count)
    out = torch.empty(count, device=DEVICE)
    after, before = (rank + 1) % size, (rank - 1) % size
    mine = torch.empty(count, device=DEVICE)

    def exchange():
        tensor.copy_(mine)
        handle.put_signal(after, 1)
        handle.wait_signal(before, 1)
        out.copy_(handle.get_buffer(before, (count,), torch.float32))
        handle.barrier(2)

    mine.fill_(-1.0)
    exchange()
    synchronize()
    graph = captured(exchange)
    for replay in range(6):
        mine.copy_(pattern(count, rank, replay))
        out.fill_(-5.0)
        graph.replay()
        expected = pattern(count, before, replay)
        problems += model.mismatch(f"replay {replay}", out, expected)
    synchronize()
    dist.barrier()
    return problems + pads_not_zero(handle, "after replays")


@pytest.mark.cuda
def test_signals_in_a_graph():
    check(in_a_graph, 2)


def time_out_on_a_gpu(rank):
    """The stream goes on, the host is told, and only signals of this group on this GPU are over."""
    use_symm()
    tensor, handle = shared(8)
    another = dist.new_group(list(range(dist.get_world_size())))
    texts = []
    if rank == 0:
        texts.append(message_of(ERRORS, waits_in_vain, handle, 1, 3))
        texts.append(message_of(ERRORS, handle.barrier))
    synchronize()
    torch.ones(3, device=DEVICE).sum().item()  # the context has not been harmed
    dist.barrier()
    tensor.copy_(pattern(8, rank, 2))
    handle = symm_mem.rendezvous(tensor, another)
    handle.barrier()
    peer = (rank + 1) % handle.world_size
    got = handle.get_buffer(peer, (8,), torch.float32)
    problems = model.mismatch("memory of the peer", got, pattern(8, peer, 2))
    handle.barrier()
    synchronize()
    total = torch.ones(3, device=DEVICE)
    dist.all_reduce(total)
    expected = torch.full((3,), float(dist.get_world_size()))
    problems += model.mismatch("a collective of the group", total, expected)
    return problems + [text for text in texts if "rank 1" not in text]


@pytest.mark.cuda
def test_a_time_out_on_a_gpu():
    expect_no_mismatch(run_ranks(time_out_on_a_gpu, 2, fresh=True))


TRAPS = {"SYMM_SIGNAL_TRAP": "1"}


def never_comes(handle, call):
    if call == "put_signal":
        handle.put_signal(1, 4)
        handle.put_signal(1, 4, 300)  # nobody takes the first
    elif call == "wait_signal":
        handle.wait_signal(1, 4, 300)
    else:
        handle.barrier(4, 300)


def trapped(rank, folder, call):
    """Rank 0 waits for rank 1, which lives and does nothing on its GPU. What rank 0 is told by the
    synchronisation behind it, and by its handle after that; the group is then destroyed."""
    use_symm()
    _tensor, handle = shared(8)
    synchronize()
    told = dist.FileStore(os.path.join(folder, "told"), 2)
    if rank == 1:
        told.wait(["raised"], datetime.timedelta(seconds=40))
        torch.ones(3, device=DEVICE).sum().item()  # another process' context is not harmed
        return None
    never_comes(handle, call)
    by_torch = message_of((RuntimeError,), torch.cuda.synchronize)
    by_handle = [message_of(ERRORS, handle.barrier) for _ in range(2)]
    by_handle.append(message_of(ERRORS, handle.wait_signal, 1, 7))
    told.set("raised", "1")
    return by_torch, by_handle


@pytest.mark.alone  # a trap may hold up the other processes of its GPU
@pytest.mark.cuda
@pytest.mark.skipif(not IS_SYMM, reason="NCCL ends a process whose context is in error")
@pytest.mark.parametrize("call", ["barrier", "put_signal", "wait_signal"])
def test_a_time_out_that_traps_raises_at_the_synchronisation(call, tmp_path):
    results = run_ranks(trapped, 2, str(tmp_path), call, env=TRAPS, fresh=PROCESSES)
    by_torch, by_handle = results[0]
    assert re.search("(CUDA|HIP) error", by_torch), by_torch
    for text in by_handle:
        assert "DistBackendError" in text, text
        assert f"{call} on channel 4: Timed out after 300 ms" in text, text
        assert "rank 1" in text, text


def signals_in_time(rank):
    """The variable changes nothing where every signal comes; nor does destroying the group."""
    use_symm()
    tensor, handle = shared(8)
    peer = (rank + 1) % handle.world_size
    for lap in range(10):
        tensor.copy_(pattern(8, rank, lap))
        handle.barrier(1, LONG_MS)
        got = handle.get_buffer(peer, (8,), torch.float32)
        problems = model.mismatch(f"lap {lap}", got, pattern(8, peer, lap))
        handle.put_signal(peer, 2, LONG_MS)
        handle.wait_signal(peer, 2, LONG_MS)
        if problems:
            return problems
    synchronize()
    dist.barrier()
    return pads_not_zero(handle)


@pytest.mark.cuda
def test_signals_that_may_trap():
    check(signals_in_time, 2, env=TRAPS, fresh=PROCESSES)
