"""What a forked child may touch of its parent's: nothing hangs and nothing crashes."""

import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from harness import check
from hosts import check_on
from symmetric import use_symm

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.cpu("a process that has used a GPU cannot fork and use it"),
]

LIMIT = 10.0


def in_child(action) -> str:
    """What `action` returned, or raised, in a forked child; how the child ended where it did not
    come to that."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = str(action())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    until = time.monotonic() + LIMIT
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return "hung"
        time.sleep(0.001)
    with os.fdopen(reading) as pipe:
        return pipe.read() or "died"


OF_THE_PARENT = "made before fork() and belongs to the parent process"


def refused_in_child(what, action) -> list[str]:
    text = in_child(action)
    right = text.startswith("DistBackendError: symm [aborted]: ") and OF_THE_PARENT in text
    return [] if right else [f"{what}: {text}"]


def all_reduce_late(rank):
    """Rank 1 calls only when rank 0's children are done."""
    tensor = torch.full((9,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True) if rank == 0 else None
    yield work
    if work is None:
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    yield [] if tensor.eq(3).all() else [f"all_reduce gave {tensor}"]


def message_late(rank, count=100_000):
    tensor = torch.full((count,), rank + 1.0)
    work = dist.irecv(tensor, 1) if rank == 0 else None
    yield work
    if rank == 1:
        dist.send(tensor, 0)
    else:
        work.wait()
    yield [] if tensor.eq(2).all() else ["the message did not come"]


def batch_late(rank):
    tensor = torch.full((100_000,), rank + 1.0)
    operation = dist.P2POp(dist.irecv, tensor, 1) if rank == 0 else None
    works = dist.batch_isend_irecv([operation]) if operation else [None]
    yield works[0]
    if rank == 1:
        dist.send(tensor, 0)
    else:
        works[0].wait()
    yield [] if tensor.eq(2).all() else ["the message did not come"]


def waits_for_pending_work(rank, pending):
    steps = pending(rank)
    work = next(steps)
    problems = []
    if rank == 0:
        problems += refused_in_child("wait", work.wait)
        problems += refused_in_child("is_completed", work.is_completed)
        problems += refused_in_child("get_future", work.get_future)
        if in_child(lambda: dist.group.WORLD._get_backend(torch.device("cpu")).abort()) != "None":
            problems.append("abort")
    # Of the Store, which needs no group.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{pending.__name__} {rank}", "done")
    store.wait([f"{pending.__name__} 0"])
    return problems + next(steps)


@pytest.mark.parametrize("pending", [all_reduce_late, message_late, batch_late])
def test_a_child_that_waits_for_its_parents_work_raises(pending):
    check(waits_for_pending_work, 2, pending, fresh=True)


def has_finished_work(rank):
    tensor = torch.full((9,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    found = in_child(lambda: (work.wait(), work.is_completed(), tensor.tolist()))
    return [] if found == str((True, True, [3.0] * 9)) else [found]


def test_finished_work_is_as_in_the_parent():
    check(has_finished_work, 2)


def touches_symmetric_memory(rank):
    use_symm()
    count = 5000
    tensor = symm_mem.empty(count)
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    peer = handle.get_buffer(1 - rank, (count,), torch.float32)
    tensor.fill_(rank + 1.0)
    handle.barrier()

    def child():
        seen = tensor.sum().item(), peer.sum().item()
        tensor.fill_(50.0)
        peer.fill_(60.0)
        return seen, tensor.sum().item(), peer.sum().item()

    expected = ((rank + 1.0) * count, (2.0 - rank) * count), 50.0 * count, 60.0 * count
    found = in_child(child)
    problems = [] if found == str(expected) else [f"{found} is not {expected}"]
    dist.barrier()
    if not (tensor.eq(rank + 1).all() and peer.eq(2 - rank).all()):
        problems.append("a child has written into the parents' memory")
    return problems + of_a_group(tensor, handle)


def of_a_group(tensor, handle):
    problems = []
    for action in (
        handle.barrier,
        lambda: handle.put_signal(handle.rank, 0),
        lambda: symm_mem.rendezvous(tensor, dist.group.WORLD),
    ):
        text = in_child(action)
        if not text.startswith("DistBackendError: symm [aborted]: "):
            problems.append(text)

    def own_memory():
        own = symm_mem.empty(7).fill_(3.0)
        return own.sum().item()

    def of_rank_0():
        return handle.get_buffer(0, (4,), torch.float32).sum().item()

    wanted = {own_memory: "21.0", of_rank_0: "4.0"}
    return problems + [text for call, right in wanted.items() if (text := in_child(call)) != right]


def test_a_child_reads_symmetric_memory_and_keeps_what_it_writes():
    check(touches_symmetric_memory, 2, fresh=True)


def makes_a_group_of_its_own(rank):
    use_symm()
    tensor = symm_mem.empty(100)
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    tensor.fill_(rank + 1.0)
    handle.barrier()

    def child():
        dist.destroy_process_group()
        dist.init_process_group("symm", store=dist.HashStore(), rank=0, world_size=1)
        mine = symm_mem.empty(100).fill_(2.0)
        symm_mem.rendezvous(mine, dist.group.WORLD).barrier()
        dist.all_reduce(mine)
        dist.destroy_process_group()
        return mine.sum().item()

    found = in_child(child)
    dist.all_reduce(tensor)
    problems = [] if found == "200.0" else [found]
    return problems + ([] if tensor.eq(3).all() else [f"the parents' sum is {tensor}"])


def test_a_child_makes_a_group_of_its_own_in_place_of_its_parents():
    check(makes_a_group_of_its_own, 2, fresh=True)


def frees_its_memory(rank):
    use_symm()
    tensor = symm_mem.empty(1 << 20)
    symm_mem.rendezvous(tensor, dist.group.WORLD)
    held = [tensor]
    del tensor

    def child():
        held.clear()
        return symm_mem.empty(10).fill_(1.0).sum().item()

    found = in_child(child)
    held[0].fill_(1.0)
    dist.all_reduce(held[0])
    problems = [] if found == "10.0" else [found]
    return problems + ([] if held[0].eq(2).all() else ["the parents' memory is gone"])


def test_a_child_lets_go_of_its_parents_memory():
    check(frees_its_memory, 2, fresh=True)


def leaves_a_group_over_hosts(rank, hosts):
    dist.all_reduce(torch.ones(9))
    problems = [in_child(dist.destroy_process_group)]
    dist.barrier()
    return [text for text in problems if text != "None"]


def test_a_child_leaves_a_group_over_hosts():
    check_on("ab", leaves_a_group_over_hosts)
