"""The bench: its patterns are exact, its checks count what is wrong, its output has its shape.

Runs over Gloo, because it is the bench that is tested here and not the backend under it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
import torch

from programs import run_module
from torch_symm.tools.bench.collectives import CLASSES, CallContext, Collective
from torch_symm.tools.bench.config import COLLECTIVES, BenchConfig
from torch_symm.tools.bench.pattern import (
    BITWISE_OPS,
    DTYPES,
    OPS,
    PERIOD,
    Pattern,
    count_wrong,
    first_wrong,
    poison,
)
from torch_symm.tools.bench.report import cells, errors, header
from torch_symm.tools.bench.results import BackendResult, Floor, Matmul, Row, Timing
from torch_symm.tools.bench.timing import fitting

pytestmark = pytest.mark.timeout(120)

COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def reduced_in_order(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """Reduce with a rounding to the dtype after every step, as no backend does it worse."""
    dtype = inputs[0].dtype
    narrow = dtype.itemsize == 1 and dtype.is_floating_point
    total = inputs[0]
    for value in inputs[1:]:
        pair = (total.float(), value.float()) if narrow else (total, value)
        total = COMBINE[op](*pair).to(dtype)
    if op != "avg":
        return total
    if dtype.is_floating_point:
        return (total.float() if narrow else total).div(len(inputs)).to(dtype)
    return torch.div(total, len(inputs), rounding_mode="trunc")


@pytest.mark.parametrize(
    ("name", "op"),
    [
        (name, op)
        for name, dtype in DTYPES.items()
        for op in OPS
        if op not in BITWISE_OPS or not dtype.is_floating_point
    ],
)
def test_any_order_gives_the_expected_result(name: str, op: str) -> None:
    dtype = DTYPES[name]
    for world_size in (1, 2, 3, 4):
        pattern = Pattern(dtype, op, world_size, salt=3)
        inputs = [pattern.tensor(pattern.input_period(rank), 5, 1000) for rank in range(world_size)]
        expected = pattern.tensor(pattern.reduced_period(), 5, 1000)
        for order in (inputs, inputs[::-1], inputs[1:] + inputs[:1]):
            assert count_wrong(reduced_in_order(order, op), expected) == 0
        poisoned = torch.empty_like(expected)
        poison(poisoned)
        assert count_wrong(poisoned, expected) == 1000


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
def test_wrong_rank_offset_and_salt_show(name: str) -> None:
    pattern = Pattern(DTYPES[name], "sum", 4, salt=0)
    other = Pattern(DTYPES[name], "sum", 4, salt=1)
    right = pattern.tensor(pattern.input_period(1), 0, 4096)
    shifted = pattern.tensor(pattern.input_period(1), 65536, 4096)
    assert count_wrong(pattern.tensor(pattern.input_period(2), 0, 4096), right) == 4096
    assert count_wrong(shifted, right) > 3000
    assert count_wrong(other.tensor(other.input_period(1), 0, 4096), right) > 3000


def test_values_continue_past_the_period() -> None:
    pattern = Pattern(torch.int64, "none", 2, salt=0)
    period = pattern.input_period(1)
    values = pattern.tensor(period, 7, 2 * PERIOD + 11)
    for position in (0, PERIOD - 7, PERIOD, 2 * PERIOD + 10):
        assert values[position].item() == period[(position + 7) % PERIOD]


def test_count_wrong_counts_elements() -> None:
    expected = torch.arange(10.0)
    actual = expected.clone()
    assert count_wrong(actual, expected) == 0
    actual[3] += 1
    actual[9] = float("nan")
    assert count_wrong(actual, expected) == 2
    with pytest.raises(ValueError, match="float64"):
        count_wrong(actual.double(), expected)


def test_first_wrong_tells_position_and_values() -> None:
    expected = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    actual = expected.clone()
    assert first_wrong(actual, expected) is None
    actual[1, 3] = 99
    actual[2, 0] = float("nan")
    assert first_wrong(actual, expected) == "element 7 is 99.0, expected 7.0"


def context(rank: int, world_size: int = 2) -> CallContext:
    return CallContext(
        rank, world_size, root=1, op="sum", dtype=torch.float32, device=torch.device("cpu")
    )


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "barrier"])
def test_a_corrupted_element_is_counted(name: str, rank: int) -> None:
    """Without any process: the right output has no wrong element, and one altered has one."""
    kind = CLASSES[name]
    for in_place in (False, True):
        if not getattr(kind, "in_place_exists" if in_place else "out_of_place_exists"):
            continue
        operation: Collective = kind(context(rank), 9, in_place)
        pattern = Pattern(torch.float32, "sum" if kind.has_op else "none", 2, salt=0)
        operation.prepare_check(pattern)
        expected = operation.expected_output(pattern)
        if expected is None:
            assert operation.wrong_elements(pattern) == 0
            continue
        already_there = rank == 1 and (name == "broadcast" or (name == "scatter" and in_place))
        if not already_there:  # The root's own output needs no operation in these two.
            assert operation.wrong_elements(pattern) > 0, "an operation that did nothing passed"
        operation.output.copy_(expected)
        assert operation.wrong_elements(pattern) == 0
        operation.output[-1] += 1
        assert operation.wrong_elements(pattern) == 1
        if not in_place and operation.input.numel():
            operation.input[2] += 1
            assert operation.wrong_elements(pattern) == 2


def test_bandwidths_follow_nccl_tests() -> None:
    assert CLASSES["all_reduce"].bus_factor(4) == 1.5
    assert CLASSES["reduce_scatter"].bus_factor(4) == 0.75
    assert CLASSES["broadcast"].bus_factor(4) == 1.0
    assert set(COLLECTIVES) == set(CLASSES)
    algorithm, bus = CLASSES["all_reduce"].bandwidths(4, 1_000_000, 500.0)
    assert algorithm == pytest.approx(2.0)
    assert bus == pytest.approx(3.0)


def gpu_row(mode: str) -> Row:
    measured = Timing(12.5, 1.25, 2.0, 3.0, wrong=0, iters=20, blocks=5)
    results = (
        BackendResult("symm", None, measured),
        BackendResult("nccl", None, replace(measured, time_us=25.0, launch_us=None)),
        BackendResult("gloo", None, None, "does not capture: not permitted"),
    )
    floors = {} if mode == "graph" else {"in_place": Floor(c10d_us=3.25, launch_us=2.0)}
    return Row("all_reduce", mode, 4096, 2048, "bfloat16", "sum", -1, results, floors)


def test_gpu_rows_have_mode_and_launch_time() -> None:
    config = BenchConfig(
        collectives=("all_reduce",),
        against=("nccl", "gloo"),
        device="cuda",
        modes=("eager", "graph"),
    )
    titles = header(config)
    first, second, third = (
        dict(zip(titles, line, strict=True)) for line in cells(config, gpu_row("graph"))
    )
    assert (first["mode"], first["backend"], first["in:time"]) == ("graph", "symm", "12.50")
    assert (first["in:launch"], second["in:launch"], third["in:launch"]) == ("1.25", "-", "-")
    assert (first["time"], first["in:rat."], second["in:rat."]) == ("-", "", "2.00x")
    assert third["in:rat."] == "-"
    assert (first["in:floor"], second["in:floor"]) == ("-", "")
    eager = dict(zip(titles, cells(config, gpu_row("eager"))[0], strict=True))
    assert (eager["floor"], eager["in:floor"]) == ("-", "5.25")
    assert errors(gpu_row("graph")) == [
        "# all_reduce graph bfloat16 sum: gloo gives no result: does not capture: not permitted"
    ]
    assert "mode" not in header(replace(config, device="cpu", modes=("eager",)))


def test_overlapped_rows_say_what_the_matmul_takes_alone() -> None:
    config = BenchConfig(against=("nccl", "gloo"), device="cuda", modes=("overlapped",))
    row = replace(gpu_row("overlapped"), matmul=Matmul(side=1024, count=3, us=31.5))
    titles = header(config)
    lines = [dict(zip(titles, line, strict=True)) for line in cells(config, row)]
    assert [line["matmul"] for line in lines] == ["31.50", "-", "-"]
    assert lines[0]["mode"] == "overlapped"
    assert row.to_json()["matmul"] == {"side": 1024, "count": 3, "us": 31.5}
    assert "matmul" not in header(replace(config, modes=("eager", "graph")))


@pytest.mark.parametrize(
    ("seconds", "side", "count"),
    [(0.0, 256, 1), (5e-6, 512, 4), (33e-6, 1024, 3), (90e-6, 2048, 1), (1.0, 8192, 195)],
)
def test_products_are_of_the_largest_matrices_that_fit(
    seconds: float, side: int, count: int
) -> None:
    """By a machine that takes 10 us for a side of 1024, and eight times as long for the double."""
    assert fitting(seconds, lambda one: 10e-6 * (one / 1024) ** 3) == (side, count)


def test_only_reductions_in_place_are_not_repeatable() -> None:
    repeatable = {
        name: [kind(context(0), 4, in_place).repeatable for in_place in (False, True)]
        for name, kind in CLASSES.items()
    }
    assert repeatable.pop("all_reduce")[1] is False
    assert repeatable.pop("reduce")[1] is False
    assert repeatable.pop("reduce_scatter") == [True, False]
    assert set(map(tuple, repeatable.values())) == {(True, True)}


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    return run_module("torch_symm.bench", *options)


def test_two_ranks_measure_and_check_every_collective(tmp_path: Path) -> None:
    out, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    done = run_bench(
        *("--backend=gloo", "--against=gloo", "--ranks=2", "--min=8", "--max=4K", "--factor=16"),
        *("--iters=2", "--warmup=1", "--blocks=2", "--root=1", "--dtype=int32"),
        *(f"--json={out}", f"--plot={picture}"),
    )
    assert done.returncode == 0, done.stderr
    assert "# backends: gloo against gloo" in done.stdout
    assert picture.stat().st_size > 0
    document = json.loads(out.read_text())
    assert document["machine"]["cores"] >= 1
    assert document["config"]["sizes"] == [8, 128, 2048]
    assert document["complete"] is True
    rows = document["rows"]
    assert [row["collective"] for row in rows] == [
        name for name in COLLECTIVES for _ in range(1 if name == "barrier" else 3)
    ]
    for row in rows:
        assert row["mode"] == "eager"
        kind = CLASSES[row["collective"]]
        assert len(row["results"]) == 2
        for result in row["results"]:
            assert result["error"] is None
            for variant in ("out_of_place", "in_place"):
                exists = getattr(kind, f"{variant}_exists")
                assert (result[variant] is not None) == exists
                assert (row["ratio"][variant]["gloo"] is not None) == exists
                assert (variant in row["floors"]) == exists
                if exists:
                    assert row["floors"][variant]["c10d_us"] > 0
                    assert row["floors"][variant]["launch_us"] is None
                    assert result[variant]["wrong"] == 0
                    assert result[variant]["time_us"] > 0
                    assert result[variant]["iters"] == 2
                    assert result[variant]["launch_us"] is None
    by_name = {row["collective"]: row for row in rows}
    assert by_name["all_gather"]["size"] == 2048
    assert by_name["all_gather"]["count"] == 256
    assert by_name["broadcast"]["root"] == 1
    assert by_name["all_reduce"]["redop"] == "sum"
    assert by_name["all_gather"]["redop"] == "none"


def test_command_line_names_the_wrong_option() -> None:
    done = run_bench("--min=lots")
    assert done.returncode == 2
    assert "--min: expected a number of bytes" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")
def test_cuda_without_a_gpu_is_one_sentence() -> None:
    done = run_bench("--device=cuda")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --device: cuda cannot be used here: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_spent_budget_ends_the_run_and_the_results_are_written(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = run_bench(
        *("--backend=gloo", "--collective=broadcast", "--budget-seconds=0.001", f"--json={out}")
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert document["complete"] is False
    assert document["rows"] == []
    assert "--budget-seconds: spent" in done.stderr


def test_ranks_of_torchrun_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "torch_symm.bench", "--backend=gloo", "--iters=1", "--blocks=1"]
    command += ["-c", "all_gather", "-b", "8", "-e", "8", f"--json={out}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert row["results"][0]["in_place"]["wrong"] == 0
    assert done.stdout.count("# ranks: 2") == 1


def has_mpi() -> bool:
    beside = Path(sys.executable).parent
    return bool(find_spec("mpi4py")) and bool(which("mpirun", path=f"{beside}:{os.defpath}"))


def bench_of_mpirun(*options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which mpirun replaces."""
    command = [sys.executable, "-m", "torch_symm.bench", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.cpu("MPI is measured on the CPU")
@pytest.mark.skipif(not has_mpi(), reason="needs mpi4py and mpirun")
def test_mpi_is_measured_beside(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = bench_of_mpirun(
        *("--backend=gloo", "--against=mpi,gloo", "--ranks=2", "--iters=2", "--blocks=2"),
        *("-b", "64", "-e", "4K", "--factor=64", f"--json={out}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text())
    assert document["complete"]
    for row in document["rows"]:
        first, mpi, last = row["results"]
        assert (first["backend"], mpi["backend"], last["backend"]) == ("gloo", "mpi", "gloo")
        for variant in ("out_of_place", "in_place"):
            assert (mpi[variant] is None) == (first[variant] is None)
            if mpi[variant] is not None:
                assert mpi[variant]["wrong"] == 0
                assert mpi[variant]["time_us"] > 0
    assert "\x1b" not in done.stdout  # mpirun gives its ranks a terminal


@pytest.mark.cpu("MPI is measured on the CPU")
@pytest.mark.skipif(not has_mpi(), reason="needs mpi4py and mpirun")
def test_what_mpi_has_not_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = bench_of_mpirun(
        *("--backend=gloo", "--against=mpi", "-c", "all_reduce", "-c", "broadcast", "--iters=1"),
        *("--dtype=bfloat16", "-b", "64", "-e", "64", f"--json={out}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reduced, moved = (row["results"][1] for row in json.loads(out.read_text())["rows"])
    assert "MPI does not reduce torch.bfloat16" in reduced["error"]
    assert moved["error"] is None
    assert moved["in_place"]["wrong"] == 0


def test_mpi_has_no_gpus() -> None:
    done = run_bench("--device=cuda", "--against=mpi")
    assert done.returncode == 2
    assert "mpi is measured on the CPU" in done.stderr


@pytest.mark.cuda
@pytest.mark.uncrowded
def test_two_ranks_on_gpus_measure_eagerly_and_from_graphs(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = run_bench(
        *("--device=cuda", "--ranks=2", "-b", "256", "-e", "64K", "--factor=16"),
        *("--budget-ms=5", "--blocks=2", f"--json={out}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {(row["collective"], row["mode"]) for row in rows} == {
        (name, mode) for name in COLLECTIVES for mode in ("eager", "graph")
    }
    for row in rows:
        assert row["dtype"] == "bfloat16"
        (result,) = row["results"]
        assert result["error"] is None
        for timing in (result["out_of_place"], result["in_place"]):
            if timing is not None:
                assert timing["wrong"] == 0
                assert timing["time_us"] > 0
                assert timing["launch_us"] > 0
        assert bool(row["floors"]) == (row["mode"] == "eager")
        assert all(floor["launch_us"] > 0 for floor in row["floors"].values())


@pytest.mark.cuda
@pytest.mark.uncrowded
@pytest.mark.gpus(2)
def test_two_ranks_on_gpus_measure_beside_a_matmul(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = run_bench(
        *("--device=cuda", "--ranks=2", "--mode=overlapped", "--against=nccl,torch-symm"),
        *("-c", "all_reduce", "-c", "all_gather", "-b", "64K", "-e", "16M", "--factor=16"),
        *("--budget-ms=10", "--blocks=2", f"--json={out}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for row in json.loads(out.read_text())["rows"]:
        assert row["matmul"]["us"] > 0
        assert row["matmul"]["count"] >= 1
        for result in row["results"]:
            assert result["error"] is None
            for timing in (result["out_of_place"], result["in_place"]):
                if timing is not None:
                    assert timing["wrong"] == 0
                    assert timing["time_us"] > 0
