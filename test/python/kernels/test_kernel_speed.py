"""test/machine/speed/kernel_speed.py measures what it says, and its values are right; the times of
the interpreter mean nothing."""

import json
import os
from pathlib import Path

import pytest
from kernel_runs import NEEDS_TRITON

from programs import run_script_on_ranks

pytestmark = [pytest.mark.long, pytest.mark.cpu("it needs a GPU for each rank"), NEEDS_TRITON]
SCRIPT = Path(__file__).resolve().parents[2] / "machine" / "speed" / "kernel_speed.py"


def test_it_runs_on_a_cpu(tmp_path):
    path = tmp_path / "speed.json"
    options = ("--device", "cpu", "--quick", "--json", str(path))
    for result in run_script_on_ranks(SCRIPT, 2, *options, env=dict(os.environ)):
        assert result.returncode == 0, result.stdout + result.stderr
    results = json.loads(path.read_text())
    rows = [row for part in ("signal", "all_reduce", "copy", "fused") for row in results[part]]
    assert not [row for row in rows if "error" in row or row.get("wrong")]
    ways = {row.get("way", row.get("what")) for row in rows}
    assert {"signal", "put", "get", "send", "example", "operator over SYMM"} <= ways


def test_the_sweep_runs_on_a_cpu(tmp_path):
    path = tmp_path / "sweep.json"
    options = ("--device", "cpu", "--quick", "--parts", "fused", "--sweep", "--json", str(path))
    for result in run_script_on_ranks(SCRIPT, 2, *options, env=dict(os.environ)):
        assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(path.read_text())["fused"]
    tried = [row for row in rows if row["what"] == "variant"]
    assert [(row["parts"], row["wrong"], "error" in row) for row in tried] == [
        (2, 0, False),
        (1, 0, False),
    ]
    best = [row["us"] for row in rows if row["what"] == "best variant"]
    assert best == sorted(row["us"] for row in tried)
