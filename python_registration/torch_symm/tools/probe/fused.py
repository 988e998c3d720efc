"""The forms that join a matmul with a collective, as operations whose results are exact.

The right operand turns the order of four columns round, so a product has the values of its left
operand in other places, and what the bench knows of the collective holds for the rest.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from torch_symm import ops
from torch_symm.tools.bench.collectives import AllGather, AllReduce, Collective, ReduceScatter
from torch_symm.tools.bench.pattern import Pattern

_COLUMNS = 4
_PIECES = 3


class Fused(Collective):
    """What the forms have in common: matrices of four columns, and products that are turned."""

    in_place_exists = False

    @classmethod
    def count_of(cls, size_bytes: int, itemsize: int, world_size: int) -> int:
        elements = size_bytes // itemsize // cls.shares(world_size)
        return max(elements // _COLUMNS, 1) * _COLUMNS

    def allocate(self) -> None:
        super().allocate()
        options = {"dtype": self.context.dtype, "device": self.context.device}
        self._turn = torch.eye(_COLUMNS, **options).flip(1)
        self._weight = torch.ones(_COLUMNS, **options)
        self._matrix = self.input.view(-1, _COLUMNS)
        self._result = self.output.view(-1, _COLUMNS)

    def expected_output(self, pattern: Pattern) -> torch.Tensor | None:
        return super().expected_output(pattern).view(-1, _COLUMNS).flip(1).flatten()


class AllGatherMatmul(Fused, AllGather):
    """all_gather_matmul along the rows."""

    def call(self, group: dist.ProcessGroup) -> None:
        (product,) = ops.all_gather_matmul(self._matrix, [self._turn], 0, group, pieces=_PIECES)
        self._result.copy_(product)


class MatmulReduceScatter(Fused, ReduceScatter):
    """matmul_reduce_scatter along the rows."""

    def call(self, group: dist.ProcessGroup) -> None:
        self._result.copy_(
            ops.matmul_reduce_scatter(self._matrix, self._turn, "sum", 0, group, pieces=_PIECES)
        )


class MatmulAllReduce(Fused, AllReduce):
    """matmul_all_reduce, whose result takes the place of its left operand."""

    def call(self, group: dist.ProcessGroup) -> None:
        self._result.copy_(
            ops.matmul_all_reduce(self._matrix, self._turn, "sum", group, pieces=_PIECES)
        )


class AllReduceNorm(Fused, AllReduce):
    """all_reduce_rms_norm of a product, with nothing as residual.

    A norm is no whole number. The output is therefore the sum, plus what the norm differs by from
    torch's norm of that sum: nothing, bit by bit.
    """

    def call(self, group: dist.ProcessGroup) -> None:
        product = self._matrix @ self._turn
        normed, total = ops.all_reduce_rms_norm(
            product, self._weight, 1e-6, group, torch.zeros_like(product), pieces=_PIECES
        )
        expected = torch.rms_norm(total, [_COLUMNS], self._weight, 1e-6)
        self._result.copy_(total + (normed - expected))


FUSED: dict[str, type[Fused]] = {
    "all_gather_matmul": AllGatherMatmul,
    "matmul_reduce_scatter": MatmulReduceScatter,
    "matmul_all_reduce": MatmulAllReduce,
    "all_reduce_rms_norm": AllReduceNorm,
}
