"""Unchanged training programs over several hosts learn what they learn over gloo."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from harness import IS_SYMM, ON_CUDA, WORLD_SIZE, run_ranks
from hosts import run_on
from rank_processes import describe
from training import FOUR_RANKS, Net, train, values

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="of groups of symm"),
    pytest.mark.skipif(ON_CUDA, reason="of tensors on the CPU; test_cuda_hosts.py has others"),
    FOUR_RANKS,
]


def ddp(rank):
    model = DDP(Net())
    train(model, rank)
    return values(model)


def fsdp(rank):
    model = Net()
    for layer in (model.up, model.down):
        fully_shard(layer)
    fully_shard(model)
    train(model, rank)
    return values(model)


def hsdp(rank):
    """Copies across the hosts of "aabb", shards inside each."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = Net()
    fully_shard(model, mesh=mesh)
    train(model, rank)
    return values(model)


def functional(rank):
    group = dist.group.WORLD
    x = torch.arange(8.0) + rank
    total = funcol.all_reduce(x, "sum", group)
    shard = funcol.reduce_scatter_tensor(x, "sum", 0, group)
    whole = funcol.all_gather_tensor(shard, 0, group)
    return {"total": total + 0, "whole": whole + 0}


def over_hosts(rank, hosts, program):
    return program(rank)


@pytest.mark.parametrize("hosts", ["aabb", "aaab", "abab"])
@pytest.mark.parametrize("program", [ddp, fsdp, hsdp, functional])
def test_learns_what_it_learns_over_gloo(program, hosts):
    reports = run_on(hosts, over_hosts, program)
    assert all(report.returned for report in reports), describe(reports)
    ours = [report.value for report in reports]
    theirs = run_ranks(program, WORLD_SIZE, backend="gloo", time_limit=100)[0]
    assert ours[0].keys() == theirs.keys()
    for name, tensor in theirs.items():
        for rank, result in enumerate(ours):
            assert torch.equal(result[name], ours[0][name]), f"rank {rank} differs in {name}"
        assert torch.allclose(ours[0][name], tensor, rtol=1e-5, atol=1e-5), name
