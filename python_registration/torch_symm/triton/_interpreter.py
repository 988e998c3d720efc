"""What device.py needs of Triton's interpreter: the functions of `_gpu`, as plain Python.

The interpreter's atomics are std::atomic on the address itself, so they are atomic between
processes, except on 16-bit floats, which it adds under a lock of the process. Its loads and stores
are plain ones of the processor in program order.
"""

from __future__ import annotations

import os
import time

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from torch_symm.triton import registry

ROUNDS_BETWEEN_CHECKS = tl.constexpr(64)


def fence_system() -> None:
    """One locked instruction orders what stands before and behind it."""
    word = np.zeros(1, dtype=np.int64)
    pointers = np.array([word.ctypes.data], dtype=np.uint64)
    handle = interpreter.TensorHandle(pointers, tl.pointer_type(tl.int64))
    builder = interpreter.interpreter_builder
    tl.tensor(handle, tl.pointer_type(tl.int64))
    builder.create_atomic_rmw(
        interpreter._ir.ATOMIC_OP.ADD,
        handle,
        interpreter.TensorHandle(word.copy(), tl.int64),
        interpreter.TensorHandle(np.ones(1, dtype=bool), tl.int1),
        interpreter._ir.MEM_SEMANTIC.ACQUIRE_RELEASE,
        None,
    )


def before_release() -> None:
    """A program is one thread here."""


def after_acquire() -> None:
    """A program is one thread here."""


def now() -> int:
    return time.monotonic_ns()


now_of_one = now


def host_word(ptr):
    return tl.load(ptr, volatile=True)


def pause() -> None:
    """Others may have to run for what is waited for."""
    os.sched_yield()


def check_access(ptr, peer, ctx, mask) -> None:
    registry.of(ctx).check_access(ptr, peer, mask)


def safe_peer(peer, ctx):
    return peer


def gave_up(ctx) -> None:
    registry.of(ctx).check_waits()
