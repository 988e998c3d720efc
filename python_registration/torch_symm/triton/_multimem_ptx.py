"""multimem.py by PTX's instructions.

NOTE [Two addresses of the same memory]
What is written by one address and read by the other needs a fence between the proxies besides the
order that signals make; it stands before and behind each function here.

NOTE [Pieces]
An element of inline assembly is one thread's. Pieces of 16 bytes are therefore elements of smaller
blocks: the block of addresses is halved, by every second element, until each piece has one, and the
values are joined again, or halved alike. All of it is renaming of registers where a thread has the
piece's elements already. Triton may give one element to several threads, which does no harm to
loads and stores; an addition is made by the first thread alone, and has one address.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import core

from torch_symm.triton import _multimem_types as types
from torch_symm.triton import layout
from torch_symm.triton._gpu import before_release
from torch_symm.triton.device import word_of_row

GAVE_UP = layout.GAVE_UP
MULTICAST = layout.MULTICAST
NO_MULTICAST = layout.NO_MULTICAST
STATUS = layout.STATUS

_IF = "{{ .reg .pred %p; setp.ne.s32 %p, ${condition}, 0; "
_LETTERS = {16: "h", 32: "r", 64: "l"}
_INTEGERS = {16: core.int16, 32: core.int32, 64: core.int64}


def _plain(value):
    return value.value if isinstance(value, core.constexpr) else value


def _assemble(text, constraints, arguments, dtype, semantic):
    return core.inline_asm_elementwise(
        *(text, constraints, arguments), dtype=dtype, is_pure=False, pack=1, _semantic=semantic
    )


def _registers(first, count):
    """As PTX writes a vector."""
    names = ", ".join(f"${first + number}" for number in range(count))
    return f"{{{names}}}" if count > 1 else names


@core.builtin
def _check_target(NAME, _semantic=None):
    options = _semantic.builder.options
    arch = str(options.arch)
    if options.backend_name != "cuda" or int(arch.strip("sma")) < 90:
        raise ValueError(
            f"{_plain(NAME)}: expected an NVIDIA GPU of compute capability 9.0 or more, got {arch}"
        )


@core.builtin
def _vector(ptr, NAME, _semantic=None):
    """How many elements are a piece."""
    is_block = ptr.type.is_block()
    elements = _plain(ptr.numel) if is_block else 1
    return core.constexpr(types.vector_of(ptr.dtype.element_ty, _plain(NAME), elements, is_block))


@core.builtin
def _load_pieces(address, condition, ptr, OPERATION, VECTOR, _semantic=None):
    """VECTOR blocks of integers: the first elements of all pieces, the second ones, and so on."""
    element, count = ptr.dtype.element_ty, _plain(VECTOR)
    suffix = types.load_suffix(_plain(OPERATION), element)
    bits = element.primitive_bitwidth
    text = (
        _IF.format(condition=count + 1)
        + f"@%p multimem.ld_reduce.relaxed.sys.global.{suffix} "
        + f"{_registers(0, count)}, [${count}]; }}"
    )
    outputs = ",".join([f"={_LETTERS[bits]}"] * count)
    dtypes = (_INTEGERS[bits],) * count
    found = _assemble(
        text,
        f"{outputs},l,r,~{{memory}}",
        [address, condition],
        dtypes if count > 1 else dtypes[0],
        _semantic,
    )
    return core.tuple(found if count > 1 else [found])


@core.builtin
def _store_pieces(address, condition, ptr, values, _semantic=None):
    element, count = ptr.dtype.element_ty, len(values)
    types.check_store(element)
    bits = element.primitive_bitwidth
    kind = {4: "v4.f32", 8: f"v8.{element}".replace("fp", "f"), 1: f"b{bits}"}[count]
    text = (
        _IF.format(condition=2)
        + f"@%p multimem.st.relaxed.sys.global.{kind} [$1], {_registers(3, count)}; "
        + "mov.u32 $0, 0; }"
    )
    inputs = ",".join([_LETTERS[bits]] * count)
    arguments = [address, condition, *values]
    _assemble(text, f"=r,l,r,{inputs},~{{memory}}", arguments, core.int32, _semantic)


@core.builtin
def _reduce_one(address, condition, ptr, value, OPERATION, SEM, _semantic=None):
    element = ptr.dtype.element_ty
    suffix = types.reduce_suffix(_plain(OPERATION), element)
    text = (
        "{ .reg .pred %p, %first; .reg .b32 %thread; mov.u32 %thread, %tid.x; "
        "setp.eq.u32 %first, %thread, 0; setp.ne.and.s32 %p, $2, 0, %first; "
        f"@%p multimem.red.{_plain(SEM)}.sys.global.{suffix} [$1], $3; mov.u32 $0, 0; }}"
    )
    letter = _LETTERS[element.primitive_bitwidth]
    arguments = [address, condition, value]
    _assemble(text, f"=r,l,r,{letter},~{{memory}}", arguments, core.int32, _semantic)


@triton.jit
def _fence_addresses():
    tl.inline_asm_elementwise(
        "fence.proxy.alias; mov.u32 $0, 0;",
        "=r,~{memory}",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _address(ptr, ctx, mask):
    """(the multicast address, which of it to touch): nothing, and a record for the host, where the
    context has no such address."""
    distance = word_of_row(ptr, MULTICAST, ctx, mask)
    if distance == 0:
        status = tl.load(ctx + STATUS).to(tl.pointer_type(tl.int64), bitcast=True)
        tl.store(status + GAVE_UP, NO_MULTICAST)
    address = ptr.to(tl.int64, bitcast=True) + distance
    condition = (address * 0 + distance) != 0
    if mask is not None:
        condition = condition & mask
    return address, condition.to(tl.int32)


@triton.jit
def _halves(block):
    """Its even and its odd elements."""
    HALF: tl.constexpr = block.numel // 2
    return tl.split(tl.reshape(block, (HALF, 2)))


@triton.jit
def _firsts(block, VECTOR: tl.constexpr):
    """Of each piece."""
    for _ in tl.static_range(3 if VECTOR == 8 else 2 if VECTOR == 4 else 0):
        block, _odd = _halves(block)
    return block


@triton.jit
def _merged(even, odd):
    TWICE: tl.constexpr = even.numel * 2
    return tl.reshape(tl.join(even, odd), (TWICE,))


@triton.jit
def _merged_four(a, b, c, d):
    return _merged(_merged(a, c), _merged(b, d))


@triton.jit
def _four(block):
    even, odd = _halves(block)
    a, c = _halves(even)
    b, d = _halves(odd)
    return a, b, c, d


@triton.jit
def _integer(ptr, value):
    """The bits of `value`, as an element of `ptr`."""
    BITS: tl.constexpr = ptr.dtype.element_ty.primitive_bitwidth
    value = tl.cast(value, ptr.dtype.element_ty)
    if BITS == 16:
        value = value.to(tl.int16, bitcast=True)
    elif BITS == 32:
        value = value.to(tl.int32, bitcast=True)
    else:
        value = value.to(tl.int64, bitcast=True)
    return value


@triton.jit
def load_reduced(ptr, ctx, mask, OPERATION: tl.constexpr):
    _check_target("multimem_load_reduce")
    VECTOR: tl.constexpr = _vector(ptr, "multimem_load_reduce")
    address, condition = _address(ptr, ctx, mask)
    touched = condition
    _fence_addresses()
    if VECTOR > 1:
        address = _firsts(tl.reshape(address, (ptr.numel,)), VECTOR)
        condition = _firsts(tl.reshape(condition, (ptr.numel,)), VECTOR)
    found = _load_pieces(address, condition, ptr, OPERATION, VECTOR)
    if VECTOR == 8:
        even = _merged_four(found[0], found[2], found[4], found[6])
        odd = _merged_four(found[1], found[3], found[5], found[7])
        value = tl.reshape(_merged(even, odd), ptr.shape)
    elif VECTOR == 4:
        value = tl.reshape(_merged_four(found[0], found[1], found[2], found[3]), ptr.shape)
    else:
        value = found[0]
    _fence_addresses()
    value = tl.where(touched != 0, value, value * 0)
    return value.to(ptr.dtype.element_ty, bitcast=True)


@triton.jit
def store_all(ptr, value, ctx, mask):
    _check_target("multimem_store")
    VECTOR: tl.constexpr = _vector(ptr, "multimem_store")
    address, condition = _address(ptr, ctx, mask)
    value = _integer(ptr, value)
    if ptr.type.is_block():
        value = tl.broadcast_to(value, ptr.shape)
    _fence_addresses()
    if VECTOR > 1:
        address = _firsts(tl.reshape(address, (ptr.numel,)), VECTOR)
        condition = _firsts(tl.reshape(condition, (ptr.numel,)), VECTOR)
        value = tl.reshape(value, (ptr.numel,))
    if VECTOR == 8:
        even, odd = _halves(value)
        a, c, e, g = _four(even)
        b, d, f, h = _four(odd)
        _store_pieces(address, condition, ptr, (a, b, c, d, e, f, g, h))
    elif VECTOR == 4:
        _store_pieces(address, condition, ptr, _four(value))
    else:
        _store_pieces(address, condition, ptr, (value,))
    _fence_addresses()


@triton.jit
def reduce_all(ptr, value, ctx, OPERATION: tl.constexpr, SEM: tl.constexpr):
    _check_target("multimem_reduce")
    address, condition = _address(ptr, ctx, None)
    _fence_addresses()
    if SEM == "release":
        before_release()
    _reduce_one(address, condition, ptr, _integer(ptr, value), OPERATION, SEM)
    _fence_addresses()
