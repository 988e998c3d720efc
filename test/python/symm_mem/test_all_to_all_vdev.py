"""torch.ops.symm_mem.all_to_all_vdev and its two-dimensional forms, whose splits are data.

What arrives is compared with a model that looks at all ranks' inputs one after the other. Every
rank computes everybody's splits and rows from the number of the call.
"""

import random

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import model
from errors import message_of, unsaid
from harness import ON_CUDA, check, device_of_rank, few, synchronize
from operators import GROUPS, ops
from symmetric import allocate, destroy, member_of_each, use_symm

pytestmark = pytest.mark.timeout(90)

ROWS, OUT_ROWS = 96, 400
POISON = -77
SHAPES = [(), (3,), (2, 5)]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]


def splits_of(rank: int, slots: int, salt: int) -> list[int]:
    """Odd and uneven, some of them 0; at times all."""
    draw = random.Random(1_000 * salt + rank)
    if salt % 5 == 4:
        return [0] * slots if rank % 2 else [ROWS // slots] * slots
    most = max(1, ROWS // slots)
    return [draw.choice([0, 0, 1, 3, most, draw.randint(0, most)]) for _ in range(slots)]


def rows_of(rank: int, salt: int, shape, dtype) -> torch.Tensor:
    numbers = torch.arange(ROWS * max(1, torch.Size(shape).numel()))
    return ((numbers * 7 + rank * 31 + salt * 5) % 113).to(dtype).view(ROWS, *shape)


def exclusive_sums(values) -> list[int]:
    return [sum(values[:index]) for index in range(len(values))]


def dispatched(ranks, me: int, experts: int, salt: int, align: int, shape, dtype):
    """(splits, offsets, rows, rows with a value) of rank `me` after all_to_all_vdev_2d."""
    size, splits, offsets, begin = len(ranks), [], [], 0
    out = torch.full((OUT_ROWS, *shape), POISON % 128, dtype=dtype)
    for expert in range(experts):
        at = begin
        for rank in ranks:
            sent = splits_of(rank, size * experts, salt)
            slot = me * experts + expert
            start = exclusive_sums(sent)[slot]
            rows = rows_of(rank, salt, shape, dtype)[start : start + sent[slot]]
            splits.append(sent[slot])
            offsets.append(at)
            out[at : at + len(rows)] = rows
            at += len(rows)
        begin += max(align, -(-(at - begin) // align) * align) if align else at - begin
    return splits, offsets, out


class Exchange:
    """The tensors of one group's calls."""

    def __init__(self, group, ranks, rank, experts, shape, dtype):
        self.name, self.ranks, self.me = group.group_name, ranks, ranks.index(rank)
        self.rank, self.experts, self.shape, self.dtype = rank, experts, shape, dtype
        slots = len(ranks) * experts
        self.input = allocate(ROWS, *shape, dtype=dtype)
        self.out = allocate(OUT_ROWS, *shape, dtype=dtype)
        self.splits = allocate(slots, dtype=torch.int64)
        self.results = allocate(2, slots, dtype=torch.int64)

    def fill(self, salt):
        self.input.copy_(rows_of(self.rank, salt, self.shape, self.dtype))
        self.splits.copy_(torch.tensor(splits_of(self.rank, self.splits.numel(), salt)))
        self.out.fill_(POISON % 128)
        self.results.fill_(POISON)

    def wrong(self, what, salt, align):
        """What differs from the model."""
        splits, offsets, out = dispatched(
            self.ranks, self.me, self.experts, salt, align, self.shape, self.dtype
        )
        expected = torch.tensor([splits, offsets])
        problems = model.mismatch(f"{what}: splits and offsets", self.results, expected)
        problems += model.mismatch(f"{what}: rows", self.out, out)
        mine = rows_of(self.rank, salt, self.shape, self.dtype)
        return problems + model.mismatch(f"{what}: input", self.input, mine)


def one_dimension(rank, lists, shape, dtype):
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        these = Exchange(group, ranks, rank, 1, shape, dtype)
        for salt in few(
            range(12), 5, len(ranks)
        ):  # at once one after the other: nothing orders the ranks else
            these.fill(salt)
            given = these.input, these.out, these.splits, these.results, these.name
            assert ops.all_to_all_vdev(*given) is None
            problems += these.wrong(f"call {salt} of {ranks}", salt, 0)
    destroy(groups)
    return problems


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("world_size", GROUPS)
def test_all_to_all_vdev(world_size, dtype):
    check(one_dimension, world_size, GROUPS[world_size], SHAPES[world_size - 2], dtype)


def there_and_back(rank, lists, experts, align):
    """Tokens go to their experts and come back to where they were."""
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        these = Exchange(group, ranks, rank, experts, (3,), torch.bfloat16)
        back = allocate(ROWS, 3, dtype=torch.bfloat16)
        ends = allocate(2, these.splits.numel(), dtype=torch.int64)
        for salt in few(range(10), 5, len(ranks)):
            what = f"call {salt} of {ranks}"
            these.fill(salt)
            more = [] if align is None else [align]
            ops.all_to_all_vdev_2d(
                these.input, these.out, these.splits, these.results, these.name, *more
            )
            problems += these.wrong(what, salt, align or 1)
            back.fill_(POISON)
            ends.fill_(POISON)
            ops.all_to_all_vdev_2d_offset(these.out, back, these.results, ends, these.name)
            sent = splits_of(rank, these.splits.numel(), salt)
            expected = torch.tensor([sent, exclusive_sums(sent)])
            problems += model.mismatch(
                f"{what}: splits and offsets of the way back", ends, expected
            )
            rows = rows_of(rank, salt, (3,), torch.bfloat16)
            rows[sum(sent) :] = POISON
            problems += model.mismatch(f"{what}: rows that came back", back, rows)
    destroy(groups)
    return problems


@pytest.mark.sampled(6)
@pytest.mark.parametrize("align", [None, 7, 16])
@pytest.mark.parametrize("experts", [1, 2, 3])
@pytest.mark.parametrize("world_size", GROUPS)
def test_all_to_all_vdev_2d_and_its_way_back(world_size, experts, align):
    check(there_and_back, world_size, GROUPS[world_size], experts, align)


def with_gaps(rank):
    """Offsets need not be those that a dispatch gives: chunks may lie in any order, with gaps."""
    use_symm()
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    given = allocate(32)
    out, numbers = allocate(12), allocate(2, size, dtype=torch.int64)
    ends = allocate(2, size, dtype=torch.int64)
    given.copy_(torch.arange(32.0) + 100 * rank)
    numbers.copy_(torch.tensor([[2, 0, 3][:size], [20, 999, 4][:size]]))
    out.fill_(POISON)
    ops.all_to_all_vdev_2d_offset(given, out, numbers, ends, name)
    start, count = [(20, 2), (0, 0), (4, 3)][rank]
    chunks = [torch.arange(start, start + count) + 100.0 * peer for peer in range(size)]
    expected = torch.full((12,), float(POISON))
    expected[: count * size] = torch.cat(chunks)
    offsets = torch.tensor([[count] * size, exclusive_sums([count] * size)])
    problems = model.mismatch("rows", out, expected)
    return problems + model.mismatch("splits and offsets", ends, offsets)


def test_chunks_may_lie_anywhere():
    check(with_gaps, 3)


def ordinary_results(rank):
    """What only this rank writes need not be symmetric."""
    use_symm()
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    given, splits = allocate(size), allocate(size, dtype=torch.int64)
    given.fill_(rank)
    splits.fill_(1)
    place = device_of_rank()
    out = torch.empty(size, device=place)
    results = torch.empty(2, size, dtype=torch.int64, device=place)
    ops.all_to_all_vdev(given, out, splits, results, name)
    expected = torch.tensor([[1] * size, list(range(size))])
    problems = model.mismatch("rows", out, torch.arange(float(size)))
    return problems + model.mismatch("splits and offsets", results, expected)


def test_results_in_ordinary_memory():
    check(ordinary_results, 4)


def of_wrong_data(rank):
    """All ranks raise the same, nothing is written, and the group goes on."""
    use_symm()
    size, name, problems = dist.get_world_size(), dist.group.WORLD.group_name, []
    given, out = allocate(10, 2), allocate(10, 2)
    splits, results = allocate(size, dtype=torch.int64), allocate(2, size, dtype=torch.int64)
    with_offsets = allocate(2, size, dtype=torch.int64)
    arguments = {
        ops.all_to_all_vdev: (given, out, splits, results, name),
        ops.all_to_all_vdev_2d: (given, out, splits, results, name, 8),
        ops.all_to_all_vdev_2d_offset: (given, out, with_offsets, results, name),
    }

    def refused(op, of_rank_1, parts, rows=splits):
        rows.fill_(1)
        if rank == 1:
            rows.copy_(torch.tensor(of_rank_1))
        out.fill_(POISON)
        results.fill_(POISON)
        nonlocal problems
        problems += unsaid(message_of(RuntimeError, op, *arguments[op]), parts)
        if not (out.eq(POISON).all() and results.eq(POISON).all()):
            problems.append(f"{parts}: something was written")

    of_1 = "in_splits of rank 1: expected splits "
    refused(
        ops.all_to_all_vdev, [1, -3, 1], ["all_to_all_vdev: " + of_1 + "of 0 or more, got -3 at 1"]
    )
    refused(ops.all_to_all_vdev, [4, 4, 4], [of_1 + "within the 10 rows of input, got 4 rows from"])
    refused(ops.all_to_all_vdev, [2**62, 2**62, 0], [of_1 + "within", f"got {2**62} rows"])
    refused(
        ops.all_to_all_vdev,
        [9, 0, 0],
        ["out: expected room for the 11 rows that rank 0 gets, got 10"],
    )
    refused(ops.all_to_all_vdev_2d, [1, -3, 1], ["all_to_all_vdev_2d: " + of_1, "got -3 at 1"])
    offset = "in_splits_offsets of rank 1: expected splits "
    wrong = [[1, 1, 1], [0, 10, 0]]
    refused(
        ops.all_to_all_vdev_2d_offset, wrong, [offset, "1 rows from row 10 on at 1"], with_offsets
    )
    wrong = [[1, 1, 1], [0, 0, -1]]
    refused(ops.all_to_all_vdev_2d_offset, wrong, [offset, "from row -1 on at 2"], with_offsets)

    splits.fill_(1)
    given.fill_(rank)
    ops.all_to_all_vdev(*arguments[ops.all_to_all_vdev])
    expected = torch.arange(float(size)).repeat_interleave(2).view(size, 2)
    return problems + model.mismatch("the call after them", out[:size], expected)


@pytest.mark.cpu("of a GPU the test below")
def test_wrong_splits_raise_on_every_rank():
    check(of_wrong_data, 3)


def of_wrong_data_on_gpu(rank, op, of_rank_1, parts):
    """The host does not know the splits: the group's next signal there raises, on every rank, and
    nothing was written. Another group goes on."""
    use_symm()
    size, problems = dist.get_world_size(), []
    group = dist.new_group(list(range(size)))
    given, out = allocate(10, 2), allocate(10, 2)
    shape = (size,) if len(of_rank_1) == 3 else (2, size)
    splits, results = allocate(*shape, dtype=torch.int64), allocate(2, size, dtype=torch.int64)
    splits.fill_(1)
    if rank == 1:
        splits.copy_(torch.tensor(of_rank_1).view(shape))
    out.fill_(POISON)
    results.fill_(POISON)
    getattr(ops, op)(given, out, splits, results, group.group_name)
    synchronize()
    handle = symm_mem.rendezvous(given, group)
    problems += unsaid(message_of(dist.DistBackendError, handle.barrier), [op + ": ", *parts])
    again = message_of(
        dist.DistBackendError, getattr(ops, op), given, out, splits, results, group.group_name
    )
    problems += unsaid(again, parts)
    if not (out.eq(POISON).all() and results.eq(POISON).all()):
        problems.append(f"{parts}: something was written")
    splits.fill_(1)
    given.fill_(rank)
    name = dist.group.WORLD.group_name
    if op == "all_to_all_vdev":
        ops.all_to_all_vdev(given, out, splits, results, name)
        expected = torch.arange(float(size)).repeat_interleave(2).view(size, 2)
        problems += model.mismatch("in another group", out[:size], expected)
    destroy([(group, None)])
    return problems


OF_1 = "in_splits of rank 1: expected splits "
WRONG = {
    "negative": ("all_to_all_vdev", [1, -3, 1], [OF_1 + "of 0 or more, got -3 at 1"]),
    "too many": ("all_to_all_vdev", [4, 4, 4], [OF_1 + "within the 10 rows of input, got 4 rows"]),
    "sum": ("all_to_all_vdev", [2**62, 2**62, 0], [OF_1 + "within", f"got {2**62} rows"]),
    "no room": ("all_to_all_vdev", [9, 0, 0], ["room for the 11 rows that rank 0 gets, got 10"]),
    "2d": ("all_to_all_vdev_2d", [1, -3, 1], [OF_1, "got -3 at 1"]),
    "offset": (
        "all_to_all_vdev_2d_offset",
        [1, 1, 1, 0, 10, 0],
        ["in_splits_offsets of rank 1", "1 rows from row 10 on at 1"],
    ),
}


@pytest.mark.skipif(not ON_CUDA, reason="of the CPU the test above")
@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_wrong_splits_end_the_signals_of_every_rank(case):
    check(of_wrong_data_on_gpu, 3, *case)


def of_wrong_tensors(rank):
    use_symm()
    size, name, problems = dist.get_world_size(), dist.group.WORLD.group_name, []
    given, out = allocate(12, 2), allocate(12, 2)
    splits, results = allocate(size, dtype=torch.int64), allocate(2, size, dtype=torch.int64)
    splits.fill_(1)

    def refused(parts, op=ops.all_to_all_vdev, **changed):
        tensors = {"input": given, "out": out, "in_splits": splits, "out_splits_offsets": results}
        tensors.update(changed)
        nonlocal problems
        problems += unsaid(message_of(RuntimeError, op, *tensors.values(), group_name=name), parts)

    place = device_of_rank()
    refused(["input must be in symmetric memory"], input=torch.zeros(12, 2, device=place))
    ordinary = torch.ones(size, dtype=torch.int64, device=place)
    refused(["in_splits must be in symmetric memory"], in_splits=ordinary)
    refused(["out must have the dtype of input"], out=allocate(12, 2, dtype=torch.float64))
    refused(["out must have rows of as many elements"], out=allocate(12, 3))
    refused(["input must be contiguous"], input=given.t())
    refused(["out must be contiguous"], out=out[:, :1])
    refused(["out must not overlap input"], out=given)
    refused(["input must have rows, got a scalar"], input=allocate())
    refused(["in_splits must be int64"], in_splits=allocate(size, dtype=torch.int32))
    refused(["out_splits_offsets must be int64"], out_splits_offsets=allocate(2, size))
    refused(["in_splits must have shape"], in_splits=allocate(1, size, dtype=torch.int64))
    refused(["out_splits_offsets must have shape"], out_splits_offsets=results[:1])
    refused(["out_splits_offsets must have shape"], out_splits_offsets=results.view(-1))
    if ON_CUDA:
        refused(["out must be on the device of input, cuda:., got cpu"], out=torch.zeros(12, 2))
    wide = allocate(2 * size, dtype=torch.int64)
    ends = allocate(2, 2 * size, dtype=torch.int64)
    refused(["a split for each of the 3 ranks"], in_splits=wide, out_splits_offsets=ends)
    two_d = ops.all_to_all_vdev_2d
    refused(
        ["a multiple of 3 splits"],
        two_d,
        in_splits=wide[:4],
        out_splits_offsets=ends.view(3, 4)[:2],
    )
    text = message_of(RuntimeError, two_d, given, out, splits, results, name, 0)
    problems += unsaid(text, ["major_align must be 1 to .*, got 0"])
    way_back = ops.all_to_all_vdev_2d_offset
    text = message_of(RuntimeError, way_back, given, out, splits, results, name)
    return problems + unsaid(text, [r"in_splits_offsets must have shape \[2, splits\]"])


def test_wrong_tensors():
    check(of_wrong_tensors, 3)
