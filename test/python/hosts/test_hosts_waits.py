"""What ends a wait for another host, and what is let go behind it."""

import datetime
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

from errors import ERRORS
from harness import IS_SYMM, ON_CUDA, expect_no_mismatch
from hosts import check_on, run_on
from rank_processes import describe

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="of groups of symm"),
    pytest.mark.skipif(ON_CUDA, reason="of tensors on the CPU; test_cuda_hosts.py has others"),
]

AFTER = 0.5  # seconds of a call, then rank 1 goes
SOON = 3.0  # of the time-out's 20 seconds


def backend():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def abort():
    backend().abort()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def took_too_long(call) -> list[str]:
    begin = time.monotonic()
    try:
        call()
    except ERRORS:
        spent = time.monotonic() - begin
        return [] if spent < SOON else [f"raised after {spent:.1f} s"]
    return ["no error"]


def waits_for_a_late_host(rank, hosts, goes):
    dist.barrier()
    if rank == 2:
        time.sleep(SOON + 1)
        return []
    if rank == 1:
        threading.Timer(AFTER, goes).start()
    return took_too_long(lambda: dist.all_reduce(torch.ones(1 << 20)))


@pytest.mark.parametrize("goes", [abort, kill])
def test_a_rank_of_the_own_host_that_goes_ends_the_wait(goes):
    reports = run_on("aab", waits_for_a_late_host, goes)
    staying = [reports[0], reports[2]] if goes is kill else reports
    assert all(report.returned for report in staying), describe(reports)
    expect_no_mismatch([report.value for report in staying])


def has_a_default_time_out(rank, hosts):
    backend()._set_default_timeout(datetime.timedelta(seconds=1))
    dist.barrier()
    if rank == 1:
        time.sleep(SOON)
        return []
    return took_too_long(lambda: dist.recv(torch.empty(4), 1))


def test_messages_between_hosts_have_the_default_time_out():
    check_on("ab", has_a_default_time_out)


def waited_for_again(rank, hosts):
    tensor = torch.full((4,), rank + 1.0)
    work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)
    work.wait()
    begin = time.monotonic()
    work.wait()
    problems = [] if time.monotonic() - begin < SOON else ["waited for what has come"]
    dist.barrier()
    return problems if tensor[3] == 1.0 else [*problems, f"got {tensor}"]


def test_a_message_between_hosts_is_waited_for_once():
    check_on("ab", waited_for_again)


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


MESSAGES = 40
MIB = 16


def moves_much(rank, hosts):
    def message():
        tensor = torch.ones(MIB << 18)
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)

    message()
    before = resident_mib()
    for _ in range(MESSAGES):
        message()
    grown = resident_mib() - before
    dist.barrier()
    return [] if grown < MESSAGES * MIB / 2 else [f"{grown:.0f} MiB more are resident"]


def test_what_a_message_between_hosts_moved_is_let_go():
    check_on("ab", moves_much)


def from_the_own_host(rank, hosts):
    problems = []
    if rank == 2:
        dist.send(torch.ones(4), 3)
    if rank == 3:
        work = dist.irecv(torch.empty(4), 2)
        work.wait()
        problems = [] if work._source_rank() == 2 else [f"from rank {work._source_rank()}"]
    dist.barrier()
    return problems


def test_the_sender_on_the_own_host_has_its_rank_of_the_group():
    check_on("aabb", from_the_own_host)


def grows(rank, hosts):
    """Calls of ever larger sizes, each a little larger than any before."""
    dist.all_reduce(torch.ones(1 << 19))
    before = resident_mib()
    for step in range(64):
        dist.all_reduce(torch.ones((1 << 19) + step * 1024))
    grown = resident_mib() - before
    return [] if grown < 128 else [f"{grown:.0f} MiB more are resident"]


def test_calls_of_growing_sizes_use_the_same_memory():
    check_on("ab", grows)
