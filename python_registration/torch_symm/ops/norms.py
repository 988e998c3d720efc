"""all_reduce and RMSNorm, the pair between the layers of a decoder."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_symm import ccl
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
    total, normed = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    if has_no_data(x):
        return normed, total
    width = x.shape[-1]
    given, sums, results = (t.reshape(-1, width) if width else t for t in (x, total, normed))
    added = residual.reshape(given.shape) if residual is not None else None
    share = given.nbytes // call.world_size
    count = cut.count(pieces, "reduce", len(given), share, x.device.type, call.world_size)
    parts = [slice(*bounds) for bounds in cut.ranges(len(given), count)]
    given = given.contiguous()
    works = [
        ccl.all_reduce(sums[rows], given[rows], group=call.group, async_op=count > 1)
        for rows in parts
    ]
    for rows, work in zip(parts, works, strict=True):
        if work is not None:
            work.wait()
        if added is not None:
            sums[rows].add_(added[rows])
        results[rows] = torch.rms_norm(sums[rows], [width], weight, eps)
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
