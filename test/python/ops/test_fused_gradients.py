"""torch_symm.ops: gradients against those of one process that has all ranks' operands, and
programs that torch.compile traces."""

import pytest
import torch
import torch.distributed as dist

from fused import same, small
from harness import DEVICE, IS_SYMM, check

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(not IS_SYMM, reason="for groups of symm"),
]

GROUPS = {3: [[0, 1, 2]], 4: [[0, 2], [1, 3]]}


def leaf(shape, rank, salt, dtype):
    return small(shape, rank, salt, dtype).requires_grad_()


def on_device(tensor):
    return tensor.detach().to(DEVICE).requires_grad_()


def weighted(results, salt):
    """A loss in which every element counts otherwise."""
    return sum(
        (r * small(r.shape, 3, salt + n, r.dtype).to(r.device)).sum().abs()
        for n, r in enumerate(results)
    )


def compared(what, mine, expected):
    """Gradients are whole numbers, but for quotients by the number of ranks and phases."""
    problems = []
    for name, got, wanted in zip(("left", "right", "other"), mine, expected, strict=False):
        if got is None or not torch.allclose(got.cpu(), wanted, rtol=1e-4, atol=1e-4):
            problems.append(f"{what}: gradient of the {name}: {got}, expected {wanted}")
    return problems


def gathers(ops, group, ranks, me, dtype, dim):
    """(gradients of this rank's leaves, and those that one process works out)"""
    shape = (4, 3, 5)
    k = 5 * len(ranks) if dim == 2 else 5
    shards = [leaf(shape, r, 1, dtype) for r in ranks]
    bs = [[leaf((k, n), r, n, dtype) for n in (2, 6)] for r in ranks]
    whole = torch.cat(shards, dim)
    sum(
        weighted([whole @ b for b in mine] + [whole], r) for r, mine in zip(ranks, bs, strict=True)
    ).backward()
    a, right = on_device(shards[me]), [on_device(b) for b in bs[me]]
    whole, products = ops.all_gather_matmul(a, right, dim, group, return_a=True, pieces=2)
    weighted([*products, whole], ranks[me]).backward()
    return [a.grad, *(b.grad for b in right)], [shards[me].grad, *(b.grad for b in bs[me])]


def scatters(ops, group, ranks, me, dtype, dim):
    size = len(ranks)
    shape, op = (2 * size, size, 5), "avg" if dim == 1 else "sum"
    left = [leaf(shape, r, 1, dtype) for r in ranks]
    right = [leaf((5, 3 * size), r, 2, dtype) for r in ranks]
    total = sum(a @ b for a, b in zip(left, right, strict=True)) / (size if op == "avg" else 1)
    sum(
        weighted([part], r) for r, part in zip(ranks, total.chunk(size, dim), strict=True)
    ).backward()
    a, b = on_device(left[me]), on_device(right[me])
    weighted([ops.matmul_reduce_scatter(a, b, op, dim, group, pieces=2)], ranks[me]).backward()
    return [a.grad, b.grad], [left[me].grad, right[me].grad]


def reductions(ops, group, ranks, me, dtype, dim):
    size, op = len(ranks), "avg" if dim == 1 else "sum"
    left = [leaf((3, 2, 5), r, 1, dtype) for r in ranks]
    right = [leaf((5, 4), r, 2, dtype) for r in ranks]
    total = sum(a @ b for a, b in zip(left, right, strict=True)) / (size if op == "avg" else 1)
    sum(weighted([total], r) for r in ranks).backward()
    a, b = on_device(left[me]), on_device(right[me])
    weighted([ops.matmul_all_reduce(a, b, op, group, pieces=2)], ranks[me]).backward()
    return [a.grad, b.grad], [left[me].grad, right[me].grad]


def norms(ops, group, ranks, me, dtype, dim):
    if dtype.is_complex:
        return [], []
    shape = (5,) if dim == 2 else (3, 2, 5)
    xs = [leaf(shape, r, 1, dtype) for r in ranks]
    weights = [leaf((5,), r, 2, dtype) for r in ranks]
    rests = [leaf(shape, r, 3, dtype) for r in ranks] if dim else [None for _ in ranks]
    losses = []
    for r, weight, rest in zip(ranks, weights, rests, strict=True):
        total = sum(xs) if rest is None else sum(xs) + rest
        normed = torch.rms_norm(total, [5], weight, 0.5)
        losses.append(weighted([normed] if rest is None else [normed, total], r))
    sum(losses).backward()
    x, weight = on_device(xs[me]), on_device(weights[me])
    rest = None if rests[me] is None else on_device(rests[me])
    got = ops.all_reduce_rms_norm(x, weight, 0.5, group, rest, pieces=2)
    weighted([got] if rest is None else got, ranks[me]).backward()
    leaves = [(x, xs[me]), (weight, weights[me])] + ([] if rest is None else [(rest, rests[me])])
    return [mine.grad for mine, _ in leaves], [other.grad for _, other in leaves]


FORMS = {"gather": gathers, "scatter": scatters, "reduce": reductions, "norm": norms}


def gradients(rank, lists, form):
    from torch_symm import ops

    problems = []
    for ranks in lists:
        group = dist.new_group(ranks)
        if rank not in ranks:
            continue
        for dtype in (torch.float32, torch.complex64):
            for dim in (0, 1, 2):
                found = FORMS[form](ops, group, ranks, ranks.index(rank), dtype, dim)
                problems += compared(f"{form} {ranks} {dtype} {dim}", *found)
    return problems


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("world_size", GROUPS)
def test_gradients(world_size, form):
    check(gradients, world_size, GROUPS[world_size], form)


def in_parts(rank):
    """Only what asks for a gradient gets one; a result that no loss uses sends none back."""
    from torch_symm import ops

    problems, size = [], dist.get_world_size()
    a, b = small((4, 3), rank, 0).to(DEVICE), small((3, 2 * size), 1, 0).to(DEVICE)
    right = b.clone().requires_grad_()
    _, used = ops.all_gather_matmul(a, [right, right], 0)
    used.sum().backward()
    whole = torch.cat([small((4, 3), r, 0) for r in range(size)])
    ones = torch.ones(4 * size, 2 * size)
    problems += same("right", right.grad, whole.t() @ ones)
    left = a.clone().requires_grad_()
    ops.matmul_reduce_scatter(left, b, scatter_dim=1).sum().backward()
    problems += same("left", left.grad, torch.ones(4, 2 * size) @ b.cpu().t())
    x, weight = a.clone().requires_grad_(), torch.ones(3, device=DEVICE)
    rest = a.clone().requires_grad_()
    _, total = ops.all_reduce_rms_norm(x, weight, 1e-5, residual=rest)
    total.sum().backward()
    problems += same("x", x.grad, torch.full((4, 3), float(size)))
    problems += same("residual", rest.grad, torch.ones(4, 3))
    if weight.grad is not None or a.grad is not None:
        problems.append("a gradient that nobody asked for")
    return problems


def test_what_has_no_gradient():
    check(in_parts, 2)


def twice(rank):
    """The gradient of a gradient, against finite sums: the operators are linear in each operand."""
    from torch_symm import ops

    a = small((2, 3), rank, 0).to(DEVICE).requires_grad_()
    b = small((3, 4), 1, 0).to(DEVICE).requires_grad_()
    (product,) = ops.all_gather_matmul(a, [b], 0)
    (first,) = torch.autograd.grad(product.square().sum(), a, create_graph=True)
    first.sum().backward()
    size = dist.get_world_size()
    shards = [small((2, 3), r, 0).requires_grad_() for r in range(size)]
    rights = [small((3, 4), 1, 0).requires_grad_() for _ in range(size)]
    loss = sum((torch.cat(shards) @ right).square().sum() for right in rights)
    firsts = torch.autograd.grad(loss, shards, create_graph=True)
    sum(one.sum() for one in firsts).backward()
    problems = same("left", a.grad, shards[rank].grad)
    return problems + same("right", b.grad, rights[rank].grad)


def test_second_gradients():
    check(twice, 2)


def block(x, up, down, weight, rest, group):
    from torch_symm import ops

    (hidden,) = ops.all_gather_matmul(x, [up], 0, group)
    y = ops.matmul_reduce_scatter(torch.relu(hidden), down, "sum", 0, group)
    z = ops.matmul_all_reduce(y, up, dist.ReduceOp.AVG, group)
    return ops.all_reduce_rms_norm(z @ down, weight, 1e-5, group, rest)


def compiled_block(rank, backend):
    """The same as the plain program, by a group, by its name, and by the default group."""
    world, problems = dist.group.WORLD, []
    generator = torch.Generator()
    shapes = [(6, 8), (8, 12), (12, 8), (8,), (6, 8)]
    for way, group in {"group": world, "name": world.group_name, "default": None}.items():
        # How a group is named concerns the trace of Python alone.
        compiler = backend if way == "group" else "eager"
        torch._dynamo.reset()
        program = torch.compile(block, fullgraph=True, backend=compiler, dynamic=False)
        results = []
        for function in (block, program):
            generator.manual_seed(rank)
            leaves = [torch.randn(s, generator=generator).to(DEVICE) for s in shapes]
            leaves = [one.requires_grad_() for one in leaves]
            outputs = function(*leaves, group)
            sum(one.square().sum() for one in outputs).backward()
            results.append([*outputs, *(one.grad for one in leaves)])
        problems += [
            f"{way}, {number}: {got} is not {expected}"
            for number, (expected, got) in enumerate(zip(*results, strict=True))
            if not torch.allclose(got, expected, rtol=1e-4, atol=1e-5)
            or got.stride() != expected.stride()
        ]
    return problems


def test_compiled():
    check(compiled_block, 2, "aot_eager", fresh=True, time_limit=120)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_compiled_by_inductor():
    env = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    check(compiled_block, 2, "inductor", env=env, time_limit=240, timeout=200)


def checked_by_torch(rank):
    """torch.library.opcheck: schema, registrations, fake results and shapes that vary."""
    name, ops = dist.group.WORLD.group_name, torch.ops.symm
    a, b = torch.ones(4, 6, device=DEVICE), torch.ones(6, 4, device=DEVICE)
    deep, weight = torch.ones(2, 4, 6, device=DEVICE), torch.ones(6, device=DEVICE)
    calls = [
        (ops.all_gather_matmul, (deep, [b, b], 1, name)),
        (ops.all_gather_matmul, (a, [torch.ones(12, 4, device=DEVICE)], 1, name, True)),
        (ops.matmul_reduce_scatter, (deep, b, "avg", 1, name)),
        (ops.matmul_reduce_scatter, (deep, b, "sum", 2, name)),
        (ops.matmul_all_reduce, (deep, b, "sum", name)),
        (ops.all_reduce_rms_norm, (a, weight, 1e-5, name, a.clone())),
    ]
    problems = []
    for number, (operator, arguments) in enumerate(calls):
        grown = [
            t.clone().requires_grad_() if isinstance(t, torch.Tensor) else t for t in arguments
        ]
        verdicts = torch.library.opcheck(operator, tuple(grown), raise_exception=False)
        problems += [
            f"call {number}: {test}: {verdict}"
            for test, verdict in verdicts.items()
            if verdict != "SUCCESS"
        ]
    return problems


@pytest.mark.long
def test_opcheck():
    check(checked_by_torch, 2, fresh=True, time_limit=120)


def on_meta(rank):
    name, ops = dist.group.WORLD.group_name, torch.ops.symm
    a, b = (torch.empty(s, device="meta") for s in ((2, 4, 6), (6, 8)))
    _, (product,) = ops.all_gather_matmul(a, [b], 1, name)
    share = ops.matmul_reduce_scatter(a, b, "sum", 2, name)
    got = [tuple(t.shape) for t in (product, share, ops.matmul_all_reduce(a, b, "avg", name))]
    return [] if got == [(2, 8, 8), (2, 4, 4), (2, 4, 8)] else [f"{got}"]


def test_meta_tensors():
    check(on_meta, 2)
