"""A group that fails on a GPU is heard: its outputs are no numbers, the next call raises, and with
SYMM_ON_FAILURE=abort the process ends."""

import datetime
import functools
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from errors import ERRORS, message_of
from graph_operations import captured
from harness import Setup, check
from rank_processes import describe, run_processes, start_ranks

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(120)]

WORLD = 2
LATE = 1
TIMEOUT = 2.0
COUNTS = [5, 100_000, 3_000_000]  # ll, ll_two_shot, bulk


def joined(rank, folder, **env):
    """The default group has time for what ranks do at their start."""
    Setup(os.path.join(folder, "store"), WORLD, timeout=60.0, env=tuple(env.items())).join(rank)
    dist.all_reduce(torch.ones(1, device="cuda"))


def impatient():
    """A group of all ranks, which have come and wait for each other no longer than TIMEOUT."""
    return dist.new_group(list(range(WORLD)), timeout=datetime.timedelta(seconds=TIMEOUT))


def wait_for(path):
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


CALLS = 7


def results(count, dtype, group):
    """(name, what it is to write, the call) of all that waits for the late rank."""
    tensor = torch.ones(count, dtype=dtype, device="cuda")
    whole = torch.ones(WORLD * count, dtype=dtype, device="cuda")
    share = whole.view(WORLD, count)[LATE]
    parts = [torch.ones_like(tensor) for _ in range(WORLD)]
    on = {"group": group}
    yield "all_reduce", tensor, lambda: dist.all_reduce(tensor, **on)
    yield "broadcast", tensor, lambda: dist.broadcast(tensor, LATE, **on)
    yield "all_gather", whole, lambda: dist.all_gather_into_tensor(whole, tensor, **on)
    yield "reduce_scatter", tensor, lambda: dist.reduce_scatter_tensor(tensor, whole, **on)
    yield "all_to_all", share, lambda: dist.all_to_all_single(whole, torch.ones_like(whole), **on)
    yield "gather", parts[LATE], lambda: dist.gather(tensor, parts, 0, **on)
    yield "recv", tensor, lambda: dist.recv(tensor, LATE, **on)


def is_poison(tensor):
    if tensor.dtype.is_floating_point:
        return bool(tensor.isnan().all())
    return bool((tensor == torch.iinfo(tensor.dtype).min).all())


def groups_that_fail(rank, folder, count):
    """(what was called, poison in the output, what the group's next call raised) of the rank that
    is on time, for each call in a group of its own."""
    joined(rank, folder)
    seen = []
    for number in range(CALLS):
        group = impatient()
        one = torch.ones(1, device="cuda")
        dist.all_reduce(one, group=group)
        dist.send(one, 0, group=group) if rank == LATE else dist.recv(one, LATE, group=group)
        torch.cuda.synchronize()
        dist.barrier()
        if rank != LATE:
            dtype = [torch.bfloat16, torch.int32][number % 2]
            name, tensor, call = list(results(count, dtype, group))[number]
            call()
            poison = is_poison(tensor)  # waits for the stream, and asks symm nothing
            text = message_of(ERRORS, dist.all_reduce, one, group=group)
            seen.append((f"{name} of {count} {dtype}", poison, text))
        dist.barrier()
    return seen


def expect_heard(reports):
    assert all(report.returned for report in reports), describe(reports)
    assert reports[0].value
    for what, poison, text in reports[0].value:
        assert poison, what
        assert f"rank {LATE}" in text, (what, text)


@pytest.mark.parametrize("count", COUNTS)
def test_outputs_of_failed_calls_are_no_numbers(count, tmp_path):
    expect_heard(run_processes(groups_that_fail, WORLD, str(tmp_path), count, time_limit=90))


def graphs_that_fail(rank, folder):
    joined(rank, folder)
    seen = []
    for count in COUNTS:
        group = impatient()
        tensor = torch.ones(count, device="cuda")
        dist.all_reduce(tensor, group=group)
        graph = captured(functools.partial(dist.all_reduce, tensor, group=group))
        graph.replay()
        torch.cuda.synchronize()
        dist.barrier()
        if rank != LATE:
            poison = []
            for _ in range(3):
                tensor.fill_(1.0)
                graph.replay()
                poison.append(is_poison(tensor))
            one = torch.ones(1, device="cuda")
            text = message_of(ERRORS, dist.all_reduce, one, group=group)
            seen.append((f"replays of {count}", all(poison), text))
        dist.barrier()
        del graph
    return seen


def test_replays_after_a_failure_leave_no_numbers(tmp_path):
    expect_heard(run_processes(graphs_that_fail, WORLD, str(tmp_path)))


def calls_nothing_more(rank, folder, env):
    """Issues one call that fails, then waits for something else."""
    joined(rank, folder, **env)
    group = impatient()
    dist.all_reduce(torch.ones(4, device="cuda"), group=group)
    torch.cuda.synchronize()
    if rank == LATE:
        wait_for(Path(folder, "done"))
        return
    errors = os.open(os.path.join(folder, "errors"), os.O_CREAT | os.O_WRONLY)
    os.dup2(errors, 2)
    dist.all_reduce(torch.ones(4, device="cuda"), group=group)
    Path(folder, "called").touch()
    wait_for(Path(folder, "done"))


def ended_by(folder, env):
    """(reports, what the rank on time wrote); the late one leaves long after the time-out."""
    ranks = start_ranks(calls_nothing_more, WORLD, (str(folder), env))
    wait_for(Path(folder, "called"))
    time.sleep(TIMEOUT + 4.0)
    Path(folder, "done").touch()
    reports = ranks.finish(30)
    return reports, Path(folder, "errors").read_text(errors="replace")


def test_on_failure_abort_ends_the_process_with_the_message(tmp_path):
    env = {"SYMM_ON_FAILURE": "abort", "SYMM_FAILURE_GRACE_MS": "500"}
    reports, errors = ended_by(tmp_path, env)
    assert reports[0].exit_code == -signal.SIGABRT, describe(reports)
    for word in ("Timed out", f"rank {LATE}", "SYMM_ON_FAILURE=abort"):
        assert word in errors


def test_without_it_the_process_goes_on(tmp_path):
    reports, errors = ended_by(tmp_path, {})
    assert reports[0].returned, describe(reports)
    assert "SYMM_ON_FAILURE" not in errors


def late_reader(rank, folder):
    """The owner times out and uses its registered tensor again; then the late rank calls."""
    joined(rank, folder)
    group = impatient()
    symm_mem.set_backend("SYMM")
    count = 32_000_000  # more than the workspaces hold: the owner waits for the reader
    one = torch.ones(1, device="cuda")
    tensor = symm_mem.empty(count, device="cuda")
    dist.barrier()  # a first allocation takes its time
    symm_mem.rendezvous(tensor, group)
    tensor.fill_(1.0)
    dist.broadcast(tensor, 0, group=group)
    torch.cuda.synchronize()
    dist.barrier()
    gave_up, came = Path(folder, "gave up"), Path(folder, "came")
    if rank == LATE:
        wait_for(gave_up)
        time.sleep(0.1)
        try:
            dist.broadcast(tensor, 0, group=group)
            torch.cuda.synchronize()
            text = message_of(ERRORS, dist.all_reduce, one, group=group)
        except ERRORS as error:
            text = str(error)
        came.touch()
        return text, bool((tensor == 4711.0).any())
    dist.broadcast(tensor, 0, group=group)
    torch.cuda.synchronize()
    text = message_of(ERRORS, dist.all_reduce, one, group=group)
    tensor.fill_(4711.0)
    torch.cuda.synchronize()
    gave_up.touch()
    wait_for(came)
    return text, False


def test_a_late_rank_does_not_take_memory_in_use_again_for_data(tmp_path):
    reports = run_processes(late_reader, WORLD, str(tmp_path))
    assert all(report.returned for report in reports), describe(reports)
    assert "gave up" in reports[LATE].value[0]
    assert not reports[LATE].value[1]


def given_up_barrier(rank, folder):
    joined(rank, folder)
    group = impatient()
    symm_mem.set_backend("SYMM")
    tensor = symm_mem.empty(16, device="cuda")
    dist.barrier()
    handle = symm_mem.rendezvous(tensor, group)
    handle.barrier()
    torch.cuda.synchronize()
    dist.barrier()
    gave_up, came = Path(folder, "gave up"), Path(folder, "came")
    if rank == LATE:
        wait_for(gave_up)
    handle.barrier(timeout_ms=500)
    torch.cuda.synchronize()
    text = message_of(ERRORS, handle.barrier)
    (came if rank == LATE else gave_up).touch()
    wait_for(came)
    return text


def test_a_given_up_barrier_lets_no_late_rank_pass(tmp_path):
    reports = run_processes(given_up_barrier, WORLD, str(tmp_path))
    assert all(report.returned for report in reports), describe(reports)
    assert "Timed out" in reports[0].value
    assert "has given up a barrier on this channel" in reports[LATE].value


def test_a_group_works_after_all_this():
    def body(rank):
        tensor = torch.ones(1000, device="cuda")
        dist.all_reduce(tensor)
        return [] if bool((tensor == WORLD).all()) else ["wrong"]

    check(body, WORLD, fresh=True)
