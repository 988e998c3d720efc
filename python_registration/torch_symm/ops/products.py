"""The operators of matmuls: what each checks, allocates and hands to the pieces.

A call with fake tensors, by which a compiler learns shapes and strides, passes the same checks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_symm import ccl
from torch_symm.ops import beside
from torch_symm.ops import pieces as cut
from torch_symm.ops.arguments import Caller, Rows, has_no_data
from torch_symm.ops.scaling import Scales


@dataclasses.dataclass
class Gather:
    """An all_gather_matmul, which is checked when it is made. With `scales` its operands are
    scaled."""

    call: Caller
    a_shard: Tensor
    bs: Sequence[Tensor]
    dim: int
    pieces: int | None
    scales: Scales | None = None

    def __post_init__(self) -> None:
        call, a_shard = self.call, self.a_shard
        call.factors("a_shard", a_shard, self.bs, "bs", one_dtype=self.scales is None)
        self.dim = call.dimension("gather_dim", self.dim, a_shard.dim())
        if self.scales is not None:
            expected = "one of rows, as a row of several ranks has no one scale"
            call.require(not self.sums_over, "gather_dim", expected, self.dim)
        width = a_shard.shape[-1] * (call.world_size if self.sums_over else 1)
        for number, b in enumerate(self.bs):
            call.inner("the gathered a_shard", width, f"bs[{number}]", b)
        call.pieces(self.pieces)
        if self.scales is None:
            call.multiplies("a_shard", a_shard)
        else:
            self.scales.check(call, "a_shard", a_shard, self.bs)

    @property
    def sums_over(self) -> bool:
        """Whether the gathered dimension is the one that products sum over."""
        return self.dim == self.a_shard.dim() - 1

    @property
    def size(self) -> int:
        """Of the gathered dimension."""
        return self.call.world_size * self.a_shard.shape[self.dim]

    def carry_out(self, return_a: bool) -> tuple[Tensor, list[Tensor]]:
        """(gathered matrix, products). Collective."""
        if has_no_data(self.a_shard):
            a, products = self._fake()
        else:
            a, products = self._after_gather() if self.sums_over else self._in_pieces(return_a)
        return a if return_a else self.a_shard.new_empty(0), products

    def _in_pieces(self, return_a: bool) -> tuple[Tensor | None, list[Tensor]]:
        rows, scales = Rows.of(self.a_shard, self.dim), self.scales
        world_size, device = self.call.world_size, self.a_shard.device.type
        shards = [rows.matrix(t).contiguous() for t in (self.a_shard, *row_scales(scales))]
        count = len(shards[0])
        dtype = self.a_shard.dtype if scales is None else scales.out_dtype
        products = [
            shards[0].new_empty(world_size, count, b.shape[1], dtype=dtype) for b in self.bs
        ]
        multiply = cut.matmul(self.bs) if scales is None else scales.multiply(self.bs)
        sizes = (count, shards[0].nbytes, device, world_size, grain_of(scales, device))
        pieces = cut.count(self.pieces, "gather", *sizes)
        wholes: list[Tensor | None] = [None] * len(shards)
        if return_a or cut.comes_into_wholes(device, pieces):
            wholes = [shard.new_empty(world_size, *shard.shape) for shard in shards]
        cut.gather_and_multiply(self.call.group, shards, wholes, products, multiply, pieces)
        a, *results = (
            None if t is None else rows.tensor(t.flatten(0, 1), self.size)
            for t in (wholes[0], *products)
        )
        return a, results

    def _after_gather(self) -> tuple[Tensor, list[Tensor]]:
        """One after the other: the sum in pieces would have other bits than the whole product."""
        shard = self.a_shard.movedim(-1, 0).contiguous()
        whole = shard.new_empty(self.size, *shard.shape[1:])
        ccl.all_gather(whole, shard, self.call.group)
        a = whole.movedim(0, -1)
        matrix = a.flatten(0, -2)
        return a, [torch.mm(matrix, b).view(*a.shape[:-1], b.shape[1]) for b in self.bs]

    def _fake(self) -> tuple[Tensor, list[Tensor]]:
        front = self.a_shard.movedim(self.dim, 0)
        a = front.new_empty(self.size, *front.shape[1:]).movedim(0, self.dim)
        if self.sums_over:
            return a, [a.new_empty(*a.shape[:-1], b.shape[1]) for b in self.bs]
        dtype, inner = self.scales.out_dtype if self.scales else a.dtype, front.shape[1:-1]
        products = [a.new_empty(self.size, *inner, b.shape[1], dtype=dtype) for b in self.bs]
        return a, [product.movedim(0, self.dim) for product in products]


@dataclasses.dataclass
class Scatter:
    """A matmul_reduce_scatter, which is checked when it is made. With `scales` its operands are
    scaled."""

    call: Caller
    a: Tensor
    b: Tensor
    op: str
    dim: int
    pieces: int | None
    scales: Scales | None = None

    def __post_init__(self) -> None:
        call, a, b = self.call, self.a, self.b
        call.factors("a", a, [b], one_dtype=self.scales is None)
        call.inner("a", a.shape[-1], "b", b)
        call.op(self.op)
        self.dim = call.dimension("scatter_dim", self.dim, a.dim())
        size, expected = (
            self.shape[self.dim],
            f"a size that the world size {call.world_size} divides",
        )
        shape = f"{size}, of the product's {tuple(self.shape)}"
        call.require(size % call.world_size == 0, "scatter_dim", expected, shape)
        call.pieces(self.pieces)
        if self.scales is None:
            call.multiplies("a", a)
        else:
            self.scales.check(call, "a", a, [b])

    @property
    def shape(self) -> list[int]:
        """Of the product before it is scattered."""
        return [*self.a.shape[:-1], self.b.shape[1]]

    @property
    def dtype(self) -> torch.dtype:
        return self.a.dtype if self.scales is None else self.scales.out_dtype

    @property
    def by_columns(self) -> bool:
        return self.dim == self.a.dim() - 1

    def carry_out(self) -> Tensor:
        """This rank's share of the combined products. Collective."""
        shape, world_size = self.shape, self.call.world_size
        shape[self.dim] //= world_size
        front = 0 if self.by_columns else self.dim  # the dimension that is cut into pieces
        if has_no_data(self.a):
            in_front = [shape.pop(front), *shape]
            return self.a.new_empty(in_front, dtype=self.dtype).movedim(0, front)
        rows = Rows.of(self.a, front)
        lefts = [rows.matrix(t) for t in (self.a, *row_scales(self.scales))]
        count = len(lefts[0]) if self.by_columns else len(lefts[0]) // world_size
        output = self.a.new_empty(count, shape[-1], dtype=self.dtype)
        scales, device = self.scales, self.a.device.type
        multiply = cut.matmul([self.b]) if scales is None else scales.multiply([self.b])
        partial = functools.partial(
            self._columns if self.by_columns else self._rows, lefts, multiply
        )
        sizes = (count, output.nbytes, device, world_size, grain_of(scales, device))
        adds_up = not self.by_columns and cut.adds_up_shares(device, self.dtype, self.op)
        pieces = cut.count(self.pieces, "scatter" if adds_up else "reduce", *sizes)
        group = self.call.group
        if adds_up and pieces > 1:
            share = functools.partial(self._share, lefts, multiply)
            bounds = cut.travelling(count, pieces)
            beside.multiply_and_scatter(group, output, share, bounds, self.call.name)
        else:
            cut.multiply_and_scatter(group, output, partial, self.op, pieces)
        return rows.tensor(output, shape[front])

    def _share(
        self, lefts: Sequence[Tensor], multiply: cut.Multiply, peer: int, rows: slice
    ) -> Tensor:
        """Those rows of one rank's share."""
        first = peer * (len(lefts[0]) // self.call.world_size)
        product = self.a.new_empty(rows.stop - rows.start, self.b.shape[1], dtype=self.dtype)
        multiply([left[first + rows.start : first + rows.stop] for left in lefts], [product])
        return product

    def _rows(self, lefts: Sequence[Tensor], multiply: cut.Multiply, rows: slice) -> Tensor:
        """Those rows of everybody's share."""
        world_size, width = self.call.world_size, self.b.shape[1]
        shares = [left.unflatten(0, (world_size, len(left) // world_size)) for left in lefts]
        count = rows.stop - rows.start
        product = self.a.new_empty(world_size, count, width, dtype=self.dtype)
        if count == shares[0].shape[1]:
            multiply(lefts, [product.flatten(0, 1)])
        else:
            for peer in range(world_size):
                multiply([share[peer, rows] for share in shares], [product[peer]])
        return product

    def _columns(self, lefts: Sequence[Tensor], multiply: cut.Multiply, rows: slice) -> Tensor:
        """Everybody's columns of those rows."""
        count, width, world_size = rows.stop - rows.start, self.b.shape[1], self.call.world_size
        product = lefts[0].new_empty(count, width, dtype=self.dtype)
        multiply([left[rows] for left in lefts], [product])
        return product.unflatten(1, (world_size, width // world_size)).movedim(1, 0).contiguous()


def grain_of(scales: Scales | None, device: str) -> int:
    """Rows that a piece must have."""
    return cut.GRAIN if device == "cuda" and row_scales(scales) else 1


def row_scales(scales: Scales | None) -> list[Tensor]:
    """The left operand's scales where it has one for each row, which travel as the rows do."""
    return [scales.a] if scales is not None and scales.by_row else []


def all_gather_matmul(
    a_shard: Tensor,
    bs: list[Tensor],
    gather_dim: int,
    group_name: str,
    return_a: bool = False,
    pieces: int | None = None,
) -> tuple[Tensor, list[Tensor]]:
    call = Caller.of("all_gather_matmul", group_name, a_shard, "a_shard")
    return Gather(call, a_shard, bs, gather_dim, pieces).carry_out(return_a)


def all_gather_scaled_matmul(
    a_shard: Tensor,
    bs: list[Tensor],
    a_scale: Tensor,
    b_scales: list[Tensor],
    gather_dim: int,
    group_name: str,
    out_dtype: torch.dtype | None = None,
    return_a: bool = False,
    pieces: int | None = None,
) -> tuple[Tensor, list[Tensor]]:
    call = Caller.of("all_gather_scaled_matmul", group_name, a_shard, "a_shard")
    scales = Scales(a_scale, b_scales, out_dtype or torch.bfloat16)
    return Gather(call, a_shard, bs, gather_dim, pieces, scales).carry_out(return_a)


def matmul_reduce_scatter(
    a: Tensor, b: Tensor, op: str, scatter_dim: int, group_name: str, pieces: int | None = None
) -> Tensor:
    call = Caller.of("matmul_reduce_scatter", group_name, a, "a")
    return Scatter(call, a, b, op, scatter_dim, pieces).carry_out()


def scaled_matmul_reduce_scatter(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    op: str,
    scatter_dim: int,
    group_name: str,
    out_dtype: torch.dtype | None = None,
    pieces: int | None = None,
) -> Tensor:
    call = Caller.of("scaled_matmul_reduce_scatter", group_name, a, "a")
    scales = Scales(a_scale, [b_scale], out_dtype or torch.bfloat16)
    return Scatter(call, a, b, op, scatter_dim, pieces, scales).carry_out()


def matmul_all_reduce(
    a: Tensor, b: Tensor, op: str, group_name: str, pieces: int | None = None
) -> Tensor:
    call = Caller.of("matmul_all_reduce", group_name, a, "a")
    call.factors("a", a, [b])
    call.inner("a", a.shape[-1], "b", b)
    call.op(op)
    call.pieces(pieces)
    call.multiplies("a", a)
    output = a.new_empty(*a.shape[:-1], b.shape[1])
    if has_no_data(a):
        return output
    left, product = a.flatten(0, -2), output.flatten(0, -2)

    def multiply(rows: slice) -> None:
        torch.mm(left[rows], b, out=product[rows])

    device, size = a.device.type, call.world_size
    adds_up = len(left) % size == 0 and cut.adds_up_shares(device, a.dtype, op)
    rows, kind = (len(left) // size, "all_reduce") if adds_up else (len(left), "reduce")
    number = cut.count(pieces, kind, rows, product.nbytes // size, device, size)
    if adds_up and number > 1:
        bounds = cut.travelling(rows, number)
        beside.multiply_and_reduce(call.group, product, lambda part: left[part] @ b, bounds)
    else:
        cut.multiply_and_reduce(call.group, product, multiply, op, number)
    return output
