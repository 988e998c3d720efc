"""CUDA tensors in groups over several hosts. Ranks of this machine say that they are on different
ones (SYMM_HOST_ID). Where ranks of different hosts share a GPU, Gloo carries what crosses hosts,
through the CPU's memory; where each host has GPUs of its own, NCCL does."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import calls
import model
import training
from call import Call
from errors import ERRORS, message_of, unsaid
from harness import DEVICE, GPUS, IS_SYMM, ON_CUDA
from hosts import check_on, every_reduction, run_on
from rank_processes import describe

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="of groups of symm"),
    pytest.mark.skipif(not ON_CUDA, reason="of CUDA tensors"),
    pytest.mark.cuda,
]

# NCCL's multicast is never used here.
ENV = (("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"))
TIMES = {"timeout": 60.0, "time_limit": 280.0}


def use(gpu):
    """A device mesh leaves the choice to those that have begun to use theirs."""
    torch.cuda.set_device(gpu)
    torch.cuda.init()


def check_staged(hosts, function, *args, **settings):
    """On one GPU, through the CPU's memory: rank r says that it is on hosts[r]."""
    check_on(hosts, on_one_gpu, function, args, env=ENV, **{**TIMES, **settings})


def on_one_gpu(rank, hosts, function, args):
    use(0)
    return function(rank, hosts, *args)


# Rank r is on GPU r % 2, and so is its host: ranks of different hosts are on different GPUs.
NCCL_LAYOUTS = ["ab", "abab"]


def needs_two_gpus(test):
    """Beside many others each call waits until the two GPUs serve one group at the same time."""
    test = pytest.mark.uncrowded(pytest.mark.timeout(300)(test))
    return pytest.mark.skipif(GPUS < 2, reason="NCCL needs two GPUs")(test)


def check_nccl(hosts, function, *args, **settings):
    env = (*ENV, ("SYMM_INTER_HOST", "cpu:gloo,cuda:nccl"))
    check_on(hosts, on_gpu_of_host, function, args, env=env, **{**TIMES, **settings})


def on_gpu_of_host(rank, hosts, function, args):
    use(sorted(set(hosts)).index(hosts[rank]) % GPUS)
    return function(rank, hosts, *args)


# Empty, small, whole shares, several chunks; odd, so that shares differ.
COUNTS = (0, 1, 5, 1027, 70_001, 2_500_003)
FIRST = (
    calls.all_reduce,
    calls.all_gather_into_tensor,
    calls.reduce_scatter_tensor,
    calls.broadcast,
)


def some_calls(rank, hosts, functions, counts, ways=2):
    """With ways=1 every second call is asynchronous, with 2 each is made in both ways."""
    everybody = list(range(len(hosts)))
    problems, number = [], 0
    for function in functions:
        for count in counts:
            for _ in range(ways):
                async_op, number = number % 2 == 1, number + 1
                c = Call(
                    dist.group.WORLD, everybody, rank, count=count, async_op=async_op, salt=count
                )
                function(c)
                problems += [f"{function.__name__} {count} {line}" for line in c.finish()]
    return problems


@pytest.mark.parametrize("hosts", ["ab", "aabb", "aab", "abc", "abba"])
def test_first_collectives_staged(hosts):
    check_staged(hosts, some_calls, FIRST, COUNTS)


@needs_two_gpus
@pytest.mark.parametrize("hosts", NCCL_LAYOUTS)
def test_first_collectives_over_nccl(hosts):
    check_nccl(hosts, some_calls, FIRST, COUNTS)


EVERY_CALL = [one for one in calls.EVERY_CALL if one is not calls.recv_any_source]


@pytest.mark.parametrize("hosts", ["aabb", "aab", "abc"])
def test_every_call_staged(hosts):
    check_staged(hosts, some_calls, EVERY_CALL, (0, 5, 1027, 300_001))


@needs_two_gpus
@pytest.mark.parametrize("hosts", NCCL_LAYOUTS)
def test_every_call_over_nccl(hosts):
    check_nccl(hosts, some_calls, EVERY_CALL, (0, 5, 300_001), 1)


@pytest.mark.parametrize("hosts", ["aabb", "abc"])
def test_every_dtype_and_operator_staged(hosts):
    check_staged(hosts, every_reduction)


@needs_two_gpus
def test_every_dtype_and_operator_over_nccl():
    check_nccl("abab", every_reduction)


def capture_is_refused(rank, hosts):
    tensor = torch.ones(1000, device=DEVICE)
    dist.all_reduce(tensor)
    graph = torch.cuda.CUDAGraph()

    def capture():
        with torch.cuda.graph(graph):
            dist.all_reduce(tensor)

    text = message_of(NotImplementedError, capture)
    problems = unsaid(text, ["gloo", "cannot be captured"])
    torch.cuda.synchronize()
    dist.all_reduce(tensor)
    if tensor[0].item() != len(hosts) ** 2:
        problems.append(f"the group is broken: {tensor[0].item()}")
    return problems


def test_capture_is_refused_where_messages_are_staged():
    check_staged("aabb", capture_is_refused)


def captured(rank, hosts):
    world = len(hosts)
    problems = []
    for count, replays in ((1000, 3), (3_000_001, 1)):
        mine = torch.zeros(count, device=DEVICE)
        all_of = torch.zeros(count * world, device=DEVICE)
        part = torch.zeros(count, device=DEVICE)

        def step(mine=mine, all_of=all_of, part=part):
            dist.all_gather_into_tensor(all_of, mine)
            dist.reduce_scatter_tensor(part, all_of)
            dist.all_reduce(mine)
            dist.broadcast(part, src=world - 1)

        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for replay in range(replays):
            mine.fill_(rank + replay)
            part.fill_(-1)
            graph.replay()
            gathered = torch.cat([torch.full((count,), float(r + replay)) for r in range(world)])
            total = float(sum(r + replay for r in range(world)))
            last = torch.full((count,), float(world * (world - 1 + replay)))
            problems += model.mismatch(f"all_gather {count}", all_of, gathered)
            problems += model.mismatch(f"all_reduce {count}", mine, torch.full((count,), total))
            problems += model.mismatch(f"reduce_scatter {count}", part, last)
    return problems


@needs_two_gpus
@pytest.mark.parametrize("hosts", NCCL_LAYOUTS)
def test_replays(hosts):
    check_nccl(hosts, captured)


def subgroups(rank, hosts):
    problems = []
    for ranks in ([0, 1], [2, 3], [0, 2], [1, 3], [0, 1, 3], [3, 0, 2]):
        ranks = sorted(ranks)
        group = dist.new_group(ranks)
        if rank not in ranks:
            continue
        for function in (calls.all_reduce, calls.all_gather, calls.reduce_scatter):
            c = Call(group, ranks, ranks.index(rank), count=70_001, salt=1)
            function(c)
            problems += [f"{ranks} {function.__name__} {line}" for line in c.finish()]
    return problems


@pytest.mark.parametrize("hosts", ["aabb", "abab"])
def test_groups_of_any_ranks_staged(hosts):
    check_staged(hosts, subgroups)


@needs_two_gpus
def test_groups_of_any_ranks_over_nccl():
    check_nccl("abab", subgroups)


def one_dies(rank, hosts, dead):
    tensor = torch.ones(3, device=DEVICE)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == dead:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    text = ""
    large = torch.ones(1_000_000, device=DEVICE)
    while not text:
        try:
            dist.all_reduce(large)
            torch.cuda.synchronize()
        except ERRORS as error:
            text = str(error)
    spent = time.monotonic() - begin
    return [f"raised after {spent:.1f} s: {text}"] if spent > 12.0 else []


def check_death(prepare, env, hosts, dead):
    reports = run_on(hosts, prepare, one_dies, (dead,), env=env, timeout=10.0, time_limit=90.0)
    for rank, report in enumerate(reports):
        if rank != dead:
            assert report.returned, describe(reports)
            assert report.value == [], report.value


@pytest.mark.parametrize("dead", [0, 3])
def test_every_rank_hears_of_a_death_staged(dead):
    check_death(on_one_gpu, ENV, "aabb", dead)


@needs_two_gpus
@pytest.mark.parametrize("dead", [0, 3])
def test_every_rank_hears_of_a_death_over_nccl(dead):
    env = (*ENV, ("SYMM_INTER_HOST", "cpu:gloo,cuda:nccl"))
    check_death(on_gpu_of_host, env, "abab", dead)


def one_step(model_of, rank, world):
    """Names of parameters that differ from one process's step over the batches of all ranks."""
    rate = 0.1
    net = training.Net().to(DEVICE)
    wrapped = model_of(net)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=rate)
    x, y = training.batch(rank, 0)
    F.mse_loss(wrapped(x), y).backward()
    optimizer.step()
    alone = training.Net().to(DEVICE)
    losses = [F.mse_loss(alone(x), y) for x, y in (training.batch(r, 0) for r in range(world))]
    torch.stack(losses).mean().backward()
    torch.optim.SGD(alone.parameters(), lr=rate).step()
    expected = training.values(alone)
    return [
        f"{name} differs by {(value - expected[name]).abs().max().item()}"
        for name, value in training.values(wrapped).items()
        if not torch.allclose(value, expected[name], rtol=1e-4, atol=1e-5)
    ]


def train_by(rank, hosts, how):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    world = len(hosts)
    if how == "ddp":
        return one_step(DistributedDataParallel, rank, world)
    if how == "fsdp":
        mesh = init_device_mesh("cuda", (world,))
    else:
        # Shards inside a host where its ranks follow each other, replicas across hosts.
        mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    return one_step(lambda net: fully_shard(net, mesh=mesh), rank, world)


@pytest.mark.parametrize("how", ["ddp", "fsdp", "hsdp"])
def test_training_staged(how):
    check_staged("aabb", train_by, how)


@needs_two_gpus
@pytest.mark.parametrize("how", ["ddp", "fsdp", "hsdp"])
def test_training_over_nccl(how):
    check_nccl("abab", train_by, how)


def told(rank, hosts, expected):
    import torch_symm

    layout = torch_symm.host_layout()
    before = layout["gpus_between_hosts"]
    dist.all_reduce(torch.ones(3, device=DEVICE))
    after = torch_symm.host_layout()["gpus_between_hosts"]
    return [] if (before, after) == (None, expected) else [f"told {before}, then {after}"]


def test_what_carries_cuda_tensors_is_told():
    check_staged("aabb", told, "gloo through the CPU's memory")


@needs_two_gpus
def test_nccl_is_told():
    check_nccl("abab", told, "nccl")


def refused(rank, hosts):
    text = message_of(NotImplementedError, dist.all_reduce, torch.ones(3, device=DEVICE))
    return unsaid(text, ["are on one GPU", "nccl refuses", "host-a", "host-b"])


def test_nccl_by_name_is_refused_where_hosts_share_a_gpu():
    env = (*ENV, ("SYMM_INTER_HOST", "nccl"))
    check_on("ab", on_one_gpu, refused, (), env=env, **TIMES)
