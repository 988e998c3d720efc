"""torch_symm.ops: products of 8 bit operands with scales."""

import pytest
import torch

from fused import GROUPS, placed, same, small
from harness import DEVICE, IS_SYMM, check
from symmetric import TORCH, destroy, member_of_each

FP8 = torch.float8_e4m3fn

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not IS_SYMM, reason="for groups of symm"),
]


def powers(shape, rank: int) -> torch.Tensor:
    """Scales that round nothing."""
    count = int(torch.tensor(shape).prod())
    return 2.0 ** (torch.arange(count) % 3 + rank % 2 - 1).view(shape)


def operands(shape, rank, salt, by_row):
    """(values, scale) of a left operand."""
    scale = powers((*shape[:-1], 1), rank) if by_row else torch.tensor(0.5)
    return small(shape, rank, salt), scale


def right(k, n, salt, by_row):
    """(values, scale, what the operators take)"""
    b = small((n, k), 9, salt)
    scale = powers((1, n), salt) if by_row else torch.tensor(2.0)
    return b.t(), scale, b.to(FP8).to(DEVICE).t()


def scaled(rank, lists, by_row):
    from torch_symm import ops

    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        me, size = ranks.index(rank), len(ranks)
        for salt, (shape, dim) in enumerate([((16 * size, 32), 0), ((2, 16 * size, 32), 1)]):
            lefts = [operands(shape, r, salt, by_row) for r in ranks]
            mine, a_scale = lefts[me][0].to(FP8), lefts[me][1].to(DEVICE)
            for pieces, kind in ((1, "plain"), (3, "symmetric")):
                what = f"{ranks} {shape}, {pieces} pieces"
                bs = [right(32, n, n, by_row) for n in (16, 48)]
                scales = [scale.to(DEVICE) for _, scale, _ in bs]
                given = [b for *_, b in bs]
                a = placed(mine, kind, group)
                whole, products = ops.all_gather_scaled_matmul(
                    a, given, a_scale, scales, dim, group, return_a=True, pieces=pieces
                )
                every = torch.cat([left for left, _ in lefts], dim)
                row_scales = torch.cat([s for _, s in lefts], dim) if by_row else lefts[0][1]
                problems += same(f"{what}: A", whole, every.to(FP8))
                for (b, b_scale, _), got in zip(bs, products, strict=True):
                    expected = (every @ b * row_scales * b_scale).bfloat16()
                    problems += same(f"gather {what}", got, expected)
                for number, scatter_dim in enumerate((dim, len(shape) - 1)):
                    b, b_scale, given_b = right(32, 16 * size, salt, by_row)
                    got = ops.scaled_matmul_reduce_scatter(
                        *(a, given_b, a_scale, b_scale.to(DEVICE), "sum", scatter_dim, group),
                        out_dtype=torch.bfloat16 if by_row else torch.float32,
                        pieces=pieces,
                    )
                    total = sum((left @ b * s * b_scale).to(got.dtype).float() for left, s in lefts)
                    part = total.to(got.dtype).chunk(size, scatter_dim)[me]
                    problems += same(f"scatter {number} {what}", got, part)
    destroy(groups)
    return problems


BY_ROW = pytest.param(
    True,
    id="by_row",
    marks=pytest.mark.skipif(DEVICE == "cpu" and TORCH < (2, 13), reason="as torch scales there"),
)


@pytest.mark.parametrize("by_row", [pytest.param(False, id="one"), BY_ROW])
@pytest.mark.parametrize("world_size", [2, 4])
def test_scaled(world_size, by_row):
    check(scaled, world_size, GROUPS[world_size], by_row)


def one_row(rank):
    """A row a rank, whose scale by row has the shape of a scale of the whole matrix."""
    from torch_symm import ops

    problems, size = [], 2
    lefts = [operands((1, 32), r, 0, by_row=False)[0] for r in range(size)]
    a_scales = [torch.full((1, 1), 2.0**r) for r in range(size)]
    b, b_scale, given = right(32, 16, 3, by_row=True)
    mine = [t[rank].to(DEVICE) for t in (lefts, a_scales)]
    (got,) = ops.all_gather_scaled_matmul(
        mine[0].to(FP8), [given], mine[1], [b_scale.to(DEVICE)], 0
    )
    rows = [left @ b * scale * b_scale for left, scale in zip(lefts, a_scales, strict=True)]
    problems += same("gather", got, torch.cat(rows).bfloat16())
    got = ops.scaled_matmul_reduce_scatter(
        *(mine[0].to(FP8), given, mine[1], b_scale.to(DEVICE), "sum", 1)
    )
    total = sum(row.bfloat16().float() for row in rows).bfloat16()
    return problems + same("scatter", got, total.chunk(size, 1)[rank])


@pytest.mark.parametrize("by_row", [BY_ROW])
def test_one_row_with_a_scale_for_each_column(by_row):
    check(one_row, 2)
