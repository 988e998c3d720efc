"""Matmul and collective as one call, which moves one piece while the next is computed.

They are for groups of the backend symm on one host, on the CPU and on GPUs, with tensors in any
memory. A call is collective over its group, and its arguments must have the same shapes, dtypes and
options on every rank. The operators below them, ``torch.ops.symm``, are traced by torch.compile;
on a GPU calls can be captured into graphs once the group is warm.

::

    from torch_symm import ops

    hidden, = ops.all_gather_matmul(x_shard, [up], 0, group)
    y_shard = ops.matmul_reduce_scatter(torch.relu(hidden), down, "sum", 0, group)

Arguments that several functions have:

* `group`: a ProcessGroup, a group's name, or None for the default group;
* `op`: ``ReduceOp.SUM`` or ``AVG``, or "sum" or "avg";
* `pieces`: how many pieces travel; None for what docs/fused.md says, 1 for one after the other.

Raises ValueError, which is also a RuntimeError, for a wrong argument, by its name; nothing has been
sent then. A dtype that is wrong is a TypeError as well, a group of another backend
NotImplementedError. Failures of the group are ``torch.distributed.DistBackendError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_symm.ops.arguments import group_name, op_name
from torch_symm.ops.library import register

register()

__all__ = [
    "all_gather_matmul",
    "all_gather_scaled_matmul",
    "all_reduce_rms_norm",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "scaled_matmul_reduce_scatter",
]

_ops = torch.ops.symm


def all_gather_matmul(
    a_shard: Tensor,
    bs: Sequence[Tensor],
    gather_dim: int,
    group: Any = None,
    *,
    return_a: bool = False,
    pieces: int | None = None,
) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
    """The products ``A @ b`` of each of `bs`, where A is all ranks' `a_shard`, one after the other
    along `gather_dim` by group rank.

    Args:
        a_shard: two dimensions or more.
        bs: matrices of the dtype of `a_shard`.
        gather_dim: any dimension. Along the last, which products sum over, the gather comes first.
        return_a: return (A, products).
    """
    name = group_name(group, "all_gather_matmul")
    a, products = _ops.all_gather_matmul(a_shard, list(bs), gather_dim, name, return_a, pieces)
    return (a, products) if return_a else products


def all_gather_scaled_matmul(
    a_shard: Tensor,
    bs: Sequence[Tensor],
    a_scale: Tensor,
    b_scales: Sequence[Tensor],
    gather_dim: int,
    group: Any = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    return_a: bool = False,
    pieces: int | None = None,
) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
    """`all_gather_matmul` of float8 operands with float32 scales, which has no gradient.

    Args:
        bs: matrices whose columns are contiguous.
        a_scale: one element, the same on every rank, or one for each row of `a_shard`, of shape
            ``(*a_shard.shape[:-1], 1)``, which is gathered as the rows are.
        b_scales: one element each, or where `a_scale` has rows, shape ``(1, columns)``.
        gather_dim: any dimension but the last.
    """
    name = group_name(group, "all_gather_scaled_matmul")
    scales = (a_scale, list(b_scales))
    a, products = _ops.all_gather_scaled_matmul(
        a_shard, list(bs), *scales, gather_dim, name, out_dtype, return_a, pieces
    )
    return (a, products) if return_a else products


def matmul_reduce_scatter(
    a: Tensor,
    b: Tensor,
    op: Any = "sum",
    scatter_dim: int = 0,
    group: Any = None,
    *,
    pieces: int | None = None,
) -> Tensor:
    """This rank's share along `scatter_dim` of all ranks' ``a @ b``, combined in rank order.

    Args:
        a: two dimensions or more.
        b: a matrix of the dtype of `a`.
        scatter_dim: any dimension of the product whose size the world size divides.
    """
    name, op = group_name(group, "matmul_reduce_scatter"), op_name(op, "matmul_reduce_scatter")
    return _ops.matmul_reduce_scatter(a, b, op, scatter_dim, name, pieces)


def scaled_matmul_reduce_scatter(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    op: Any = "sum",
    scatter_dim: int = 0,
    group: Any = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    pieces: int | None = None,
) -> Tensor:
    """`matmul_reduce_scatter` of float8 operands, with scales as `all_gather_scaled_matmul` has
    them; what is combined has `out_dtype`."""
    caller = "scaled_matmul_reduce_scatter"
    name, op = group_name(group, caller), op_name(op, caller)
    return _ops.scaled_matmul_reduce_scatter(
        a, b, a_scale, b_scale, op, scatter_dim, name, out_dtype, pieces
    )


def matmul_all_reduce(
    a: Tensor, b: Tensor, op: Any = "sum", group: Any = None, *, pieces: int | None = None
) -> Tensor:
    """All ranks' ``a @ b``, combined in rank order, on every rank."""
    name, op = group_name(group, "matmul_all_reduce"), op_name(op, "matmul_all_reduce")
    return _ops.matmul_all_reduce(a, b, op, name, pieces)


def all_reduce_rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    group: Any = None,
    residual: Tensor | None = None,
    *,
    pieces: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """RMSNorm over the last dimension of the sum of all ranks' `x`.

    Args:
        weight: one element for each of the last dimension.
        residual: of the shape of `x`; is added to the sum before the norm.

    Returns:
        the norm; with a residual (norm, sum with the residual), which the next layer adds to.
    """
    name = group_name(group, "all_reduce_rms_norm")
    normed, total = _ops.all_reduce_rms_norm(x, weight, eps, name, residual, pieces)
    return normed if residual is None else (normed, total)
