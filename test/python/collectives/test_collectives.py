"""Every collective, over groups of every shape, with every dtype and op, against the model."""

import functools

import pytest
import torch
import torch.distributed as dist

import calls
import model
from call import Call
from harness import (
    DEVICE,
    IS_SYMM,
    ON_CUDA,
    WORLD_SIZE,
    crowded,
    expect_no_mismatch,
    new_group_in_order,
    run_ranks,
    spread,
    synchronize,
)

SHAPES = {
    "world": [[0, 1, 2, 3]],
    "strided": [[0, 2], [1, 3]],
    "shuffled": [[3, 1, 0, 2]],
    "singleton": [[2]],
    "overlapping": [[0, 1, 3], [1, 2, 3]],
}
if WORLD_SIZE == 2:
    SHAPES = {"world": [[0, 1]], "shuffled": [[1, 0]], "singleton": [[1]]}
# float32 elements; the workspace has 8 MiB on a CPU, 64 MiB on a GPU.
BEYOND_THE_WORKSPACE = (18 if ON_CUDA else 3) * (1 << 20) + 5


@functools.cache
def make_groups(shape: str):
    """[(group, ranks)] of this rank. Every rank calls it; a process makes each shape once."""
    if shape == "world":
        return [(dist.group.WORLD, SHAPES[shape][0])]
    groups = [new_group_in_order(ranks) for ranks in SHAPES[shape]]
    return [(group, ranks) for group, ranks in groups if dist.get_rank() in ranks]


def run_parameters(collective, groups, parameters, rounds=2):
    """The mismatches of `collective` over all parameters (dicts of Call's fields) and groups."""
    problems, salt = [], 0
    for _ in range(rounds):
        for fields in parameters:
            salt += 1
            for group, ranks in groups:
                me = ranks.index(dist.get_rank())
                call = Call(group=group, ranks=ranks, me=me, salt=salt, **fields)
                collective(call)
                problems += call.finish()
    return problems


def dtypes():
    return model.DTYPES if IS_SYMM else model.GLOO_DTYPES


def pairs_of_op_and_dtype(collective):
    ops = model.OPS if IS_SYMM else model.GLOO_OPS
    return [(op, dtype) for op in ops for dtype in dtypes() if calls.accepts(collective, op, dtype)]


def parameters_of(collective, shape):
    """Counts cover nothing, one, odd and larger than a line; views aligned and not; sync, async.
    On CUDA also what takes another path there: more than the boxes hold, and more slots."""
    if collective in calls.OBJECTS or collective is calls.barrier:
        return [{"count": n, "async_op": n % 2 == 1} for n in (0, 1, 700, 4999)]
    pairs = [("SUM", dtype) for dtype in dtypes()]
    if collective in calls.REDUCTIONS:
        pairs = pairs_of_op_and_dtype(collective)
        if shape not in ("world", "strided"):
            pairs = pairs[::3]
    small = (0, 1, 3, 64, 257)
    if ON_CUDA:
        small = (0, 1, 3, 64, 257, 4099, 33_333, 262_151)
    parameters = []
    for index, (op, dtype) in enumerate(pairs):
        common = {"op": op, "dtype": dtype}
        for count in (1027, small[index % len(small)]):
            odd = index % 2 == 1
            parameters.append({**common, "count": count, "async_op": odd, "aligned": count == 64})
            parameters.append({**common, "count": count, "async_op": not odd})
    return parameters


def skip_what_the_backend_lacks(collective):
    if not IS_SYMM and collective in calls.GLOO_LACKS:
        pytest.skip("gloo has no such call")


# Prime to the 4 variants of a pair, so that a sample has all variants and many pairs.
SAMPLE = 101


def compare_with_the_model(rank, collective, shape, extent):
    parameters = parameters_of(collective, shape)
    if extent == "sample" or crowded(WORLD_SIZE):
        parameters = spread(parameters, SAMPLE)
    rounds = 1 if crowded(WORLD_SIZE) else 2
    return run_parameters(collective, make_groups(shape), parameters, rounds)


@pytest.mark.parametrize("extent", ["sample", pytest.param("whole", marks=pytest.mark.long)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("collective", calls.EVERY_CALL, ids=lambda f: f.__name__)
def test_matches_the_model(collective, shape, extent):
    skip_what_the_backend_lacks(collective)
    if collective in calls.NEEDS_A_PEER and shape == "singleton":
        pytest.skip("a group of one has nobody to send to")
    results = run_ranks(compare_with_the_model, WORLD_SIZE, collective, shape, extent)
    expect_no_mismatch(results)


SPLIT_AMONG_RANKS = {
    calls.scatter,
    calls.reduce_scatter,
    calls.reduce_scatter_tensor,
    calls.all_to_all,
    calls.all_to_all_uneven,
    calls.all_to_all_single,
    calls.all_to_all_single_uneven,
}
WITH_LARGE = [*calls.REDUCTIONS[:6], *calls.MOVES[:-1], *calls.POINT_TO_POINT]


def compare_large(rank, collective, shape, parameters):
    return run_parameters(collective, make_groups(shape), parameters, rounds=1)


@pytest.mark.parametrize("shape", [shape for shape in ("world", "strided") if shape in SHAPES])
@pytest.mark.parametrize("collective", WITH_LARGE, ids=lambda f: f.__name__)
def test_larger_than_the_workspace(collective, shape):
    skip_what_the_backend_lacks(collective)
    size = len(SHAPES[shape][0])
    count = BEYOND_THE_WORKSPACE
    if collective in SPLIT_AMONG_RANKS:
        count = count // size + 3
    parameters = [
        {"dtype": torch.float32, "count": count},
        {"dtype": torch.uint8, "count": 2 * count + 1, "async_op": True, "op": "MAX"},
    ]
    results = run_ranks(compare_large, WORLD_SIZE, collective, shape, parameters, time_limit=100)
    expect_no_mismatch(results)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_world_sizes(world_size):
    """A few calls of every collective on worlds of other sizes."""

    def body(rank):
        group = [(dist.group.WORLD, list(range(world_size)))]
        problems = []
        for collective in calls.EVERY_CALL:
            if not IS_SYMM and collective in calls.GLOO_LACKS:
                continue
            if world_size == 1 and collective in calls.NEEDS_A_PEER:
                continue
            parameters = [{"count": n, "async_op": n == 5} for n in (1027, 5)]
            rounds = 1 if crowded(world_size) else 2
            problems += run_parameters(collective, group, parameters, rounds)
        return problems

    expect_no_mismatch(run_ranks(body, world_size, fresh=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", ["SUM", "MIN", "MAX", "PRODUCT"])
def test_special_values(op):
    """NaN and infinities at every rank in turn: NaN propagates, also through MIN and MAX."""
    if not IS_SYMM and op in ("MIN", "MAX"):
        pytest.skip("gloo does not propagate NaN through MIN and MAX")
    specials = [float("nan"), float("inf"), -float("inf"), 1.0, -2.0, 0.5]

    def contribution(dtype, r):
        return torch.tensor([specials[(i + r * (1 + i // 6)) % 6] for i in range(144)]).to(dtype)

    def body(rank):
        problems = []
        for dtype in dtypes():
            if dtype not in model.FLOATS:
                continue
            got = contribution(dtype, rank).to(DEVICE)
            dist.all_reduce(got, op=model.reduce_op(op))
            expected = model.reduced([contribution(dtype, r) for r in range(3)], op)
            problems += model.mismatch(f"{op} {dtype}", got, expected, exact=IS_SYMM)
        return problems

    expect_no_mismatch(run_ranks(body, 3, fresh=True))


def test_many_async_calls_in_flight():
    """Twenty all_reduce and all_gather started before the first wait, waited for in reverse."""

    def body(rank):
        started, problems = [], []
        for salt in range(20):
            tensor = model.make_input(torch.float32, 1000 + salt, rank, salt).to(DEVICE)
            expected = model.reduced(
                [model.make_input(torch.float32, 1000 + salt, r, salt) for r in range(4)], "SUM"
            )
            started.append((dist.all_reduce(tensor, async_op=True), tensor, expected))
            mine = model.make_input(torch.int32, 77, rank, salt).to(DEVICE)
            out = torch.full((4 * 77,), -1, dtype=torch.int32, device=DEVICE)
            work = dist.all_gather_into_tensor(out, mine, async_op=True)
            every = [model.make_input(torch.int32, 77, r, salt) for r in range(4)]
            started.append((work, out, torch.cat(every)))
        for work, tensor, expected in reversed(started):
            work.wait()
            problems += model.mismatch("in flight", tensor, expected, exact=IS_SYMM)
        return problems

    expect_no_mismatch(run_ranks(body, 4, fresh=True))


def test_work_tells_its_state():
    """wait, is_completed, is_success, exception and the future, as DDP's hooks use them."""

    def body(rank):
        tensor = torch.arange(6, dtype=torch.float32, device=DEVICE) + rank
        work = dist.all_reduce(tensor, async_op=True)
        doubled = work.get_future().then(lambda f: [t * 2 for t in f.value()])
        problems = [] if work.wait() else ["wait() did not return True"]
        synchronize()
        if not work.is_completed():
            problems.append("not completed after wait()")
        expected = torch.arange(6, dtype=torch.float32) * 3 + 3
        problems += model.mismatch("tensor", tensor, expected)
        problems += model.mismatch("then()", doubled.wait()[0], expected * 2)
        problems += model.mismatch("value()", work.get_future().value()[0], expected)
        return problems

    expect_no_mismatch(run_ranks(body, 3, fresh=True))


def test_completion_is_seen_without_wait():
    """is_completed() becomes true on its own, and is false while a peer has not called."""

    def body(rank):
        store = dist.distributed_c10d._get_default_store()
        tensor = torch.full((5,), float(rank + 1), device=DEVICE)
        problems = []
        dist.all_reduce(tensor.clone())  # a group's first call on a GPU waits for the peers'
        if rank == 1:
            store.wait(["rank 0 has looked"])
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            if work.is_completed():
                problems.append("completed before rank 1 called")
            store.set("rank 0 has looked", "")
        while not work.is_completed():
            torch.zeros(1).add_(1)
        problems += model.mismatch("sum", tensor, torch.full((5,), 3.0))
        return problems

    expect_no_mismatch(run_ranks(body, 2, fresh=True))
