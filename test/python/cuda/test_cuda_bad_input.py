"""What only CUDA tensors can get wrong: refused with a sentence that names it, after which the
group works on every rank, on the GPU and on the CPU."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness import BACKEND, WORLD_SIZE, check
from refused_calls import CUDA_CASES, another_gpu, cuda, refused

pytestmark = pytest.mark.cuda


def is_refused(rank, call, patterns):
    """By a group that has used its GPUs, and works on either device afterwards."""
    dist.all_reduce(torch.ones(3, device="cuda"))
    return refused(rank, call, patterns, devices=("cuda", "cpu"))


def run_case(rank, name):
    return is_refused(rank, *CUDA_CASES[name])


@pytest.mark.parametrize("name", CUDA_CASES)
def test_is_refused(name):
    check(run_case, WORLD_SIZE, name)


def tensor_on_another_gpu(rank):
    here, there = torch.device("cuda", torch.cuda.current_device()), another_gpu()

    def call():
        dist.all_reduce(torch.ones(4, device=there))

    return is_refused(rank, call, [str(here), str(there)])


@pytest.mark.gpus(2)
def test_tensor_on_another_gpu_than_the_group():
    check(tensor_on_another_gpu, WORLD_SIZE)


def list_over_two_gpus(rank):
    there = another_gpu()

    def call():
        parts = [torch.zeros(2, device="cuda") for _ in range(WORLD_SIZE)]
        dist.all_gather([*parts[1:], torch.zeros(2, device=there)], cuda())

    return is_refused(rank, call, ["all_gather", str(there)])


@pytest.mark.gpus(2)
def test_a_list_over_two_gpus():
    check(list_over_two_gpus, WORLD_SIZE)


CPU_PROGRAM = f"""
import sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group({BACKEND!r}, store=store, rank=rank, world_size=2)
tensor = torch.full((1000,), rank + 1.0)
dist.all_reduce(tensor)
print("sum", tensor[7].item(), "GPUs", torch.cuda.device_count())
dist.barrier()
dist.destroy_process_group()
"""


def test_no_gpu_visible(run_script):
    """The CPU side works as if there were no CUDA."""
    results = run_script(CPU_PROGRAM, world_size=2, env={"CUDA_VISIBLE_DEVICES": ""})
    for result in results:
        assert (result.exit_code, result.stdout) == (0, "sum 3.0 GPUs 0\n"), result
        assert "Traceback" not in result.stderr, result


MISSING_LIBRARY = f"""
import sys, torch, torch.distributed as dist
import torch_symm._C as compiled
print("problem:", compiled.device_library_problem("cuda"))
store = dist.FileStore(sys.argv[1], 1)
dist.init_process_group({BACKEND!r}, store=store, rank=0, world_size=1)
try:
    dist.all_reduce(torch.ones(4, device="cuda"))
    print("no error")
except Exception as error:
    print("error:", str(error).splitlines()[0])
tensor = torch.ones(4)
dist.all_reduce(tensor)
print("on the CPU:", tensor.tolist())
"""


def test_device_library_missing(tmp_path):
    """One sentence that names the file and where it was looked for; CPU tensors still work."""
    installed = Path(find_spec("torch_symm").origin).parent
    ignore = shutil.ignore_patterns("libsymm_cuda*", "__pycache__")
    shutil.copytree(installed, tmp_path / "torch_symm", ignore=ignore)
    for info in installed.parent.glob("torch_symm-*.dist-info"):
        shutil.copytree(info, tmp_path / info.name)
    command = [sys.executable, "-c", MISSING_LIBRARY, str(tmp_path / "store")]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result
    lines = result.stdout.splitlines()
    assert len(lines) == 3, result
    starts = ("problem: ", "error: ", "on the CPU: [1.0, 1.0, 1.0, 1.0]")
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start), result
    for line in lines[:2]:
        assert "libsymm_cuda.so" in line, result
        assert str(tmp_path) in line, result


def environment(first_folder):
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(first_folder), inherited])}
