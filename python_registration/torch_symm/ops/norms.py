"""all_reduce and RMSNorm, the pair between the layers of a decoder."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_symm import ccl
from torch_symm._registration import load
from torch_symm.ccl import workspace
from torch_symm.errors import InvalidTypeError
from torch_symm.ops import pieces as cut
from torch_symm.ops.arguments import Caller, has_no_data


def all_reduce_rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    group_name: str,
    residual: Tensor | None = None,
    pieces: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(norm of the total, the total): the total is the sum of all ranks' `x`, and `residual`."""
    call = Caller.of("all_reduce_rms_norm", group_name, x, "x")
    _check(call, x, weight, residual)
    call.pieces(pieces)
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    if has_no_data(x):
        return torch.empty_like(total), total
    x, shape = x.contiguous(), x.shape[-1:]
    rows, share = total.numel() // max(shape[0], 1), total.nbytes // call.world_size
    count = cut.count(pieces, "reduce", rows, share, x.device.type, call.world_size)
    if count == 1 and x.is_cuda:
        backend = workspace.backend_of(call.group, x.device, call.name, "x")
        normed, weight = torch.empty_like(total), weight.contiguous()
        residual = None if residual is None else residual.contiguous()
        load().all_reduce_rms_norm(backend, total, normed, x, weight, residual, eps)
        return normed, total
    if count == 1:
        ccl.all_reduce(total, x, group=call.group)
        if residual is not None:
            total.add_(residual)
        return torch.rms_norm(total, shape, weight, eps), total
    normed = torch.empty_like(total)
    # As matrices.
    given, added, sums, results = (
        None if t is None else t.reshape(rows, -1) for t in (x, residual, total, normed)
    )
    parts = cut.slices(rows, count)
    works = [ccl.all_reduce(sums[p], given[p], group=call.group, async_op=True) for p in parts]
    for part, work in zip(parts, works, strict=True):
        work.wait()
        if added is not None:
            sums[part].add_(added[part])
        results[part] = torch.rms_norm(sums[part], shape, weight, eps)
    return normed, total


def _check(call: Caller, x: Tensor, weight: Tensor, residual: Tensor | None) -> None:
    call.dense("x", x)
    if not x.dtype.is_floating_point or x.dtype.itemsize < 2:
        raise InvalidTypeError(
            f"{call.name}: x: expected float16, bfloat16, float32 or float64, got {x.dtype}"
        )
    call.require(x.dim() >= 1, "x", "one dimension or more", f"shape {tuple(x.shape)}")
    others = {"weight": (weight, tuple(x.shape[-1:]))}
    if residual is not None:
        others["residual"] = (residual, tuple(x.shape))
    for name, (tensor, shape) in others.items():
        call.alike(name, tensor, "x", x)
        call.require(tuple(tensor.shape) == shape, name, f"shape {shape}", tuple(tensor.shape))
