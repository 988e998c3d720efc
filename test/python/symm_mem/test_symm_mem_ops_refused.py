"""What the collective operators of torch.ops.symm_mem refuse, and in which words.

A refusal comes before anything is sent, so the ranks need no agreement about it. On a GPU these
operators are PyTorch's own: they do not refuse all of it, and some of it makes them access memory
that is nobody's.
"""

import pytest
import torch
import torch.distributed as dist

import model
from errors import message_of, unsaid_in_order
from harness import DEVICE, run_ranks, synchronize
from operators import ops, total, whole_numbers
from symmetric import allocate, use_symm

pytestmark = pytest.mark.timeout(90)


def refusals(rank):
    """Every refusal, by name; the operators work as ever afterwards."""
    use_symm()
    name = dist.group.WORLD.group_name
    x = allocate(48)
    x.copy_(whole_numbers(48, rank, 0))
    plain, matrix = torch.ones(48, device=DEVICE), x.view(6, 8)
    half, int64s = allocate(48, dtype=torch.float16), allocate(48, dtype=torch.int64)
    narrow = allocate(51, dtype=torch.bfloat16)
    flags = torch.zeros(4, dtype=torch.uint32, device=DEVICE)
    out, double = torch.empty_like(x), torch.empty(48, dtype=torch.float64, device=DEVICE)
    column = torch.empty(6, 16, device=DEVICE)[:, ::2]
    calls = {
        "one_shot: other op": lambda: ops.one_shot_all_reduce(x, "avg", name),
        "one_shot: ordinary": lambda: ops.one_shot_all_reduce(plain, "sum", name),
        "one_shot: strided": lambda: ops.one_shot_all_reduce(matrix.t(), "sum", name),
        "one_shot: half": lambda: ops.one_shot_all_reduce(half, "sum", name),
        "one_shot: int64": lambda: ops.one_shot_all_reduce(int64s, "sum", name),
        "one_shot: odd size": lambda: ops.one_shot_all_reduce(narrow, "sum", name),
        "one_shot: odd start": lambda: ops.one_shot_all_reduce(narrow[1:49], "sum", name),
        "one_shot: no group": lambda: ops.one_shot_all_reduce(x, "sum", "no such group"),
        "out: shape": lambda: ops.one_shot_all_reduce_out(x, "sum", name, out[:47]),
        "out: dtype": lambda: ops.one_shot_all_reduce_out(x, "sum", name, double),
        "out: strided": lambda: ops.one_shot_all_reduce_out(matrix, "sum", name, column),
        "copy: longer": lambda: ops.one_shot_all_reduce_copy_out(x[:44], x, "sum", name, out[:44]),
        "copy: dtype": lambda: ops.one_shot_all_reduce_copy_out(
            x, whole_numbers(48, 0, 0, torch.bfloat16).to(DEVICE), "sum", name, out
        ),
        "copy: strided": lambda: ops.one_shot_all_reduce_copy(matrix, column, "sum", name),
        "copy: alignment": lambda: ops.one_shot_all_reduce_copy(x, plain[:47], "sum", name),
        "two_shot: other op": lambda: ops.two_shot_all_reduce_(x, "max", name),
        "two_shot: ordinary": lambda: ops.two_shot_all_reduce_(plain, "sum", name),
        "two_shot: strided": lambda: ops.two_shot_all_reduce_(matrix.t(), "sum", name),
        "two_shot: half": lambda: ops.two_shot_all_reduce_(half, "sum", name),
        "two_shot_out: shape": lambda: ops.two_shot_all_reduce_out(x, "sum", name, out[:44]),
        "two_shot_out: strided": lambda: ops.two_shot_all_reduce_out(matrix, "sum", name, column),
        "scatter: ordinary": lambda: ops.reduce_scatter_out(plain, name, False, out[:24]),
        "scatter: matrix": lambda: ops.reduce_scatter_out(matrix, name, False, out[:24]),
        "scatter: output": lambda: ops.reduce_scatter_out(x, name, False, out[:23]),
        "scatter: indivisible": lambda: ops.reduce_scatter_out(x[:44], name, False, out[:22]),
        "split: last": lambda: ops.reduce_scatter_out(matrix, name, True, out.view(6, 8)),
        "split: indivisible": lambda: ops.reduce_scatter_out(
            x.view(4, 12), name, True, out[:24].view(4, 6)
        ),
        "split: rows": lambda: ops.reduce_scatter_out(matrix, name, True, out[:20].view(5, 4)),
        "memset: dtype": lambda: ops.memset32_(x, 0, 1, 1),
        "memset: shape": lambda: ops.memset32_(flags.view(2, 2), 0, 1, 1),
        "memset: offset": lambda: ops.memset32_(flags, -1, 1, 1),
        "memset: count": lambda: ops.memset32_(flags, 0, 1, 0),
        "memset: value": lambda: ops.memset32_(flags, 0, 2**32, 1),
        "memset: negative": lambda: ops.memset32_(flags, 0, -1, 1),
        "memset: end": lambda: ops.memset32_(flags, 2, 1, 3),
        "memset: far": lambda: ops.memset32_(flags, 1, 1, 2**63 - 1),
        "write: dtype": lambda: ops.stream_write_value32_(x, 0, 1),
        "write: offset": lambda: ops.stream_write_value32_(flags, 4, 1),
        "write: value": lambda: ops.stream_write_value32_(flags, 0, 2**32),
    }
    messages = {key: message_of((RuntimeError, ValueError), call) for key, call in calls.items()}
    synchronize()
    assert flags.view(torch.int32).tolist() == [0] * 4
    got = ops.one_shot_all_reduce(x, "sum", name)
    wrong = model.mismatch("afterwards", got, total(48, range(dist.get_world_size()), 0))
    return messages, wrong


# What the message of each says on the CPU, in that order.
SAYS = {
    "one_shot: other op": ["one_shot_all_reduce", "reduce_op", "'sum'", "'avg'"],
    "one_shot: ordinary": ["one_shot_all_reduce", "input", "symmetric memory", "[48]"],
    "one_shot: strided": ["one_shot_all_reduce", "input", "contiguous", "[8, 6]", "[1, 8]"],
    "one_shot: half": ["NotImplementedError", "input", "float32 or bfloat16", "Half"],
    "one_shot: int64": ["NotImplementedError", "input", "float32 or bfloat16", "Long"],
    "one_shot: odd size": ["input", "BFloat16", "multiple of 4 bytes", "102"],
    "one_shot: odd start": ["input", "BFloat16", "multiple of 4 bytes", "byte 2"],
    "one_shot: no group": ["no such group"],
    "out: shape": ["out", "shape", "[48]", "[47]"],
    "out: dtype": ["out", "dtype", "Float", "Double"],
    "out: strided": ["out", "contiguous", "[16, 2]"],
    "copy: longer": ["local_input", "44", "48"],
    "copy: dtype": ["local_input", "dtype", "Float", "BFloat16"],
    "copy: strided": ["contiguous", "[16, 2]"],
    "copy: alignment": ["out", "shape", "[48]", "[47]"],
    "two_shot: other op": ["two_shot_all_reduce_", "reduce_op", "'sum'", "'max'"],
    "two_shot: ordinary": ["two_shot_all_reduce_", "input", "symmetric memory"],
    "two_shot: strided": ["two_shot_all_reduce_", "input", "contiguous"],
    "two_shot: half": ["NotImplementedError", "two_shot_all_reduce_", "Half"],
    "two_shot_out: shape": ["two_shot_all_reduce_out", "output", "[48]", "[44]"],
    "two_shot_out: strided": ["two_shot_all_reduce_out", "output", "contiguous"],
    "scatter: ordinary": ["reduce_scatter_out", "input", "symmetric memory"],
    "scatter: matrix": ["reduce_scatter_out", "input", "one dimension", "[6, 8]"],
    "scatter: output": ["reduce_scatter_out", "output", "[24]", "[23]"],
    "scatter: indivisible": ["reduce_scatter_out", "input", "divisible by 8", "44"],
    "split: last": ["reduce_scatter_out", "output", "[6, 4]", "[6, 8]"],
    "split: indivisible": ["last dimension", "divisible by 8", "12"],
    "split: rows": ["reduce_scatter_out", "output", "[6, 4]", "[5, 4]"],
    "memset: dtype": ["memset32_", "uint32", "Float"],
    "memset: shape": ["memset32_", "flat", "[2, 2]"],
    "memset: offset": ["memset32_", "offset", "-1"],
    "memset: count": ["memset32_", "count", "0"],
    "memset: value": ["memset32_", "val", "4294967295", "4294967296"],
    "memset: negative": ["memset32_", "val", "4294967295", "-1"],
    "memset: end": ["memset32_", "2 + 3", "exceeded", "4"],
    "memset: far": ["memset32_", "1 + 9223372036854775807", "exceeded", "4"],
    "write: dtype": ["stream_write_value32_", "uint32", "Float"],
    "write: offset": ["stream_write_value32_", "4 + 1", "exceeded", "4"],
    "write: value": ["stream_write_value32_", "val", "4294967296"],
}


@pytest.mark.cpu("PyTorch's CUDA operators do not check all of it, which costs the context")
def test_refusals():
    for messages, wrong in run_ranks(refusals, 2, fresh=True):
        assert not wrong
        assert set(messages) == set(SAYS)
        for key, parts in SAYS.items():
            assert not unsaid_in_order(messages[key].replace("\n", " "), parts), key


def overlaps(rank):
    use_symm()
    name = dist.group.WORLD.group_name
    x = allocate(64)
    calls = [
        lambda: ops.one_shot_all_reduce_out(x, "sum", name, x),
        lambda: ops.one_shot_all_reduce_out(x[:32], "sum", name, x[28:60]),
        lambda: ops.two_shot_all_reduce_out(x[:32], "sum", name, x[16:48]),
        lambda: ops.reduce_scatter_out(x, name, False, x[32:]),
    ]
    return [message_of(RuntimeError, call) for call in calls]


@pytest.mark.cpu("PyTorch's CUDA kernels take it, and the ranks overwrite what others read")
def test_overlapping_output():
    for messages in run_ranks(overlaps, 2, fresh=True):
        assert all("must not overlap input" in message for message in messages), messages


def multicast(rank):
    use_symm()
    name, x = dist.group.WORLD.group_name, allocate(32)
    out = torch.empty(32, device=DEVICE)
    calls = {
        "multimem_all_reduce_": lambda: ops.multimem_all_reduce_(x, "sum", name),
        "multimem_one_shot_all_reduce": lambda: ops.multimem_one_shot_all_reduce(x, "sum", name),
        "multimem_one_shot_all_reduce_out": lambda: ops.multimem_one_shot_all_reduce_out(
            x, "sum", name, out
        ),
        "multimem_one_shot_reduce_out": lambda: ops.multimem_one_shot_reduce_out(
            x, "sum", 0, name, out
        ),
        "multimem_all_gather_out": lambda: ops.multimem_all_gather_out(out[:16], name, x),
    }
    return {key: message_of(NotImplementedError, call) for key, call in calls.items()}


@pytest.mark.cpu("what a GPU without multicast says is PyTorch's affair")
def test_operators_that_need_multicast():
    for messages in run_ranks(multicast, 2, fresh=True):
        for name, message in messages.items():
            assert f"symm_mem::{name}: CPU tensors have no multicast memory" in message
