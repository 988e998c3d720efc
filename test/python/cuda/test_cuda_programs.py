"""Programs that were written for NCCL, over symm: scripts that name it, by `torch_symm.run` and by
the variable, and FSDP2 with its staging tensors in memory of SymmetricMemory."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from harness import GPUS, IS_SYMM
from programs import run_module_on_hosts
from training import STEPS, Net, device_type, here, same_as_the_reference, train, values

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not IS_SYMM, reason="names symm itself")]

SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

named, number = sys.argv[1:]
rank, gpu = int(os.environ["RANK"]), int(os.environ["RANK"]) % int(number)
torch.cuda.set_device(gpu)
options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True) if named == "nccl" else None
dist.init_process_group(named, device_id=torch.device("cuda", gpu), pg_options=options)
model = DDP(torch.nn.Linear(3, 2).cuda(), device_ids=[gpu])
model(torch.full((4, 3), rank + 1.0, device="cuda")).sum().backward()
total = torch.full((5,), rank + 1.0, device="cuda")
dist.all_reduce(total, group=dist.new_group([0, 1], backend=named))
told = [None, None]
dist.all_gather_object(told, [
    type(dist.group.WORLD._get_backend(torch.device("cuda"))).__name__,
    model.module.weight.grad.tolist(),
    total.tolist(),
])
if rank == 0:
    print(json.dumps(told))
dist.destroy_process_group()
"""
# Four rows of ones on rank 0 and of twos on rank 1, on average.
EXPECTED = [["ProcessGroupSymm", [[6.0] * 3] * 2, [3.0] * 5]] * 2


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.parametrize("named", ["nccl", "NCCL", "cpu:gloo,cuda:nccl"])
def test_a_script_that_names_nccl_gets_symm(script, named):
    options = ["--replace", "nccl", script, named, str(GPUS)]
    results = run_module_on_hosts("torch_symm.run", ["here", "here"], *options)
    for result in results:
        assert result.returncode == 0, result.stderr
    assert json.loads(results[0].stdout) == EXPECTED


def test_torchrun_with_the_variable_alone(script):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, script, "nccl", str(GPUS)],
        env={**os.environ, "SYMM_REPLACE_BACKEND": "nccl"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == EXPECTED


class _Staging:
    """As FSDP2's set_symm_mem_for_comm, which torch 2.11 does not have, allocates and meets."""

    def __init__(self, staged):
        self.staged = staged

    def allocate(self, size, *, dtype, device):
        with torch.cuda.use_mem_pool(symm_mem.get_mem_pool(device)):
            return torch.empty(size, dtype=dtype, device=device)

    def meet(self, group, *tensors):
        for tensor in tensors:
            symm_mem.rendezvous(tensor, group=group.group_name)
        self.staged.extend(tensors)


class StagedAllGather(_Staging, AllGather):
    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        self.meet(group, output_tensor)  # the input is a part of it
        return dist.all_gather_into_tensor(
            output_tensor, input_tensor, group=group, async_op=async_op
        )


class StagedReduceScatter(_Staging, ReduceScatter):
    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        self.meet(group, input_tensor, output_tensor)
        return dist.reduce_scatter_tensor(
            output=output_tensor, input=input_tensor, group=group, op=op, async_op=async_op
        )


def _learns(rank, prepare):
    """What a model learns whose parts `prepare` has given another way to communicate."""
    model = here(Net())
    mesh = init_device_mesh(device_type(), (dist.get_world_size(),))
    for layer in (model.up, model.down, model):
        prepare(fully_shard(layer, mesh=mesh))
    train(model, rank, torch.optim.SGD(model.parameters(), lr=0.05))
    return values(model)


def _is_over_symm():
    return dist.get_backend() == "symm"


def test_fsdp2_with_staging_tensors_out_of_the_providers_pool():
    def body(rank):
        import torch_symm

        staged = []

        def prepare(layer):
            if _is_over_symm():
                layer.set_custom_all_gather(StagedAllGather(staged))
                layer.set_custom_reduce_scatter(StagedReduceScatter(staged))

        if _is_over_symm():
            symm_mem.set_backend("SYMM")
        learned = _learns(rank, prepare)
        if _is_over_symm():
            assert len(staged) >= 2 * STEPS
            assert all(torch_symm.is_symmetric(tensor) for tensor in staged)
        return learned

    same_as_the_reference(body)


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_symm_mem_for_comm"), reason="newer than this torch"
)
def test_fsdp2_with_symmetric_memory_for_communication():
    def body(rank):
        def prepare(layer):
            if _is_over_symm():
                layer.set_symm_mem_for_comm("SYMM")

        return _learns(rank, prepare)

    same_as_the_reference(body)
