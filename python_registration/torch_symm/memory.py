"""Tensors that every rank of a group can read and write in place.

`empty` and its kin allocate; a rendezvous, made by `as_symmetric`, `contiguous_view`,
`SymmetricTensor` or ``torch.distributed._symmetric_memory.rendezvous``, maps what the ranks of a
group have allocated into each other.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_symm import _groups
from torch_symm._registration import load

if TYPE_CHECKING:
    import torch


def empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """``torch.empty`` in memory that can become symmetric. Local.

    Every rank of a group that shall share it must allocate the same number of bytes. Tensors
    without dimensions or without elements are legal. On a GPU the memory comes from `mem_pool`.

    Args:
        size: the shape, as integers or as one sequence.
        dtype: torch's default dtype where it is None.
        device: "cpu" or "cuda"; torch's default device where it is None.

    Raises:
        NotImplementedError: the memory provider has no memory on that device, or torch's symmetric
            memory is in use with another one.
        RuntimeError: out of memory.
    """
    return allocate(size, dtype, device, "empty")


def zeros(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """`empty`, filled with 0."""
    return allocate(size, dtype, device, "zeros").zero_()


def ones(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """`empty`, filled with 1."""
    return allocate(size, dtype, device, "ones").fill_(1)


def full(
    size: int | Sequence[int],
    fill_value: complex,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """`empty`, filled with `fill_value`, whose kind gives the dtype where that is None."""
    import torch

    if dtype is None:
        dtype = torch.full((), fill_value, device="cpu").dtype
    return allocate((size,), dtype, device, "full").fill_(fill_value)


def mem_pool(device: torch.device | str | None = None) -> torch.cuda.MemPool:
    """A pool for ``torch.cuda.use_mem_pool``, inside which all tensors can become symmetric. Local.

    The ranks of a group must allocate the same sizes in the same order inside it. One pool a GPU,
    made on first use and kept.

    Args:
        device: a GPU; the current one where it is None.

    Raises:
        NotImplementedError: `device` is not a GPU (on the CPU, use `empty`), or cannot be used.
    """
    import torch.distributed._symmetric_memory as symm_mem

    place = with_index("cuda" if device is None else device)
    if place.type != "cuda":
        raise NotImplementedError(
            f"mem_pool: device: torch has pools on cuda only, got {place}; use torch_symm.empty"
        )
    return load().allocate_from_provider(place, "mem_pool", lambda: symm_mem.get_mem_pool(place))


def is_symmetric(tensor: torch.Tensor, group: Any = None) -> bool:
    """Whether `tensor` lies in symmetric memory: allocated as such, or shared by `as_symmetric`.

    Local.

    Args:
        tensor: any tensor.
        group: a ProcessGroup or its name: then also whether this group has mapped that memory, so
            that its ranks may use the tensor with nothing more to be done.

    Raises:
        ValueError: this rank is not in `group`, or the group was destroyed.
        NotImplementedError: a group is named, but the tensor's provider keeps no record of groups.
    """
    name = None if group is None else _groups.resolve(group, "is_symmetric").group_name
    return load().is_symmetric(tensor, name)


def as_symmetric(
    tensor: torch.Tensor, group: Any = None, *, symmetric: bool = False
) -> torch.Tensor:
    """The tensor to use where `group` needs one in symmetric memory. Collective over `group`.

    Where every rank's `tensor` stands at the same place of memory that can be shared, that is
    `tensor` itself, and nothing is copied: in symmetric memory, and on a GPU in a storage of the
    same size that PyTorch has allocated with ``expandable_segments:True``. Otherwise it is, on
    every rank, a contiguous copy in new symmetric memory. The two are not kept alike: what is
    written to the copy, by this rank or by peers, must be read from the copy. It has no autograd
    history. The first copy of a process warns; `copy_counts` counts all.

    Memory of PyTorch's stays symmetric until its storage is freed. Peers that still read it then
    read what is written there next, so all should have done so before any rank lets go.

    Args:
        tensor: of the same shape and dtype on every rank.
        group: a ProcessGroup or its name; the default group where it is None.
        symmetric: registers the memory for symmetric use, the same on every rank: whenever one rank
            passes a tensor in it to a collective of `group`, every rank passes one at the same
            offset, and an all_to_all has equal shares on every rank or on none. Collectives of symm
            may then use copy engines and multicast. Asymmetric use fails the group on every rank.

    Raises:
        ValueError: this rank is not in `group`; or shapes, dtypes or `symmetric` differ, on every
            rank then.
        NotImplementedError: the memory provider has no memory on the tensor's device, or no
            symmetric registration.
    """
    import torch

    process_group = _groups.resolve(group, "as_symmetric")
    buffer = _user_buffer(tensor)
    reason = _NOT_SHARED
    if _all_can_share(tensor, buffer, process_group, symmetric):
        reason = _share(tensor, buffer, process_group, symmetric)
        if not reason:
            _count("in_place", tensor.nbytes)
            return tensor
    copy = allocate(tensor.shape, tensor.dtype, tensor.device, "as_symmetric")
    with torch.no_grad():
        copy.copy_(tensor)
    _share(copy, None, process_group, symmetric)
    if _count("copied", tensor.nbytes) == 1:
        warnings.warn(
            f"torch_symm.as_symmetric() copied a tensor of shape {tuple(tensor.shape)}, because "
            f"{reason}; allocate it by torch_symm.empty() or inside torch_symm.mem_pool(). "
            "Further copies are counted by torch_symm.copy_counts() and not said",
            stacklevel=2,
        )
    return copy


def copy_counts() -> dict[str, int]:
    """How often `as_symmetric` has returned its argument ("in_place") and a copy ("copied") in this
    process, and the bytes of both ("in_place_bytes", "copied_bytes"). Local."""
    with _counts_lock:
        return dict(_counts)


_NOT_SHARED = "the memory of at least one rank's tensor cannot be shared in place"
_counts = {"in_place": 0, "in_place_bytes": 0, "copied": 0, "copied_bytes": 0}
_counts_lock = threading.Lock()


def _count(what: str, nbytes: int) -> int:
    """How often as_symmetric has done `what` by now. Thread safe."""
    with _counts_lock:
        _counts[what] += 1
        _counts[what + "_bytes"] += nbytes
        return _counts[what]


def _user_buffer(tensor: torch.Tensor) -> Any:
    """What can make another allocator's memory symmetric in place, None where nothing can."""
    if tensor.device.type != "cuda" or load().memory_provider() != "native":
        return None
    return load().user_buffer_of(tensor)


def _share(tensor: torch.Tensor, buffer: Any, group: Any, symmetric: bool) -> str:
    """Why `tensor` cannot be shared in place, or "": the same on every rank. Collective."""
    if buffer is not None:
        # Chosen and used, so that torch's own rendezvous() knows the memory too. The choice's lock
        # is not held while peers are waited for.
        load().allocate_from_provider(tensor.device, "as_symmetric", lambda: None)
        return str(buffer.share(group.group_name, symmetric))
    provider = load().memory_provider()
    if provider != "native" and not symmetric:
        shared = load().rendezvous(tensor, group.group_name, "as_symmetric") is not None
        return "" if shared else _NOT_SHARED
    if provider != "native":
        raise NotImplementedError(
            f"as_symmetric: the memory provider {provider!r} has no symmetric registration; native "
            "has: choose it by memory_provider() or SYMM_MEMORY_PROVIDER"
        )
    # Also where this rank's memory is symmetric already: another rank may have brought new memory.
    return "" if load().share(tensor, group.group_name, symmetric) else _NOT_SHARED


def _all_can_share(tensor: torch.Tensor, buffer: Any, group: Any, symmetric: bool) -> bool:
    """The same answer on every rank. Collective."""
    mine = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype),
        "device": tensor.device.type,
        "symmetric": bool(symmetric),
        "location": _location(tensor, buffer),
    }
    same = {name: f"tensor: expected the same {name}" for name in mine if name != "location"}
    everybody = _groups.all_gather_facts(group, "as_symmetric", mine, same)
    location = mine["location"]
    return location is not None and all(rank["location"] == location for rank in everybody)


def _location(tensor: torch.Tensor, buffer: Any) -> list[Any] | None:
    """[bytes from the start of its allocation, bytes of that], None in memory of another kind.

    Of memory that is to be shared in a way of its own the list says so too.
    """
    if buffer is not None:
        return [buffer.offset, buffer.bytes, "user buffer"]
    found = load().place_of(tensor)
    return None if found is None else list(found)


def with_index(device: torch.device | str | None) -> torch.device:
    """With the index of the GPU that is meant; None is torch's default device."""
    import torch

    place = torch.get_default_device() if device is None else torch.device(device)
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return place


def allocate(
    size: Sequence[Any], dtype: torch.dtype | None, device: Any, caller: str
) -> torch.Tensor:
    """`empty` of the shape `size`, or of the one sequence in it, whose errors name `caller`."""
    import torch.distributed._symmetric_memory as symm_mem

    if len(size) == 1 and isinstance(size[0], Sequence):
        size = size[0]
    shape = tuple(int(extent) for extent in size)
    # At least one element of memory, so that the tensor is known by its address.
    stored = (1,) if 0 in shape else shape
    place = with_index(device)
    tensor = load().allocate_from_provider(
        place, caller, lambda: symm_mem.empty(stored, dtype=dtype, device=place)
    )
    return tensor[:0].view(shape) if 0 in shape else tensor
