"""torch_symm.contiguous_view of DTensors: what is unsharded, what is refused."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import model
from errors import CALL_ERRORS, message_of
from harness import (
    DEVICE,
    expect_no_mismatch,
    run_ranks,
)
from symmetric import filled, granules, meet, pattern, use_symm, wrong_slices

pytestmark = pytest.mark.timeout(90)


def sharded(local, mesh, *placements, shape=None):
    extra = {} if shape is None else {"shape": shape, "stride": torch.empty(shape).stride()}
    return DTensor.from_local(local, mesh, placements, run_check=False, **extra)


def unsharded(rank):
    import torch_symm

    size, problems = dist.get_world_size(), []
    mesh = init_device_mesh(DEVICE, (size,))
    # With a gap after each rank's rows, dimension 0 stays split by owner.
    local = filled(6, 10)
    dtensor = sharded(local, mesh, Shard(0))
    view = torch_symm.contiguous_view(dtensor)
    meet()
    expected = torch.cat([pattern(60, r).view(6, 10) for r in range(size)])
    shapes = {(size, 6, 10), (size * 6, 10)}
    if tuple(view.shape) not in shapes or tuple(dtensor.shape) != (size * 6, 10):
        problems.append(f"{tuple(view.shape)} for {tuple(dtensor.shape)}")
    problems += model.mismatch("6 rows a rank", view.flatten(), expected.flatten())
    meet()
    view.view(size, 6, 10)[rank, 2, 3] = -1.0
    problems += [] if local[2, 3] == -1.0 else ["the view is a copy"]
    # One row a rank can always be said by strides.
    row = filled(1, 33, salt=2)
    view = torch_symm.contiguous_view(sharded(row, mesh, Shard(-2)))
    meet()
    expected = torch.stack([pattern(33, r, 2) for r in range(size)])
    problems += [] if tuple(view.shape) == (size, 33) else [f"one row: {tuple(view.shape)}"]
    problems += model.mismatch("1 row a rank", view.flatten(), expected.flatten())
    meet()
    view[rank, 5] = -2.0
    problems += [] if row[0, 5] == -2.0 else ["the view of rows is a copy"]
    meet()
    return problems


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_dtensor_is_unsharded(world_size):
    expect_no_mismatch(run_ranks(unsharded, world_size, fresh=True))


def unsharded_without_gaps(rank):
    """Rows that fill whole granules have the DTensor's own shape."""
    import torch_symm

    use_symm()
    size = dist.get_world_size()
    mesh = init_device_mesh(DEVICE, (size,))
    local = granules(3).view(12, -1)
    local.copy_(pattern(local.numel(), rank).view_as(local))
    dtensor = sharded(local, mesh, Shard(0))
    view = torch_symm.contiguous_view(dtensor)
    meet()
    problems = []
    if view.shape != dtensor.shape or not view.is_contiguous():
        problems.append(f"{tuple(view.shape)}, strides {view.stride()}")
    expected = torch.cat([pattern(local.numel(), r).view_as(local) for r in range(size)])
    problems += model.mismatch("rows", view.flatten(), expected.flatten())
    meet()
    return problems


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_dtensor_of_whole_granules_keeps_its_shape(world_size):
    expect_no_mismatch(run_ranks(unsharded_without_gaps, world_size, fresh=True))


def over_one_of_two_dimensions(rank):
    import torch_symm

    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("outer", "inner"))
    local, problems = filled(1, 20), []
    inner = [rank // 2 * 2, rank // 2 * 2 + 1]
    outer = [rank % 2, rank % 2 + 2]
    cases = [((Replicate(), Shard(0)), inner, "inner"), ((Shard(0), Replicate()), outer, "outer")]
    for placements, ranks, name in cases:
        dtensor = sharded(local, mesh, *placements)
        for group in (None, mesh.get_group(name)):
            view = torch_symm.contiguous_view(dtensor, group)
            meet()
            problems += wrong_slices(view, ranks, (20,), what=name)
    other = mesh.get_group("outer")
    dtensor = sharded(local, mesh, Replicate(), Shard(0))
    text = message_of(CALL_ERRORS, torch_symm.contiguous_view, dtensor, other)
    problems += [] if other.group_name in text and "mesh" in text else [text]
    meet()
    return problems


def test_a_dtensor_on_a_mesh_of_two_dimensions():
    expect_no_mismatch(run_ranks(over_one_of_two_dimensions, 4, fresh=True))


def bad_dtensors(rank):
    import torch_symm

    size = dist.get_world_size()
    mesh, square = init_device_mesh(DEVICE, (size,)), init_device_mesh(DEVICE, (2, size // 2))
    local = filled(4, 6)
    cases = {
        "dimension 0": sharded(local, mesh, Shard(1)),
        "several": sharded(local, square, Shard(0), Shard(0)),
        "no mesh": sharded(local, mesh, Replicate()),
        "Partial": sharded(local, mesh, Partial()),
        "rows": sharded(local, mesh, Shard(0), shape=(4 * size - 1, 6)),
        "symmetric": sharded(torch.zeros(4, 6, device=DEVICE), mesh, Shard(0)),
        "contiguous": sharded(local.t(), mesh, Shard(0)),
    }
    texts = {
        words: message_of(CALL_ERRORS, torch_symm.contiguous_view, case)
        for words, case in cases.items()
    }
    view = torch_symm.contiguous_view(sharded(local, mesh, Shard(0)))
    meet()
    expected = torch.cat([pattern(24, r) for r in range(size)])
    problems = model.mismatch("after refusals", view.flatten(), expected)
    meet()
    return problems + [f"{words}: {text}" for words, text in texts.items() if words not in text]


def test_dtensors_that_cannot_be_viewed():
    expect_no_mismatch(run_ranks(bad_dtensors, 4, fresh=True))


def test_rows_without_a_gap_are_joined():
    from torch_symm import views

    no_gap = torch.arange(24).view(2, 3, 4)
    joined = views._joined(no_gap)
    assert joined.shape == (6, 4)
    assert joined.data_ptr() == no_gap.data_ptr()
    gap = torch.arange(32).view(2, 16)[:, :12].view(2, 3, 4)
    assert views._joined(gap) is gap
    assert views._joined(gap[:1]).shape == (3, 4)
    assert views._joined(gap[:, :1]).shape == (2, 4)
    assert views._joined(gap[:, :1]).stride() == (16, 1)
    assert views._joined(torch.empty(2, 3, 0)).shape == (6, 0)
