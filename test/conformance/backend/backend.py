"""The backend under test, what it lacks, and how the body of a test runs over it.

A body is a function of the rank that asserts what PyTorch promises, by torch.distributed alone.
SYMM_TEST_BACKEND names the backend (symm, gloo or nccl) and SYMM_TEST_DEVICE the device. What a
backend lacks is in LACKING, whose reasons are those of skipped tests: a test says need(feature).
"""

import contextlib
import datetime
import math
import os
import tempfile
import time

import pytest
import torch
import torch.distributed as dist

from harness import BACKEND, DEVICE, GPUS, ON_CUDA, WORLD_SIZE, run_ranks, synchronize, use_device
from rank_processes import describe, run_processes

NAME = BACKEND.split(":")[-1]

_NO_LISTS = "gloo of torch 2.11 refuses by name: Backend gloo does not support alltoall"
_IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
_NO_BITS = "ReduceOp's documentation: bitwise operations are not available over NCCL"
_NO_MONITOR = "monitored_barrier's documentation: with the gloo backend alone"
_TIMEOUT_ENDS = "a time-out of NCCL's watchdog ends the process, and raises nothing in it"

# By backend, what it does not have by PyTorch's documentation, or refuses by name, and why.
LACKING: dict[str, dict[str, str]] = {
    "symm": {
        "monitored_barrier": _NO_MONITOR,
    },
    "gloo": {
        "PREMUL_SUM": "ReduceOp's documentation: PREMUL_SUM is available over NCCL alone",
        "AVG of integers": "ReduceOp's documentation: AVG is NCCL's alone; gloo divides floats",
        "int16": "gloo's dtypes: float16, bfloat16, float32, float64, int8, uint8, int32, int64",
        "float8": "gloo's dtypes: float16, bfloat16, float32, float64, int8, uint8, int32, int64",
        "uneven all_gather": "gloo's all_gather takes tensors of one size, as gloo's tests check",
        "coalescing by device": "gloo has no startCoalescing",
        "reduce keeps inputs": "reduce's documentation promises the tensor of dst alone",
        **({"all_to_all of lists": _NO_LISTS} if _IS_OLD else {}),
    },
    "nccl": {
        "BAND": _NO_BITS,
        "BOR": _NO_BITS,
        "BXOR": _NO_BITS,
        "int16": "NCCL's dtypes have no int16",
        "transposed tensors": "ProcessGroupNCCL refuses by name: Tensors must be contiguous",
        "all_gather_coalesced": "ProcessGroupNCCL refuses by name: it does not support it",
        "sparse": "NCCL does not reduce sparse tensors",
        "recv from any rank": "recv's documentation: src is needed over NCCL",
        "tags": "send's documentation: tags are not supported over NCCL",
        "messages beside other calls": "NCCL carries out the calls of a group one after the other",
        "monitored_barrier": _NO_MONITOR,
        "time-outs that raise": _TIMEOUT_ENDS,
        "CPU tensors": "NCCL takes tensors of GPUs alone",
    },
}


def need(*features: str) -> None:
    """Skips the test where the backend lacks one of them."""
    for feature in features:
        if reason := LACKING[NAME].get(feature):
            pytest.skip(f"{NAME}: {reason}")


def need_cuda(reason: str) -> None:
    if not ON_CUDA:
        pytest.skip(f"GPUs alone: {reason}")


def need_cpu(reason: str) -> None:
    if ON_CUDA:
        pytest.skip(f"CPU alone: {reason}")


def need_ranks(number: int) -> None:
    if number > WORLD_SIZE:
        pytest.skip(f"wants {number} ranks; there are {WORLD_SIZE}")


def _skip_where_ranks_share_gpus(world_size: int) -> None:
    if NAME == "nccl" and world_size > GPUS:
        pytest.skip(f"nccl wants a GPU for each of {world_size} ranks; there are {GPUS}")


def conforms(body, *args, world_size=WORLD_SIZE, **options) -> list:
    """Runs `body(rank, *args)` on every rank of the default group and returns what the ranks did;
    `options` are those of run_ranks()."""
    _skip_where_ranks_share_gpus(world_size)
    return run_ranks(_over_the_backend, world_size, body, *args, **options)


def _over_the_backend(rank, body, *args):
    value = body(rank, *args)
    synchronize()
    return value


def conforms_alone(life, world_size, *args, time_limit=60.0) -> None:
    """Runs `life(rank, path, *args)`, which joins groups itself, in processes of its own; `path` is
    that of a file that no group has used."""
    _skip_where_ranks_share_gpus(world_size)
    with tempfile.TemporaryDirectory(prefix="symm_backend_") as folder:
        path = os.path.join(folder, "store")
        reports = run_processes(
            _on_its_device, world_size, life, path, *args, time_limit=time_limit
        )
    assert all(report.returned for report in reports), describe(reports)


def _on_its_device(rank, life, *args):
    torch.set_num_threads(1)
    use_device(rank)
    life(rank, *args)


def join(rank, world_size, store=None, /, timeout=30.0, bound=NAME == "nccl", **options) -> None:
    """The default group of a process that conforms_alone() has started; `bound` to its GPU."""
    if store is not None:
        options |= {"store": store, "rank": rank, "world_size": world_size}
    device = torch.device("cuda", torch.cuda.current_device()) if bound else None
    limit = datetime.timedelta(seconds=timeout)
    dist.init_process_group(BACKEND, timeout=limit, device_id=device, **options)


# -- Values ---------------------------------------------------------------------------------------


def numbers(rank, *shape, dtype=torch.float32, salt=0) -> torch.Tensor:
    """Whole numbers from 1 to 4 on the CPU, of which up to four ranks have different ones in the
    first place: their sums and products over four ranks are exact in every dtype of 8 bits of
    precision, and averages as well."""
    place = torch.arange(math.prod(shape))
    mixed = place * (2654435761 + 40502 * salt) >> (3 * rank + 5)
    whole = (mixed + rank + salt) % 4 + 1
    if dtype == torch.bool:
        whole = whole % 2 == 0
    elif dtype.is_complex:
        whole = torch.complex(whole.double(), (5 - whole).double() * (salt + 1))
    return whole.reshape(shape).to(dtype)


def here(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the device under test."""
    return tensor.to(DEVICE, copy=True)


def mine(rank, *shape, **settings) -> torch.Tensor:
    return here(numbers(rank, *shape, **settings))


def of_all(*shape, ranks=range(WORLD_SIZE), **settings) -> list[torch.Tensor]:
    """What the ranks have by numbers(), on the CPU."""
    return [numbers(rank, *shape, **settings) for rank in ranks]


_WHOLE = {
    "SUM": lambda stack: stack.sum(0),
    "AVG": lambda stack: stack.sum(0) / stack.shape[0],
    "PRODUCT": lambda stack: stack.prod(0),
    "MIN": lambda stack: stack.amin(0),
    "MAX": lambda stack: stack.amax(0),
}
_BITS = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def reduced(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """What a reduction of `tensors` gives, computed on the CPU without a group. Averages of
    integers are rounded down, and of bool a sum says whether any is true."""
    dtype = tensors[0].dtype
    if op in _BITS:
        result = tensors[0]
        for tensor in tensors[1:]:
            result = _BITS[op](result, tensor)
        return result
    if dtype.is_complex:
        return _WHOLE[op](torch.stack(tensors))
    wide = _WHOLE[op](torch.stack([tensor.double() for tensor in tensors]))
    if dtype.is_floating_point or dtype == torch.bool:
        return wide.to(dtype)
    return wide.floor().to(torch.int64).to(dtype)


def same(got, expected, what="") -> None:
    """Asserts equal shapes, dtypes and values; sequences are compared by element."""
    if isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), f"{what}: {len(got)} tensors, not {len(expected)}"
        for number, pair in enumerate(zip(got, expected, strict=True)):
            same(*pair, f"{what}[{number}]")
        return
    assert got.device.type == DEVICE, f"{what}: on {got.device}"
    got, expected = got.detach().cpu(), expected.detach().cpu()
    if got.dtype.is_floating_point and got.dtype.itemsize == 1:
        assert got.dtype == expected.dtype, f"{what}: {got.dtype}, not {expected.dtype}"
        got, expected = got.float(), expected.float()
    torch.testing.assert_close(got, expected, msg=lambda text: f"{what}: {text}")


@contextlib.contextmanager
def subgroup(ranks):
    """A group of `ranks`, for the time of a with statement on all ranks."""
    group = dist.new_group(ranks)
    yield group
    dist.barrier()  # gloo's set-up fails where a rank has come and gone
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(group)


def carries_or_refuses(call) -> bool:
    """Whether `call()` was carried out; else it has said that a tensor is not contiguous, which
    PyTorch leaves to the backend."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        if not any(word in str(error) for word in ("contiguous", "dense")):
            raise
        return False
    return True


def still_works(rank) -> None:
    """The default group reduces as it should."""
    tensor = mine(rank, 5)
    dist.all_reduce(tensor)
    same(tensor, reduced("SUM", of_all(5, ranks=range(dist.get_world_size()))), "the next call")


@contextlib.contextmanager
def within(seconds: float):
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert took < seconds, f"took {took:.1f} s, more than {seconds} s"


_meshes: dict = {}


def mesh_of(*shape, names=None) -> dist.DeviceMesh:
    """The mesh of the default group's ranks. It stays: DTensor keeps what it learns by meshes that
    are equal, whose groups have to live on."""
    if _meshes.get("world") is not dist.group.WORLD:
        _meshes.clear()
        _meshes["world"] = dist.group.WORLD
    if (shape, names) not in _meshes:
        _meshes[shape, names] = dist.init_device_mesh(DEVICE, shape, mesh_dim_names=names)
    return _meshes[shape, names]
