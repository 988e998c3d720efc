"""torch.ops.symm_mem.*: the collective operators over symm's memory, on CPU and CUDA tensors.

On a GPU these are PyTorch's own kernels, which round after every addition; so most inputs here are
integers whose sums are exact in every dtype. That a CPU result has the bits of all_reduce is tested
with inputs that depend on the order.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import model
from harness import (
    DEVICE,
    GPUS,
    IS_SYMM,
    ON_CUDA,
    check,
    crowded,
    expect_no_mismatch,
    run_ranks,
    synchronize,
)
from operators import GROUPS, ops, total, whole_numbers
from symmetric import allocate, destroy, member_of_each, pads_not_zero, use_symm

pytestmark = pytest.mark.timeout(90)

DTYPES = [torch.float32, torch.bfloat16]
# Elements; multiples of 4 bytes in both dtypes. Shares of 3 ranks are uneven, some are empty.
COUNTS = [2, 8, 26, 1_030, 70_002]
MARGIN = 24  # elements before and after the tensor, in the same allocation
POISON = -77.0


class Surrounded:
    """A tensor inside a larger allocation that is poisoned around it."""

    def __init__(self, most: int, dtype: torch.dtype):
        self.memory = allocate(most + 2 * MARGIN, dtype=dtype)
        self.memory.fill_(POISON)

    def take(self, count: int, start: int = MARGIN) -> torch.Tensor:
        return self.memory[start : start + count]

    def spilled(self, count: int, start: int, what: str) -> list[str]:
        outside = torch.cat([self.memory[:start], self.memory[start + count :]])
        return model.mismatch(f"{what}: around it", outside, torch.full_like(outside, POISON))


def one_shot(tensor, mine, name):
    tensor.copy_(mine)
    return ops.one_shot_all_reduce(tensor, "sum", name)


def one_shot_out(tensor, mine, name):
    tensor.copy_(mine)
    out = torch.full_like(tensor, float("nan"))
    result = ops.one_shot_all_reduce_out(tensor, "sum", name, out)
    assert result.data_ptr() == out.data_ptr()
    return out


def one_shot_copy(tensor, mine, name):
    tensor.fill_(POISON)
    return ops.one_shot_all_reduce_copy(tensor, mine.to(DEVICE), "sum", name)


def one_shot_copy_out(tensor, mine, name):
    tensor.fill_(POISON)
    out = torch.full_like(tensor, float("nan"))
    ops.one_shot_all_reduce_copy_out(tensor, mine.to(DEVICE), "sum", name, out)
    return out


def two_shot(tensor, mine, name):
    tensor.copy_(mine)
    result = ops.two_shot_all_reduce_(tensor, "sum", name)
    assert result.data_ptr() == tensor.data_ptr()
    return tensor


def two_shot_out(tensor, mine, name):
    tensor.copy_(mine)
    out = torch.full_like(tensor, float("nan"))
    result = ops.two_shot_all_reduce_out(tensor, "sum", name, out)
    assert result.data_ptr() == out.data_ptr()
    return out


ALL_REDUCES = [one_shot, one_shot_out, one_shot_copy, one_shot_copy_out, two_shot, two_shot_out]
KEEP_INPUT = [one_shot, one_shot_out, one_shot_copy, one_shot_copy_out]


def can_run(call, ranks) -> bool:
    """PyTorch's CUDA kernels for these are there for 2, 4 and 8 ranks only."""
    return not ON_CUDA or call in KEEP_INPUT + [two_shot] or len(ranks) in (2, 4, 8)


def starts_for(call) -> list[int]:
    """Where the tensors of COUNTS begin: at other alignments too, where a copied input need not
    have the alignment of the buffer."""
    if call in (one_shot_copy, one_shot_copy_out):
        return [MARGIN] * len(COUNTS)
    return [MARGIN - 2 * number for number in range(len(COUNTS))]


def all_reduces(rank, lists, call, dtype):
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        if not can_run(call, ranks):
            continue
        place = Surrounded(max(COUNTS), dtype)
        for count, start in zip(COUNTS, starts_for(call), strict=True):
            place.memory.fill_(POISON)
            symm_mem.rendezvous(place.memory, group).barrier()
            for salt in range(4):  # at once one after the other: nothing orders the ranks else
                what = f"{call.__name__} {model.name(dtype)} {count} of {ranks}, call {salt}"
                mine = whole_numbers(count, rank, salt, dtype)
                tensor = place.take(count, start)
                got = call(tensor, mine, group.group_name)
                problems += model.mismatch(what, got, total(count, ranks, salt, dtype))
                if call in KEEP_INPUT:
                    problems += model.mismatch(f"{what}: input", tensor, mine)
                problems += place.spilled(count, start, what)
        problems += pads_not_zero(symm_mem.rendezvous(place.memory, group), f"{ranks}")
    destroy(groups)
    return problems


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("call", ALL_REDUCES, ids=lambda call: call.__name__)
@pytest.mark.parametrize("world_size", GROUPS)
def test_all_reduce(world_size, call, dtype):
    check(all_reduces, world_size, GROUPS[world_size], call, dtype)


def reduce_scatters(rank, lists, dtype):
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        size = len(ranks)
        if not can_run(reduce_scatters, ranks):
            continue
        place = Surrounded(4 * 5 * 480, dtype)
        for salt, (rows, width) in enumerate([(1, 8), (1, 480), (5, 8), (5, 240), (2, 16)]):
            count = rows * width * size
            tensor = place.take(count)
            expected = total(count, ranks, salt, dtype).view(rows, size, width)
            me = ranks.index(rank)
            for split in (False, True):
                tensor.copy_(whole_numbers(count, rank, salt, dtype))
                shape = (rows, width) if split else (rows * width,)
                out = torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)
                given = tensor.view(rows, size * width) if split else tensor
                result = ops.reduce_scatter_out(given, group.group_name, split, out)
                wanted = expected[:, me] if split else expected.view(size, -1)[me]
                what = f"{rows} x {width} of {ranks}, split {split}"
                problems += model.mismatch(what, out, wanted.contiguous())
                if result.data_ptr() != out.data_ptr():
                    problems.append(f"{what}: another tensor than the output comes back")
    destroy(groups)
    return problems


@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("world_size", GROUPS)
def test_reduce_scatter(world_size, dtype):
    check(reduce_scatters, world_size, GROUPS[world_size], dtype)


def other_backend(rank, backend):
    """In a group whose backend is not symm: its Store is all that is needed."""
    use_symm()
    size = dist.get_world_size()
    ranks, name = list(range(size)), dist.group.WORLD.group_name
    tensor = allocate(1_026)
    problems = []
    for salt in range(3):
        tensor.copy_(whole_numbers(1_026, rank, salt))
        got = ops.one_shot_all_reduce(tensor, "sum", name)
        problems += model.mismatch(f"one-shot {salt}", got, total(1_026, ranks, salt))
        ops.two_shot_all_reduce_(tensor, "sum", name)
        problems += model.mismatch(f"two-shot {salt}", tensor, total(1_026, ranks, salt))
    synchronize()
    dist.barrier()
    return problems


@pytest.mark.parametrize("world_size", GROUPS)
def test_other_backend(world_size):
    if crowded(world_size):
        pytest.skip(f"NCCL wants a GPU for each of {world_size} ranks, here are {GPUS}")
    backend = "nccl" if ON_CUDA else "gloo"
    expect_no_mismatch(run_ranks(other_backend, world_size, backend, backend=backend))


def same_bits(rank, dtype):
    """Inputs whose sums depend on the order and on where they are rounded."""
    use_symm()
    size = dist.get_world_size()
    name = dist.group.WORLD.group_name
    count = 20 * size * 40
    tensor = allocate(count, dtype=dtype)
    problems = []
    for salt in range(3):
        every = [model.make_input(dtype, count, r, salt) for r in range(size)]
        expected = model.reduced(every, "SUM")
        if IS_SYMM:
            of_group = every[rank].clone()
            dist.all_reduce(of_group)
            problems += model.mismatch("dist.all_reduce", of_group, expected)
        for call in ALL_REDUCES:
            got = call(tensor, every[rank], name)
            problems += model.mismatch(f"{call.__name__} {salt}", got, expected)
        tensor.copy_(every[rank])
        for rows in (1, 20):
            out = torch.full((rows, count // rows // size), float("nan"), dtype=dtype)
            ops.reduce_scatter_out(tensor.view(rows, -1), name, True, out)
            part = expected.view(rows, size, -1)[:, rank].contiguous()
            problems += model.mismatch(f"reduce_scatter {rows} {salt}", out, part)
    return problems


@pytest.mark.cpu("PyTorch's CUDA kernels round after every addition")
@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("world_size", GROUPS)
def test_same_bits_as_all_reduce(world_size, dtype):
    check(same_bits, world_size, dtype)


def shorter_local_input(rank):
    """What the local input does not cover takes part as it stands."""
    use_symm()
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    tensor = allocate(64)
    tensor.copy_(whole_numbers(64, rank, 1))
    out = torch.full_like(tensor, float("nan"))
    ops.one_shot_all_reduce_copy_out(tensor, whole_numbers(24, rank, 2), "sum", name, out)
    expected = total(64, range(size), 1)
    expected[:24] = total(24, range(size), 2)
    return model.mismatch("sum", out, expected)


@pytest.mark.cpu("PyTorch's CUDA kernel reads beyond the end of the shorter input")
def test_shorter_local_input():
    check(shorter_local_input, 3)


def two_allocations(rank):
    """Calls on two allocations and on two places of one, in turn."""
    use_symm()
    ranks, name = range(dist.get_world_size()), dist.group.WORLD.group_name
    first, second = allocate(96), allocate(4, 8)
    problems = []
    for salt in range(5):
        views = [first[:32], first[64:], second]
        for number, view in enumerate(views):
            view.copy_(whole_numbers(32, rank, salt + number).view(view.shape))
        for number, view in enumerate(views):
            got = ops.one_shot_all_reduce(view, "sum", name)
            expected = total(32, ranks, salt + number).view(view.shape)
            problems += model.mismatch(f"{number} in round {salt}", got, expected)
    return problems


def test_two_allocations():
    check(two_allocations, 4)


def without_elements(rank):
    use_symm()
    name, problems = dist.group.WORLD.group_name, []
    for shape in [(0,), (3, 0)]:
        tensor = allocate(*shape)
        out = torch.empty(shape, device=DEVICE)
        results = [
            ops.one_shot_all_reduce(tensor, "sum", name),
            ops.one_shot_all_reduce_out(tensor, "sum", name, out),
            ops.one_shot_all_reduce_copy(tensor, out, "sum", name),
            ops.two_shot_all_reduce_(tensor, "sum", name),
            ops.two_shot_all_reduce_out(tensor, "sum", name, out),
            ops.reduce_scatter_out(tensor, name, len(shape) == 2, out),
        ]
        problems += [f"{number}: {r.shape}" for number, r in enumerate(results) if r.shape != shape]
    return problems


def test_without_elements():
    check(without_elements, 2)


def without_dimensions(rank):
    use_symm()
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    tensor = allocate()
    tensor.fill_(rank + 2)
    expected = torch.tensor(float(sum(range(2, size + 2))))
    problems = model.mismatch("one-shot", ops.one_shot_all_reduce(tensor, "sum", name), expected)
    ops.two_shot_all_reduce_(tensor, "sum", name)
    return problems + model.mismatch("two-shot", tensor, expected)


def test_without_dimensions():
    check(without_dimensions, 3)


def words(rank):
    use_symm()
    size, name = dist.get_world_size(), dist.group.WORLD
    pad = allocate(16, dtype=torch.uint32)
    handle = symm_mem.rendezvous(pad, name)
    pad.view(torch.int32).fill_(-1)
    handle.barrier()
    peer = (rank + 1) % size
    theirs = handle.get_buffer(peer, (16,), torch.uint32)
    ops.memset32_(theirs, 3, 40 + rank, 5)
    ops.stream_write_value32_(theirs, 9, 4_000_000_000 + rank)
    handle.barrier()
    source = (rank - 1) % size
    expected = [-1] * 3 + [40 + source] * 5 + [-1] + [4_000_000_000 + source - 2**32] + [-1] * 6
    expected = torch.tensor(expected, dtype=torch.int32)
    problems = model.mismatch("words", pad.view(torch.int32), expected)
    handle.barrier()
    returned = ops.memset32_(pad, 0, 2**32 - 1, 16)
    if returned.data_ptr() != pad.data_ptr():
        problems.append("memset32_ returns another tensor")
    full = torch.full((16,), -1, dtype=torch.int32)
    return problems + model.mismatch("all words", pad.view(torch.int32), full)


def test_memset32_and_stream_write_value32():
    check(words, 3)
