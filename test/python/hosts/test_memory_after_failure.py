"""When a call between hosts has raised, the engine has done with the caller's tensors: it writes to
the outputs no more, and sends nothing that is written to the inputs from then on."""

import os
import signal
import subprocess
import threading
import time

import pytest
import torch
import torch.distributed as dist

from errors import ERRORS
from harness import IS_SYMM, ON_CUDA
from hosts import check_on

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="of groups of symm"),
    pytest.mark.skipif(ON_CUDA, reason="of tensors on the CPU; test_cuda_hosts.py has others"),
]

# Rank 2 stops in the middle of a message. Rank 0 gives up, as its group is aborted or when the
# time is up. Then rank 2 goes on.
HOSTS = "aab"
STOPPED = 2
COUNT = 16 << 20  # float32 of a pair
SPOILT = -1.0
TIMEOUT = 2.0


def all_to_all(inputs, outputs):
    dist.all_to_all_single(outputs.view(-1), inputs.view(-1))


def all_gather(inputs, outputs):
    dist.all_gather(list(outputs), inputs[0])


def gather(inputs, outputs):
    dist.gather(inputs[0], list(outputs) if dist.get_rank() == 0 else None, 0)


def scatter(inputs, outputs):
    dist.scatter(outputs[0], list(inputs) if dist.get_rank() == 0 else None, 0)


def broadcast(inputs, outputs):
    dist.broadcast(inputs[0] if dist.get_rank() == 0 else outputs[0], 0)


def stop_in_the_middle(arriving, pid, path):
    """Stops a rank as soon as a part of what is arriving is there."""
    while not bool(arriving[COUNT // 16]):
        time.sleep(0.0001)
    os.close(os.open(path, os.O_CREAT))
    os.kill(pid, signal.SIGSTOP)


def abort_when_stopped(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    time.sleep(0.1)
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()


def raises_in_the_middle(rank, hosts, call, aborted, path):
    pids = [None] * len(hosts)
    dist.all_gather_object(pids, os.getpid())
    inputs = torch.full((len(hosts), COUNT), rank + 1.0)
    outputs = torch.zeros(len(hosts), COUNT)
    if rank == 0:
        wait = f"until [ -e {path} ]; do sleep 0.01; done; sleep {1 if aborted else TIMEOUT + 1}"
        subprocess.Popen(["sh", "-c", f"{wait}; kill -CONT {pids[STOPPED]}"])
        if aborted:
            threading.Thread(target=abort_when_stopped, args=(path,)).start()
    if rank == (0 if call is gather else STOPPED):
        arriving = outputs[STOPPED if call is gather else 0]
        threading.Thread(target=stop_in_the_middle, args=(arriving, pids[STOPPED], path)).start()
    dist.barrier()
    try:
        call(inputs, outputs)
        if rank != 1:  # which has nothing to do with rank 2 but in an all_to_all
            return ["no error"]
    except ERRORS:
        pass
    came = outputs.clone()
    inputs.fill_(SPOILT)
    outputs.fill_(SPOILT)
    time.sleep(TIMEOUT + 1)
    problems = []
    if bool((came == SPOILT).any()):
        problems.append("got what a peer has written after its call had raised")
    if not bool((outputs == SPOILT).all()):
        problems.append("the engine wrote to the output after the call had raised")
    return problems


@pytest.mark.parametrize("call", [all_to_all, all_gather, broadcast, gather, scatter])
@pytest.mark.parametrize("aborted", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_engine_leaves_the_tensors_alone(call, aborted, tmp_path):
    check_on(HOSTS, raises_in_the_middle, call, aborted, str(tmp_path / "stopped"), timeout=TIMEOUT)
