"""torch_symm's allocation functions, is_symmetric, as_symmetric and mem_pool."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import model
from errors import CALL_ERRORS, message_of, not_raised
from harness import DEVICE, PROCESSES, check, device_of_rank, expect_no_mismatch, run_ranks
from symmetric import meet, pattern

pytestmark = pytest.mark.timeout(90)


# -- Allocation ----------------------------------------------------------------------------------


def allocations(rank):
    import torch_symm

    place, problems = device_of_rank(), []
    functions = {
        "empty": (torch_symm.empty, None),
        "zeros": (torch_symm.zeros, 0),
        "ones": (torch_symm.ones, 1),
    }
    for name, (function, value) in functions.items():
        for shape in [(), (0,), (5,), (3, 0, 2), (2, 3, 4)]:
            for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool):
                for tensor in (
                    function(*shape, dtype=dtype, device=DEVICE),
                    function(shape, dtype=dtype, device=place),
                    function(torch.Size(shape), dtype=dtype, device=str(place)),
                ):
                    got = (tuple(tensor.shape), tensor.dtype, tensor.device)
                    if got != (shape, dtype, place) or not tensor.is_contiguous():
                        problems.append(f"{name}: {got} for {shape} {dtype}")
                    if value is not None:
                        expected = torch.full(shape, value, dtype=dtype)
                        label = f"{name} {shape} {dtype}"
                        problems += model.mismatch(label, tensor.flatten(), expected.flatten())
                    if not torch_symm.is_symmetric(tensor):
                        problems.append(f"{name} {shape} {dtype} is not symmetric memory")
    return problems


def test_allocation_functions():
    check(allocations, 2)


def filled_with(rank):
    import torch_symm

    problems = []
    for value, dtype in [(2.5, None), (3, None), (True, None), (2 + 1j, None), (7, torch.float16)]:
        got = torch_symm.full((2, 3), value, dtype=dtype, device=DEVICE)
        expected = torch.full((2, 3), value, dtype=dtype)
        problems += model.mismatch(f"full {value}", got.flatten(), expected.flatten())
    got = torch_symm.full(4, -1.0, device=DEVICE)
    problems += model.mismatch("a single size", got, torch.full((4,), -1.0))
    with torch.device(DEVICE):
        if torch_symm.empty(3).device.type != DEVICE:
            problems.append("the default device is not used")
    torch.set_default_dtype(torch.float64)
    try:
        if torch_symm.zeros(3, device=DEVICE).dtype != torch.float64:
            problems.append("the default dtype is not used")
    finally:
        torch.set_default_dtype(torch.float32)
    for call in (torch_symm.empty, torch_symm.zeros):
        text = message_of(CALL_ERRORS, call, 3, device="meta")
        if "meta" not in text or "native" not in text:
            problems.append(f"device meta: {text}")
    return problems


def test_full_and_defaults():
    check(filled_with, 2)


# -- is_symmetric --------------------------------------------------------------------------------


def who_is_symmetric(rank):
    import torch_symm

    group, problems = dist.new_group([0, 2]), []

    def expect(expected, tensor, group, what):
        if torch_symm.is_symmetric(tensor, group) is not expected:
            problems.append(f"{what}: expected {expected}")

    tensor = torch_symm.empty(100, device=DEVICE)
    plain = torch.empty(100, device=DEVICE)
    world = dist.group.WORLD
    expect(False, plain, None, "plain")
    expect(True, tensor, None, "ours")
    expect(True, tensor[20:30], None, "a view of ours")
    expect(True, tensor[:0], None, "an empty view of ours")
    expect(True, torch.from_dlpack(tensor[7:]), None, "an interior pointer")
    expect(True, symm_mem.empty(9, device=device_of_rank()), None, "torch's own function")
    expect(False, tensor, world, "before the rendezvous")
    meet()
    symm_mem.rendezvous(tensor, world)
    expect(True, tensor, world, "after the rendezvous")
    expect(True, tensor[20:30].t(), world.group_name, "a view, the group by name")
    expect(False, plain, world, "plain, for the group")
    if rank != 1:
        expect(False, tensor, group, "another group")
        symm_mem.rendezvous(tensor, group)
        expect(True, tensor, group, "two groups")
        expect(True, tensor, world, "still the first one")
        meet(group)
        dist.destroy_process_group(group)
        text = message_of(CALL_ERRORS, torch_symm.is_symmetric, tensor, group)
        problems += [] if "destroyed" in text else [f"destroyed: {text}"]
    else:
        text = message_of(CALL_ERRORS, torch_symm.is_symmetric, tensor, group)
        problems += [] if "rank 1 is not in it" in text else [f"not in the group: {text}"]
    meet()
    return problems


def test_is_symmetric():
    check(who_is_symmetric, 3)


# -- as_symmetric --------------------------------------------------------------------------------


def place(tensor, group=None, warn=False):
    """(what as_symmetric returned, what it counted); warnings are errors unless expected."""
    import torch_symm

    before = torch_symm.copy_counts()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = torch_symm.as_symmetric(tensor, group)
    after = torch_symm.copy_counts()
    texts = [str(warning.message) for warning in said]
    assert len(texts) == int(warn), texts
    if warn:
        assert "torch_symm.empty" in texts[0], texts
        assert said[0].filename == __file__, said[0].filename
    return result, {
        name: after[name] - before[name] for name in after if after[name] != before[name]
    }


def peers_see(tensor, ranks, count, salt, group=None, what=""):
    """All of `ranks` look at each other's `tensor` and find each other's pattern."""
    import torch_symm

    problems = []
    if not torch_symm.is_symmetric(tensor, group or dist.group.WORLD):
        problems.append(f"{what}: the group has not mapped it")
    remote = torch_symm.SymmetricTensor(tensor, group)
    meet(group)
    for peer, global_rank in enumerate(ranks):
        label = f"{what}: rank {global_rank}'s"
        problems += model.mismatch(label, remote.remote(peer), pattern(count, global_rank, salt))
    meet(group)
    return problems


def in_place(rank):
    import torch_symm

    ranks, problems = list(range(dist.get_world_size())), []
    tensor = torch_symm.empty(1000, device=DEVICE)
    tensor.copy_(pattern(1000, rank, 1))
    for _ in range(3):
        result, counted = place(tensor)
        if result is not tensor or counted != {"in_place": 1, "in_place_bytes": 4000}:
            problems.append(f"a copy: {counted}")
    problems += peers_see(result, ranks, 1000, 1, what="in place")
    part = tensor.view(10, 100)[:, 5:9]  # not contiguous, and needs no copy either
    result, counted = place(part)
    if result is not part or "copied" in counted:
        problems.append(f"a copy of a part: {counted}")
    return problems


def test_symmetric_tensors_stay_where_they_are():
    check(in_place, 3)


def copied(rank):
    ranks, problems = list(range(dist.get_world_size())), []
    for salt in range(3):
        tensor = pattern(1000, rank, salt).to(DEVICE)
        result, counted = place(tensor, warn=salt == 0)
        if result.data_ptr() == tensor.data_ptr() or counted != {"copied": 1, "copied_bytes": 4000}:
            problems.append(f"no copy: {counted}")
        problems += peers_see(result, ranks, 1000, salt, what=f"copy {salt}")
        result.fill_(-1.0)
        problems += model.mismatch("the original", tensor, pattern(1000, rank, salt))
    turned = pattern(60, rank).view(6, 10).t().to(DEVICE)
    result, _ = place(turned)
    if not result.is_contiguous():
        problems.append("the copy is not contiguous")
    problems += model.mismatch("turned", result.flatten(), turned.flatten())
    parameter = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    result, _ = place(parameter)
    if result.grad_fn is not None or result.requires_grad:
        problems.append("the copy has an autograd history")
    for shape in [(), (0,), (2, 0)]:
        result, _ = place(torch.ones(shape, device=DEVICE))
        if tuple(result.shape) != shape:
            problems.append(f"{tuple(result.shape)} for {shape}")
    return problems


def test_other_tensors_are_copied():
    expect_no_mismatch(run_ranks(copied, 3, fresh=True))


def symmetric_on_some_ranks(rank, what):
    """Ranks differ in where their tensor stands: all of them copy, and none waits for ever."""
    import torch_symm

    odd = rank == 1
    if what == "memory":
        tensor = torch.empty(40, device=DEVICE) if odd else torch_symm.empty(40, device=DEVICE)
    elif what == "offset":
        whole = torch_symm.empty(100, device=DEVICE)
        tensor = whole[10:50] if odd else whole[:40]
    else:  # the allocations' sizes
        whole = torch_symm.empty(9_000_000 if odd else 100, device=DEVICE)
        tensor = whole[:40]
    tensor.copy_(pattern(40, rank, 4))
    result, counted = place(tensor, warn=True)
    problems = [] if counted == {"copied": 1, "copied_bytes": 160} else [f"{what}: {counted}"]
    return problems + peers_see(result, [0, 1, 2], 40, 4, what=what)


@pytest.mark.parametrize("what", ["memory", "offset", "size"])
def test_all_ranks_decide_alike(what):
    expect_no_mismatch(run_ranks(symmetric_on_some_ranks, 3, what, fresh=PROCESSES))


def placed_in_groups(rank, backend):
    problems = []
    for ranks in ([0, 2], [1, 3]):
        group = dist.new_group(ranks, backend=backend)
        if rank in ranks:
            tensor = pattern(333, rank, 2).to(DEVICE)
            result, _ = place(tensor, group, warn=True)
            problems += peers_see(result, ranks, 333, 2, group, f"{backend} {ranks}")
    return problems


@pytest.mark.parametrize("backend", ["gloo", None], ids=["gloo", "the backend under test"])
def test_as_symmetric_in_strided_groups(backend):
    expect_no_mismatch(run_ranks(placed_in_groups, 4, backend, fresh=PROCESSES))


def ranks_differ(rank, what):
    import torch_symm

    dtype = torch.float64 if what == "dtype" and rank == 1 else torch.float32
    count = 21 if what == "shape" and rank == 1 else 20
    tensor = torch_symm.empty(count, dtype=dtype, device=DEVICE)
    text = message_of(CALL_ERRORS, torch_symm.as_symmetric, tensor)
    tensor = torch_symm.empty(30, device=DEVICE)
    tensor.copy_(pattern(30, rank))
    result, _ = place(tensor)
    return text, peers_see(result, [0, 1, 2], 30, 0, what=f"after {what}")


@pytest.mark.parametrize("what", ["shape", "dtype"])
def test_what_differs_between_ranks_is_said_on_every_rank(what):
    words = {"shape": ["[20] on ranks 0, 2", "[21] on rank 1"], "dtype": ["float64 on rank 1"]}
    for rank, (text, problems) in enumerate(run_ranks(ranks_differ, 3, what, fresh=True)):
        assert not problems, problems
        assert all(word in text for word in [what, *words[what]]), f"rank {rank}: {text}"


def wrong_groups(rank):
    import torch_symm

    group = dist.new_group([0, 1])
    tensor, problems = torch_symm.empty(8, device=DEVICE), []
    for function in (torch_symm.as_symmetric, torch_symm.SymmetricTensor):
        cases = [(7.5, ["float"]), ("no such group", ["no such group"])]
        if rank == 2:
            cases.append((group, ["global rank 2 is not in it"]))
        for given, words in cases:
            words = ["group", function.__name__, *words]
            problems += not_raised("", words, function, tensor, given)
    meet()
    return problems


def test_wrong_groups_are_refused():
    expect_no_mismatch(run_ranks(wrong_groups, 3, fresh=True))


# -- Pools ---------------------------------------------------------------------------------------


def no_pool(rank):
    import torch_symm

    text = message_of(CALL_ERRORS, torch_symm.mem_pool, "cpu")
    return [] if "torch_symm.empty" in text else [text]


def test_a_pool_on_the_cpu_is_refused():
    check(no_pool, 2)


def in_a_pool(rank):
    import torch_symm

    size, problems = dist.get_world_size(), []
    pool = torch_symm.mem_pool()
    if torch_symm.mem_pool(torch.cuda.current_device()) is not pool:
        problems.append("two pools for one GPU")
    with torch.cuda.use_mem_pool(pool):
        weight = torch.full((300, 40), float(rank + 1), device="cuda")
        product = torch.ones(2, 300, device="cuda") @ weight
    plain = torch.ones(10, device="cuda")
    if torch_symm.is_symmetric(plain) or not torch_symm.is_symmetric(weight):
        problems.append("what is allocated inside is not what is symmetric")
    shared = torch_symm.SymmetricTensor(product)
    meet()
    for peer in range(size):
        expected = torch.full((2, 40), 300.0 * (peer + 1))
        problems += model.mismatch(
            f"rank {peer}", shared.remote(peer).flatten(), expected.flatten()
        )
    meet()
    result, counted = place(weight)
    return problems + ([] if result is weight and "copied" not in counted else ["a copy"])


@pytest.mark.cuda
def test_a_pool_on_a_gpu():
    expect_no_mismatch(run_ranks(in_a_pool, 2, fresh=True))


# -- The package ---------------------------------------------------------------------------------

CHEAP = """
import sys, torch_symm
assert "torch" not in sys.modules, "torch was imported"
names = set(dir(torch_symm))
assert {"empty", "contiguous_view", "SymmetricTensor", "memory_provider"} <= names, names
assert "torch_symm._C" not in sys.modules, "the compiled module was loaded"
"""


ALONE = """
import torch_symm
assert torch_symm.zeros(3, device="cpu").tolist() == [0.0] * 3
"""
AFTER_A_GROUP = """
import torch.distributed as dist
dist.init_process_group("symm", store=dist.HashStore(), rank=0, world_size=1)
"""


@pytest.mark.parametrize(
    ("autoload", "program"),
    [("0", ALONE), ("1", ALONE), ("1", AFTER_A_GROUP + ALONE)],
    ids=["without the hook of import torch", "with it", "after a group"],
)
def test_allocation_needs_nothing_before_it(autoload, program):
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_package_is_cheap():
    subprocess.run([sys.executable, "-c", CHEAP], check=True, timeout=60)
