"""All ranks' buffers as one tensor, without copying; a tensor and the ways to the peers' as one
object, whoever provides the memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_symm import _groups, memory
from torch_symm._registration import load

if TYPE_CHECKING:
    import torch


def contiguous_view(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    """The buffers of all ranks as one tensor, of which slice r is group rank r's `tensor`.

    Nothing is copied: the memory of every rank is mapped once more, side by side, so a write by any
    rank, through the view or through its own tensor, is seen by all after a barrier. The view keeps
    the memory mapped for as long as it or a view of it lives, on every rank for itself.

    Collective over the group; the second call for the same memory, offset, shape, dtype and group
    maps nothing. On a GPU the first one must not be made inside a graph capture.

    Args:
        tensor: a contiguous tensor in symmetric memory, at the same place of its allocation and of
            the same shape and dtype on every rank; or a DTensor, see below.
        group: a ProcessGroup or its name. None means the default group; for a DTensor, the group
            of the mesh dimension that it is sharded over, which is also the only one allowed.

    Returns:
        For a tensor: shape ``[world_size, *tensor.shape]``. The last dimensions are contiguous. The
        first stride is the size of an allocation, rounded up to what the device maps (a page on the
        CPU, 2 MiB on a GPU). So the view of a tensor that fills an allocation of whole pages is
        contiguous; between slices of any other there lies a gap.

        For a DTensor sharded on dimension 0: the unsharded tensor. One tensor has one stride a
        dimension, so rows with a gap after every ``rows = shape[0] // world_size`` of them cannot
        be one dimension. The result therefore has the DTensor's own shape where no gap lies between
        the slices, where a rank has one row, or where there is one rank; everywhere else dimension
        0 is split by owner: ``[world_size, rows, *shape[1:]]``, with ``view[r, i]`` being row
        ``r * rows + i``. ``contiguous_view(dtensor.to_local(), group)`` has that shape always.

    Raises:
        ValueError: not in symmetric memory; not contiguous; a DTensor that is sharded on another
            dimension, over several or no mesh dimensions, or unevenly; this rank is not in the
            group; shapes, dtypes or places differ between ranks. What concerns several ranks is
            raised on each of them.
        NotImplementedError: the memory provider has no contiguous views.
    """
    if _is_dtensor(tensor):
        return _of_dtensor(tensor, group)
    return load().contiguous_view(tensor, _groups.resolve(group, "contiguous_view").group_name)


def _is_dtensor(tensor: Any) -> bool:
    # Whoever has one has imported it; importing it here would cost others a second.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _of_dtensor(tensor: Any, group: Any) -> torch.Tensor:
    mesh = tensor.device_mesh
    dimension = _sharded_mesh_dimension(tensor)
    if mesh.get_coordinate() is None:
        raise ValueError(f"contiguous_view: tensor: this rank is not in its mesh {mesh}")
    mesh_group = mesh.get_group(dimension)
    if group is not None:
        given = _groups.resolve(group, "contiguous_view")
        if given.group_name != mesh_group.group_name:
            raise ValueError(
                "contiguous_view: group: expected None or the group of the mesh dimension that the "
                f"DTensor is sharded over, {mesh_group.group_name!r}, got {given.group_name!r}"
            )
    rows, ranks = tensor.shape[0], mesh.size(dimension)
    if rows % ranks:
        raise ValueError(
            f"contiguous_view: tensor: expected as many rows on every rank, got a DTensor of "
            f"{rows} rows over {ranks} ranks"
        )
    return _joined(load().contiguous_view(tensor.detach().to_local(), mesh_group.group_name))


def _sharded_mesh_dimension(tensor: Any) -> int:
    """The one mesh dimension over which dimension 0 of the DTensor is sharded."""
    from torch.distributed.tensor import Replicate, Shard

    placements = tensor.placements
    given = f"got placements {tuple(placements)} of shape {tuple(tensor.shape)}"
    sharded = [index for index, one in enumerate(placements) if not isinstance(one, Replicate)]
    if len(sharded) != 1:
        number = "several" if sharded else "no"
        raise ValueError(
            "contiguous_view: tensor: expected a DTensor that is sharded over one mesh dimension, "
            f"{given}: over {number} mesh dimensions"
        )
    placement = placements[sharded[0]]
    if type(placement) is not Shard or placement.dim % tensor.ndim != 0:
        raise ValueError(
            "contiguous_view: tensor: expected a DTensor sharded on dimension 0 by Shard(0), "
            f"{given}"
        )
    return sharded[0]


def _joined(view: torch.Tensor) -> torch.Tensor:
    """`view` with its first two dimensions as one, where strides can say it."""
    ranks, rows = view.shape[:2]
    without_gap = view.stride(0) == rows * view.stride(1)
    if rows == 1 or ranks == 1 or without_gap or view.numel() == 0:
        return view.flatten(0, 1)
    return view


class SymmetricTensor(load().SymmetricTensor):
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
