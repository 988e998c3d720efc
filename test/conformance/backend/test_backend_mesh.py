"""DeviceMesh and DTensor: groups of meshes, placements and what a redistribution gives."""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from backend import (
    WORLD_SIZE,
    conforms,
    here,
    mesh_of,
    mine,
    need_cuda,
    need_ranks,
    numbers,
    of_all,
    reduced,
    same,
)
from harness import DEVICE, device_of_rank

NAMES = ("outer", "inner")


def ranks_along(rank, dim) -> list[int]:
    """Of the 2 x 2 mesh."""
    return [rank % 2, rank % 2 + 2] if dim == 0 else [rank // 2 * 2, rank // 2 * 2 + 1]


# -- Meshes ---------------------------------------------------------------------------------------


def mesh_of_all(rank):
    mesh = mesh_of(WORLD_SIZE)
    assert mesh.get_rank() == rank
    assert mesh.get_local_rank() == rank
    assert list(mesh.get_coordinate()) == [rank]
    assert mesh.size() == WORLD_SIZE
    group = mesh.get_group()
    assert dist.get_process_group_ranks(group) == list(range(WORLD_SIZE))
    tensor = mine(rank, 6)
    dist.all_reduce(tensor, group=group)
    same(tensor, reduced("SUM", of_all(6)))


def test_mesh_of_one_dimension():
    conforms(mesh_of_all)


def mesh_of_two(rank):
    mesh = mesh_of(2, 2, names=NAMES)
    assert list(mesh.get_coordinate()) == [rank // 2, rank % 2]
    for dim, name in enumerate(NAMES):
        group = mesh.get_group(name)
        ranks = ranks_along(rank, dim)
        assert group == mesh.get_group(dim) == mesh[name].get_group()
        assert dist.get_process_group_ranks(group) == ranks
        assert mesh.get_local_rank(name) == mesh[name].get_local_rank() == ranks.index(rank)
        tensor = mine(rank, 6)
        dist.all_reduce(tensor, group=group)
        same(tensor, reduced("SUM", of_all(6, ranks=ranks)), name)
    with pytest.raises(RuntimeError):
        mesh.get_local_rank()
    with pytest.raises((KeyError, RuntimeError)):
        mesh["neither"]


def test_mesh_of_two_dimensions_and_its_sub_meshes():
    need_ranks(4)
    conforms(mesh_of_two)


def moves_along_dimensions(rank):
    mesh = mesh_of(2, 2, names=NAMES)
    for dim, name in enumerate(NAMES):
        group, ranks = mesh.get_group(name), ranks_along(rank, dim)
        place, root = ranks.index(rank), ranks[1]
        tensor = mine(rank, 3, 3)
        dist.broadcast(tensor, group=group, group_src=1)
        same(tensor, numbers(root, 3, 3), f"broadcast along {name}")
        parts = numbers(root, 3, 8).chunk(2, dim=1)
        inputs = [here(part.contiguous()) for part in parts] if rank == root else None
        output = torch.zeros(3, 4, device=DEVICE)
        dist.scatter(output, inputs, group=group, group_src=1)
        same(output, parts[place], f"scatter along {name}")
        outputs = [torch.zeros(3, 4, device=DEVICE) for _ in ranks]
        dist.all_gather(outputs, output, group=group)
        same(torch.cat(outputs, dim=1), numbers(root, 3, 8), f"all_gather along {name}")


def test_collectives_along_the_dimensions_of_a_mesh():
    need_ranks(4)
    conforms(moves_along_dimensions)


def flattens(rank):
    mesh = mesh_of(2, 2, names=("rows", "columns"))
    flat = mesh["rows", "columns"]._flatten("both")
    assert flat.mesh.tolist() == list(range(4))
    assert mesh["both"].get_local_rank() == rank
    tensor = mine(rank, 6)
    dist.all_reduce(tensor, group=flat.get_group())
    same(tensor, reduced("SUM", of_all(6)))


def test_a_flattened_mesh():
    need_ranks(4)
    conforms(flattens)


def from_groups(rank):
    world = dist.DeviceMesh.from_group(dist.group.WORLD, DEVICE)
    assert world.get_group() == dist.group.WORLD
    same(funcol.all_reduce(mine(rank, 6), "sum", world).clone(), reduced("SUM", of_all(6)))
    half, groups = WORLD_SIZE // 2, []
    parts = [list(range(half)), list(range(half, WORLD_SIZE))]
    groups = [dist.new_group(part) for part in parts]
    part, group = parts[rank // half], groups[rank // half]
    mesh = dist.DeviceMesh.from_group(group, DEVICE)
    assert mesh.mesh.tolist() == part
    got = funcol.all_gather_tensor(mine(rank, 6), 0, mesh)
    same(got.clone(), torch.cat(of_all(6, ranks=part)))
    dist.destroy_process_group(group)


def test_mesh_from_a_group():
    conforms(from_groups)


def refuses_meshes(rank):
    for shape, names in [((WORLD_SIZE + 1,), None), ((WORLD_SIZE,), ("a", "b"))]:
        with pytest.raises((RuntimeError, ValueError)):
            dist.init_device_mesh(DEVICE, shape, mesh_dim_names=names)
    with pytest.raises((RuntimeError, ValueError)):
        dist.init_device_mesh(DEVICE, (WORLD_SIZE, 1), mesh_dim_names=("a", "a"))


def test_meshes_that_cannot_be():
    conforms(refuses_meshes)


# -- Placements -----------------------------------------------------------------------------------

# Elements of the first dimension; not all of them can be divided by the number of ranks.
SIZES = [8, 5, 3, 1]


def whole(rows, columns=6, salt=0) -> torch.Tensor:
    return torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns) + salt


def part_of(tensor, rank, dim=0) -> torch.Tensor:
    """What Shard(dim) gives to `rank`, on the CPU."""
    length = -(-tensor.shape[dim] // WORLD_SIZE)
    start = min(rank * length, tensor.shape[dim])
    end = min(start + length, tensor.shape[dim])
    return tensor.narrow(dim, start, end - start).contiguous()


def distributes(rank, dim, rows):
    mesh = mesh_of(WORLD_SIZE)
    tensor = whole(rows) if dim == 0 else whole(rows).t().contiguous()
    given = here(tensor) if rank == 0 else torch.zeros(tensor.shape, device=DEVICE)
    sharded = distribute_tensor(given, mesh, [Shard(dim)])
    same(sharded.to_local(), part_of(tensor, rank, dim), "the part")
    same(sharded.full_tensor(), tensor, "the whole")
    same(distribute_tensor(given, mesh, [Replicate()]).to_local(), tensor, "replicated")


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("dim", [0, 1])
def test_distribute_tensor_from_rank_0(dim, rows):
    conforms(distributes, dim, rows)


def addend(rank, rows) -> torch.Tensor:
    return whole(rows, WORLD_SIZE * 2, salt=rank)


def locally(rank, placement, rows):
    """(DTensor of that placement, what it stands for)"""
    mesh = mesh_of(WORLD_SIZE)
    if isinstance(placement, Partial):
        total = sum(addend(peer, rows) for peer in range(WORLD_SIZE))
        if placement.reduce_op == "avg":
            total = total / WORLD_SIZE
        if placement.reduce_op == "max":
            total = addend(WORLD_SIZE - 1, rows)
        local = DTensor.from_local(here(addend(rank, rows)), mesh, [placement], run_check=False)
        return local, total
    tensor = addend(0, rows)
    return distribute_tensor(here(tensor), mesh, [placement]), tensor


SOURCES = [Shard(0), Shard(1), Replicate(), Partial(), Partial("avg"), Partial("max")]
TARGETS = [Shard(0), Shard(1), Replicate()]
CHANGES = [(a, b) for a, b in itertools.product(SOURCES, TARGETS) if a != b]


def redistributes(rank, source, target, rows):
    tensor, stands_for = locally(rank, source, rows)
    changed = tensor.redistribute(placements=[target])
    expected = stands_for if target == Replicate() else part_of(stands_for, rank, target.dim)
    same(changed.to_local(), expected, "what the rank has")
    same(changed.full_tensor(), stands_for, "the whole")


@pytest.mark.parametrize("rows", [8, 5])
@pytest.mark.parametrize(("source", "target"), CHANGES, ids=str)
def test_redistribute(source, target, rows):
    conforms(redistributes, source, target, rows)


def multiplies(rank, left, right):
    mesh = mesh_of(WORLD_SIZE)
    a, b = numbers(0, 8, 12), numbers(1, 12, 4)
    product = distribute_tensor(here(a), mesh, [left]) @ distribute_tensor(here(b), mesh, [right])
    same(product.full_tensor(), a @ b)


@pytest.mark.parametrize(
    ("left", "right"),
    [(Shard(0), Replicate()), (Shard(1), Shard(0)), (Replicate(), Shard(1)), (Shard(0), Shard(1))],
    ids=str,
)
def test_matmul_of_placements(left, right):
    conforms(multiplies, left, right)


def learns(rank):
    mesh = mesh_of(WORLD_SIZE)
    a, b = numbers(0, 8, 12), numbers(1, 12, 4).requires_grad_()
    shared = distribute_tensor(here(b.detach()), mesh, [Shard(0)]).requires_grad_()
    (distribute_tensor(here(a), mesh, [Shard(1)]) @ shared).sum().full_tensor().backward()
    (a @ b).sum().backward()
    same(shared.grad.full_tensor(), b.grad)


def test_gradients_of_distributed_tensors():
    conforms(learns)


def on_two_dimensions(rank):
    mesh = mesh_of(2, 2, names=NAMES)
    tensor = whole(7, 5)
    for placements in itertools.product([Shard(0), Shard(1), Replicate()], repeat=2):
        distributed = distribute_tensor(here(tensor), mesh, placements)
        same(distributed.full_tensor(), tensor, f"{placements}")
        for target in itertools.product([Shard(0), Replicate()], repeat=2):
            changed = distributed.redistribute(placements=target)
            same(changed.full_tensor(), tensor, f"{placements} to {target}")


def test_redistribute_on_two_dimensions():
    need_ranks(4)
    conforms(on_two_dimensions)


def computes(rank):
    mesh = mesh_of(WORLD_SIZE)
    tensor = whole(2 * WORLD_SIZE - 1)  # a rank has less than the others, and none has nothing
    sharded = distribute_tensor(here(tensor), mesh, [Shard(0)])
    same((sharded * 2 + 1).full_tensor(), tensor * 2 + 1, "by element")
    same(sharded.sum().full_tensor(), tensor.sum(), "a sum")
    same(sharded.sum(1).full_tensor(), tensor.sum(1), "of rows")
    same(sharded.mean(0).full_tensor(), tensor.mean(0), "a mean of columns")
    same(sharded.max().full_tensor(), tensor.max(), "a maximum")
    same(sharded.softmax(0).full_tensor(), tensor.softmax(0), "a softmax over the ranks")
    norm = torch.linalg.vector_norm(sharded)
    same(norm.full_tensor(), torch.linalg.vector_norm(tensor), "a norm")


def test_operators_of_distributed_tensors():
    conforms(computes)


def draws(rank):
    mesh = mesh_of(WORLD_SIZE)
    torch.manual_seed(rank)  # DTensor takes that of rank 0 for all
    sharded = torch.distributed.tensor.rand(6, 4, device_mesh=mesh, placements=[Replicate()])
    drawn = [torch.zeros(6, 4, device=DEVICE) for _ in range(WORLD_SIZE)]
    dist.all_gather(drawn, sharded.to_local())
    same(drawn, [drawn[0].cpu()] * WORLD_SIZE, "drawn by all ranks")
    assert sharded.device.type == device_of_rank().type


def test_random_numbers_of_replicated_tensors():
    need_cuda("DTensor keeps together the seeds of devices")
    conforms(draws)
