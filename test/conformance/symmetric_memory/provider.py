"""The provider under test, and how the body of a test runs over it.

A body is a function of the rank that asserts what PyTorch promises, by PyTorch's API alone. It says
what it needs by need(), and is skipped where that is absent. SYMM_CONFORMANCE_PROVIDER names the
provider: SYMM (the default), or CUDA, PyTorch's own, with one GPU a rank and groups of nccl.
SYMM_TEST_DEVICE=cuda has SYMM looked at on GPUs.
"""

import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import _SymmetricMemory

from harness import DEVICE, GPUS, ON_CUDA, device_of_rank, run_ranks, synchronize
from rank_processes import describe, run_processes
from symmetric import TORCH, allocate, use_symm

PROVIDER = os.environ.get("SYMM_CONFORMANCE_PROVIDER", "SYMM")
DONE = 23  # the exit code of a rank that has found all as it should be and ends without cleaning up

ops = torch.ops.symm_mem


class LackingError(Exception):
    """Says what a body needs that the provider, the device or this torch does not have."""


def need(there, reason: str) -> None:
    if not there:
        raise LackingError(reason)


def need_cuda(reason: str) -> None:
    need(ON_CUDA, f"GPUs alone: {reason}")


def need_operators(*names: str) -> None:
    for name in names:
        need(hasattr(ops, name), f"torch {torch.__version__} has no symm_mem::{name}")


def need_multicast() -> None:
    kind = DeviceType.CUDA if ON_CUDA else DeviceType.CPU
    there = _SymmetricMemory.has_multicast_support(kind, device_of_rank().index or 0)
    need(there, f"no multicast memory on {DEVICE}")


def need_serialized_streams(of_operators: bool = False) -> None:
    """`of_operators`: of torch's own, whatever the provider."""
    need_cuda("streams")
    if of_operators or PROVIDER != "SYMM":
        need(TORCH > (2, 14), "torch orders the signals of several streams after 2.14 only")


def use_provider() -> None:
    """Chooses the provider in this rank."""
    if PROVIDER == "SYMM":
        use_symm()
    elif symm_mem.get_backend(DEVICE) != PROVIDER:
        symm_mem.set_backend(PROVIDER)


def _over_the_provider(rank, body, *args):
    use_provider()
    try:
        body(rank, *args)
    except LackingError as lacking:
        return str(lacking)
    synchronize()
    return None


def _skip_where_ranks_share_gpus(world_size: int) -> None:
    if PROVIDER != "SYMM" and world_size > GPUS:
        pytest.skip(f"{PROVIDER} wants a GPU for each of {world_size} ranks; there are {GPUS}")


def conforms(body, world_size=2, *args, **options) -> None:
    """Runs `body(rank, *args)` on every rank; `options` are those of run_ranks()."""
    _skip_where_ranks_share_gpus(world_size)
    lacking = run_ranks(_over_the_provider, world_size, body, *args, **options)
    if any(lacking):
        pytest.skip(next(filter(None, lacking)))


def conforms_and_exits(life, world_size, *args, time_limit=60.0) -> None:
    """Runs `life(rank, *args)`, which joins the group itself and ends by os._exit(DONE)."""
    _skip_where_ranks_share_gpus(world_size)
    reports = run_processes(life, world_size, *args, time_limit=time_limit)
    assert [report.exit_code for report in reports] == [DONE] * world_size, describe(reports)


def world_name() -> str:
    return dist.group.WORLD.group_name


def share(tensor, group=None):
    """The handle of `tensor` in the default group or another one. Collective."""
    return symm_mem.rendezvous(tensor, group or dist.group.WORLD)


def neighbours(handle) -> tuple[int, int]:
    """(the rank after this one, the rank before it)"""
    return (handle.rank + 1) % handle.world_size, (handle.rank - 1) % handle.world_size


def strided(
    *shape, dtype=torch.float32, place=None, group_name=None, alloc_id=None
) -> torch.Tensor:
    """The allocation that PyTorch's own operators and compiled programs make."""
    strides = torch.empty(shape, device="meta").stride()
    place = place or device_of_rank()
    return _SymmetricMemory.empty_strided_p2p(shape, strides, dtype, place, group_name, alloc_id)


def fill_with_rank(tensor, handle) -> None:
    tensor.fill_(handle.rank)
    handle.barrier()


def sees_every_rank(handle, count: int, dtype=torch.float32) -> bool:
    """Whether every buffer of the group is what fill_with_rank() has made of it. Collective."""
    buffers = [handle.get_buffer(peer, (count,), dtype) for peer in range(handle.world_size)]
    right = all(bool(buffer.eq(peer).all()) for peer, buffer in enumerate(buffers))
    handle.barrier()
    return right


def round_trip(tensor) -> None:
    """Shares `tensor`, and every rank finds what every rank has written."""
    handle = share(tensor)
    fill_with_rank(tensor, handle)
    assert sees_every_rank(handle, tensor.numel(), tensor.dtype)


def shared_by_rank(count: int, group=None, dtype=torch.float32):
    """(tensor that is full of the rank, its handle)"""
    tensor = allocate(count, dtype=dtype)
    handle = share(tensor, group)
    fill_with_rank(tensor, handle)
    return tensor, handle


def equal(got, expected) -> bool:
    return torch.equal(got.cpu(), expected.cpu())
