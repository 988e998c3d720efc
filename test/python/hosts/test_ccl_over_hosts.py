"""torch_symm.ccl in groups over several hosts: the group's own collectives, with an output and an
input; what needs symmetric memory of all ranks, or a plan, is of one host."""

import pytest
import torch
import torch.distributed as dist

import model
from ccl_calls import CPU, REDUCTIONS, Tensors, carry_out
from errors import message_of, unsaid
from harness import IS_SYMM, ON_CUDA
from hosts import check_on

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="of groups of symm"),
    pytest.mark.skipif(ON_CUDA, reason="test_cuda_hosts.py has CUDA tensors"),
]

# In the heads, by the leaders, and over rails in several chunks.
COUNTS = (0, 1, 1027, 70_001, 2_300_003)


def every_function(rank, hosts):
    from torch_symm import ccl

    everybody = list(range(len(hosts)))
    problems = []
    salt = 0
    for name in CPU:
        for count in COUNTS:
            for in_place in (False, True):
                if in_place and name == "all_to_all":
                    continue
                salt += 1
                late = salt % 3 == 0
                world = dist.group.WORLD
                c = Tensors(world, everybody, rank, count=count, salt=salt, async_op=late)
                config = (None, ccl.Config())[salt % 2]
                carry_out(c, name, config, in_place=in_place, strict=salt % 5 == 0)
                problems += [f"{name} {count} {in_place}: {line}" for line in c.finish()]
    ccl.device_barrier()
    ccl.device_barrier(device="cpu")
    return problems


@pytest.mark.parametrize("hosts", ["aabb", "aba", "abc"])
def test_every_function(hosts):
    check_on(hosts, every_function)


def every_operator(rank, hosts):
    everybody = list(range(len(hosts)))
    problems = []
    for name in REDUCTIONS:
        for op in model.OPS:
            for dtype in (torch.float32, torch.bfloat16, torch.int32):
                if not model.meaningful(op, dtype):
                    continue
                c = Tensors(dist.group.WORLD, everybody, rank, dtype=dtype, op=op, count=1027)
                carry_out(c, name, None)
                problems += [f"{name} {op} {dtype}: {line}" for line in c.finish()]
    return problems


def test_every_operator():
    check_on("aabb", every_operator)


def uneven_shares(rank, hosts):
    from torch_symm import ccl

    size = len(hosts)
    # Rank r sends (r + 1) * (to + 1) * 4000 values to rank `to`.
    to = [(rank + 1) * (other + 1) * 4000 for other in range(size)]
    came = [(other + 1) * (rank + 1) * 4000 for other in range(size)]
    given = torch.cat([torch.full((n,), 10.0 * rank + other) for other, n in enumerate(to)])
    got = torch.empty(sum(came))
    ccl.all_to_all(got, given, came, to)
    expected = torch.cat([torch.full((n,), 10.0 * other + rank) for other, n in enumerate(came)])
    return model.mismatch("all_to_all", got, expected)


def test_shares_of_different_sizes():
    check_on("aab", uneven_shares)


def refusals(rank, hosts):
    from torch_symm import ccl

    where = ["host-a: ranks 0, 1; host-b: rank 2", "one host"]
    tensor = torch.ones(1000)
    problems = []
    for config in (ccl.Config(algorithm="two_shot"), ccl.Config(chunk_bytes=16384)):
        text = message_of(NotImplementedError, ccl.all_reduce, tensor, tensor, config=config)
        problems += unsaid(text, ["a plan of its own", *where])
    text = message_of(NotImplementedError, ccl.make_workspace, 4000)
    problems += unsaid(text, where)
    text = message_of(ValueError, ccl.all_reduce, tensor[:3], tensor)
    problems += unsaid(text, ["output", "expected the shape of input"])
    ccl.all_reduce(tensor, tensor)
    return problems + model.mismatch("after them", tensor, torch.full((1000,), 3.0))


def test_what_needs_one_host():
    check_on("aab", refusals)


def in_the_host(rank, hosts):
    import torch_symm
    from torch_symm import ccl

    local = torch_symm.local_group()
    ranks = dist.get_process_group_ranks(local)
    workspace = ccl.make_workspace(4 * 1027, local)
    c = Tensors(local, ranks, ranks.index(rank), count=1027)
    config = ccl.Config(algorithm="two_shot")
    carry_out(c, "all_reduce", config, symmetric_in=True, workspace=workspace)
    return c.finish()


def test_a_plan_and_a_workspace_in_the_group_of_a_host():
    check_on("aabb", in_the_host)
