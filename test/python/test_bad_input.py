"""Wrong arguments: an exception before anything is sent, that names the argument, what was
expected and what came. Afterwards the group still works on every rank.

Every case is run on all ranks (each is refused on its own), then on rank 1 alone while the others
go on to the closing all_reduce: had rank 1 sent or counted anything, that would fail.
"""

import functools
import os
import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

import model
from harness import DEVICE, IS_SYMM, RankFailure, expect_no_mismatch, run_ranks
from test_determinism import options_with

pytestmark = pytest.mark.skipif(not IS_SYMM, reason="the texts are symm's")

WORLD_SIZE = 3


def ones(*shape, **settings):
    return torch.ones(*shape, **{"device": DEVICE, **settings})


def zeros(*shape, **settings):
    return torch.zeros(*shape, **{"device": DEVICE, **settings})


def sparse():
    return torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,), device=DEVICE)


def quantized():
    return torch.quantize_per_tensor(ones(4), 0.1, 0, torch.qint8)


def strided():
    return ones(4, 6)[:, ::2]


def outputs(n=WORLD_SIZE, count=4, dtype=torch.float32):
    return [zeros(count, dtype=dtype) for _ in range(n)]


def backend():
    return dist.group.WORLD._get_backend(torch.device(DEVICE))


def reduce_with(op, dtype):
    # Not all_reduce: there torch.distributed itself refuses some ops on complex tensors.
    return lambda: dist.reduce(zeros(4, dtype=dtype), 0, op=op)


def batch_to_oneself(counts):
    """Sends and recvs of so many elements, behind a send to the next rank."""
    rank = dist.get_rank()
    operations = [dist.P2POp(dist.isend, ones(4), (rank + 1) % WORLD_SIZE, tag=7)]
    for call, of_call in zip((dist.isend, dist.irecv), counts, strict=True):
        operations += [dist.P2POp(call, ones(count), rank, tag=7) for count in of_call]
    dist.batch_isend_irecv(operations)


Op = dist.ReduceOp

# name: (call, patterns that the message must contain)
CASES = {
    # torch.distributed has kernels of its own for meta tensors, so the backend is asked directly.
    "all_reduce of meta": (
        lambda: backend().allreduce([ones(4, device="meta")], dist.AllreduceOptions()),
        ["all", "meta", "cpu|cuda"],
    ),
    "all_gather into meta": (
        lambda: backend().allgather(
            [[*outputs(2), ones(4, device="meta")]], [ones(4)], AllgatherOptions()
        ),
        ["all_gather", "meta", "cpu|cuda"],
    ),
    "all_reduce of sparse": (lambda: dist.all_reduce(sparse()), ["all_reduce", "[Ss]parse"]),
    "broadcast of sparse": (lambda: dist.broadcast(sparse(), 0), ["broadcast", "[Ss]parse"]),
    "all_reduce of uint16": (
        lambda: dist.all_reduce(zeros(4, dtype=torch.uint16)),
        ["UInt16|uint16"],
    ),
    "broadcast of quantized": (lambda: dist.broadcast(quantized(), 0), ["QInt8|qint8|Quantized"]),
    "BAND of float": (reduce_with(Op.BAND, torch.float32), ["BAND", "float32|Float"]),
    "BXOR of bfloat16": (reduce_with(Op.BXOR, torch.bfloat16), ["BXOR", "bfloat16|BFloat16"]),
    "BOR of complex": (reduce_with(Op.BOR, torch.complex64), ["BOR", "complex64|ComplexFloat"]),
    "AVG of bool": (reduce_with(Op.AVG, torch.bool), ["AVG", "bool|Bool"]),
    "MIN of complex": (reduce_with(Op.MIN, torch.complex64), ["MIN", "complex64|ComplexFloat"]),
    "MAX of complex": (reduce_with(Op.MAX, torch.complex128), ["MAX", "complex128|ComplexDouble"]),
    "PREMUL_SUM of int": (
        lambda: dist.all_reduce(zeros(4, dtype=torch.int32), op=dist._make_nccl_premul_sum(2.0)),
        ["PREMUL_SUM", "int32|Int"],
    ),
    "reduce_scatter BAND of float": (
        lambda: dist.reduce_scatter_tensor(zeros(4), ones(12), op=Op.BAND),
        ["BAND", "float32|Float"],
    ),
    "root too large": (lambda: dist.broadcast(ones(4), 7), ["7"]),
    "root negative": (lambda: dist.broadcast(ones(4), group_src=-4), ["-4"]),
    "reduce to a rank outside": (lambda: dist.reduce(ones(4), group_dst=3), ["3"]),
    "send to oneself": (lambda: dist.send(ones(4), dist.get_rank()), [""]),
    "isend to oneself without a batch": (
        lambda: dist.isend(ones(4), dist.get_rank()),
        ["ValueError", "send.*dst", "got this one", "in one batch"],
    ),
    "irecv from oneself without a batch": (
        lambda: dist.irecv(ones(4), dist.get_rank()),
        ["ValueError", "recv.*src", "got this one", "in one batch"],
    ),
    "batch without the recv from oneself": (
        lambda: batch_to_oneself(([4], [])),
        ["ValueError", "rank", "send to this rank itself with tag 7", "16 bytes", "its recv in"],
    ),
    "batch without the send to oneself": (
        lambda: batch_to_oneself(([4, 4], [4, 4, 5])),
        ["ValueError", "recv from this rank itself with tag 7", "20 bytes", "its send in"],
    ),
    "batch with another size to oneself": (
        lambda: batch_to_oneself(([4, 4], [4, 5])),
        ["DistBackendError", "mismatch", "tag 7 differ in size", "sends 16.*receives 20"],
    ),
    "send to a rank outside": (lambda: dist.send(ones(4), group_dst=9), ["9"]),
    "recv from a rank outside": (lambda: dist.recv(ones(4), group_src=9), ["9"]),
    "all_gather list too short": (
        lambda: dist.all_gather(outputs(2), ones(4)),
        ["all_gather", "expected 3", "got 2"],
    ),
    "all_gather output of another size": (
        lambda: dist.all_gather([zeros(4), zeros(4), zeros(9)][::-1], ones(7)),
        ["all_gather"],
    ),
    "all_gather output of another dtype": (
        lambda: dist.all_gather(outputs(dtype=torch.int32), ones(4)),
        ["Invalid usage|dtype"],
    ),
    "all_gather_into_tensor too small": (
        lambda: dist.all_gather_into_tensor(zeros(11), ones(4)),
        ["all_gather", "12", "11"],
    ),
    "all_gather_into_tensor not contiguous": (
        lambda: dist.all_gather_into_tensor(zeros(12, 2)[:, 0], ones(4)),
        ["all_gather", "contiguous"],
    ),
    "reduce_scatter_tensor input too large": (
        lambda: dist.reduce_scatter_tensor(zeros(4), ones(13)),
        ["reduce_scatter", "12", "13"],
    ),
    "reduce_scatter list too long": (
        lambda: dist.reduce_scatter(zeros(4), outputs(4)),
        ["reduce_scatter", "expected 3", "got 4"],
    ),
    "scatter list too short": (
        lambda: dist.scatter(zeros(4), outputs(2), group_src=dist.get_rank()),
        ["scatter", "expected 3", "got 2"],
    ),
    "gather list too long": (
        lambda: dist.gather(ones(4), outputs(4), group_dst=dist.get_rank()),
        ["gather", "expected 3", "got 4"],
    ),
    "gather without a list at the root": (
        lambda: dist.gather(ones(4), None, group_dst=dist.get_rank()),
        ["gather"],
    ),
    "all_to_all list too short": (
        lambda: dist.all_to_all(outputs(), outputs(2)),
        ["all_to_all", "expected 3", "got 2"],
    ),
    "all_to_all_single splits do not add up": (
        lambda: dist.all_to_all_single(
            zeros(6), ones(6), output_split_sizes=[2, 2, 2], input_split_sizes=[1, 2, 2]
        ),
        ["all_to_all", "split", "6", "5"],
    ),
    "all_to_all_single too few splits": (
        lambda: dist.all_to_all_single(
            zeros(6), ones(6), output_split_sizes=[2, 2, 2], input_split_sizes=[4, 2]
        ),
        ["all_to_all", "split"],
    ),
    "all_to_all_single negative split": (
        lambda: dist.all_to_all_single(
            zeros(6), ones(6), output_split_sizes=[2, 2, 2], input_split_sizes=[-4, 8, 2]
        ),
        ["all_to_all", "split", "-4"],
    ),
    "all_to_all_single not divisible": (
        lambda: dist.all_to_all_single(zeros(7), ones(7)),
        ["all_to_all", "7", "3"],
    ),
    "recv into a view with holes": (
        lambda: dist.recv(strided(), (dist.get_rank() + 1) % 3),
        ["contiguous"],
    ),
    "aliased all_gather": (
        lambda: dist.all_gather_into_tensor(shifted(0, 12), shifted(2, 6)),
        ["all_gather", "overlap|alias"],
    ),
    "aliased reduce_scatter": (
        lambda: dist.reduce_scatter_tensor(shifted(2, 6), shifted(0, 12)),
        ["reduce_scatter", "overlap|alias"],
    ),
}


@functools.cache
def shared():
    return zeros(16)


def shifted(first, last):
    return shared()[first:last]


def refusal(call):
    """The text of the exception that `call` raises; None where it raises none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def refuse_then_reduce(call, patterns, rank, alone):
    problems = []
    if not alone or rank == 1:
        text = refusal(call)
        if text is None:
            problems.append("did not raise")
        else:
            missing = [p for p in patterns if not re.search(p, text)]
            problems += [f"{p!r} is not in the message: {text}" for p in missing]
    tensor = model.make_input(torch.float32, 1000, rank, 1).to(DEVICE)
    dist.all_reduce(tensor)
    every = [model.make_input(torch.float32, 1000, r, 1) for r in range(WORLD_SIZE)]
    return problems + model.mismatch("all_reduce after it", tensor, model.reduced(every, "SUM"))


def refuse_case(rank, case):
    call, patterns = CASES[case]
    problems = refuse_then_reduce(call, patterns, rank, alone=False)
    return problems + refuse_then_reduce(call, patterns, rank, alone=True)


@pytest.mark.parametrize("case", CASES)
def test_is_refused(case):
    expect_no_mismatch(run_ranks(refuse_case, WORLD_SIZE, case, timeout=10, reuse=True))


def test_list_of_tensors_of_different_dtypes():
    def body(rank):
        def call():
            dist.all_reduce_coalesced([ones(3), ones(3, dtype=torch.int32)])

        return refuse_then_reduce(call, ["dtype|type"], rank, alone=False)

    expect_no_mismatch(run_ranks(body, WORLD_SIZE))


def test_destroyed_group():
    def body(rank):
        group = dist.new_group([0, 1, 2])
        dist.all_reduce(ones(3), group=group)
        backend = group._get_backend(torch.device(DEVICE))
        dist.destroy_process_group(group)

        def through_torch():
            dist.all_reduce(ones(3), group=group)

        def below_torch():
            backend.allreduce([ones(3)], dist.AllreduceOptions()).wait()

        problems = refuse_then_reduce(
            through_torch, ["not initialized|[Ii]nvalid|destroyed"], rank, False
        )
        return problems + refuse_then_reduce(below_torch, ["destroyed|shut"], rank, False)

    expect_no_mismatch(run_ranks(body, WORLD_SIZE))


def test_group_that_the_rank_is_not_in():
    def body(rank):
        group = dist.new_group([0, 2])
        tensor = torch.full((4,), 5.0, device=DEVICE)
        if rank == 1:
            with pytest.warns(UserWarning, match="does not belong|not in the group|not part"):
                dist.all_reduce(tensor, group=group)
            return model.mismatch("outsider's tensor", tensor, torch.full((4,), 5.0))
        dist.all_reduce(tensor, group=group)
        return model.mismatch("member's tensor", tensor, torch.full((4,), 10.0))

    expect_no_mismatch(run_ranks(body, WORLD_SIZE))


WRONG_ENVIRONMENT = {
    "SYMM_ALGO": ("foo", ["foo", "one_shot", "two_shot", "ring", "pipelined"]),
    "SYMM_DETERMINISTIC": ("yes", ["yes", "0 or 1"]),
    "SYMM_DISABLE_MULTICAST": ("yes", ["yes", "0 or 1"]),
    "SYMM_HANDLE_TYPE": ("foo", ["foo", "auto, posix or fabric"]),
    "SYMM_ISA": ("foo", ["foo", "baseline", "avx2", "avx512"]),
    "SYMM_MEMORY_PROVIDER": ("foo", ["foo", "native, cuda, nccl, nvshmem"]),
    "SYMM_TUNING_FILE": ("no/such/file.json", ["no/such/file.json"]),
}


def message_of_failed_start(**set_up):
    def body(rank):
        dist.all_reduce(ones(4))

    with pytest.raises(RankFailure) as failure:
        run_ranks(body, 2, time_limit=20, timeout=10, **set_up)
    return str(failure.value)


@pytest.mark.cpu("the environment is read before the device is known")
@pytest.mark.parametrize("variable", WRONG_ENVIRONMENT)
def test_wrong_environment(variable):
    value, patterns = WRONG_ENVIRONMENT[variable]
    text = message_of_failed_start(env={variable: value})
    for pattern in [variable, *patterns]:
        assert pattern in text, text


@pytest.mark.cpu("the environment is read before the device is known")
def test_invalid_tuning_file(tmp_path):
    path = tmp_path / "tuning.json"
    for content in ("{", "[]", '{"version": "seven"}', ""):
        path.write_text(content)
        text = message_of_failed_start(env={"SYMM_TUNING_FILE": os.fspath(path)})
        assert os.fspath(path) in text, text
        assert "SYMM_TUNING_FILE" in text, text


@pytest.mark.parametrize(
    ("fields", "patterns"),
    [
        ({"algorithm": "foo"}, ["foo", "one_shot", "two_shot", "ring", "pipelined"]),
        ({"workspace_bytes": 12345}, ["workspace_bytes", "12345"]),
        ({"workspace_bytes": 1 << 40}, ["workspace_bytes", str(1 << 40)]),
    ],
    ids=str,
)
def test_wrong_option(fields, patterns):
    text = message_of_failed_start(options=options_with(**fields))
    for pattern in patterns:
        assert pattern in text, text


def test_unknown_option():
    assert "no_such_option" in message_of_failed_start(options=options_with(no_such_option=1))


def test_options_of_another_backend():
    def gloo_options():
        return dist.ProcessGroupGloo._Options()

    text = message_of_failed_start(options=gloo_options)
    assert "Options" in text, text
