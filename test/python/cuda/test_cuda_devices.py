"""Which GPU a rank sees and uses: only its own, several ranks one, the CPU and a GPU in one group,
and what is bound at set-up."""

import datetime
import os
import tempfile

import pytest
import torch
import torch.distributed as dist

import model
from harness import (
    BACKEND,
    GPUS,
    WORLD_SIZE,
    check,
    expect_no_mismatch,
    run_ranks,
)
from rank_processes import describe, run_processes

pytestmark = pytest.mark.cuda


def check_calls(rank, world, device):
    problems = []
    for count in (5, 5_003, 1_000_003):
        every = [model.make_input(torch.float32, count, r, count) for r in range(world)]
        tensor = every[rank].to(device, copy=True)
        dist.all_reduce(tensor)
        problems += model.mismatch(f"sum {count}", tensor, model.reduced(every, "SUM"))
        out = torch.full((world * count,), -1.0, device=device)
        dist.all_gather_into_tensor(out, every[rank].to(device))
        problems += model.mismatch(f"gathered {count}", out, torch.cat(every))
        received = torch.full((count,), -1.0, device=device)
        operations = [
            dist.P2POp(dist.isend, every[rank].to(device), (rank + 1) % world),
            dist.P2POp(dist.irecv, received, (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        problems += model.mismatch(f"message {count}", received, every[(rank - 1) % world])
    return problems


def visible_gpu(number: int) -> str:
    """What CUDA_VISIBLE_DEVICES must be for one of the GPUs that this test may use."""
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return given[number] if given else str(number)


def join(rank, world, path, **more):
    dist.init_process_group(
        BACKEND,
        store=dist.FileStore(path, world),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=30),
        **more,
    )


def sees_one(rank, world, path, gpu_of_rank):
    os.environ["CUDA_VISIBLE_DEVICES"] = visible_gpu(gpu_of_rank[rank])
    torch.cuda.set_device(0)
    join(rank, world, path)
    problems = [] if torch.cuda.device_count() == 1 else ["sees more than one GPU"]
    problems += check_calls(rank, world, "cuda:0")
    dist.destroy_process_group()
    return problems


def run_apart(body, world, *args):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        reports = run_processes(body, world, world, path, *args, time_limit=90)
    assert all(report.returned for report in reports), describe(reports)
    expect_no_mismatch([report.value for report in reports])


def test_each_rank_sees_only_its_own_gpu():
    run_apart(sees_one, WORLD_SIZE, [rank % GPUS for rank in range(WORLD_SIZE)])


@pytest.mark.gpus(2)
def test_ranks_see_their_gpus_in_another_order():
    """The number that a process gives a GPU says nothing: every one is 0 here."""
    run_apart(sees_one, 3, [1, 0, 1])


def on_one_gpu(rank, world, path):
    torch.cuda.set_device(0)
    join(rank, world, path)
    problems = check_calls(rank, world, "cuda:0")
    dist.destroy_process_group()
    return problems


@pytest.mark.parametrize("world", [2, 3])
def test_several_ranks_on_one_gpu(world):
    run_apart(on_one_gpu, world)


def bound_at_set_up(rank, world, path):
    """device_id: the group is connected when init returns; the first call may be a captured one."""
    device = torch.device("cuda", rank % GPUS)
    torch.cuda.set_device(device)
    join(rank, world, path, device_id=device)
    problems = []
    tensor = torch.full((1000,), rank + 1.0, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    graph.replay()
    total = world * (world + 1) / 2
    problems += model.mismatch("captured first", tensor, torch.full((1000,), total))
    problems += check_calls(rank, world, device)
    part = dist.split_group(split_ranks=[list(range(world))])
    tensor.fill_(rank + 1.0)
    dist.all_reduce(tensor, group=part)
    problems += model.mismatch("split", tensor, torch.full((1000,), total))
    dist.destroy_process_group()
    return problems


def test_a_group_bound_to_its_device():
    run_apart(bound_at_set_up, WORLD_SIZE)


def cpu_and_cuda(rank):
    """One group serves both, in any order, also at the same time."""
    problems = []
    for repeat in range(3):
        every = [model.make_input(torch.float32, 4001, r, repeat) for r in range(WORLD_SIZE)]
        expected = model.reduced(every, "SUM")
        on_cpu, on_gpu = every[rank].clone(), every[rank].cuda()
        order = [on_cpu, on_gpu] if repeat % 2 else [on_gpu, on_cpu]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in order]
        for work in works:
            work.wait()
        problems += model.mismatch(f"CPU {repeat}", on_cpu, expected)
        problems += model.mismatch(f"CUDA {repeat}", on_gpu, expected)
        found = [None] * WORLD_SIZE
        dist.all_gather_object(found, {"rank": rank, "repeat": repeat})
        if found != [{"rank": r, "repeat": repeat} for r in range(WORLD_SIZE)]:
            problems.append(f"objects: {found}")
    return problems


def test_cpu_and_cuda_tensors_in_one_group():
    check(cpu_and_cuda, WORLD_SIZE)


def beside_gloo(rank):
    """cpu:gloo,cuda:symm."""
    problems = check_calls(rank, WORLD_SIZE, "cuda")
    tensor = torch.full((5,), rank + 1.0)
    dist.all_reduce(tensor)
    total = WORLD_SIZE * (WORLD_SIZE + 1) / 2
    problems += model.mismatch("gloo", tensor, torch.full((5,), total))
    names = [
        dist.group.WORLD._get_backend(torch.device(kind)).name().lower() for kind in ("cpu", "cuda")
    ]
    return problems + ([] if names == ["gloo", "symm"] else [f"backends are {names}"])


def test_cuda_symm_beside_cpu_gloo():
    expect_no_mismatch(run_ranks(beside_gloo, WORLD_SIZE, backend="cpu:gloo,cuda:symm"))
