"""CUDA tensors in symmetric memory: read in place, with the bits that plain tensors give; copy
engines under symmetric registration; and asymmetric use."""

import time

import pytest
import torch
import torch.distributed as dist

import model
import torch_symm
from graph_operations import captured
from harness import WORLD_SIZE, check, expect_no_mismatch, options_with, run_ranks

pytestmark = pytest.mark.cuda

BYTES = 64 << 20
COUNTS = [5, 4_099, 300_007, 2_000_003]  # float32 elements; all shares together fit into BYTES
assert 4 * COUNTS[-1] * 4 < BYTES
OFFSET = 129  # elements into the memory: tensors need not stand at its start
SYMMETRIC_COUNTS = [1_027, 2_000_003]


def symmetric_bytes(registered: bool) -> torch.Tensor:
    memory = torch_symm.empty(BYTES, dtype=torch.uint8, device="cuda")
    assert torch_symm.as_symmetric(memory, symmetric=registered) is memory
    return memory


def view(memory, dtype, count, offset=OFFSET):
    return memory.view(dtype)[offset : offset + count]


def both_ways(rank, mine, call, in_place, result_count=None):
    """Results of `call(input, output)` with plain tensors and with `in_place(count, which)`."""
    out_count = mine.numel() if result_count is None else result_count
    plain_out = torch.full((out_count,), -7, dtype=mine.dtype, device="cuda")
    call(mine.cuda(), plain_out)
    there, out = in_place(mine.numel(), 0), in_place(out_count, 1)
    there.copy_(mine)
    out.fill_(-7)
    call(there, out)
    return plain_out, out, there


def compare_in_place(rank, registered, offset):
    """Input and output in symmetric memory."""
    memories = [symmetric_bytes(registered), symmetric_bytes(registered)]
    problems = []
    for count in COUNTS:
        for dtype, op in ((torch.float32, "SUM"), (torch.bfloat16, "AVG")):
            whole = model.make_input(dtype, count * WORLD_SIZE, rank, 2, op)
            mine = whole[:count]
            reduce_op = model.reduce_op(op)

            def in_place(n, which, dtype=dtype):
                return view(memories[which], dtype, n, offset)

            def all_reduce(source, out, reduce_op=reduce_op):
                out.copy_(source)
                dist.all_reduce(out, op=reduce_op)

            calls = {
                "all_reduce": (mine, all_reduce, count),
                "all_gather": (mine, lambda s, o: dist.all_gather_into_tensor(o, s), whole.numel()),
                "reduce_scatter": (
                    whole,
                    lambda s, o, r=reduce_op: dist.reduce_scatter_tensor(o, s, op=r),
                    count,
                ),
                "all_to_all": (whole, lambda s, o: dist.all_to_all_single(o, s), whole.numel()),
            }
            for name, (data, call, result_count) in calls.items():
                plain, there, source = both_ways(rank, data, call, in_place, result_count)
                label = f"{name} {model.name(dtype)} {count}: symmetric, not plain"
                problems += model.mismatch(label, there, plain.cpu())
                problems += model.mismatch(f"{label}, the input", source, data)
    return problems


# At addresses that 16 divides peers store large outputs themselves, at others they use slots.
@pytest.mark.parametrize("offset", [OFFSET - 1, OFFSET], ids=["aligned", "odd"])
@pytest.mark.parametrize("registered", [False, True], ids=["symmetric", "registered"])
def test_results_are_those_of_plain_tensors(registered, offset):
    check(compare_in_place, WORLD_SIZE, registered, offset)


def on_some_ranks_only(rank):
    """Whether a tensor is symmetric is a fact of one rank, without symmetric registration."""
    memory, problems = symmetric_bytes(False), []
    for count in COUNTS:
        every = [model.make_input(torch.float32, count, r, 6) for r in range(WORLD_SIZE)]
        plain = torch.empty(count, device="cuda")
        # Odd ranks are symmetric, each at an offset of its own.
        tensor = view(memory, torch.float32, count, 64 * (rank + 1)) if rank % 2 else plain
        tensor.copy_(every[rank])
        dist.all_reduce(tensor)
        problems += model.mismatch(f"all_reduce {count}", tensor, model.reduced(every, "SUM"))
        tensor.copy_(every[rank])
        out = torch.full((count * WORLD_SIZE,), -7.0, device="cuda")
        dist.all_gather_into_tensor(out, tensor)
        problems += model.mismatch(f"all_gather {count}", out, torch.cat(every))
    return problems


def test_symmetric_on_some_ranks_only():
    check(on_some_ranks_only, WORLD_SIZE)


def replayed_in_place(rank):
    memory, count = symmetric_bytes(True), 300_007
    tensor = view(memory, torch.float32, count)
    tensor.fill_(1.0)
    dist.all_reduce(tensor)
    graph, problems = captured(lambda: dist.all_reduce(tensor)), []
    for replay in range(10):
        every = [model.make_input(torch.float32, count, r, replay) for r in range(WORLD_SIZE)]
        tensor.copy_(every[rank])
        graph.replay()
        problems += model.mismatch(f"replay {replay}", tensor, model.reduced(every, "SUM"))
    return problems


def test_replayed_in_place():
    check(replayed_in_place, WORLD_SIZE)


def by_copy_engines(rank):
    """Every collective that copy engines can carry out, forced to them; eager and captured."""
    source, target = symmetric_bytes(True), symmetric_bytes(True)
    problems = []
    for count in SYMMETRIC_COUNTS:
        mine = view(source, torch.float32, count)
        whole = view(source, torch.float32, count * WORLD_SIZE)
        out = view(target, torch.float32, count * WORLD_SIZE)
        for replay in range(3):
            shares = [
                model.make_input(torch.float32, count * WORLD_SIZE, r, replay)
                for r in range(WORLD_SIZE)
            ]
            part = slice(rank * count, (rank + 1) * count)

            def reset(shares=shares, whole=whole, out=out):
                whole.copy_(shares[rank])
                out.fill_(-7)

            reset()
            dist.all_gather_into_tensor(out, mine)
            expected = torch.cat([s[:count] for s in shares])
            problems += model.mismatch(f"all_gather {count}", out, expected)
            reset()
            dist.all_to_all_single(out, whole)
            swapped = torch.cat([s[part] for s in shares])
            problems += model.mismatch(f"all_to_all {count}", out, swapped)
            reset()
            graph = captured(lambda out=out, whole=whole: dist.all_to_all_single(out, whole))
            graph.replay()
            problems += model.mismatch(f"all_to_all {count} replayed", out, swapped)
            reset()
            dist.broadcast(whole, 1)
            problems += model.mismatch(f"broadcast {count}", whole, shares[1])
    torch.cuda.synchronize()
    return problems


def test_copy_engines_under_symmetric_registration():
    options = options_with(algorithm="copy_engine")
    expect_no_mismatch(run_ranks(by_copy_engines, WORLD_SIZE, options=options))


def use_asymmetrically(rank):
    """Rank 1 uses another offset of symmetric memory. What the ranks are told."""
    source, target = symmetric_bytes(True), symmetric_bytes(True)
    count = SYMMETRIC_COUNTS[-1]
    dist.all_gather_into_tensor(
        view(target, torch.float32, count * WORLD_SIZE), view(source, torch.float32, count)
    )
    torch.cuda.synchronize()
    dist.barrier()
    offset = OFFSET + (64 if rank == 1 else 0)
    out = view(target, torch.float32, count * WORLD_SIZE, offset)
    started = time.monotonic()
    try:
        dist.all_gather_into_tensor(out, view(source, torch.float32, count, offset))
        torch.cuda.synchronize()
        for _ in range(1000):  # a call that comes after the failure is known raises it
            dist.barrier()
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - started
    return None, time.monotonic() - started


def test_asymmetric_use_raises_on_every_rank():
    options = options_with(algorithm="copy_engine")
    results = run_ranks(use_asymmetrically, WORLD_SIZE, options=options, timeout=20)
    for rank, (text, seconds) in enumerate(results):
        assert text is not None, f"rank {rank}: no error"
        assert "symmetric registration" in text, f"rank {rank}: {text}"
        assert seconds < 10, f"rank {rank}: {seconds:.1f} s"
