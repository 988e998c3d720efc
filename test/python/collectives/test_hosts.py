"""Groups over several hosts. Ranks of this machine say that they are on different ones
(SYMM_HOST_ID), so they share no memory over that line and Gloo carries what crosses it."""

import os
import signal
import tempfile
import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import calls
import model
from call import Call
from errors import ERRORS, message_of, unsaid
from harness import IS_SYMM, ON_CUDA, Setup, expect_no_mismatch
from hosts import check_on, every_reduction, is_refused, join, run_on
from random_programs import ANY_CALL, carry_out, examples, programs_over_hosts
from rank_processes import describe, start_ranks

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="of groups of symm"),
    pytest.mark.skipif(ON_CUDA, reason="test_cuda_hosts.py has CUDA tensors"),
]

LAYOUTS = ["aabb", "aab", "abc", "abab", "abba", "ab"]


def every_call(rank, hosts):
    everybody = list(range(len(hosts)))
    problems = []
    for collective in calls.EVERY_CALL:
        if is_refused(collective, "SUM", torch.float32, hosts):
            continue
        # In the heads, by the leaders and over rails.
        for count in (0, 1, 5, 1027, 70_001, 300_001):
            for async_op in (False, True):
                call = Call(
                    dist.group.WORLD, everybody, rank, count=count, async_op=async_op, salt=count
                )
                collective(call)
                problems += [f"{collective.__name__} {count} {line}" for line in call.finish()]
    return problems


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_every_call(hosts):
    check_on(hosts, every_call)


def other_engine():
    def make(store, rank, size, timeout):
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("other", make, devices=["cpu"])


@pytest.mark.parametrize("hosts", ["aabb", "abc"])
def test_every_call_over_an_engine_that_gets_no_memory_of_the_user(hosts):
    env = (("SYMM_INTER_HOST", "other"),)
    check_on(hosts, every_call, env=env, before_init=other_engine)


@pytest.mark.parametrize("hosts", ["aabb", "aab"])
def test_every_dtype_and_operator(hosts):
    check_on(hosts, every_reduction)


def calls_over_hosts(rank, hosts, groups, steps):
    world = len(hosts)

    def of_group(step):
        ranks = range(world) if step["group"] < 0 else groups[step["group"]]
        return [hosts[one] for one in ranks]

    steps = [
        step
        for step in steps
        if not is_refused(ANY_CALL[step["collective"]], step["op"], step["dtype"], of_group(step))
    ]
    return carry_out(rank, world, groups, steps)


@examples(10)
@given(programs_over_hosts(st.integers(2, 5)))
def test_random_programs_groups_and_layouts(program):
    check_on(program[0], calls_over_hosts, *program[1:])


def one_dies(rank, hosts, dead):
    dist.all_reduce(torch.ones(3))
    if rank == dead:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    text = ""
    while not text:
        try:
            dist.all_reduce(torch.ones(100_000))
        except ERRORS as error:
            text = str(error)
    spent = time.monotonic() - begin
    problems = unsaid(text, [f"rank {rank} on host", "host-a", "host-b", "all_reduce over hosts"])
    if spent > 6.0:
        problems.append(f"raised after {spent:.1f} s")
    return problems


@pytest.mark.parametrize(("hosts", "dead"), [("aabb", 3), ("aabb", 0), ("aab", 2)])
def test_every_rank_hears_of_a_death(hosts, dead):
    reports = run_on(hosts, one_dies, dead, timeout=5.0)
    left = [report for report in reports if report.rank != dead]
    assert all(report.returned for report in left), describe(reports)
    expect_no_mismatch([report.value for report in left])


def different_calls(rank, hosts):
    tensor = torch.ones(4 if rank < 2 else 5)
    text = message_of(ERRORS, dist.all_reduce, tensor)
    return unsaid(text, ["over hosts", "host-a"])


def test_different_calls_are_found():
    check_on("aabb", different_calls, timeout=5.0)


def other_count(first_host):
    dist.all_reduce(torch.ones(400_000 if first_host else 300_000))


def other_kind(first_host):
    if first_host:
        dist.all_reduce(torch.ones(400_000))
    else:
        dist.barrier()


def other_root(first_host):
    dist.broadcast(torch.ones(5_000_000), 0 if first_host else 1)


def other_share(first_host):
    rank = dist.get_rank()
    # What rank 3 expects of rank 0 alone.
    expected = [50_000 - 1_000 * (rank == 3 and peer == 0) for peer in range(4)]
    dist.all_to_all_single(torch.empty(sum(expected)), torch.ones(200_000), expected, [50_000] * 4)


def late_differences(rank, hosts, call):
    first_host = hosts[rank] == hosts[0]
    begin = time.monotonic()
    try:
        call(first_host)
        dist.barrier()  # where a rank's part of the call waits for nobody
    except ERRORS as error:
        return str(error), time.monotonic() - begin
    return "", 0.0


# Without heads: messages do not match, and ranks find out as they wait, long before the time-out.
@pytest.mark.parametrize("call", [other_count, other_kind, other_root, other_share])
def test_different_calls_without_heads_are_found(call):
    reports = run_on("aabb", late_differences, call, timeout=30.0)
    assert all(report.returned for report in reports), describe(reports)
    texts = [report.value[0] for report in reports]
    assert all("over hosts" in text for text in texts), texts
    named = [text for text in texts if "ranks made different calls" in text]
    assert any("host-a" in text and "host-b" in text for text in named), texts
    assert max(report.value[1] for report in reports) < 12.0, reports


def late_rank(rank, hosts):
    problems = []
    for late in (0, 3):
        if rank == late:
            time.sleep(1.0)
        tensor = torch.full((400_000,), float(rank))
        dist.all_reduce(tensor)
        problems += model.mismatch(f"behind rank {late}", tensor, torch.full((400_000,), 6.0))
    return problems


def test_a_rank_that_is_late_is_no_difference():
    check_on("aabb", late_rank, timeout=20.0)


def refusals(rank, hosts):
    import torch.distributed._symmetric_memory as symm_mem

    problems = []
    text = message_of(NotImplementedError, dist.recv, torch.ones(3))
    problems += unsaid(text, ["host-a", "host-b", "recv from any rank"])
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if hasattr(backend, "suspend"):
        text = message_of(NotImplementedError, backend.suspend)
        problems += unsaid(text, ["host-a", "host-b", r"suspend\(\)"])
    text = message_of(
        NotImplementedError, dist.all_reduce, torch.ones(3, dtype=torch.int8), dist.ReduceOp.AVG
    )
    problems += unsaid(text, ["AVG", "int8"])
    memory = symm_mem.empty(8, device="cpu")
    text = message_of(NotImplementedError, symm_mem.rendezvous, memory, dist.group.WORLD)
    problems += unsaid(text, ["symmetric memory", "host-a: ranks 0, 1; host-b: rank 2"])
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return problems + model.mismatch("after them", tensor, torch.full((3,), 3.0))


def test_what_is_refused():
    check_on("aab", refusals)


def in_the_host(rank, hosts):
    import torch.distributed._symmetric_memory as symm_mem

    import torch_symm

    local = torch_symm.local_group()
    mine = [one for one, host in enumerate(hosts) if host == hosts[rank]]
    problems = []
    if dist.get_process_group_ranks(local) != mine or torch_symm.local_group() is not local:
        problems.append(f"{dist.get_process_group_ranks(local)}, expected {mine}")
    if torch_symm.local_group(local) is not local:
        problems.append("the group of one host has another local group")
    memory = symm_mem.empty(4, device="cpu").fill_(rank)
    handle = symm_mem.rendezvous(memory, local)
    handle.barrier()
    for index, one in enumerate(mine):
        peer = handle.get_buffer(index, (4,), torch.float32)
        problems += model.mismatch(f"memory of rank {one}", peer, torch.full((4,), float(one)))
    handle.barrier()
    return problems


@pytest.mark.parametrize("hosts", ["aabb", "aba", "aa"])
def test_the_group_of_a_host(hosts):
    check_on(hosts, in_the_host)


def made_again(rank, hosts):
    import torch_symm

    mine = [one for one, host in enumerate(hosts) if host == hosts[rank]]
    problems = []
    for turn in range(3):
        local = torch_symm.local_group()
        if dist.get_process_group_ranks(local) != mine or torch_symm.local_group() is not local:
            problems.append(f"turn {turn}: {dist.get_process_group_ranks(local)}")
        tensor = torch.ones(1027)
        dist.all_reduce(tensor, group=local)
        problems += model.mismatch(f"turn {turn}", tensor, torch.full((1027,), float(len(mine))))
        dist.destroy_process_group(local)
    return problems


@pytest.mark.parametrize("hosts", ["aabb", "aba"])
def test_the_group_of_a_host_is_made_again_once_it_was_destroyed(hosts):
    check_on(hosts, made_again)


def layout_of(rank, hosts):
    import torch_symm

    expected = {}
    for one, host in enumerate(hosts):
        expected.setdefault(f"host-{host}", []).append(one)
    between = "gloo" if len(expected) > 1 else None
    wanted = {"hosts": expected, "inside_hosts": "symm", "between_hosts": between}
    wanted["gpus_between_hosts"] = None
    layout = torch_symm.host_layout()
    problems = [] if layout == {"group": "0", **wanted} else [f"{layout}, not {wanted}"]
    local = torch_symm.host_layout(torch_symm.local_group())
    mine = hosts.count(hosts[rank])
    if local["hosts"] != {f"host-{hosts[rank]}": list(range(mine))} or local["between_hosts"]:
        problems.append(f"the group of a host: {local}")
    return problems


@pytest.mark.parametrize("hosts", ["aab", "abba", "aa"])
def test_the_layout_is_told(hosts):
    check_on(hosts, layout_of)


SAYS_WHAT_IT_IS = """
import os, sys
import torch.distributed as dist
rank = int(sys.argv[1])
os.environ["SYMM_HOST_ID"] = "host-" + "aab"[rank]
dist.init_process_group("symm", store=dist.FileStore(sys.argv[2], 3), rank=rank, world_size=3)
dist.new_group([1, 2])
dist.barrier()
dist.destroy_process_group()
"""


def test_one_line_in_the_log_says_what_carries_each_leg(run_script):
    legs = "symm inside each and gloo between them"
    whole = f"over 2 hosts \\(host-a: ranks 0, 1; host-b: rank 2\\), {legs}"
    part = f"over 2 hosts \\(host-a: rank 0; host-b: rank 1\\), {legs}"
    results = run_script(SAYS_WHAT_IT_IS, world_size=3, env={"TORCH_CPP_LOG_LEVEL": "INFO"})
    for rank, result in enumerate(results):
        assert result.exit_code == 0, result.stderr
        lines = [line for line in result.stderr.splitlines() if "symm: group" in line]
        wanted = [['group "0"', f"rank {rank} of 3", whole]]
        if rank > 0:
            name = f"rank {rank - 1} \\(global rank {rank}\\) of 2"
            wanted.append([name, r"global ranks \[1, 2\]", part])
        assert len(lines) == len(wanted), result.stderr
        for line, words in zip(lines, wanted, strict=True):
            assert not unsaid(line, words), line


def refused_set_up(rank, setup, hosts, engines, words):
    os.environ["SYMM_INTER_HOST"] = engines[rank]
    text = message_of((*ERRORS, ValueError, NotImplementedError), join, rank, setup, hosts)
    return unsaid(text, words)


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        (["none"] * 3, ["host-a: ranks 0, 1; host-b: rank 2", "inter_host is none"]),
        (["mpi2"] * 3, ["host-b", "knows no backend 'mpi2'"]),
        (["gloo", "gloo", "none"], ["gloo on rank 0 on host host-a", "none on rank 2 on host"]),
        (["symm"] * 3, ["SYMM_INTER_HOST", "other than symm"]),
        (["cpu:gloo,gpu:nccl"] * 3, ["SYMM_INTER_HOST", "cpu:gloo,cuda:nccl"]),
        (["cuda:mpi2"] * 3, ["host-b", "knows no backend 'mpi2'"]),
    ],
)
def test_set_up_that_every_rank_refuses(engines, words):
    with tempfile.TemporaryDirectory(prefix="symm_test_") as folder:
        setup = Setup(os.path.join(folder, "store"), 3, timeout=5.0)
        reports = start_ranks(refused_set_up, 3, (setup, "aab", engines, words)).finish(60)
    assert all(report.returned for report in reports), describe(reports)
    expect_no_mismatch([report.value for report in reports])
