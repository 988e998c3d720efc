"""Functions for kernels of the user's own, in OpenSHMEM's words: one source for every backend.

`ctx` is the kernel's argument from `torch_symm.triton.context`. Pointers are this rank's own
addresses in one of the context's tensors, a scalar or a block; `peer` is a group rank, the same for
a whole block. Any program of a kernel may call them, all threads of it together.

Memory order. `load`, `store`, `put` and `get` are plain accesses: they are ordered by nothing but
what follows. A signal publishes all that its program has accessed before it, on this rank and on
peers; a wait that has seen the signal makes that known to its program. `fence` orders a program's
puts before its later puts and signals, `quiet` also completes them. A peer's memory may be written
again only after that peer has said that it has read it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from torch_symm.triton import layout
from torch_symm.triton.settings import INTERPRETED

if INTERPRETED:
    from torch_symm.triton._interpreter import (
        after_acquire,
        before_release,
        check_access,
        fence_system,
        safe_peer,
    )
else:
    from torch_symm.triton._gpu import (
        after_acquire,
        before_release,
        check_access,
        fence_system,
        safe_peer,
    )

from torch_symm.triton.timeline import begin, end
from torch_symm.triton.waiting import wait

HEADER_WORDS = layout.HEADER_WORDS
PEERS = layout.PEERS
RANK = layout.RANK
TENSORS = layout.TENSORS
WORLD_SIZE = layout.WORLD_SIZE
PUT = layout.PUT
GET = layout.GET
RELEASE = layout.RELEASE
SET = layout.SET
SIGNAL = layout.SIGNAL
SYSTEM = layout.SYSTEM


@triton.jit
def my_rank(ctx):
    """This rank's number in the context's group."""
    return tl.load(ctx + RANK).to(tl.int32)


@triton.jit
def world_size(ctx):
    """How many ranks the context's group has."""
    return tl.load(ctx + WORLD_SIZE).to(tl.int32)


@triton.jit
def _an_address(ptr, mask):
    """One of a block's, not masked: a block lies in one tensor. All of them are, if it is 0."""
    address = ptr.to(tl.int64, bitcast=True)
    if ptr.type.is_block():
        if mask is not None:
            address = tl.where(mask, address, 0)
        address = tl.max(address, axis=None)
    return address


@triton.jit
def word_of_row(ptr, word, ctx, mask):
    """Number `word` of the row of `ptr`'s tensor; costs three loads of the table."""
    tensors = tl.load(ctx + TENSORS)
    stride = tl.load(ctx + WORLD_SIZE) + PEERS
    # Of the first tensor, whose row's place depends on nothing: no load waits for another one.
    found = tl.load(ctx + HEADER_WORDS + word)
    if tensors > 1:
        address = _an_address(ptr, mask)
        row = tensors * 0
        for tensor in range(1, tensors):
            first = ctx + HEADER_WORDS + tensor * stride
            inside = (address >= tl.load(first)) & (address < tl.load(first + 1))
            row = tl.where(inside, tensor, row)
        found = tl.load(ctx + HEADER_WORDS + row * stride + word)
    return found


@triton.jit
def remote(ptr, peer, ctx, mask=None):
    """`peer`'s address of what `ptr` is here; costs three loads of the table.

    With a context of several tensors a block costs a reduction too: call it with the scalar pointer
    of the tensor then, and add the block's offsets to the result.
    """
    check_access(ptr, peer, ctx, mask)
    distance = word_of_row(ptr, PEERS + safe_peer(peer, ctx), ctx, mask)
    # In elements, so that the compiler goes on knowing which of a block's are neighbours. Memory of
    # every rank begins on a page.
    ELEMENT: tl.constexpr = ptr.dtype.element_ty.primitive_bitwidth // 8
    return ptr + tl.multiple_of(distance // (ELEMENT if ELEMENT > 1 else 1), 16)


@triton.jit
def load(ptr, peer, ctx, mask=None, other=None):
    """What `peer` has at `ptr`, as tl.load. Plain: an order needs a wait before it."""
    return tl.load(remote(ptr, peer, ctx, mask), mask=mask, other=other)


@triton.jit
def store(ptr, value, peer, ctx, mask=None):
    """Writes `value` at `peer`'s `ptr`, as tl.store. Plain: an order needs a signal behind it."""
    tl.store(remote(ptr, peer, ctx, mask), value, mask=mask)


@triton.jit
def put(dest, source, peer, ctx, mask=None):
    """Copies this rank's `source`, any memory, to `peer`'s `dest`, a symmetric block. Plain.

    The dtypes must be the same.
    """
    tl.static_assert(
        dest.dtype.element_ty == source.dtype.element_ty,
        "put: source: expected the dtype of dest",
    )
    start = begin(ctx)
    value = tl.load(source, mask=mask)  # on its way while the table is read
    tl.store(remote(dest, peer, ctx, mask), value, mask=mask)
    end(ctx, start, PUT, peer, dest)


@triton.jit
def get(dest, source, peer, ctx, mask=None):
    """Copies `peer`'s `source`, a symmetric block, to this rank's `dest`, any memory. Plain.

    The dtypes must be the same.
    """
    tl.static_assert(
        dest.dtype.element_ty == source.dtype.element_ty,
        "get: source: expected the dtype of dest",
    )
    start = begin(ctx)
    tl.store(dest, tl.load(remote(source, peer, ctx, mask), mask=mask), mask=mask)
    end(ctx, start, GET, peer, dest)


@triton.jit
def _check_signal(signal):
    tl.static_assert(not signal.type.is_block(), "signal: expected one address, got a block")
    tl.static_assert(
        (signal.dtype.element_ty.primitive_bitwidth >= 32) and signal.dtype.element_ty.is_int(),
        "signal: expected integers of 32 or 64 bits",
    )


@triton.jit
def _before_signal(SEM: tl.constexpr):
    tl.static_assert(
        SEM == "release" or SEM == "relaxed", "signal: SEM: expected release or relaxed"
    )
    if SEM == "release":
        before_release()


@triton.jit
def signal_set(signal, value, peer, ctx, SCOPE: tl.constexpr = SYSTEM, SEM: tl.constexpr = RELEASE):
    """Makes `peer`'s word at `signal` `value`: a release of all that this program did before it.

    SEM "relaxed": the word alone, which orders nothing: for a signal whose value is the message. A
    release between two GPUs waits for all that the program's multiprocessor has written.
    """
    _check_signal(signal)
    start = begin(ctx)
    there = remote(signal, peer, ctx)
    _before_signal(SEM)
    tl.atomic_xchg(there, value, sem=SEM, scope=SCOPE)
    end(ctx, start, SIGNAL, peer, signal)


@triton.jit
def signal_add(signal, value, peer, ctx, SCOPE: tl.constexpr = SYSTEM, SEM: tl.constexpr = RELEASE):
    """Adds `value` to `peer`'s word at `signal`: a release of all that this program did before it,
    or, as `signal_set`, relaxed.

    Several ranks or programs may add to one word; a wait that has seen the sum has all of theirs.
    """
    _check_signal(signal)
    start = begin(ctx)
    there = remote(signal, peer, ctx)
    _before_signal(SEM)
    tl.atomic_add(there, value, sem=SEM, scope=SCOPE)
    end(ctx, start, SIGNAL, peer, signal)


@triton.jit
def put_signal(dest, source, signal, value, peer, ctx, mask=None, OPERATION: tl.constexpr = SET):
    """`put`, then `signal_set` or `signal_add`, as OPERATION is "set" or "add"."""
    tl.static_assert(
        OPERATION == "set" or OPERATION == "add", "put_signal: OPERATION: expected set or add"
    )
    put(dest, source, peer, ctx, mask)
    if OPERATION == "set":
        signal_set(signal, value, peer, ctx)
    else:
        signal_add(signal, value, peer, ctx)


@triton.jit
def wait_until(signal, COMPARE: tl.constexpr, value, ctx, source=-1, SCOPE: tl.constexpr = SYSTEM):
    """Waits until this rank's word at `signal` compares with `value` as COMPARE says: "eq", "ne",
    "gt", "ge", "lt" or "le". An acquire: what the signal's sender did before it is seen after.

    Args:
        source: the rank that signals, where it is one: the wait ends when it has left the group,
            and the error names it. -1: any rank. A rank that dies ends all waits.

    Returns:
        the word. Where the wait has ended without the signal (the group has failed, a rank is gone,
        the time-out has passed), what the word was then: on a GPU the kernel goes on with it, its
        later waits end at once, and the host raises (`Context.check`); the interpreter raises here.
    """
    _check_signal(signal)
    return wait(signal, COMPARE, value, ctx, source, SCOPE)


@triton.jit
def fence():
    """Orders this program's accesses of any rank's memory before it before those after it."""
    before_release()
    fence_system()
    after_acquire()


@triton.jit
def quiet():
    """Completes this program's puts: any rank that is told of it later sees them. Costs what
    `fence` does, since peers' memory is written by stores."""
    fence()
