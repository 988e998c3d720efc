"""Allocation: what `empty` and `empty_strided_p2p` give, the size of signal pads, pools, frees."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import _detect_dma_connectivity, _SymmetricMemory
from torch.profiler import ProfilerActivity, profile

from harness import DEVICE, ON_CUDA, WORLD_SIZE, Setup, device_of_rank, synchronize
from provider import (
    DONE,
    PROVIDER,
    conforms,
    conforms_and_exits,
    equal,
    need,
    need_cuda,
    ops,
    round_trip,
    share,
    strided,
    use_provider,
    world_name,
)
from symmetric import allocate, signal_pad_size

pytestmark = pytest.mark.timeout(120)

ON_OWN_DEVICE = "own device"
ON_FIRST_DEVICE = "first device"


def which_provider(rank):
    allocate(1)
    assert symm_mem.get_backend(torch.device(DEVICE)) == PROVIDER
    assert symm_mem.get_backend(DEVICE) == PROVIDER


def test_get_backend():
    conforms(which_provider)


def another_provider(rank):
    """What is in use stays, and a name that nobody has raises."""
    tensor = allocate(4)
    with pytest.raises(RuntimeError):
        symm_mem.set_backend("NO SUCH PROVIDER")
    assert symm_mem.get_backend(DEVICE) == PROVIDER
    round_trip(tensor)


def test_set_backend_of_an_unknown_name():
    conforms(another_provider, fresh=True)


def without_multicast(rank):
    assert _SymmetricMemory.has_multicast_support(DeviceType.CPU, 0) is False


def test_has_multicast_support_answers_for_the_cpu():
    conforms(without_multicast)


def what_is_symmetric(rank):
    need(hasattr(symm_mem, "is_symm_mem_tensor"), "this torch has no is_symm_mem_tensor")
    assert not symm_mem.is_symm_mem_tensor(torch.empty(1024))
    assert not symm_mem.is_symm_mem_tensor(torch.empty(1024, device=DEVICE))
    assert symm_mem.is_symm_mem_tensor(allocate(1024))


def test_is_symm_mem_tensor():
    conforms(what_is_symmetric)


def links(rank):
    need_cuda("links between them")
    found, count = _detect_dma_connectivity(DeviceType.CUDA, "nvlink"), torch.cuda.device_count()
    assert (found.device_type, found.connection_type) == (DeviceType.CUDA, "nvlink")
    assert [len(row) for row in found.matrix] == [count] * count


def test_links_between_gpus_are_listed():
    conforms(links)


# -- The size of signal pads ---------------------------------------------------------------------


def default_pad_size(rank):
    size = symm_mem.get_signal_pad_size()
    assert type(size) is int
    assert size > 0
    assert size == _SymmetricMemory.signal_pad_size


def test_get_signal_pad_size():
    conforms(default_pad_size)


def another_pad_size(rank):
    before = symm_mem.get_signal_pad_size()
    with signal_pad_size(1 << 20):
        assert symm_mem.get_signal_pad_size() == 1 << 20
        assert _SymmetricMemory.signal_pad_size == 1 << 20
    assert symm_mem.get_signal_pad_size() == before


def test_set_signal_pad_size():
    conforms(another_pad_size)


def pads_of_another_size(rank):
    """An allocation has pads of the size that was set before it, all of them usable."""
    size = 2 * symm_mem.get_signal_pad_size()
    with signal_pad_size(size):
        handle = share(strided(64))
        assert handle.signal_pad_size == size
        pad = handle.get_signal_pad(rank)
        assert pad.numel() == size // 4
        synchronize()
        dist.barrier()
        pad.fill_(0)
        for place in (0, size // 4 - 1):
            pad[place] = 42
            assert pad[place].item() == 42
            pad[place] = 0
        synchronize()
        dist.barrier()


def test_allocations_have_pads_of_the_size_that_was_set():
    conforms(pads_of_another_size, fresh=True)


# -- Memory --------------------------------------------------------------------------------------


def large(rank):
    tensor = allocate(2 << 30, dtype=torch.uint8)
    assert tensor.numel() * tensor.element_size() == 2 << 30


def test_an_allocation_of_2_gib():
    conforms(large, 1)


def use_current(which: str) -> None:
    """Makes the rank's own GPU the current one, or the first, as for programs that choose none."""
    if which == ON_FIRST_DEVICE:
        need_cuda("a current device")
        torch.cuda.set_device(0)


def exchange(handle) -> None:
    """Everything that PyTorch's handles do, over the buffer of rank 0."""
    buffer = handle.get_buffer(0, (handle.buffer_size // 4,), torch.float32)
    assert buffer.storage_offset() == 0
    assert buffer.untyped_storage().size() == handle.buffer_size
    if handle.rank == 0:
        handle.wait_signal(src_rank=1)
        assert buffer.eq(42).all()
    elif handle.rank == 1:
        buffer.fill_(42)
        handle.put_signal(dst_rank=0)
    handle.barrier()
    if handle.rank == 1:
        buffer.fill_(43)
    handle.barrier()
    assert buffer.eq(43).all()
    handle.barrier()


def outlived_tensor(rank, which):
    """Ordinary memory has no handle; a handle works on when its tensor has gone."""
    place = device_of_rank()
    use_current(which)
    assert _SymmetricMemory.rendezvous(torch.empty(64, 64, device=place)) is None
    tensor = strided(64, 64, place=place, group_name=world_name())
    handle = _SymmetricMemory.rendezvous(tensor)
    del tensor
    assert handle.world_size == dist.get_world_size()
    exchange(handle)


@pytest.mark.parametrize("which", [ON_OWN_DEVICE, ON_FIRST_DEVICE])
def test_empty_strided_p2p(which):
    conforms(outlived_tensor, 2, which, fresh=True)


def persistent_memory(rank, which):
    """One live tensor an id; the next of the same id has the same memory."""
    settings = {"place": device_of_rank(), "group_name": world_name(), "alloc_id": 4711}
    use_current(which)
    tensor = strided(64, 64, **settings)
    address = tensor.data_ptr()
    with pytest.raises(RuntimeError):
        strided(64, 64, **settings)
    del tensor
    tensor = strided(64, 64, **settings)
    assert tensor.data_ptr() == address
    exchange(_SymmetricMemory.rendezvous(tensor))


@pytest.mark.parametrize("which", [ON_OWN_DEVICE, ON_FIRST_DEVICE])
def test_persistent_allocations(which):
    conforms(persistent_memory, 2, which, fresh=True)


def storage_by_id(rank):
    first = strided(1024, alloc_id=4712)
    address = first.data_ptr()
    del first
    assert strided(1024, alloc_id=4712).data_ptr() == address


def test_an_id_gives_the_same_storage_without_a_group():
    conforms(storage_by_id, fresh=True)


def on_the_current_stream(rank):
    need_cuda("streams")
    need(PROVIDER == "CUDA", "PyTorch promises this of its CUDA provider alone")
    stream = torch.cuda.Stream()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        with torch.cuda.stream(stream):
            share(allocate(1024)).barrier()
        synchronize()
    events = [e for e in profiler.profiler.kineto_results.events() if e.device_resource_id()]
    barriers = [e for e in events if "barrier" in e.name()]
    assert barriers
    copies = [e for e in events if e.name().startswith(("Memset", "Memcpy"))]
    copies = [e for e in copies if e.start_ns() < barriers[0].start_ns()]
    streams = {e.device_resource_id() for e in copies}
    assert streams == {barriers[0].device_resource_id()}


def test_allocation_and_rendezvous_take_the_current_stream():
    conforms(on_the_current_stream, fresh=True)


# -- Pools, and memory that is used again --------------------------------------------------------


def need_pools():
    need_cuda("memory pools")
    return torch.cuda.use_mem_pool(symm_mem.get_mem_pool(device_of_rank()))


def made_in_a_pool(rank):
    with need_pools():
        tensor = torch.arange(1024, dtype=torch.float32, device=device_of_rank())
    share(tensor)
    got = ops.one_shot_all_reduce(tensor, "sum", world_name())
    assert equal(got, torch.arange(1024.0) * dist.get_world_size())


def test_factories_inside_the_pool():
    conforms(made_in_a_pool)


def computed_in_a_pool(rank):
    ones = torch.ones(1024, 1024, device=DEVICE)
    with need_pools():
        product = ones[:1] @ ones
    share(product)
    got = ops.one_shot_all_reduce(product, "sum", world_name())
    assert equal(got, torch.full((1, 1024), 1024.0 * dist.get_world_size()))


def test_operators_inside_the_pool():
    conforms(computed_in_a_pool)


def address_in_a_pool():
    with need_pools():
        return torch.empty(1024, device=device_of_rank()).data_ptr()


def same_block(rank):
    assert address_in_a_pool() == address_in_a_pool()


def test_a_pool_gives_a_freed_block_again():
    conforms(same_block, fresh=True)


def used_again(rank, count):
    """Of a GPU's pool; the CPU has `empty` alone."""
    for _ in range(3):
        if ON_CUDA:
            with need_pools():
                tensor = torch.empty(count, device=device_of_rank())
        else:
            tensor = allocate(count)
        round_trip(tensor)
        del tensor


@pytest.mark.parametrize("count", [1 << 10, 1 << 22])
def test_memory_that_is_used_again_has_clean_pads(count):
    conforms(used_again, WORLD_SIZE, count)


# -- Frees ---------------------------------------------------------------------------------------


def free_while_in_use(rank):
    """The memory stays until the work on it is done, and the current device is left as it is."""
    need_cuda("work that is pending")
    tensor = strided(1024).fill_(1)
    out = torch.empty_like(tensor)
    torch.add(tensor, 1, out=out)
    synchronize()
    stream, other = torch.cuda.Stream(), (rank + 1) % torch.cuda.device_count()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)
        torch.add(tensor, 1, out=out)
    torch.cuda.set_device(other)
    del tensor
    assert torch.cuda.current_device() == other
    stream.synchronize()
    assert equal(out, torch.full((1024,), 2.0))


def test_a_free_waits_for_pending_work():
    conforms(free_while_in_use, 1, fresh=True)


def free_after_a_device_assert(rank, folder, observed):
    """Freeing in a context that has failed does not end the process."""
    Setup(os.path.join(folder, "store"), 1).join(rank)
    use_provider()
    tensor = strided(1024)
    handle = share(tensor)
    wrong = torch.zeros((), dtype=torch.bool, device=DEVICE)
    synchronize()
    torch.cuda._sleep(500_000_000)
    torch._assert_async(wrong)
    if observed:
        with pytest.raises(RuntimeError, match="device-side assert"):
            synchronize()
    del tensor, handle
    os._exit(DONE)


@pytest.mark.skipif(not ON_CUDA, reason="GPUs alone: assertions of a device")
@pytest.mark.parametrize("observed", [False, True])
def test_a_free_after_a_device_assert(observed, tmp_path):
    conforms_and_exits(free_after_a_device_assert, 1, str(tmp_path), observed)
