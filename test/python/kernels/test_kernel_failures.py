"""What goes wrong with kernels over torch_symm.triton: waits that nobody ends, and bad input."""

import datetime
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import torch
import torch.distributed as dist

from harness import IS_SYMM, Setup, check, run_ranks
from rank_processes import describe, run_processes

pytestmark = [
    pytest.mark.cpu("the interpreter's tensors are on the CPU"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]

SOON = 5.0  # seconds in which a wait ends that nobody can satisfy; the group's time-out is 30


def symmetric(*shape, dtype=torch.int32, value=0):
    import torch_symm

    return torch_symm.full(shape, value, dtype=dtype, device="cpu")


def error_of(call) -> tuple[str, str]:
    """The type and the text of what `call` raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", "nothing was raised"


def waiting(source, timeout=None, meanwhile=None):
    """(what a wait for a signal that nobody sends has raised, after how many seconds)."""
    import library_kernels as kernels

    flag, out = symmetric(1), torch.zeros(1, dtype=torch.int32)
    ctx = kernels.symm.context(flag, timeout=timeout)
    begun = time.monotonic()
    if meanwhile is not None:
        threading.Timer(0.3, meanwhile).start()
    raised = error_of(lambda: kernels.wait_kernel[(1,)](flag, out, ctx, source))
    assert out.item() == 0, "the kernel went on behind the wait"
    return raised, time.monotonic() - begun, ctx, kernels


def with_a_victim(rank, setup, end):
    """Rank 2 ends once the others wait: rank 0 for it, rank 1 for rank 0, rank 3 for anybody."""
    setup.join(rank)
    if rank == 2:
        import library_kernels as kernels

        kernels.symm.context(symmetric(1))
        time.sleep(0.3)
        end()
        return None
    raised, seconds, _, _ = waiting({0: 2, 1: 0, 3: -1}[rank])
    time.sleep(1)  # a rank that ends has ended, too
    return raised, seconds


def test_a_killed_rank_frees_the_others():
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(f"{folder}/store", 4)
        end = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        reports = run_processes(with_a_victim, 4, setup, end)
    assert reports[2].exit_code == -signal.SIGKILL
    survivors = [reports[rank] for rank in (0, 1, 3)]
    assert all(report.returned for report in survivors), describe(reports)
    for report, whom in zip(survivors, ["rank 2", "rank 0", "any rank"], strict=True):
        (kind, text), seconds = report.value
        assert kind == "DistBackendError"
        assert seconds < SOON, text
        assert f"rank {report.rank}: a kernel's wait for {whom}" in text
        assert "rank 2 has ended" in text


def timed_out(rank):
    raised, seconds, ctx, kernels = waiting(1 - rank, datetime.timedelta(milliseconds=300))
    again = error_of(lambda: kernels.barrier_kernel[(1,)](ctx))
    dist.barrier()
    kernels.barrier_kernel[(1,)](kernels.symm.context(dist.group.WORLD))  # a new one works
    return raised, again, seconds


def test_a_wait_times_out():
    for rank, (raised, again, seconds) in enumerate(run_ranks(timed_out, 2, fresh=True)):
        assert raised[0] == "DistBackendError"
        assert f"Timed out after 300 ms waiting for rank {1 - rank}" in raised[1]
        assert again == raised
        assert 0.3 <= seconds < SOON


def left(rank):
    if rank == 1:
        import library_kernels as kernels

        kernels.symm.context(symmetric(1))
        return None  # which destroys the group and ends
    return waiting(1)[:2]


@pytest.mark.skipif(not IS_SYMM, reason="gloo's ranks leave together")
def test_a_rank_that_has_left_ends_the_waits_for_it():
    raised, seconds = run_ranks(left, 2, fresh=True)[0]
    assert raised[0] == "DistBackendError"
    assert "rank 1 has ended or left the group" in raised[1]
    assert seconds < SOON


def one_leaves_early(rank):
    """Rank 1 leaves; what rank 0 waits for, from anybody, comes from rank 2 a moment later."""
    import library_kernels as kernels

    flag, out = symmetric(1), torch.zeros(1, dtype=torch.int32)
    ctx = kernels.symm.context(flag)
    if rank == 0:
        kernels.wait_kernel[(1,)](flag, out, ctx, -1)
    elif rank == 2:
        time.sleep(0.5)
        kernels.signal_kernel[(1,)](flag, 0, ctx)
    return out.item()


@pytest.mark.skipif(not IS_SYMM, reason="gloo's ranks leave together")
def test_a_rank_that_has_left_ends_no_wait_for_others():
    assert run_ranks(one_leaves_early, 3, fresh=True) == [1, 0, 0]


def aborted(rank):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return waiting(1 - rank, meanwhile=backend.abort if rank == 0 else None)[:2]


@pytest.mark.skipif(not IS_SYMM, reason="gloo does not know abort()")
def test_an_abort_ends_the_waits_of_all():
    with tempfile.TemporaryDirectory() as folder:

        def run(rank, setup):
            setup.join(rank)
            return aborted(rank)

        reports = run_processes(run, 2, Setup(f"{folder}/store", 2))
    assert all(report.returned for report in reports), describe(reports)
    for report in reports:
        (kind, text), seconds = report.value
        assert kind == "DistBackendError"
        assert "abort" in text if report.rank == 0 else "rank 0 has ended or left" in text
        assert seconds < SOON


def destroyed(rank):
    import library_kernels as kernels

    group = dist.new_group([0, 1])
    ctx = kernels.symm.context(symmetric(1), group=group)
    kernels.barrier_kernel[(1,)](ctx)
    dist.destroy_process_group(group)
    return error_of(lambda: kernels.barrier_kernel[(1,)](ctx))


def test_a_context_of_a_destroyed_group():
    for kind, text in run_ranks(destroyed, 2, fresh=True):
        assert kind == "DistBackendError"
        assert text.startswith("ctx: the context's group cannot be used")
        assert "destroyed" in text


def bad_input(rank):
    import library_kernels as kernels

    context = kernels.symm.context
    box, ordinary = symmetric(8), torch.zeros(8, dtype=torch.int32)
    ctx = context(box)
    half = symmetric(8, dtype=torch.float16)

    def unequal():
        kernels.copy_kernel[(1,)](box, torch.zeros(8), ctx, BLOCK=8)

    def half_atomic():
        kernels.count_kernel[(1,)](half, ordinary, 1, context(half))

    return [
        error_of(lambda: context(ordinary)),
        error_of(lambda: context(box, 3)),
        error_of(lambda: context(box, group="nobody")),
        error_of(lambda: context(box, channels=0)),
        error_of(lambda: kernels.peer_kernel[(1,)](box, 2, ctx)),
        error_of(lambda: kernels.peer_kernel[(1,)](box, -1, ctx)),
        error_of(lambda: kernels.peer_kernel[(1,)](ordinary, 1, ctx)),
        error_of(lambda: kernels.peer_kernel[(1,)](box, 1, ordinary.long())),
        error_of(unequal),
        error_of(half_atomic),
    ]


EXPECTED = [
    ("ValueError", "triton.context: tensors[0]: expected a tensor with elements in symmetric"),
    ("TypeError", "triton.context: tensors[1]: expected a tensor, a SymmetricTensor or, alone"),
    ("InvalidArgumentError", "triton.context: group: this rank has no group named 'nobody'"),
    ("ValueError", "triton.context: channels: expected at least 1, got 0"),
    ("ValueError", "peer: expected a rank from 0 to 1, got 2 on rank "),
    ("ValueError", "peer: expected a rank from 0 to 1, got -1 on rank "),
    ("ValueError", "ptr: expected addresses in one tensor of the context, got 0x"),
    ("InterpreterError", "ctx: expected what torch_symm.triton.context() has returned"),
    ("AssertionError", "put: source: expected the dtype of dest"),
    ("AssertionError", "atomics: ptr: expected elements of 32 or 64 bits"),
]


def test_bad_input():
    for raised in run_ranks(bad_input, 2, fresh=True):
        for (kind, text), (expected_kind, words) in zip(raised, EXPECTED, strict=True):
            assert (kind, words in text) == (expected_kind, True), text


def after_bad_input(rank):
    """Errors of arguments end nothing: the context goes on."""
    import library_kernels as kernels

    box = symmetric(8)
    ctx = kernels.symm.context(box)
    kind, _ = error_of(lambda: kernels.peer_kernel[(1,)](box, 9, ctx))
    kernels.peer_kernel[(1,)](box, 1 - rank, ctx)
    kernels.barrier_kernel[(1,)](ctx)
    return [] if (kind, box[0].item()) == ("ValueError", 7) else [f"{kind}, {box}"]


def test_a_wrong_argument_ends_nothing():
    check(after_bad_input, 2)


SPECIALIZED = """
    import sys, datetime
    import torch.distributed as dist
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.nvidia.compiler import CUDABackend
    import torch_symm, torch_symm.triton as symm

    store, rank = dist.FileStore(sys.argv[2], 2), int(sys.argv[1])
    dist.init_process_group("symm", store=store, rank=rank, world_size=2)
    limit = datetime.timedelta(seconds=3)
    ctx = symm.context(torch_symm.zeros(8, device="cpu"), timeout=limit)
    assert native_specialize_impl(CUDABackend, ctx, False, True, True) == ("*i64", "D")
    ctx._status[2] = 4 + 256 * 2  # as a kernel writes when its wait for rank 1 has timed out
    try:
        native_specialize_impl(CUDABackend, ctx, False, True, True)
    except dist.DistBackendError as error:
        print(error)
    dist.barrier()
    dist.destroy_process_group()
"""


def test_a_launch_asks_the_context_what_has_failed(run_script):
    """What Triton does with a kernel's argument when it launches on a GPU."""
    for result in run_script(SPECIALIZED, 2, env={"TRITON_INTERPRET": "0"}):
        assert result.exit_code == 0, result.stderr
        assert "Timed out after 3000 ms waiting for rank 1" in result.stdout


def test_the_interpreter_must_be_known_when_triton_is_imported():
    program = "import os, triton; os.environ['TRITON_INTERPRET'] = '1'; import torch_symm.triton"
    result = run_python(program, TRITON_INTERPRET="0")
    assert result.returncode == 1
    assert "ImportError: torch_symm.triton: TRITON_INTERPRET=1 must be set before" in result.stderr


def run_python(program, **env):
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **env}
    )


def test_without_triton():
    program = "import sys; sys.modules['triton'] = None; import torch_symm.triton"
    result = run_python(program)
    assert result.returncode == 1
    assert "ImportError: torch_symm.triton needs Triton: pip install torch-symm" in result.stderr


def test_a_wrong_value_of_a_variable():
    result = run_python("import torch_symm.triton", SYMM_CHECK="yes")
    assert result.returncode == 1
    assert "ValueError: SYMM_CHECK must be 0 or 1, but is 'yes'" in result.stderr
