"""What goes wrong with kernels over torch_symm.triton: waits that nobody ends, and bad input."""

import datetime
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
from kernel_runs import NEEDS_TRITON, TIME_LIMIT, error_of, launch, ordinary, symmetric

from harness import DEVICE, IS_SYMM, ON_CUDA, Setup, check, run_ranks
from rank_processes import describe, run_processes
from symmetric import meet

pytestmark = [NEEDS_TRITON, pytest.mark.timeout(150)]

# Seconds in which a wait ends that nobody can satisfy; the group's time-out is 30.
SOON = 10.0 if ON_CUDA else 5.0
NOT_ON_A_GPU = pytest.mark.cpu("only the interpreter looks at addresses, and stops at an error")
THE_SAME = pytest.mark.cpu("the same without a GPU")


def waiting(source, timeout=None, meanwhile=None):
    """(what a wait for a signal that nobody sends has raised, after how many seconds, its context).
    Collective but for the wait: the others meet()."""
    import library_kernels as kernels

    flag, out = symmetric(1, value=1), ordinary(1)
    ctx = kernels.symm.context(flag, timeout=timeout)
    launch(kernels.wait_kernel, flag, out, ctx, source)  # ends at once
    flag.zero_()
    out.zero_()
    meet()
    begun = time.monotonic()
    if meanwhile is not None:
        threading.Timer(0.3, meanwhile).start()
    raised = error_of(launch, kernels.wait_kernel, flag, out, ctx, source)
    seconds = time.monotonic() - begun
    assert ON_CUDA or out.item() == 0, "the kernel went on behind the wait"
    return raised, seconds, ctx


def with_a_victim(rank, setup, end):
    """Rank 2 ends once the others wait: rank 0 for it, rank 1 for rank 0, rank 3 for anybody."""
    setup.join(rank)
    if rank == 2:
        import library_kernels as kernels

        ctx = kernels.symm.context(symmetric(1))
        meet()
        time.sleep(0.3)
        end()
        return ctx.rank
    raised, seconds, _ = waiting({0: 2, 1: 0, 3: -1}[rank])
    time.sleep(1)  # a rank that ends has ended, too
    return raised, seconds


def fresh_ranks(body, world_size, **settings):
    return run_ranks(body, world_size, fresh=True, time_limit=TIME_LIMIT, **settings)


def test_a_killed_rank_frees_the_others():
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(f"{folder}/store", 4)
        end = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        reports = run_processes(with_a_victim, 4, setup, end, time_limit=TIME_LIMIT)
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
    import library_kernels as kernels

    raised, seconds, ctx = waiting(1 - rank, datetime.timedelta(milliseconds=300))
    again = error_of(lambda: kernels.barrier_kernel[(1,)](ctx))  # the launch itself raises
    meet()
    launch(kernels.barrier_kernel, kernels.symm.context(dist.group.WORLD))  # a new one works
    return raised, again, seconds


def test_a_wait_times_out():
    for rank, (raised, again, seconds) in enumerate(fresh_ranks(timed_out, 2)):
        assert raised[0] == "DistBackendError"
        assert f"Timed out after 300 ms waiting for rank {1 - rank}" in raised[1]
        assert again == raised
        assert 0.3 <= seconds < SOON


def left(rank):
    if rank == 1:
        import library_kernels as kernels

        ctx = kernels.symm.context(symmetric(1))
        meet()
        return ctx.rank  # then the group is destroyed, and the process ends
    return waiting(1)[:2]


@pytest.mark.skipif(not IS_SYMM, reason="gloo's ranks leave together")
def test_a_rank_that_has_left_ends_the_waits_for_it():
    raised, seconds = fresh_ranks(left, 2)[0]
    assert raised[0] == "DistBackendError"
    assert "rank 1 has ended or left the group" in raised[1]
    assert seconds < SOON


def one_leaves_early(rank):
    """Rank 1 leaves; what rank 0 waits for, from anybody, comes from rank 2 a moment later."""
    import library_kernels as kernels

    flag, out = symmetric(1), ordinary(1, value=0)
    ctx = kernels.symm.context(flag)
    if rank == 0:
        launch(kernels.wait_kernel, flag, out, ctx, -1)
    elif rank == 2:
        time.sleep(0.5)
        launch(kernels.signal_kernel, flag, 0, ctx)
    return out.item()


@pytest.mark.skipif(not IS_SYMM, reason="gloo's ranks leave together")
def test_a_rank_that_has_left_ends_no_wait_for_others():
    assert fresh_ranks(one_leaves_early, 3) == [1, 0, 0]


def aborted(rank):
    backend = dist.group.WORLD._get_backend(torch.device(DEVICE))
    return waiting(1 - rank, meanwhile=backend.abort if rank == 0 else None)[:2]


@pytest.mark.skipif(not IS_SYMM, reason="gloo does not know abort()")
def test_an_abort_ends_the_waits_of_all():
    with tempfile.TemporaryDirectory() as folder:

        def run(rank, setup):
            setup.join(rank)
            return aborted(rank)

        reports = run_processes(run, 2, Setup(f"{folder}/store", 2), time_limit=TIME_LIMIT)
    assert all(report.returned for report in reports), describe(reports)
    for report in reports:
        (kind, text), seconds = report.value
        assert kind == "DistBackendError"
        # The other rank hears of it by the group's failure, or sees first that rank 0 is gone.
        heard = ["rank 0 has ended or left", "rank 0 gave up: aborted: abort() was called"]
        expected = ["abort"] if report.rank == 0 else heard
        assert any(words in text for words in expected), text
        assert seconds < SOON


def destroyed(rank):
    import library_kernels as kernels

    group = dist.new_group([0, 1])
    ctx = kernels.symm.context(symmetric(1), group=group)
    launch(kernels.barrier_kernel, ctx)
    dist.destroy_process_group(group)
    return error_of(lambda: kernels.barrier_kernel[(1,)](ctx))


def test_a_context_of_a_destroyed_group():
    for kind, text in fresh_ranks(destroyed, 2):
        assert kind == "DistBackendError"
        assert text.startswith("ctx: the context's group cannot be used")
        assert "destroyed" in text


def bad_input(rank):
    import library_kernels as kernels

    context = kernels.symm.context
    box, plain = symmetric(8), ordinary(8)
    ctx = context(box)
    half, floats = symmetric(8, dtype=torch.float16), ordinary(8, dtype=torch.float32)
    of_half = context(half)
    meet()
    return [
        error_of(context, plain),
        error_of(context, box, 3),
        error_of(context, box, group="nobody"),
        error_of(context, box, channels=0),
        error_of(launch, kernels.copy_kernel, box, floats, ctx, BLOCK=8),
        error_of(launch, kernels.count_kernel, half, plain, 1, of_half),
    ]


STATIC = "CompileTimeAssertionFailure" if ON_CUDA else "AssertionError"
EXPECTED = [
    ("ValueError", "triton.context: tensors[0]: expected a tensor with elements in symmetric"),
    ("TypeError", "triton.context: tensors[1]: expected a tensor, a SymmetricTensor or, alone"),
    ("InvalidArgumentError", "triton.context: group: this rank has no group named 'nobody'"),
    ("ValueError", "triton.context: channels: expected at least 1, got 0"),
    (STATIC, "put: source: expected the dtype of dest"),
    (STATIC, "atomics: ptr: expected elements of 32 or 64 bits"),
]


def expect_errors(found, expected):
    for raised in found:
        for (kind, text), (expected_kind, words) in zip(raised, expected, strict=True):
            assert (kind, words in text) == (expected_kind, True), text


def test_bad_input():
    expect_errors(fresh_ranks(bad_input, 2), EXPECTED)


def bad_peers(rank):
    """Each with a context of its own: on a GPU the first error stays. The kernel then writes to its
    own rank."""
    import library_kernels as kernels

    box, raised = symmetric(8), []
    for peer in (2, -1):
        ctx = kernels.symm.context(box)
        raised.append(error_of(launch, kernels.peer_kernel, box, peer, ctx))
        if ON_CUDA:
            raised.append(error_of(lambda ctx=ctx: kernels.barrier_kernel[(1,)](ctx)))
    meet()
    return raised, box[0].item()


def test_a_peer_that_is_not_there():
    results = fresh_ranks(bad_peers, 2, env={"SYMM_CHECK": "1"})
    for rank, (raised, _) in enumerate(results):
        text = f"peer: expected a rank from 0 to 1, got %d on rank {rank}"
        times = 2 if ON_CUDA else 1  # the next launch says so, too
        assert raised == [("ValueError", text % peer) for peer in (2, -1) for _ in range(times)]
    assert [written for _, written in results] == [7 if ON_CUDA else -1] * 2


def bad_addresses(rank):
    import library_kernels as kernels

    box, plain = symmetric(8), ordinary(8)
    ctx = kernels.symm.context(box)
    return [
        error_of(launch, kernels.peer_kernel, plain, 1, ctx),
        error_of(launch, kernels.peer_kernel, box, 1, plain.long()),
    ]


BAD_ADDRESSES = [
    ("ValueError", "ptr: expected addresses in one tensor of the context, got 0x"),
    ("InterpreterError", "ctx: expected what torch_symm.triton.context() has returned"),
]


@NOT_ON_A_GPU
def test_bad_addresses():
    expect_errors(fresh_ranks(bad_addresses, 2), BAD_ADDRESSES)


def after_bad_input(rank):
    """Errors of arguments end nothing: the context goes on."""
    import library_kernels as kernels

    box = symmetric(8)
    ctx = kernels.symm.context(box)
    kind, _ = error_of(launch, kernels.peer_kernel, box, 9, ctx)
    launch(kernels.peer_kernel, box, 1 - rank, ctx)
    launch(kernels.barrier_kernel, ctx)
    return [] if (kind, box[0].item()) == ("ValueError", 7) else [f"{kind}, {box}"]


@NOT_ON_A_GPU
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


@THE_SAME
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


@THE_SAME
def test_without_triton():
    program = "import sys; sys.modules['triton'] = None; import torch_symm.triton"
    result = run_python(program)
    assert result.returncode == 1
    assert "ImportError: torch_symm.triton needs Triton: pip install torch-symm" in result.stderr


@THE_SAME
def test_a_wrong_value_of_a_variable():
    result = run_python("import torch_symm.triton", SYMM_CHECK="yes")
    assert result.returncode == 1
    assert "ValueError: SYMM_CHECK must be 0 or 1, but is 'yes'" in result.stderr
