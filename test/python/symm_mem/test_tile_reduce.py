"""torch.ops.symm_mem.tile_reduce and multi_root_tile_reduce: sums of parts of matrices."""

import pytest
import torch
import torch.distributed as dist

import model
from errors import message_of, unsaid
from harness import ON_CUDA, check, device_of_rank
from operators import GROUPS, ops
from symmetric import allocate, destroy, member_of_each, use_symm

pytestmark = pytest.mark.timeout(90)

FULL = 18
POISON = -77.0
TILES = {
    "quadrant": lambda full: full[9:, 9:],
    "whole": lambda full: full,
    "some rows": lambda full: full[3:8],
    "one column": lambda full: full[:, 5:6],
    "transposed": lambda full: full.t()[2:7, :11],
    "every other": lambda full: full[::2, 1::3],
    "nothing": lambda full: full[4:4],
}
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
    torch.float8_e5m2,
    torch.int8,
    torch.int64,
]


def matrix(rank: int, salt: int, dtype) -> torch.Tensor:
    """Inputs whose sums depend on the order and on where they are rounded."""
    return model.make_input(dtype, FULL * FULL, rank, salt).view(FULL, FULL)


def summed(ranks, salt: int, dtype) -> torch.Tensor:
    parts = [matrix(rank, salt, dtype).flatten() for rank in ranks]
    return model.reduced(parts, "SUM").view(FULL, FULL)


def to_one_root(rank, lists, dtype):
    use_symm()
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        given, out = allocate(FULL, FULL, dtype=dtype), allocate(FULL, FULL, dtype=dtype)
        for salt, (what, tile) in enumerate(TILES.items()):
            for root in range(len(ranks)):
                given.copy_(matrix(rank, salt, dtype))
                out.fill_(POISON)
                expected = torch.full((FULL, FULL), POISON, dtype=dtype)
                if ranks[root] == rank:
                    tile(expected).copy_(tile(summed(ranks, salt, dtype)))
                ops.tile_reduce(tile(given), tile(out), root, group.group_name)
                where = f"{what} to {root} of {ranks}"
                problems += model.mismatch(where, out, expected)
                problems += model.mismatch(f"{where}: input", given, matrix(rank, salt, dtype))
    destroy(groups)
    return problems


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("world_size", GROUPS)
def test_tile_reduce(world_size, dtype):
    check(to_one_root, world_size, GROUPS[world_size], dtype)


def to_several_roots(rank, lists, dtype):
    """A quarter of the matrix to each of up to four ranks, repeatedly."""
    use_symm()
    parts = [slice(0, 9), slice(9, 18)]
    quadrants = [(rows, columns) for rows in parts for columns in parts]
    groups, problems = member_of_each(lists), []
    for group, ranks in groups:
        given, out = allocate(FULL, FULL, dtype=dtype), allocate(FULL, FULL, dtype=dtype)
        for salt in range(6):
            roots = [(number + salt) % len(ranks) for number in range(len(ranks))][: 1 + salt]
            tiles = [given[quadrants[number]] for number in range(len(roots))]
            given.copy_(matrix(rank, salt, dtype))
            out.fill_(POISON)
            expected = torch.full((FULL, FULL), POISON, dtype=dtype)
            me = ranks.index(rank)
            place = quadrants[roots.index(me)] if me in roots else quadrants[0]
            if me in roots:
                expected[place] = summed(ranks, salt, dtype)[place]
            ops.multi_root_tile_reduce(tiles, out[place], roots, group.group_name)
            problems += model.mismatch(f"call {salt} of {ranks}", out, expected)
    destroy(groups)
    return problems


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", DTYPES, ids=model.name)
@pytest.mark.parametrize("world_size", GROUPS)
def test_multi_root_tile_reduce(world_size, dtype):
    check(to_several_roots, world_size, GROUPS[world_size], dtype)


def in_place(rank):
    """The root's result may take the place of its input; other ranks' input stays."""
    use_symm()
    ranks, name = range(dist.get_world_size()), dist.group.WORLD.group_name
    given = allocate(FULL, FULL)
    given.copy_(matrix(rank, 1, torch.float32))
    ops.tile_reduce(given[:, 3:9], given[:, 3:9], 1, name)
    expected = matrix(rank, 1, torch.float32)
    if rank == 1:
        expected[:, 3:9] = summed(ranks, 1, torch.float32)[:, 3:9]
    return model.mismatch("in place", given, expected)


def test_in_place():
    check(in_place, 3)


def refused(rank):
    use_symm()
    name, problems = dist.group.WORLD.group_name, []
    given, out = allocate(6, 6), allocate(6, 6)
    out.fill_(POISON)

    def one(parts, tile=given, result=out, root=0, op="sum", kind=RuntimeError):
        nonlocal problems
        problems += unsaid(message_of(kind, ops.tile_reduce, tile, result, root, name, op), parts)

    def several(parts, tiles=(given,), result=out, roots=(0,), op="sum"):
        nonlocal problems
        call = ops.multi_root_tile_reduce
        text = message_of(RuntimeError, call, list(tiles), result, list(roots), name, op)
        problems += unsaid(text, parts)

    one(["tile_reduce: reduce_op must be 'sum'", "got 'max'"], op="max")
    one(["root must be a rank of the group, 0 to 2, got 3"], root=3)
    one(["root must be a rank", "got -1"], root=-1)
    one(["in_tile must have two dimensions"], tile=given[0])
    one(["out_tile must have two dimensions"], result=out[0])
    one(["out_tile must have the shape of in_tile"], result=out[:5])
    one(["out_tile must have the strides of in_tile"], result=out.t())
    one(["out_tile must have the dtype of in_tile"], result=allocate(6, 6, dtype=torch.float64))
    one(["in_tile must be in symmetric memory"], tile=torch.zeros(6, 6, device=device_of_rank()))
    if ON_CUDA:
        one(["out_tile must be on the device of in_tile, cuda"], result=torch.zeros(6, 6))
    several(["multi_root_tile_reduce: reduce_op must be 'sum'"], op="avg")
    several(["roots must have one rank for each tile"], roots=(0, 1))
    several(["roots must have one rank for each tile"], tiles=(), roots=())
    several(["roots must name a rank once at most, got 1 twice"], (given, given), roots=(1, 1))
    several(["roots must be ranks of the group, 0 to 2, got 7"], roots=(7,))
    several(["each tile of in_tiles must have two dimensions"], tiles=(given[0],))
    several(
        ["each tile of in_tiles must be in symmetric"],
        tiles=(torch.zeros(6, 6, device=device_of_rank()),),
    )
    if rank != 0:
        return problems  # who is no root has no tile to compare
    several(["out_tile must have the shape of this rank's tile"], result=out[:5])
    return problems + model.mismatch("out", out, torch.full((6, 6), POISON))


def test_refused():
    check(refused, 3)
