"""multimem.py in the interpreter, which has each rank's memory: rank by rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from torch_symm.triton import _multimem_types as types
from torch_symm.triton import registry
from torch_symm.triton._interpreter import before_release
from torch_symm.triton.device import remote, world_size


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _check_context(ptr: Any, ctx: Any) -> None:
    registry.of(ctx).check_multicast(ptr)


def _check(ptr: Any, ctx: Any, mask: Any, name: str) -> None:
    """What the instructions need.

    Raises:
        ValueError: the context has no multicast addresses, or `ptr` does not go in whole pieces.
    """
    _check_context(ptr, ctx)
    element, addresses = ptr.dtype.element_ty, ptr.handle.data.ravel().astype(np.int64)
    vector = types.vector_of(element, name, addresses.size, ptr.type.is_block())
    pieces = addresses.reshape(-1, vector)
    size = element.primitive_bitwidth // 8
    taken = np.broadcast_to(mask.handle.data, ptr.handle.data.shape) if mask is not None else None
    kept = np.ones_like(pieces, bool) if taken is None else taken.reshape(-1, vector).astype(bool)
    if (kept != kept[:, :1]).any():
        raise ValueError(
            f"{name}: mask: expected one that takes or leaves whole pieces of 16 bytes"
        )
    pieces = pieces[kept[:, 0]]
    together = pieces - pieces[:, :1] == size * np.arange(vector)
    if not together.all() or (pieces[:, 0] % (size * vector)).any():
        raise ValueError(
            f"{name}: ptr: expected {vector} neighbours side by side from a multiple of "
            f"{size * vector} bytes on"
        )


def _check_operation(operation: Any, ptr: Any, name: str) -> None:
    suffix_of = types.reduce_suffix if name == "multimem_reduce" else types.load_suffix
    suffix_of(_plain(operation), ptr.dtype.element_ty)


def _check_store(ptr: Any) -> None:
    types.check_store(ptr.dtype.element_ty)


@triton.jit
def _combined(a, b, OPERATION: tl.constexpr):
    if OPERATION == "add":
        value = a + b
    elif OPERATION == "min":
        value = tl.minimum(a, b)
    elif OPERATION == "max":
        value = tl.maximum(a, b)
    elif OPERATION == "and":
        value = a & b
    else:
        value = a | b
    return value


@triton.jit
def load_reduced(ptr, ctx, mask, OPERATION: tl.constexpr):
    _check(ptr, ctx, mask, "multimem_load_reduce")
    _check_operation(OPERATION, ptr, "multimem_load_reduce")
    ELEMENT: tl.constexpr = ptr.dtype.element_ty
    WIDE: tl.constexpr = tl.float32 if ELEMENT.primitive_bitwidth == 16 else ELEMENT
    there = remote(ptr, 0, ctx, mask)
    value = tl.load(there, mask=mask, other=0 if mask is not None else None).to(WIDE)
    for peer in range(1, world_size(ctx)):
        there = remote(ptr, peer, ctx, mask)
        other = tl.load(there, mask=mask, other=0 if mask is not None else None)
        value = _combined(value, other.to(WIDE), OPERATION)
    return value.to(ELEMENT)


@triton.jit
def store_all(ptr, value, ctx, mask):
    _check(ptr, ctx, mask, "multimem_store")
    _check_store(ptr)
    for peer in range(world_size(ctx)):
        tl.store(remote(ptr, peer, ctx, mask), value, mask=mask)


@triton.jit
def reduce_all(ptr, value, ctx, OPERATION: tl.constexpr, SEM: tl.constexpr):
    _check_context(ptr, ctx)
    _check_operation(OPERATION, ptr, "multimem_reduce")
    if SEM == "release":
        before_release()
    for peer in range(world_size(ctx)):
        there = remote(ptr, peer, ctx)
        if OPERATION == "add":
            tl.atomic_add(there, value, sem=SEM, scope="sys")
        elif OPERATION == "min":
            tl.atomic_min(there, value, sem=SEM, scope="sys")
        elif OPERATION == "max":
            tl.atomic_max(there, value, sem=SEM, scope="sys")
        elif OPERATION == "and":
            tl.atomic_and(there, value, sem=SEM, scope="sys")
        else:
            tl.atomic_or(there, value, sem=SEM, scope="sys")
