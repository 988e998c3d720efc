"""One object for a tensor that all ranks of a group share, whoever provides the memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch_symm import _groups, memory, provider, views

if TYPE_CHECKING:
    import torch


class SymmetricTensor:
    """A tensor of which every rank of a group has one of the same shape, and the ways to the
    peers'.

    The methods mean the same for every memory provider. What the provider in force cannot do raises
    NotImplementedError and names those that can. Ranks are group ranks.

    Attributes:
        local: this rank's tensor.
        group: the ProcessGroup.
        provider: the name of the memory provider.
        handle: the handle of torch's symmetric memory, for kernels and for torch's operators.
    """

    def __init__(self, tensor: torch.Tensor, group: Any = None) -> None:
        """Shares `tensor` with the ranks of `group` (the default group where it is None).
        Collective.

        Raises:
            ValueError: `tensor` is not contiguous or not in memory of the provider, or this rank is
                not in `group`.
        """
        self.group = _groups.resolve(group, "SymmetricTensor")
        if not tensor.is_contiguous():
            raise ValueError(
                "SymmetricTensor: tensor: expected a contiguous one, got shape "
                f"{tuple(tensor.shape)} with strides {tensor.stride()}"
            )
        self.provider = provider.memory_provider()
        self.handle = provider.rendezvous(tensor, self.group, "SymmetricTensor")
        if self.handle is None:
            raise ValueError(
                f"SymmetricTensor: tensor: expected one in memory of the provider "
                f"{self.provider!r} (torch_symm.empty, torch_symm.mem_pool), got one in ordinary "
                f"memory on {tensor.device}; torch_symm.as_symmetric makes it symmetric"
            )
        self.local = tensor

    @classmethod
    def empty(
        cls,
        size: int | Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        group: Any = None,
    ) -> SymmetricTensor:
        """Allocates as `torch_symm.empty` and shares the result. Collective."""
        return cls(memory.empty(size, dtype=dtype, device=device), group)

    @property
    def rank(self) -> int:
        return self.handle.rank

    @property
    def world_size(self) -> int:
        return self.handle.world_size

    def remote(self, rank: int) -> torch.Tensor:
        """The tensor of `rank`, to be read and written here; `local` for this rank's own. Local.

        It does not keep the peer's memory alive: keep this object.
        """
        self._check(rank, "remote")
        if rank == self.rank:
            return self.local
        # A handle stands for the start of the tensor's storage.
        start = self.local.storage_offset()
        elements = start + self.local.numel()
        stored = self.handle.get_remote_tensor(rank, (elements,), self.local.dtype)
        return stored[start:].view(self.local.shape)

    def signal_pad(self, rank: int) -> torch.Tensor:
        """The signal pad of `rank` as uint32. Leave it zero. Local."""
        self._check(rank, "signal_pad")
        return self.handle.get_signal_pad(rank)

    def barrier(self, channel: int = 0, timeout: timedelta | None = None) -> None:
        """Waits for all ranks; what they wrote before is seen after. Collective.

        On a GPU an operation of the current stream. Without `timeout`, that of the group.
        """
        provider.require("barrier", "barrier", "SymmetricTensor.barrier")
        self.handle.barrier(channel, _milliseconds(timeout))

    def put_signal(self, rank: int, channel: int = 0, timeout: timedelta | None = None) -> None:
        """Tells `rank` that what this rank wrote before can be read; waits while `rank` has not
        taken the signal before. As `barrier` otherwise."""
        self._check(rank, "put_signal")
        provider.require("signals", "signals between two ranks", "SymmetricTensor.put_signal")
        self.handle.put_signal(rank, channel, _milliseconds(timeout))

    def wait_signal(self, rank: int, channel: int = 0, timeout: timedelta | None = None) -> None:
        """Waits for the signal of `rank` and takes it. As `barrier` otherwise."""
        self._check(rank, "wait_signal")
        provider.require("signals", "signals between two ranks", "SymmetricTensor.wait_signal")
        self.handle.wait_signal(rank, channel, _milliseconds(timeout))

    def multicast_pointer(self) -> int:
        """The address at which a store reaches every rank's tensor. Local.

        Raises NotImplementedError where there is none, and says why; never 0.
        """
        pointer = self.handle.multicast_ptr
        if not pointer:
            raise NotImplementedError(
                f"SymmetricTensor.multicast_pointer: the memory provider {self.provider!r} has "
                f"made no multicast object for this memory on {self.local.device}"
            )
        return pointer + self._offset()

    def contiguous_view(self) -> torch.Tensor:
        """All ranks' tensors as one, `torch_symm.contiguous_view`. Collective."""
        return views.contiguous_view(self.local, self.group)

    def _offset(self) -> int:
        """Bytes from the start of the allocation; an empty tensor has no address."""
        if not self.local.numel():
            return 0
        if hasattr(self.handle, "offset"):
            return self.handle.offset + self.local.storage_offset() * self.local.element_size()
        return self.local.data_ptr() - self.handle.buffer_ptrs[self.rank]  # torch 2.11

    def _check(self, rank: int, caller: str) -> None:
        if not 0 <= rank < self.world_size:
            raise ValueError(
                f"SymmetricTensor.{caller}: rank: expected 0 to {self.world_size - 1}, got {rank}"
            )

    def __repr__(self) -> str:
        return (
            f"SymmetricTensor(shape={tuple(self.local.shape)}, dtype={self.local.dtype}, "
            f"device={self.local.device}, provider={self.provider!r}, rank={self.rank} of "
            f"{self.world_size})"
        )


def _milliseconds(timeout: timedelta | None) -> int:
    """As torch's handles take it; at least 1, since 0 leaves it to the group."""
    return 0 if timeout is None else max(1, round(timeout.total_seconds() * 1000))
