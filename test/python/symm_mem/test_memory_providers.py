"""One suite over every provider of symmetric memory that the machine has."""

import functools

import pytest
import torch
import torch.distributed as dist

import model
from errors import ERRORS, message_of, unsaid
from harness import DEVICE, GPUS, ON_CUDA, PROCESSES, crowded, expect_no_mismatch, run_ranks
from symmetric import meet, pattern

pytestmark = [pytest.mark.timeout(90), pytest.mark.uncrowded]

NAMES = ["native", "cuda", "nccl", "nvshmem"]
TORCH_NAMES = {"native": "SYMM", "cuda": "CUDA", "nccl": "NCCL", "nvshmem": "NVSHMEM"}
WITH_SIGNALS = {"native", "cuda"}
if ON_CUDA and torch.cuda.nccl.version() >= (2, 29):
    WITH_SIGNALS.add("nccl")
WITH_BARRIER = {"native", "cuda"}


@functools.cache
def absent(name):
    """Why the machine cannot run the suite over `name`, "" where it can; asked in a rank."""
    if name != "native" and not ON_CUDA:
        return f"{name} has no memory on the CPU: run with SYMM_TEST_DEVICE=cuda"
    return run_ranks(reason_of, 1, name, fresh=PROCESSES)[0]


def reason_of(rank, name):
    import torch_symm

    return torch_symm.providers()[name]


def check_provider(body, world_size, name, *args):
    """`body(rank, name, *args)` on ranks of their own: a provider is for the whole process."""
    if reason := absent(name):
        pytest.skip(reason)
    if name != "native" and crowded(world_size):
        pytest.skip(f"PyTorch's {name} wants a GPU for each of {world_size} ranks, here are {GPUS}")
    backend = "nccl" if name in ("nccl", "nvshmem") else None
    expect_no_mismatch(
        run_ranks(chosen, world_size, body, name, *args, backend=backend, fresh=PROCESSES)
    )


def chosen(rank, body, name, *args):
    import torch_symm

    torch_symm.memory_provider(name)
    return body(rank, name, *args)


# -- What every provider does --------------------------------------------------------------------


def selected_for_good(rank, name):
    import torch.distributed._symmetric_memory as symm_mem

    import torch_symm

    problems = []
    if torch_symm.memory_provider() != name:
        problems.append(f"{torch_symm.memory_provider()} instead of {name}")
    shared = torch_symm.SymmetricTensor.empty(4, device=DEVICE)
    selected = symm_mem.get_backend(DEVICE)
    if selected != TORCH_NAMES[name] or shared.provider != name:
        problems.append(f"torch has {selected}, the tensor {shared.provider}")
    torch_symm.memory_provider(name)
    for other in NAMES:
        if other != name:
            text = message_of(NotImplementedError, torch_symm.memory_provider, other)
            if repr(name) not in text or repr(other) not in text:
                problems.append(text)
    if torch_symm.memory_provider() != name:
        problems.append("a refused choice has changed something")
    meet()
    return problems


@pytest.mark.parametrize("name", NAMES)
def test_the_choice_is_real_and_stands(name):
    check_provider(selected_for_good, 2, name)


def peers(rank, name):
    import torch_symm

    size, problems = dist.get_world_size(), []
    for count, dtype in [(1, torch.float32), (1027, torch.bfloat16), (100_003, torch.int32)]:
        shared = torch_symm.SymmetricTensor.empty(count, dtype=dtype, device=DEVICE)
        shared.local.copy_(pattern(count, rank, 1, dtype))
        meet()
        for peer in range(size):
            label = f"{count} {dtype} of {peer}"
            expected = pattern(count, peer, 1, dtype)
            problems += model.mismatch(label, shared.remote(peer), expected)
        meet()
        shared.remote((rank + 1) % size).copy_(pattern(count, rank, 2, dtype))
        meet()
        expected = pattern(count, (rank - 1) % size, 2, dtype)
        problems += model.mismatch(f"written to {rank}", shared.local, expected)
        if shared.remote(rank) is not shared.local:
            problems.append("the own tensor is another one")
    for peer in (-1, size):
        text = message_of(ValueError, shared.remote, peer)
        problems += [] if f"0 to {size - 1}" in text and str(peer) in text else [text]
    return problems


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_peers_read_and_write(name, world_size):
    check_provider(peers, world_size, name)


def odd_shapes(rank, name):
    import torch_symm

    problems, kept = [], []
    for shape in [(), (1,), (0,), (3, 0), (2, 3, 5)]:
        shared = torch_symm.SymmetricTensor.empty(shape, device=DEVICE)
        shared.local.fill_(rank + 0.25)
        meet()
        for peer in range(shared.world_size):
            got, expected = shared.remote(peer), torch.full(shape, peer + 0.25)
            problems += [] if got.shape == expected.shape else [f"{got.shape} for {shape}"]
            problems += model.mismatch(f"{shape}", got.flatten(), expected.flatten())
        meet()
        # torch 2.11's NVSHMEM takes new memory for what it freed at the same address.
        kept.append(shared)
    return problems


@pytest.mark.parametrize("name", NAMES)
def test_tensors_without_elements_or_dimensions(name):
    check_provider(odd_shapes, 2, name)


def part_of_an_allocation(rank, name):
    import torch_symm

    whole = torch_symm.empty(10, 100, device=DEVICE)
    whole.copy_(pattern(1000, rank, 3).view(10, 100))
    shared = torch_symm.SymmetricTensor(whole[4:7])
    meet()
    problems = []
    for peer in range(shared.world_size):
        expected = pattern(1000, peer, 3)[400:700]
        problems += model.mismatch(f"rows of {peer}", shared.remote(peer).flatten(), expected)
    text = message_of(ValueError, torch_symm.SymmetricTensor, whole[:, 4:7])
    problems += [] if "contiguous" in text and "[100, 1]" in text else [text]
    plain = torch.ones(4, device=DEVICE)
    text = message_of(ERRORS, torch_symm.SymmetricTensor, plain)
    meet()
    return problems


@pytest.mark.parametrize("name", NAMES)
def test_part_of_an_allocation(name):
    check_provider(part_of_an_allocation, 2, name)


def in_strided_groups(rank, name):
    """The group that is named is the one that is met."""
    import torch_symm

    tensor, problems = torch_symm.empty(50, device=DEVICE), []
    tensor.copy_(pattern(50, rank, 5))
    meet()
    for ranks in ([0, 2], [1, 3]):
        group = dist.new_group(ranks)
        if rank not in ranks:
            continue
        dist.all_reduce(torch.ones(1, device=DEVICE), group=group)
        shared = torch_symm.SymmetricTensor(tensor, group)
        if (shared.rank, shared.world_size) != (ranks.index(rank), 2) or shared.group is not group:
            problems.append(f"{shared} in {ranks}")
        for peer, global_rank in enumerate(ranks):
            expected = pattern(50, global_rank, 5)
            problems += model.mismatch(f"{peer} of {ranks}", shared.remote(peer), expected)
    meet()
    return problems


@pytest.mark.parametrize("name", NAMES)
def test_strided_groups(name):
    check_provider(in_strided_groups, 4, name)


# -- What some do, and the others refuse ---------------------------------------------------------


def refused(call, name, able):
    """What is wrong with how `call` was refused."""
    text = message_of(NotImplementedError, call)
    right = repr(name) in text and all(other in text for other in able)
    return [] if right else [f"does not name {sorted(able)}: {text}"]


def synchronisation(rank, name):
    import torch_symm

    size = dist.get_world_size()
    shared = torch_symm.SymmetricTensor.empty(8, device=DEVICE)
    after, before, problems = (rank + 1) % size, (rank - 1) % size, []
    for number in range(5):
        shared.local.fill_(-1.0)
        meet()
        shared.remote(after).fill_(number * 10.0 + rank)
        if name in WITH_SIGNALS:
            shared.put_signal(after, 1)
            shared.wait_signal(before, 1)
        else:
            problems += refused(lambda: shared.put_signal(after), name, WITH_SIGNALS)
            problems += refused(lambda: shared.wait_signal(before), name, WITH_SIGNALS)
            meet()
        expected = torch.full((8,), number * 10.0 + before)
        problems += model.mismatch(f"signal {number}", shared.local, expected)
        if name in WITH_BARRIER:
            shared.barrier(2)
        else:
            problems += refused(shared.barrier, name, WITH_BARRIER)
    meet()
    return problems


@pytest.mark.parametrize("name", NAMES)
def test_signals_and_barriers(name):
    check_provider(synchronisation, 2, name)


def one_tensor_of_all(rank, name):
    import torch_symm

    shared = torch_symm.SymmetricTensor.empty((3, 7), device=DEVICE)
    shared.local.copy_(pattern(21, rank, 6).view(3, 7))
    meet()
    if name != "native":
        return refused(shared.contiguous_view, name, {"native"})
    view, problems = shared.contiguous_view(), []
    for peer in range(shared.world_size):
        problems += model.mismatch(f"slice {peer}", view[peer].flatten(), pattern(21, peer, 6))
    meet()
    return problems


@pytest.mark.parametrize("name", NAMES)
def test_contiguous_views(name):
    check_provider(one_tensor_of_all, 2, name)


def where_multicast_is(rank, name):
    import torch_symm

    shared = torch_symm.SymmetricTensor.empty(8, device=DEVICE)
    meet()
    try:
        pointer = shared.multicast_pointer()
    except (NotImplementedError, RuntimeError) as error:
        text = str(error)
        wanted = ["multicast"] if name != "native" else ["'native'", "has no multicast|MULTICAST"]
        return unsaid(text, wanted)
    return [] if pointer else ["a null pointer"]


@pytest.mark.parametrize("name", NAMES)
def test_a_multicast_pointer_is_never_null(name):
    check_provider(where_multicast_is, 2, name)


def on_the_cpu(rank, name):
    import torch_symm

    return refused(lambda: torch_symm.empty(3, device="cpu"), name, {"native"})


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES[1:])
def test_memory_of_the_cpu_is_native_only(name):
    check_provider(on_the_cpu, 1, name)
