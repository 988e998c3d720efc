"""Rendezvous: handles and peers' buffers, in which groups they are made, and how often."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from harness import BACKEND, DEVICE, ON_CUDA, WORLD_SIZE, Setup, device_of_rank, synchronize
from provider import (
    conforms,
    equal,
    fill_with_rank,
    need,
    need_operators,
    neighbours,
    ops,
    round_trip,
    sees_every_rank,
    share,
    shared_by_rank,
    world_name,
)
from symmetric import allocate, destroy, meet, member_of_each

pytestmark = pytest.mark.timeout(120)


# -- Handles and buffers -------------------------------------------------------------------------


def what_a_handle_says(rank):
    size = dist.get_world_size()
    tensor = allocate(1000)
    handle = share(tensor)
    assert (handle.rank, handle.world_size) == (rank, size)
    assert torch.device(handle.device) == tensor.device
    assert handle.buffer_size >= tensor.nbytes
    assert handle.signal_pad_size == symm_mem.get_signal_pad_size()
    assert len(set(handle.buffer_ptrs)) == len(set(handle.signal_pad_ptrs)) == size
    assert handle.buffer_ptrs[rank] == tensor.data_ptr()
    assert handle.buffer_ptrs_dev
    assert handle.signal_pad_ptrs_dev


def test_what_a_handle_says():
    conforms(what_a_handle_says, WORLD_SIZE)


def buffers_of_all_kinds(rank):
    """Shape, dtype and offset are the caller's; the offset counts elements of the dtype."""
    tensor = allocate(64)
    handle = share(tensor)
    tensor.copy_(torch.arange(64) + 100 * rank)
    handle.barrier()
    for peer in range(handle.world_size):
        expected = torch.arange(64, dtype=torch.float32) + 100 * peer
        buffer = handle.get_buffer(peer, (8, 8), torch.float32)
        assert buffer.device == tensor.device
        assert buffer.is_contiguous()
        assert equal(buffer, expected.view(8, 8))
        assert equal(handle.get_buffer(peer, (4, 4), torch.float32, 16).view(-1), expected[16:32])
        assert equal(handle.get_buffer(peer, (6,), torch.int16, 2), expected.view(torch.int16)[2:8])
    assert handle.get_buffer(rank, (64,), torch.float32).data_ptr() == tensor.data_ptr()
    handle.barrier()


def test_get_buffer_of_any_shape_dtype_and_offset():
    conforms(buffers_of_all_kinds, WORLD_SIZE)


def buffers_beyond_the_end(rank):
    handle = share(allocate(64))
    words = handle.buffer_size // 4
    for shape, offset in [((words + 1,), 0), ((1,), words), ((2, words), 0)]:
        with pytest.raises(RuntimeError):
            handle.get_buffer(0, shape, torch.float32, offset)
    handle.barrier()


def test_get_buffer_beyond_the_end_raises():
    conforms(buffers_beyond_the_end)


def remote_tensors(rank):
    tensor, handle = shared_by_rank(64)
    need(hasattr(handle, "get_remote_tensor"), "this torch has no get_remote_tensor")
    for peer in range(handle.world_size):
        remote = handle.get_remote_tensor(peer, (8, 8), torch.float32)
        assert (remote.shape, remote.dtype) == ((8, 8), torch.float32)
        assert remote.device == tensor.device
        assert remote.eq(peer).all()
    handle.barrier()


def test_get_remote_tensor():
    conforms(remote_tensors, WORLD_SIZE)


def null_without_multicast(rank):
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory

    handle = share(allocate(64))
    kind = DeviceType.CUDA if ON_CUDA else DeviceType.CPU
    there = _SymmetricMemory.has_multicast_support(kind, device_of_rank().index or 0)
    assert (handle.multicast_ptr != 0) == there


def test_multicast_ptr_is_null_without_multicast():
    conforms(null_without_multicast)


def twice(rank):
    """A second rendezvous of the same memory is local: rank 0 alone makes it."""
    tensor, handle = shared_by_rank(64)
    if rank == 0:
        for view in (tensor, tensor[16:32], tensor.view(8, 8)):
            for group in (dist.group.WORLD, world_name()):
                again = symm_mem.rendezvous(view, group)
                assert (again.rank, again.buffer_ptrs) == (handle.rank, handle.buffer_ptrs)
    handle.barrier()


def test_rendezvous_is_idempotent():
    conforms(twice)


def of_other_arguments(rank):
    tensor = allocate(4)
    with pytest.raises(TypeError):
        symm_mem.rendezvous(tensor, 0)
    with pytest.raises(RuntimeError):
        symm_mem.rendezvous(tensor, "no such group")
    round_trip(tensor)


def test_rendezvous_of_no_group_raises():
    conforms(of_other_arguments)


def by_the_dispatcher(rank):
    need_operators("_rendezvous", "_barrier")
    boxed = ops._rendezvous(allocate(1024), world_name())
    ops._barrier(boxed)


def test_operators_that_take_and_give_a_handle():
    conforms(by_the_dispatcher)


def one_sided_reads(rank):
    need(hasattr(symm_mem, "get"), "this torch has no symm_mem.get")
    count = 1024
    tensor = allocate(2 * count)
    handle = share(tensor)
    every = [torch.arange(2.0 * count) + 2 * count * peer for peer in range(2)]
    tensor.copy_(every[rank])
    handle.barrier()
    if rank == 0:
        mine = torch.full((count + 1,), -1.0, device=DEVICE)
        for offset in (0, count // 2):
            symm_mem.get(mine[:count], handle, peer=1, offset=offset)
            assert equal(mine[:count], every[1][offset : offset + count])
            assert mine[count].item() == -1
        wrong = [
            (torch.empty(2 * count, device=DEVICE)[::2], 1, 0),
            (mine, 1, -1),
            (mine, 1, handle.buffer_size // 4),
            (mine, handle.world_size, 0),
        ]
        for out, peer, offset in wrong:
            with pytest.raises(ValueError):  # noqa: PT011, the words are the provider's
                symm_mem.get(out, handle, peer=peer, offset=offset)
    handle.barrier()


def test_get():
    conforms(one_sided_reads)


# -- Groups --------------------------------------------------------------------------------------


def halves(rank):
    """One allocation in the world and in the half of it that this rank is in."""
    lists = [[0, 1], [2, 3]]
    ((group, ranks),) = groups = member_of_each(lists)
    tensor, of_world = shared_by_rank(64)
    of_half = share(tensor, group)
    assert (of_world.rank, of_world.world_size) == (rank, 4)
    assert (of_half.rank, of_half.world_size) == (rank % 2, 2)
    after = neighbours(of_world)[0]
    assert of_world.get_buffer(after, (64,), torch.float32).eq(after).all()
    after = neighbours(of_half)[0]
    assert of_half.get_buffer(after, (64,), torch.float32).eq(ranks[after]).all()
    of_world.barrier()
    destroy(groups)


def test_one_allocation_in_the_world_and_a_subgroup():
    conforms(halves, 4)


def without_pg(*groups) -> None:
    """Asks for the rendezvous by the group's store, where torch has the choice."""
    for group in groups:
        if hasattr(group, "use_pg_for_symm_mem_rendezvous"):
            group.use_pg_for_symm_mem_rendezvous = False


def uneven_groups(rank, lists, then_world):
    """Some ranks have met more often than others when a further group meets."""
    groups = member_of_each(lists)
    for group, ranks in groups:
        without_pg(group)
        handle = share(allocate(64), group)
        tensor = allocate(64)
        handle = share(tensor, group)
        fill_with_rank(tensor, handle)
        assert handle.world_size == len(ranks)
        assert sees_every_rank(handle, 64)
    if then_world:
        without_pg(dist.group.WORLD)
        round_trip(allocate(64))
    destroy(groups)


def test_the_world_after_a_subgroup_without_some_ranks():
    conforms(uneven_groups, 3, [[0, 1]], True)


def test_groups_that_share_a_rank():
    conforms(uneven_groups, 3, [[0, 1], [1, 2]], False)


def names_that_come_again(rank):
    """torch numbers groups anew after destroy_process_group(): a name says nothing of its ranks."""
    names = []
    for repeat, ranks in enumerate([[0, 1], [1, 2]]):
        groups = member_of_each([ranks])
        for group, _ in groups:
            without_pg(group)
            names.append(group.group_name)
            tensor = allocate(64)
            handle = share(tensor, group)
            fill_with_rank(tensor, handle)
            assert sees_every_rank(handle, 64)
        meet()
        dist.destroy_process_group()
        Setup(os.path.join(os.environ["STORES"], f"store {repeat}"), 3).init(rank)
    assert len(set(names)) == 1


def test_a_group_whose_name_another_had(tmp_path):
    conforms(names_that_come_again, 3, env={"STORES": str(tmp_path)})


def by_the_process_group(rank):
    group = dist.group.WORLD
    need(hasattr(group, "use_pg_for_symm_mem_rendezvous"), "this torch has no such attribute")
    group.use_pg_for_symm_mem_rendezvous = True
    round_trip(allocate(64))


def test_rendezvous_by_the_process_group():
    conforms(by_the_process_group, fresh=True)


def backends_by_device(rank):
    """Such a group has no default backend in some versions of torch."""
    backend = f"cpu:gloo,cuda:{BACKEND}" if ON_CUDA else f"cpu:{BACKEND}"
    group = dist.new_group(backend=backend)
    _tensor, handle = shared_by_rank(64, group)
    assert (handle.rank, handle.world_size) == (rank, dist.get_world_size())
    assert sees_every_rank(handle, 64)
    destroy([(group, None)])


def test_a_group_with_a_backend_for_each_device():
    conforms(backends_by_device, fresh=True)


def aborted(rank):
    """What every rank has written can be read when the group has been aborted."""
    group = dist.new_group()
    _tensor, handle = shared_by_rank(64, group)
    assert sees_every_rank(handle, 64)
    meet()
    group.abort()
    for peer in range(handle.world_size):
        assert handle.get_buffer(peer, (64,), torch.float32).eq(peer).all()
    meet()


def test_buffers_of_an_aborted_group():
    conforms(aborted, fresh=True)


def on_one_device(rank):
    """Ranks may share a device where the environment allows it."""
    tensor = symm_mem.empty(64, device="cuda:0" if ON_CUDA else "cpu")
    handle = share(tensor)
    assert (handle.rank, handle.world_size) == (rank, dist.get_world_size())
    for peer in range(handle.world_size):
        buffer = handle.get_buffer(peer, (64,), torch.float32)
        assert buffer.device == tensor.device
        assert (buffer.data_ptr() == tensor.data_ptr()) == (peer == rank)
    synchronize()


def test_ranks_on_one_device():
    conforms(on_one_device, env={"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"})


# -- Groups that are said to have symmetric memory -----------------------------------------------


def mocked_groups(rank):
    assert not symm_mem.is_symm_mem_enabled_for_group("no such group")
    with symm_mem._test_mode(group_names={"mocked"}):
        assert symm_mem.is_symm_mem_enabled_for_group("mocked")
        assert not symm_mem.is_symm_mem_enabled_for_group(world_name())
    assert not symm_mem.is_symm_mem_enabled_for_group("mocked")


def test_which_groups_have_symmetric_memory():
    conforms(mocked_groups)


def every_group(rank):
    listed = hasattr(symm_mem, "_group_name_to_store")
    need(not listed, "this torch counts the groups that enable_symm_mem_for_group has named alone")
    assert symm_mem.is_symm_mem_enabled_for_group(world_name())


def test_every_group_has_symmetric_memory():
    conforms(every_group, fresh=True)


def enabled(rank):
    """Asking for it is allowed, also twice, and changes nothing about a rendezvous."""
    need(hasattr(symm_mem, "enable_symm_mem_for_group"), "this torch has no such function")
    for _ in range(2):
        symm_mem.enable_symm_mem_for_group(world_name())
    assert symm_mem.is_symm_mem_enabled_for_group(world_name())
    round_trip(allocate(64))


def test_enable_symm_mem_for_group():
    conforms(enabled, fresh=True)


def workspaces(rank):
    """One a group, which grows when more is asked for."""
    need(ON_CUDA, "GPUs alone: PyTorch makes the workspace on CUDA")
    small = symm_mem.get_symm_mem_workspace(world_name(), min_size=4096)
    assert small.buffer_size >= 4096
    again = symm_mem.get_symm_mem_workspace(world_name(), min_size=1024)
    assert again.buffer_ptrs == small.buffer_ptrs
    large = symm_mem.get_symm_mem_workspace(world_name(), min_size=64 << 20)
    assert large.buffer_size >= 64 << 20


def test_get_symm_mem_workspace():
    conforms(workspaces)
