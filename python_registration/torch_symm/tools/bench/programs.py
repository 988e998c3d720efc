"""Programs that the bench measures as it does collectives: what communication costs among matmuls.

A program has the interface of a collective. On PyTorch's fake backend, which returns at once, it
costs what it costs without communication: ``--program decode --against nccl,torch-symm,fake``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from torch_symm.tools.bench.collectives import Collective
from torch_symm.tools.bench.pattern import Pattern

HIDDEN = 4096
# Pairs of weights that a rank has; layers take them in turns. More than a GPU's cache holds.
_PAIRS = 8
_STRIDE = 5  # odd, and thus a permutation of HIDDEN positions


class DecodeStep(Collective):
    """One step of a tensor-parallel decoder: in each layer two pairs of matmuls, with an all_reduce
    after each pair.

    ``count`` is rows times HIDDEN. A rank has HIDDEN / world_size columns of the first weight of a
    pair and as many rows of the second. Weights are columns and rows of permutations, so that the
    result is a permutation of the input, exact in every dtype, and each rank's share is in it.
    """

    in_place_exists = False
    buffers = 5

    @classmethod
    def count_of(cls, size_bytes: int, itemsize: int, world_size: int) -> int:
        return max(size_bytes // (itemsize * HIDDEN), 1) * HIDDEN

    def allocate(self) -> None:
        super().allocate()
        context = self.context
        share = HIDDEN // context.world_size
        columns = torch.arange(share, device=context.device)
        own = context.rank * share + columns
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number in range(min(_PAIRS, 2 * context.layers)):
            first = torch.zeros(HIDDEN, share, dtype=context.dtype, device=context.device)
            second = torch.zeros(share, HIDDEN, dtype=context.dtype, device=context.device)
            first[_origin(own, number), columns] = 1
            second[columns, own] = 1
            self._pairs.append((first, second))
        rows = self.count // HIDDEN
        self._inner = torch.empty(rows, share, dtype=context.dtype, device=context.device)
        # By turns: what a rank adds, and where the sum is to be, which may be the same tensor.
        totals = [self.output, self._empty(1)]
        apart = context.memory.reduces_apart(self.output.nbytes)
        partials = [self._empty(1) for _ in totals] if apart else totals
        self._sums = list(zip(partials, totals, strict=True))

    def call(self, group: dist.ProcessGroup) -> None:
        self.run(lambda partial, total: dist.all_reduce(total, group=group))

    def run(self, add_up: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        """Run the step with that all_reduce, which gets what a rank adds and where the sum is."""
        rows = self.input.view(-1, HIDDEN)
        halves = 2 * self.context.layers
        for half in range(halves):
            first, second = self._pairs[half % len(self._pairs)]
            partial, total = self._sums[(halves - half - 1) % 2]
            torch.mm(rows, first, out=self._inner)
            torch.mm(self._inner, second, out=partial.view(-1, HIDDEN))
            add_up(partial, total)
            rows = total.view(-1, HIDDEN)

    def fill_input(self, pattern: Pattern) -> None:
        """Write the rows, which are the same on all ranks."""
        self.input.copy_(self._values(pattern, pattern.input_period(0), 0, self.count))

    def expected_output(self, pattern: Pattern) -> torch.Tensor:
        rows = self._values(pattern, pattern.input_period(0), 0, self.count).view(-1, HIDDEN)
        places = torch.arange(HIDDEN, device=rows.device)
        for half in range(2 * self.context.layers):
            rows = rows[:, _origin(places, half % len(self._pairs))]
        return rows.flatten()


def _origin(places: torch.Tensor, number: int) -> torch.Tensor:
    """Return where a pair of matmuls takes what it puts into ``places``."""
    return (_STRIDE * places + number) % HIDDEN


PROGRAMS: dict[str, type[Collective]] = {"decode": DecodeStep}
