"""torch.distributed._symmetric_memory over symm: allocations, signal pads, and which allocator
is in use."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import model
from errors import message_of
from harness import (
    DEVICE,
    ON_CUDA,
    check,
    crowded,
    device_of_rank,
    run_ranks,
    synchronize,
)
from symmetric import (
    allocate,
    descriptors,
    mapped_areas,
    pads_not_zero,
    pattern,
    persistent,
    shared,
    signal_pad_size,
    use_symm,
)

pytestmark = pytest.mark.timeout(90)

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex64]
HAS_CHECK = hasattr(symm_mem, "is_symm_mem_tensor")


# -- Allocation: local, so two ranks are enough --------------------------------------------------


def shapes_and_dtypes(rank):
    use_symm()
    problems = []
    for shape in [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 4)]:
        for dtype in DTYPES:
            for tensor in (allocate(*shape, dtype=dtype), allocate(shape, dtype=dtype)):
                got = (tuple(tensor.shape), tensor.dtype, tensor.device, tensor.is_contiguous())
                expected = (shape, dtype, device_of_rank(), True)
                if got != expected:
                    problems.append(f"{got} for {expected}")
                if tensor.untyped_storage().data_ptr() % 128:
                    problems.append(f"{shape} {dtype} does not start at a multiple of 128 bytes")
                if HAS_CHECK and not symm_mem.is_symm_mem_tensor(tensor):
                    problems.append(f"{shape} {dtype} is not known as symmetric memory")
    if allocate(3).dtype != torch.get_default_dtype():
        problems.append("the default dtype is not used")
    return problems


def test_empty_of_any_shape():
    check(shapes_and_dtypes, 2)


def what_is_symmetric(rank):
    use_symm()
    plain, tensor = torch.empty(64, device=DEVICE), allocate(64)
    given = {"plain": plain, "whole": tensor, "view": tensor[5:9], "turned": tensor.view(8, 8).t()}
    return {name: symm_mem.is_symm_mem_tensor(value) for name, value in given.items()}


@pytest.mark.skipif(not HAS_CHECK, reason="this torch has no is_symm_mem_tensor")
def test_is_symm_mem_tensor():
    expected = {"plain": False, "whole": True, "view": True, "turned": True}
    assert run_ranks(what_is_symmetric, 2) == [expected] * 2


def many_live_allocations(rank):
    use_symm()
    tensors = [allocate(1000, dtype=torch.int32) for _ in range(20)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number * 2 + rank)
    problems = []
    for number, tensor in enumerate(tensors):
        expected = torch.full((1000,), number * 2 + rank, dtype=torch.int32)
        problems += model.mismatch(f"allocation {number}", tensor, expected)
    return problems


def test_allocations_do_not_overlap():
    check(many_live_allocations, 2)


def large(rank):
    use_symm()
    count = 2**31 + 4099  # elements that a 32-bit index cannot reach
    tensor = allocate(count, dtype=torch.uint8)
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    tail = pattern(4099, rank, 1, torch.uint8)
    tensor[-4099:].copy_(tail)
    handle.barrier()
    peer = (rank + 1) % 2
    got = handle.get_buffer(peer, (4099,), torch.uint8, count - 4099)
    problems = model.mismatch("the tail", got, pattern(4099, peer, 1, torch.uint8))
    handle.barrier()
    return problems


def test_an_allocation_beyond_2_gib():
    check(large, 2)


def same_memory_for_one_id(rank):
    use_symm()
    problems = []
    first = persistent(100, alloc_id=0x5E_11)
    address = first.data_ptr()
    handle = symm_mem.rendezvous(first, dist.group.WORLD)
    while_alive = message_of(RuntimeError, persistent, 100, 0x5E_11)
    if "0x" not in while_alive and "24081" not in while_alive:
        problems.append(f"does not name the id: {while_alive}")
    other = persistent(100, alloc_id=0x5E_12)
    if other.data_ptr() == address:
        problems.append("two ids, one address")
    del first
    other_size = message_of(RuntimeError, persistent, 101, 0x5E_11)
    if "400" not in other_size or "404" not in other_size:
        problems.append(f"does not name both sizes: {other_size}")
    again = persistent(100, alloc_id=0x5E_11)
    if again.data_ptr() != address:
        problems.append("one id, two addresses")
    before = mapped_areas()
    if symm_mem.rendezvous(again, dist.group.WORLD).buffer_ptrs != handle.buffer_ptrs:
        problems.append("rendezvous of the same memory gave other pointers")
    if not ON_CUDA and mapped_areas() != before:
        problems.append("rendezvous of the same memory mapped something")
    return problems


def test_persistent_allocations():
    check(same_memory_for_one_id, 2)


# -- Signal pads ---------------------------------------------------------------------------------


def pad_views(rank):
    use_symm()
    tensor, handle = shared(1)
    peer, problems = (rank + 1) % dist.get_world_size(), []
    words = handle.signal_pad_size // 4

    def expect(pad, dtype, shape, offset, what):
        got = (pad.dtype, tuple(pad.shape), pad.data_ptr())
        if got != (dtype, shape, handle.signal_pad_ptrs[peer] + offset):
            problems.append(f"{what}: {got}")

    expect(handle.get_signal_pad(peer), torch.uint32, (words,), 0, "whole")
    expect(handle.get_signal_pad(peer, (8, 8)), torch.uint32, (8, 8), 0, "shape")
    by_dtype = handle.get_signal_pad(peer, dtype=torch.uint64)
    expect(by_dtype, torch.uint64, (words // 2,), 0, "dtype")
    both = handle.get_signal_pad(peer, (3,), torch.uint64, 5)
    expect(both, torch.uint64, (3,), 40, "shape, dtype and offset")
    for shape, offset in [((words + 1,), 0), ((2,), words - 1)]:
        text = message_of(RuntimeError, handle.get_signal_pad, peer, shape, torch.uint32, offset)
        problems += [] if str(handle.signal_pad_size) in text else [f"no size in: {text}"]
    dist.barrier()
    problems += pads_not_zero(handle, "after a barrier")
    dist.barrier()  # nobody is inside a synchronisation any more
    # The pad and the buffer are not each other's.
    handle.get_signal_pad(peer).view(torch.int32).fill_(7)
    handle.get_buffer(peer, (1,), torch.float32).fill_(-3.0)
    synchronize()
    dist.barrier()
    mine = handle.get_signal_pad(rank).view(torch.int32)
    expected = torch.full((words,), 7, dtype=torch.int32)
    problems += model.mismatch("the pad", mine, expected)
    problems += model.mismatch("the buffer", tensor, torch.tensor([-3.0]))
    mine.fill_(0)
    synchronize()
    dist.barrier()
    handle.barrier()
    return problems


def test_signal_pads():
    check(pad_views, 3)


def larger_pads(rank):
    use_symm()
    size = 3 * symm_mem.get_signal_pad_size()
    with signal_pad_size(size):
        if symm_mem.get_signal_pad_size() != size:
            return ["the size is not kept"]
        # Another size than other tests use, so that no pool has memory left with a smaller pad.
        tensor = allocate(7_654_321, dtype=torch.uint8)
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
        problems = []
        if handle.signal_pad_size != size or handle.get_signal_pad(rank).nbytes != size:
            problems.append(f"{handle.signal_pad_size} bytes")
        problems += pads_not_zero(handle, "larger")
        dist.barrier()
        last_channel = size // 4 // handle.world_size - 1
        for _ in range(3):
            handle.barrier(channel=last_channel)
        tensor.fill_(255)
        synchronize()
        dist.barrier()
        problems += pads_not_zero(handle, "used")
        dist.barrier()
    return problems


def test_the_size_of_signal_pads_can_be_set():
    check(larger_pads, 3)


# -- What is left behind -------------------------------------------------------------------------


def allocate_and_free(rank, cycles):
    use_symm()
    counts = []
    for cycle in range(cycles):
        tensor, handle = shared(50_000, salt=cycle)
        peer = (rank + 1) % handle.world_size
        got = handle.get_buffer(peer, (50_000,), torch.float32)
        problems = model.mismatch(f"cycle {cycle}", got, pattern(50_000, peer, cycle))
        handle.barrier()
        del tensor, handle, got
        if problems:
            return problems
        counts.append((descriptors(), mapped_areas()))
    synchronize()
    first, last = counts[len(counts) // 4], counts[-1]
    problems = [f"descriptors grew from {first[0]} to {last[0]}"] if last[0] > first[0] else []
    # The heap may map a few areas of its own.
    if not ON_CUDA and last[1] > first[1] + 4:
        problems.append(f"mapped areas grew from {first[1]} to {last[1]}")
    return problems


def test_memory_is_given_back():
    check(allocate_and_free, 3, 12 if crowded(3) else 60)


def footprint():
    """Descriptors, mapped areas, KiB of address space and of memory, KiB that others may have of
    the GPU's memory."""
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    sizes = [int(status[name].split()[0]) for name in ("VmSize", "VmRSS")]
    free = torch.cuda.mem_get_info()[0] // 1024 if ON_CUDA else 0
    return descriptors(), mapped_areas(), *sizes, free


def many_cycles(rank, early, late):
    """Allocated, shared, viewed, freed; the footprint after `early` cycles and after `late`."""
    import torch_symm

    use_symm()
    footprints = []
    for cycle in range(1, late + 1):
        tensor = torch_symm.empty(50_000, device=DEVICE)
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
        view = torch_symm.contiguous_view(tensor)
        tensor[7] = cycle
        handle.barrier()
        assert view[1 - rank, 7] == cycle
        handle.barrier()
        synchronize()
        del tensor, handle, view
        if cycle in (early, late):
            footprints.append(footprint())
    return footprints


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(240)
def test_ten_thousand_cycles_leave_nothing():
    early, late = (50, 500) if crowded(2) else (1_000, 10_000)
    kept = (late - early) * 2048  # KiB of a GPU, if it kept one granule of every cycle
    for before, after in run_ranks(many_cycles, 2, early, late, time_limit=200, fresh=True):
        assert after[0] <= before[0], f"{before[0]} descriptors became {after[0]}"
        assert after[1] <= before[1] + 4, f"{before[1]} mapped areas became {after[1]}"
        assert after[2] <= before[2] + 1024, f"{before[2]} KiB of address space became {after[2]}"
        assert after[3] <= before[3] + 1024, f"{before[3]} KiB of memory became {after[3]}"
        # The GPU may have other users, but hardly half as many.
        assert after[4] >= before[4] - kept // 2, f"{before[4]} KiB free became {after[4]}"


# -- Selection -----------------------------------------------------------------------------------


def select(rank):
    use_symm()
    texts = [message_of(RuntimeError, symm_mem.set_backend, "NO SUCH BACKEND")]
    selected = symm_mem.get_backend(DEVICE)
    shared(4)[1].barrier()
    texts.append(message_of(RuntimeError, symm_mem.set_backend, "NO SUCH BACKEND"))
    return selected, symm_mem.get_backend(DEVICE), texts


def test_the_backend_that_was_set_is_in_use():
    for before, after, texts in run_ranks(select, 2, fresh=True):
        assert before == after == "SYMM"
        assert all("NO SUCH BACKEND" in text for text in texts)


def select_another(rank):
    use_symm()
    shared(4)[1].barrier()
    text = message_of(RuntimeError, symm_mem.set_backend, "CUDA")
    return text, symm_mem.get_backend("cuda")


@pytest.mark.cuda
def test_another_backend_after_first_use_raises():
    for text, selected in run_ranks(select_another, 2, fresh=True):
        # torch keeps no record of the one that it started out with.
        assert "change" in text or "does not find" in text, text
        assert selected == "SYMM"
