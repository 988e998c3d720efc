"""Ranks of this machine that say that they are on different hosts, and the sequential model there.

`hosts` has a letter for each rank: "aab" is two ranks on host-a and one on host-b.
"""

import os
import tempfile

import torch
import torch.distributed as dist

import calls
import model
from call import Call
from harness import Setup, expect_no_mismatch
from rank_processes import describe, start_ranks

NARROW_INTS = (torch.int8, torch.uint8, torch.int16)


def is_refused(call, step_op, dtype, hosts) -> bool:
    """What a group over several hosts has not got."""
    if len(set(hosts)) == 1:
        return False
    if call is calls.recv_any_source:
        return True
    return call in calls.REDUCTIONS and step_op == "AVG" and dtype in NARROW_INTS


def reduced_over_hosts(contributions, op, hosts):
    """The sequential model of each host, then of the hosts in the order of their first ranks."""
    partial = []
    for host in dict.fromkeys(hosts):
        mine = [tensor for tensor, of in zip(contributions, hosts, strict=True) if of == host]
        factors = [model.premul_factor(rank) for rank, of in enumerate(hosts) if of == host]
        if op == "PREMUL_SUM":
            wide = model._accumulate_dtype(mine[0].dtype, op)
            total = None
            for tensor, factor in zip(mine, factors, strict=True):
                term = model._scaled(tensor.to(wide), factor, torch.mul)
                total = term if total is None else total + term
            partial.append(total.to(mine[0].dtype))
        else:
            partial.append(model.reduced(mine, "SUM" if op == "AVG" else op))
    if op != "AVG":
        return model.reduced(partial, "SUM" if op == "PREMUL_SUM" else op)
    dtype = partial[0].dtype
    wide = model._accumulate_dtype(dtype, op)
    total = partial[0].to(wide)
    for tensor in partial[1:]:
        total = total + tensor.to(wide)
    if dtype in model.INTS:
        return torch.div(total, len(hosts), rounding_mode="trunc").to(dtype)
    return model._scaled(total, len(hosts), torch.div).to(dtype)


def join(rank, setup, hosts):
    """The model of reductions becomes that of `hosts`."""
    torch.set_num_threads(1)
    os.environ["SYMM_HOST_ID"] = "host-" + hosts[rank]

    def expected(call, count=None, part=0):
        every = [call.content(one, count, part) for one in range(call.size)]
        of_group = [hosts[rank] for rank in call.ranks]
        if len(set(of_group)) == 1:
            return model.reduced(every, call.op)
        return reduced_over_hosts(every, call.op, of_group)

    Call.expected_reduction = expected
    setup.join(rank)


def in_group(rank, setup, hosts, function, args):
    join(rank, setup, hosts)
    value = function(rank, hosts, *args)
    dist.destroy_process_group()
    return value


def run_on(hosts, function, *args, timeout=20.0, time_limit=100.0, **fields):
    """The reports of `function(rank, hosts, *args)` in a group with rank r on hosts[r]."""
    with tempfile.TemporaryDirectory(prefix="symm_test_") as folder:
        setup = Setup(os.path.join(folder, "store"), len(hosts), timeout=timeout, **fields)
        ranks = start_ranks(in_group, len(hosts), (setup, hosts, function, args))
        return ranks.finish(time_limit)


def check_on(hosts, function, *args, **settings):
    reports = run_on(hosts, function, *args, **settings)
    assert all(report.returned for report in reports), describe(reports)
    expect_no_mismatch([report.value for report in reports])


def every_reduction(rank, hosts):
    everybody = list(range(len(hosts)))
    problems = []
    for dtype in model.DTYPES:
        for op in model.OPS:
            for collective in (calls.all_reduce, calls.reduce, calls.reduce_scatter):
                if not calls.accepts(collective, op, dtype):
                    continue
                if is_refused(collective, op, dtype, hosts):
                    continue
                call = Call(
                    dist.group.WORLD, everybody, rank, dtype=dtype, op=op, count=1027, salt=3
                )
                collective(call)
                what = f"{collective.__name__} {op} {dtype}"
                problems += [f"{what} {line}" for line in call.finish()]
    return problems
