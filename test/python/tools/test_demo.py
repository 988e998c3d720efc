"""The demo's verdict: it accepts what the order of additions explains and nothing beyond."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.timeout(60)

DEMO = Path(__file__).resolve().parents[3] / "docs" / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("symm_demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def good_runs() -> list[dict]:
    def phase() -> dict:
        return {"losses": [2.3, 1.1, 0.2], "accuracy": 0.95, "step_ms": [1.0, 1.0, 1.0]}

    return [{"backend": name, "ddp": phase(), "fsdp": phase()} for name in ("first", "second")]


def bench_with(wrong: int, error: str | None = None) -> dict:
    timing = {"time_us": 1.0, "wrong": wrong}
    result = {"backend": "first", "out_of_place": None, "in_place": timing, "error": error}
    return {"rows": [{"collective": "all_reduce", "size": 8, "results": [result, result]}]}


def test_equal_runs_pass_and_so_does_reordering(demo: ModuleType) -> None:
    runs = good_runs()
    runs[1]["fsdp"]["losses"][2] += 1e-7
    assert demo.problems(runs, bench_with(wrong=0)) == []


@pytest.mark.parametrize("loss", [1.1001, float("nan")])
def test_a_different_loss_is_found(demo: ModuleType, loss: float) -> None:
    runs = good_runs()
    runs[1]["ddp"]["losses"][1] = loss
    (found,) = demo.problems(runs, bench_with(wrong=0))
    assert found.startswith("ddp: losses differ")


ABORTED = "traceback : Signal 6 (SIGABRT) received by PID 1"


@pytest.mark.parametrize(
    ("backend", "writes", "said", "goes_on"),
    [
        ("gloo", True, ABORTED, True),
        ("gloo", False, ABORTED, False),
        ("gloo", True, "Signal 11 (SIGSEGV)", False),
        ("symm", True, ABORTED, False),
    ],
)
def test_gloo_alone_may_abort_once_it_has_trained(
    demo: ModuleType, tmp_path, monkeypatch, backend, writes, said, goes_on
) -> None:
    out = tmp_path / "train.json"
    out.write_text('{"of": "a run before"}')

    def output_lines(_command):
        yield '{"phase": "fsdp", "step": 1, "steps": 2, "loss": 0.5}\n'
        if writes:
            out.write_text('{"ranks": 2}')
        raise demo.DemoError(said)

    monkeypatch.setattr(demo, "output_lines", output_lines)
    progress = demo.Progress(console=demo.Console(quiet=True))
    if goes_on:
        assert demo.run_training(backend, 2, out, progress) == {"ranks": 2}
        return
    with pytest.raises(demo.DemoError, match="Signal"):
        demo.run_training(backend, 2, out, progress)


def test_low_and_unequal_accuracies_are_found(demo: ModuleType) -> None:
    runs = good_runs()
    runs[0]["fsdp"]["accuracy"] = 0.5
    found = demo.problems(runs, bench_with(wrong=0))
    assert found == [
        "fsdp: first has accuracy 0.5000",
        "fsdp: accuracies differ: 0.5000, 0.9500",
    ]


def test_wrong_elements_and_refusals_are_found(demo: ModuleType) -> None:
    assert len(demo.problems(good_runs(), bench_with(wrong=1))) == 2
    (first, _) = demo.problems(good_runs(), bench_with(wrong=0, error="not offered"))
    assert first == "all_reduce 8 B first: not offered"
