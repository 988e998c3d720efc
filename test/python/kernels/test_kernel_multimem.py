"""The multimem functions of torch_symm.triton: values in the interpreter, rank by rank, and what is
refused. What compiled ones are is in test_kernel_codegen.py: none is run on a GPU."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from kernel_runs import NEEDS_TRITON, differs, error_of, symmetric

from harness import check, run_ranks

pytestmark = [
    NEEDS_TRITON,
    pytest.mark.timeout(150),
    pytest.mark.cpu("GPUs need multicast, which tests leave off"),
]

COUNT, BLOCK = 24, 64
FLOATS, INTEGERS = (torch.float32, torch.float16, torch.bfloat16), (torch.int32, torch.int64)


def contents(rank, dtype):
    """Whole numbers; rank r's place i."""
    return ((torch.arange(COUNT) * 7 + rank * 5) % 23 - 4).to(dtype)


def folded(ranks, dtype, operation):
    every = torch.stack([contents(rank, dtype) for rank in range(ranks)])
    if operation == "add":
        return every.sum(dim=0, dtype=dtype)
    if operation in ("min", "max"):
        return getattr(every, f"a{operation}")(dim=0)
    value = every[0]
    for other in every[1:]:
        value = value & other if operation == "and" else value | other
    return value


def operations(dtype):
    if dtype in INTEGERS:
        return ("add", "min", "max", "and", "or")
    return ("add",) if dtype is torch.float32 else ("add", "min", "max")


def loads(rank, ranks):
    import multimem_kernels as kernels

    problems = []
    for dtype in (*FLOATS, torch.float64, *INTEGERS):
        box = symmetric(BLOCK, dtype=dtype)
        box[:COUNT] = contents(rank, dtype)
        ctx = kernels.symm.context(box, multicast=True)
        for operation in operations(dtype) if dtype is not torch.float64 else ("add",):
            out = torch.full((BLOCK,), -3, dtype=dtype)
            settings = {"OPERATION": operation, "BLOCK": BLOCK}
            kernels.load_reduce_kernel[(1,)](box, out, COUNT, ctx, **settings)
            what = f"{dtype} {operation}"
            problems += differs(what, out[:COUNT], folded(ranks, dtype, operation))
            problems += differs(f"{what}, behind the mask", out[COUNT:], [-3] * (BLOCK - COUNT))
        dist.barrier()
    return problems


def stores(rank, ranks):
    import multimem_kernels as kernels

    problems = []
    for dtype in (*FLOATS, *INTEGERS):
        box = symmetric(8 * BLOCK, dtype=dtype)
        ctx = kernels.symm.context(symmetric(16), box, multicast=True)  # not the first tensor
        kernels.store_to_all_kernel[(1,)](box, contents(rank, dtype), COUNT, ctx, BLOCK=BLOCK)
        for peer in range(ranks):
            part = box[peer * BLOCK :][:BLOCK]
            problems += differs(f"{dtype} of {peer}", part[:COUNT], contents(peer, dtype))
            problems += differs(f"{dtype}, behind", part[COUNT:], [-1] * (BLOCK - COUNT))
        dist.barrier()
    box = symmetric(16, 16, dtype=torch.float32, value=rank + 1)
    out = torch.zeros(16, 16)
    ctx = kernels.symm.context(box, multicast=True)
    kernels.square_kernel[(1,)](box, out, ctx, BLOCK=16)
    problems += differs("a square", out, torch.full((16, 16), ranks * (ranks + 1) // 2))
    return problems + differs("a number to all", box, torch.full((16, 16), 7))


def reductions(rank, ranks):
    import multimem_kernels as kernels

    problems, values = [], [one + 9 for one in range(ranks)]
    expected = {"add": 4 + sum(values), "max": max(4, *values), "min": 4, "and": 0, "or": 4}
    for value in values:
        expected["or"] |= value
    for dtype in (*INTEGERS, torch.float32):
        word = symmetric(1, dtype=dtype, value=4)
        ctx = kernels.symm.context(word, multicast=True)
        for operation in ("add",) if dtype is torch.float32 else expected:
            word.fill_(4)
            dist.barrier()
            kernels.reduce_kernel[(1,)](word, rank + 9, ctx, OPERATION=operation)
            problems += differs(f"{dtype} {operation}", word, [expected[operation]])
            dist.barrier()
    return problems


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("body", [loads, stores, reductions])
def test_values(world_size, body):
    check(body, world_size, world_size)


def arrivals(rank, ranks):
    """multimem_reduce as the signal of a barrier."""
    import multimem_kernels as kernels

    box, flag, out = symmetric(ranks), symmetric(1, value=0), torch.zeros(1, dtype=torch.int32)
    ctx = kernels.symm.context(box, flag, multicast=True)
    kernels.arrive_kernel[(1,)](box, flag, out, ctx, SEM="release")
    dist.barrier()
    return differs("all that arrived", out, [sum(range(10, 10 + ranks))])


def relaxed(rank):
    """The same with an addition that publishes nothing; what a rank has raised."""
    import multimem_kernels as kernels

    box, flag, out = symmetric(2), symmetric(1, value=0), torch.zeros(1, dtype=torch.int32)
    ctx = kernels.symm.context(box, flag, multicast=True)
    return error_of(kernels.arrive_kernel[(1,)], box, flag, out, ctx, SEM="relaxed")[0]


CHECKED = {"SYMM_RACE_CHECK": "1", "TRITON_INTERPRET": "1"}


@pytest.mark.parametrize("env", [{}, CHECKED], ids=["", "SYMM_RACE_CHECK"])
def test_a_signal_to_all(env):
    check(arrivals, 3, 3, env=env)


@pytest.mark.long
def test_an_addition_that_is_no_signal_is_found():
    assert "RaceError" in run_ranks(relaxed, 2, env=CHECKED)


def refusals(rank):
    import multimem_kernels as kernels

    box = symmetric(64, dtype=torch.float32, value=1)
    words = symmetric(64, value=1)
    ctx, without = kernels.symm.context(box, words, multicast=True), kernels.symm.context(box)
    out = torch.zeros(64)

    def load(pointer, count, context, operation="add", block=16):
        settings = {"OPERATION": operation, "BLOCK": block}
        return error_of(kernels.load_reduce_kernel[(1,)], pointer, out, count, context, **settings)

    return [
        load(box, 16, without),
        load(box, 14, ctx),
        load(box[1:], 16, ctx),
        load(box, 16, ctx, "min"),
        load(box, 2, ctx, block=2),
        error_of(kernels.reduce_kernel[(1,)], box, 1.0, ctx, OPERATION="max"),
        error_of(kernels.block_kernel[(1,)], words, ctx),
        load(box, 16, ctx),
    ]


REFUSED = [
    "ctx: expected a context that was made with multicast=True, as a kernel calls a multimem",
    "multimem_load_reduce: mask: expected one that takes or leaves whole pieces of 16 bytes",
    "multimem_load_reduce: ptr: expected 4 neighbours side by side from a multiple of 16 bytes on",
    "multimem_load_reduce: OPERATION: expected add for fp32, got min",
    "multimem_load_reduce: ptr: expected a block of whole pieces of 4 elements of fp32, got 2",
    "multimem_reduce: OPERATION: expected add for fp32, got max",
    "multimem_reduce: ptr: expected one address",
    "nothing was raised",
]


def test_refusals():
    for raised in run_ranks(refusals, 2):
        for (_, text), expected in zip(raised, REFUSED, strict=True):
            assert text.startswith(expected)


NO_MULTICAST = """
import sys
import torch, torch.distributed as dist
import torch_symm
import torch_symm.triton as symm

store = dist.FileStore(sys.argv[1], 1)
dist.init_process_group("symm", store=store, rank=0, world_size=1)
box = torch_symm.zeros(8, device="cpu")
try:
    symm.context(box, multicast=True)
except NotImplementedError as error:
    print(error)
dist.destroy_process_group()
"""


def test_memory_without_a_multicast_address(tmp_path):
    """Where kernels are compiled the host says so, before there is one."""
    command = [sys.executable, "-c", NO_MULTICAST, str(tmp_path / "store")]
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert result.stdout.startswith(
        "triton.context: multicast: expected tensors with a multicast address, and tensors[0] has"
    ), result.stderr
    assert "cpu memory has no multicast" in result.stdout
