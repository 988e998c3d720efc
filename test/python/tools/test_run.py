"""torch_symm.run: a script that names another backend runs over symm, and ends as it would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from programs import run_module

SCRIPT = """
import os, sys
import torch, torch.distributed as dist

print(sys.argv[1:], __name__, os.path.basename(__file__))
named = os.environ.get("NAMED", "gloo")
dist.init_process_group(named, store=dist.HashStore(), rank=0, world_size=1)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
print(type(backend).__name__, os.environ["SYMM_REPLACE_BACKEND"])
if "--raise" in sys.argv:
    raise KeyError("on purpose")
sys.exit(5)
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_gets_symm_and_its_own_arguments(script: str) -> None:
    result = run("-m", "torch_symm.run", "--replace", "gloo", script, "--replace", "-x", "3")
    assert result.stdout.splitlines() == [
        "['--replace', '-x', '3'] __main__ script.py",
        "ProcessGroupSymm gloo",
    ], result.stderr
    assert result.returncode == 5


def test_the_exception_of_a_script_comes_through(script: str) -> None:
    result = run("-m", "torch_symm.run", "--replace", "gloo", script, "--raise")
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("KeyError: 'on purpose'")


@pytest.mark.parametrize("named", ["gloo", "cpu:GLOO,cuda:gloo"])
def test_the_variable_alone_replaces_too(script: str, named: str) -> None:
    result = run(script, SYMM_REPLACE_BACKEND="gloo", NAMED=named)
    assert "ProcessGroupSymm gloo" in result.stdout, result.stderr
    assert result.returncode == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--replace", "symm", "script.py"], ["SYMM_REPLACE_BACKEND", "another backend"]),
        (["--replace", "gloo"], ["script"]),
        (["script.py"], ["--replace"]),
    ],
)
def test_wrong_options_are_named(arguments: list[str], words: list[str]) -> None:
    result = run_module("torch_symm.run", *arguments)
    assert result.returncode == 2
    for word in words:
        assert word in result.stderr
