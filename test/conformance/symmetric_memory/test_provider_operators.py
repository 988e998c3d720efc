"""torch.ops.symm_mem: reductions, gathers, scatters, and the operators that write single words.

Inputs are small whole numbers, whose sums are exact in every dtype and in every order.
"""

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _SymmetricMemory

import model
from harness import DEVICE, WORLD_SIZE
from operators import total, whole_numbers
from provider import (
    conforms,
    equal,
    need_multicast,
    need_operators,
    ops,
    share,
    strided,
    world_name,
)
from symmetric import allocate

pytestmark = pytest.mark.timeout(120)

DTYPES = [torch.float32, torch.bfloat16]
SIZES = [4, 8192, 8196]  # bytes
WAIT = torch.ops._c10d_functional.wait_tensor


def inside(tensor, shift_bytes: int, count: int):
    """`count` elements of `tensor` behind its first bytes; all of it is 0."""
    tensor.fill_(0)
    shift = shift_bytes // tensor.element_size()
    assert tensor.data_ptr() % 16 == 0
    return tensor[shift : shift + count], shift


def untouched(tensor, shift: int, count: int) -> bool:
    return not tensor[:shift].any() and not tensor[shift + count :].any()


def same_on_all_ranks(tensor) -> bool:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    return all(equal(other, tensor) for other in gathered)


# -- All-reduces ---------------------------------------------------------------------------------


def one_shot(tensor, mine, out):
    tensor.copy_(mine)
    return ops.one_shot_all_reduce(tensor, "sum", world_name())


def one_shot_out(tensor, mine, out):
    tensor.copy_(mine)
    return ops.one_shot_all_reduce_out(tensor, "sum", world_name(), out)


def one_shot_copy(tensor, mine, out):
    return ops.one_shot_all_reduce_copy(tensor, mine, "sum", world_name())


def one_shot_copy_out(tensor, mine, out):
    return ops.one_shot_all_reduce_copy_out(tensor, mine, "sum", world_name(), out)


def two_shot(tensor, mine, out):
    tensor.copy_(mine)
    return ops.two_shot_all_reduce_(tensor, "sum", world_name())


def two_shot_out(tensor, mine, out):
    tensor.copy_(mine)
    return ops.two_shot_all_reduce_out(tensor, "sum", world_name(), out)


def multimem(tensor, mine, out):
    tensor.copy_(mine)
    return ops.multimem_all_reduce_(tensor, "sum", world_name())


def multimem_one_shot(tensor, mine, out):
    tensor.copy_(mine)
    return ops.multimem_one_shot_all_reduce(tensor, "sum", world_name())


OPERATORS = {
    one_shot: "one_shot_all_reduce",
    one_shot_out: "one_shot_all_reduce_out",
    one_shot_copy: "one_shot_all_reduce_copy",
    one_shot_copy_out: "one_shot_all_reduce_copy_out",
    two_shot: "two_shot_all_reduce_",
    two_shot_out: "two_shot_all_reduce_out",
    multimem: "multimem_all_reduce_",
    multimem_one_shot: "multimem_one_shot_all_reduce",
}
IN_PLACE = (two_shot, multimem)
BY_MULTICAST = (multimem, multimem_one_shot)


def all_reduces(rank, call, dtype):
    """The sum, with the same bits on all ranks, and nothing around the tensor."""
    need_operators(OPERATORS[call])
    if call in BY_MULTICAST:
        need_multicast()
    size = dist.get_world_size()
    memory = allocate(16384, dtype=dtype)
    share(memory)
    for salt, (size_bytes, shift_bytes) in enumerate((s, a) for s in SIZES for a in (0, 16, 64)):
        count = size_bytes // dtype.itemsize
        tensor, shift = inside(memory, shift_bytes, count)
        mine = whole_numbers(count, rank, salt, dtype).to(DEVICE)
        out = torch.empty_like(mine)
        got = call(tensor, mine, out)
        assert equal(got, total(count, range(size), salt, dtype))
        assert same_on_all_ranks(got)
        assert untouched(memory, shift, count)
        if call in IN_PLACE:
            assert got.data_ptr() == tensor.data_ptr()
        elif call.__name__.endswith("_out"):
            assert got.data_ptr() == out.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("call", OPERATORS, ids=lambda call: call.__name__)
def test_all_reduce(call, dtype):
    conforms(all_reduces, WORLD_SIZE, call, dtype)


def unaligned(rank, call, dtype):
    """PyTorch's operators want multiples of 4 bytes, no more."""
    need_operators(OPERATORS[call])
    if call in BY_MULTICAST:
        need_multicast()
    memory = allocate(16384, dtype=dtype)
    share(memory)
    for salt, shift_bytes in enumerate((4, 8)):
        count = 8192 // dtype.itemsize
        tensor, shift = inside(memory, shift_bytes, count)
        got = call(tensor, whole_numbers(count, rank, salt, dtype).to(DEVICE), None)
        assert equal(got, total(count, range(dist.get_world_size()), salt, dtype))
        assert untouched(memory, shift, count)


@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("call", [one_shot, two_shot, multimem], ids=lambda call: call.__name__)
def test_all_reduce_of_tensors_that_start_anywhere(call, dtype):
    conforms(unaligned, WORLD_SIZE, call, dtype)


def reduces_to_one(rank, dtype):
    need_operators("multimem_one_shot_reduce_out")
    need_multicast()
    for salt, size_bytes in enumerate(SIZES):
        count = size_bytes // dtype.itemsize
        tensor = allocate(count, dtype=dtype)
        share(tensor)
        tensor.copy_(whole_numbers(count, rank, salt, dtype))
        out = torch.empty_like(tensor)
        ops.multimem_one_shot_reduce_out(tensor, "sum", 0, world_name(), out)
        if rank == 0:
            assert equal(out, total(count, range(dist.get_world_size()), salt, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
def test_multimem_reduce_to_one_rank(dtype):
    conforms(reduces_to_one, WORLD_SIZE, dtype)


# -- Gathers and scatters ------------------------------------------------------------------------


def by_multicast(rank, shift_bytes):
    need_operators("multimem_all_gather_out")
    need_multicast()
    shift, size = shift_bytes // 4, dist.get_world_size()
    mine = torch.zeros(shift + 32, device=DEVICE)[shift:].fill_(rank)
    memory = allocate(shift + 32 * size)
    share(memory)
    memory.fill_(0)
    ops.multimem_all_gather_out(mine, world_name(), memory[shift:])
    assert equal(memory[shift:], torch.arange(float(size)).repeat_interleave(32))


@pytest.mark.parametrize("shift_bytes", [4, 8, 16])
def test_multimem_all_gather(shift_bytes):
    conforms(by_multicast, WORLD_SIZE, shift_bytes)


def scatters(rank, dtype, split_last_dim):
    """Flat, this rank's share; by rows, its columns of all rows."""
    size = dist.get_world_size()
    memory = allocate(36 * 1024 * 16, dtype=dtype)
    share(memory)
    width = 128 // dtype.itemsize
    for salt, size_bytes in enumerate([128, 8192, 36 * 1024 * 16]):
        count = size_bytes // dtype.itemsize
        tensor, shift = inside(memory, 8, count)
        tensor.copy_(whole_numbers(count, rank, salt, dtype))
        expected = total(count, range(size), salt, dtype)
        if split_last_dim:
            tensor, expected = tensor.view(-1, width), expected.view(-1, width)
        share_of_rank = expected.chunk(size, -1)[rank]
        out = torch.empty(share_of_rank.shape, dtype=dtype, device=DEVICE)
        ops.reduce_scatter_out(tensor, world_name(), split_last_dim, out)
        assert equal(out, share_of_rank)
        assert untouched(memory, shift, count)


@pytest.mark.parametrize("split_last_dim", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
def test_reduce_scatter(dtype, split_last_dim):
    conforms(scatters, WORLD_SIZE, dtype, split_last_dim)


def odd_scatters(rank):
    """Nothing is scattered, too; shares that are no multiple of 16 bytes are refused."""
    size, dtype = dist.get_world_size(), torch.bfloat16
    memory = allocate(16384, dtype=dtype)
    share(memory)
    memory.fill_(0)
    out = torch.empty(24, dtype=dtype, device=DEVICE)
    ops.reduce_scatter_out(memory[:0], world_name(), False, out[:0])
    count = 12 * size
    with pytest.raises(RuntimeError):
        ops.reduce_scatter_out(memory[:count], world_name(), False, out[:12])
    rows = memory[: 2 * count].view(2, count)
    with pytest.raises(RuntimeError):
        ops.reduce_scatter_out(rows, world_name(), True, out.view(2, 12))


def test_reduce_scatter_of_nothing_and_of_odd_shares():
    conforms(odd_scatters, WORLD_SIZE)


def square(symmetric: bool) -> torch.Tensor:
    if symmetric:
        return strided(64, 64, group_name=world_name())
    return torch.empty(64, 64, device=DEVICE)


def low_contention_gathers(rank, symmetric):
    size = dist.get_world_size()
    got = WAIT(ops._low_contention_all_gather(square(symmetric).fill_(rank), world_name()))
    assert equal(got, torch.arange(float(size)).repeat_interleave(64)[:, None].expand(-1, 64))


@pytest.mark.parametrize("symmetric", [True, False])
def test_low_contention_all_gather(symmetric):
    conforms(low_contention_gathers, WORLD_SIZE, symmetric)


def low_contention_scatters(rank, op, symmetric):
    size, tensor = dist.get_world_size(), square(symmetric)
    for peer, chunk in enumerate(tensor.chunk(size)):
        chunk.fill_(peer)
    got = WAIT(ops._low_contention_reduce_scatter(tensor, op, world_name()))
    expected = rank * size if op == "sum" else rank
    assert equal(got, torch.full((64 // size, 64), float(expected)))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_low_contention_reduce_scatter(op, symmetric):
    conforms(low_contention_scatters, WORLD_SIZE, op, symmetric)


def gathers_by_copy_engines(rank, shape, own_output):
    name = "_low_contention_all_gather_ce_multicast"
    need_operators(name, name + "_out")
    need_multicast()
    size = dist.get_world_size()
    mine = torch.full(shape, float(rank), device=DEVICE)
    whole = (size * shape[0], *shape[1:]) if shape else (size,)
    if own_output:
        got = getattr(ops, name)(mine, world_name())
    else:
        out = strided(*whole, group_name=world_name())
        got = getattr(ops, name + "_out")(mine, world_name(), out)
        assert got.data_ptr() == out.data_ptr()
        wrong = torch.empty(whole[0] + 1, *whole[1:], device="meta")
        with pytest.raises(RuntimeError):
            getattr(ops, name + "_out")(mine.to("meta"), world_name(), wrong)
    assert got.shape == whole
    assert all(chunk.eq(peer).all() for peer, chunk in enumerate(got.chunk(size)))


@pytest.mark.parametrize("own_output", [True, False])
@pytest.mark.parametrize("shape", [(), (64, 64)], ids=str)
def test_low_contention_all_gather_by_copy_engines(shape, own_output):
    conforms(gathers_by_copy_engines, WORLD_SIZE, shape, own_output)


# -- Single words --------------------------------------------------------------------------------


def written_words(rank):
    words = torch.zeros(4, dtype=torch.uint32, device=DEVICE)
    expected = [0] * 4
    for place in range(4):
        _SymmetricMemory.stream_write_value32(words, place, 1)
        expected[place] = 1
        assert words.tolist() == expected
    for offset, value in [(-1, 1), (0, 1 << 32)]:
        with pytest.raises(RuntimeError):
            _SymmetricMemory.stream_write_value32(words, offset=offset, val=value)


def test_stream_write_value32():
    conforms(written_words, 1)


def filled_words(rank):
    words = strided(64, dtype=torch.uint32, group_name=world_name()).fill_(0)
    _SymmetricMemory.memset32(words, offset=32, val=1, count=16)
    assert words.tolist() == [0] * 32 + [1] * 16 + [0] * 16
    wrong = [
        (words.view(8, 8), 0, 1, 1),
        (words.view(torch.float32), 0, 1, 1),
        (words, -1, 1, 1),
        (words, 0, 1 << 32, 1),
        (words, 0, 1, -1),
        (words, 0, 1, 0),
        (words, 64, 1, 1),
        (words, 0, 1, 65),
    ]
    for tensor, offset, value, count in wrong:
        with pytest.raises(RuntimeError):
            _SymmetricMemory.memset32(tensor, offset=offset, val=value, count=count)
    _SymmetricMemory.memset32(words, offset=0, val=2, count=64)
    _SymmetricMemory.memset32(words, offset=63, val=3, count=1)
    assert words.tolist() == [2] * 63 + [3]


def test_memset32():
    conforms(filled_words, 1)
