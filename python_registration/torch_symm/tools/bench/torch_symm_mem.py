"""PyTorch's own kernels over symmetric memory beside the backends of c10d.

They are operators, not a backend: each is called on buffers of PeerMemory, as a program would that
uses them. What there is besides (copies of peers' buffers between two barriers) is what PyTorch's
``_low_contention_all_gather`` does, without its stream and its allocation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from torch_symm.tools.bench.collectives import Collective
from torch_symm.tools.bench.memory import PeerMemory
from torch_symm.tools.bench.programs import DecodeStep
from torch_symm.tools.ranks.device import group_barrier

_SUM = "sum"


class TorchSymmGroup:
    """All ranks of ``process_group``, whose operations have their buffers in ``memory``."""

    def __init__(self, process_group: dist.ProcessGroup, memory: PeerMemory) -> None:
        self._process_group = process_group
        self._memory = memory
        self._name = process_group.group_name

    def barrier(self) -> None:
        """Wait for all ranks, on the host. Collective."""
        group_barrier(self._process_group, self._memory.device)

    def call_of(self, operation: Collective) -> Callable[[], object]:
        """Return what runs ``operation`` once. Raises NotImplementedError for what is not there."""
        make = getattr(self, f"_{type(operation).__name__.lower()}", None)
        if make is None:
            raise NotImplementedError(f"PyTorch has no {type(operation).__name__} there")
        return make(operation)

    def _sum(self, partial: torch.Tensor, total: torch.Tensor) -> None:
        """Add up all ranks' ``partial`` into ``total``, which is the same tensor or another one."""
        if partial.data_ptr() == total.data_ptr():
            torch.ops.symm_mem.two_shot_all_reduce_(partial, _SUM, self._name)
        else:
            torch.ops.symm_mem.one_shot_all_reduce_out(partial, _SUM, self._name, total)

    def _allreduce(self, operation: Collective) -> Callable[[], object]:
        return lambda: self._sum(operation.input, operation.output)

    def _reducescatter(self, operation: Collective) -> Callable[[], object]:
        given, output = operation.input, operation.output
        return lambda: torch.ops.symm_mem.reduce_scatter_out(given, self._name, False, output)

    def _allgather(self, operation: Collective) -> Callable[[], object]:
        handle, own, count = self._memory.handle, operation.input, operation.count
        rank, size = handle.rank, handle.world_size
        # In place a share stands at its rank's part of the output.
        step = count if operation.in_place else 0
        pairs = []
        for back in range(1 if operation.in_place else 0, size):
            peer = (rank - back) % size
            place = own.storage_offset() + (peer - rank) * step
            share = handle.get_buffer(peer, (count,), own.dtype, place)
            pairs.append((operation.output_shares[peer], share))

        def pull() -> None:
            handle.barrier(channel=0)
            for part, share in pairs:
                part.copy_(share)
            handle.barrier(channel=0)

        return pull

    def _barrier(self, operation: Collective) -> Callable[[], object]:
        del operation
        return lambda: self._memory.handle.barrier(channel=0)

    def _decodestep(self, operation: DecodeStep) -> Callable[[], object]:
        return lambda: operation.run(self._sum)
