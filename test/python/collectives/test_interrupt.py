"""Ctrl-C while a call of symm waits: KeyboardInterrupt within 100 ms of a processor."""

import datetime
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from errors import ERRORS
from harness import TIMEOUT, check
from hosts import check_on
from machine import Pace
from symmetric import use_symm

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.alone,
    pytest.mark.cpu("waits of the host"),
]

AFTER = 0.3  # seconds, from the call to the signal
MOST = 0.1  # from the signal to the exception


class Signal:
    """Sends this process a signal while it is inside the with block."""

    def __init__(self, number=signal.SIGINT):
        self._number = number
        self._thread = threading.Thread(target=self._send)
        self._pace = Pace()

    def _send(self):
        time.sleep(AFTER)
        self.sent = time.monotonic()
        os.kill(os.getpid(), self._number)

    def __enter__(self):
        self._pace.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.sent
        self._pace.__exit__()
        self._thread.join()

    @property
    def most(self):
        return MOST + self._pace.held_up


def interrupted(call) -> list[str]:
    """What is wrong with how a signal ends `call`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sent = Signal()
    try:
        with sent:
            call()
    except KeyboardInterrupt:
        slow = sent.seconds > sent.most
        return [f"{call} took {1000 * sent.seconds:.0f} ms to end"] if slow else []
    except BaseException as error:
        return [f"{call} raised {type(error).__name__}: {error}"]
    return [f"{call} returned"]


def aborted(call) -> list[str]:
    try:
        call()
    except dist.DistBackendError as error:
        words = ["[aborted]", "rank 0", "a signal handler of the program ended the wait"]
        return [] if all(word in str(error) for word in words) else [str(error)]
    return ["the group's next call did not raise"]


def all_reduce():
    dist.all_reduce(torch.ones(4))


def large_all_reduce():
    dist.all_reduce(torch.ones(1 << 20))


def fails_the_group(rank, call):
    if rank == 0:
        problems = interrupted(call)
        dist.distributed_c10d._get_default_store().set("interrupted", "yes")
        return problems + aborted(call)
    dist.distributed_c10d._get_default_store().wait(["interrupted"])

    def twice():  # a rank that comes late may complete the call, and not the next
        call()
        call()

    return aborted(twice)


@pytest.mark.parametrize("call", [all_reduce, large_all_reduce, dist.barrier])
def test_a_collective_ends_and_its_group_has_failed(call):
    check(fails_the_group, 2, call, fresh=True)


def waits_for_work(rank, issue):
    """The operation stays in flight, and the group goes on."""
    store = dist.distributed_c10d._get_default_store()
    problems = []
    if rank == 0:
        work, tensor = issue(rank)
        problems += interrupted(work.wait)
        if work.is_completed():
            problems.append("the work says that it is done")
        store.set("interrupted", "yes")
    else:
        store.wait(["interrupted"])
        work, tensor = issue(rank)
    work.wait()
    if not tensor.eq(3).all():
        problems.append(f"{tensor}")
    dist.barrier()
    return problems


def issue_all_reduce(rank):
    tensor = torch.full((1000,), rank + 1.0)
    return dist.all_reduce(tensor, async_op=True), tensor


def issue_message(rank):
    tensor = torch.full((100_000,), 3.0 * rank)
    return (dist.irecv(tensor, 1) if rank == 0 else dist.isend(tensor, 0)), tensor


@pytest.mark.parametrize("issue", [issue_all_reduce, issue_message])
def test_a_wait_for_work_ends_and_the_work_goes_on(issue):
    check(waits_for_work, 2, issue, fresh=True)


def barrier_of_handle(tensor, handle):
    handle.barrier()


def wait_for_signal(tensor, handle):
    handle.wait_signal(1, 0)


def rendezvous_again(tensor, handle):
    symm_mem.rendezvous(symm_mem.empty(100), dist.group.WORLD)


def waits_in_symmetric_memory(rank, call):
    use_symm()
    tensor = symm_mem.empty(100)
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    store = dist.distributed_c10d._get_default_store()
    problems = []
    if rank == 0:
        problems += interrupted(lambda: call(tensor, handle))
        store.set("interrupted", "yes")
    else:
        store.wait(["interrupted"])
    # Collectives, and memory of the group, go on. A rank that comes late to a rendezvous that was
    # given up raises.
    if call is rendezvous_again and rank == 1:
        with pytest.raises(ERRORS, match="rank 0 has given up"):
            call(tensor, handle)
    dist.all_reduce(torch.ones(4))
    symm_mem.rendezvous(symm_mem.empty(100), dist.group.WORLD)
    return problems


@pytest.mark.parametrize("call", [barrier_of_handle, wait_for_signal, rendezvous_again])
def test_a_wait_of_symmetric_memory_ends_and_the_group_goes_on(call):
    check(waits_in_symmetric_memory, 2, call, fresh=True)


def sets_up(rank):
    if rank == 0:
        return interrupted(lambda: dist.new_group([0, 1]))
    dist.distributed_c10d._get_default_store()
    time.sleep(AFTER + 1)
    return []


def test_a_set_up_ends():
    check(sets_up, 2, fresh=True)


def runs_handlers(rank):
    """A handler that raises nothing runs, and the wait goes on."""
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
    tensor = torch.ones(4)
    if rank == 1:
        time.sleep(AFTER + 0.5)
        dist.all_reduce(tensor)
        return []
    sent = Signal(signal.SIGUSR1)
    with sent:
        dist.all_reduce(tensor)
    problems = [] if tensor.eq(2).all() else [str(tensor)]
    in_time = len(seen) == 1 and seen[0] - sent.sent < sent.most
    return problems + ([] if in_time else [f"the handler ran at {seen}, sent at {sent.sent}"])


def test_a_handler_that_raises_nothing_runs_during_the_wait():
    check(runs_handlers, 2, fresh=True)


def other_threads_wait(rank):
    """Handlers run on the main thread alone: another thread's wait goes on."""
    tensor = torch.ones(4)
    if rank == 1:
        time.sleep(AFTER + 0.5)
        dist.all_reduce(tensor)
        return []
    thread = threading.Thread(target=dist.all_reduce, args=(tensor,))
    thread.start()
    problems = interrupted(lambda: time.sleep(TIMEOUT))
    thread.join()
    return problems + ([] if tensor.eq(2).all() else [str(tensor)])


def test_the_wait_of_another_thread_goes_on():
    check(other_threads_wait, 2, fresh=True)


def fails_the_group_over_hosts(rank, hosts, call):
    """Rank 1 waits with rank 0; the other host comes when rank 0 has been interrupted."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 0:
        problems = interrupted(call)
        store.set("interrupted", "yes")
        return problems + aborted(call)
    if hosts[rank] == hosts[0]:
        return aborted(call)
    store.wait(["interrupted"])
    with pytest.raises(dist.DistBackendError, match=r"gloo (send to|recv from) rank [01]\b"):
        call()
    return []


@pytest.mark.parametrize("call", [all_reduce, large_all_reduce, dist.barrier])
def test_a_collective_that_waits_for_another_host_ends(call):
    check_on("aabb", fails_the_group_over_hosts, call)


def over_hosts(rank, hosts, function, *args):
    dist.barrier()
    return function(rank, *args)


@pytest.mark.parametrize("issue", [issue_all_reduce, issue_message])
def test_a_wait_for_work_of_another_host_ends_and_the_work_goes_on(issue):
    check_on("ab", over_hosts, waits_for_work, issue)


def test_a_handler_runs_during_the_wait_for_another_host():
    check_on("ab", over_hosts, runs_handlers)


def times_out(rank):
    """Breaks of the wait for signals change neither its length nor what it says."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["late"])
        return []
    work = dist.irecv(torch.ones(4), 1)
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="Timed out after 1000 ms"):
        work.wait(datetime.timedelta(seconds=1))
    spent = time.monotonic() - began
    store.set("late", "yes")
    return [] if 1.0 <= spent < 2.0 else [f"waited for {spent:.2f} s"]


def test_a_wait_for_another_host_has_its_time_out():
    check_on("ab", over_hosts, times_out)
