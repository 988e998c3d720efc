"""torch_symm.ccl: every algorithm of every collective gives the result, and the table is right."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import model
from ccl_calls import (
    CPU,
    LEAST_CHUNK,
    PAIRS,
    REDUCTIONS,
    TABLE,
    Tensors,
    carry_out,
)
from errors import not_raised
from harness import (
    DEVICE,
    ON_CUDA,
    WORLD_SIZE,
    check,
    crowded,
    device_of_rank,
    expect_no_mismatch,
    new_group_in_order,
    run_ranks,
)

pytestmark = pytest.mark.timeout(120)

COUNTS = (0, 1, 1027, 90_001)  # elements of a share; the last ones exceed chunks of 16 KiB


# -- The table -------------------------------------------------------------------------------------


def published(rank):
    from torch_symm import ccl

    table = {}
    for row in ccl.placements():
        of_device = table.setdefault(row.device, {}).setdefault(row.collective, {})
        touched = (row.remotely_read, row.remotely_written, row.must_be_symmetric)
        of_device[row.algorithm] = touched
        if row.algorithm not in ccl.algorithms(row.collective, row.device):
            return [f"{row} is not among the algorithms"]
    return [] if table == TABLE else [f"published: {table}"]


def test_the_published_table():
    expect_no_mismatch(run_ranks(published, 1, fresh=True))


def rules(rank):
    from torch_symm import ccl

    return [(r.collective, r.algorithm, r.device, r.rule) for r in ccl.placements()]


def test_the_table_of_the_docs():
    """docs/ccl.md has one line for each, in the words of the library."""
    text = (Path(__file__).parents[3] / "docs" / "ccl.md").read_text()
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| (CPU|CUDA) \| (.+) \|$", text, re.MULTILINE)
    stated = [(name, algorithm, device.lower(), rule) for name, algorithm, device, rule in rows]
    assert stated == run_ranks(rules, 1, fresh=True)[0]


# -- Results ---------------------------------------------------------------------------------------


def configs(name, algorithm):
    from torch_symm import ccl

    yield ccl.Config(algorithm=algorithm)
    if not ON_CUDA:
        yield ccl.Config(algorithm=algorithm, chunk_bytes=LEAST_CHUNK)
    elif name != "all_to_all" and algorithm != "copy_engine":
        yield ccl.Config(algorithm=algorithm, channels=3)


def ways(name, written):
    """Where tensors stand, and whether strict may be asked for."""
    for symmetric_in in (False, True):
        for symmetric_out in (False, True):
            yield {
                "symmetric_in": symmetric_in,
                "symmetric_out": symmetric_out,
                "strict": symmetric_out or not written,
            }
        # Two shares of one tensor overlap in an all_to_all.
        if name != "all_to_all":
            yield {"symmetric_in": symmetric_in, "in_place": True, "strict": not written}


def results(rank, name, algorithm, groups):
    from torch_symm import ccl

    problems, salt = [], 0
    written = bool(TABLE[DEVICE][name][algorithm][1])
    few_counts = crowded(dist.get_world_size())
    for ranks in groups:
        group = None if ranks is None else dist.new_group(ranks)
        ranks = list(range(dist.get_world_size())) if ranks is None else ranks
        if rank not in ranks:
            continue
        group = group or dist.group.WORLD
        me = ranks.index(rank)
        largest = max(COUNTS) * len(ranks) * 8
        workspace = ccl.make_workspace(largest, group, device_of_rank())
        for config in configs(name, algorithm):
            for number, way in enumerate(ways(name, written)):
                counts = COUNTS if config.chunk_bytes is None else COUNTS[-1:]
                if few_counts and len(counts) > 2:  # every count, and every way, but not all pairs
                    counts = sorted({counts[number % 4], counts[-1]})
                for count in counts:
                    salt += 1
                    c = Tensors(group, ranks, me, count=count, salt=salt, async_op=salt % 3 == 0)
                    given = workspace if salt % 2 else None
                    carry_out(c, name, config, workspace=given, **way)
                    problems += [f"{config} {way} {count}: {line}" for line in c.finish()]
        dist.barrier(group)
    return problems


@pytest.mark.sampled(14)
@pytest.mark.parametrize("world_size", [3, WORLD_SIZE])
@pytest.mark.parametrize(("name", "algorithm"), PAIRS)
def test_results(name, algorithm, world_size):
    check(results, world_size, name, algorithm, [None], time_limit=110)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("name", "algorithm"), PAIRS)
def test_results_of_strided_groups(name, algorithm):
    groups = [[0, 2], [1, 3]] if WORLD_SIZE >= 4 else [[0], [1]]
    check(results, WORLD_SIZE, name, algorithm, groups, time_limit=110)


def operators(rank):
    from torch_symm import ccl

    problems, ranks = [], list(range(dist.get_world_size()))
    for name in REDUCTIONS:
        for algorithm in (a for a in TABLE[DEVICE][name] if a != "multimem"):
            for number, op in enumerate(model.OPS):
                for dtype in (torch.float32, torch.bfloat16, torch.int32):
                    if not model.meaningful(op, dtype):
                        continue
                    c = Tensors(None, ranks, rank, dtype=dtype, op=op, count=1027, salt=number)
                    carry_out(c, name, ccl.Config(algorithm=algorithm))
                    problems += [f"{algorithm} {op} {dtype}: {line}" for line in c.finish()]
    tensor = torch.zeros(3, device=DEVICE)
    call, parts = ccl.all_reduce, ["BAND", "float32"]
    problems += not_raised(
        "NotImplementedError", parts, call, tensor, tensor, op=dist.ReduceOp.BAND
    )
    return problems + not_raised("TypeError", ["op:"], call, tensor, tensor, op="sum")


def test_operators():
    check(operators, 3)


def in_shuffled_groups(rank):
    from torch_symm import ccl

    problems = []
    order = [2, 0, 1]
    group, ranks = new_group_in_order(order)
    me = ranks.index(rank)
    for salt, name in enumerate(CPU):
        c = Tensors(group, ranks, me, salt=salt)
        carry_out(c, name, ccl.Config())
        problems += c.finish()
        c = Tensors(group, ranks, me, salt=salt)
        c.group = group.group_name
        carry_out(c, name, None)
        problems += c.finish()
    # The root as a rank of the group.
    tensor = torch.full((5,), float(me), device=DEVICE)
    got = torch.empty(5, device=DEVICE)
    ccl.broadcast(got, tensor, group_src=1, group=group)
    problems += model.mismatch("group_src", got, torch.full((5,), 1.0))
    total = torch.zeros(5, device=DEVICE)
    ccl.reduce(total, tensor, group_dst=2, group=group)
    problems += model.mismatch("group_dst", total, torch.full((5,), 3.0 if me == 2 else 0.0))
    for wrong in ({}, {"src": 0, "group_src": 0}, {"src": 7}, {"group_src": 3}):
        arguments = {"group": group, **wrong}
        problems += not_raised("ValueError", ["src"], ccl.broadcast, got, tensor, **arguments)
    alone = [dist.new_group([r]) for r in range(3)][rank]
    for name in CPU:
        for algorithm in TABLE[DEVICE][name]:
            c = Tensors(alone, [rank], 0, salt=9)
            carry_out(c, name, ccl.Config(algorithm=algorithm), strict=True)
            problems += c.finish()
    other = dist.new_group([0, 1])
    if rank == 2:
        problems += not_raised("", ["group", "rank 2"], ccl.all_reduce, got, got, group=other)
    return problems


def test_groups_of_any_ranks():
    check(in_shuffled_groups, 3)


def many_in_flight(rank):
    from torch_symm import ccl

    problems, size = [], dist.get_world_size()
    workspace = ccl.make_workspace(4 * 5000, device=device_of_rank())
    calls = []
    for number in range(12):
        mine = model.make_input(torch.float32, 5000, rank, number).to(DEVICE)
        total = torch.full((5000,), -1.0, device=DEVICE)
        algorithms = ("ll", "bulk", "ll_two_shot") if ON_CUDA else ("one_shot", "ring", "two_shot")
        config = ccl.Config(algorithm=algorithms[number % 3])
        calls.append(
            (total, ccl.all_reduce(total, mine, dist.ReduceOp.SUM, None, True, config, workspace))
        )
    for number, (total, work) in reversed(list(enumerate(calls))):
        work.wait()
        if work.result() and not torch.equal(work.result()[0].cpu(), total.cpu()):
            problems.append(f"result() of call {number} is another tensor")
        terms = [model.make_input(torch.float32, 5000, r, number) for r in range(size)]
        problems += model.mismatch(f"call {number}", total, model.reduced(terms, "SUM"))
    return problems


def test_many_in_flight_share_a_workspace():
    check(many_in_flight, WORLD_SIZE)


def large(rank):
    """Out of place the host writes such results past the caches, and in place it does not."""
    from torch_symm import ccl

    problems, count, size = [], 3_000_001, dist.get_world_size()
    terms = [model.make_input(torch.float32, count, r, 3) for r in range(size)]
    expected = model.reduced(terms, "SUM")
    for way in ("out of place", "in place"):
        for kind, last in ((ccl.all_reduce, ()), (ccl.reduce, (size - 1,))):
            mine = terms[rank].to(DEVICE, copy=True)
            total = mine if way == "in place" else torch.full_like(mine, -1.0)
            kind(total, mine, *last)
            if not last or rank == size - 1:
                problems += model.mismatch(f"{kind.__name__} {way}", total, expected)
            if way == "out of place":
                problems += model.mismatch(f"{kind.__name__}'s input", mine, terms[rank])
    return problems


def test_large_reductions_in_and_out_of_place():
    check(large, WORLD_SIZE)
