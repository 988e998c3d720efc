"""torch.ops.symm_mem.*: the operators that PyTorch writes in Python, over symm's memory.

Inputs are small whole numbers, so that products and sums are exact whatever their order, on the CPU
and on a GPU, and every wrong rank, place or stride shows.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import model
from errors import message_of, unsaid_in_order
from harness import DEVICE, ON_CUDA, check, run_ranks, synchronize
from operators import GROUPS, ops, whole_numbers
from symmetric import TORCH, allocate, destroy, member_of_each, shared, use_symm

pytestmark = pytest.mark.timeout(90)

WAIT = torch.ops._c10d_functional.wait_tensor
FP8 = torch.float8_e4m3fn


def whole(shape, rank: int, salt: int, dtype=torch.float32) -> torch.Tensor:
    count = int(torch.tensor(shape).prod()) if shape else 1
    return whole_numbers(count, rank, salt).to(dtype).view(shape)


def same(what: str, got: torch.Tensor, expected: torch.Tensor, strides=None) -> list[str]:
    problems = model.mismatch(what, got, expected)
    if strides is not None and got.stride() != strides:
        problems.append(f"{what}: strides {got.stride()}, PyTorch's are {strides}")
    return problems


def reduced(contributions: list[torch.Tensor], op: str) -> torch.Tensor:
    """On the CPU by symm's rules. On a GPU PyTorch computes, whose mean of whole numbers is their
    sum times the float nearest to 1 / n."""
    if not ON_CUDA or op == "sum":
        return model.reduced(contributions, op.upper())
    dtype = contributions[0].dtype
    total = torch.stack(contributions).sum(0, dtype=torch.promote_types(dtype, torch.float32))
    parts = torch.view_as_real(total) if dtype.is_complex else total
    parts *= torch.tensor(1.0 / len(contributions), dtype=torch.float32)
    return total.to(dtype)


def both_kinds(shape, dtype) -> dict[str, torch.Tensor]:
    """In ordinary and in symmetric memory."""
    plain = torch.empty(shape, dtype=dtype, device=DEVICE)
    return {"plain": plain, "symmetric": allocate(*shape, dtype=dtype)}


def gathers(rank, lists, dtype):
    use_symm()
    groups, problems = member_of_each(lists), []
    shape = (5, 3)
    for group, ranks in groups:
        for kind, tensor in both_kinds(shape, dtype).items():
            for salt in range(4):
                tensor.copy_(whole(shape, rank, salt, dtype))
                got = WAIT(ops._low_contention_all_gather(tensor, group.group_name))
                expected = torch.cat([whole(shape, r, salt, dtype) for r in ranks])
                problems += same(f"{kind} {ranks} {salt}", got, expected)
    destroy(groups)
    return problems


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=model.name)
@pytest.mark.parametrize("world_size", GROUPS)
def test_low_contention_all_gather(world_size, dtype):
    check(gathers, world_size, GROUPS[world_size], dtype)


def odd_gathers(rank):
    """Strided, empty, without dimensions, large; a workspace that grows and serves smaller ones."""
    use_symm()
    size, name, problems = dist.get_world_size(), dist.group.WORLD.group_name, []
    for salt, shape in enumerate([(6, 4), (0, 3), (2, 0), (), (70_001, 3), (1,)]):
        got = ops._low_contention_all_gather(whole(shape, rank, salt), name)
        every = [whole(shape, r, salt) for r in range(size)]
        problems += same(str(shape), got, torch.cat(every) if shape else torch.stack(every))
    turned = whole((6, 4), rank, 9).t()
    expected = torch.cat([whole((6, 4), r, 9).t() for r in range(size)])
    return problems + same("turned", ops._low_contention_all_gather(turned, name), expected)


@pytest.mark.cpu("PyTorch's CUDA kernel takes none of these")
def test_low_contention_all_gather_of_any_shape():
    check(odd_gathers, 3)


def scatters(rank, lists, dtype):
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        size, me, name = len(ranks), ranks.index(rank), group.group_name
        shape = (3 * size, 8)
        for kind, tensor in both_kinds(shape, dtype).items():
            for salt, op in enumerate(["sum", "avg", "avg", "sum"]):
                every = [whole(shape, r, salt, dtype) for r in ranks]
                if not ON_CUDA:  # whose order of addition is torch's own
                    every = [model.make_input(dtype, 24 * size, r, salt) for r in ranks]
                tensor.copy_(every[me].view(shape))
                got = WAIT(ops._low_contention_reduce_scatter(tensor, op, name))
                expected = reduced(every, op).view(size, 3, 8)[me]
                problems += same(f"{op} {kind} {ranks} {salt}", got, expected.contiguous())
    destroy(groups)
    return problems


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=model.name)
@pytest.mark.parametrize("world_size", GROUPS)
def test_low_contention_reduce_scatter(world_size, dtype):
    check(scatters, world_size, GROUPS[world_size], dtype)


def integer_scatter(rank):
    """torch.sum widens integers, and so do these operators."""
    use_symm()
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    mine = whole((size, 5), rank, 2, torch.int16).to(DEVICE)
    got = WAIT(ops._low_contention_reduce_scatter(mine, "sum", name))
    every = torch.stack([whole((size, 5), r, 2, torch.int64) for r in range(size)])
    return same("int16", got, every.sum(0)[rank].view(1, 5))


def test_low_contention_reduce_scatter_of_integers():
    check(integer_scatter, 3)


def fused_gathers(rank, lists, gather_dim):
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        name, shape = group.group_name, [4, 6, 8]
        wide = 8 * len(ranks) if gather_dim == 2 else 8
        for salt in range(3):
            mine = whole(shape, rank, salt).to(DEVICE)
            bs = [whole((wide, n), 5, salt + n).to(DEVICE) for n in (3, 16)]
            call, what = ops.fused_all_gather_matmul, f"{ranks} {salt}"
            a, products = call(mine, bs, gather_dim, name)
            none, again = call(mine, bs, gather_dim, name, return_A=False)
            if none is not None:
                problems.append(f"{what}: A comes although it was not asked for")
            whole_a = torch.cat([whole(shape, r, salt) for r in ranks], gather_dim)
            fallback = symm_mem._fused_all_gather_matmul_fallback(mine, bs, gather_dim, name)
            others = [tensor.stride() for tensor in [fallback[0], *fallback[1]]]
            if len(ranks) == 1:  # PyTorch's gathers nothing then, and hands out a view
                others = [None] * 3
            problems += same(f"{what}: A", a, whole_a, others[0])
            for results in (products, again):
                for b, product, strides in zip(bs, results, others[1:], strict=True):
                    problems += same(f"{what}: A @ B", product, whole_a @ b.cpu(), strides)
    destroy(groups)
    return problems


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gather_dim", [0, 1, 2])
@pytest.mark.parametrize("world_size", GROUPS)
def test_fused_all_gather_matmul(world_size, gather_dim):
    check(fused_gathers, world_size, GROUPS[world_size], gather_dim)


def fused_scatters(rank, lists, scatter_dim):
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        name, size, me = group.group_name, len(ranks), ranks.index(rank)
        shape = [12, 12, 8]
        for salt, op in enumerate(["sum", "avg", "avg", "sum"]):
            b = whole((8, 24), 6, salt)
            mine = whole(shape, rank, salt).to(DEVICE)
            got = ops.fused_matmul_reduce_scatter(mine, b.to(DEVICE), op, scatter_dim, name)
            expected = reduced([whole(shape, r, salt) @ b for r in ranks], op)
            part = expected.chunk(size, scatter_dim)[me].contiguous()
            problems += same(f"{op} {ranks} {salt}", got, part, part.stride())
    destroy(groups)
    return problems


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scatter_dim", [0, 1, 2])
@pytest.mark.parametrize("world_size", GROUPS)
def test_fused_matmul_reduce_scatter(world_size, scatter_dim):
    check(fused_scatters, world_size, GROUPS[world_size], scatter_dim)


def powers_of_two(shape, rank: int) -> torch.Tensor:
    return 2.0 ** (torch.arange(int(torch.tensor(shape).prod())) % 3 + rank % 2 - 1).view(shape)


def by_rows(scaling):
    lacks = not ON_CUDA and TORCH < (2, 13)  # 2.11 does; 2.12 was not asked
    reason = "older torch scales by one number alone on the CPU"
    return pytest.param(scaling, marks=pytest.mark.skipif(lacks, reason=reason))


def scaled_gathers(rank, gather_dim, scaling):
    use_symm()
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    shape, rows = [2, 16, 32], [2, 16, 1]
    every = [whole(shape, r, 3) for r in range(size)]
    scales = [powers_of_two(rows, r) for r in range(size)]
    whole_a, whole_scale = torch.cat(every, gather_dim), torch.cat(scales, gather_dim)
    bs = [whole((16, 32), 5, salt) for salt in range(2)]
    a_scale = {"one": torch.tensor(0.5), "sharded": scales[rank], "replicated": whole_scale}
    by_row = scaling != "one"
    b_scale = powers_of_two([1, 16], 0) if by_row else torch.tensor(2.0)
    out_dtypes = [torch.bfloat16] * 2 if by_row else [torch.bfloat16, torch.float32]
    a, products = ops.fused_all_gather_scaled_matmul(
        every[rank].to(FP8).to(DEVICE),
        [b.to(FP8).to(DEVICE).t() for b in bs],
        a_scale[scaling].to(DEVICE),
        [b_scale.to(DEVICE)] * 2,
        gather_dim,
        name,
        [None] * 2,
        [None] * 2,
        out_dtypes,
        [False] * 2,
    )
    problems = same("A", a, whole_a.to(FP8))
    scale = whole_scale if by_row else torch.tensor(0.5)
    for b, product, dtype in zip(bs, products, out_dtypes, strict=True):
        expected = (whole_a @ b.t() * scale * b_scale).to(dtype)
        problems += same(f"to {dtype}", product, expected)
    return problems


@pytest.mark.parametrize("scaling", ["one", by_rows("sharded"), by_rows("replicated")])
@pytest.mark.parametrize("gather_dim", [0, 1])
def test_fused_all_gather_scaled_matmul(gather_dim, scaling):
    check(scaled_gathers, 2, gather_dim, scaling)


def scaled_scatters(rank, scatter_dim, by_row):
    use_symm()
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    shape = [4, 16, 32]
    every = [whole(shape, r, 4).clamp(-3, 3) for r in range(size)]
    b = whole((16, 32), 7, 0).clamp(-3, 3)
    a_scale = powers_of_two([4, 16, 1], 1) if by_row else torch.tensor(0.5)
    b_scale = powers_of_two([1, 16], 0) if by_row else torch.tensor(2.0)
    got = ops.fused_scaled_matmul_reduce_scatter(
        every[rank].to(FP8).to(DEVICE),
        b.to(FP8).to(DEVICE).t(),
        a_scale.to(DEVICE),
        b_scale.to(DEVICE),
        "avg",
        scatter_dim,
        scatter_dim,
        name,
        [4, 16, 16],
        out_dtype=torch.bfloat16,
    )
    partial = [(a @ b.t() * a_scale * b_scale).bfloat16() for a in every]
    part = model.reduced(partial, "AVG").chunk(size, scatter_dim)[rank].contiguous()
    return same("result", got, part, part.stride())


@pytest.mark.parametrize("by_row", [False, by_rows(True)], ids=["one", "by_row"])
@pytest.mark.parametrize("scatter_dim", [0, 1])
def test_fused_scaled_matmul_reduce_scatter(scatter_dim, by_row):
    check(scaled_scatters, 2, scatter_dim, by_row)


def in_test_mode(rank):
    """PyTorch's switch to the implementations over the group's own collectives."""
    use_symm()
    name = dist.group.WORLD.group_name
    size, a, b = dist.get_world_size(), whole((6, 8), rank, 0), whole((8, 4), 3, 1)
    mine, b = a.to(DEVICE), b.to(DEVICE)
    with symm_mem._test_mode():
        gathered = ops.fused_all_gather_matmul(mine, [b], 0, name)[1][0]
        scattered = ops.fused_matmul_reduce_scatter(mine, b, "sum", 0, name)
    every = [whole((6, 8), r, 0) for r in range(size)]
    problems = same("gathered", gathered, torch.cat(every) @ b.cpu())
    share = (sum(every) @ b.cpu()).chunk(size)[rank]
    return problems + same("scattered", scattered, share.contiguous())


def test_test_mode():
    check(in_test_mode, 2)


def remote_tensors(rank, lists):
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        tensor, handle = shared(24, group)
        tensor.copy_(whole((24,), rank, 1))
        handle.barrier()
        views = {"whole": lambda t: t, "matrix": lambda t: t.view(4, 6)}
        if not ON_CUDA:  # PyTorch's kernel for CUDA looks at the start of the memory alone
            views["inner"] = lambda t: t[5:9]
            views["turned"] = lambda t: t.view(4, 6)[1:].t()
            views["empty"] = lambda t: t[3:3]
        for what, view in views.items():
            mine = view(tensor)
            every = ops.get_remote_tensors(mine, group.group_name)
            for r, theirs in zip(ranks, every, strict=True):
                problems += same(what, theirs, view(whole((24,), r, 1)), mine.stride())
        synchronize()
        handle.barrier()
    destroy(groups)
    return problems


@pytest.mark.parametrize("world_size", GROUPS)
def test_get_remote_tensors(world_size):
    check(remote_tensors, world_size, GROUPS[world_size])


def refusals(rank):
    use_symm()
    name = dist.group.WORLD.group_name
    a, b, vector = (torch.ones(s, device=DEVICE) for s in ((6, 8), (8, 4), (6,)))
    one = torch.tensor(1.0, device=DEVICE)

    def scaled(scale, gather_dim=0, count=1):
        lists = [[value] * count for value in (None, None, torch.bfloat16, False)]
        ops.fused_all_gather_scaled_matmul(a, [b], scale, [one], gather_dim, name, *lists)

    def scaled_scatter(scale, dim=0, op="sum"):
        ops.fused_scaled_matmul_reduce_scatter(
            a, b, scale, one, op, dim, 0, name, [6, 4], out_dtype=torch.bfloat16
        )

    calls = {
        "gather: vector": lambda: ops.fused_all_gather_matmul(vector, [b], 0, name),
        "gather: B": lambda: ops.fused_all_gather_matmul(a, [b, vector], 0, name),
        "gather: dim": lambda: ops.fused_all_gather_matmul(a, [b], 2, name),
        "gather: negative": lambda: ops.fused_all_gather_matmul(a, [b], -1, name),
        "scatter: vector": lambda: ops.fused_matmul_reduce_scatter(vector, b, "sum", 0, name),
        "scatter: B": lambda: ops.fused_matmul_reduce_scatter(a, vector, "sum", 0, name),
        "scatter: dim": lambda: ops.fused_matmul_reduce_scatter(a, b, "sum", 2, name),
        "scatter: op": lambda: ops.fused_matmul_reduce_scatter(a, b, "max", 0, name),
        "scaled gather: lists": lambda: scaled(one, count=2),
        "scaled gather: scale": lambda: scaled(torch.ones(5, 1, device=DEVICE)),
        "scaled scatter: scale": lambda: scaled_scatter(torch.ones(5, 1, device=DEVICE)),
        "scaled scatter: dim": lambda: scaled_scatter(one, dim=2),
        "scaled scatter: op": lambda: scaled_scatter(one, op="max"),
        "remote: ordinary": lambda: ops.get_remote_tensors(a, name),
    }
    if not ON_CUDA:
        indivisible = torch.ones(5, 2)
        calls["low: indivisible"] = lambda: ops._low_contention_reduce_scatter(
            indivisible, "sum", name
        )
        calls["low: op"] = lambda: ops._low_contention_reduce_scatter(a, "max", name)
        calls["scatter: indivisible"] = lambda: ops.fused_matmul_reduce_scatter(
            indivisible, b[:2], "sum", 0, name
        )
    return {key: message_of(ValueError, call) for key, call in calls.items()}


# What the message of each says on the CPU, in that order.
SAYS = {
    "gather: vector": ["fused_all_gather_matmul", "A", "(6,)"],
    "gather: B": ["fused_all_gather_matmul", "B", "matrix", "(6,)"],
    "gather: dim": ["fused_all_gather_matmul", "gather_dim", "[0, 2)", "2"],
    "gather: negative": ["fused_all_gather_matmul", "gather_dim", "[0, 2)", "-1"],
    "scatter: vector": ["fused_matmul_reduce_scatter", "A", "(6,)"],
    "scatter: B": ["fused_matmul_reduce_scatter", "B", "matrix", "(6,)"],
    "scatter: dim": ["fused_matmul_reduce_scatter", "scatter_dim", "[0, 2)", "2"],
    "scatter: op": ["fused_matmul_reduce_scatter", "reduce_op", "'max'"],
    "scaled gather: lists": ["fused_all_gather_scaled_matmul", "biases", "1", "2"],
    "scaled gather: scale": ["fused_all_gather_scaled_matmul", "A_scale", "(5, 1)", "(6, 8)"],
    "scaled scatter: scale": ["fused_scaled_matmul_reduce_scatter", "A_scale", "(5, 1)"],
    "scaled scatter: dim": ["orig_scatter_dim", "[0, 2)", "2"],
    "scaled scatter: op": ["reduce_op", "'max'"],
    "remote: ordinary": ["get_remote_tensors", "symmetric memory"],
    "low: indivisible": ["_low_contention_reduce_scatter", "multiple", "2", "(5, 2)"],
    "low: op": ["_low_contention_reduce_scatter", "reduce_op", "'max'"],
    "scatter: indivisible": ["fused_matmul_reduce_scatter", "multiple", "2", "(5, 4)"],
}


def test_refusals():
    for messages in run_ranks(refusals, 2, fresh=True):
        if ON_CUDA:
            continue  # PyTorch's own words
        assert set(messages) == set(SAYS)
        for key, parts in SAYS.items():
            assert not unsaid_in_order(messages[key], parts), key
