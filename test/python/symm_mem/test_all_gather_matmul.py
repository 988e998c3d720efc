"""The example that multiplies by weights on other ranks, against all_gather and a product."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from harness import DEVICE, IS_SYMM, run_ranks
from programs import run_script_on_ranks

pytestmark = pytest.mark.timeout(120)

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "all_gather_matmul.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("symm_all_gather_matmul", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both_ways(rank, batch, rows, features, dtype):
    example = load_example()
    torch.backends.cuda.matmul.allow_tf32 = False
    result = example.compare(batch, rows, features, dtype, DEVICE, 1)
    return result["difference"], result["allowed"]


SHAPES = [(1, 1, 1), (7, 5, 33), (70, 65, 257), (64, 128, 64)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("world_size", [2, 3])
def test_it_gives_what_all_gather_gives(world_size, shape, dtype):
    for difference, allowed in run_ranks(both_ways, world_size, *shape, dtype):
        assert difference <= allowed


def with_a_wrong_row(rank):
    """The check of the example sees a single row that comes from another rank."""
    import torch_symm

    example = load_example()
    shard = example.shard_of_weight(6, 40, torch.float32, DEVICE)
    weight = torch_symm.contiguous_view(shard)
    dist.barrier()
    x = torch.ones(3, 40, device=DEVICE)
    expected = example.linear_by_all_gather(x, shard)
    swapped = weight.clone()
    swapped[0, 5], swapped[1, 5] = weight[1, 5], weight[0, 5]
    wrong = (example.linear_over_shards(x, swapped) - expected).abs() > 1e-4
    dist.barrier()
    return wrong.any(dim=0).nonzero().flatten().tolist()


def test_rows_come_from_their_owners():
    assert run_ranks(with_a_wrong_row, 2, fresh=True) == [[5, 11]] * 2


@pytest.mark.skipif(not IS_SYMM, reason="the program names symm")
def test_the_program_runs():
    options = ["--device", DEVICE, "--batch", "5", "--rows", "9", "--repeats", "2"]
    first, second = run_script_on_ranks(EXAMPLE, 2, *options)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "through the view" in first.stdout
