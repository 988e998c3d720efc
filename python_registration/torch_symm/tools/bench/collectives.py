"""The measured collectives: buffers, the call through ``torch.distributed``, expected results.

Every class describes one collective for one rank. ``input`` and ``output`` are the rank's
buffers; where a variant runs in place they overlap as the operation allows. Only operations that
``torch.distributed`` offers are measured: all_reduce, reduce and broadcast exist in place only,
all_to_all and sendrecv out of place only, and the others both ways.

``count`` is, as in nccl-tests, the elements of one rank's share where the operation concatenates
shares, and the elements of the vector otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from torch_symm.tools.bench.config import OPS
from torch_symm.tools.bench.pattern import Pattern, count_wrong, poison
from torch_symm.tools.ranks.device import group_barrier

# torch 2.13 renamed these two; the old names warn there and are the only ones before.
all_gather_tensor = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_tensor = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class CallContext:
    """What a collective is called with, on one rank of ``world_size``."""

    rank: int
    world_size: int
    root: int
    op: str
    dtype: torch.dtype
    device: torch.device

    @property
    def is_root(self) -> bool:
        """Tell whether this rank is the root of rooted collectives."""
        return self.rank == self.root


class Collective(ABC):
    """One collective on this rank with buffers for ``count`` elements. Not thread safe."""

    in_place_exists = True
    out_of_place_exists = True
    has_op = False
    has_root = False
    # Whether the larger buffer holds one share of every rank.
    concatenates = True
    # Whether a call reduces into its own input where it is in place, so that a second call on the
    # same buffers gives another result.
    reduces_into_input = False

    def __init__(self, context: CallContext, count: int, in_place: bool) -> None:
        self.context = context
        self.count = count
        self.in_place = in_place
        self.input = torch.empty(0, dtype=context.dtype, device=context.device)
        self.output = torch.empty(0, dtype=context.dtype, device=context.device)
        self.allocate()

    @classmethod
    def count_of(cls, size_bytes: int, itemsize: int, world_size: int) -> int:
        """Return the count whose size comes closest to ``size_bytes`` from below, at least 1."""
        shares = world_size if cls.concatenates else 1
        return max(size_bytes // itemsize // shares, 1)

    @classmethod
    def size_of(cls, count: int, itemsize: int, world_size: int) -> int:
        """Return the bytes of the larger buffer, which the table calls size."""
        return count * itemsize * (world_size if cls.concatenates else 1)

    @property
    def repeatable(self) -> bool:
        """Tell whether several calls in a row leave the result of one."""
        return not (self.reduces_into_input and self.in_place)

    @abstractmethod
    def allocate(self) -> None:
        """Make ``input`` and ``output``."""

    @abstractmethod
    def call(self, group: dist.ProcessGroup) -> None:
        """Run the collective once and wait for it. Collective over ``group``."""

    @abstractmethod
    def fill_input(self, pattern: Pattern) -> None:
        """Write this rank's contribution."""

    @abstractmethod
    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        """Return what ``output`` must hold after the call, or None where that is unspecified."""

    def prepare_check(self, pattern: Pattern) -> None:
        """Poison the output, then write the input, which may be part of it. Local."""
        poison(self.output)
        self.fill_input(pattern)

    def wrong_elements(self, pattern: Pattern) -> int:
        """Return how many output elements of this rank are wrong after a call. Local.

        Out of place, changed elements of the input count as well.
        """
        expected = self.expected_output(pattern)
        wrong = 0 if expected is None else count_wrong(self.output, expected)
        if not self.in_place and self.input.numel():
            seen = self.input.clone()
            self.fill_input(pattern)
            wrong += count_wrong(seen, self.input)
        return wrong

    def clear(self) -> None:
        """Zero the buffers, so that repeated reductions in place stay finite while timed."""
        self.input.zero_()
        self.output.zero_()

    def _empty(self, shares: int) -> torch.Tensor:
        context = self.context
        return torch.empty(shares * self.count, dtype=context.dtype, device=context.device)

    def _share(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        return tensor[rank * self.count : (rank + 1) * self.count]

    def _shares(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return list(tensor.chunk(self.context.world_size))

    def _write(self, target: torch.Tensor, pattern: Pattern, rank: int) -> None:
        target.copy_(self._values(pattern, pattern.input_period(rank), 0, target.numel()))

    def _values(
        self, pattern: Pattern, period: np.ndarray, offset: int, count: int
    ) -> torch.Tensor:
        return pattern.tensor(period, offset, count, self.context.device)

    def _gathered(self, pattern: Pattern, share: int | None) -> torch.Tensor:
        """Return one share of every rank's input: share ``share``, or the only one."""
        offset = 0 if share is None else share * self.count
        ranks = range(self.context.world_size)
        return torch.cat(
            [
                self._values(pattern, pattern.input_period(rank), offset, self.count)
                for rank in ranks
            ]
        )


class AllReduce(Collective):
    """Every rank gets the reduction of all vectors."""

    out_of_place_exists = False
    has_op = True
    concatenates = False
    reduces_into_input = True

    def allocate(self) -> None:
        self.input = self.output = self._empty(1)

    def call(self, group: dist.ProcessGroup) -> None:
        dist.all_reduce(self.output, op=OPS[self.context.op], group=group)

    def fill_input(self, pattern: Pattern) -> None:
        self._write(self.input, pattern, self.context.rank)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return self._values(pattern, pattern.reduced_period(), 0, self.count)


class Reduce(AllReduce):
    """The root gets the reduction; the buffers of the others are unspecified afterwards."""

    has_root = True

    def call(self, group: dist.ProcessGroup) -> None:
        dist.reduce(self.output, dst=self.context.root, op=OPS[self.context.op], group=group)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return super().expected_output(pattern) if self.context.is_root else None


class Broadcast(Collective):
    """Every rank gets the root's vector."""

    out_of_place_exists = False
    has_root = True
    concatenates = False

    def allocate(self) -> None:
        self.input = self.output = self._empty(1)

    def call(self, group: dist.ProcessGroup) -> None:
        dist.broadcast(self.output, src=self.context.root, group=group)

    def fill_input(self, pattern: Pattern) -> None:
        if self.context.is_root:
            self._write(self.input, pattern, self.context.rank)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return self._values(pattern, pattern.input_period(self.context.root), 0, self.count)


class AllGather(Collective):
    """Every rank gets every rank's share; in place, the input is the rank's part of the output."""

    def allocate(self) -> None:
        self.output = self._empty(self.context.world_size)
        self.input = (
            self._share(self.output, self.context.rank) if self.in_place else self._empty(1)
        )

    def call(self, group: dist.ProcessGroup) -> None:
        all_gather_tensor(self.output, self.input, group=group)

    def fill_input(self, pattern: Pattern) -> None:
        self._write(self.input, pattern, self.context.rank)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return self._gathered(pattern, None)


class ReduceScatter(Collective):
    """Rank r gets share r of the reduction; in place, the output is that part of the input."""

    has_op = True
    reduces_into_input = True

    def allocate(self) -> None:
        self.input = self._empty(self.context.world_size)
        self.output = (
            self._share(self.input, self.context.rank) if self.in_place else self._empty(1)
        )

    def call(self, group: dist.ProcessGroup) -> None:
        reduce_scatter_tensor(self.output, self.input, op=OPS[self.context.op], group=group)

    def fill_input(self, pattern: Pattern) -> None:
        self._write(self.input, pattern, self.context.rank)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return self._values(
            pattern, pattern.reduced_period(), self.context.rank * self.count, self.count
        )


class AllToAll(Collective):
    """Share s of rank r becomes share r of rank s."""

    in_place_exists = False

    def allocate(self) -> None:
        self.input = self._empty(self.context.world_size)
        self.output = self._empty(self.context.world_size)

    def call(self, group: dist.ProcessGroup) -> None:
        dist.all_to_all_single(self.output, self.input, group=group)

    def fill_input(self, pattern: Pattern) -> None:
        self._write(self.input, pattern, self.context.rank)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return self._gathered(pattern, self.context.rank)


class Gather(Collective):
    """The root gets every rank's share; in place, its own already stands in its output."""

    has_root = True

    def allocate(self) -> None:
        if self.context.is_root:
            self.output = self._empty(self.context.world_size)
        shared = self.in_place and self.context.is_root
        self.input = self._share(self.output, self.context.rank) if shared else self._empty(1)
        self._list = self._shares(self.output) if self.context.is_root else None

    def call(self, group: dist.ProcessGroup) -> None:
        dist.gather(self.input, self._list, dst=self.context.root, group=group)

    def fill_input(self, pattern: Pattern) -> None:
        self._write(self.input, pattern, self.context.rank)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return self._gathered(pattern, None) if self.context.is_root else None


class Scatter(Collective):
    """Rank r gets share r of the root's vector; in place, the root's stays where it stands."""

    has_root = True

    def allocate(self) -> None:
        if self.context.is_root:
            self.input = self._empty(self.context.world_size)
        shared = self.in_place and self.context.is_root
        self.output = self._share(self.input, self.context.rank) if shared else self._empty(1)
        self._list = self._shares(self.input) if self.context.is_root else None

    def call(self, group: dist.ProcessGroup) -> None:
        dist.scatter(self.output, self._list, src=self.context.root, group=group)

    def fill_input(self, pattern: Pattern) -> None:
        if self.context.is_root:
            self._write(self.input, pattern, self.context.rank)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        offset = self.context.rank * self.count
        return self._values(pattern, pattern.input_period(self.context.root), offset, self.count)


class SendRecv(Collective):
    """Every rank sends its vector to the next rank and receives that of the previous one."""

    in_place_exists = False
    concatenates = False

    def allocate(self) -> None:
        self.input, self.output = self._empty(1), self._empty(1)
        self._next = (self.context.rank + 1) % self.context.world_size
        self._previous = (self.context.rank - 1) % self.context.world_size

    def call(self, group: dist.ProcessGroup) -> None:
        if self.context.device.type == "cuda":
            # As a pair: NCCL's single sends of a ring would each wait for a receive behind them.
            sending = dist.P2POp(dist.isend, self.input, self._next, group)
            receiving = dist.P2POp(dist.irecv, self.output, self._previous, group)
            works = dist.batch_isend_irecv([sending, receiving])
        else:
            sending = dist.isend(self.input, self._next, group)
            works = [sending, dist.irecv(self.output, self._previous, group)]
        for work in works:
            work.wait()

    def fill_input(self, pattern: Pattern) -> None:
        self._write(self.input, pattern, self.context.rank)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return self._values(pattern, pattern.input_period(self._previous), 0, self.count)


class Barrier(Collective):
    """No rank leaves before every rank has entered; ``measure`` checks that through the store."""

    in_place_exists = False

    @classmethod
    def count_of(cls, size_bytes: int, itemsize: int, world_size: int) -> int:
        return 0

    def allocate(self) -> None:
        """A barrier has no buffers."""

    def call(self, group: dist.ProcessGroup) -> None:
        group_barrier(group, self.context.device)

    def fill_input(self, pattern: Pattern) -> None:
        """A barrier has no input."""

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return None


CLASSES: dict[str, type[Collective]] = {
    "all_reduce": AllReduce,
    "reduce": Reduce,
    "broadcast": Broadcast,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "gather": Gather,
    "scatter": Scatter,
    "sendrecv": SendRecv,
    "barrier": Barrier,
}
