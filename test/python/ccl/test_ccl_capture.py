"""torch_symm.ccl: device_barrier, and calls inside CUDA graphs."""

import contextlib

import pytest
import torch
import torch.distributed as dist

import model
from call import Call
from ccl_calls import PAIRS, expected
from harness import (
    DEVICE,
    WORLD_SIZE,
    check,
    device_of_rank,
    expect_no_mismatch,
    run_ranks,
    synchronize,
)

pytestmark = pytest.mark.timeout(120)


def nobody_leaves_early(rank):
    from torch_symm import ccl

    store = dist.distributed_c10d._get_default_store()
    size, problems = dist.get_world_size(), []
    for number, device in enumerate([None, DEVICE, device_of_rank(), "cpu"] * 3):
        key = f"ccl barrier {number}"
        store.add(key, 1)
        ccl.device_barrier(device=device)
        synchronize()
        arrived = store.add(key, 0)
        if arrived != size:
            problems.append(f"left barrier {number} when {arrived} of {size} had come")
    return problems


def test_device_barrier():
    expect_no_mismatch(run_ranks(nobody_leaves_early, WORLD_SIZE, fresh=True))


def captured(rank):
    """A barrier in a graph orders what peers store: each reads what its neighbour wrote before."""
    from torch_symm import SymmetricTensor, ccl

    size, problems = dist.get_world_size(), []
    box = SymmetricTensor.empty(4, dtype=torch.float32, device=DEVICE)
    value = torch.zeros(4, device=DEVICE)
    seen = torch.zeros(4, device=DEVICE)
    neighbour = box.remote((rank + 1) % size)
    ccl.device_barrier(device=DEVICE)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        neighbour.copy_(value)
        ccl.device_barrier(device=DEVICE)
        seen.copy_(box.local)
        ccl.device_barrier(device=DEVICE)
    for turn in range(20):
        value.fill_(100 * rank + turn)
        seen.fill_(-1)
        graph.replay()
        torch.cuda.synchronize()
        left = (rank - 1) % size
        problems += model.mismatch(f"turn {turn}", seen, torch.full((4,), 100.0 * left + turn))
    dist.barrier()
    return problems


@pytest.mark.cuda
def test_device_barrier_is_captured():
    expect_no_mismatch(run_ranks(captured, WORLD_SIZE, fresh=True))


def captured_calls(rank, name, algorithm):
    """A call captured once and replayed with new data, checked by value each time."""
    from torch_symm import ccl

    size, n, problems = dist.get_world_size(), 1027, []
    n_in = n * size if name in ("reduce_scatter", "all_to_all") else n
    n_out = n * size if name in ("all_gather", "all_to_all") else n
    given, output = torch.zeros(n_in, device=DEVICE), torch.zeros(n_out, device=DEVICE)
    root = {"reduce": {"dst": 0}, "broadcast": {"src": 0}}.get(name, {})
    config = ccl.Config(algorithm=algorithm)
    workspace = ccl.make_workspace(4 * n * size, device=DEVICE)

    def call():
        getattr(ccl, name)(output, given, config=config, workspace=workspace, **root)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    share = slice(rank * n, (rank + 1) * n)
    for salt in range(5):
        c = Call(None, list(range(size)), rank, count=n, salt=salt * size)
        given.copy_(c.content(rank, n_in))
        output.fill_(-1)
        graph.replay()
        torch.cuda.synchronize()
        if name != "reduce" or rank == 0:
            problems += model.mismatch(f"replay {salt}", output, expected(c, name, share, n_in))
    dist.barrier()
    return problems


@pytest.mark.cuda
@pytest.mark.parametrize(("name", "algorithm"), PAIRS)
def test_calls_are_captured(name, algorithm):
    check(captured_calls, WORLD_SIZE, name, algorithm)


def test_capture_is_asked_of_the_device_of_the_tensors(monkeypatch):
    """The group has no workspace yet, which a capture on its GPU refuses, whatever GPU is the
    current one."""
    from torch_symm.ccl import workspace

    now = []

    @contextlib.contextmanager
    def on(device):
        now.append(device)
        yield
        now.pop()

    place = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: now == [place])
    with pytest.raises(NotImplementedError, match="call once before capture"):
        workspace.own(on, place, 1024, "all_reduce")
    assert not now
