"""The wheel that `make wheel` builds, in an environment that has torch and no symm."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.cpu("the wheel is built on the machine that `make` has set up"),
    pytest.mark.skipif(
        not (ROOT / ".cache/python").exists(), reason="needs what `make build` made"
    ),
]


def run(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **options,
    )


def environment_without_symm(folder: Path) -> Path:
    """A virtual environment that sees every package beside torch but this one; its Python."""
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(torch.__file__).parents[1].iterdir():
        if not entry.name.startswith(("torch_symm", "__editable__")) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    python = folder / "venv/bin/python"
    done = run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    assert done.returncode == 0, done.stderr
    where = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    Path(where.stdout.strip(), "torch.pth").write_text(f"{packages}\n")
    return python


def first_program() -> str:
    return re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[1]


def test_it_runs_the_first_program_where_symm_was_not(tmp_path):
    built = run(ROOT / ".ci/wheel.sh", tmp_path / "dist")
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert "+torch" + ".".join(torch.__version__.split(".")[:2]) in wheel.name

    python = environment_without_symm(tmp_path)
    (tmp_path / "first_program.py").write_text(first_program())
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    before = run(*torchrun, "first_program.py", cwd=tmp_path)
    assert before.returncode != 0
    assert "symm" in before.stderr

    installed = run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    assert installed.returncode == 0, installed.stderr
    after = run(*torchrun, "first_program.py", cwd=tmp_path)
    assert after.returncode == 0, after.stderr
    # Where Python does not buffer, the end of a rank's line may come after the other's line.
    lines = re.findall(r"rank .*?\]", after.stdout)
    assert sorted(lines) == [f"rank {rank}: [3.0, 3.0, 3.0, 3.0]" for rank in range(2)]
