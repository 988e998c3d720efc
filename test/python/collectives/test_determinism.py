"""The same bits, whatever carries them: every algorithm, chunking, world size, sync and async.

Each case also compares with the sequential model, so "all alike and all wrong" cannot pass. What
is compared across set-ups is a digest of the results.
"""

import pytest
import torch
import torch.distributed as dist

import model
from digests import ALGORITHMS, COUNTS, REDUCTIONS, copy_here, run_set_up
from harness import IS_SYMM, ON_CUDA, WORLD_SIZE, crowded, few, options_with, run_ranks

pytestmark = pytest.mark.skipif(
    not IS_SYMM, reason="guarantees of symm: gloo's bits depend on the size and the world"
)


def only_all_reduce(digests):
    return [{k: v for k, v in d.items() if k.startswith("all_reduce ")} for d in digests]


@pytest.fixture(scope="module")
def reference():
    return run_set_up(WORLD_SIZE)


def test_every_rank_has_the_same_bits(reference):
    first, *others = only_all_reduce(reference)
    assert len(first) == len(REDUCTIONS) * len(COUNTS)
    assert all(other == first for other in others)


@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
def test_algorithms_by_environment(reference, algorithm):
    assert run_set_up(WORLD_SIZE, env={"SYMM_ALGO": algorithm}) == reference


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithms_by_option(reference, algorithm):
    assert run_set_up(WORLD_SIZE, options=options_with(algorithm=algorithm)) == reference


@pytest.mark.parametrize(
    "workspace_kib", [4096, 8192, 131072] if ON_CUDA else [512, 1024, 4096, 32768]
)
def test_workspace_sizes(reference, workspace_kib):
    options = options_with(workspace_bytes=workspace_kib * 1024)
    assert run_set_up(WORLD_SIZE, options=options) == reference


@pytest.mark.cpu("about the instruction sets of a CPU")
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_instruction_sets(reference, isa):
    with open("/proc/cpuinfo") as file:
        flags = file.read()
    needs = {"baseline": "", "avx2": " avx2 ", "avx512": " avx512bw "}[isa]
    if needs not in flags:
        pytest.skip(f"this processor has no {isa}")
    assert run_set_up(WORLD_SIZE, env={"SYMM_ISA": isa}) == reference


def test_async(reference):
    assert run_set_up(WORLD_SIZE, async_op=True) == reference


@pytest.mark.parametrize(
    "world_size", [2, 3, 5, 8, *(pytest.param(n, marks=pytest.mark.long) for n in (6, 7))]
)
def test_world_sizes(world_size):
    """Each world against the model, by two algorithms that share no code path."""
    if world_size > 4 and crowded(world_size):
        pytest.skip("takes minutes where more than four ranks take turns on a GPU")
    counts = [1, 1027, 400003]
    first, second = ("ll", "bulk") if ON_CUDA else ("ring", "two_shot")
    expected = run_set_up(world_size, env={"SYMM_ALGO": first}, counts=counts)
    assert run_set_up(world_size, env={"SYMM_ALGO": second}, counts=counts) == expected


def test_a_prefix_has_the_bits_of_the_whole():
    """Element i does not depend on how many elements come after it or where the view starts."""

    def body(rank):
        problems = []
        for dtype, op in few(REDUCTIONS, 4):
            whole = copy_here(model.make_input(dtype, 900001, rank, 3, op))
            reduced = whole.clone()
            dist.all_reduce(reduced, op=model.reduce_op(op, rank))
            for first, count in ((0, 1), (0, 513), (1, 4096), (7, 65537), (3, 700000)):
                part = whole[first : first + count].clone()
                dist.all_reduce(part, op=model.reduce_op(op, rank))
                label = f"{model.name(dtype)} {op} [{first}:{first + count}]"
                problems += model.mismatch(label, part, reduced[first : first + count])
        return problems

    assert run_ranks(body, WORLD_SIZE, fresh=True) == [[]] * WORLD_SIZE


def test_a_hundred_repeats():
    def body(rank):
        tensor = copy_here(model.make_input(torch.bfloat16, 33333, rank, 1))
        seen = set()
        for _ in range(100):
            copy = tensor.clone()
            dist.all_reduce(copy)
            seen.add(model.digest(copy))
        return seen

    results = run_ranks(body, WORLD_SIZE, fresh=True)
    assert len(set.union(*results)) == 1
