"""What docs/determinism.md promises: the bits of an element do not depend on what it travels with.

Each case takes an element out of a message and combines it alone, by the group and by the
sequential model; the algorithm, the collective, the place of the element, the size of the message
and the alignment of its memory are drawn. The programs are those of docs/examples/same_bits.py,
which any backend can run.
"""

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import model
from digests import ALGORITHMS, copy_here
from harness import (
    DEVICE,
    IS_SYMM,
    WORLD_SIZE,
    crowded,
    expect_no_mismatch,
    options_with,
    run_ranks,
)
from symmetric import use_symm

pytestmark = pytest.mark.skipif(
    not IS_SYMM, reason="a promise of symm: the bits of others depend on the size of the message"
)

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "same_bits.py"
FLOATS = [*model.FLOAT8S, torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMBINATIONS = [
    (dtype, op)
    for dtype in FLOATS
    for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM")
    if model.meaningful(op, dtype)
]
# Around the edges of lines, small slots and chunks, and beyond them.
COUNTS = [1, 2, 63, 64, 65, 1000, 16383, 16385, 32768, 65537, 131075, 400003]
FORMS = ["all_reduce", "async", "reduce", "reduce_scatter"]
FORMS += ["coalesced", "coalesced_list", "coalesced_shares", "ccl"]


@st.composite
def cases(draw):
    dtype, op = draw(st.sampled_from(COMBINATIONS))
    count = draw(st.one_of(st.integers(1, 5000), st.sampled_from(COUNTS)))
    return {
        "form": draw(st.sampled_from(FORMS)),
        "dtype": dtype,
        "op": op,
        "count": count,
        "places": draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3)),
        "shift": draw(st.integers(0, 9)),  # elements from where the allocation begins
        "cuts": sorted(draw(st.lists(st.integers(0, count), min_size=7, max_size=7))),
        "salt": draw(st.integers(0, 1000)),
    }


def combined(case: dict, mine: torch.Tensor, rank: int) -> tuple[int, torch.Tensor]:
    """(first element that this rank has, the elements) of the combined message."""
    op, world = model.reduce_op(case["op"], rank), dist.get_world_size()
    if case["form"] == "reduce_scatter":
        ends = [0, *case["cuts"][: world - 1], case["count"]]
        shares = [mine[a:b] for a, b in itertools.pairwise(ends)]
        output = torch.empty_like(shares[rank])
        dist.reduce_scatter(output, shares, op=op)
        return ends[rank], output
    if case["form"] == "reduce":
        dist.reduce(mine, case["salt"] % world, op=op)
        return 0, mine if rank == case["salt"] % world else mine[:0]
    if case["form"] == "coalesced":
        with dist._coalescing_manager(device=torch.device(DEVICE)):
            for part in mine.chunk(3):
                dist.all_reduce(part, op=op)
        return 0, mine
    if case["form"] == "coalesced_list":
        dist.all_reduce_coalesced(list(mine.chunk(3)), op=op)
        return 0, mine
    if case["form"] == "coalesced_shares":
        share = case["count"] // world
        output = torch.empty_like(mine[: 2 * share].view(2, share))
        with dist._coalescing_manager(device=torch.device(DEVICE)):
            for part in output:
                dist.reduce_scatter_tensor(part, mine[: share * world], op=op)
        problem = model.mismatch("two of a block", output[1], output[0])
        assert problem == [], problem
        return rank * share, output[0]
    if case["form"] == "ccl":
        import torch_symm

        output = torch.empty_like(mine)
        torch_symm.ccl.all_reduce(output, mine, op)
        return 0, output
    work = dist.all_reduce(mine, op=op, async_op=case["form"] == "async")
    if work is not None:
        work.wait()
    return 0, mine


def compare_with_one_element(rank: int, drawn: list[dict]) -> list[str]:
    problems = []
    for case in drawn:
        dtype, op = case["dtype"], case["op"]
        every = [
            model.make_input(dtype, case["count"], r, case["salt"], op) for r in range(WORLD_SIZE)
        ]
        values = every[rank]
        memory = torch.zeros(case["count"] + case["shift"], dtype=dtype, device=DEVICE)
        mine = memory[case["shift"] :]
        mine.copy_(values)
        first, result = combined(case, mine, rank)
        for place in case["places"]:
            expected = model.reduced([one[place : place + 1] for one in every], op)
            alone = copy_here(values[place : place + 1])
            dist.all_reduce(alone, op=model.reduce_op(op, rank))
            problems += model.mismatch(f"{dtype} {op} alone", alone, expected)
            if first <= place < first + result.numel():
                got = result[place - first : place - first + 1]
                problems += model.mismatch(f"{case} element {place}", got, expected)
    return problems


@pytest.mark.sampled(4)
@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
@settings(
    max_examples=3 if crowded(WORLD_SIZE) else 5,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a failure names its case, and shrinking takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(drawn=st.lists(cases(), min_size=12, max_size=25))
def test_an_element_has_the_bits_that_it_has_alone(algorithm, drawn):
    expect_no_mismatch(
        run_ranks(
            compare_with_one_element,
            WORLD_SIZE,
            drawn,
            options=options_with(algorithm=algorithm),
        )
    )


def answers_of(rank: int, dtype: torch.dtype) -> list[tuple[str, int, int]]:
    torch.set_num_threads(1)
    specification = importlib.util.spec_from_file_location("same_bits", EXAMPLE)
    example = importlib.util.module_from_spec(specification)
    sys.modules["same_bits"] = example
    specification.loader.exec_module(example)
    answers = example.ask_all(DEVICE, dtype)
    return [(answer.question, answer.elements, answer.different) for answer in answers]


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_programs_give_the_same_bits_in_other_batches_and_buckets(dtype):
    """Over gloo most of the logits and of DDP's parameters differ."""
    first, *others = run_ranks(answers_of, WORLD_SIZE, dtype, fresh=True, time_limit=200)
    assert all(other == first for other in others)
    assert len(first) == 16
    for question, elements, different in first:
        assert elements > 10_000, question
        assert different == 0, question


def test_deterministic_algorithms_are_no_reason_to_refuse():
    """torch.use_deterministic_algorithms(True) makes no collective raise or warn."""

    def body(rank):
        torch.use_deterministic_algorithms(True)
        problems = []
        for form in FORMS:
            case = {"form": form, "op": "SUM", "count": 100, "cuts": [20, 30, 90] * 3, "salt": 1}
            inputs = [model.make_input(torch.bfloat16, 100, r, 1) for r in range(WORLD_SIZE)]
            first, result = combined(case, copy_here(inputs[rank]), rank)
            expected = model.reduced(inputs, "SUM")[first : first + result.numel()]
            problems += model.mismatch(form, result, expected)
        return problems

    expect_no_mismatch(run_ranks(body, WORLD_SIZE, fresh=True))


def fused_with_an_exact_product(rank: int, rows: list[int], dtype: torch.dtype) -> list[str]:
    """x @ 1 is x by every kernel of a product: what is left is the sum over the ranks."""
    use_symm()
    name, size = dist.group.WORLD.group_name, dist.get_world_size()
    problems = []
    for count in rows:
        every = [model.make_input(dtype, count * size * 64, r, count) for r in range(size)]
        got = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            copy_here(every[rank]).view(-1, 64),
            copy_here(torch.eye(64, dtype=dtype)),
            "sum",
            0,
            name,
        )
        mine = model.reduced(every, "SUM").view(size, count, 64)[rank]
        problems += model.mismatch(f"{count} rows of {dtype}", got, mine)
    return problems


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_fused_product_have_the_bits_of_their_sum(dtype):
    expect_no_mismatch(
        run_ranks(fused_with_an_exact_product, max(WORLD_SIZE, 3), [1, 2, 7, 64, 300], dtype)
    )
