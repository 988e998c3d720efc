"""The bench with backends in processes of their own, which differ by environment and memory.

Runs over Gloo with settings of the test's own, and over symm's memory on the CPU in place of
PyTorch's on GPUs; NCCL's are looked at by name alone where there is no GPU.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from programs import run_module
from torch_symm.tools.bench.collectives import AllReduce
from torch_symm.tools.bench.config import BenchConfig, ConfigError
from torch_symm.tools.bench.contender import (
    CONTENDERS,
    TORCH_SYMM,
    Contender,
    c10d_name,
    offers,
    spelled_out,
)
from torch_symm.tools.bench.launch import BenchJob
from torch_symm.tools.bench.memory import ONE_SHOT_BYTES, OwnMemory, WindowMemory
from torch_symm.tools.bench.report import cells, errors, header
from torch_symm.tools.bench.results import BackendResult, Matmul, Row
from torch_symm.tools.bench.worker import bench_rank
from torch_symm.tools.ranks.job import supervise
from torch_symm.tools.ranks.process import Messenger, RankContext

pytestmark = pytest.mark.timeout(120)


def test_pinned_nccl_runs_in_processes_of_its_own() -> None:
    against = spelled_out(("nccl", "nccl-deterministic"))
    assert against == ("nccl", "nccl-tree-1", "nccl-tree-8", "nccl-ring-1", "nccl-ring-8")
    config = BenchConfig(device="cuda", against=against)
    assert [phase.members for phase in config.phases] == [(0, 1), (2,), (3,), (4,), (5,)]
    assert config.phases[0].environment == ()
    assert dict(config.phases[4].environment) == {
        "NCCL_ALGO": "allreduce:ring",
        "NCCL_PROTO": "Simple",
        "NCCL_MIN_NCHANNELS": "8",
        "NCCL_MAX_NCHANNELS": "8",
    }
    assert {c10d_name(name) for name in against} == {"nccl"}


def test_symmetric_memory_has_processes_of_its_own() -> None:
    config = BenchConfig(device="cuda", against=("torch-symm", "nccl", "nccl-symm"))
    plain, torch_symm, nccl_symm = config.phases
    assert [plain.members, torch_symm.members, nccl_symm.members] == [(0, 2), (1,), (3,)]
    assert [plain.memory, torch_symm.memory, nccl_symm.memory] == [None, "peers", "windows"]
    off = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    assert dict(torch_symm.environment) == off | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert dict(nccl_symm.environment) == off
    # Of these, torch reads the first while it is imported.
    assert (torch_symm.early, nccl_symm.early) == (True, False)
    assert {c10d_name(name) for name in ("torch-symm", "nccl-symm")} == {"nccl"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cpu"}, "--against: torch-symm is measured on GPUs, got --device cpu"),
        ({"dtype": "int32"}, "torch-symm takes float32 and bfloat16, got --dtype int32"),
        ({"op": "max"}, "--against: torch-symm reduces by sum, got --op max"),
        ({"backend": "torch-symm"}, "--backend: torch-symm is a name for --against alone"),
    ],
)
def test_what_torch_symm_is_not_measured_with_is_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchConfig(**{"device": "cuda", "against": ("torch-symm",)} | options)
    BenchConfig(device="cuda", against=("torch-symm",), collectives=("all_gather",), op="max")


def test_torch_symm_and_nccl_symm_need_a_gpu() -> None:
    for name in ("torch-symm", "nccl-symm"):
        done = run_module("torch_symm.bench", f"--against={name}")
        assert done.returncode == 2
        assert f"--against: {name} is measured on GPUs, got --device cpu" in done.stderr


def test_operations_get_parts_of_one_tensor() -> None:
    """At the same places, also where a rank needs less."""
    memory = OwnMemory(None, torch.device("cpu"))
    memory._make = lambda count, dtype: torch.empty(count, dtype=dtype)
    memory.open(1000, 2, torch.float32)
    for _ in range(2):
        memory.begin()
        first, second = (memory.empty(count, torch.float32, None) for count in (0, 1000))
        assert (first.numel(), second.numel(), second.storage_offset()) == (0, 1000, 1024)
    memory.begin()
    with pytest.raises(RuntimeError, match=r"at most 1024 of torch\.float32, got 1025 of"):
        memory.empty(1025, torch.float32, None)


def test_a_torch_without_windows_says_so() -> None:
    memory = WindowMemory(None, torch.device("cpu"))
    memory._backend = lambda: object()
    with pytest.raises(NotImplementedError, match="cannot register symmetric windows with NCCL"):
        memory.open(8, 1, torch.float32)


def test_later_processes_measure_beside_the_matmul_that_the_first_ones_chose() -> None:
    config = BenchConfig(
        collectives=("all_reduce", "broadcast"),
        device="cuda",
        against=("torch-symm",),
        min_bytes=256,
        max_bytes=1024,
        modes=("overlapped",),
    )
    rows: list[Row] = []
    job = BenchJob(config, rows.append)
    phases = []
    while (assignment := job.assignment()) is not None:
        _, start = assignment
        name, mode = config.cases[start.case]
        phases.append((name, start.phase, job.environment(assignment)))
        for number in range(2):
            assert start.matmuls == (() if start.phase == 0 else (Matmul(256, 0, 1.0),) * 2)
            matmul = Matmul(256, 0, 1.0) if start.phase == 0 else None
            results = tuple(BackendResult(one, None, None) for one in config.backends)
            row = Row(name, mode, 256, 1 + number, "float32", "sum", -1, results, {}, matmul)
            job.received(row)
        job.ended(None)
    # What torch-symm has not needs no processes.
    environment = dict(TORCH_SYMM.environment)
    assert phases == [("all_reduce", 0, {}), ("all_reduce", 1, environment), ("broadcast", 0, {})]
    assert [row.collective for row in rows] == ["all_reduce"] * 2 + ["broadcast"] * 2
    assert all(row.matmul == Matmul(256, 0, 1.0) for row in rows)


SETTINGS = {
    "gloo-off": Contender("gloo", (("OFF_BY", "3"),)),
    "gloo-dies": Contender("gloo", (("DIES", "1"),)),
    # Nothing of symm is in its processes.
    "gloo-early": Contender("gloo", (("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"),), early=True),
    "gloo-peers": Contender("gloo", memory="peers", forms=TORCH_SYMM.forms),
}


def pinned_rank(place: RankContext, assignment: tuple, messenger: Messenger) -> None:
    """A rank whose all_reduce is off by what the environment says, and that dies once if told."""
    call = AllReduce.call

    def pinned_call(operation: AllReduce, group: dist.ProcessGroup) -> None:
        call(operation, group)
        operation.output[-1] += int(os.environ.get("OFF_BY", "0"))
        if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
            operation.output[-1] += "torch_symm._import_hook" in sys.modules
        if operation.count == 32 and os.environ.get("DIES"):
            os.abort()

    AllReduce.call = pinned_call
    CONTENDERS.update(SETTINGS)
    bench_rank(place, assignment, messenger)


def watch_pinned(rows: mp.SimpleQueue, options: dict) -> None:
    CONTENDERS.update(SETTINGS)
    config = BenchConfig(backend="gloo", iters=1, blocks=1, **options)
    supervise(pinned_rank, BenchJob(config, rows.put), config.ranks)


def rows_of(count: int, **options: object) -> list[Row]:
    """What a run of these options gives, which is so many rows."""
    context = mp.get_context("fork")
    queue = context.Queue()
    watcher = context.Process(target=watch_pinned, args=(queue, options))
    watcher.start()
    rows = [queue.get(timeout=90) for _ in range(count)]
    watcher.join(timeout=30)
    assert watcher.exitcode == 0
    assert queue.empty()
    return rows


def test_backends_with_settings_of_their_own_have_processes_of_their_own() -> None:
    against = ("gloo-off", "gloo", "gloo-dies")
    rows = rows_of(
        8, collectives=("all_reduce", "broadcast"), against=against, min_bytes=8, max_bytes=512
    )
    assert [(row.collective, row.size) for row in rows] == [
        (name, size) for name in ("all_reduce", "broadcast") for size in (8, 32, 128, 512)
    ]
    for row in rows:
        plain, off, again, dies = row.results
        assert [result.backend for result in row.results] == ["gloo", *against]
        reduces = row.collective == "all_reduce"
        assert plain.in_place.wrong == again.in_place.wrong == 0
        # Two checks, each wrong on both ranks.
        assert off.in_place.wrong == (4 if reduces else 0)
        if reduces and row.size >= 128:
            assert dies.in_place is None
            assert "SIGABRT" in dies.error
        else:
            assert dies.error is None
            assert dies.in_place.wrong == 0


def test_what_torch_reads_while_it_is_imported_is_there_before() -> None:
    (row,) = rows_of(
        1, collectives=("all_reduce",), against=("gloo-early",), min_bytes=64, max_bytes=64
    )
    assert [result.error for result in row.results] == [None, None]
    assert [result.in_place.wrong for result in row.results] == [0, 0]


@pytest.mark.cpu("symm's memory on the CPU stands in for PyTorch's")
def test_operators_over_symmetric_memory_are_measured_and_checked() -> None:
    """The calls that torch-symm makes, with what it has not said to be not there."""
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier")
    sizes = {"min_bytes": ONE_SHOT_BYTES, "max_bytes": 4 * ONE_SHOT_BYTES}
    rows = rows_of(11, collectives=names, against=("gloo-peers",), **sizes)
    config = BenchConfig(backend="gloo", against=("gloo",), collectives=names, **sizes)
    for row in rows:
        plain, peers = row.results
        assert plain.error is peers.error is None
        assert plain.there
        assert (
            peers.there
            == offers("torch-symm", row.collective)
            == (row.collective not in ("all_to_all", "broadcast"))
        )
        for variant in ("out_of_place", "in_place"):
            there = offers("torch-symm", row.collective, variant)
            assert (peers.variant(variant) is not None) == there
            if there:
                assert peers.variant(variant).wrong == 0
                assert row.ratio(variant, 1) > 0
        line = dict(zip(header(config), cells(config, row)[1], strict=True))
        assert (line["time"] == "not there") == (not peers.there)
        assert errors(row) == []


@pytest.mark.cpu("symm's memory on the CPU stands in for PyTorch's")
def test_a_decoders_step_over_symmetric_memory() -> None:
    """One row by one_shot, which leaves its sum in another buffer, and one by two_shot."""
    rows = rows_of(
        2,
        collectives=("decode",),
        layers=1,
        against=("gloo-peers",),
        min_bytes=16384,
        max_bytes=16384 * 16,
        factor=16,
    )
    for row in rows:
        assert [result.error for result in row.results] == [None, None]
        assert [result.out_of_place.wrong for result in row.results] == [0, 0]


@pytest.mark.cuda
@pytest.mark.uncrowded
@pytest.mark.gpus(2)
@pytest.mark.parametrize("names", ["all_reduce all_gather", "reduce_scatter broadcast"])
def test_symmetric_memory_on_gpus_is_measured_beside(tmp_path: Path, names: str) -> None:
    out = tmp_path / "bench.json"
    done = run_module(
        "torch_symm.bench",
        *("--device=cuda", "--ranks=2", "--against=nccl,torch-symm,nccl-symm"),
        *(option for name in names.split() for option in ("-c", name)),
        *("-b", "64K", "-e", "1M", "--factor=16", "--iters=4", "--blocks=2", f"--json={out}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for row in json.loads(out.read_text())["rows"]:
        *others, peers, windows = row["results"]
        assert [result["error"] for result in row["results"]] == [None] * 4
        assert peers["there"] == (row["collective"] != "broadcast")
        for variant in ("out_of_place", "in_place"):
            there = offers("torch-symm", row["collective"], variant)
            assert (peers[variant] is not None) == there
            assert (windows[variant] is None) == (others[0][variant] is None)
            for result in (peers, windows):
                if result[variant] is not None:
                    assert result[variant]["wrong"] == 0
                    assert result[variant]["time_us"] > 0


@pytest.mark.cuda
@pytest.mark.uncrowded
@pytest.mark.gpus(2)
def test_a_decoders_step_on_gpus_over_symmetric_memory(tmp_path: Path) -> None:
    out = tmp_path / "decode.json"
    done = run_module(
        "torch_symm.bench",
        *("--device=cuda", "--ranks=2", "--program=decode", "--layers=2", "--iters=4"),
        *("--against=nccl,torch-symm,nccl-symm,fake", "-b", "8K", "-e", "512K", "--factor=64"),
        *("--blocks=2", f"--json={out}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for row in json.loads(out.read_text())["rows"]:
        *communicating, without = row["results"]
        assert [result["error"] for result in row["results"]] == [None] * 5
        assert [result["out_of_place"]["wrong"] for result in communicating] == [0] * 4
        assert without["out_of_place"]["wrong"] > 0
