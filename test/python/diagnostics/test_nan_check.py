"""SYMM_NAN_CHECK=1: a call with NaN in its input is refused on that rank before it is sent, with
the argument, the rank and the first NaN's place; the group goes on."""

import pytest
import torch
import torch.distributed as dist

from errors import message_of, unsaid
from harness import DEVICE, IS_SYMM, check, run_ranks

pytestmark = pytest.mark.skipif(not IS_SYMM, reason="the check is symm's")

RANKS = 2
ON = {"SYMM_NAN_CHECK": "1"}


def bad(sizes=(2, 3), dtype=torch.float32):
    """Two NaN, the first one at [1, 0] of [2, 3]."""
    tensor = torch.ones(sizes)
    tensor.view(-1)[3:5] = float("nan")
    return tensor.to(dtype).to(DEVICE)


def good(*sizes):
    return torch.ones(*sizes, device=DEVICE)


# By name: what rank 1 calls with NaN, and the argument that must be named.
CASES = {
    "all_reduce": (lambda: dist.all_reduce(bad()), "tensor"),
    "all_reduce_coalesced": (lambda: dist.all_reduce_coalesced([good(2), bad()]), r"tensors\[1\]"),
    "reduce": (lambda: dist.reduce(bad(), dst=0), "tensor"),
    "broadcast": (lambda: dist.broadcast(bad(), src=1), "tensor"),
    "all_gather": (lambda: dist.all_gather([good(2, 3)] * 2, bad()), "tensor"),
    "all_gather_into_tensor": (lambda: dist.all_gather_into_tensor(good(4, 3), bad()), "input"),
    "gather": (lambda: dist.gather(bad(), None, dst=0), "tensor"),
    "scatter": (lambda: dist.scatter(good(2, 3), [good(2, 3), bad()], src=1), r"scatter_list\[1\]"),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(good(2, 3), [good(2, 3), bad()]),
        r"input_list\[1\]",
    ),
    "reduce_scatter_tensor": (lambda: dist.reduce_scatter_tensor(good(1, 3), bad()), "input"),
    "all_to_all_single": (lambda: dist.all_to_all_single(good(2, 3), bad()), "input"),
    "all_to_all": (
        lambda: dist.all_to_all([good(2, 3), good(2, 3)], [good(2, 3), bad()]),
        r"input_tensor_list\[1\]",
    ),
    "send": (lambda: dist.send(bad(), 0), "tensor"),
    "async": (lambda: dist.all_reduce(bad(), async_op=True), "tensor"),
    "strided": (lambda: dist.all_gather([good(3, 2)] * 2, bad().t()), "tensor"),
}


def refused(rank, case):
    problems = []
    if rank == 1:
        call, argument = CASES[case]
        text = message_of(ValueError, call)
        place = r"\[0, 1\]" if case == "strided" else r"\[1, 0\]"
        words = [
            rf": {argument}: expected no NaN in what goes to group \"0\" \(SYMM_NAN_CHECK=1\)",
            rf"got 2 in 6 elements, the first at {place}; ",
            r"group rank 1 of 2\)",
        ]
        problems = unsaid(text, words)
    tensor = torch.full((3,), 2.0, device=DEVICE)
    dist.all_reduce(tensor)
    return problems + ([] if tensor.tolist() == [4.0] * 3 else ["the group is not as it was"])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES)
def test_is_refused(case):
    check(refused, RANKS, case, env=ON, timeout=10)


FLOATS = [
    *[torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128],
    *[torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz],
]


def every_dtype(rank):
    problems = []
    for dtype in FLOATS:
        with_nan = bad(dtype=dtype)
        assert with_nan.to(torch.complex128).isnan().sum() == 2
        text = message_of(ValueError, dist.broadcast, with_nan, src=rank)
        # torch.distributed passes complex tensors on as pairs of real ones.
        words = ["2 in 12", r"\[1, 0, 0\]"] if dtype.is_complex else ["2 in 6", r"\[1, 0\]"]
        problems += [f"{dtype}: {line}" for line in unsaid(text, words)]
    return problems


def test_every_floating_dtype_is_looked_at():
    check(every_dtype, RANKS, env=ON)


def what_is_not_read(rank):
    """NaN that no rank sends: outputs, what a broadcast overwrites, numbers without NaN, none."""
    tensor = bad() if rank else good(2, 3)
    dist.broadcast(tensor, src=0)
    dist.all_gather_into_tensor(bad((4, 3)), good(2, 3))
    dist.recv(bad(), 0) if rank else dist.send(good(2, 3), 1)
    dist.all_reduce(torch.full((4,), -1, dtype=torch.int16, device=DEVICE))
    dist.all_reduce(torch.full((4,), float("inf"), device=DEVICE))
    dist.all_reduce(good(0))
    return [] if tensor.tolist() == [[1.0] * 3] * 2 else ["wrong broadcast"]


def test_only_what_is_sent_is_looked_at():
    check(what_is_not_read, RANKS, env=ON)


def sent_all_the_same(rank):
    tensor = bad()
    dist.all_reduce(tensor)
    return int(tensor.isnan().sum())


@pytest.mark.parametrize("env", [{}, {"SYMM_NAN_CHECK": "0"}])
def test_it_is_off_unless_switched_on(env):
    assert run_ranks(sent_all_the_same, RANKS, env=env, fresh=True) == [2, 2]


def in_a_subgroup(rank):
    group = dist.new_group([1, 2])
    if rank == 0:
        return []
    text = message_of(ValueError, dist.all_reduce, bad(), group=group)
    return unsaid(text, [r'goes to group "', f"group rank {rank - 1}, global rank {rank}, of 2"])


def test_the_group_and_both_ranks_are_named():
    check(in_a_subgroup, 3, env=ON)


def captured(rank):
    torch.cuda.synchronize()
    tensor = good(4)
    dist.all_reduce(tensor)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        text = message_of(NotImplementedError, lambda: dist.all_reduce(tensor, async_op=True))
    return unsaid(text, ["SYMM_NAN_CHECK=1 reads it on the host", "unset SYMM_NAN_CHECK"])


@pytest.mark.cuda
def test_a_call_in_a_capture_is_refused():
    check(captured, RANKS, env=ON)
