"""The operations that are examined: those of the bench, further forms of them, and the fused ones.

The root of rooted operations is the last rank, so that a root that is silently rank 0 shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from torch_symm.tools.bench.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    CallContext,
    Collective,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
    SendRecv,
    all_gather_tensor,
)
from torch_symm.tools.bench.pattern import OPS, Pattern
from torch_symm.tools.probe.fused import FUSED, Fused


class AllGatherList(AllGather):
    """all_gather into a list of tensors."""

    def call(self, group: dist.ProcessGroup) -> None:
        dist.all_gather(self.output_shares, self.input, group=group)


class ReduceScatterList(ReduceScatter):
    """reduce_scatter from a list of tensors."""

    def call(self, group: dist.ProcessGroup) -> None:
        op = OPS[self.context.op]
        dist.reduce_scatter(self.output, self.input_shares, op=op, group=group)


class AllToAllList(AllToAll):
    """all_to_all between lists of tensors."""

    def call(self, group: dist.ProcessGroup) -> None:
        dist.all_to_all(self.output_shares, self.input_shares, group=group)


class AllToAllUneven(AllToAll):
    """all_to_all_single with splits that differ between all pairs of neighbours, some empty."""

    def _elements(self, sender: int, receiver: int) -> int:
        return self.count * ((sender + 2 * receiver) % 3)

    def allocate(self) -> None:
        ranks = range(self.context.world_size)
        self._sent = [self._elements(self.context.rank, peer) for peer in ranks]
        self._received = [self._elements(peer, self.context.rank) for peer in ranks]
        options = {"dtype": self.context.dtype, "device": self.context.device}
        self.input = torch.empty(sum(self._sent), **options)
        self.output = torch.empty(sum(self._received), **options)

    def call(self, group: dist.ProcessGroup) -> None:
        dist.all_to_all_single(self.output, self.input, self._received, self._sent, group=group)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        rank = self.context.rank
        shares = []
        for peer, elements in enumerate(self._received):
            offset = sum(self._elements(peer, earlier) for earlier in range(rank))
            period = pattern.input_period(peer)
            shares.append(self._values(pattern, period, offset, elements))
        return torch.cat(shares)


class CoalescedAllReduce(AllReduce):
    """Three all_reduces of unequal, unaligned parts as one coalesced call."""

    def call(self, group: dist.ProcessGroup) -> None:
        first = self.count // 3 + 1
        with _coalescing_manager(group):
            for part in (self.output[:first], self.output[first:-1], self.output[-1:]):
                dist.all_reduce(part, op=OPS[self.context.op], group=group)


class AsyncAllReduce(AllReduce):
    """all_reduce with async_op, waited for within the capture."""

    def call(self, group: dist.ProcessGroup) -> None:
        work = dist.all_reduce(self.output, op=OPS[self.context.op], group=group, async_op=True)
        work.wait()


class Several(Collective):
    """all_reduce, a kernel of torch, all_gather and all_to_all, each on the result before it.

    The sum S of the inputs becomes S + r on rank r; the first half of the output gathers these,
    and the exchange of its shares fills the second half with S + r on rank r.
    """

    in_place_exists = False
    has_op = True
    output_is_whole = True

    def allocate(self) -> None:
        self.input, self._sum = self._empty(1), self._empty(1)
        self.output = self._empty(2 * self.context.world_size)
        self._gathered_part, self._exchanged_part = self.output.chunk(2)

    def call(self, group: dist.ProcessGroup) -> None:
        self._sum.copy_(self.input)
        dist.all_reduce(self._sum, group=group)
        self._sum.add_(self.context.rank)
        all_gather_tensor(self._gathered_part, self._sum, group=group)
        dist.all_to_all_single(self._exchanged_part, self._gathered_part, group=group)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        ranks = [*range(self.context.world_size), *[self.context.rank] * self.context.world_size]
        period = pattern.reduced_period()
        return torch.cat([self._values(pattern, period + rank, 0, self.count) for rank in ranks])


@dataclass(frozen=True)
class Operation:
    """One operation by the name that the summary shows.

    ``cold`` examines the first call of a group under capture instead, which must be refused.
    """

    kind: type[Collective]
    op: str = "sum"
    cold: bool = False

    @property
    def of_symm(self) -> bool:
        """Tell whether it is for groups of symm alone."""
        return self.cold or issubclass(self.kind, Fused)

    def make(
        self, rank: int, world_size: int, dtype: torch.dtype, device: torch.device, size: int
    ) -> Collective:
        """Return the operation of ``rank`` with buffers of about ``size`` bytes."""
        context = CallContext(rank, world_size, world_size - 1, self.op, dtype, device)
        # At least four elements, so that every part of a split is there.
        count = max(self.kind.count_of(size, dtype.itemsize, world_size), 4)
        in_place = not self.kind.out_of_place_exists
        return self.kind(context, 0 if self.kind is Barrier else count, in_place)


OPERATIONS: dict[str, Operation] = {
    "all_reduce_sum": Operation(AllReduce, "sum"),
    "all_reduce_max": Operation(AllReduce, "max"),
    "all_reduce_avg": Operation(AllReduce, "avg"),
    "all_gather_into_tensor": Operation(AllGather),
    "all_gather_list": Operation(AllGatherList),
    "reduce_scatter_tensor": Operation(ReduceScatter),
    "reduce_scatter_list": Operation(ReduceScatterList),
    "all_to_all_single": Operation(AllToAll),
    "all_to_all_single_uneven": Operation(AllToAllUneven),
    "all_to_all_list": Operation(AllToAllList),
    "broadcast": Operation(Broadcast),
    "reduce": Operation(Reduce),
    "gather": Operation(Gather),
    "scatter": Operation(Scatter),
    "batch_isend_irecv_ring": Operation(SendRecv),
    "barrier": Operation(Barrier),
    "all_reduce_coalesced": Operation(CoalescedAllReduce),
    "all_reduce_async": Operation(AsyncAllReduce),
    "several_in_one_graph": Operation(Several),
    **{name: Operation(kind) for name, kind in FUSED.items()},
    "cold_all_reduce": Operation(AllReduce, cold=True),
    "cold_batch_isend_irecv": Operation(SendRecv, cold=True),
}
