"""torch_symm.ops: a rank that is killed in the middle is named by the others, in time."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from errors import unsaid
from harness import DEVICE, IS_SYMM, ON_CUDA, Setup, synchronize
from rank_processes import describe, start_ranks

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not IS_SYMM, reason="for groups of symm"),
]

WORLD, VICTIM = 3, 1
SOON = 20.0 if ON_CUDA else 5.0  # seconds; the time-out of the group is 60


def forms(ops):
    a, b = torch.ones(240, 64, device=DEVICE), torch.ones(64, 96, device=DEVICE)
    yield "all_gather_matmul", lambda: ops.all_gather_matmul(a, [b], 0, pieces=3)
    yield "matmul_reduce_scatter", lambda: ops.matmul_reduce_scatter(a, b, pieces=3)
    yield "matmul_all_reduce", lambda: ops.matmul_all_reduce(a, b, pieces=3)
    yield "all_reduce_rms_norm", lambda: ops.all_reduce_rms_norm(a, b[:, 0], 1e-5, pieces=3)


def killed_in_the_middle(rank, folder, form):
    """(seconds until this rank was told, what it was told); the victim ends in its third call,
    after it has sent a piece of it."""
    from torch_symm import ccl, ops
    from torch_symm.ops.landing import Exchange

    Setup(os.path.join(folder, "store"), WORLD, timeout=60.0).join(rank)
    call = dict(forms(ops))[form]
    for _ in range(2):
        call()
    synchronize()
    dist.barrier()
    if rank == VICTIM:
        sent = []

        def until_the_second(function):
            def issue(*arguments, **options):
                if sent:
                    os.kill(os.getpid(), signal.SIGKILL)
                sent.append(function(*arguments, **options))
                return sent[-1]

            return issue

        ccl.all_reduce = until_the_second(ccl.all_reduce)
        ccl.reduce_scatter = until_the_second(ccl.reduce_scatter)
        dist.all_gather = until_the_second(dist.all_gather)
        Exchange.put = until_the_second(Exchange.put)  # by copy engines, on GPUs
    start = time.monotonic()
    try:
        while time.monotonic() < start + 2 * SOON:
            call()
            synchronize()
    except RuntimeError as error:
        return time.monotonic() - start, f"{type(error).__name__}: {error}"
    return time.monotonic() - start, "nothing was raised"


FORMS = [
    "all_gather_matmul",
    "matmul_reduce_scatter",
    "matmul_all_reduce",
    "all_reduce_rms_norm",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_killed_rank_is_named(form, tmp_path):
    ranks = start_ranks(killed_in_the_middle, WORLD, (str(tmp_path), form))
    reports = ranks.finish(4 * SOON)
    for report in reports:
        if report.rank == VICTIM:
            assert report.exit_code == -signal.SIGKILL, describe(reports)
            continue
        assert report.returned, describe(reports)
        seconds, text = report.value
        assert seconds < SOON, text
        assert not unsaid(text, ["DistBackendError", f"rank {VICTIM}"])
