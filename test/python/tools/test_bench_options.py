"""The options of the bench: what is read, refused and kept."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torch_symm.tools.bench import cli
from torch_symm.tools.bench.config import BenchConfig, ConfigError, format_size, parse_size


def test_sizes_are_read_and_validated() -> None:
    assert [parse_size(text, "--min") for text in ("8", "64K", "1M", "2gib")] == [
        8,
        65536,
        1 << 20,
        2 << 30,
    ]
    assert format_size(65536) == "64K"
    assert BenchConfig(min_bytes=8, max_bytes=100, factor=4).sizes == (8, 32)
    assert BenchConfig(min_bytes=8, max_bytes=20, step=5).sizes == (8, 13, 18)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collectives": ("all_sum",)}, "--collective: expected one of .*, got 'all_sum'"),
        ({"dtype": "float"}, "--dtype: .*, got 'float'"),
        ({"op": "band"}, "--op: band needs an integer --dtype, got float32"),
        ({"root": 2}, "--root: expected a rank below 2, got 2"),
        ({"factor": 1}, "--factor: expected at least 2, got 1"),
        ({"min_bytes": 64, "max_bytes": 8}, "--max: expected at least 64, got 8"),
        ({"ranks": 1}, "--ranks: sendrecv needs at least 2 ranks, got 1"),
        ({"device": "tpu"}, "--device: .*, got 'tpu'"),
        ({"modes": ("graph",)}, "--mode: the CPU has no graphs"),
        ({"modes": ("overlapped",)}, "--mode: the CPU has no streams; overlapped needs --device"),
        ({"modes": ("lazy",)}, "--mode: expected one of eager, graph, overlapped, got 'lazy'"),
        ({"against": ("nccl-ring-8",)}, "--against: nccl-ring-8 is measured on GPUs, got --device"),
        ({"backend": "nccl-tree-1"}, "--backend: nccl-tree-1 is a name for --against alone"),
        ({"case_s": 0}, "--case-seconds: expected more than 0, got 0"),
        ({"budget_s": -1.0}, "--budget-seconds: expected more than 0, got -1.0"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchConfig(**options)


@pytest.mark.parametrize(
    ("given", "modes"),
    [
        ([], ("eager", "graph")),
        (["both"], ("eager", "graph")),
        (["eager", "graph"], ("eager", "graph")),
        (["graph", "overlapped", "graph"], ("graph", "overlapped")),
    ],
)
def test_modes_may_be_repeated(monkeypatch, given: list[str], modes: tuple[str, ...]) -> None:
    measured = []
    monkeypatch.setattr(cli, "check_device", lambda device: None)
    monkeypatch.setattr(cli, "carry_out", lambda config, *rest: measured.append(config.modes))
    words = ["--device=cuda", "--ranks=2", *(f"--mode={mode}" for mode in given)]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    assert measured == [modes]


def test_a_configuration_survives_json() -> None:
    config = BenchConfig(
        collectives=("reduce", "barrier"), device="cuda", modes=("eager", "graph"), budget_s=7.5
    )
    written = json.loads(json.dumps(asdict(config)))
    assert written.pop("sizes") == list(config.sizes)
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in written.items()}
    assert BenchConfig(**options) == config
    assert config.cases == (
        ("reduce", "eager"),
        ("reduce", "graph"),
        ("barrier", "eager"),
        ("barrier", "graph"),
    )


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--json", ".", "cannot be written: Is a directory"),
        ("--json", "file/bench.json", "cannot be written: File exists: "),
        ("--plot", "folder.png", "cannot be written: Is a directory"),
        ("--plot", "bench.txt", "expected a suffix of "),
    ],
)
def test_outputs_are_tried_before_the_run(
    monkeypatch, tmp_path: Path, option: str, name: str, message: str
) -> None:
    monkeypatch.setattr(cli, "carry_out", lambda *_: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    done = CliRunner().invoke(cli.app, [option, str(tmp_path / name)])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith(f"error: {option}: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_written_to_is_as_it_was_before_the_run(monkeypatch, tmp_path: Path) -> None:
    """A folder is made, no file; a pipe and a device are not tried."""
    monkeypatch.setattr(cli, "carry_out", lambda *_: None)
    old, new, pipe = tmp_path / "old.json", tmp_path / "folder" / "new.json", tmp_path / "pipe"
    old.write_text("{}")
    os.mkfifo(pipe)
    for path in (old, new, pipe, Path(os.devnull)):
        done = CliRunner().invoke(cli.app, ["--json", str(path), "--plot", str(path.parent / "a")])
        assert done.exit_code == 0, done.output
    assert old.read_text() == "{}"
    assert list(new.parent.iterdir()) == []
