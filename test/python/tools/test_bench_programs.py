"""Programs that the bench measures in place of collectives, over Gloo: the bench is tested here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from programs import run_module
from torch_symm.tools.bench.config import BenchConfig, ConfigError

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 3}, "--ranks: decode needs a number that divides 4096, got 3"),
        ({"dtype": "int32"}, "--dtype: decode multiplies float16, .*, got int32"),
        ({"dtype": "float8_e5m2"}, "--dtype: decode multiplies float16, .*, got float8_e5m2"),
        (
            {"device": "cuda", "modes": ("overlapped",)},
            "--mode: decode is measured eager or as graph, got overlapped",
        ),
        ({"layers": 0}, "--layers: expected at least 1, got 0"),
        ({"against": ("mpi",)}, "--against: decode runs over backends of c10d, got mpi"),
    ],
)
def test_what_a_program_refuses_is_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchConfig(collectives=("decode",), **options)


def test_an_unknown_program_is_named() -> None:
    done = run_module("torch_symm.bench", "--program=prefill")
    assert done.returncode == 2
    assert "--program: expected one of decode, got 'prefill'" in done.stderr


def test_a_decoders_step_is_measured_and_checked(tmp_path: Path) -> None:
    """The result of every all_reduce is in that of the step: without them it is wrong."""
    out = tmp_path / "decode.json"
    done = run_module(
        "torch_symm.bench",
        *("--program=decode", "--layers=1", "--backend=gloo", "--against=fake", "--ranks=2"),
        *("--min=16K", "--max=48K", "--factor=3", "--iters=1", "--warmup=0", "--blocks=1"),
        f"--json={out}",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(row["collective"], row["size"], row["count"]) for row in rows] == [
        ("decode", 16384, 4096),
        ("decode", 49152, 12288),
    ]
    for row in rows:
        over_gloo, without = (result["out_of_place"] for result in row["results"])
        assert row["floors"] == {}
        assert over_gloo["wrong"] == 0
        assert without["wrong"] > row["count"] / 2
        assert min(over_gloo["time_us"], without["time_us"]) > 0
