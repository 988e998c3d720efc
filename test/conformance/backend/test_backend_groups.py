"""Groups: joined in every way, made of some ranks, split, ended and made again; what they say."""

import datetime
import os

import pytest
import torch
import torch.distributed as dist

from backend import (
    NAME,
    WORLD_SIZE,
    conforms,
    conforms_alone,
    join,
    mine,
    need,
    need_cuda,
    need_ranks,
    numbers,
    of_all,
    reduced,
    same,
    still_works,
    subgroup,
)
from harness import DEVICE
from programs import free_port

NO_MEMBER = dist.GroupMember.NON_GROUP_MEMBER


def sums(rank, group, ranks, salt=0) -> None:
    tensor = mine(rank, 101, salt=salt)
    dist.all_reduce(tensor, group=group)
    same(tensor, reduced("SUM", of_all(101, ranks=ranks, salt=salt)), f"group {ranks}")


# -- Groups of some ranks -------------------------------------------------------------------------


def groups_of(size) -> list[list[int]]:
    last = size - 1
    return [[0], [last], [0, last], [last, 0], list(range(1, size)), list(range(size))]


def joins_subsets(rank):
    for ranks in groups_of(WORLD_SIZE):
        with subgroup(ranks) as group:
            if rank not in ranks:
                assert group is NO_MEMBER
                assert dist.get_rank(group) == -1
                continue
            sums(rank, group, ranks)
            assert dist.get_world_size(group) == len(ranks)
            assert dist.get_process_group_ranks(group) == sorted(ranks)
            dist.barrier(group)
    still_works(rank)


def test_new_group_of_some_ranks():
    conforms(joins_subsets)


def alone_in_a_group(rank):
    groups = [dist.new_group([peer]) for peer in range(WORLD_SIZE)]
    group = groups[rank]
    tensor = mine(rank, 5)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
        dist.all_reduce(tensor, op=op, group=group)
    dist.broadcast(tensor, src=rank, group=group)
    output = torch.zeros(5, device=DEVICE)
    dist.all_gather([output], tensor, group=group)
    same(output, numbers(rank, 5), "all_gather")
    dist.reduce_scatter_tensor(output.zero_(), tensor, group=group)
    same(output, numbers(rank, 5), "reduce_scatter")
    dist.all_to_all_single(output.zero_(), tensor, group=group)
    same(output, numbers(rank, 5), "all_to_all")
    dist.barrier(group)
    objects = [None]
    dist.all_gather_object(objects, rank, group=group)
    assert objects == [rank]
    dist.destroy_process_group(group)


def test_every_collective_in_a_group_of_one_rank():
    conforms(alone_in_a_group)


def overlapping_groups(rank):
    pairs = [[rank, rank + 1] for rank in range(WORLD_SIZE - 1)]
    groups = [dist.new_group(pair) for pair in pairs]
    for salt in range(3):
        started = []
        for pair, group in zip(pairs, groups, strict=True):
            if rank in pair:
                tensor = mine(rank, 1001, salt=salt)
                work = dist.all_reduce(tensor, group=group, async_op=True)
                started.append((work, tensor, pair))
        for work, tensor, pair in started:
            work.wait()
            same(tensor, reduced("SUM", of_all(1001, ranks=pair, salt=salt)), f"{pair}")
    for pair, group in zip(pairs, groups, strict=True):
        if rank in pair:
            dist.destroy_process_group(group)


def test_groups_that_share_ranks():
    conforms(overlapping_groups)


def stranger_calls(rank):
    members = list(range(WORLD_SIZE - 1))
    with subgroup(members) as group:
        tensor = mine(rank, 4)
        outputs = [torch.zeros(4, device=DEVICE) for _ in members]
        if rank in members:
            dist.all_reduce(tensor, group=group)
            dist.all_gather(outputs, tensor, group=group)
            dist.barrier(group)
            return
        for call in (
            lambda: dist.all_reduce(tensor, group=group),
            lambda: dist.all_gather(outputs, tensor, group=group),
            lambda: dist.broadcast(tensor, src=0, group=group),
            lambda: dist.barrier(group),
        ):
            with pytest.warns(UserWarning, match="does not belong"):
                assert call() is None
        same(tensor, numbers(rank, 4), "the stranger's tensor")


def test_calls_of_a_rank_that_is_no_member_warn_and_do_nothing():
    conforms(stranger_calls)


def translates_ranks(rank):
    ranks = list(range(1, WORLD_SIZE))
    with subgroup(ranks) as group:
        if rank in ranks:
            for number, peer in enumerate(ranks):
                assert dist.get_group_rank(group, peer) == number
                assert dist.get_global_rank(group, number) == peer
            assert dist.get_rank(group) == rank - 1
            with pytest.raises(ValueError, match="not part of group"):
                dist.get_group_rank(group, 0)
            with pytest.raises(ValueError, match="not part of group"):
                dist.get_global_rank(group, len(ranks))
    assert (dist.get_rank(), dist.get_world_size()) == (rank, WORLD_SIZE)


def test_ranks_of_groups_and_of_the_world():
    conforms(translates_ranks)


def groups_that_are_wrong(rank):
    wrong = [[0, WORLD_SIZE], list(range(WORLD_SIZE + 1))]
    if torch.__version__ >= (2, 13):
        wrong.append([0, 0])  # torch 2.11 takes it, and waits for a second rank 0
    for ranks in wrong:
        with pytest.raises((ValueError, RuntimeError)):
            dist.new_group(ranks)
    still_works(rank)


def test_groups_of_ranks_that_there_are_not():
    conforms(groups_that_are_wrong)


def divides(rank, size):
    mine_of, groups = dist.new_subgroups(size)
    assert len(groups) == WORLD_SIZE // size
    first = rank // size * size
    sums(rank, mine_of, range(first, first + size))
    dist.destroy_process_group(mine_of)


@pytest.mark.parametrize("size", [1, 2])
def test_new_subgroups(size):
    conforms(divides, size)


def enumerates(rank):
    parts = [[0, 2], [1, 3]]
    mine_of, _ = dist.new_subgroups_by_enumeration(parts)
    sums(rank, mine_of, parts[rank % 2])
    dist.destroy_process_group(mine_of)


def test_new_subgroups_by_enumeration():
    need_ranks(4)
    conforms(enumerates)


def splits(rank, path):
    join(rank, WORLD_SIZE, dist.FileStore(path, WORLD_SIZE), bound=True)
    half = WORLD_SIZE // 2
    parts = [list(range(half)), list(range(half, WORLD_SIZE))]
    group = dist.split_group(split_ranks=parts)
    sums(rank, group, parts[rank // half])
    dist.destroy_process_group(group)
    only = dist.split_group(split_ranks=[[0]])
    assert (only is None) == (rank != 0)
    still_works(rank)
    dist.barrier()
    dist.destroy_process_group()


def test_split_group():
    need_cuda("split_group takes an accelerator, whose backend it splits")
    conforms_alone(splits, WORLD_SIZE)


# -- What a group says ----------------------------------------------------------------------------


def says_its_backend(rank):
    assert dist.get_backend() == NAME
    assert dist.is_backend_available(NAME)
    assert f"{DEVICE}:{NAME}" in dist.get_backend_config().split(",")
    assert dist.is_initialized()
    assert dist.group.WORLD.size() == WORLD_SIZE
    assert dist.group.WORLD.rank() == rank
    with subgroup([0, 1]) as group:
        if rank < 2:
            assert dist.get_backend(group) == NAME
            assert group.group_name != dist.group.WORLD.group_name


def test_names_of_backends():
    conforms(says_its_backend)


def says_its_description(rank):
    group = dist.new_group(list(range(WORLD_SIZE)), group_desc="of everyone")
    assert group.group_desc == "of everyone"
    sums(rank, group, range(WORLD_SIZE))
    dist.destroy_process_group(group)


def test_description_of_a_group():
    conforms(says_its_description)


def named_by_device(rank):
    assert dist.get_backend_config() == f"{DEVICE}:{NAME}"
    sums(rank, None, range(WORLD_SIZE))


def test_backends_named_by_device():
    conforms(named_by_device, backend=f"{DEVICE}:{NAME}")


def of_two_devices(rank):
    tensor = numbers(rank, 50)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, reduced("SUM", of_all(50))), "the CPU's"
    sums(rank, None, range(WORLD_SIZE))


def test_a_backend_for_each_device():
    need_cuda("two devices")
    conforms(of_two_devices, backend=f"cpu:gloo,cuda:{NAME}")


# -- Beginning and end ----------------------------------------------------------------------------


def is_gone_after_its_end(rank):
    group = dist.new_group(list(range(WORLD_SIZE)))
    sums(rank, group, range(WORLD_SIZE))
    dist.destroy_process_group(group)
    with pytest.raises(ValueError, match="not registered"):
        dist.get_global_rank(group, 0)
    with pytest.raises(ValueError, match="not registered"):
        dist.get_group_rank(group, rank)
    still_works(rank)


def test_a_group_that_was_destroyed():
    conforms(is_gone_after_its_end)


def joins_again(rank, path):
    for number in range(3):
        store = dist.FileStore(f"{path}{number}", 2)
        join(rank, 2, store)
        sums(rank, None, range(2), salt=number)
        group = dist.new_group([1, 0])
        sums(rank, group, range(2))
        dist.barrier()
        dist.destroy_process_group()
        assert not dist.is_initialized()
        with pytest.raises((ValueError, RuntimeError)):
            dist.all_reduce(mine(rank, 3))


def test_destroy_and_init_again():
    conforms_alone(joins_again, 2)


def joins_by(rank, path, way, port):
    if way == "env":
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        join(rank, 2, init_method="env://")
    elif way == "tcp":
        join(rank, 2, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    elif way == "file":
        join(rank, 2, init_method=f"file://{path}", rank=rank, world_size=2)
    else:
        limit = datetime.timedelta(seconds=30)
        store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, limit)
        join(rank, 2, dist.PrefixStore("of this test", store))
    sums(rank, None, range(2))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("way", ["env", "tcp", "file", "store"])
def test_init_by(way):
    conforms_alone(joins_by, 2, way, free_port())


def joins_alone(rank, path):
    join(0, 1, dist.HashStore())
    sums(0, None, [0])
    dist.destroy_process_group()


def test_init_of_one_rank_by_a_store_of_its_own():
    conforms_alone(joins_alone, 1)


def ends_all_groups(rank, path):
    join(rank, 2, dist.FileStore(path, 2))
    group = dist.new_group([0, 1])
    tensors = [mine(rank, 1000, salt=number) for number in range(8)]
    works = [dist.all_reduce(tensor, async_op=True, group=group) for tensor in tensors]
    for work in works:
        work.wait()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    with pytest.raises((ValueError, RuntimeError)):
        dist.get_rank(group)
    for number, tensor in enumerate(tensors):
        same(tensor, reduced("SUM", of_all(1000, ranks=range(2), salt=number)))


def test_destroy_ends_all_groups():
    conforms_alone(ends_all_groups, 2)


def two_backends(rank):
    group = dist.new_group(list(range(WORLD_SIZE)), backend="gloo")
    assert dist.get_backend(group) == "gloo"
    tensor = numbers(rank, 50)
    dist.all_reduce(tensor, group=group)
    expected = reduced("SUM", of_all(50))
    assert torch.equal(tensor, expected)
    still_works(rank)
    dist.destroy_process_group(group)


def test_a_group_of_gloo_beside_the_backend():
    conforms(two_backends)


def takes_cpu_tensors(rank):
    tensor = numbers(rank, 50)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, reduced("SUM", of_all(50)))


def test_tensors_of_the_cpu():
    need("CPU tensors")
    conforms(takes_cpu_tensors)
