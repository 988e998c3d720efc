"""torch.distributed._symmetric_memory over symm: rendezvous and peers' buffers."""

import ctypes
import re

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C._distributed_c10d import _SymmetricMemory

import model
from errors import message_of
from harness import (
    DEVICE,
    ON_CUDA,
    WORLD_SIZE,
    check,
    device_of_rank,
    expect_no_mismatch,
    run_ranks,
)
from symmetric import (
    TORCH,
    WORLD_SIZES,
    allocate,
    descriptors,
    granules,
    mapped_areas,
    pads_not_zero,
    pattern,
    shared,
    use_symm,
    wrong_peers,
)

pytestmark = pytest.mark.timeout(90)


def handle_facts(rank):
    use_symm()
    size = dist.get_world_size()
    tensor = allocate(1027)
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    facts = {
        "rank": handle.rank == rank,
        "world size": handle.world_size == size,
        "device": torch.device(handle.device) == tensor.device,
        "buffer size": handle.buffer_size >= tensor.nbytes,
        "one buffer a rank": len(set(handle.buffer_ptrs)) == size,
        "one pad a rank": len(set(handle.signal_pad_ptrs)) == size,
        "own buffer": handle.buffer_ptrs[rank] == tensor.data_ptr(),
        "pad size": handle.signal_pad_size == symm_mem.get_signal_pad_size(),
        "offset": getattr(handle, "offset", 0) == 0,
    }
    return [f"{name} of {handle.buffer_ptrs}" for name, right in facts.items() if not right]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_handle_tells_what_it_is(world_size):
    check(handle_facts, world_size)


def pointer_tables(rank):
    """The arrays that kernels get: on the CPU they are read here, on a GPU by a copy."""
    use_symm()
    _, handle = shared(9)
    problems = []
    for name in ("buffer_ptrs", "signal_pad_ptrs"):
        expected, address = getattr(handle, name), getattr(handle, name + "_dev")
        if ON_CUDA:
            got = device_words(address, len(expected))
        else:
            got = list((ctypes.c_uint64 * len(expected)).from_address(address))
        if got != expected:
            problems.append(f"{name}_dev holds {got}, expected {expected}")
    handle.barrier()
    return problems


def device_words(address: int, count: int) -> list[int]:
    """`count` 64-bit words at `address` of this rank's GPU."""

    class Array:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (count,),
            "typestr": "<i8",
            "data": (address, False),  # torch takes no read-only ones
            "version": 2,
        }

    return torch.as_tensor(Array(), device="cuda").tolist()


def test_pointer_tables_for_kernels():
    check(pointer_tables, 3)


def everybody_reads_and_writes(rank):
    use_symm()
    size, problems = dist.get_world_size(), []
    for count, dtype in [(1, torch.float32), (1027, torch.bfloat16), (300_007, torch.int32)]:
        _tensor, handle = shared(count, dtype=dtype, salt=count)
        problems += wrong_peers(handle, list(range(size)), count, dtype, count, "read")
        handle.barrier()
        # Now rank r writes into everybody's buffer, each into its own part.
        table = allocate(size, 5, dtype=dtype)
        table.fill_(0)
        handle = symm_mem.rendezvous(table, dist.group.WORLD)
        handle.barrier()
        for peer in range(size):
            there = handle.get_buffer(peer, (size, 5), dtype)
            there[rank].copy_(pattern(5, rank, peer, dtype))
        handle.barrier()
        expected = torch.stack([pattern(5, r, rank, dtype) for r in range(size)])
        problems += model.mismatch("written", table.flatten(), expected.flatten())
        handle.barrier()
    return problems


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_peers_read_and_write(world_size):
    check(everybody_reads_and_writes, world_size)


def once_only(rank):
    use_symm()
    tensor, handle = shared(64)
    before, problems = (mapped_areas(), descriptors()), []
    for view in (tensor, tensor[3:], tensor.view(8, 8).t(), tensor[:0]):
        again = symm_mem.rendezvous(view, dist.group.WORLD)
        if again.buffer_ptrs != handle.buffer_ptrs or again.rank != handle.rank:
            problems.append(f"another handle for {tuple(view.shape)}")
        if symm_mem.rendezvous(view, dist.group.WORLD.group_name).buffer_ptrs != again.buffer_ptrs:
            problems.append("another handle for the group's name")
    if (mapped_areas(), descriptors()) != before and not ON_CUDA:
        problems.append("a repeated rendezvous mapped or opened something")
    handle.barrier()
    return problems


def test_rendezvous_is_cached():
    check(once_only, 3)


def by_one_rank_alone(rank):
    """A warm rendezvous waits for nobody: of one rank alone, and of two groups crosswise."""
    use_symm()
    tensor, of_world = shared(64)
    pair = dist.new_group([0, 1])
    of_pair = symm_mem.rendezvous(tensor, pair)
    dist.barrier()
    problems = []
    groups = [(dist.group.WORLD, of_world), (pair, of_pair)]
    for group, handle in groups if rank == 0 else groups[::-1]:
        for _repeat in range(3 - rank):  # not as often on every rank
            again = symm_mem.rendezvous(tensor[rank:], group)
            problems += [] if again.buffer_ptrs == handle.buffer_ptrs else ["another handle"]
    for handle in (of_world, of_pair):
        handle.barrier()
    dist.destroy_process_group(pair)
    return problems


def test_a_warm_rendezvous_waits_for_nobody():
    check(by_one_rank_alone, 2)


def by_the_name_given_to_empty(rank):
    """rendezvous() without a group takes the group that the allocation was made for."""
    use_symm()
    group = dist.new_group([0, 2])
    name = group.group_name if rank != 1 else dist.group.WORLD.group_name
    place, problems = device_of_rank(), []
    tensor = _SymmetricMemory.empty_strided_p2p((6,), (1,), torch.float32, place, name)
    if rank != 1:
        tensor.copy_(pattern(6, rank))
        handle = _SymmetricMemory.rendezvous(tensor)
        handle.barrier()
        problems = wrong_peers(handle, [0, 2], 6)
        handle.barrier()
        nameless = _SymmetricMemory.empty_strided_p2p((6,), (1,), torch.float32, place, "")
        text = message_of((RuntimeError, ValueError), _SymmetricMemory.rendezvous, nameless)
        problems += [] if "group" in text else [f"does not say what is missing: {text}"]
        dist.destroy_process_group(group)
    return problems


def test_rendezvous_of_the_group_that_was_named_at_allocation():
    check(by_the_name_given_to_empty, 3)


def without_elements(rank):
    use_symm()
    problems = []
    for shape in [(), (0,), (4, 0)]:
        tensor = allocate(*shape)
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
        handle.barrier()
        if handle.world_size != dist.get_world_size():
            problems.append(f"{shape}: {handle.world_size} ranks")
        if shape == ():
            tensor.fill_(rank + 0.5)
            handle.barrier()
            for peer in range(handle.world_size):
                got = handle.get_buffer(peer, (), torch.float32).item()
                problems += [] if got == peer + 0.5 else [f"rank {peer}'s number is {got}"]
            handle.barrier()
        elif handle.get_buffer(0, shape, torch.float32).shape != shape:
            problems.append(f"{shape}: another shape of the buffer")
        dist.barrier()
        problems += pads_not_zero(handle, str(shape))
        dist.barrier()
    return problems


def test_tensors_without_elements_or_dimensions():
    check(without_elements, 3)


def ordinary_memory(rank):
    use_symm()
    problems = []
    plain = torch.ones(10, device=DEVICE)
    for tensor in (plain, plain[3:]):
        problems += [] if symm_mem.rendezvous(tensor, dist.group.WORLD) is None else ["a handle"]
    _tensor, handle = shared(10)
    problems += wrong_peers(handle, list(range(dist.get_world_size())), 10, what="after it")
    handle.barrier()
    return problems


def test_ordinary_memory_is_nobodys():
    """torch asks for a null handle, None in Python, and no rank waits for another."""
    check(ordinary_memory, 2)


def through_an_interior_pointer(rank):
    """A tensor whose storage starts inside an allocation: get_remote_tensor() knows where."""
    use_symm()
    tensor, _ = shared(100)
    inside = torch.from_dlpack(tensor[21:60])
    handle, problems = symm_mem.rendezvous(inside, dist.group.WORLD), []
    if getattr(handle, "offset", 84) != 84:  # torch 2.11 does not tell
        problems.append(f"offset {handle.offset}")
    for peer in range(handle.world_size):
        expected = pattern(100, peer)
        got = handle.get_remote_tensor(peer, (39,), torch.float32)
        problems += model.mismatch(f"remote tensor of {peer}", got, expected[21:60])
        got = handle.get_buffer(peer, (100,), torch.float32)
        problems += model.mismatch(f"buffer of {peer}", got, expected)
    handle.barrier()
    return problems


@pytest.mark.skipif(
    not hasattr(_SymmetricMemory, "get_remote_tensor"), reason="this torch has no get_remote_tensor"
)
def test_interior_pointers():
    check(through_an_interior_pointer, 3)


def parts_of_a_buffer(rank):
    use_symm()
    size, problems = dist.get_world_size(), []
    _tensor, handle = shared(60, dtype=torch.int32)
    for peer in range(size):
        expected = pattern(60, peer, dtype=torch.int32)
        got = handle.get_buffer(peer, (5, 4), torch.int32, 17)
        problems += model.mismatch("an offset", got.flatten(), expected[17:37])
        got = handle.get_buffer(peer, (11,), torch.int16, 7)
        problems += model.mismatch("another dtype", got, expected.view(torch.int16)[7:18])
        if got.device != device_of_rank():
            problems.append(f"a buffer on {got.device}")
    beyond = handle.buffer_size // 4 + 1
    for arguments in [((beyond,), 0), ((1,), beyond - 1), ((2, beyond), 0)]:
        shape, offset = arguments
        call = handle.get_buffer
        text = message_of(RuntimeError, call, 0, shape, torch.int32, offset)
        problems += [] if str(handle.buffer_size) in text else [f"the size is not named: {text}"]
    handle.barrier()
    return problems


def test_parts_of_buffers():
    check(parts_of_a_buffer, 3)


def ranks_out_of_bounds(rank):
    use_symm()
    _, handle = shared(4)
    calls = [
        lambda r: handle.get_buffer(r, (1,), torch.float32),
        lambda r: handle.get_signal_pad(r),
        lambda r: handle.get_remote_tensor(r, (1,), torch.float32),
    ]
    texts = [message_of((RuntimeError, ValueError), call, r) for call in calls for r in (-1, 2, 99)]
    handle.barrier()
    return [text for text in texts if "rank" not in text]


@pytest.mark.skipif(TORCH < (2, 14), reason="older torch does not check a peer's rank")
def test_ranks_out_of_bounds():
    check(ranks_out_of_bounds, 2)


def through_the_dispatcher(rank):
    """torch's operators that make a handle and meet on it."""
    use_symm()
    tensor, problems = allocate(16), []
    tensor.copy_(pattern(16, rank))
    boxed = torch.ops.symm_mem._rendezvous(tensor, dist.group.WORLD.group_name)
    torch.ops.symm_mem._barrier(boxed)
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    problems += wrong_peers(handle, list(range(handle.world_size)), 16)
    torch.ops.symm_mem._barrier(boxed)
    return problems


@pytest.mark.skipif(
    not hasattr(torch.ops.symm_mem, "_rendezvous"), reason="this torch has no such operators"
)
def test_the_dispatchers_operators():
    check(through_the_dispatcher, 3)


# -- Multicast -----------------------------------------------------------------------------------


def without_multicast(rank):
    """PyTorch's programs look whether the pointer is 0; SymmetricTensor says what is missing."""
    from torch._C._autograd import DeviceType

    import torch_symm

    use_symm()
    tensor, handle = shared(4)
    kind = DeviceType.CUDA if ON_CUDA else DeviceType.CPU
    problems = []
    if _SymmetricMemory.has_multicast_support(kind, device_of_rank().index or 0):
        problems.append("multicast is switched off, and said to be there")
    if handle.multicast_ptr != 0:
        problems.append(f"the pointer is {handle.multicast_ptr:#x}")
    of_tensor = torch_symm.SymmetricTensor(tensor)
    text = message_of(NotImplementedError, of_tensor.multicast_pointer)
    if not re.search("SYMM_DISABLE_MULTICAST" if ON_CUDA else "cpu memory has no multicast", text):
        problems.append(f"does not say what is missing: {text}")
    handle.barrier()
    return problems


def test_multicast_where_there_is_none_is_null():
    env = {"SYMM_DISABLE_MULTICAST": "1"}
    expect_no_mismatch(run_ranks(without_multicast, 2, env=env))


def with_collectives(rank):
    """Collectives of the group take such a tensor as any other."""
    use_symm()
    size, problems = dist.get_world_size(), []
    for count in (5, 300_007):
        every = [model.make_input(torch.float32, count, r, 3) for r in range(size)]
        tensor, handle = shared(count, salt=3)
        handle.barrier()
        dist.all_reduce(tensor)
        expected = model.reduced(every, "SUM")
        problems += model.mismatch(f"all_reduce {count}", tensor, expected, exact=False)
        out = allocate(count * size)
        symm_mem.rendezvous(out, dist.group.WORLD)
        tensor.copy_(every[rank])
        dist.all_gather_into_tensor(out, tensor)
        problems += model.mismatch(f"all_gather {count}", out, torch.cat(every))
    return problems


def test_collectives_take_symmetric_tensors():
    check(with_collectives, WORLD_SIZE)


def to_the_last_byte(rank):
    """Behind tensors that end with their allocation nothing is mapped; results are exact."""
    use_symm()
    size, problems = dist.get_world_size(), []
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        source, result = granules(4, dtype), granules(4, dtype)
        for tensor in (source, result):
            symm_mem.rendezvous(tensor, dist.group.WORLD)
        whole = source.numel()
        for count in (1, 7, 37, 1001, whole // size - 1, whole // size):
            every = [pattern(size * count, r, count, dtype) for r in range(size)]
            given, got = source[whole - size * count :], result[whole - size * count :]
            part = result[whole - count :]
            what = f"{model.name(dtype)}, {count} elements"
            given.copy_(every[rank])
            dist.all_to_all_single(got, given)
            mine = slice(rank * count, rank * count + count)
            expected = torch.cat([one[mine] for one in every])
            problems += model.mismatch(f"all_to_all of {what}", got, expected)
            total = model.reduced(every, "SUM")
            dist.reduce_scatter_tensor(part, given)
            problems += model.mismatch(f"reduce_scatter of {what}", part, total[mine], exact=False)
            dist.all_gather_into_tensor(got, given[-count:])
            expected = torch.cat([one[-count:] for one in every])
            problems += model.mismatch(f"all_gather of {what}", got, expected)
            dist.all_reduce(given)
            problems += model.mismatch(f"all_reduce of {what}", given, total, exact=False)
        dist.barrier()
    return problems


@pytest.mark.parametrize("world_size", [2, 3])
def test_collectives_read_and_write_to_the_last_byte(world_size):
    check(to_the_last_byte, world_size)
