"""Where the checker sees accesses and orders: in the builder of Triton's interpreter, through which
all loads, stores and atomics of kernels go, and around the collectives of torch.distributed."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from triton.runtime import interpreter

from torch_symm.triton.race import board, clock
from torch_symm.triton.race.check import ATOMIC, READ, WRITE, checks

_SEM = interpreter._ir.MEM_SEMANTIC
_RELEASES = (_SEM.RELEASE, _SEM.ACQUIRE_RELEASE)
_ACQUIRES = (_SEM.ACQUIRE, _SEM.ACQUIRE_RELEASE)

# Each makes every rank that returns from it wait for those whose tensors it has got.
_COLLECTIVES = (
    *("barrier", "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter"),
    *("all_gather_into_tensor", "all_gather_single", "reduce_scatter", "reduce_scatter_tensor"),
    *("reduce_scatter_single", "all_to_all", "all_to_all_single", "all_gather_object"),
    *("broadcast_object_list", "monitored_barrier"),
)


def install() -> None:
    """Local, once."""
    builder = interpreter.interpreter_builder
    for name, make in (
        ("create_masked_load", _of_load),
        ("create_masked_store", _of_store),
        ("create_atomic_rmw", _of_atomic),
        ("create_atomic_cas", _of_cas),
    ):
        setattr(builder, name, make(getattr(builder, name)))
    builder.set_grid_idx = _of_program(builder.set_grid_idx, builder)
    for name in _COLLECTIVES:
        if hasattr(dist, name):
            ordered = _of_collective(getattr(dist, name))
            setattr(dist, name, ordered)
            setattr(c10d, name, ordered)


def _note(pointers: Any, mask: Any, kind: int) -> np.ndarray:
    """Notes the access; returns its addresses."""
    addresses = pointers.data
    if mask is not None:
        addresses = addresses[np.broadcast_to(mask.data, addresses.shape).astype(bool)]
    if addresses.size:
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        for check in checks():
            check.note(addresses, size, kind)
    return addresses


def _of_program(original: Any, builder: Any) -> Any:
    def set_grid_idx(x: int, y: int, z: int) -> None:
        original(x, y, z)
        columns, rows, _ = builder.grid_dim
        clock.clock().begin_program(x + columns * (y + rows * z))

    return set_grid_idx


@contextlib.contextmanager
def launch() -> Iterator[None]:
    """Around a launch of a kernel."""
    clock.clock().begin_launch()
    try:
        yield
    finally:
        clock.clock().end_launch()


# How caches are used is one argument of Triton's, or two in 3.6, by place or by name.
def _of_load(original: Any) -> Any:
    signature = inspect.signature(original)

    def load(ptrs: Any, mask: Any, other: Any, *caches: Any, **named: Any) -> Any:
        given = signature.bind(ptrs, mask, other, *caches, **named).arguments
        value = original(ptrs, mask, other, *caches, **named)
        if not given["is_volatile"]:
            _note(ptrs, mask, READ)
        return value

    return load


def _of_store(original: Any) -> Any:
    def store(ptrs: Any, value: Any, mask: Any, *caches: Any, **named: Any) -> Any:
        _note(ptrs, mask, WRITE)
        return original(ptrs, value, mask, *caches, **named)

    return store


def _of_atomic(original: Any) -> Any:
    def atomic(op: Any, ptr: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        addresses = _before(ptr, mask, sem)
        result = original(op, ptr, value, mask, sem, scope)
        _behind(addresses, sem)
        return result

    return atomic


def _of_cas(original: Any) -> Any:
    def cas(ptr: Any, expected: Any, value: Any, sem: Any, scope: Any) -> Any:
        addresses = _before(ptr, None, sem)
        result = original(ptr, expected, value, sem, scope)
        _behind(addresses, sem)
        return result

    return cas


def _before(ptr: Any, mask: Any, sem: Any) -> list[int]:
    addresses = [int(one) for one in _note(ptr, mask, ATOMIC).flat]
    if sem in _RELEASES and addresses:
        for check in checks():
            for address in addresses:
                check.release(address)
        clock.clock().next_step()
    return addresses


def _behind(addresses: list[int], sem: Any) -> None:
    if sem in _ACQUIRES:
        for check in checks():
            for address in addresses:
                check.acquire(address)


def _of_collective(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        found = board.known(given.get("group"))
        if found is None:
            return original(*args, **kwargs)
        turn = found.enter()
        result = original(*args, **kwargs)
        if not given.get("async_op"):
            found.leave(turn)
        return result

    return collective
