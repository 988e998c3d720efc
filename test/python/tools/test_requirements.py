"""The package needs torch alone; each tool says in one sentence what else it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import runpy, sys
for name in {absent!r}:
    sys.modules[name] = None
sys.argv = ["program", *{arguments!r}]
"""
CORE = """
import torch, torch.distributed as dist
import torch_symm
from torch_symm import ccl

options = torch_symm.Options()
dist.init_process_group("symm", store=dist.HashStore(), rank=0, world_size=1, pg_options=options)
tensor = torch.full((5,), 3.0)
dist.all_reduce(tensor)
ccl.all_reduce(tensor, tensor)
assert tensor.tolist() == [3.0] * 5, tensor
shared = torch_symm.zeros(4)
assert torch_symm.is_symmetric(shared)
assert not any(name.startswith("torch_symm.tools") for name in sys.modules)
dist.destroy_process_group()
print("done")
"""
TOOLS = {
    "audit": ["typer"],
    "bench": ["numpy", "rich", "typer"],
    "probe": ["numpy", "rich", "typer"],
    "info": ["rich", "typer"],
    "run": ["rich", "typer"],
}


def run_without(
    absent: list[str], program: str, arguments: list[str] | None = None
) -> subprocess.CompletedProcess:
    text = WITHOUT.format(absent=absent, arguments=arguments or []) + program
    command = [sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_core_needs_no_package_of_the_tools() -> None:
    result = run_without(["matplotlib", "numpy", "rich", "typer"], CORE)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def run_tool(tool: str, absent: list[str], arguments: list[str]) -> subprocess.CompletedProcess:
    program = f"runpy.run_module('torch_symm.{tool}', run_name='__main__', alter_sys=True)"
    return run_without(absent, program, arguments)


@pytest.mark.parametrize(
    ("tool", "absent"), [(tool, name) for tool, names in TOOLS.items() for name in names]
)
def test_a_tool_says_which_package_it_needs(tool: str, absent: str) -> None:
    result = run_tool(tool, [absent], ["--help"])
    assert result.returncode == 2
    assert not result.stdout
    assert result.stderr == (
        f"python -m torch_symm.{tool} needs {absent}: pip install 'torch-symm[tools]'\n"
    )


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_names_all_that_it_needs(tool: str) -> None:
    result = run_tool(tool, TOOLS[tool], [])
    assert result.returncode == 2
    assert f"needs {' and '.join(TOOLS[tool])}: pip install" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_picture_needs_matplotlib_before_anything_is_measured() -> None:
    result = run_tool("bench", ["matplotlib"], ["-n", "2", "--plot", "no_such_folder/picture.png"])
    assert result.returncode == 2
    assert not result.stdout
    assert result.stderr == (
        "python -m torch_symm.bench --plot needs matplotlib: pip install 'torch-symm[tools]'\n"
    )
