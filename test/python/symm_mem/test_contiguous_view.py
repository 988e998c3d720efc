"""torch_symm.contiguous_view: every rank's buffer in its slice, on every rank, with no copy."""

import mmap

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import model
from errors import CALL_ERRORS, message_of, not_raised
from harness import (
    DEVICE,
    ON_CUDA,
    check,
    crowded,
    device_of_rank,
    expect_no_mismatch,
    few,
    new_group_in_order,
    run_ranks,
    synchronize,
)
from symmetric import (
    GRANULE,
    WORLD_SIZES,
    descriptors,
    filled,
    granules,
    mapped_areas,
    meet,
    pattern,
    persistent,
    use_symm,
    wrong_slices,
)

pytestmark = pytest.mark.timeout(90)

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex128]


# -- Content -------------------------------------------------------------------------------------


def of_any_shape(rank):
    import torch_symm

    size = dist.get_world_size()
    ranks, problems = list(range(size)), []
    for shape in [(), (1,), (0,), (3, 0), (5, 7), (4099,), (3, 1, 2, 5), (300_007,)]:
        for dtype in few(DTYPES, 2, size):
            tensor = filled(*shape, dtype=dtype, salt=len(shape))
            view = torch_symm.contiguous_view(tensor)
            meet()
            what = f"{shape} {model.name(dtype)}"
            problems += wrong_slices(view, ranks, shape, dtype, len(shape), what)
            if view[rank].numel() and not view[0].is_contiguous():
                problems.append(f"{what}: a slice is not contiguous")
            if view.numel() and (view.stride(0) * view.element_size()) % mmap.PAGESIZE:
                problems.append(f"{what}: slices are {view.stride(0)} elements apart")
            if view.device != device_of_rank() or view.requires_grad:
                problems.append(f"{what}: on {view.device}, requires_grad {view.requires_grad}")
            meet()
    return problems


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_shape_and_dtype(world_size):
    check(of_any_shape, world_size)


def one_writer_at_a_time(rank):
    """A write through a view or through the tensor is seen by all, the writer's own included."""
    import torch_symm

    size = dist.get_world_size()
    tensor = filled(1027)
    view = torch_symm.contiguous_view(tensor)
    every = [pattern(1027, r) for r in range(size)]
    problems = []
    for writer in range(size):
        for target in range(size):
            meet()
            salt = 1 + writer * size + target
            every[target] = pattern(1027, writer, salt)
            if rank == writer:
                place = tensor if target == writer else view[target]
                place.copy_(every[target])
            meet()
            for peer in range(size):
                label = f"{writer} wrote {target}, slice {peer} on {rank}"
                problems += model.mismatch(label, view[peer], every[peer])
            problems += model.mismatch("the tensor itself", tensor, every[rank])
    meet()
    return problems


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_write_is_seen_by_all(world_size):
    check(one_writer_at_a_time, world_size)


def at_an_offset(rank):
    import torch_symm

    ranks, problems = list(range(dist.get_world_size())), []
    whole = filled(1000)
    whole_view = torch_symm.contiguous_view(whole)
    for start, stop in [(21, 60), (1, 1000), (999, 1000), (0, 10)]:
        view = torch_symm.contiguous_view(whole[start:stop])
        meet()
        part = slice(start, stop)
        problems += wrong_slices(view, ranks, (stop - start,), what=str(part), part=part)
        if view.data_ptr() != whole_view.data_ptr() + 4 * start:
            problems.append(f"{part} is mapped a second time")
    rows = whole.view(10, 100)
    view = torch_symm.contiguous_view(rows[3:5])
    problems += wrong_slices(view, ranks, (2, 100), what="rows", part=slice(300, 500))
    as_words = torch_symm.contiguous_view(whole.view(torch.int32)[8:20])
    for peer in ranks:
        expected = pattern(1000, peer).view(torch.int32)[8:20]
        problems += model.mismatch("another dtype", as_words[peer], expected)
    meet()
    return problems


def test_tensors_at_an_offset():
    check(at_an_offset, 3)


def without_gaps(rank):
    """Whole granules: the ranks' tensors are one contiguous tensor, whatever the allocation has
    been used for before."""
    import torch_symm

    use_symm()
    size, problems = dist.get_world_size(), []
    odd = dist.new_group(list(range(0, size, 2)))
    for number in (1, 2, 5):
        tensor = granules(number)
        count = tensor.numel()
        tensor.copy_(pattern(count, rank, number))
        view = torch_symm.contiguous_view(tensor)
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
        handle.barrier()
        if view.stride() != (count, 1) or not view.is_contiguous():
            problems.append(f"{number} granules: strides {view.stride()}, {count} elements a rank")
            continue
        every = torch.cat([pattern(count, r, number) for r in range(size)])
        problems += model.mismatch(f"{number} granules", view.view(-1), every)
        handle.barrier()
        # Where two ranks' tensors meet: nothing of a rank's is behind its last element.
        if rank == 0:
            edges = torch.arange(1, size, device=view.device) * count
            view.view(-1)[edges - 1] = -1.0
            view.view(-1)[edges] = -2.0
        handle.barrier()
        problems += [] if rank == 0 or tensor[0] == -2.0 else [f"{number}: the first element"]
        problems += [] if rank == size - 1 or tensor[-1] == -1.0 else [f"{number}: the last one"]
        handle.barrier(1)
        if rank % 2 == 0:
            view = torch_symm.contiguous_view(tensor, odd)
            problems += [] if view.is_contiguous() else [f"{number} granules, in another group"]
    meet()
    if rank % 2 == 0:
        dist.destroy_process_group(odd)
    return problems


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_tensors_of_whole_granules_lie_without_a_gap(world_size):
    check(without_gaps, world_size)


def by_granule(rank):
    """One element more takes a granule more, and no granule is for what no tensor has."""
    import torch_symm

    use_symm()
    problems = []
    for number in (1, 3):
        whole = number * GRANULE // 4
        for count, apart in [(whole, number), (whole + 1, number + 1), (whole - 1, number)]:
            tensor = persistent(count, alloc_id=0x6A_0000 + 16 * number + count - whole)
            view = torch_symm.contiguous_view(tensor)
            if view.stride(0) * 4 != apart * GRANULE:
                problems.append(f"{count} elements are {view.stride(0)} apart")
    meet()
    return problems


def test_slices_are_as_far_apart_as_their_granules():
    check(by_granule, 2)


def in_groups(rank, lists):
    import torch_symm

    tensor, problems, mine = filled(500), [], []
    for ranks in lists:
        group, ordered = new_group_in_order(ranks)
        if rank in ranks:
            mine.append((group, ordered))
    meet()
    for group, ranks in mine:
        for name in (group, group.group_name):
            view = torch_symm.contiguous_view(tensor, name)
            problems += wrong_slices(view, ranks, (500,), what=str(ranks))
    world = torch_symm.contiguous_view(tensor)
    problems += wrong_slices(world, [0, 1, 2, 3], (500,), what="world")
    meet()
    for group, _ in mine:
        dist.destroy_process_group(group)
    return problems


GROUPS = [[[0, 2], [1, 3]], [[3, 0, 2]], [[0], [1], [2], [3]], [[0, 1], [1, 2], [2, 3]]]


@pytest.mark.parametrize("lists", GROUPS, ids=str)
def test_groups_of_any_ranks(lists):
    check(in_groups, 4, lists)


def over_gloo(rank):
    import torch_symm

    tensor = filled(500)
    view = torch_symm.contiguous_view(tensor)
    dist.barrier()
    problems = wrong_slices(view, [0, 1, 2], (500,), what="gloo")
    dist.barrier()
    return problems


def test_a_group_of_another_backend():
    expect_no_mismatch(run_ranks(over_gloo, 3, backend="gloo"))


# -- Mapping and life ----------------------------------------------------------------------------


def mappings():
    import torch_symm

    return torch_symm._C.mappings_made()


def a_second_call(rank):
    import torch_symm

    group = dist.new_group([1, 0, 2])
    tensor, problems = filled(64, 8), []
    first = torch_symm.contiguous_view(tensor)
    of_group = torch_symm.contiguous_view(tensor, group)
    before = mappings(), mapped_areas(), descriptors()
    for _ in range(5):
        if torch_symm.contiguous_view(tensor).data_ptr() != first.data_ptr():
            problems.append("the second view stands elsewhere")
        if torch_symm.contiguous_view(tensor, group).data_ptr() != of_group.data_ptr():
            problems.append("the second view of the group stands elsewhere")
        torch_symm.contiguous_view(tensor[3:])
        torch_symm.contiguous_view(tensor.view(torch.int16), group)
    if mappings() != before[0]:
        problems.append(f"{mappings() - before[0]} mappings were made")
    if not ON_CUDA and (mapped_areas(), descriptors()) != before[1:]:
        problems.append("areas or descriptors came up")
    meet()
    dist.destroy_process_group(group)
    return problems


def test_a_second_call_maps_nothing():
    check(a_second_call, 3)


def outlives_everything(rank):
    """The tensor is gone on every rank, and so is the group; the view still shows all."""
    import torch_symm

    group = dist.new_group([0, 1, 2])
    tensor = filled(5000)
    view = torch_symm.contiguous_view(tensor, group)
    meet()
    del tensor
    synchronize()
    dist.destroy_process_group(group)
    dist.barrier()
    problems = wrong_slices(view, [0, 1, 2], (5000,), what="after all")
    part = view[:, 100:200]
    del view
    dist.barrier()
    for peer in range(3):
        problems += model.mismatch("a part of it", part[peer], pattern(5000, peer)[100:200])
    return problems


def test_a_view_keeps_its_memory():
    expect_no_mismatch(run_ranks(outlives_everything, 3, fresh=True))


def come_and_go(rank, cycles):
    import torch_symm

    counts, problems = [], []
    for cycle in range(cycles):
        tensor = filled(50_000, salt=cycle)
        view = torch_symm.contiguous_view(tensor)
        meet()
        problems += wrong_slices(view, [0, 1, 2], (50_000,), salt=cycle, what=f"cycle {cycle}")
        meet()
        del tensor, view
        counts.append((descriptors(), mapped_areas()))
    first, last = counts[len(counts) // 4], counts[-1]
    if last[0] > first[0]:
        problems.append(f"descriptors grew from {first[0]} to {last[0]}")
    if not ON_CUDA and last[1] > first[1] + 4:
        problems.append(f"mapped areas grew from {first[1]} to {last[1]}")
    return problems


def test_views_are_unmapped():
    check(come_and_go, 3, 10 if crowded(3) else 40)


# -- Refusals ------------------------------------------------------------------------------------


def bad_inputs(rank):
    """Wrong on every rank; each is refused at once, and nothing of it is left behind."""
    import torch_symm

    tensor, problems = filled(6, 8), []
    others = dist.new_group([0, 1])
    plain = torch.ones(6, 8, device=DEVICE)
    cases = [
        (plain, None, ["symmetric memory", "[6, 8]", "torch_symm.empty"]),
        (tensor.t(), None, ["contiguous", "[8, 6]", "[1, 8]", "torch_symm.empty"]),
        (tensor[:, ::2], None, ["contiguous", "[6, 4]", "[8, 2]", "torch_symm.empty"]),
        (tensor, 3.5, ["group", "float"]),
        (tensor, "no such group", ["group", "no such group"]),
    ]
    if rank == 2:
        cases.append((tensor, others, ["group", "rank 2"]))
    for given, group, words in cases:
        words = ["contiguous_view", *words]
        problems += not_raised("", words, torch_symm.contiguous_view, given, group)
    view = torch_symm.contiguous_view(tensor)
    meet()
    problems += wrong_slices(view, [0, 1, 2], (6, 8), what="after refusals")
    meet()
    if rank != 2:
        dist.destroy_process_group(others)
    return problems


def test_wrong_inputs_are_refused():
    check(bad_inputs, 3)


def ranks_differ(rank, what):
    """One rank brings something else; every rank is told, and the group goes on."""
    import torch_symm

    whole = filled(100)
    odd = rank == 1
    given = {
        "shape": lambda: whole[:20] if odd else whole[:21],
        "dimensions": lambda: whole[:20].view(4, 5) if odd else whole[:20],
        "dtype": lambda: whole.view(torch.int32)[:20] if odd else whole[:20],
        "place": lambda: whole[1:21] if odd else whole[:20],
        "memory": lambda: torch.zeros(20, device=DEVICE) if odd else whole[:20],
        "layout": lambda: whole.view(10, 10).t() if odd else whole.view(10, 10),
    }[what]()
    text = message_of(CALL_ERRORS, torch_symm.contiguous_view, given)
    view = torch_symm.contiguous_view(whole)
    meet()
    problems = wrong_slices(view, [0, 1, 2], (100,), what=f"after {what}")
    meet()
    return text, problems


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("shape", ["20", "21"]),
        ("dimensions", ["4", "5", "20"]),
        ("dtype", ["loat", "nt"]),
        ("place", ["4", "0"]),
        ("memory", ["symmetric", "[20]", "torch_symm.empty"]),
        ("layout", ["contiguous", "[10, 10]", "torch_symm.empty"]),
    ],
)
def test_what_differs_between_ranks_is_said_on_every_rank(what, words):
    for rank, (text, problems) in enumerate(run_ranks(ranks_differ, 3, what)):
        assert not problems, problems
        assert all(word in text for word in ["contiguous_view", *words]), f"rank {rank}: {text}"


def one_rank_does_something_else(rank):
    tensor = filled(30)
    import torch_symm

    if rank == 1:
        call = symm_mem.rendezvous
        return message_of(CALL_ERRORS, call, filled(30), dist.group.WORLD)
    return message_of(CALL_ERRORS, torch_symm.contiguous_view, tensor)


def test_another_collective_on_one_rank_raises():
    for text in run_ranks(one_rank_does_something_else, 2, timeout=5):
        assert "rank" in text, text
