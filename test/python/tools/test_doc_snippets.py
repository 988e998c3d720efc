"""The documentation's programs run, and its tuning file is accepted."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import ON_CUDA
from programs import run_script_on_ranks

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for number, (name, text) in enumerate(BLOCK.findall(page.read_text())):
            if name == language:
                found.append(pytest.param(text, id=f"{page.name}-{number}"))
    return found


def torchrun(script: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", blocks("python"))
def test_python_programs_run(program, tmp_path):
    if "import triton" in program and importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    if ON_CUDA and "TRITON_INTERPRET" in program:
        pytest.skip("a fork has the Triton of this process, which is that for GPUs")
    script = tmp_path / "program.py"
    script.write_text(program)
    for rank in run_script_on_ranks(script, 2):
        assert rank.returncode == 0, rank.stderr


@pytest.mark.timeout(120)
@pytest.mark.parametrize("table", blocks("json"))
def test_tuning_files_are_accepted(table, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(table)
    script = tmp_path / "program.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('symm')\n"
        "x = torch.full((100_000,), float(dist.get_rank() + 1))\n"
        "dist.broadcast(x, 1)\n"
        "assert (x == 2).all()\n"
    )
    env = {**os.environ, "SYMM_TUNING_FILE": str(path)}
    for rank in run_script_on_ranks(script, 2, env=env):
        assert rank.returncode == 0, rank.stderr


def test_the_first_program_of_the_readme_runs_as_it_says(tmp_path):
    first = next(param for param in blocks("python") if param.id.startswith("README"))
    script = tmp_path / "program.py"
    script.write_text(first.values[0])
    result = torchrun(script)
    assert result.returncode == 0, result.stderr
    # Where Python does not buffer, the end of a rank's line may come after the other's line.
    lines = re.findall(r"rank .*?\]", result.stdout)
    assert sorted(lines) == [f"rank {rank}: [3.0, 3.0, 3.0, 3.0]" for rank in range(2)]
