"""Groups of any ranks, made in every way torch.distributed has, destroyed and made again."""

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import model
from errors import unsaid
from harness import (
    BACKEND,
    DEVICE,
    IS_SYMM,
    ON_CUDA,
    Setup,
    crowded,
    expect_no_mismatch,
    new_group_in_order,
    resources,
    run_ranks,
    synchronize,
    use_device,
)
from machine import Pace
from rank_processes import describe, run_processes

CHOICES_OF_RANKS = [
    [[0, 1], [2, 3]],
    [[0, 2], [1, 3]],
    [[1, 2]],
    [[3, 0, 2]],
    [[3, 2, 1, 0]],
    [[0], [1], [2], [3]],
    [[0, 1], [1, 2], [2, 3], [0, 3]],
]


def check_sum(group, ranks, what="", count=1027, salt=0):
    """One all_reduce over `group`, whose global ranks by group rank are `ranks`."""
    me = ranks.index(dist.get_rank())
    every = [model.make_input(torch.float32, count, r, salt) for r in ranks]
    tensor = every[me].to(DEVICE, copy=True)
    dist.all_reduce(tensor, group=group)
    return model.mismatch(what or str(ranks), tensor, model.reduced(every, "SUM"), exact=IS_SYMM)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lists", CHOICES_OF_RANKS, ids=str)
def test_new_group(lists):
    def body(rank):
        problems = []
        groups = [new_group_in_order(ranks) for ranks in lists]
        for repeat in range(3):
            for group, ranks in groups:
                if rank in ranks:
                    problems += check_sum(group, ranks, salt=repeat)
                    if dist.get_rank(group) != ranks.index(rank):
                        problems.append(f"rank {rank} is {dist.get_rank(group)} of {ranks}")
            problems += check_sum(None, [0, 1, 2, 3], salt=repeat)
        return problems

    expect_no_mismatch(run_ranks(body, 4, fresh=True))


@pytest.mark.sampled(2)
@pytest.mark.skipif(not IS_SYMM, reason="gloo cannot split a group")
@pytest.mark.parametrize("lists", [[[0, 1], [2, 3]], [[2, 0], [3, 1]], [[1, 3]], [[2]]], ids=str)
def test_split_group(lists):
    """ProcessGroup.split_group: dist.split_group() itself refuses where there is no accelerator."""

    def body(rank):
        world, problems = dist.group.WORLD, []
        for repeat in range(3):
            mine = next((ranks for ranks in lists if rank in ranks), None)
            name = f"split {repeat} {mine}"
            child = world.split_group(mine or lists[0], None, None, name, "a part")
            if mine is None:
                problems += [] if child is None else ["a rank outside the split got a group"]
                continue
            every = [model.make_input(torch.float32, 333, r, repeat) for r in mine]
            tensor = every[mine.index(rank)].to(DEVICE, copy=True)
            child.allreduce([tensor], dist.AllreduceOptions()).wait()
            problems += model.mismatch(name, tensor, model.reduced(every, "SUM"))
        return problems + check_sum(None, [0, 1, 2, 3])

    expect_no_mismatch(run_ranks(body, 4, fresh=True))


@pytest.mark.skipif(not IS_SYMM, reason="gloo cannot split a group")
def test_a_part_of_a_group_is_freed_when_it_is_dropped():
    def body(rank):
        def all_reduce(group):
            tensor = torch.ones(1 << 20, device=DEVICE)
            group.allreduce([tensor], dist.AllreduceOptions()).wait()

        def held():
            gc.collect()
            dist.barrier()
            return resources()["descriptors"]

        other = dist.new_group([0, 1])
        all_reduce(other)
        dist.destroy_process_group(other)
        del other
        before = held()
        all_reduce(dist.group.WORLD.split_group([0, 1], None, None, "a part", "a part"))
        more = held() - before
        return [f"{more} more descriptors"] if more > 0 else []

    expect_no_mismatch(run_ranks(body, 2, fresh=True))


def test_device_mesh_of_one_dimension():
    def body(rank):
        mesh = init_device_mesh(DEVICE, (4,))
        return check_sum(mesh.get_group(), [0, 1, 2, 3])

    expect_no_mismatch(run_ranks(body, 4, fresh=True))


def test_device_mesh_of_two_dimensions():
    def body(rank):
        mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("outer", "inner"))
        row, column = [rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]
        problems = []
        for repeat in range(3):
            problems += check_sum(mesh.get_group("inner"), row, salt=repeat)
            problems += check_sum(mesh.get_group("outer"), column, salt=repeat)
        return problems + check_sum(mesh._flatten().get_group(), [0, 1, 2, 3])

    expect_no_mismatch(run_ranks(body, 4, fresh=True))


def test_new_group_and_destroy_fifty_times():
    repeats = 15 if crowded(4) else 50

    def body(rank):
        problems, counts = [], []
        for repeat in range(repeats):
            group = dist.new_group([0, 2, 3])
            if rank != 1:
                for count in (100, 300_000):  # with and without the workspace
                    problems += check_sum(group, [0, 2, 3], salt=repeat, count=count)
                work = dist.all_reduce(torch.ones(3, device=DEVICE), group=group, async_op=True)
                work.wait()
                dist.destroy_process_group(group)
            del group
            if repeat >= 4:
                counts.append(resources())
            dist.barrier()
        return problems, counts

    results = run_ranks(body, 4, fresh=True)
    expect_no_mismatch([problems for problems, _ in results])
    for rank, (_, counts) in enumerate(results):
        for what in ("descriptors", "threads"):
            last, first = counts[-1][what], counts[0][what]
            assert last <= first, f"rank {rank}: {what} grew from {first} to {last}"
        if ON_CUDA:
            continue  # test_cuda_footprint.py looks at the GPU's memory
        # The heap may map a few areas of its own; one left per group would be 45.
        assert counts[-1]["mappings"] <= counts[0]["mappings"] + 12


def test_default_group_is_remade():
    """init and destroy of the whole world, on new stores, in the same processes."""

    def body(rank, folder):
        problems = []
        for repeat in range(10):
            dist.destroy_process_group()
            Setup(os.path.join(folder, f"store {repeat}"), 3).join(rank)
            problems += check_sum(None, [0, 1, 2], salt=repeat)
        return problems, resources()

    with tempfile.TemporaryDirectory() as folder:
        results = run_ranks(body, 3, folder, fresh=True)
    expect_no_mismatch([problems for problems, _ in results])
    if not ON_CUDA:
        assert all(r["descriptors"] < 64 for _, r in results), results


def own_stream():
    """Threads that share a stream share its order."""
    return torch.cuda.stream(torch.cuda.Stream()) if ON_CUDA else contextlib.nullcontext()


def test_two_groups_on_two_threads():
    """Opposite orders on the ranks: a deadlock if the groups shared an order."""

    def body(rank):
        groups = [dist.new_group([0, 1, 2]) for _ in range(2)]
        problems = [[], []]

        def use(index):
            use_device(rank)  # a new thread begins with GPU 0
            with own_stream():
                for repeat in range(10 if crowded(3) else 60):
                    what = f"group {index} call {repeat}"
                    problems[index] += check_sum(
                        groups[index], [0, 1, 2], what, 1 + repeat * 331, repeat
                    )

        threads = [threading.Thread(target=use, args=(i,)) for i in (0, 1)]
        for thread in threads if rank % 2 else reversed(threads):
            thread.start()
        for thread in threads:
            thread.join()
        return problems[0] + problems[1]

    expect_no_mismatch(run_ranks(body, 3, fresh=True))


def wait_for(work, rank):
    """In a thread: work.wait() orders that thread's current stream alone."""
    use_device(rank)
    work.wait()
    synchronize()


def test_calls_from_a_side_thread():
    def body(rank):
        problems = []

        def use():
            use_device(rank)
            for repeat in range(5):
                problems.extend(check_sum(None, [0, 1, 2], salt=repeat))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        tensor = torch.full((9,), float(rank), device=DEVICE)
        work = dist.all_reduce(tensor, async_op=True)
        waiter = threading.Thread(target=wait_for, args=(work, rank))
        waiter.start()
        waiter.join()
        return problems + model.mismatch("waited elsewhere", tensor, torch.full((9,), 3.0))

    expect_no_mismatch(run_ranks(body, 3, fresh=True))


def test_async_calls_of_several_groups_in_flight():
    def body(rank):
        lists = [[0, 1, 2, 3], [0, 2], [1, 3], [0, 1, 3]]
        groups = [(dist.new_group(ranks), ranks) for ranks in lists]
        started, problems = [], []
        for repeat in range(5):
            for group, ranks in groups:
                if rank not in ranks:
                    continue
                every = [model.make_input(torch.float32, 5000, r, repeat) for r in ranks]
                tensor = every[ranks.index(rank)].to(DEVICE, copy=True)
                work = dist.all_reduce(tensor, group=group, async_op=True)
                started.append((work, tensor, model.reduced(every, "SUM"), ranks))
        for work, tensor, expected, ranks in reversed(started):
            work.wait()
            problems += model.mismatch(str(ranks), tensor, expected, exact=IS_SYMM)
        return problems

    expect_no_mismatch(run_ranks(body, 4, fresh=True))


def test_distributed_debug_detail():
    """ProcessGroupWrapper around the backend: works, and a mismatch is found by the wrapper."""

    def body(rank):
        problems = check_sum(None, [0, 1, 2])
        group = dist.new_group([0, 2])
        if rank != 1:
            problems += check_sum(group, [0, 2])
        out = [torch.full((5,), -1.0, device=DEVICE) for _ in range(3)]
        dist.all_gather(out, torch.arange(5.0, device=DEVICE) + rank * 10)
        for r, tensor in enumerate(out):
            problems += model.mismatch(f"gathered {r}", tensor, torch.arange(5.0) + r * 10)
        dist.barrier()
        try:
            dist.all_reduce(torch.ones(3 + rank, device=DEVICE))
            problems.append("different shapes did not raise")
        except RuntimeError as error:
            if "Detected mismatch" not in str(error):
                problems.append(f"the wrapper did not find the mismatch: {error}")
        return problems

    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    # torch has parsed the variable at import, so it must be told to look again.
    expect_no_mismatch(run_ranks(body, 3, env=env, before_init=dist.set_debug_level_from_env))


@pytest.mark.alone
@pytest.mark.skipif(not IS_SYMM, reason="gloo does not say who is missing")
def test_ranks_that_never_join():
    """Two of four: the others raise when the time-out of set-up has passed, and not much later
    (FileStore by itself waits whole seconds, one for each rank that is missing)."""

    def body(rank, path):
        use_device(rank)
        synchronize()  # the GPU's own beginning is not counted
        start = time.monotonic()
        with Pace() as pace, pytest.raises(RuntimeError) as caught:
            Setup(path, 4, timeout=0.4).join(rank)
        return str(caught.value), time.monotonic() - start, pace.held_up

    with tempfile.TemporaryDirectory() as folder:
        reports = run_processes(body, 2, os.path.join(folder, "store"), time_limit=20)
    assert all(report.returned for report in reports), describe(reports)
    for text, seconds, held_up in (report.value for report in reports):
        assert 0.4 <= seconds < 0.9 + held_up, (text, seconds, held_up)
        assert "ranks 2, 3 did not join" in text


def test_backend_named_for_the_device():
    def body(rank):
        return check_sum(None, [0, 1, 2])

    expect_no_mismatch(run_ranks(body, 3, backend=f"{DEVICE}:{BACKEND}"))


@pytest.mark.cpu("which backend is chosen does not depend on the device")
@pytest.mark.skipif(not IS_SYMM, reason="about the plugin's own switch")
def test_symm_default(run_script):
    """SYMM_DEFAULT_BACKEND=1: a program that names no backend gets symm, without any import."""
    result = run_script(
        """
        import os, sys, torch, torch.distributed as dist
        rank = int(sys.argv[1])
        store = dist.FileStore(sys.argv[2], 2)
        dist.init_process_group(store=store, rank=rank, world_size=2)
        tensor = torch.full((3,), rank + 1.0)
        dist.all_reduce(tensor)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        print(backend.name(), tensor.tolist())
        dist.destroy_process_group()
        """,
        world_size=2,
        env={"SYMM_DEFAULT_BACKEND": "1"},
    )
    assert [r.exit_code for r in result] == [0, 0], result
    assert all(r.stdout.strip().lower() == "symm [3.0, 3.0, 3.0]" for r in result), result


SAYS_WHAT_IT_IS = """
import torch, torch.distributed as dist
dist.init_process_group("symm", store=dist.HashStore(), rank=0, world_size=1)
part = dist.new_group([0])
dist.all_reduce(torch.ones(3), group=part)
"""


@pytest.mark.cpu("a line of a program of one rank on the CPU")
@pytest.mark.skipif(not IS_SYMM, reason="symm's own line")
def test_a_group_says_in_the_log_what_it_is():
    environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "INFO"}
    command = [sys.executable, "-c", SAYS_WHAT_IT_IS]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "symm: group" in line]
    assert len(lines) == 2, result.stderr
    for line, name in zip(lines, ("0", "1"), strict=True):
        words = [f'group "{name}"', "rank 0 of 1", r"global ranks \[0\]", "algorithm auto"]
        assert not unsaid(line, [*words, r"time-out \d+ ms"]), line
