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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from torch_symm.tools.bench.memory import PLAIN, Memory
from torch_symm.tools.bench.pattern import OPS, Pattern, count_wrong, poison
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
    layers: int = 32  # of a program
    memory: Memory = PLAIN

    @property
    def is_root(self) -> bool:
        """Tell whether this rank is the root of rooted collectives."""
        return self.rank == self.root


class Collective(ABC):
    """One collective on this rank with buffers for ``count`` elements. Not thread safe."""

    in_place_exists = True
    out_of_place_exists = True
    has_op = False
    # Whether the buffer holds one share of every rank.
    input_is_whole = False
    output_is_whole = False
    # Whether the root alone has an input, and whether it alone gets an output.
    from_root = False
    to_root = False
    # How many buffers it has at most.
    buffers = 2

    def __init__(self, context: CallContext, count: int, in_place: bool) -> None:
        self.context = context
        self.count = count
        self.in_place = in_place
        self.allocate()
        # The shares of each buffer, None where this rank has no such buffer.
        self.input_shares, self.output_shares = (
            list(buffer.chunk(context.world_size)) if buffer.numel() else None
            for buffer in (self.input, self.output)
        )

    @classmethod
    def shares(cls, world_size: int) -> int:
        """Return how many shares the larger buffer holds."""
        return world_size if cls.input_is_whole or cls.output_is_whole else 1

    @classmethod
    def count_of(cls, size_bytes: int, itemsize: int, world_size: int) -> int:
        """Return the count whose size comes closest to ``size_bytes`` from below, at least 1."""
        return max(size_bytes // itemsize // cls.shares(world_size), 1)

    @classmethod
    def size_of(cls, count: int, itemsize: int, world_size: int) -> int:
        """Return the bytes of the larger buffer, which the table calls size."""
        return count * itemsize * cls.shares(world_size)

    @classmethod
    def bus_factor(cls, world_size: int) -> float:
        """Return the factor from algorithm bandwidth to bus bandwidth.

        It makes the figure comparable with the speed of the links, whatever the number of ranks n:
        2 (n - 1) / n for all_reduce, (n - 1) / n where shares are concatenated, and 1 for
        broadcast, reduce and sendrecv.
        """
        whole = cls.input_is_whole or cls.output_is_whole
        return (world_size - 1) / world_size if whole else 1.0

    @classmethod
    def bandwidths(cls, world_size: int, size_bytes: int, time_us: float) -> tuple[float, float]:
        """Return algorithm and bus bandwidth in GB/s (10^9 bytes), as nccl-tests defines them.

        Algorithm bandwidth is the size of the operation, as of ``size_of``, divided by its time.
        """
        algorithm = size_bytes / (time_us * 1e3) if time_us > 0 else 0.0
        return algorithm, algorithm * cls.bus_factor(world_size)

    @property
    def repeatable(self) -> bool:
        """Tell whether several calls in a row leave the result of one."""
        return not (self.has_op and self.in_place)

    def allocate(self) -> None:
        """Make ``input`` and ``output``; in place, the smaller is this rank's part of the larger.

        Where a whole buffer is the root's, the other ranks have an empty one.
        """
        context, shares = self.context, self.shares(self.context.world_size)
        if shares > 1 and (self.from_root or self.to_root) and not context.is_root:
            shares = 0
        if self.in_place and shares:
            larger = self._empty(shares)
            own = larger.chunk(shares)[context.rank if shares > 1 else 0]
            self.input = larger if self.input_is_whole else own
            self.output = larger if self.output_is_whole else own
        else:
            self.input = self._empty(shares if self.input_is_whole else 1)
            self.output = self._empty(shares if self.output_is_whole else 1)

    @abstractmethod
    def call(self, group: dist.ProcessGroup) -> None:
        """Run the collective once and wait for it. Collective over ``group``."""

    def pattern(self, salt: int) -> Pattern:
        """Return the inputs of every rank for ``salt``."""
        op = self.context.op if self.has_op else "none"
        return Pattern(self.context.dtype, op, self.context.world_size, salt)

    def sources(self) -> Iterable[int]:
        """Return the ranks whose inputs this rank's output is made of, in the order there."""
        return [self.context.root] if self.from_root else range(self.context.world_size)

    def fill_input(self, pattern: Pattern) -> None:
        """Write this rank's contribution."""
        if not self.from_root or self.context.is_root:
            period = pattern.input_period(self.context.rank)
            self.input.copy_(self._values(pattern, period, 0, self.input.numel()))

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        """Return what ``output`` must hold after the call, or None where that is unspecified."""
        if self.to_root and not self.context.is_root:
            return None
        offset = self.context.rank * self.count if self.input_is_whole else 0
        if self.has_op:
            return self._values(pattern, pattern.reduced_period(), offset, self.count)
        periods = [pattern.input_period(rank) for rank in self.sources()]
        return torch.cat([self._values(pattern, one, offset, self.count) for one in periods])

    def prepare_check(self, pattern: Pattern) -> None:
        """Poison the output, then write the input, which may be part of it. Local."""
        poison(self.output)
        self.fill_input(pattern)

    def outcome(self, pattern: Pattern) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yield the name of a buffer, what a call has left in it, and what must be there. Local.

        Out of place, the input must be as it was.
        """
        expected = self.expected_output(pattern)
        if expected is not None:
            yield "output", self.output, expected
        if not self.in_place and self.input.numel():
            seen = self.input.clone()
            self.fill_input(pattern)
            yield "input was changed:", seen, self.input

    def wrong_elements(self, pattern: Pattern) -> int:
        """Return how many elements of this rank are wrong after a call. Local."""
        return sum(count_wrong(seen, expected) for _, seen, expected in self.outcome(pattern))

    def clear(self) -> None:
        """Zero the buffers, so that repeated reductions in place stay finite while timed."""
        self.input.zero_()
        self.output.zero_()

    def _empty(self, shares: int) -> torch.Tensor:
        context = self.context
        return context.memory.empty(shares * self.count, context.dtype, context.device)

    def _values(
        self, pattern: Pattern, period: np.ndarray, offset: int, count: int
    ) -> torch.Tensor:
        return pattern.tensor(period, offset, count, self.context.device)


class AllReduce(Collective):
    """Every rank gets the reduction of all vectors."""

    out_of_place_exists = False
    has_op = True

    @classmethod
    def bus_factor(cls, world_size: int) -> float:
        return 2 * (world_size - 1) / world_size

    def allocate(self) -> None:
        super().allocate()
        if self.context.memory.reduces_apart(self.input.nbytes):
            self.output = self._empty(1)

    def call(self, group: dist.ProcessGroup) -> None:
        dist.all_reduce(self.output, op=OPS[self.context.op], group=group)


class Reduce(Collective):
    """The root gets the reduction; the buffers of the others are unspecified afterwards."""

    out_of_place_exists = False
    has_op = True
    to_root = True

    def call(self, group: dist.ProcessGroup) -> None:
        dist.reduce(self.output, dst=self.context.root, op=OPS[self.context.op], group=group)


class Broadcast(Collective):
    """Every rank gets the root's vector."""

    out_of_place_exists = False
    from_root = True

    def call(self, group: dist.ProcessGroup) -> None:
        dist.broadcast(self.output, src=self.context.root, group=group)


class AllGather(Collective):
    """Every rank gets every rank's share; in place, the input is the rank's part of the output."""

    output_is_whole = True

    def call(self, group: dist.ProcessGroup) -> None:
        all_gather_tensor(self.output, self.input, group=group)


class ReduceScatter(Collective):
    """Rank r gets share r of the reduction; in place, the output is that part of the input."""

    has_op = True
    input_is_whole = True

    def call(self, group: dist.ProcessGroup) -> None:
        reduce_scatter_tensor(self.output, self.input, op=OPS[self.context.op], group=group)


class AllToAll(Collective):
    """Share s of rank r becomes share r of rank s."""

    in_place_exists = False
    input_is_whole = True
    output_is_whole = True

    def call(self, group: dist.ProcessGroup) -> None:
        dist.all_to_all_single(self.output, self.input, group=group)


class Gather(Collective):
    """The root gets every rank's share; in place, its own already stands in its output."""

    output_is_whole = True
    to_root = True

    def call(self, group: dist.ProcessGroup) -> None:
        dist.gather(self.input, self.output_shares, dst=self.context.root, group=group)


class Scatter(Collective):
    """Rank r gets share r of the root's vector; in place, the root's stays where it stands."""

    input_is_whole = True
    from_root = True

    def call(self, group: dist.ProcessGroup) -> None:
        dist.scatter(self.output, self.input_shares, src=self.context.root, group=group)


class SendRecv(Collective):
    """Every rank sends its vector to the next rank and receives that of the previous one."""

    in_place_exists = False

    def allocate(self) -> None:
        super().allocate()
        self.next_rank = (self.context.rank + 1) % self.context.world_size
        self.previous_rank = (self.context.rank - 1) % self.context.world_size

    def call(self, group: dist.ProcessGroup) -> None:
        if self.context.device.type == "cuda":
            # As a pair: NCCL's single sends of a ring would each wait for a receive behind them.
            sending = dist.P2POp(dist.isend, self.input, self.next_rank, group)
            receiving = dist.P2POp(dist.irecv, self.output, self.previous_rank, group)
            works = dist.batch_isend_irecv([sending, receiving])
        else:
            sending = dist.isend(self.input, self.next_rank, group)
            works = [sending, dist.irecv(self.output, self.previous_rank, group)]
        for work in works:
            work.wait()

    def sources(self) -> Iterable[int]:
        return [self.previous_rank]


class Barrier(Collective):
    """No rank leaves before every rank has entered; ``measure`` checks that through the store."""

    in_place_exists = False

    @classmethod
    def count_of(cls, size_bytes: int, itemsize: int, world_size: int) -> int:
        return 0

    def call(self, group: dist.ProcessGroup) -> None:
        group_barrier(group, self.context.device)


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
