"""Symmetric memory in groups of any ranks and any backend; groups that are destroyed and remade."""

import datetime
import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C._distributed_c10d import _SymmetricMemory
from torch.distributed.device_mesh import init_device_mesh

import model
from errors import ERRORS, message_of
from harness import (
    DEVICE,
    IS_SYMM,
    ON_CUDA,
    WORLD_SIZE,
    check,
    expect_no_mismatch,
    resources,
    run_ranks,
    synchronize,
)
from symmetric import (
    WORLD_SIZES,
    allocate,
    destroy,
    meet,
    member_of_each,
    pads_not_zero,
    pattern,
    shared,
    use_symm,
    wrong_peers,
)

pytestmark = pytest.mark.timeout(90)

CHOICES_OF_RANKS = [
    [[0, 1], [2, 3]],
    [[0, 2], [1, 3]],
    [[1, 2]],
    [[3, 0, 2]],
    [[0], [1], [2], [3]],
    [[0, 1], [1, 2], [2, 3], [0, 3]],
]


def one_allocation_in_many_groups(rank, lists):
    """The same allocation joins the world and every group; each sees its own ranks in it."""
    use_symm()
    world = list(range(dist.get_world_size()))
    groups = member_of_each(lists)
    tensor, of_world = shared(1027)
    problems, handles = [], []
    for group, ranks in groups:
        handle = symm_mem.rendezvous(tensor, group)
        if (handle.rank, handle.world_size) != (ranks.index(rank), len(ranks)):
            problems.append(f"rank {rank} is {handle.rank} of {handle.world_size} in {ranks}")
        if handle.buffer_ptrs[handle.rank] != tensor.data_ptr():
            problems.append(f"{ranks}: the own buffer stands elsewhere")
        handles.append((handle, ranks))
    for salt in range(3):
        tensor.copy_(pattern(1027, rank, salt))
        of_world.barrier()
        problems += wrong_peers(of_world, world, 1027, salt=salt, what="world")
        for handle, ranks in handles:
            handle.barrier()
            problems += wrong_peers(handle, ranks, 1027, salt=salt, what=str(ranks))
            handle.barrier()
        of_world.barrier()
    synchronize()
    dist.barrier()
    problems += pads_not_zero(of_world)
    destroy(groups)
    return problems


@pytest.mark.parametrize("lists", CHOICES_OF_RANKS, ids=str)
def test_one_allocation_in_many_groups(lists):
    check(one_allocation_in_many_groups, 4, lists)


def an_allocation_for_each_group(rank, lists):
    """Some ranks rendezvous more often than others before all of them meet in the world."""
    use_symm()
    groups, problems, kept = member_of_each(lists), [], []
    for group, ranks in groups:
        tensor, handle = shared(99, group, salt=len(ranks))
        kept.append(tensor)
        problems += wrong_peers(handle, ranks, 99, salt=len(ranks), what=str(ranks))
        handle.barrier()
    tensor, handle = shared(1000, salt=9)
    problems += wrong_peers(handle, list(range(4)), 1000, salt=9, what="the world")
    handle.barrier()
    destroy(groups)
    return problems


@pytest.mark.parametrize("lists", [[[0, 1, 2]], [[0, 1], [1, 2]], [[0, 2], [1, 3]]], ids=str)
def test_groups_do_not_disturb_each_other(lists):
    check(an_allocation_for_each_group, 4, lists)


def of_a_mesh(rank):
    use_symm()
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("outer", "inner"))
    row, column = [rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]
    tensor, problems = allocate(50), []
    tensor.copy_(pattern(50, rank))
    for name, ranks in [("inner", row), ("outer", column)]:
        handle = symm_mem.rendezvous(tensor, mesh.get_group(name))
        handle.barrier()
        problems += wrong_peers(handle, ranks, 50, what=name)
        handle.barrier()
    return problems


def test_groups_of_a_device_mesh():
    expect_no_mismatch(run_ranks(of_a_mesh, 4, fresh=True))


def of_another_backend(rank, lists, backend):
    use_symm()
    groups, problems = member_of_each(lists, backend), []
    for group, ranks in groups:
        tensor, handle = shared(77, group)
        problems += wrong_peers(handle, ranks, 77, what=f"{backend} {ranks}")
        table = handle.get_buffer((handle.rank + 1) % len(ranks), (77,), torch.float32)
        handle.barrier()
        table.copy_(pattern(77, rank, salt=5))
        handle.barrier()
        writer = ranks[(handle.rank - 1) % len(ranks)]
        wrong = (tensor.cpu() != pattern(77, writer, salt=5)).sum().item()
        problems += [f"{wrong} elements that rank {writer} wrote are wrong"] if wrong else []
        handle.barrier()
    destroy(groups)
    return problems


NCCL = pytest.param("nccl", marks=[pytest.mark.cuda, pytest.mark.gpus(2)])


@pytest.mark.parametrize("backend", ["gloo", NCCL])
@pytest.mark.parametrize("lists", [[[0, 1, 2, 3]], [[0, 2], [1, 3]]], ids=str)
def test_groups_of_another_backend(lists, backend):
    expect_no_mismatch(run_ranks(of_another_backend, 4, lists, backend, fresh=True))


def world_of_another_backend(rank):
    """No group of symm exists in the process."""
    use_symm()
    size, problems = dist.get_world_size(), []
    for count in (3, 100_003):
        _tensor, handle = shared(count, salt=count)
        problems += wrong_peers(handle, list(range(size)), count, salt=count, what="the world")
        handle.barrier()
    dist.barrier()
    return problems + pads_not_zero(handle)


@pytest.mark.sampled(4)
@pytest.mark.skipif(not IS_SYMM, reason="the other tests are over that backend already")
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("backend", ["gloo", f"cpu:gloo,{DEVICE}:symm" if ON_CUDA else "cpu:symm"])
def test_default_group_of_another_backend(backend, world_size):
    expect_no_mismatch(run_ranks(world_of_another_backend, world_size, backend=backend))


@pytest.mark.cuda
@pytest.mark.gpus(2)
def test_default_group_of_nccl():
    expect_no_mismatch(run_ranks(world_of_another_backend, WORLD_SIZE, backend="nccl"))


def signals_of(handle):
    """What waits for ranks of the handle's group."""
    return {
        "barrier": handle.barrier,
        "put_signal": lambda: handle.put_signal(0),
        "wait_signal": lambda: handle.wait_signal(0),
    }


def after_the_group_has_gone(rank, backend):
    """Its signals raise and name it, its buffers can be read; handles of other groups on the same
    allocation go on."""
    use_symm()
    group = dist.new_group([0, 2, 3], backend=backend)
    tensor, of_world = shared(10)
    problems = []
    if rank != 1:
        handle = symm_mem.rendezvous(tensor, group)
        handle.barrier()
        name, pointers = group.group_name, handle.buffer_ptrs
        dist.destroy_process_group(group)
        calls = signals_of(handle) | {"rendezvous": lambda: symm_mem.rendezvous(tensor, name)}
        for what, call in calls.items():
            text = message_of(ERRORS, call)
            if name not in text:
                problems.append(f"{what} does not name the group {name!r}: {text}")
        problems += wrong_peers(handle, [0, 2, 3], 10, what="a destroyed group")
        problems += [] if handle.buffer_ptrs == pointers else ["other pointers"]
    of_world.barrier()
    problems += wrong_peers(of_world, [0, 1, 2, 3], 10, what="the world")
    of_world.barrier()
    return problems


@pytest.mark.parametrize(
    "backend",
    [
        "gloo",
        pytest.param("symm", marks=pytest.mark.skipif(not IS_SYMM, reason="symm is not tested")),
    ],
)
def test_of_a_destroyed_group_the_buffers_are_left_and_the_signals_raise(backend):
    expect_no_mismatch(run_ranks(after_the_group_has_gone, 4, backend, fresh=True))


def logical_groups(rank, seconds):
    """Ranks that a Store and a name alone hold together: no group of c10d has them."""
    use_symm()
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(datetime.timedelta(seconds=seconds))
    pairs = {"even": [0, 2], "odd": [3, 1]}
    name = next(name for name, ranks in pairs.items() if rank in ranks)
    ranks = pairs[name]
    own = dist.PrefixStore(name, store)
    _SymmetricMemory.set_group_info(name, ranks.index(rank), 2, own)
    tensor = allocate(1000)
    handle = _SymmetricMemory.rendezvous(tensor, name)
    tensor.copy_(pattern(1000, rank))
    handle.barrier()
    problems = wrong_peers(handle, ranks, 1000, what=name)
    if (handle.rank, handle.world_size) != (ranks.index(rank), 2):
        problems.append(f"rank {handle.rank} of {handle.world_size}")
    if _SymmetricMemory.rendezvous(tensor, name).buffer_ptrs != handle.buffer_ptrs:
        problems.append("another rendezvous gives other pointers")
    handle.barrier()
    result = torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", name)
    expected = model.reduced([pattern(1000, one) for one in ranks], "SUM")
    problems += model.mismatch(f"all_reduce in {name}", result, expected)
    unknown = message_of(ERRORS, _SymmetricMemory.rendezvous, tensor, "neither")
    problems += [] if "neither" in unknown else [f"unknown: {unknown}"]
    handle.barrier()
    # Its Store's time-out is that of its signals; on a GPU that shows at a later call.
    if rank == 0 and not ON_CUDA:
        text = message_of(ERRORS, handle.wait_signal, 1)
        problems += [] if "1000 ms" in text and "even" in text else [text]
    store.set_timeout(datetime.timedelta(seconds=60))
    meet()
    return problems


def test_groups_that_torch_knows_by_set_group_info_alone():
    expect_no_mismatch(run_ranks(logical_groups, 4, 1, fresh=True))


def destroyed_after_torch_has_named_it(rank):
    """torch names each group of c10d so; destroyed, it is no group of ranks that share a Store."""
    use_symm()
    group = dist.new_group([0, 1], backend="gloo")
    name = group.group_name
    tensor, _ = shared(10, group)  # torch calls set_group_info
    dist.destroy_process_group(group)
    return message_of(ERRORS, _SymmetricMemory.rendezvous, tensor, name)


def test_the_name_of_a_destroyed_group_is_that_of_no_logical_one():
    for text in run_ranks(destroyed_after_torch_has_named_it, 2, fresh=True):
        assert text != ""


def after_abort(rank):
    """Buffers of a failed group can be read; what waits for its ranks raises."""
    use_symm()
    group = dist.new_group(backend="symm")
    _tensor, handle = shared(10, group)
    meet()
    if rank == 1:
        group.abort()
    else:
        message_of(ERRORS, dist.all_reduce, torch.ones(3, device=DEVICE), group=group)
    problems = wrong_peers(handle, list(range(3)), 10, what="a failed group")
    for what, call in signals_of(handle).items():
        if not message_of(ERRORS, call):
            problems.append(f"{what} of a failed group does not say why")
    return problems


@pytest.mark.skipif(not IS_SYMM, reason="symm's own groups fail so")
def test_of_a_failed_group_the_buffers_are_left_and_the_signals_raise():
    expect_no_mismatch(run_ranks(after_abort, 3, fresh=True))


def remade_under_the_same_name(rank):
    """The default group is called "0" every time; each has its own handle on one allocation."""
    use_symm()
    from harness import Setup

    folder, tensor, problems, old = os.environ["SYMM_TEST_STORES"], allocate(100), [], []
    for repeat in range(3):
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
        tensor.copy_(pattern(100, rank, repeat))
        handle.barrier()
        problems += wrong_peers(handle, [0, 1, 2], 100, salt=repeat, what=f"life {repeat}")
        for other in old:
            message_of(ERRORS, other.barrier)
        handle.barrier()
        old.append(handle)
        dist.destroy_process_group()
        Setup(os.path.join(folder, f"store {repeat}"), 3).init(rank)
    return problems


def test_a_group_remade_under_the_same_name(tmp_path):
    env = {"SYMM_TEST_STORES": str(tmp_path)}
    expect_no_mismatch(run_ranks(remade_under_the_same_name, 3, env=env))


def different_sizes(rank):
    """Refused on every rank with both sizes; the group goes on."""
    use_symm()
    tensor = allocate(1 << 20 if rank == 1 else 1 << 22, dtype=torch.uint8)
    texts = [message_of(ERRORS, symm_mem.rendezvous, tensor, dist.group.WORLD)]
    _kept, handle = shared(64)
    problems = wrong_peers(handle, list(range(dist.get_world_size())), 64, what="afterwards")
    handle.barrier()
    return problems + [text for text in texts if "rank" not in text or "bytes" not in text]


@pytest.mark.cpu("on a GPU, torch's pool rounds sizes")
def test_different_sizes_are_refused_on_every_rank():
    expect_no_mismatch(run_ranks(different_sizes, 3, fresh=True))


def many_groups(rank):
    use_symm()
    problems = []
    for repeat in range(15):
        group = dist.new_group([0, 2])
        if rank != 1:
            _tensor, handle = shared(1000, group, salt=repeat)
            problems += wrong_peers(handle, [0, 2], 1000, salt=repeat, what=f"group {repeat}")
            handle.barrier()
            dist.destroy_process_group(group)
            del handle
    return problems, resources()


def destroyed_behind_a_barrier(rank):
    use_symm()
    group = dist.new_group([0, 1, 2])
    _tensor, handle = shared(1000, group)
    handle.barrier()
    synchronize()
    if ON_CUDA and rank != 0:
        torch.cuda._sleep(10**9)  # half a second
    handle.barrier()
    dist.destroy_process_group(group)
    synchronize()
    return pads_not_zero(handle)


def test_a_group_that_is_destroyed_behind_a_barrier_has_passed_it():
    """A barrier that is given up leaves its mark in the peers' signal pads."""
    check(destroyed_behind_a_barrier, 3)


def test_groups_come_and_go():
    results = run_ranks(many_groups, 3, fresh=True)
    expect_no_mismatch([problems for problems, _ in results])
    first, second = run_ranks(one_group_only, 3, fresh=True)[0], results[0][1]
    for what, more in {"descriptors": 2, "threads": 0}.items():
        if not ON_CUDA:
            assert second[what] <= first[what] + more, f"{what}: {first} became {second}"


def one_group_only(rank):
    use_symm()
    group = dist.new_group([0, 2])
    if rank != 1:
        shared(1000, group)[1].barrier()
        dist.destroy_process_group(group)
    return resources()
