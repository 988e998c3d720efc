"""CUDA: what a call waits for and what waits for it. A call returns to the host at once, its result
is ordered by streams, and memory that is freed meanwhile is not given to anybody else."""

import time

import pytest
import torch
import torch.distributed as dist

import model
from harness import WORLD_SIZE, check, crowded

pytestmark = pytest.mark.cuda

CYCLES = 600_000_000  # of torch.cuda._sleep: 0.3 s and more at the clocks that GPUs have
AT_ONCE = 0.1  # seconds that a call may take that waits for nothing
REPEATS = 5 if crowded(WORLD_SIZE) else 30


def run(body, *args):
    check(body, WORLD_SIZE, *args)


def every_input(count, salt, dtype=torch.float32):
    return [model.make_input(dtype, count, r, salt) for r in range(WORLD_SIZE)]


def calls_on(rank, count):
    """{name: (call, tensor that it writes, what must be there)} with inputs written on the GPU."""
    every = every_input(count, 3)
    mine = every[rank].cuda()
    gathered = torch.full((count * WORLD_SIZE,), -1.0, device="cuda")
    whole = [model.make_input(torch.float32, count * WORLD_SIZE, r, 4) for r in range(WORLD_SIZE)]
    part = slice(rank * count, (rank + 1) * count)
    share = torch.full((count,), -1.0, device="cuda")
    swapped = torch.full((count * WORLD_SIZE,), -1.0, device="cuda")
    my_whole = whole[rank].cuda()
    reduced, from_root = mine.clone(), mine.clone()
    return {
        "all_reduce": (
            lambda **how: dist.all_reduce(reduced, **how),
            reduced,
            model.reduced(every, "SUM"),
        ),
        "broadcast": (lambda **how: dist.broadcast(from_root, 1, **how), from_root, every[1]),
        "all_gather": (
            lambda **how: dist.all_gather_into_tensor(gathered, mine, **how),
            gathered,
            torch.cat(every),
        ),
        "reduce_scatter": (
            lambda **how: dist.reduce_scatter_tensor(share, my_whole, **how),
            share,
            model.reduced(whole, "SUM")[part],
        ),
        "all_to_all": (
            lambda **how: dist.all_to_all_single(swapped, my_whole, **how),
            swapped,
            torch.cat([w[part] for w in whole]),
        ),
    }


def returns_at_once(rank, name, asynchronous):
    call, tensor, expected = calls_on(rank, 5003)[name]
    call()  # warm, as is what the test does with the result
    torch.cuda.synchronize()
    tensor * 2
    call, tensor, expected = calls_on(rank, 5003)[name]
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda._sleep(CYCLES)
    started = time.monotonic()
    work = call(async_op=asynchronous)
    if asynchronous:
        work.wait()
    doubled = tensor * 2
    took = time.monotonic() - started
    busy = not torch.cuda.current_stream().query()
    problems = model.mismatch(name, tensor, expected)
    problems += model.mismatch(f"{name}, used on the stream", doubled, expected * 2)
    if took > AT_ONCE:
        problems.append(f"{name} held up the host for {took:.3f} s")
    if not busy:
        problems.append(f"{name}: the stream was idle, so nothing was tested")
    return problems


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "name", ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"]
)
def test_a_call_returns_at_once(name, asynchronous):
    run(returns_at_once, name, asynchronous)


def tells_its_state(rank):
    """is_completed() is false while the stream is busy, wait() does not wait, the future has it."""
    tensor = torch.full((1000,), rank + 1.0, device="cuda")
    dist.all_reduce(tensor.clone())
    torch.cuda._sleep(CYCLES)
    work = dist.all_reduce(tensor, async_op=True)
    problems = ["completed before its stream had come to it"] if work.is_completed() else []
    started = time.monotonic()
    work.wait()
    if time.monotonic() - started > AT_ONCE:
        problems.append("wait() held up the host")
    torch.cuda.synchronize()
    if not work.is_completed():
        problems.append("not completed after the device was")
    if not work.is_success():
        problems.append("no success")
    total = sum(range(1, WORLD_SIZE + 1))
    expected = torch.full((1000,), float(total))
    return problems + model.mismatch("the future", work.get_future().value()[0], expected)


def test_a_work_tells_its_state():
    run(tells_its_state)


def on_side_streams(rank):
    """Called on one stream, waited for on another, read there; neither is the default one."""
    problems, streams = [], [torch.cuda.Stream() for _ in range(2)]
    for repeat in range(REPEATS):
        every = every_input(3001, repeat)
        first, second = streams[repeat % 2], streams[(repeat + 1) % 2]
        with torch.cuda.stream(first):
            torch.cuda._sleep(20_000_000)
            tensor = every[rank].cuda(non_blocking=True)
            work = dist.all_reduce(tensor, async_op=True)
        with torch.cuda.stream(second):
            work.wait()
            result = tensor + 0
        tensor.record_stream(second)
        second.synchronize()
        problems += model.mismatch(f"repeat {repeat}", result, model.reduced(every, "SUM"))
    return problems


def test_async_calls_on_side_streams():
    run(on_side_streams)


def freed_early(rank, keep_work):
    """The memory of tensors that are freed while a call is under way is not used again before it
    has ended: neither is an input overwritten, nor does the result land in a newer tensor."""
    problems, count = [], 20 << 20  # more than is staged at a time
    for repeat in range(3):
        every = every_input(count, repeat)
        gathered = torch.full((count * WORLD_SIZE,), -1.0, device="cuda")
        mine, summed = every[rank].cuda(), every[rank].cuda()
        torch.cuda.synchronize()
        if rank == repeat % WORLD_SIZE:
            torch.cuda._sleep(CYCLES // 3)  # the others' calls wait for this rank meanwhile
        works = [
            dist.all_gather_into_tensor(gathered, mine, async_op=True),
            dist.all_reduce(summed, async_op=True),
        ]
        if not keep_work:
            works.clear()
        addresses = {mine.data_ptr(), summed.data_ptr()}
        del mine, summed
        # On the same stream, which would get the memory at once: the calls are on the group's own.
        newer = [torch.full((count,), -7.0, device="cuda") for _ in range(3)]
        reused = addresses & {tensor.data_ptr() for tensor in newer}
        for work in works:
            work.wait()
        torch.cuda.synchronize()
        problems += model.mismatch(f"gathered {repeat}", gathered, torch.cat(every))
        for tensor in newer:
            where = f"a newer tensor {repeat}, {len(reused)} at a freed address"
            problems += model.mismatch(where, tensor, torch.full((count,), -7.0))
        del works, newer, gathered
    return problems


@pytest.mark.parametrize("keep_work", [True, False], ids=["work kept", "work dropped"])
def test_tensors_freed_early(keep_work):
    run(freed_early, keep_work)


def two_groups(rank):
    """Two groups on two streams, called in opposite orders on even and odd ranks."""
    groups = [dist.new_group(list(range(WORLD_SIZE))) for _ in range(2)]
    for group in groups:
        dist.all_reduce(torch.ones(3, device="cuda"), group=group)
    torch.cuda.synchronize()
    streams, problems = [torch.cuda.Stream() for _ in groups], []
    for repeat in range(REPEATS):
        every = every_input(20_011, repeat)
        results = {}
        for index in (0, 1) if rank % 2 else (1, 0):
            with torch.cuda.stream(streams[index]):
                results[index] = every[rank].cuda(non_blocking=True)
                dist.all_reduce(results[index], group=groups[index])
        for index, stream in enumerate(streams):
            stream.synchronize()
            label = f"group {index} repeat {repeat}"
            problems += model.mismatch(label, results[index], model.reduced(every, "SUM"))
    for group in groups:
        dist.destroy_process_group(group)
    return problems


def test_two_groups_on_two_streams():
    run(two_groups)


def sync_after_async(rank):
    """Calls of one group share counters: the later one on another stream comes after the earlier,
    which is still held up."""
    side, problems = torch.cuda.Stream(), []
    for repeat in range(REPEATS):
        every, others = every_input(7001, repeat), every_input(901, repeat + 50)
        first, second = every[rank].cuda(), others[rank].cuda()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            work = dist.all_reduce(first, async_op=True)
        dist.all_reduce(second)
        problems += model.mismatch(f"second {repeat}", second, model.reduced(others, "SUM"))
        work.wait()
        problems += model.mismatch(f"first {repeat}", first, model.reduced(every, "SUM"))
        with torch.cuda.stream(side):
            dist.all_reduce(first)
        torch.cuda.current_stream().wait_stream(side)
        dist.all_reduce(second)
        twice = [model.reduced(every, "SUM")] * WORLD_SIZE
        problems += model.mismatch(f"first again {repeat}", first, model.reduced(twice, "SUM"))
    return problems


def test_sync_after_async_on_different_streams():
    run(sync_after_async)


def barrier_drains(rank):
    """barrier() holds up the host until what was on the stream before it has ended everywhere."""
    dist.barrier()
    marks = torch.zeros(1, device="cuda")
    torch.cuda._sleep(CYCLES // 3)
    marks.fill_(1.0)
    dist.barrier()
    idle = torch.cuda.current_stream().query()
    return [] if idle else ["barrier() came back while the current stream was busy"]


def test_barrier_drains_the_stream():
    run(barrier_drains)


def put_two_all_reduces(rank, streams, tensors, came):
    """One on each stream; between the two, rank 0 makes the first stream wait for a message that
    rank 1 sends once both are done."""
    with torch.cuda.stream(streams[0]):
        dist.all_reduce(tensors[0])
        if rank == 0:
            dist.irecv(came, 1).wait()
    with torch.cuda.stream(streams[1]):
        dist.all_reduce(tensors[1])


def follows_the_call_alone(rank, captured):
    problems, streams = [], [torch.cuda.Stream() for _ in range(2)]
    tensors, came = (
        [torch.empty(901, device="cuda") for _ in streams],
        torch.zeros(5, device="cuda"),
    )
    message = torch.arange(5.0, device="cuda")
    if captured:
        graph = torch.cuda.CUDAGraph()
        dist.all_reduce(tensors[0])
        if rank == 0:
            dist.recv(came, 1)
        elif rank == 1:
            dist.send(message, 0)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=streams[0]):
            streams[1].wait_stream(streams[0])
            put_two_all_reduces(rank, streams, tensors, came)
            streams[0].wait_stream(streams[1])
    for repeat in range(4):
        every = [every_input(901, 2 * repeat + half) for half in range(2)]
        for tensor, inputs in zip(tensors, every, strict=True):
            tensor.copy_(inputs[rank])
        came.zero_()
        torch.cuda.synchronize()
        if captured:
            graph.replay()
        else:
            put_two_all_reduces(rank, streams, tensors, came)
        if rank == 1:
            torch.cuda.synchronize()
            dist.send(message + repeat, 0)
        torch.cuda.synchronize()
        for half, (tensor, inputs) in enumerate(zip(tensors, every, strict=True)):
            expected = model.reduced(inputs, "SUM")
            problems += model.mismatch(f"repeat {repeat}, {half}", tensor, expected)
        if rank == 0:
            problems += model.mismatch(f"message {repeat}", came, torch.arange(5.0) + repeat)
    return problems


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_a_call_follows_the_last_call_and_nothing_behind_it(captured):
    run(follows_the_call_alone, captured)


def message_behind_a_batch(rank):
    """A send behind a batch of its order waits for that batch, not for a later batch of others."""
    if rank > 1:
        return []
    problems, peer = [], 1 - rank
    first, second, late = (torch.full((7,), float(value), device="cuda") for value in (1, 2, 3))
    for repeat in range(4):
        got = [torch.zeros(7, device="cuda") for _ in range(2)]
        if rank == 0:
            dist.batch_isend_irecv([dist.P2POp(dist.isend, first, peer, tag=0)])
            (batch,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, got[0], peer, tag=1)])
            dist.isend(second, peer, tag=0)
            batch.wait()
            expected = [late]
        else:
            for tensor in got:
                dist.recv(tensor, peer, tag=0)
            torch.cuda.synchronize()
            dist.send(late, peer, tag=1)
            expected = [first, second]
        for index, value in enumerate(expected):
            label = f"repeat {repeat}, {index}"
            problems += model.mismatch(label, got[index], value.cpu())
    return problems


def test_a_message_follows_the_batch_of_its_order_alone():
    run(message_behind_a_batch)
