"""Programs over widely used packages, unchanged. Each names gloo, as those packages do on a CPU,
and runs over it and, by SYMM_REPLACE_BACKEND=gloo, over symm: it must compute the same.

A program whose packages are missing is skipped, and the reason names them.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = 3
PROGRAMS = {
    "accelerate": ["accelerate"],
    "transformers": ["transformers", "accelerate"],
    "fabric": ["lightning"],
    "lightning": ["lightning", "torchmetrics"],
}
FOLDER = Path(__file__).resolve().parent
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.timeout(300)


def run(script: Path, ranks: int = RANKS, **environment: str) -> subprocess.CompletedProcess:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, "--nproc-per-node", str(ranks), str(script)],
        env={**os.environ, **OFFLINE, **environment},
        capture_output=True,
        text=True,
        timeout=140,
    )


def reported(program: str, backend: str, **environment: str) -> dict[str, float]:
    """What the ranks computed, which all of them did over `backend`, and alike."""
    result = run(FOLDER / f"{program}_program.py", **environment)
    # Rank processes of gloo were seen to abort at their end, when all was done.
    assert result.returncode == 0 or backend == "ProcessGroupGloo", result.stdout + result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("report ")]
    reports = [json.loads(line.removeprefix("report ")) for line in lines]
    assert sorted(one["rank"] for one in reports) == list(range(RANKS)), result.stderr
    assert {one["backend"] for one in reports} == {backend}
    assert all(one["figures"] == reports[0]["figures"] for one in reports), reports
    return reports[0]["figures"]


def skip_without(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_computes_what_it_does_over_gloo(program):
    skip_without(*PROGRAMS[program])
    over_gloo = reported(program, "ProcessGroupGloo")
    over_symm = reported(program, "ProcessGroupSymm", SYMM_REPLACE_BACKEND="gloo")
    assert over_symm == pytest.approx(over_gloo, rel=1e-5)


@pytest.mark.parametrize("script", ["test_script", "test_ops", "test_sync"])
def test_scripts_that_accelerate_ships(script):
    skip_without("accelerate")
    package = Path(importlib.util.find_spec("accelerate").origin).parent
    environment = {"SYMM_REPLACE_BACKEND": "gloo", "ACCELERATE_USE_CPU": "true"}
    result = run(package / f"test_utils/scripts/{script}.py", ranks=2, **environment)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ranks_that_make_different_calls_are_told():
    """Accelerate's script of uneven inputs lets one rank of a CPU run forward once more than the
    other. Over gloo both wait."""
    skip_without("accelerate")
    package = Path(importlib.util.find_spec("accelerate").origin).parent
    environment = {"SYMM_REPLACE_BACKEND": "gloo", "ACCELERATE_USE_CPU": "true"}
    script = package / "test_utils/scripts/test_distributed_data_loop.py"
    result = run(script, ranks=2, **environment)
    assert result.returncode == 1
    words = "rank 0 called broadcast(int32, count 3, root 0, one_shot), rank 1 called barrier"
    assert words in result.stderr, result.stderr
