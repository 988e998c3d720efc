"""Limits of the process, and time-outs of any length."""

import datetime
import os
import resource
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from errors import message_of, unsaid
from harness import Setup, check, run_ranks
from rank_processes import describe, run_processes
from symmetric import use_symm

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.cpu("limits of the host's memory, descriptors and threads"),
]

MIB = 1 << 20
WORLD = 3


def lower(limit, value):
    resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def joins_under(rank, limit, folder):
    """What rank 1, under a limit, and the others raise when they make the group."""
    if rank == 1:
        if limit == "descriptors":
            lower(resource.RLIMIT_NOFILE, descriptors() + WORLD + 6)
        else:
            lower(resource.RLIMIT_AS, address_space() + 20 * MIB)
    return message_of(Exception, lambda: Setup(os.path.join(folder, "store"), WORLD).join(rank))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("descriptors", ["a group of 3 ranks needs 7 descriptors", "RLIMIT_NOFILE", "ulimit -n"]),
        ("address space", ["a group of 3 ranks needs", "of address space", "RLIMIT_AS"]),
    ],
)
def test_what_a_group_may_need_is_looked_for_when_it_is_made(limit, words, tmp_path):
    reports = run_processes(joins_under, WORLD, limit, str(tmp_path), time_limit=60)
    assert all(report.returned for report in reports), describe(reports)
    for rank, report in enumerate(reports):
        where = "" if rank == 1 else "rank 1 failed: "
        assert not unsaid(report.value, [r"\[system\]", where + words[0], *words[1:]]), report.value


def group_holds(rank):
    """Descriptors that the group has added, at its start and once all of its memory is there."""
    after_start = descriptors()
    for count in (10, 3 * MIB):
        dist.all_reduce(torch.ones(count))
    received = torch.zeros(3 * MIB)
    right, left = (rank + 1) % 4, (rank - 1) % 4
    works = [dist.isend(torch.ones(3 * MIB), right), dist.irecv(received, left)]
    for work in works:
        work.wait()
    dist.barrier()
    return after_start, descriptors()


def test_a_group_keeps_a_descriptor_for_each_peer():
    before = []

    def body(rank):
        after_start, at_end = group_holds(rank)
        return after_start - before[0], at_end - before[0]

    for at_start, at_end in run_ranks(body, 4, before_init=lambda: before.append(descriptors())):
        assert (at_start, at_end) == (3, 3)


GROUPS = (  # of both versions: where one is made, and the name of its limit
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
)


@pytest.fixture
def memory_group():
    """A control group with a limit of 400 MiB."""
    for mount, limit in GROUPS:
        folder = Path(mount, f"symm_test_{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(400 * MIB))
            yield folder
            return
        except OSError:
            continue
        finally:
            folder.rmdir()
    pytest.skip("no control group with a memory limit can be made here")


def allocates_in(rank, folder):
    Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    use_symm()
    text = message_of(Exception, lambda: symm_mem.empty(800 * MIB // 4))
    return text, symm_mem.empty(10 * MIB // 4).fill_(1.0).sum().item()


def test_a_control_group_ends_an_allocation_with_an_error(memory_group):
    [report] = run_processes(allocates_in, 1, str(memory_group), time_limit=60)
    assert report.returned, describe([report])
    text, total = report.value
    words = [r"\[system\]", "allocating 8388", f"control group /{memory_group.name}", "419430400"]
    assert not unsaid(text, [*words, "bytes available"]), text
    assert total == 10 * MIB // 4


def messages_without_a_thread(rank):
    dist.barrier()
    peer = 1 - rank
    problems = []
    if rank == 0:
        before = resource.getrlimit(resource.RLIMIT_AS)
        lower(resource.RLIMIT_AS, address_space() + MIB)
        texts = [
            message_of(Exception, dist.isend, torch.full((count,), 7.0), peer)
            for count in (4, 5000)
        ]
        texts.append(message_of(Exception, lambda: dist.irecv(torch.zeros(4), peer)))
        batch = [dist.P2POp(dist.isend, torch.full((4,), 7.0), peer)]
        texts.append(message_of(Exception, lambda: dist.batch_isend_irecv(batch)))
        resource.setrlimit(resource.RLIMIT_AS, before)
        for text in texts:
            problems += unsaid(text, [r"\[system\]", "thread that messages need", "RLIMIT_NPROC"])
    dist.barrier()
    # Nothing is in flight: these messages have the tag of those.
    for count in (4, 5000):
        received = torch.zeros(count)
        works = [dist.isend(torch.full((count,), 1.0 + rank), peer), dist.irecv(received, peer)]
        for work in works:
            work.wait()
        if not received.eq(1.0 + peer).all():
            problems.append(f"{count} elements: {received[:4]}")
    return problems


def test_messages_without_a_thread_are_refused_by_name():
    check(messages_without_a_thread, 2, fresh=True)


TIMEOUTS = {
    "a million days": datetime.timedelta(days=1_000_000),
    "ten years": datetime.timedelta(days=3650),
    "a millisecond more than a second": datetime.timedelta(seconds=1, milliseconds=1),
}


def every_wait_with(rank, timeout):
    """Calls that wait for a rank that comes late, each given `timeout`."""
    use_symm()
    peer = 1 - rank
    group = dist.new_group([0, 1], timeout=timeout)
    late = torch.ones(4)
    store = dist.distributed_c10d._get_default_store()

    def together(call):
        if rank == 1:
            store.wait([str(len(calls))])
        else:
            store.set(str(len(calls)), "begun")
        calls.append(call())

    calls = []
    together(lambda: dist.all_reduce(late, group=group))
    together(lambda: dist.all_reduce(late, group=group, async_op=True).wait(timeout))
    received = torch.zeros(5000)
    messages = [dist.isend(torch.ones(5000), peer, group), dist.irecv(received, peer, group)]
    together(lambda: [work.wait(timeout) for work in messages])
    tensor = symm_mem.empty(10)
    handle = symm_mem.rendezvous(tensor, group)
    milliseconds = timeout // datetime.timedelta(milliseconds=1)
    together(lambda: handle.barrier(0, milliseconds))
    together(lambda: handle.barrier(0, 0))
    dist.group.WORLD._get_backend(torch.device("cpu"))._set_default_timeout(timeout)
    together(lambda: dist.barrier())
    return [] if late.eq(4).all() and received.eq(1).all() else [f"{late}, {received[:4]}"]


@pytest.mark.parametrize("length", TIMEOUTS)
def test_time_outs_of_any_length(length):
    check(every_wait_with, 2, TIMEOUTS[length], fresh=True)


def group_with(rank, timeout):
    return message_of(Exception, lambda: dist.new_group([0, 1], timeout=timeout))


@pytest.mark.parametrize(
    ("timeout", "said"),
    [
        (datetime.timedelta(0), "got 0 ms"),
        (datetime.timedelta(microseconds=999), "got 0 ms"),
        (datetime.timedelta(seconds=-3), "got -3000 ms"),
    ],
    ids=str,
)
def test_time_outs_that_a_group_cannot_have(timeout, said):
    for text in run_ranks(group_with, 2, timeout, fresh=True):
        assert not unsaid(text, ["ValueError", "timeout: expected more than 0 ms", said]), text


def waits_shortly(rank):
    """Work.wait(): none, or less than a millisecond, is the operation's own time-out."""
    if rank == 1:
        dist.distributed_c10d._get_default_store().wait(["late"])
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    problems = []
    if rank == 0:
        text = message_of(Exception, lambda: work.wait(datetime.timedelta(milliseconds=30)))
        problems += unsaid(text, [r"\[timeout\]", "on rank 0: not done after 30 ms", "in flight"])
        dist.distributed_c10d._get_default_store().set("late", "yes")
    for timeout in (datetime.timedelta(seconds=-3), datetime.timedelta(microseconds=999)):
        work.wait(timeout)
    return problems + ([] if tensor.eq(2).all() else [str(tensor)])


def test_a_wait_of_no_length_is_one_without_a_limit():
    check(waits_shortly, 2, fresh=True)
