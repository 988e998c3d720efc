"""Gradients of the operators, made of the operators.

The loss is the sum of all ranks' losses: what every rank gets from a rank's tensor sends its
gradient back to that rank. So the gradient of a gather is a reduce_scatter and the other way round,
and that of an all_reduce is an all_reduce. A gathered matrix is not kept for the backward pass, but
gathered again, by the product that needs it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_symm import _groups
from torch_symm.ops.arguments import Rows

_ops = torch.ops.symm
_functional = torch.ops._c10d_functional


def keep_gather(ctx: Any, inputs: tuple, output: Any) -> None:
    a_shard, bs, gather_dim, group, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(a_shard, *bs)
    ctx.dim, ctx.group, ctx.return_a = gather_dim % a_shard.dim(), group, inputs[4]


def of_gather(ctx: Any, grad_a: Tensor | None, grads: list[Tensor | None]) -> tuple:
    a_shard, *bs = ctx.saved_tensors
    needs_shard, needs_bs = ctx.needs_input_grad[:2]
    known = [number for number, grad in enumerate(grads) if grad is not None]
    grad_shard = None
    if needs_shard and known:
        grad = torch.cat([grads[n] for n in known], -1) if len(known) > 1 else grads[known[0]]
        b = torch.cat([bs[n] for n in known], 1) if len(known) > 1 else bs[known[0]]
        grad_shard = _ops.matmul_reduce_scatter(grad, b.mH, "sum", ctx.dim, ctx.group)
    if needs_shard and grad_a is not None and ctx.return_a:
        own = _reduce_scatter(grad_a, ctx.dim, ctx.group)
        grad_shard = own if grad_shard is None else grad_shard + own
    grad_bs: list[Tensor | None] = [None] * len(bs)
    wanted = [n for n in known if needs_bs[n]]
    if wanted:
        # The transposed matrix, gathered along the rows' dimension, times gradients by rows.
        last = ctx.dim == a_shard.dim() - 1
        rows = Rows.of(a_shard, 0 if last else ctx.dim)
        right = [rows.matrix(grads[n]) for n in wanted]
        transposed = rows.matrix(a_shard).mH
        for n, product in zip(
            wanted,
            _ops.all_gather_matmul(transposed, right, 0 if last else 1, ctx.group)[1],
            strict=True,
        ):
            grad_bs[n] = product
    return _padded(ctx, grad_shard, grad_bs)


def keep_scatter(ctx: Any, inputs: tuple, output: Any) -> None:
    a, b, op, scatter_dim, group, *_ = inputs
    ctx.save_for_backward(a, b)
    ctx.op, ctx.dim, ctx.group = op, scatter_dim % a.dim(), group


def of_scatter(ctx: Any, grad: Tensor) -> tuple:
    a, b = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad[:2]
    grad = _mean(grad, ctx.op, ctx.group)
    whole, products = _ops.all_gather_matmul(grad, [b.mH], ctx.dim, ctx.group, needs_b)
    grad_b = a.flatten(0, -2).mH @ whole.flatten(0, -2) if needs_b else None
    return _padded(ctx, products[0] if needs_a else None, grad_b)


def keep_reduce(ctx: Any, inputs: tuple, output: Any) -> None:
    a, b, op, group, *_ = inputs
    ctx.save_for_backward(a, b)
    ctx.op, ctx.group = op, group


def of_reduce(ctx: Any, grad: Tensor) -> tuple:
    a, b = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad[:2]
    total = _mean(_all_reduce(grad, ctx.group), ctx.op, ctx.group)
    grad_b = a.flatten(0, -2).mH @ total.flatten(0, -2) if needs_b else None
    return _padded(ctx, total @ b.mH if needs_a else None, grad_b)


def keep_norm(ctx: Any, inputs: tuple, output: Any) -> None:
    _, weight, eps, group, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(weight, output[1])
    ctx.eps, ctx.group = eps, group


def of_norm(ctx: Any, grad: Tensor | None, grad_total: Tensor | None) -> tuple:
    weight, total = ctx.saved_tensors
    needs_x, needs_weight = ctx.needs_input_grad[:2]
    grad_weight = None
    if grad is not None:
        wide = torch.promote_types(total.dtype, torch.float32)
        values, above = total.to(wide), grad.to(wide)
        scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + ctx.eps)
        unit = values * scale
        if needs_weight:
            grad_weight = (above * unit).flatten(0, -2).sum(0) if unit.dim() > 1 else above * unit
            grad_weight = grad_weight.to(weight.dtype)
        above = above * weight.to(wide)
        below = scale * (above - unit * (above * unit).mean(-1, keepdim=True))
        below = below.to(total.dtype)
        grad_total = below if grad_total is None else grad_total + below
    grad_x = None
    if needs_x and grad_total is not None:
        grad_x = _all_reduce(grad_total, ctx.group)
    has_residual = any(ctx.needs_input_grad[4:])
    return _padded(ctx, grad_x, grad_weight, None, None, grad_total if has_residual else None)


def refuse(name: str) -> Any:
    def backward(ctx: Any, *grads: Any) -> None:
        raise NotImplementedError(f"{name}: a product of float8 operands has no gradient")

    return backward


def _padded(ctx: Any, *grads: Any) -> tuple:
    """One for each argument that was given: torch leaves out the last ones that are defaults."""
    given = len(ctx.needs_input_grad)
    return (*grads, *[None] * given)[:given]


def _mean(grad: Tensor, op: str, group: str) -> Tensor:
    return grad / _groups.resolve(group, "backward").size() if op == "avg" else grad


def _all_reduce(tensor: Tensor, group: str) -> Tensor:
    return _functional.wait_tensor(_functional.all_reduce(tensor.contiguous(), "sum", group))


def _reduce_scatter(tensor: Tensor, dim: int, group: str) -> Tensor:
    size = _groups.resolve(group, "backward").size()
    front = tensor.movedim(dim, 0).contiguous()
    share = _functional.reduce_scatter_tensor(front, "sum", size, group)
    return _functional.wait_tensor(share).movedim(0, dim)
