"""torch_symm.ops: what comes is what the collective and the matmul give one after the other."""

import pytest
import torch
import torch.distributed as dist

import model
from fused import DTYPES, FLOATS, GROUPS, KINDS, near, placed, product, same, small
from harness import DEVICE, IS_SYMM, ON_CUDA, WORLD_SIZE, check
from symmetric import destroy, member_of_each

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not IS_SYMM, reason="for groups of symm"),
]

# Of the default group; subgroups of two ranks are among those that call.
SIZES = [2, 3, 4] if ON_CUDA else [3, 4]
PIECES = [None, 1, 2, 3, 100]


def shapes(size: int):
    """(of a rank's left operand, columns of the product, dimension) with every dimension cut."""
    yield (6 * size, 5), 7 * size, 0
    yield (3, 5), 2 * size, 1
    yield (2 * size, 3, 4), size, 0
    yield (3, 5 * size, 4), size, 1
    yield (2, 3, 4), 3 * size, 2
    yield (1 * size, 1), 1, 0


def gathers(rank, lists, dtype):
    from torch_symm import ops

    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        for salt, (shape, columns, dim) in enumerate(shapes(len(ranks))):
            every = [small(shape, r, salt, dtype) for r in ranks]
            whole = torch.cat(every, dim)
            bs = [small((whole.shape[-1], n), 9, salt + n, dtype) for n in (columns, 3)]
            kind, pieces = KINDS[salt % 3], PIECES[salt % 5]
            what = f"{ranks} {shape} along {dim}, {kind}, {pieces} pieces"
            mine = placed(small(shape, rank, salt, dtype), kind, group)
            right = [b.to(DEVICE) for b in bs]
            a, products = ops.all_gather_matmul(
                mine, right, dim, group, return_a=True, pieces=pieces
            )
            again = ops.all_gather_matmul(mine, right, dim - len(shape), group, pieces=2)
            problems += same(f"{what}: A", a, whole)
            for got in (products, again):
                for b, one in zip(bs, got, strict=True):
                    problems += same(what, one, product(whole, b))
            problems += same(f"{what}: a_shard afterwards", mine, small(shape, rank, salt, dtype))
    destroy(groups)
    return problems


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("world_size", SIZES)
def test_all_gather_matmul(world_size, dtype):
    check(gathers, world_size, GROUPS[world_size], dtype)


def reductions(rank, lists, dtype):
    from torch_symm import ops

    groups, problems, number = member_of_each(lists), [], 0
    for group, ranks in groups:
        for op in ("sum", dist.ReduceOp.AVG):
            for shape, columns, dim in shapes(len(ranks)):
                number += 1
                every = [small(shape, r, number, dtype) for r in ranks]
                b = small((shape[-1], columns), 9, number, dtype)
                total = model.reduced(
                    [product(a, b) for a in every], "SUM" if op == "sum" else "AVG"
                )
                kind, pieces = KINDS[number % 3], PIECES[number % 5]
                mine = placed(every[ranks.index(rank)], kind, group)
                what = f"{ranks} {op} {shape} along {dim}, {kind}, {pieces} pieces"
                got = ops.matmul_all_reduce(mine, b.to(DEVICE), op, group, pieces=pieces)
                problems += same(f"all_reduce {what}", got, total)
                if total.shape[dim] % len(ranks):
                    continue
                part = total.chunk(len(ranks), dim)[ranks.index(rank)]
                got = ops.matmul_reduce_scatter(mine, b.to(DEVICE), op, dim, group, pieces=pieces)
                problems += same(f"reduce_scatter {what}", got, part)
    destroy(groups)
    return problems


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("world_size", SIZES)
def test_matmul_and_reduction(world_size, dtype):
    check(reductions, world_size, GROUPS[world_size], dtype)


def norms(rank, lists, dtype):
    from torch_symm import ops

    groups, problems, number = member_of_each(lists), [], 0
    for group, ranks in groups:
        for shape in [(1, 8), (5, 33), (2, 3, 16), (7,), (0, 4)]:
            for pieces in PIECES:
                number += 1
                every = [model.make_input(dtype, 165, r, number) for r in ranks]
                every = [t[: torch.Size(shape).numel()].view(shape) for t in every]
                weight = model.make_input(dtype, shape[-1], 7, number).to(DEVICE)
                residual = model.make_input(dtype, every[0].numel(), 8, number).view(shape)
                mine = placed(every[ranks.index(rank)], KINDS[number % 3], group)
                total = model.reduced(every, "SUM").to(DEVICE)
                what = f"{ranks} {shape}, {pieces} pieces"
                got = ops.all_reduce_rms_norm(mine, weight, 1e-5, group, pieces=pieces)
                expected = torch.rms_norm(total, shape[-1:], weight, 1e-5)
                problems += near(what, got, expected)
                got, added = ops.all_reduce_rms_norm(
                    mine, weight, 1e-5, group, residual.to(DEVICE), pieces=pieces
                )
                total += residual.to(DEVICE)
                problems += same(f"{what}: total", added, total)
                expected = torch.rms_norm(total, shape[-1:], weight, 1e-5)
                problems += near(f"{what}: residual", got, expected)
    destroy(groups)
    return problems


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", FLOATS, ids=model.name)
@pytest.mark.parametrize("world_size", SIZES[-1:])
def test_all_reduce_rms_norm(world_size, dtype):
    check(norms, world_size, GROUPS[world_size], dtype)


def nothing(rank):
    """No rows, no columns, nothing to sum over."""
    from torch_symm import ops

    size, problems = dist.get_world_size(), []
    for m, k, n in [(0, 3, 4), (4, 0, 3), (4, 3, 0), (0, 0, 0)]:
        a, b = torch.ones(m * size, k, device=DEVICE), torch.ones(k, n * size, device=DEVICE)
        expected = torch.full((m * size, n * size), float(k))
        for pieces in (None, 2):
            what = f"{m} {k} {n} {pieces}"
            (got,) = ops.all_gather_matmul(a[:m], [b], 0, pieces=pieces)
            problems += same(f"gather {what}", got, expected)
            got = ops.matmul_all_reduce(a, b, pieces=pieces)
            problems += same(f"reduce {what}", got, expected * size)
            for dim in (0, 1):
                got = ops.matmul_reduce_scatter(a, b, "avg", dim, pieces=pieces)
                problems += same(f"scatter {what}", got, expected.chunk(size, dim)[0])
    return problems


def test_of_nothing():
    check(nothing, WORLD_SIZE)


def large(rank):
    """Values whose sums round: the bits are those of matmul and collective on the same pieces; and
    a gather that is cut without being asked."""
    from torch_symm import ops
    from torch_symm.ops import pieces

    size, problems, count = dist.get_world_size(), [], 3
    rows, k, n = 2048, 640, 96
    a, b = (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        for shape, seed in (((rows * size, k), rank), ((k, n), 77))
    )

    def cuts(of: int, number: int) -> list[slice]:
        """The rows of products of the share of rank `of`, in so many pieces on a GPU."""
        return [slice(0, rows)] if of == rank else pieces.travelling(rows, number)

    partial = torch.empty(size, rows, n, device=DEVICE)
    for of, (share, into) in enumerate(zip(a.view(size, rows, k), partial, strict=True)):
        for part in cuts(of, count) if ON_CUDA else pieces.slices(rows, count):
            into[part] = share[part] @ b
    dist.all_reduce(partial)
    got = ops.matmul_reduce_scatter(a, b, pieces=count)
    problems += same("reduce_scatter", got, partial[rank].cpu())
    by_piece = partial.flatten(0, 1)
    if not ON_CUDA:
        by_piece = torch.cat([a[part] @ b for part in pieces.slices(rows * size, count)])
        dist.all_reduce(by_piece)
    problems += same("all_reduce", ops.matmul_all_reduce(a, b, pieces=count), by_piece.cpu())
    shard = a[:rows]
    cut = pieces.count(None, "gather", rows, shard.nbytes, shard.device.type, size)
    if cut < 2:
        problems.append(f"{cut} pieces")
    whole = torch.empty(size * rows, k, device=DEVICE)
    dist.all_gather_into_tensor(whole, shard)
    (product,) = ops.all_gather_matmul(shard, [b], 0)
    for r, (got, left) in enumerate(zip(product.chunk(size), whole.chunk(size), strict=True)):
        parts = cuts(r, cut if ON_CUDA else cut + 1)
        expected = torch.cat([left[part] @ b for part in parts])
        problems += same(f"all_gather, rows of {r}", got, expected.cpu())
    return problems


def test_bits_are_those_of_the_pieces():
    check(large, 2)


def through_pytorch(rank):
    """PyTorch's fused operators: over symm they are calls of the group, over gloo of its memory."""
    own, problems = torch.ops.symm_mem, []
    for backend in ("symm", "gloo"):
        group = dist.new_group(backend=backend)
        name, size = group.group_name, group.size()
        number = group._get_backend(torch.device("cpu"))._get_sequence_number_for_group
        every = [small((4, 2 * size, 3), r, 1) for r in range(size)]
        b, before = small((3, 5), 9, 2), number()
        _, (got,) = own.fused_all_gather_matmul(every[rank], [b], 1, name, return_A=False)
        problems += same(f"gather {backend}", got, torch.cat(every, 1) @ b)
        got = own.fused_matmul_reduce_scatter(every[rank], b, "avg", 1, name)
        expected = model.reduced([one @ b for one in every], "AVG").chunk(size, 1)[rank]
        problems += same(f"scatter {backend}", got, expected)
        calls = number() - before
        if calls != (2 if backend == "symm" else 0):
            problems.append(f"{backend}: {calls} calls of the group")
        if not got.is_contiguous():
            problems.append(f"{backend}: strides {got.stride()}")
    return problems


@pytest.mark.cpu("on a GPU these are PyTorch's own code")
def test_operators_of_pytorch():
    check(through_pytorch, 3, fresh=True)


def without_import(rank):
    """A group of symm is enough for torch.ops.symm."""
    import sys

    name, size = dist.group.WORLD.group_name, dist.get_world_size()
    if "torch_symm.ops.library" not in sys.modules:
        return ["the operators are not registered"]
    a, b = (small(shape, 2, 0).to(DEVICE) for shape in ((2, 3), (3, 4)))
    got = torch.ops.symm.matmul_all_reduce(a, b, "sum", name)
    return same("sum", got, product(a.cpu(), b.cpu()) * size)


def test_operators_without_an_import():
    check(without_import, 2, fresh=True)
