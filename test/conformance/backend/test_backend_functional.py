"""Functional collectives, which give new tensors: their values, groups named in every way, waiting,
coalesced and differentiable forms, a compiled one; and torch.distributed.nn.functional."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as nn_functional

from backend import (
    NAME,
    WORLD_SIZE,
    conforms,
    here,
    mesh_of,
    mine,
    need,
    need_ranks,
    numbers,
    of_all,
    reduced,
    same,
    still_works,
    subgroup,
)
from harness import DEVICE

EVERYONE = list(range(WORLD_SIZE))


def the_world():
    return dist.group.WORLD


# -- Values ---------------------------------------------------------------------------------------


def all_reduces(rank, op):
    for shape in [(), (7,), (3, 5), (70, 1000)]:
        given = mine(rank, *shape)
        got = funcol.all_reduce(given, op, the_world())
        same(got, reduced(NAMES[op], of_all(*shape)), f"{shape}")
        same(given, numbers(rank, *shape), "the input")


NAMES = {"sum": "SUM", "avg": "AVG", "product": "PRODUCT", "min": "MIN", "max": "MAX"}


@pytest.mark.parametrize("op", NAMES)
def test_all_reduce(op):
    conforms(all_reduces, op)


def bits_reduce(rank, op):
    got = funcol.all_reduce(mine(rank, 9, dtype=torch.int64), op, the_world())
    same(got, reduced(op.upper(), of_all(9, dtype=torch.int64)))


@pytest.mark.parametrize("op", ["band", "bor", "bxor"])
def test_all_reduce_of_bits(op):
    need(op.upper())
    conforms(bits_reduce, op)


def broadcasts(rank):
    for root in EVERYONE:
        given = mine(rank, 11, salt=root)
        same(funcol.broadcast(given, root, the_world()), numbers(root, 11, salt=root))
        same(given, numbers(rank, 11, salt=root), "the input")


def test_broadcast():
    conforms(broadcasts)


def all_gathers(rank, dim):
    got = funcol.all_gather_tensor(mine(rank, 3, 4, 5), dim, the_world())
    same(got, torch.cat(of_all(3, 4, 5), dim=dim))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_all_gather_tensor(dim):
    conforms(all_gathers, dim)


def reduce_scatters(rank, dim, op):
    shape = [3, 4, 5]
    shape[dim] *= WORLD_SIZE
    got = funcol.reduce_scatter_tensor(mine(rank, *shape), op, dim, the_world())
    same(got, reduced(NAMES[op], of_all(*shape)).chunk(WORLD_SIZE, dim)[rank].contiguous())


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_reduce_scatter_tensor(dim, op):
    conforms(reduce_scatters, dim, op)


def rows_for(sender, taker) -> int:
    return (sender + 2 * taker) % 4


def exchange_of(rank, columns=3):
    """(what `rank` gives on the CPU, its splits, what it gets, those splits)"""
    give = [rows_for(rank, peer) for peer in EVERYONE]
    take = [rows_for(peer, rank) for peer in EVERYONE]
    given = [numbers(rank, n, columns, salt=peer) for peer, n in enumerate(give)]
    taken = [numbers(peer, n, columns, salt=rank) for peer, n in enumerate(take)]
    return torch.cat(given), give, torch.cat(taken), take


def exchanges(rank):
    given, give, taken, take = exchange_of(rank)
    same(funcol.all_to_all_single(here(given), take, give, the_world()), taken, "with splits")
    even = torch.cat([numbers(rank, 2, salt=peer) for peer in EVERYONE])
    got = funcol.all_to_all_single(here(even), None, None, the_world())
    same(got, torch.cat([numbers(peer, 2, salt=rank) for peer in EVERYONE]), "without")


def test_all_to_all_single():
    conforms(exchanges)


def permutes(rank):
    got = funcol.permute_tensor(mine(rank, 6), [*EVERYONE[1:], 0], the_world())
    same(got, numbers((rank - 1) % WORLD_SIZE, 6), "around")
    got = funcol.permute_tensor(mine(rank, 6), EVERYONE[::-1], the_world())
    same(got, numbers(WORLD_SIZE - 1 - rank, 6), "reversed")


def test_permute_tensor():
    conforms(permutes)


SHAPES = [(4,), (8, 3), (12,)]


def coalesced_inputs(rank):
    return [mine(rank, WORLD_SIZE * shape[0], *shape[1:]) for shape in SHAPES]


def expected_inputs():
    return [of_all(WORLD_SIZE * shape[0], *shape[1:]) for shape in SHAPES]


def coalesces(rank, kind):
    given = coalesced_inputs(rank)
    if kind == "all_reduce":
        got = funcol.all_reduce_coalesced(given, "sum", the_world())
        expected = [reduced("SUM", tensors) for tensors in expected_inputs()]
    elif kind == "all_gather":
        got = funcol.all_gather_into_tensor_coalesced(given, the_world())
        expected = [torch.cat(tensors) for tensors in expected_inputs()]
    else:
        dims = [0] * len(SHAPES)
        got = funcol.reduce_scatter_tensor_coalesced(given, "sum", dims, the_world())
        totals = [reduced("SUM", tensors) for tensors in expected_inputs()]
        expected = [total.chunk(WORLD_SIZE)[rank] for total in totals]
    same([funcol.wait_tensor(tensor) for tensor in got], expected)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_coalesced_forms(kind):
    conforms(coalesces, kind)


def in_place_forms(rank):
    output = torch.zeros(WORLD_SIZE * 5, device=DEVICE)
    funcol.all_gather_tensor_inplace(output, mine(rank, 5), the_world())
    same(output, torch.cat(of_all(5)), "all_gather")
    output = torch.zeros(5, device=DEVICE)
    funcol.reduce_scatter_tensor_inplace(output, mine(rank, 5 * WORLD_SIZE), "sum", the_world())
    same(output, reduced("SUM", of_all(5 * WORLD_SIZE)).chunk(WORLD_SIZE)[rank], "reduce_scatter")


def test_forms_that_write_to_an_output():
    conforms(in_place_forms)


# -- Groups ---------------------------------------------------------------------------------------


def by_ranks(rank):
    got = funcol.all_reduce(mine(rank, 7), "sum", EVERYONE)
    same(got, reduced("SUM", of_all(7)), "a list of ranks")
    mesh = mesh_of(WORLD_SIZE)
    same(funcol.all_reduce(mine(rank, 7), "sum", mesh), reduced("SUM", of_all(7)), "a mesh")
    got = funcol.all_reduce(mine(rank, 7), "sum", (mesh, 0))
    same(got, reduced("SUM", of_all(7)), "a dimension of it")
    name = dist.group.WORLD.group_name
    same(funcol.all_reduce(mine(rank, 7), "sum", name), reduced("SUM", of_all(7)), "its name")
    members = [0, WORLD_SIZE - 1]
    with subgroup(members) as group:
        if rank in members:
            got = funcol.all_gather_tensor(mine(rank, 7), 0, group)
            same(got, torch.cat(of_all(7, ranks=members)), "a group of two")


def test_groups_by_ranks_mesh_dimension_and_name():
    conforms(by_ranks)


def by_dimensions(rank):
    mesh = mesh_of(2, 2, names=("outer", "inner"))
    column, row = rank % 2, rank // 2
    for dim, ranks in enumerate([[column, column + 2], [2 * row, 2 * row + 1]]):
        got = funcol.all_reduce(mine(rank, 7), "sum", (mesh, dim))
        same(got, reduced("SUM", of_all(7, ranks=ranks)), f"all_reduce along {dim}")
        got = funcol.all_gather_tensor(mine(rank, 7), 0, (mesh, dim))
        same(got, torch.cat(of_all(7, ranks=ranks)), f"all_gather along {dim}")
        got = funcol.permute_tensor(mine(rank, 7), [1, 0], (mesh, dim))
        same(got, numbers(ranks[1 - ranks.index(rank)], 7), f"permute along {dim}")
    with pytest.raises((AssertionError, ValueError, RuntimeError)):
        funcol.all_reduce(mine(rank, 7), "sum", mesh)


def test_groups_by_dimensions_of_a_mesh():
    need_ranks(4)
    conforms(by_dimensions)


def unknown_groups(rank):
    for group in ([0, WORLD_SIZE], "no such group", [[0, 1], [2]]):
        with pytest.raises((ValueError, RuntimeError, AssertionError)):
            funcol.wait_tensor(funcol.all_reduce(mine(rank, 3), "sum", group))
    with pytest.raises((ValueError, RuntimeError, KeyError)):
        funcol.wait_tensor(funcol.all_reduce(mine(rank, 3), "no such operation", the_world()))
    still_works(rank)


def test_groups_and_operations_that_there_are_not():
    conforms(unknown_groups)


# -- Waiting --------------------------------------------------------------------------------------


def waits_when_needed(rank):
    total = reduced("SUM", of_all(4, 6))
    got = funcol.all_reduce(mine(rank, 4, 6), "sum", the_world())
    assert isinstance(got, funcol.AsyncCollectiveTensor)
    view = got.view(24)
    assert isinstance(view, funcol.AsyncCollectiveTensor), "a view does not wait"
    after = got + 1
    assert not isinstance(after, funcol.AsyncCollectiveTensor)
    same(after, total + 1, "what is computed of it")
    same(view.clone(), total.view(24), "the view")
    plain = funcol.wait_tensor(funcol.all_reduce(mine(rank, 4, 6), "sum", the_world()))
    assert not isinstance(plain, funcol.AsyncCollectiveTensor)
    same(plain, total, "waited for")
    same(funcol.wait_tensor(plain), total, "waited for again")


def test_async_tensors_wait_when_they_are_used():
    conforms(waits_when_needed)


def never_waited_for(rank):
    for _ in range(5):
        funcol.all_reduce(mine(rank, 100), "sum", the_world())
    still_works(rank)


def test_results_that_nobody_uses():
    conforms(never_waited_for)


def chained(rank):
    gathered = funcol.all_gather_tensor(mine(rank, 4), 0, the_world())
    summed = funcol.all_reduce(gathered, "sum", the_world())
    part = funcol.reduce_scatter_tensor(summed, "sum", 0, the_world())
    same(part.clone(), numbers(rank, 4) * WORLD_SIZE * WORLD_SIZE)


def test_results_that_are_the_next_call_s_inputs():
    conforms(chained)


# -- Gradients ------------------------------------------------------------------------------------


def weight(rank, *shape) -> torch.Tensor:
    return numbers(rank, *shape, salt=1)


def gathers_with_gradient(rank):
    given = mine(rank, 3, 4).requires_grad_()
    got = funcol.all_gather_tensor_autograd(given, 0, the_world())
    (got * here(weight(rank, 3 * WORLD_SIZE, 4))).sum().backward()
    weights = reduced("SUM", [weight(peer, 3 * WORLD_SIZE, 4) for peer in EVERYONE])
    same(got, torch.cat(of_all(3, 4)), "the value")
    same(given.grad, weights.chunk(WORLD_SIZE)[rank], "the gradient")


def test_gradient_of_all_gather():
    conforms(gathers_with_gradient)


def scatters_with_gradient(rank):
    given = mine(rank, 3 * WORLD_SIZE, 4).requires_grad_()
    got = funcol.reduce_scatter_tensor_autograd(given, "sum", 0, the_world())
    (got * here(weight(rank, 3, 4))).sum().backward()
    same(got, reduced("SUM", of_all(3 * WORLD_SIZE, 4)).chunk(WORLD_SIZE)[rank], "the value")
    same(given.grad, torch.cat([weight(peer, 3, 4) for peer in EVERYONE]), "the gradient")


def test_gradient_of_reduce_scatter():
    conforms(scatters_with_gradient)


def exchanges_with_gradient(rank):
    given, give, taken, take = exchange_of(rank)
    tensor = here(given).requires_grad_()
    got = funcol.all_to_all_single_autograd(tensor, take, give, the_world())
    weights = [numbers(peer, rows_for(peer, rank), 3, salt=rank + 9) for peer in EVERYONE]
    (got * here(torch.cat(weights))).sum().backward()
    same(got, taken, "the value")
    own = [numbers(rank, rows_for(rank, peer), 3, salt=peer + 9) for peer in EVERYONE]
    same(tensor.grad, torch.cat(own), "the gradient")


def test_gradient_of_all_to_all_single():
    conforms(exchanges_with_gradient)


def nn_collectives(rank):
    given = mine(rank, 5).requires_grad_()
    total = nn_functional.all_reduce(given)
    (total * here(weight(rank, 5))).sum().backward()
    same(total, reduced("SUM", of_all(5)), "all_reduce")
    same(given.grad, sum(weight(peer, 5) for peer in EVERYONE), "its gradient")
    given = mine(rank, 5).requires_grad_()
    parts = nn_functional.all_gather(given)
    (torch.cat(list(parts)) * here(weight(rank, 5 * WORLD_SIZE))).sum().backward()
    same(list(parts), of_all(5), "all_gather")
    weights = reduced("SUM", [weight(peer, 5 * WORLD_SIZE) for peer in EVERYONE])
    same(given.grad, weights.chunk(WORLD_SIZE)[rank], "its gradient")
    given = mine(rank, 5).requires_grad_()
    got = nn_functional.broadcast(given, 1)
    (got * here(weight(rank, 5))).sum().backward()
    same(got, numbers(1, 5), "broadcast")
    if rank == 1:
        same(given.grad, sum(weight(peer, 5) for peer in EVERYONE), "its gradient")


def test_gradients_of_torch_distributed_nn():
    conforms(nn_collectives)


# -- Compiled -------------------------------------------------------------------------------------


def _program(tensor, group):
    summed = funcol.all_reduce(tensor * 2, "sum", group)
    gathered = funcol.all_gather_tensor(tensor, 0, group)
    return summed + 1, gathered * 3


def is_compiled(rank):
    compiled = torch.compile(_program, backend="eager", fullgraph=True)
    total, gathered = compiled(mine(rank, 5), the_world())
    same(total, reduced("SUM", of_all(5)) * 2 + 1, "all_reduce")
    same(gathered, torch.cat(of_all(5)) * 3, "all_gather")
    assert dist.get_backend() == NAME


def _in_place_program(tensor, output):
    dist.all_reduce(tensor)
    dist.all_gather_into_tensor(output, tensor)
    return output + 1


def in_place_is_compiled(rank):
    compiled = torch.compile(_in_place_program, backend="eager", fullgraph=True)
    output = torch.zeros(5 * WORLD_SIZE, device=DEVICE)
    got = compiled(mine(rank, 5), output)
    same(got, reduced("SUM", of_all(5)).repeat(WORLD_SIZE) + 1)


@pytest.mark.parametrize(
    "body", [is_compiled, in_place_is_compiled], ids=["functional", "in place"]
)
def test_compiled_without_a_break(body):
    conforms(body)
