"""Programs that import torch alone: its API for symmetric memory knows symm all the same."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import IS_SYMM, run_ranks

pytestmark = [
    pytest.mark.skipif(not IS_SYMM, reason="about this package's own registration"),
    pytest.mark.cpu("a matter of imports"),
    pytest.mark.timeout(90),
]


def run_python(text, path=(), **environment):
    """The result of a fresh interpreter that finds modules in `path` first."""
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *inherited])}
    env |= environment
    command = [sys.executable, "-c", text]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_is_loaded_before_the_api_is_imported():
    text = """
import sys
import torch, torch.distributed
assert "torch_symm._C" not in sys.modules
import torch.distributed._symmetric_memory as symm_mem
assert "torch_symm._C" in sys.modules
tensor = symm_mem.empty(8, device="cpu")
print(symm_mem.get_backend("cpu"), tensor.shape[0], tensor.abs().sum().item())
"""
    result = run_python(text)
    assert (result.returncode, result.stdout) == (0, "SYMM 8 0.0\n"), result
    assert result.stderr == "", result


def test_a_program_that_only_looks_for_the_api_finds_it_later():
    text = """
import torch
from importlib.util import find_spec
assert find_spec("torch.distributed._symmetric_memory") is not None
import torch.distributed._symmetric_memory as symm_mem
print(symm_mem.get_backend("cpu"))
"""
    result = run_python(text)
    assert (result.returncode, result.stdout) == (0, "SYMM\n"), result


def test_set_backend_selects_symm_for_gpus():
    text = """
import torch.distributed._symmetric_memory as symm_mem
symm_mem.set_backend("SYMM")
print(symm_mem.get_backend("cuda"))
try:
    symm_mem.set_backend("NOBODY")
except RuntimeError as error:
    print("NOBODY" in str(error))
"""
    result = run_python(text)
    assert (result.returncode, result.stdout) == (0, "SYMM\nTrue\n"), result


def test_a_variable_selects_symm_for_gpus_in_a_program_that_selects_nothing():
    text = """
import torch.distributed._symmetric_memory as symm_mem
print(symm_mem.get_backend("cuda"))
"""
    for variable, chosen in ({"SYMM_MEMORY_PROVIDER": "native"}, "SYMM"), ({}, None):
        result = run_python(text, **variable)
        assert result.returncode == 0, result
        assert (result.stdout == "SYMM\n") == (chosen == "SYMM"), result
        assert result.stderr == "", result


def test_a_wrong_variable_is_named_and_the_api_is_importable():
    text = "import torch.distributed._symmetric_memory as symm_mem; print(symm_mem.empty.__name__)"
    result = run_python(text, SYMM_MEMORY_PROVIDER="nobody")
    assert (result.returncode, result.stdout) == (0, "empty\n"), result
    assert "SYMM_MEMORY_PROVIDER" in result.stderr, result
    assert "nobody" in result.stderr, result


def test_the_import_keeps_what_other_tools_ask_of_a_module():
    text = """
import inspect
import torch.distributed._symmetric_memory as symm_mem
assert "def empty" in inspect.getsource(symm_mem)
assert symm_mem.__spec__.loader.get_filename("torch.distributed._symmetric_memory")
"""
    result = run_python(text)
    assert result.returncode == 0, result


@pytest.mark.parametrize("breakage", ["raise RuntimeError('broken on purpose')\n", "def :\n", ""])
def test_the_api_is_importable_with_a_broken_plugin(breakage, tmp_path):
    shutil.copytree(Path(find_spec("torch_symm").origin).parent, tmp_path / "torch_symm")
    (tmp_path / "torch_symm" / "_registration.py").write_text(breakage)
    text = "import torch.distributed._symmetric_memory as symm_mem; print(symm_mem.empty.__name__)"
    result = run_python(text, [tmp_path])
    assert (result.returncode, result.stdout) == (0, "empty\n"), result
    assert "torch_symm" in result.stderr, result


def _rendezvous_on_gloo(rank):
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    tensor = symm_mem.empty(5, dtype=torch.int64, device="cpu").fill_(10 * rank + 3)
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    handle.barrier()
    found = [handle.get_buffer(peer, (5,), torch.int64).tolist() for peer in range(3)]
    handle.barrier()
    return found


def test_a_gloo_program_has_symmetric_memory():
    expected = [[10 * peer + 3] * 5 for peer in range(3)]
    assert run_ranks(_rendezvous_on_gloo, 3, backend="gloo") == [expected] * 3
