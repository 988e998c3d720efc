"""The bits of a reduction on CUDA are those on the CPU for the same inputs, and the same in eager
calls, under replay and by every algorithm; NaN, signed zeros, subnormals and every narrow float
included. (test_determinism.py, with SYMM_TEST_DEVICE=cuda, compares ranks, sizes, workspaces.)"""

import pytest
import torch
import torch.distributed as dist

import model
from graph_operations import captured
from harness import WORLD_SIZE, crowded, expect_no_mismatch, few, options_with, run_ranks

pytestmark = pytest.mark.cuda

COUNTS = [7, 150_001] if crowded(WORLD_SIZE) else [7, 5_003, 700_001]
ALGORITHMS = ["ll", "ll_two_shot", "bulk"]
PAIRS = [(op, dtype) for op in model.OPS for dtype in model.DTYPES if model.meaningful(op, dtype)]
# torch.distributed itself refuses complex products in all_reduce.
PAIRS = [(op, dtype) for op, dtype in PAIRS if not (op == "PRODUCT" and dtype.is_complex)]
PAIR_IDS = [f"{op}-{model.name(dtype)}" for op, dtype in PAIRS]


def any_bits(dtype, count: int, rank: int, op: str) -> torch.Tensor:
    """Every bit pattern of a real float: NaN, infinities, subnormals and both zeros, on different
    ranks at different places; else what make_input() gives."""
    if dtype not in (*model.FLOATS, *model.FLOAT8S):
        return model.make_input(dtype, count, rank, 9, op)
    generator = torch.Generator().manual_seed(100 * rank + dtype.itemsize)
    size = (count * dtype.itemsize,)
    values = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator).view(dtype)
    # A patch of zeros of either sign, so that sums and minima of them occur.
    values[: count // 4] = -0.0 if rank % 2 else 0.0
    return values


def ordinary(dtype, count, rank, op):
    return model.make_input(dtype, count, rank, 5, op)


def on_both_devices(rank, op, dtype, counts):
    """all_reduce, reduce and reduce_scatter of the same inputs on the CPU and on the GPU."""
    problems = []
    for count in counts:
        for make in (ordinary, any_bits):
            mine = make(dtype, count * WORLD_SIZE, rank, op)
            results = {}
            for device in ("cpu", "cuda"):
                whole = mine.to(device, copy=True)
                share = torch.empty(count, dtype=dtype, device=device)
                rooted = mine[:count].to(device, copy=True)
                reduce_op = model.reduce_op(op, rank)
                dist.reduce_scatter_tensor(share, whole, op=reduce_op)
                dist.all_reduce(whole, op=reduce_op)
                dist.reduce(rooted, 1, op=reduce_op)
                results[device] = [whole, share, rooted] if rank == 1 else [whole, share]
            for what, on_cuda, on_cpu in zip(
                ("all_reduce", "reduce_scatter", "reduce"),
                results["cuda"],
                results["cpu"],
                strict=False,
            ):
                label = f"{what} {make.__name__} {op} {model.name(dtype)} {count}: CUDA, not CPU"
                problems += model.mismatch(label, on_cuda, on_cpu)
    return problems


@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=PAIR_IDS)
def test_same_bits_as_on_the_cpu(op, dtype):
    results = run_ranks(on_both_devices, WORLD_SIZE, op, dtype, COUNTS)
    expect_no_mismatch(results)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_the_bits_of_the_cpu(algorithm):
    """The same with one algorithm for everything, forced by option."""
    some = few(PAIRS[::3], 12)

    def body(rank):
        counts = [5_003, 300_007]
        return [line for op, dtype in some for line in on_both_devices(rank, op, dtype, counts)]

    options = options_with(algorithm=algorithm)
    expect_no_mismatch(run_ranks(body, WORLD_SIZE, options=options, time_limit=100))


def eager_and_replayed(rank, dtype, op):
    """(digests, problems): eagerly, replayed, and eagerly again after the replays."""
    digests, problems = [], []
    for count in COUNTS:
        mine = model.make_input(dtype, count, rank, 5, op)
        tensor = mine.cuda()

        def call(tensor=tensor):
            dist.all_reduce(tensor, op=model.reduce_op(op, rank))

        call()
        seen = {model.digest(tensor)}
        graph = captured(call)
        for _ in range(5):
            tensor.copy_(mine)
            graph.replay()
            seen.add(model.digest(tensor))
        tensor.copy_(mine)
        call()
        seen.add(model.digest(tensor))
        every = [model.make_input(dtype, count, r, 5, op) for r in range(WORLD_SIZE)]
        problems += model.mismatch(f"{dtype} {op} {count}", tensor, model.reduced(every, op))
        if len(seen) != 1:
            problems.append(f"{dtype} {op} {count}: {len(seen)} different results")
        digests.append(sorted(seen))
    return digests, problems


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (torch.float16, "SUM"),
        (torch.bfloat16, "AVG"),
        (torch.float32, "SUM"),
        (torch.float8_e4m3fn, "SUM"),
        (torch.float64, "PREMUL_SUM"),
    ],
    ids=str,
)
def test_eager_and_replayed_alike_on_every_rank(dtype, op):
    results = run_ranks(eager_and_replayed, WORLD_SIZE, dtype, op)
    expect_no_mismatch([problems for _, problems in results])
    first = results[0][0]
    assert all(digests == first for digests, _ in results)


def alone_and_in_company(rank):
    """The bits do not depend on what else the group is doing on other streams."""
    dtype, count, seen = torch.bfloat16, 200_003, set()
    mine = model.make_input(dtype, count, rank, 1)
    other = dist.new_group(list(range(WORLD_SIZE)))
    noise = torch.ones(1 << 20, device="cuda")
    for repeat in range(4 if crowded(WORLD_SIZE) else 40):
        works = []
        if repeat % 2:
            works = [dist.all_reduce(noise, group=other, async_op=True) for _ in range(3)]
        tensor = mine.cuda()
        dist.all_reduce(tensor)
        seen.add(model.digest(tensor))
        for work in works:
            work.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group(other)
    return seen


def test_the_same_bits_beside_other_calls():
    results = run_ranks(alone_and_in_company, WORLD_SIZE)
    assert len(set.union(*results)) == 1
