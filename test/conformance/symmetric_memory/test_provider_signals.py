"""Signals: the pads, barriers, puts and waits, what they refuse, time-outs, streams and graphs."""

import datetime
import os
import threading

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from harness import ON_CUDA, WORLD_SIZE, Setup, device_of_rank, synchronize
from provider import (
    DONE,
    PROVIDER,
    conforms,
    conforms_and_exits,
    equal,
    need,
    need_cuda,
    need_multicast,
    need_serialized_streams,
    neighbours,
    ops,
    share,
    use_provider,
    world_name,
)
from symmetric import TORCH, allocate, pads_not_zero

pytestmark = pytest.mark.timeout(120)

CYCLES = 100_000_000  # of a GPU: long beside any kernel here


# -- Pads ----------------------------------------------------------------------------------------


def pads_of_all_kinds(rank):
    """uint32 and whole unless the caller asks for something else."""
    handle = share(allocate(1))
    own, size = handle.get_signal_pad(rank), handle.signal_pad_size
    assert own.data_ptr() == handle.signal_pad_ptrs[handle.rank]
    peer = neighbours(handle)[0]
    asked = {
        (torch.uint32, size // 4): {},
        (torch.uint32, 64): {"sizes": (8, 8)},
        (torch.uint64, size // 8): {"dtype": torch.uint64},
        (torch.uint64, 64): {"sizes": (8, 8), "dtype": torch.uint64},
    }
    for (dtype, count), arguments in asked.items():
        pad = handle.get_signal_pad(peer, **arguments)
        assert (pad.dtype, pad.numel()) == (dtype, count)
        assert pad.data_ptr() == handle.signal_pad_ptrs[peer]
        assert tuple(pad.shape) == arguments.get("sizes", (count,))


def test_get_signal_pad_of_any_shape_and_dtype():
    conforms(pads_of_all_kinds, WORLD_SIZE)


def pads_and_buffers(rank):
    tensor = allocate(1)
    handle = share(tensor)
    pad = handle.get_signal_pad(rank).view(torch.int32)
    pad.fill_(42)
    tensor.fill_(0)
    assert pad.eq(42).all()
    pad.fill_(0)
    synchronize()
    dist.barrier()


def test_writing_a_buffer_leaves_the_pad_alone():
    conforms(pads_and_buffers)


# -- Barriers and signals ------------------------------------------------------------------------


def barriers_in_turn(rank):
    """Who has passed a barrier sees what all wrote before it, on every channel."""
    tensor = allocate(1)
    handle = share(tensor)
    for number, channel in enumerate([0, 0, 5, 1, 5]):
        tensor.fill_(10 * number + rank)
        handle.barrier(channel=channel)
        for peer in range(handle.world_size):
            buffer = handle.get_buffer(peer, (1,), torch.float32)
            assert buffer.item() == 10 * number + peer
        handle.barrier(channel=channel)
    synchronize()
    dist.barrier()
    assert not pads_not_zero(handle)


def test_barriers_order_writes_on_every_channel():
    conforms(barriers_in_turn, WORLD_SIZE)


def puts_and_waits(rank):
    tensor = allocate(64)
    handle = share(tensor)
    after, before = neighbours(handle)
    there = handle.get_buffer(after, (64,), torch.float32)
    for number in range(5):
        there.fill_(100 * number + rank)
        handle.put_signal(dst_rank=after, channel=number % 2)
        handle.wait_signal(src_rank=before, channel=number % 2)
        assert tensor.eq(100 * number + before).all()
        handle.barrier()
    synchronize()
    dist.barrier()
    assert not pads_not_zero(handle)


def test_a_signal_says_that_the_data_is_there():
    conforms(puts_and_waits, WORLD_SIZE)


# -- What is refused -----------------------------------------------------------------------------


def with_a_last_channel():
    """(handle, the first channel that its pad has no room for)"""
    need(PROVIDER == "SYMM" or TORCH > (2, 14), "this torch's provider does not check channels")
    handle = share(allocate(64))
    return handle, handle.signal_pad_size // 4 // handle.world_size


def barrier_beyond_the_pad(rank):
    handle, end = with_a_last_channel()
    with pytest.raises(RuntimeError):
        handle.barrier(channel=end)
    synchronize()
    handle.barrier(channel=end - 1)


@pytest.mark.parametrize("world_size", [2, 3])
def test_channels_of_a_barrier_end_with_the_pad(world_size):
    conforms(barrier_beyond_the_pad, world_size)


def signals_beyond_the_pad(rank):
    handle, end = with_a_last_channel()
    after, before = neighbours(handle)
    with pytest.raises(RuntimeError):
        handle.put_signal(dst_rank=after, channel=end)
    with pytest.raises(RuntimeError):
        handle.wait_signal(src_rank=after, channel=end)
    handle.put_signal(dst_rank=after, channel=end - 1)
    handle.wait_signal(src_rank=before, channel=end - 1)


@pytest.mark.parametrize("world_size", [2, 3])
def test_channels_of_signals_end_with_the_pad(world_size):
    conforms(signals_beyond_the_pad, world_size)


def ranks_that_are_none(rank, call):
    checked = PROVIDER == "SYMM" and call != "get_signal_pad"
    need(checked or TORCH >= (2, 14), "this torch does not check ranks")
    need(checked or PROVIDER == "SYMM" or TORCH > (2, 14), "this torch's provider does not, either")
    handle = share(allocate(64))
    for peer in (-1, handle.world_size):
        with pytest.raises(RuntimeError):
            getattr(handle, call)(peer)
    handle.barrier()


@pytest.mark.parametrize("call", ["put_signal", "wait_signal", "get_signal_pad"])
def test_ranks_outside_the_group(call):
    conforms(ranks_that_are_none, 2, call)


# -- Time-outs: on a GPU they may cost the context, so these ranks end with them ------------------


def signal_in_vain(handle, call):
    if call == "put_signal":
        handle.put_signal(dst_rank=1)  # which nobody takes, so that the next has no room
        handle.put_signal(dst_rank=1, timeout_ms=500)
    elif call == "wait_signal":
        handle.wait_signal(src_rank=1, timeout_ms=500)
    else:
        handle.barrier(timeout_ms=500)


def synchronize_in_vain(handle, call):
    signal_in_vain(handle, call)
    synchronize()


def wait_in_vain(handle, call):
    """PyTorch raises when the device is waited for, at the latest, and loses its context by that;
    SYMM on a GPU keeps the context and raises at the handle's next call."""
    synchronize_in_vain(handle, call)
    handle.barrier(timeout_ms=500)


def in_vain(rank, folder, call):
    """Rank 0 waits for rank 1, which lives and does nothing."""
    Setup(os.path.join(folder, "store"), 2).join(rank)
    use_provider()
    handle = share(allocate(1))
    told = dist.FileStore(os.path.join(folder, "told"), 2)
    if rank == 1:
        told.wait(["raised"], datetime.timedelta(seconds=30))
        os._exit(DONE)
    with pytest.raises(RuntimeError):
        wait_in_vain(handle, call)
    told.set("raised", "1")
    os._exit(DONE)


@pytest.mark.parametrize("call", ["barrier", "put_signal", "wait_signal"])
def test_a_time_out_raises(call, tmp_path):
    conforms_and_exits(in_vain, 2, str(tmp_path), call)


def in_vain_with_traps(rank, folder, call):
    """in_vain(), where SYMM too is to raise when the device is waited for."""
    os.environ["SYMM_SIGNAL_TRAP"] = "1"
    Setup(os.path.join(folder, "store"), 2).join(rank)
    use_provider()
    handle = share(allocate(1))
    synchronize()
    told = dist.FileStore(os.path.join(folder, "told"), 2)
    if rank == 1:
        told.wait(["raised"], datetime.timedelta(seconds=30))
        os._exit(DONE)
    with pytest.raises(RuntimeError):
        synchronize_in_vain(handle, call)
    told.set("raised", "1")
    os._exit(DONE)


@pytest.mark.skipif(not ON_CUDA, reason="on cpu the signal itself raises")
@pytest.mark.parametrize("call", ["barrier", "put_signal", "wait_signal"])
def test_a_time_out_raises_at_the_synchronisation(call, tmp_path):
    conforms_and_exits(in_vain_with_traps, 2, str(tmp_path), call)


# -- Streams: the signals of one group are ordered, whatever streams they are on ------------------


def full(value: float) -> torch.Tensor:
    return torch.full((64,), float(value))


def expect_next_rank(handle, more: int) -> None:
    """The buffer of the rank after this one is full of that rank and `more`."""
    after = neighbours(handle)[0]
    assert equal(handle.get_buffer(after, (64,), torch.float32), full(after + more))


def barriers_of_two_streams(handle, tensor, streams):
    for stream, value in zip(streams, (1, 10), strict=True):
        with torch.cuda.stream(stream):
            if value == 1 and handle.rank == 0:
                torch.cuda._sleep(CYCLES)
            if value == 1:
                tensor.fill_(handle.rank + value)
            handle.barrier(channel=0)
            if value == 10:
                tensor.fill_(handle.rank + value)


def signals_of_two_streams(handle, tensor, streams):
    after, before = neighbours(handle)
    for stream, value in zip(streams, (1, 10), strict=True):
        with torch.cuda.stream(stream):
            if value == 1 and handle.rank == 0:
                torch.cuda._sleep(CYCLES)
            if value == 1:
                tensor.fill_(handle.rank + value)
            handle.put_signal(after, channel=0)
            handle.wait_signal(before, channel=0)
            if value == 10:
                tensor.fill_(handle.rank + value)


def barriers_of_two_threads(handle, tensor, streams):
    start, recorded, done = threading.Barrier(2, timeout=30), threading.Event(), torch.cuda.Event()
    failures = []

    def meet(first):
        try:
            torch.cuda.set_device(device_of_rank())
            with torch.cuda.stream(streams[0 if first else 1]):
                start.wait()
                if first and handle.rank == 0:
                    torch.cuda._sleep(CYCLES)
                handle.barrier(channel=0)
                if first:
                    tensor.fill_(handle.rank + 1)
                    done.record()
                    recorded.set()
                else:
                    assert recorded.wait(timeout=30)
                    done.wait()
                    tensor.fill_(handle.rank + 10)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=meet, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


WAYS = {
    "barriers": barriers_of_two_streams,
    "signals": signals_of_two_streams,
    "threads": barriers_of_two_threads,
}


def last_stream_wins(rank, way):
    need_serialized_streams()
    tensor = allocate(64)
    handle = share(tensor)
    WAYS[way](handle, tensor, [torch.cuda.Stream() for _ in range(2)])
    synchronize()
    dist.barrier()
    expect_next_rank(handle, 10)


@pytest.mark.parametrize("way", WAYS)
def test_signals_of_two_streams_are_ordered(way):
    conforms(last_stream_wins, 2, way, fresh=True)


def behind_the_signal_alone(rank):
    """The second stream does not wait for what the first has to do after its barrier."""
    need_serialized_streams()
    handle = share(allocate(64))
    slept, met = torch.cuda.Event(), torch.cuda.Event()
    with torch.cuda.stream(torch.cuda.Stream()):
        handle.barrier()
        torch.cuda._sleep(20 * CYCLES)
        slept.record()
    with torch.cuda.stream(torch.cuda.Stream()):
        handle.barrier()
        met.record()
    met.synchronize()
    assert not slept.query()
    synchronize()


def test_a_stream_waits_for_the_signal_alone():
    conforms(behind_the_signal_alone, fresh=True)


def all_reduces_of_two_streams(rank):
    need_serialized_streams(of_operators=True)
    tensor = allocate(64)
    share(tensor)
    for first in (True, False):
        with torch.cuda.stream(torch.cuda.Stream()):
            if first and rank == 0:
                torch.cuda._sleep(CYCLES)
            if first:
                tensor.fill_(1)
            total = ops.one_shot_all_reduce(tensor, "sum", world_name())
    synchronize()
    assert equal(total, full(dist.get_world_size()))


def test_all_reduces_of_two_streams_are_ordered():
    conforms(all_reduces_of_two_streams, fresh=True)


# -- Graphs --------------------------------------------------------------------------------------


def warm(handle) -> torch.cuda.Stream:
    """A stream on which a barrier has run, as captures want it."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        handle.barrier()
    synchronize()
    return stream


def replayed(rank):
    need_cuda("graphs")
    tensor = allocate(64)
    handle = share(tensor)
    graph, stream = torch.cuda.CUDAGraph(), warm(handle)
    with torch.cuda.graph(graph, stream=stream):
        tensor.fill_(rank + 200)
        handle.barrier()
    graph.replay()
    synchronize()
    expect_next_rank(handle, 200)


def test_a_barrier_in_a_graph():
    conforms(replayed, fresh=True)


def never_replayed(rank):
    need_cuda("graphs")
    tensor = allocate(64)
    handle = share(tensor)
    stream, other = warm(handle), torch.cuda.Stream()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        handle.barrier()
    with torch.cuda.stream(other):
        tensor.fill_(rank + 7)
        handle.barrier()
    synchronize()
    expect_next_rank(handle, 7)


def test_a_captured_barrier_that_never_runs_changes_nothing():
    conforms(never_replayed, fresh=True)


def forked_in_a_graph(rank):
    """Two streams of one capture; each replay leaves the pads as it found them."""
    need_serialized_streams()
    tensor = allocate(64)
    handle = share(tensor)
    stream, side = warm(handle), torch.cuda.Stream()
    count, graph = torch.zeros(1, device=device_of_rank()), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        count.add_(1)
        side.wait_stream(stream)
        if rank == 0:
            torch.cuda._sleep(CYCLES)
        tensor.fill_(1)
        handle.barrier()
        with torch.cuda.stream(side):
            handle.barrier()
            tensor.copy_(count.expand(64) * 100 + rank)
        stream.wait_stream(side)
    for _ in range(4):
        graph.replay()
    synchronize()
    dist.barrier()
    expect_next_rank(handle, 400)
    assert not pads_not_zero(handle)


def test_barriers_of_two_streams_in_a_graph():
    conforms(forked_in_a_graph, fresh=True)


def by_multicast(rank):
    """PyTorch's provider meets by multicast where there is some."""
    need_multicast()
    need(PROVIDER == "CUDA", "the name of a kernel is the provider's own")
    handle = share(allocate(64))
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        handle.barrier()
        synchronize()
    assert any("multimem_barrier_kernel" in event.key for event in profiler.events())


@pytest.mark.skipif(not ON_CUDA, reason="no multicast memory on cpu")
def test_a_barrier_by_multicast():
    conforms(by_multicast, fresh=True)
