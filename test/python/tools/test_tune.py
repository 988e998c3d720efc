"""torch_symm.tune: what it chooses, what it writes, and how a run goes on."""

from __future__ import annotations

import io
import json
import math
import os

import pytest
import torch
import torch.distributed as dist

from errors import message_of
from harness import BACKEND, DEVICE, IS_SYMM, ON_CUDA, run_ranks
from programs import run_module

pytest.importorskip("typer")
pytest.importorskip("rich")

from rich.console import Console

from torch_symm._registration import load
from torch_symm.tools.tune.candidates import Candidate, candidates, shared_out
from torch_symm.tools.tune.cli import chosen_wire
from torch_symm.tools.tune.config import TUNED, TuneConfig
from torch_symm.tools.tune.job import Measured
from torch_symm.tools.tune.report import TuneReport
from torch_symm.tools.tune.table import (
    Point,
    choose,
    document,
    least_times,
    merged,
    new_rows,
    present,
    staged_bytes,
)
from torch_symm.tools.tune.worker import new_group_by, table_of

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.skipif(not IS_SYMM, reason=f"{BACKEND} has no plan table"),
]

ONE, TWO = Candidate("one_shot", 64 << 10), Candidate("two_shot", 64 << 10)
WIDE = Candidate("two_shot", 256 << 10)
NAMES = (ONE, TWO, WIDE)
# All that a row may name: nothing of it is a fact of one rank.
FACTS = {
    "collective",
    "min_world",
    "max_world",
    "max_bytes",
    "algorithm",
    "chunk_bytes",
    "channels",
}


def points(*times, table=ONE):
    """A point a power of four from 16 KiB on."""
    return [  # without WIDE where there are two times
        Point(
            16 << 10 + 2 * place, 16 << 10 + 2 * place, table, dict(zip(NAMES, one, strict=False))
        )
        for place, one in enumerate(times)
    ]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(10, 20, 20), (30, 20, 40), (90, 40, 30)], [ONE, TWO, WIDE]),
        ([(10, 9.8, 20), (20, 19, 21)], [ONE, ONE]),  # less than what a change must save
        ([(10, 5), (10, 9.5), (10, 5)], [TWO, TWO, TWO]),  # no row for a tie
        ([(10, 5), (10, 40), (10, 5)], [TWO, ONE, TWO]),
        ([(10, math.inf), (10, 5)], [ONE, TWO]),  # not measured at the first size
    ],
)
def test_choice(times, expected):
    assert choose(points(*times), 0.05) == expected


def test_a_candidate_with_a_larger_chunk_counts_as_measured_where_it_is_no_other_call():
    small, large = points((10, 6), (10, 6, 4))
    assert small.staged == 16 << 10
    assert small.time(WIDE) == 6
    assert large.time(WIDE) == 4
    assert choose([small, large], 0.05) == [WIDE, WIDE]
    assert Point(1 << 20, 1 << 20, ONE, {TWO: 1.0}).time(WIDE) == math.inf


def test_the_least_time_of_the_passes_counts():
    first, second = points((10, 20))[0], points((15, 5, 7))[0]
    assert least_times([first, second]) == [
        Point(16 << 10, 16 << 10, ONE, {ONE: 10, TWO: 5, WIDE: 7})
    ]


def accepted(monkeypatch, tmp_path, content):
    """The tables of a group that is given `content`."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content))
    monkeypatch.setenv("SYMM_TUNING_FILE", str(path))
    try:
        return json.loads(load().plan_tables())
    finally:
        monkeypatch.delenv("SYMM_TUNING_FILE")


@pytest.mark.parametrize("key", ["rows", "gpu_rows", "gpu_line_rows"])
@pytest.mark.parametrize("world", [2, 3, 8, 128])
def test_rows_of_one_number_of_ranks_leave_the_others(monkeypatch, tmp_path, key, world):
    """Neither gaps nor overlaps: the product refuses both, and reads back what was written."""
    tables = json.loads(load().plan_tables())
    device = "cpu" if key == "rows" else "cuda"
    for collective in TUNED[device]:
        tried = candidates(device)[collective]
        found = [
            Point(size, staged_bytes(collective, world, size), tried[0], dict.fromkeys(tried, 1.0))
            for size in (1 << 12, 1 << 20, 1 << 28)
        ]
        chosen = [tried[0], tried[-1], tried[0]]
        tuned = new_rows(collective, world, found, chosen)
        assert len(tuned) == 3 - (tried[0] == tried[-1]) * 2
        changed = {collective: merged(tables[key], collective, world, tuned)}
        content = document({}, tables, key, changed)
        assert all(set(row) <= FACTS for row in content[key])
        now = accepted(monkeypatch, tmp_path, content)
        for rows in ("rows", "gpu_rows", "gpu_line_rows"):
            for other in (2, 3, 4, 5, 8, 127, 128):
                for staged in (1, 1 << 16, 1 << 22, 1 << 40):
                    if (rows, other) != (key, world):
                        asked = (collective, other, staged)
                        assert present(now[rows], *asked) == present(tables[rows], *asked)
        for point, candidate in zip(found, chosen, strict=True):
            assert present(now[key], collective, world, point.staged) == candidate
    # A gap, an overlap and a fact of one rank are refused.
    *others, row = content[key]
    for wrong in ([], [row, row], [row | {"rank": 0}]):
        with pytest.raises(ValueError, match="SYMM_TUNING_FILE"):
            accepted(monkeypatch, tmp_path, {key: [*others, *wrong]})


@pytest.mark.parametrize(
    ("device", "value", "wire"),
    [
        ("cuda", None, "line"),
        ("cuda", "auto", "line"),
        ("cuda", "ll", "ll"),
        ("cpu", None, "ll"),
        ("cpu", "line", "ll"),
    ],
)
def test_the_groups_of_a_run_have_the_wire_that_is_tuned(monkeypatch, device, value, wire):
    monkeypatch.setenv("SYMM_WIRE", "auto")  # restored whatever the call sets
    if value is None:
        monkeypatch.delenv("SYMM_WIRE")
    else:
        monkeypatch.setenv("SYMM_WIRE", value)
    assert chosen_wire(device) == wire
    assert device == "cpu" or os.environ["SYMM_WIRE"] == wire


def test_every_group_tries_at_most_one_candidate_of_a_collective():
    for device, names in TUNED.items():
        every = {name: candidates(device)[name] for name in names}
        groups = shared_out(every)
        for name in names:
            tried = [group[name] for group in groups if name in group]
            assert tried == every[name]
            assert len(set(tried)) == len(tried)
        assert not any(
            one.algorithm in ("multimem", "copy_engine") for g in groups for one in g.values()
        )


def plan_of_a_group_by(rank, candidate):
    """What rank 1 is told of rank 0's call in a group that tries `candidate`."""
    import datetime

    from torch_symm import ccl

    config = TuneConfig(collectives=("all_reduce",))
    table = table_of({"all_reduce": candidate}, config)
    group = new_group_by(table, datetime.timedelta(seconds=60))
    tensor = torch.ones(1 << 18)
    other = ccl.Config("one_shot") if rank == 1 else None
    return message_of(
        dist.DistBackendError, ccl.all_reduce, tensor, tensor, group=group, config=other
    )


@pytest.mark.cpu("the host's table")
def test_a_group_tries_its_candidate():
    """The ring, which no row of the compiled table names."""
    for text in run_ranks(plan_of_a_group_by, 2, Candidate("ring", 64 << 10), fresh=True):
        assert "ring)" in text


ARGUMENTS = ["--factor", "4", "--budget-ms", "2", "--passes", "1", "--device", DEVICE, "-n", "2"]


def tune(tmp_path, *arguments, code=0):
    files = ["--json", str(tmp_path / "points.json"), "--output", str(tmp_path / "table.json")]
    done = run_module("torch_symm.tune", *ARGUMENTS, *files, *arguments)
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    return " ".join(text.split())


def plan_of_rank_0(rank, count):
    """What rank 1, which calls by another algorithm, is told of rank 0's call."""
    from torch_symm import ccl

    tensor = torch.ones(count)
    config = ccl.Config("two_shot") if rank == 1 else None
    return message_of(dist.DistBackendError, ccl.all_reduce, tensor, tensor, config=config)


@pytest.mark.long
def test_a_run(tmp_path):
    """Everything is measured and checked; a run with a budget goes on where it stopped."""
    if ON_CUDA:
        sizes, names = ["-b", "4K", "-e", "16K"], ["all_reduce", "broadcast"]
    else:
        sizes, names = ["-b", "16K", "-e", "64K"], ["all_reduce", "gather"]
    options = [*sizes, *(option for name in names for option in ("-c", name))]
    path = tmp_path / "points.json"
    first = tune(tmp_path, *options, "--budget-seconds", "0.001")
    assert not json.loads(path.read_text())["complete"]
    for name in names:
        assert f"{name}: not measured to the end, so it stays as it is" in first

    tune(tmp_path, *options, "--gain", "0.9999")
    kept = json.loads(path.read_text())
    kept["points"] = kept["points"][:3]  # as of a run that was ended there
    path.write_text(json.dumps(kept))
    second = tune(tmp_path, *options, "--gain", "0.9999")
    whole = json.loads(path.read_text())
    assert "3 of 4 sizes were measured before" in second
    assert whole["points"][:3] == kept["points"]
    assert whole["complete"]
    assert [(one["collective"], one["wrong"]) for one in whole["points"]] == [
        (name, 0) for name in names for _ in range(2)
    ]
    assert all(len(one["times_us"]) > 1 and min(one["times_us"]) > 0 for one in whole["points"])
    assert all(one["errors"] == {} for one in whole["points"])
    assert "nothing is to change, so no file was written" in second
    assert not (tmp_path / "table.json").exists()

    other = tune(tmp_path, *options, "--dtype", "int32", code=2)
    assert "of a run with other options (dtype)" in other


@pytest.mark.cpu("the host's table")
def test_the_written_table_is_used(tmp_path, monkeypatch):
    """Of what was measured the ring is made the fastest; ranks with that file use it."""
    options = ["-b", "16K", "-e", "64K", "-c", "all_reduce"]
    tune(tmp_path, *options)
    path = tmp_path / "points.json"
    record = json.loads(path.read_text())
    for point in record["points"]:
        point["times_us"] = [1.0 if one[0] == "ring" else 100.0 for one in point["candidates"]]
    path.write_text(json.dumps(record))
    text = tune(tmp_path, *options)
    assert f"SYMM_TUNING_FILE={tmp_path / 'table.json'}" in text
    env = {"SYMM_TUNING_FILE": str(tmp_path / "table.json")}
    for count in (1024, 1 << 18):
        for text in run_ranks(plan_of_rank_0, 2, count, env=env, fresh=True):
            assert "different calls" in text
            assert "ring)" in text


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["-c", "barrier"], ["--collective", "all_reduce"]),
        (["-n", "1"], ["--ranks", "at least 2"]),
        (["--gain", "1"], ["--gain", "below 1"]),
        (["--passes", "0"], ["--passes"]),
        (["-b", "2M", "-e", "1M"], ["--max"]),
    ],
)
def test_wrong_options(tmp_path, arguments, parts):
    text = tune(tmp_path, *arguments, code=2)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    ("variable", "value", "parts"),
    [
        ("SYMM_ALGO", "ring", ["SYMM_ALGO", "every algorithm is measured", "'ring'"]),
        ("SYMM_TUNING_FILE", "/nonexistent", ["SYMM_TUNING_FILE", "'/nonexistent'"]),
    ],
)
def test_variables_that_it_cannot_tune_under(tmp_path, monkeypatch, variable, value, parts):
    monkeypatch.setenv(variable, value)
    text = tune(tmp_path, "-c", "all_reduce", code=2)
    assert text.startswith("error: ")
    assert "Traceback" not in text
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("option", ["--json", "--output"])
def test_a_file_that_cannot_be_written_is_named_before_the_run(tmp_path, option):
    text = tune(tmp_path, "-c", "all_reduce", option, str(tmp_path), code=2)
    assert text.startswith(f"error: {option}: {tmp_path} cannot be written: Is a directory")
    assert list(tmp_path.iterdir()) == []


def report_of(tmp_path, *found):
    """(what a run shows that has measured `found`, its points from 4 KiB on; whether it wrote)"""
    shown, output = io.StringIO(), tmp_path / "table.json"
    config = TuneConfig(collectives=("all_reduce",), min_bytes=4096, max_bytes=8192)
    records = [Measured("all_reduce", point, 0, {}) for point in found]
    console = Console(file=shown, width=200)
    with TuneReport(config, {}, console, [], output, tmp_path / "points.json") as report:
        for record in records:
            report.add(record)
    report.write(None)
    return shown.getvalue(), output.exists()


def test_a_point_without_a_result_of_the_table_leaves_the_collective_as_it_is(tmp_path):
    """Whatever other candidates have given, and there may be none."""
    fast = Point(8192, 8192, ONE, {ONE: 10.0, TWO: 1.0})
    for times in ({}, {TWO: 1.0}):
        text, written = report_of(tmp_path, Point(4096, 4096, ONE, times), fast)
        lines = text.splitlines()
        assert lines[0].split()[:2] == ["all_reduce", "4K"]
        assert lines[0].split(": ", 1)[1].startswith("no result")
        assert "10.0 us, best of 2 two_shot 64K: 1.0 us" in lines[1]
        assert "# all_reduce: no result of the table, so it stays as it is" in lines
        assert not written
    text, written = report_of(tmp_path, Point(4096, 4096, ONE, {ONE: 2.0}), fast)
    assert "stays as it is" not in text
    assert written


def test_a_file_that_is_no_record(tmp_path):
    (tmp_path / "points.json").write_text("[1]")
    assert "is no record of a tuner" in tune(tmp_path, "-c", "all_reduce", code=2)
