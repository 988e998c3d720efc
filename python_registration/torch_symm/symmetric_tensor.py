"""One object for a tensor that all ranks of a group share, whoever provides the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_symm import _groups, _registration, memory

if TYPE_CHECKING:
    import torch


class SymmetricTensor(_registration.load().SymmetricTensor):
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
        super().__init__(tensor, self.group.group_name)

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
        return cls(memory.allocate((size,), dtype, device, "SymmetricTensor.empty"), group)

    def __repr__(self) -> str:
        return (
            f"SymmetricTensor(shape={tuple(self.local.shape)}, dtype={self.local.dtype}, "
            f"device={self.local.device}, provider={self.provider!r}, rank={self.rank} of "
            f"{self.world_size})"
        )
