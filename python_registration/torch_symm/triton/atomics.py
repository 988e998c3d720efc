"""Atomics on a peer's memory. Each returns what was there before.

`SEM` is "relaxed", "acquire", "release" or "acq_rel", `SCOPE` "sys" (all ranks), "gpu" or "cta". On
one address the order is that of the whole program: a release publishes all its accesses before it.
On a block each element orders the accesses of the thread that has it, so use one address, or
`signal_set`, to publish. Integers of 32 and 64 bits; float32 and float64 for add, exch and, in
Triton's own way, min and max. The interpreter refuses 16-bit floats: its own are not atomic between
processes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from torch_symm.triton import layout
from torch_symm.triton.device import remote
from torch_symm.triton.settings import INTERPRETED

if INTERPRETED:
    from torch_symm.triton._interpreter import after_acquire, before_release
else:
    from torch_symm.triton._gpu import after_acquire, before_release

ACQUIRE_RELEASE = layout.ACQUIRE_RELEASE
SYSTEM = layout.SYSTEM


@triton.jit
def _there(ptr, peer, ctx, mask, SEM: tl.constexpr):
    """`peer`'s address, ready for the atomic."""
    tl.static_assert(
        ptr.dtype.element_ty.primitive_bitwidth >= 32,
        "atomics: ptr: expected elements of 32 or 64 bits",
    )
    there = remote(ptr, peer, ctx, mask)
    if SEM == "release" or SEM == "acq_rel":
        before_release()
    return there


@triton.jit
def _done(value, SEM: tl.constexpr):
    if SEM == "acquire" or SEM == "acq_rel":
        after_acquire()
    return value


@triton.jit
def atomic_add(
    ptr,
    value,
    peer,
    ctx,
    mask=None,
    SEM: tl.constexpr = ACQUIRE_RELEASE,
    SCOPE: tl.constexpr = SYSTEM,
):
    """Adds `value`."""
    there = _there(ptr, peer, ctx, mask, SEM)
    return _done(tl.atomic_add(there, value, mask=mask, sem=SEM, scope=SCOPE), SEM)


@triton.jit
def atomic_exch(
    ptr,
    value,
    peer,
    ctx,
    mask=None,
    SEM: tl.constexpr = ACQUIRE_RELEASE,
    SCOPE: tl.constexpr = SYSTEM,
):
    """Puts `value` there."""
    there = _there(ptr, peer, ctx, mask, SEM)
    return _done(tl.atomic_xchg(there, value, mask=mask, sem=SEM, scope=SCOPE), SEM)


@triton.jit
def atomic_min(
    ptr,
    value,
    peer,
    ctx,
    mask=None,
    SEM: tl.constexpr = ACQUIRE_RELEASE,
    SCOPE: tl.constexpr = SYSTEM,
):
    """The smaller one stays."""
    there = _there(ptr, peer, ctx, mask, SEM)
    return _done(tl.atomic_min(there, value, mask=mask, sem=SEM, scope=SCOPE), SEM)


@triton.jit
def atomic_max(
    ptr,
    value,
    peer,
    ctx,
    mask=None,
    SEM: tl.constexpr = ACQUIRE_RELEASE,
    SCOPE: tl.constexpr = SYSTEM,
):
    """The larger one stays."""
    there = _there(ptr, peer, ctx, mask, SEM)
    return _done(tl.atomic_max(there, value, mask=mask, sem=SEM, scope=SCOPE), SEM)


@triton.jit
def atomic_and(
    ptr,
    value,
    peer,
    ctx,
    mask=None,
    SEM: tl.constexpr = ACQUIRE_RELEASE,
    SCOPE: tl.constexpr = SYSTEM,
):
    """Keeps the bits that `value` has."""
    there = _there(ptr, peer, ctx, mask, SEM)
    return _done(tl.atomic_and(there, value, mask=mask, sem=SEM, scope=SCOPE), SEM)


@triton.jit
def atomic_or(
    ptr,
    value,
    peer,
    ctx,
    mask=None,
    SEM: tl.constexpr = ACQUIRE_RELEASE,
    SCOPE: tl.constexpr = SYSTEM,
):
    """Adds the bits of `value`."""
    there = _there(ptr, peer, ctx, mask, SEM)
    return _done(tl.atomic_or(there, value, mask=mask, sem=SEM, scope=SCOPE), SEM)


@triton.jit
def atomic_cas(
    ptr,
    expected,
    value,
    peer,
    ctx,
    SEM: tl.constexpr = ACQUIRE_RELEASE,
    SCOPE: tl.constexpr = SYSTEM,
):
    """Puts `value` there where `expected` was there."""
    there = _there(ptr, peer, ctx, None, SEM)
    ELEMENT: tl.constexpr = ptr.dtype.element_ty
    expected = tl.cast(expected, ELEMENT)  # which Triton leaves to its caller
    return _done(tl.atomic_cas(there, expected, tl.cast(value, ELEMENT), sem=SEM, scope=SCOPE), SEM)
