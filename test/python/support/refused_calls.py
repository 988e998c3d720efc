"""Calls of torch.distributed that symm refuses, and the words of each refusal."""

import functools

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

import model
from errors import message_of, unsaid
from harness import DEVICE, GPUS

WORLD_SIZE = 3  # of the groups that CASES are for


def refused(rank, call, patterns, devices=(DEVICE,)) -> list[str]:
    """What is wrong with how `call` is refused: by all ranks, then by rank 1 alone while the others
    go on to the all_reduce after it. Had rank 1 sent or counted anything, that would fail."""
    problems, world_size = [], dist.get_world_size()
    for refusing in ([rank], [1]):
        if rank in refusing:
            problems += unsaid(message_of(Exception, call), patterns)
        for device in devices:
            tensor = model.make_input(torch.float32, 1000, rank, 1).to(device, copy=True)
            dist.all_reduce(tensor)
            every = [model.make_input(torch.float32, 1000, r, 1) for r in range(world_size)]
            problems += model.mismatch(f"{device} after it", tensor, model.reduced(every, "SUM"))
    return problems


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

# By name, what is refused on every device: (call, patterns that the message must have).
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
    "MAX of sparse": (
        lambda: dist.all_reduce(sparse(), op=Op.MAX),
        ["NotImplementedError", "all_reduce: op", "expected SUM", "got MAX"],
    ),
    "all_reduce of sparse rows": (
        lambda: dist.all_reduce(sparse().to_dense().view(2, 2).to_sparse_csr()),
        ["NotImplementedError", "SparseCsr"],  # PyTorch's own words
    ),
    "reduce of sparse": (lambda: dist.reduce(sparse(), 0), ["reduce", "[Ss]parse"]),
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
    "PREMUL_SUM by meta": (
        lambda: dist.all_reduce(ones(4), op=dist._make_nccl_premul_sum(ones(1, device="meta"))),
        ["NotImplementedError", "all_reduce: op", "meta", "cpu or cuda"],
    ),
    "send of meta": (
        lambda: backend().send([ones(4, device="meta")], (dist.get_rank() + 1) % WORLD_SIZE, 0),
        ["NotImplementedError", "send: tensor", "meta", "cpu or cuda"],
    ),
    "reduce_scatter BAND of float": (
        lambda: dist.reduce_scatter_tensor(zeros(4), ones(12), op=Op.BAND),
        ["BAND", "float32|Float"],
    ),
    "root too large": (lambda: dist.broadcast(ones(4), 7), ["7"]),
    "root negative": (lambda: dist.broadcast(ones(4), group_src=-4), ["-4"]),
    "reduce to a rank outside": (lambda: dist.reduce(ones(4), group_dst=3), ["3"]),
    "send to oneself": (
        lambda: dist.send(ones(4), dist.get_rank()),
        ["ValueError", "should not be the same as the rank of the current process"],
    ),
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
    "batch with another dtype to oneself": (
        lambda: dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, ones(4), dist.get_rank(), tag=7),
                dist.P2POp(dist.irecv, zeros(2, dtype=torch.int64), dist.get_rank(), tag=7),
            ]
        ),
        ["DistBackendError", "mismatch", "tag 7 differ in dtype", "sends float32.*receives int64"],
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
    "reduce_scatter of another dtype": (
        lambda: backend()._reduce_scatter_base(zeros(4, dtype=torch.int32), ones(12)),
        ["InvalidTypeError .*ValueError .*RuntimeError TypeError", "int32", "float32"],
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


def cuda(*values):
    return torch.tensor(values or (1.0, 2.0), device="cuda")


def cuda_and_cpu():
    """A tensor for each rank, of which one is on the CPU."""
    return [*(cuda() for _ in range(dist.get_world_size() - 1)), torch.zeros(2)]


def for_each_rank(**settings):
    return torch.zeros(2 * dist.get_world_size(), **settings)


def another_gpu():
    return torch.device("cuda", (torch.cuda.current_device() + 1) % GPUS)


# What is refused of tensors on GPUs, beside tensors on the CPU.
CUDA_CASES = {
    "all_gather into a list with a CPU tensor": (
        lambda: dist.all_gather(cuda_and_cpu(), cuda()),
        ["all_gather", "cpu", "cuda"],
    ),
    "all_gather of a CPU tensor into CUDA": (
        lambda: dist.all_gather_into_tensor(for_each_rank(device="cuda"), torch.zeros(2)),
        ["cpu", "cuda"],
    ),
    "reduce_scatter from a mixed list": (
        lambda: dist.reduce_scatter(cuda(), cuda_and_cpu()[::-1]),
        ["reduce_scatter", "cpu", "cuda"],
    ),
    "all_to_all between devices": (
        lambda: dist.all_to_all_single(for_each_rank(device="cuda"), for_each_rank()),
        ["cpu", "cuda"],
    ),
    "sparse": CASES["MAX of sparse"],
    "not contiguous": (
        lambda: dist.broadcast(torch.ones(4, 6, device="cuda")[:, ::2], 0),
        ["contiguous"],
    ),
    "BAND of float": CASES["BAND of float"],
}
