"""CUDA tensors of PyTorch's own allocator with expandable segments: symmetric where they stand."""

import warnings

import pytest
import torch
import torch.distributed as dist

import model
from errors import ERRORS, message_of
from harness import WORLD_SIZE, expect_no_mismatch, run_ranks
from symmetric import meet, pattern

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(120)]

MIB = 1 << 20
EXPANDABLE = "expandable_segments:True"
ENVIRONMENT = {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE, "PYTORCH_ALLOC_CONF": EXPANDABLE}
# float32 elements: in a small piece of 2 MiB, in a large one of 20 MiB, in several of these.
COUNTS = [300, 700_001, 11_000_003]


def set_allocator(settings: str) -> None:
    """In this rank, whose parent may have read the environment already."""
    newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (newer or torch.cuda.memory._set_allocator_settings)(settings)


def use_expandable_segments() -> None:
    """In this rank; checked."""
    set_allocator(EXPANDABLE)
    probe = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    segments = torch.cuda.memory_snapshot()
    inside = [
        segment["is_expandable"]
        for segment in segments
        if 0 <= probe.data_ptr() - segment["address"] < segment["total_size"]
    ]
    assert inside == [True], inside


def placed(tensor, expected):
    """(what as_symmetric returned, what is wrong about what it did)."""
    import torch_symm

    before = torch_symm.copy_counts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if expected == "copied" else "error")
        result = torch_symm.as_symmetric(tensor)
    after = torch_symm.copy_counts()
    counted = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    problems = []
    if counted != {expected: 1, f"{expected}_bytes": tensor.nbytes}:
        problems.append(f"{tensor.nbytes} bytes: expected {expected}, counted {counted}")
    if (result.data_ptr() == tensor.data_ptr()) != (expected == "in_place"):
        problems.append(f"{tensor.nbytes} bytes: {expected}, but at {result.data_ptr():#x}")
    return result, problems


def peers_see(tensor, salt, label):
    """All ranks find each other's pattern; then each writes into the next one's tensor."""
    import torch_symm

    rank, size, count = dist.get_rank(), dist.get_world_size(), tensor.numel()
    problems = []
    if not torch_symm.is_symmetric(tensor, dist.group.WORLD):
        problems.append(f"{label}: the group has not mapped it")
    tensor.copy_(pattern(count, rank, salt))
    remote = torch_symm.SymmetricTensor(tensor)
    meet()
    for peer in range(size):
        found = remote.remote(peer)
        problems += model.mismatch(f"{label}: rank {peer}'s", found, pattern(count, peer, salt))
    meet()
    remote.remote((rank + 1) % size).copy_(pattern(count, rank, salt + 50))
    meet()
    expected = pattern(count, (rank - 1) % size, salt + 50)
    problems += model.mismatch(f"{label}: written by the one before", tensor, expected)
    meet()
    return problems


def reduces_right(tensor, salt, label):
    rank, size, count = dist.get_rank(), dist.get_world_size(), tensor.numel()
    every = [model.make_input(torch.float32, count, peer, salt) for peer in range(size)]
    tensor.copy_(every[rank])
    dist.all_reduce(tensor)
    return model.mismatch(f"{label}: all_reduce", tensor, model.reduced(every, "SUM"))


def in_place(rank):
    use_expandable_segments()
    problems = []
    # The ranks' tensors stand at different places of their pieces.
    kept = [torch.empty(rank * 3 * MIB + 512 * (rank + 1), dtype=torch.uint8, device="cuda")]
    for salt, count in enumerate(COUNTS):
        tensor = torch.full((count,), -7.0, device="cuda")
        kept.append(tensor)
        for _ in range(2):
            result, wrong = placed(tensor, "in_place")
            problems += wrong + ([] if result is tensor else [f"{count}: another tensor"])
        problems += peers_see(tensor, salt, f"{count}")
        problems += reduces_right(tensor, salt, f"{count}")
        part = tensor[100:300]
        problems += placed(part, "in_place")[1]
        problems += peers_see(part, salt + 10, f"a part of {count}")
    return problems


def test_tensors_stay_where_they_are():
    expect_no_mismatch(run_ranks(in_place, WORLD_SIZE, env=ENVIRONMENT))


def on_all_ranks_but_one(rank):
    if rank != 1:
        use_expandable_segments()
    else:
        set_allocator("expandable_segments:False")
    tensor = pattern(5000, rank, 3).cuda()
    result, problems = placed(tensor, "copied")
    problems += model.mismatch("the copy", result, pattern(5000, rank, 3))
    problems += peers_see(result, 3, "the copy")
    return problems + model.mismatch("the original", tensor, pattern(5000, rank, 3))


def test_one_rank_that_cannot_share_makes_all_copy():
    expect_no_mismatch(run_ranks(on_all_ranks_but_one, WORLD_SIZE, timeout=60.0))


def freed_and_reallocated(rank):
    """Addresses come back, with the memory that they had and with other memory."""
    import torch_symm

    use_expandable_segments()
    problems, addresses = [], []
    for salt in range(6):
        count = COUNTS[2] if salt % 3 else COUNTS[1]
        label = f"turn {salt}"
        tensor = torch.full((count,), -9.0, device="cuda")
        problems += placed(tensor, "in_place")[1]
        problems += peers_see(tensor, salt, label)
        problems += reduces_right(tensor, salt, label)
        addresses.append(tensor.data_ptr())
        torch.cuda.synchronize()
        del tensor
        if salt % 2:
            torch.cuda.empty_cache()  # takes the memory away from the addresses
        tensor = torch.full((count,), -11.0, device="cuda")
        addresses.append(tensor.data_ptr())
        if torch_symm.is_symmetric(tensor) or torch_symm.is_symmetric(tensor, dist.group.WORLD):
            problems.append(f"{label}: a new tensor counts as symmetric")
        problems += reduces_right(tensor, salt + 20, f"{label}, a new tensor")
        problems += placed(tensor, "in_place")[1]
        problems += peers_see(tensor, salt + 30, f"{label}, a new tensor")
        problems += reduces_right(tensor, salt + 40, f"{label}, a new tensor, shared")
        torch.cuda.synchronize()
        del tensor
    if len(set(addresses)) == len(addresses):
        problems.append("no address came back, so this has shown nothing")
    return problems


def test_freed_memory_is_not_confused():
    expect_no_mismatch(run_ranks(freed_and_reallocated, WORLD_SIZE, env=ENVIRONMENT))


def given_back(rank):
    """What was mapped for a tensor that is gone goes when the next one is mapped."""
    use_expandable_segments()
    free, size = [], 512 * MIB
    for _ in range(6):
        tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
        if problems := placed(tensor, "in_place")[1]:
            return problems
        meet()
        del tensor
        torch.cuda.empty_cache()
        meet()
        free.append(torch.cuda.mem_get_info()[0])
    lost = free[1] - free[-1]
    return [] if lost < size // 2 else [f"{lost} bytes less are free after four more turns"]


@pytest.mark.alone
def test_memory_is_given_back():
    expect_no_mismatch(run_ranks(given_back, WORLD_SIZE, env=ENVIRONMENT))


def seen_as_one(rank, shifted):
    """Whether there is a view depends on where the ranks' tensors stand, and all say the same."""
    import torch_symm

    use_expandable_segments()
    size, count, problems = dist.get_world_size(), COUNTS[2], []
    shift = 3 * MIB + 512 * (rank + 1) if shifted else 3 * MIB
    kept = torch.empty(shift, dtype=torch.uint8, device="cuda")
    tensor = torch.full((count,), -7.0, device="cuda")
    result, problems = placed(tensor, "in_place")
    result.copy_(pattern(count, rank, 6))
    starts = [None] * size
    dist.all_gather_object(starts, tensor.data_ptr() % (2 * MIB))
    if len(set(starts)) > 1:
        text = message_of(ERRORS, torch_symm.contiguous_view, result)
        if "torch_symm.empty" not in text or "begin at different places" not in text:
            problems.append(f"refused by: {text}")
    else:
        view = torch_symm.contiguous_view(result)
        meet()
        for peer in range(size):
            problems += model.mismatch(f"slice {peer}", view[peer], pattern(count, peer, 6))
        meet()
    del kept
    return problems


@pytest.mark.parametrize("shifted", [False, True])
def test_contiguous_views(shifted):
    expect_no_mismatch(run_ranks(seen_as_one, WORLD_SIZE, shifted, env=ENVIRONMENT))


def handles_of_torch(rank):
    """torch's own rendezvous knows the memory once it is symmetric."""
    import torch.distributed._symmetric_memory as symm_mem

    use_expandable_segments()
    size = dist.get_world_size()
    tensor = pattern(1000, rank, 8).cuda()
    problems = placed(tensor, "in_place")[1]
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    if handle.buffer_ptrs[rank] + handle.offset != tensor.data_ptr():
        problems.append("the handle's own buffer is not the tensor")
    handle.barrier()
    for peer in range(size):
        found = handle.get_buffer(peer, (1000,), torch.float32)
        problems += model.mismatch(f"rank {peer}'s buffer", found, pattern(1000, peer, 8))
    meet()
    return problems


def test_torchs_handles():
    expect_no_mismatch(run_ranks(handles_of_torch, WORLD_SIZE, env=ENVIRONMENT))
