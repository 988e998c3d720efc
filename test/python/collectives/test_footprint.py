"""What symm costs a process: threads, shared memory, and time at `import torch`."""

import os
import re
import shutil
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from call import Call
from calls import (
    EVERY_CALL,
    MOVES,
    OBJECTS,
    REDUCTIONS,
    barrier,
    coalescing_manager_all_gather,
    coalescing_manager_of_device,
)
from harness import IS_SYMM, expect_no_mismatch, run_ranks

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="about this backend's own costs"),
    pytest.mark.cpu("what a GPU holds is in test_cuda_footprint.py; the rest has no device"),
]

MIB = 1 << 20
LARGE = 150_001  # elements: float32 of more than the slots that a group has from its start


def run_calls(collectives, rank, world_size, count):
    problems = []
    for salt, collective in enumerate(collectives):
        call = Call(None, list(range(world_size)), rank, count=count, salt=salt)
        collective(call)
        problems += call.finish()
    return problems


def threads():
    """The names of symm's threads in this process. Others, such as a GPU driver's, do not count."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return sorted(name for name in names if name.startswith("symm_"))


def exchange_both_ways():
    rank = dist.get_rank()
    works = [dist.isend(torch.ones(LARGE), 1 - rank), dist.irecv(torch.ones(LARGE), 1 - rank)]
    for work in works:
        work.wait()


def test_no_thread_before_the_first_call_that_needs_one():
    before = []
    torch_version = tuple(int(part) for part in torch.__version__.split(".")[:2])

    def body(rank):
        synchronous = [*REDUCTIONS, *MOVES, *OBJECTS, barrier]
        # Between the start and the end of coalescing every call is asynchronous.
        synchronous.remove(coalescing_manager_of_device)
        if torch_version < (2, 13):  # torch makes it asynchronous without being asked
            synchronous.remove(coalescing_manager_all_gather)
        problems = run_calls(synchronous, rank, 2, 5) + run_calls(synchronous, rank, 2, 60_001)
        names = [*before, threads()]
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        names.append(threads())
        exchange_both_ways()
        return problems, [*names, threads()]

    results = run_ranks(body, 2, before_init=lambda: before.append(threads()))
    expect_no_mismatch([problems for problems, _ in results])
    for _, (*before_transfers, after_transfers) in results:
        assert before_transfers == [[], [], ["symm_async"]], results
        assert after_transfers == ["symm_async", "symm_transfers"], results


def shared_memory():
    """{inode: bytes} of the symmetric memory, own and peers', that this process has mapped."""
    found, inode = {}, None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inode = line.split()[4] if "/memfd:symm" in line else None
        elif inode and line.startswith("Size:"):
            found[inode] = found.get(inode, 0) + int(line.split()[1]) * 1024
    return found


def _options(workspace_bytes):
    import torch_symm

    options = torch_symm.Options()
    options.workspace_bytes = workspace_bytes
    return options


@pytest.mark.alone
@pytest.mark.parametrize("workspace", [1 * MIB, 8 * MIB])
def test_a_group_adds_its_workspace_and_at_most_two_mebibytes(workspace):
    def body(rank):
        at_start = sum(shared_memory().values())
        problems = run_calls(EVERY_CALL, rank, 3, LARGE)
        after_each_call_once = shared_memory()
        problems += run_calls(EVERY_CALL, rank, 3, LARGE)
        if shared_memory() != after_each_call_once:
            problems.append(f"memory changed from {after_each_call_once} to {shared_memory()}")
        return problems, at_start, sum(after_each_call_once.values())

    results = run_ranks(body, 3, options=lambda: _options(workspace), time_limit=100)
    expect_no_mismatch([problems for problems, _, _ in results])
    for rank, (_, at_start, at_end) in enumerate(results):
        where = f"rank {rank}: {at_start} bytes at start, {at_end} at the end"
        assert 0 < at_start <= 3 * 2 * MIB, where
        assert 3 * workspace < at_end <= 3 * (workspace + 2 * MIB), where


def run_python(text, path=()):
    """The result of a fresh interpreter that finds modules in `path` first."""
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *inherited])}
    command = [sys.executable, "-c", text]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.alone
def test_autoload_is_cheap():
    text = """
import os, sys, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
assert "torch_symm" not in sys.modules
from torch_symm._autoload import autoload
start = time.process_time()
autoload()
print(time.process_time() - start)
assert "torch_symm._registration" in sys.modules and "torch_symm._C" not in sys.modules
"""
    results = [run_python(text) for _ in range(3)]
    assert all(r.returncode == 0 for r in results), results
    seconds = [float(r.stdout) for r in results]
    assert statistics.median(seconds) < 0.005, seconds


BREAKAGES = {
    "raises": "raise RuntimeError('broken on purpose')\n",
    "misses": "import a_module_that_nobody_has\n",
    "no_python": "def :\n",
    "no_names": "",
}


@pytest.mark.parametrize("breakage", BREAKAGES)
@pytest.mark.parametrize("module", ["_registration", "_environment"])
def test_torch_is_importable_with_a_broken_plugin(module, breakage, tmp_path):
    installed = Path(find_spec("torch_symm").origin).parent
    shutil.copytree(installed, tmp_path / "torch_symm")
    broken = tmp_path / "torch_symm" / f"{module}.py"
    broken.write_text(BREAKAGES[breakage])
    result = run_python("import torch; print(torch.ones(2).sum().item())", [tmp_path])
    assert (result.returncode, result.stdout) == (0, "2.0\n"), result
    assert "torch_symm" in result.stderr, result
