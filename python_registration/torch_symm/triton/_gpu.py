"""What differs between GPUs below device.py. Each function is a constant choice by the compiler's
target, so none costs a branch; `_interpreter` has the same names.

NOTE [Order of a program's accesses]
A Triton program is many threads, and a scalar atomic is one thread's. On NVIDIA a release is
cumulative: the barrier of the block before it puts the other threads' stores before it. On AMD the
release of a wave covers that wave's own stores, so every wave fences before the barrier. After a
wait one thread has acquired, and the barrier behind it extends that to the others.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import core
from triton.language.extra.cuda import globaltimer
from triton.language.extra.hip import memrealtime

from torch_symm.triton import layout
from torch_symm.triton.settings import CHECK

BAD_PEER = layout.BAD_PEER
GAVE_UP = layout.GAVE_UP
RANK = layout.RANK
STATUS = layout.STATUS
WORLD_SIZE = layout.WORLD_SIZE

# A wait looks so often between checks of whether it must end: some milliseconds. A check of all
# programs takes tens of microseconds; if waits of that length had one, each would cause the next.
ROUNDS_BETWEEN_CHECKS = tl.constexpr(4096)

# LLVM's lowering of a system-scope fence, in "Memory Model" of its AMDGPU guide.
_AMD_FENCES = {
    "gfx90a": "buffer_wbl2\ns_waitcnt vmcnt(0) lgkmcnt(0)\nbuffer_invl2\nbuffer_wbinvl1_vol",
    "gfx942": "buffer_wbl2 sc0 sc1\ns_waitcnt vmcnt(0) lgkmcnt(0)\nbuffer_inv sc0 sc1",
    "gfx950": "buffer_wbl2 sc0 sc1\ns_waitcnt vmcnt(0) lgkmcnt(0)\nbuffer_inv sc0 sc1",
}


@core.builtin
def _on_nvidia(_semantic=None):
    return core.constexpr(_semantic.builder.options.backend_name == "cuda")


@core.builtin
def _amd_fence(_semantic=None):
    arch = _semantic.builder.options.arch
    if arch not in _AMD_FENCES:
        raise ValueError(f"torch_symm.triton knows no fence of {arch}, only {list(_AMD_FENCES)}")
    return core.inline_asm_elementwise(
        _AMD_FENCES[arch] + "\nv_mov_b32 $0, 0",
        "=v,~{memory}",
        [],
        dtype=core.int32,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


@core.builtin
def _has_descriptors(_semantic=None):
    """Whether blocks of tensor descriptors are moved by hardware of their own, the async proxy."""
    options = _semantic.builder.options
    newer = options.backend_name == "cuda" and int(str(options.arch).strip("sma")) >= 90
    return core.constexpr(newer)


@triton.jit
def fence_system():
    """Each thread's accesses before it come before those after it, for every rank."""
    if _on_nvidia():
        tl.inline_asm_elementwise(
            "fence.acq_rel.sys; mov.u32 $0, 0;",
            "=r,~{memory}",
            [],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        _amd_fence()


@triton.jit
def before_release():
    """What stands before the scalar release that publishes a whole program's accesses."""
    if not _on_nvidia():
        _amd_fence()
    tl.debug_barrier()


@triton.jit
def after_acquire():
    """What stands after the scalar acquire from which a whole program goes on. Loads by tensor
    descriptors come behind it too: they are another proxy's, which acquires nothing."""
    tl.debug_barrier()
    if _has_descriptors():
        tl.inline_asm_elementwise(
            "fence.proxy.async.global; mov.u32 $0, 0;",
            "=r,~{memory}",
            [],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def now():
    """Nanoseconds. The clocks of two GPUs may differ."""
    return globaltimer() if _on_nvidia() else memrealtime() * 10  # the latter counts at 100 MHz


# Of the one thread whose value a scalar atomic takes.
_BY_ONE = """{
.reg .pred one; .reg .b32 thread; .reg .b64 value;
mov.u32 thread, %tid.x;
setp.eq.u32 one, thread, 0;
mov.b64 value, 0;
@one LOAD;
mov.b64 $0, value;
}"""
_WORD_BY_ONE = tl.constexpr(_BY_ONE.replace("LOAD", "ld.volatile.global.b64 value, [$1]"))
_CLOCK_BY_ONE = tl.constexpr(_BY_ONE.replace("LOAD", "mov.u64 value, %globaltimer"))


@triton.jit
def host_word(ptr):
    """A word of the host's memory, in the thread whose value a scalar atomic takes; in the others,
    if that is cheaper, 0. Reads over the host's bus follow one another: by all threads of a hundred
    programs they take milliseconds."""
    if _on_nvidia():
        address = ptr.to(tl.int64, bitcast=True)
        return tl.inline_asm_elementwise(
            _WORD_BY_ONE, "=l,l", [address], dtype=tl.int64, is_pure=False, pack=1
        )
    else:
        return tl.load(ptr, volatile=True)


@triton.jit
def now_of_one():
    """`now` where `host_word` has its word."""
    if _on_nvidia():
        return tl.inline_asm_elementwise(
            _CLOCK_BY_ONE, "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
    else:
        return now()


@triton.jit
def pause():
    """Between two looks of a wait."""


@triton.jit
def check_access(ptr, peer, ctx, mask):
    """With SYMM_CHECK=1 a peer that is not there is recorded, and this rank is taken instead."""
    if CHECK:
        wrong = (peer < 0) | (peer >= tl.load(ctx + WORLD_SIZE))
        if wrong:
            status = tl.load(ctx + STATUS).to(tl.pointer_type(tl.int64))
            record = BAD_PEER + 256 * (tl.cast(peer, tl.int64) + 1)
            tl.store(status + GAVE_UP, record)


@triton.jit
def safe_peer(peer, ctx):
    """`peer`, or with SYMM_CHECK=1 this rank where it is not there."""
    if CHECK:
        there = (peer >= 0) & (peer < tl.load(ctx + WORLD_SIZE))
        peer = tl.where(there, peer, tl.load(ctx + RANK))
    return peer


@triton.jit
def gave_up(ctx):
    """The host finds the record (Context.check)."""
