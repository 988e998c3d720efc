"""What the tests of symmetric memory share: memory of the device under test, and what it holds."""

import contextlib
import mmap
import os

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C._distributed_c10d import _SymmetricMemory

import model
from harness import DEVICE, ON_CUDA, device_of_rank, new_group_in_order, synchronize

WORLD_SIZES = [2, 3, 4, 8]
# What symmetric memory is made of on the device under test, in bytes.
GRANULE = 2 << 20 if ON_CUDA else mmap.PAGESIZE
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def use_symm() -> None:
    """Chooses symm for torch's symmetric memory in this rank."""
    import torch_symm

    torch_symm.memory_provider("native")


def allocate(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """torch's own way to allocate, on the device under test."""
    return symm_mem.empty(*shape, dtype=dtype, device=device_of_rank())


def persistent(count: int, alloc_id: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    place = device_of_rank()
    return _SymmetricMemory.empty_strided_p2p((count,), (1,), dtype, place, alloc_id=alloc_id)


def granules(number: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An allocation of that many granules that the tensor fills; of no pool, which would round."""
    count = number * GRANULE // dtype.itemsize
    return _SymmetricMemory.empty_strided_p2p((count,), (1,), dtype, device_of_rank())


def pattern(count: int, rank: int, salt: int = 0, dtype: torch.dtype = torch.float32):
    """On the CPU; distinct by position, rank and salt."""
    return model.make_input(dtype, count, rank, salt)


def shared(count: int, group=None, dtype: torch.dtype = torch.float32, salt: int = 0):
    """(tensor that holds this global rank's pattern, handle); everybody has written on return."""
    tensor = allocate(count, dtype=dtype)
    handle = symm_mem.rendezvous(tensor, group or dist.group.WORLD)
    tensor.copy_(pattern(count, dist.get_rank(), salt, dtype))
    handle.barrier()
    return tensor, handle


def wrong_peers(handle, ranks, count, dtype=torch.float32, salt=0, what="") -> list[str]:
    """Looks at every peer's buffer; `ranks` are the group's global ranks by group rank."""
    problems = []
    for peer, global_rank in enumerate(ranks):
        got = handle.get_buffer(peer, (count,), dtype)
        label = f"{what} rank {global_rank}'s buffer as {peer} of {ranks}"
        problems += model.mismatch(label, got, pattern(count, global_rank, salt, dtype))
    return problems


def pads_not_zero(handle, what: str = "") -> list[str]:
    """Pads are zero whenever nobody is inside a synchronisation: meet by dist.barrier() before."""
    pad = handle.get_signal_pad(handle.rank).cpu().view(torch.int32)
    at = pad.nonzero().reshape(-1).tolist()
    return [f"{what}: the pad of rank {handle.rank} is not zero at {at[:8]}"] if at else []


def mapped_areas() -> int:
    return sum(1 for _ in open("/proc/self/maps"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def signal_pad_size(size: int):
    before = symm_mem.get_signal_pad_size()
    symm_mem.set_signal_pad_size(size)
    try:
        yield
    finally:
        symm_mem.set_signal_pad_size(before)


def filled(*shape, dtype=torch.float32, salt=0):
    """In symmetric memory, with this global rank's pattern."""
    import torch_symm

    use_symm()
    tensor = torch_symm.empty(shape, dtype=dtype, device=DEVICE)
    tensor.copy_(pattern(tensor.numel(), dist.get_rank(), salt, dtype).view(shape))
    return tensor


def meet(group=None):
    synchronize()
    dist.barrier(group)


def wrong_slices(view, ranks, shape, dtype=torch.float32, salt=0, what="", part=slice(None)):
    """Slice r must be `part` of the pattern of the global rank `ranks[r]`."""
    problems = []
    if tuple(view.shape) != (len(ranks), *shape) or view.dtype != dtype:
        return [f"{what}: {view.dtype}{list(view.shape)}"]
    for peer, global_rank in enumerate(ranks):
        count = 1
        for extent in shape:
            count *= extent
        length = count if part == slice(None) else part.stop
        expected = pattern(length, global_rank, salt, dtype)[part]
        label = f"{what} slice {peer} of rank {dist.get_rank()}'s view"
        problems += model.mismatch(label, view[peer].flatten(), expected)
    return problems


def member_of_each(lists, backend=None):
    """(group, its ranks by group rank) of those lists that this rank is in."""
    rank, mine = dist.get_rank(), []
    for ranks in lists:
        if backend is None:
            group, ordered = new_group_in_order(ranks)
        else:
            group, ordered = dist.new_group(ranks, backend=backend), sorted(ranks)
        if rank in ranks:
            mine.append((group, ordered))
    return mine


def destroy(groups):
    """The groups of member_of_each, when every rank is done with them. Collective."""
    meet()
    for group, _ in groups:
        dist.destroy_process_group(group)
