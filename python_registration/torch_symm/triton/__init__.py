"""A library for Triton kernels of your own over symmetric memory.

    import triton
    import triton.language as tl
    import torch_symm.triton as symm

    @triton.jit
    def shift_kernel(box, flag, ctx):
        right = (symm.my_rank(ctx) + 1) % symm.world_size(ctx)
        index = tl.arange(0, 64)
        symm.store(box + index, index, right, ctx)
        symm.signal_set(flag, 1, right, ctx)
        symm.wait_until(flag, "eq", 1, ctx)

    shift_kernel[(1,)](box, flag, symm.context(box, flag))

One source serves NVIDIA's GPUs, AMD's, and with ``TRITON_INTERPRET=1`` processes on the CPU.
`device`, `waiting`, `atomics` and `multimem` have the functions for kernels, each with its memory
order; `context` makes their argument `ctx`. docs/kernels.md is the tutorial.
"""

from __future__ import annotations

try:
    import triton as _triton  # noqa: F401
except ImportError as error:
    raise ImportError(
        "torch_symm.triton needs Triton: pip install torch-symm[triton], or pip install triton"
    ) from error

from torch_symm.triton import launches as _launches
from torch_symm.triton.atomics import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_exch,
    atomic_max,
    atomic_min,
    atomic_or,
)
from torch_symm.triton.context import Context, context
from torch_symm.triton.device import (
    fence,
    get,
    load,
    my_rank,
    put,
    put_signal,
    quiet,
    remote,
    signal_add,
    signal_set,
    store,
    wait_until,
    world_size,
)
from torch_symm.triton.multimem import multimem_load_reduce, multimem_reduce, multimem_store
from torch_symm.triton.trace import Event, events, write_timeline
from torch_symm.triton.waiting import barrier

_launches.install()

__all__ = [
    "Context",
    "Event",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_exch",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "barrier",
    "context",
    "events",
    "fence",
    "get",
    "load",
    "multimem_load_reduce",
    "multimem_reduce",
    "multimem_store",
    "my_rank",
    "put",
    "put_signal",
    "quiet",
    "remote",
    "signal_add",
    "signal_set",
    "store",
    "wait_until",
    "world_size",
    "write_timeline",
]
