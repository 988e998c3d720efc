"""The probe: it finds what a faulty graph leaves, and says so of no sound one.

Where there is no GPU, a stand-in for the capture replays a function on a thread, soundly or with a
fault, over Gloo: it is the probe that is tested here and not the backend under it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from rich.console import Console

from programs import run_module
from torch_symm.tools.bench.config import ConfigError
from torch_symm.tools.bench.pattern import poison
from torch_symm.tools.probe.config import ProbeConfig, is_symm
from torch_symm.tools.probe.examine import wrong_value
from torch_symm.tools.probe.fused import FUSED
from torch_symm.tools.probe.launch import ProbeJob
from torch_symm.tools.probe.operations import OPERATIONS
from torch_symm.tools.probe.report import ProbeReport
from torch_symm.tools.probe.verdict import Finding, Result, Verdict, worst
from torch_symm.tools.ranks.job import Gravity, Trouble

pytestmark = pytest.mark.timeout(120)

WORLD_SIZE = 3
WARM = [name for name, operation in OPERATIONS.items() if not operation.cold]


@pytest.mark.parametrize("name", [name for name in WARM if name != "barrier"])
@pytest.mark.parametrize("rank", range(WORLD_SIZE))
def test_poison_is_never_a_right_result(name: str, rank: int) -> None:
    """Without any process: the expected output is right, an altered and a poisoned one wrong."""
    operation = OPERATIONS[name]
    device = torch.device("cpu")
    buffers = operation.make(rank, WORLD_SIZE, torch.float32, device, size=96)
    pattern = buffers.pattern(salt=3)
    buffers.prepare_check(pattern)
    expected = buffers.expected_output(pattern)
    if expected is None:
        assert rank != WORLD_SIZE - 1, "the root's result is checked"
        return
    assert expected.numel() == buffers.output.numel()
    buffers.output.copy_(expected)
    assert wrong_value(buffers, pattern) is None
    buffers.output[-1] += 1
    assert f"element {expected.numel() - 1} is" in wrong_value(buffers, pattern)
    poison(buffers.output)
    assert "output element 0 is nan" in wrong_value(buffers, pattern)


def test_the_worst_rank_counts() -> None:
    good = Finding(Verdict.CAPTURES)
    uncaptured = Finding(Verdict.NO_CAPTURE, "not permitted")
    wrong = Finding(Verdict.WRONG_AT_REPLAY, "replay 2: output element 3 is 1, expected 2")
    assert worst("b", "o", [good, good]) == Result("b", "o", Verdict.CAPTURES)
    assert worst("b", "o", [good, wrong, uncaptured, wrong]) == Result(
        "b", "o", Verdict.WRONG_AT_REPLAY, wrong.reason, 1
    )


def test_a_run_goes_on_past_deaths_and_hangs() -> None:
    config = ProbeConfig(backends=("symm", "nccl"), operations=("broadcast", "barrier"))
    results: list[Result] = []
    job = ProbeJob(config, results.append)
    assert job.assignment()[1] == 0
    job.received(Result("symm", "broadcast", Verdict.CAPTURES))
    job.ended(Trouble(1, Gravity.LATE, "did not finish within 60 s", "barrier on symm: capture", 1))
    assert job.assignment()[1] == 2
    # In trouble about an operation whose result is there already.
    job.received(Result("nccl", "broadcast", Verdict.CAPTURES))
    job.ended(Trouble(0, Gravity.DIED, "was ended by SIGABRT", "broadcast on nccl: replay 5", 2))
    assert job.assignment()[1] == 3
    job.ended(Trouble(0, Gravity.DIED, "was ended by SIGABRT", "barrier on nccl: capture", 3))
    assert job.assignment() is None
    assert results[1] == Result(
        "symm", "barrier", Verdict.NOT_FINISHED, "did not finish within 60 s (capture)", 1
    )
    assert results[3] == Result(
        "nccl", "barrier", Verdict.DIED, "was ended by SIGABRT (capture)", 0
    )


def test_cold_calls_and_fused_forms_are_examined_on_symm_alone() -> None:
    names = {backend: set() for backend in ("cpu:gloo,cuda:symm", "nccl")}
    for backend, name in ProbeConfig(backends=tuple(names)).cases:
        names[backend].add(name)
    cold = set(OPERATIONS) - set(WARM)
    assert names["cpu:gloo,cuda:symm"] - names["nccl"] == cold | set(FUSED)
    assert names["cpu:gloo,cuda:symm"] == set(OPERATIONS)
    assert is_symm("symm")
    assert not is_symm("nccl")


def test_the_summary_and_the_json_have_every_verdict(tmp_path: Path) -> None:
    config = ProbeConfig(backends=("symm", "nccl"), operations=("barrier", "cold_all_reduce"))
    with (tmp_path / "text").open("w") as file:
        with ProbeReport(config, {"gpus": "2 x none"}, Console(file=file, width=120)) as report:
            report.add(Result("symm", "barrier", Verdict.CAPTURES))
            report.add(Result("symm", "cold_all_reduce", Verdict.COLD_REFUSED))
            assert not report.failed()
            report.add(Result("nccl", "barrier", Verdict.NO_CAPTURE, "not permitted", 1))
            assert not report.failed(), "another backend's verdict counts as the first one's"
    text = (tmp_path / "text").read_text()
    assert "nccl barrier: does not capture (rank 1: not permitted)" in text
    assert "cold call refused" in text
    report.write(tmp_path / "probe.json")
    document = json.loads((tmp_path / "probe.json").read_text())
    assert document["machine"] == {"gpus": "2 x none"}
    assert document["complete"] is True
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in document["config"].items()}
    assert ProbeConfig(**options) == config
    assert document["results"][2] == {
        "backend": "nccl",
        "operation": "barrier",
        "verdict": "does not capture",
        "good": False,
        "reason": "not permitted",
        "rank": 1,
    }


def test_a_missing_result_is_a_failure() -> None:
    config = ProbeConfig(operations=("barrier", "reduce"))
    report = ProbeReport(config, {}, Console(quiet=True))
    report.add(Result("symm", "barrier", Verdict.CAPTURES))
    assert report.failed()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": ("all_sum",)}, "--operation: expected one of .*, got 'all_sum'"),
        ({"dtype": "int32"}, "--dtype: expected one of .*, got 'int32'"),
        ({"ranks": 1}, "--ranks: .* expected at least 2, got 1"),
        ({"replays": 1}, "--replays: expected at least 2, got 1"),
        ({"case_s": 0}, "--case-seconds: expected more than 0, got 0"),
        ({"sizes": (2,)}, "--size: expected at least 4, got 2"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProbeConfig(**options)


def run_probe(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_module("torch_symm.probe", *options, env=os.environ | variables)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--device=cpu",), "error: --device: the CPU has no graphs, so nothing can be captured"),
        (("--device=tpu",), "error: --device: expected cuda, got 'tpu'"),
        ((), "error: --device: cuda cannot be used here: "),
    ],
)
def test_without_graphs_it_says_so_in_one_sentence(options: tuple, sentence: str) -> None:
    done = run_probe(*options, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.cuda
def test_every_operation_of_symm_captures(tmp_path: Path) -> None:
    out = tmp_path / "probe.json"
    done = run_probe("--ranks=2", "-s", "1K", "-s", "1M", f"--json={out}")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text())
    assert document["complete"] is True
    assert {result["operation"] for result in document["results"]} == set(OPERATIONS)
    for result in document["results"]:
        cold = OPERATIONS[result["operation"]].cold
        assert result["verdict"] == ("cold call refused" if cold else "captures")
