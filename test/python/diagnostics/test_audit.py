"""SYMM_AUDIT and torch_symm.audit: two runs of one program have the same hashes, and where they do
not, the command names the first call and rank."""

import json
import re

import pytest
import torch
import torch.distributed as dist

from harness import DEVICE, IS_SYMM, run_ranks
from programs import run_module

pytestmark = pytest.mark.skipif(not IS_SYMM, reason="the audit is symm's")

RANKS = 3


def numbers(rank, count):
    return (torch.arange(count, dtype=torch.float32) * (rank + 1) / 7).to(DEVICE)


def program(rank, change):
    """Twelve calls of two groups on each of ranks 0 and 1; `change` names what this run has of its
    own."""
    pair = dist.new_group([0, 1])
    gathered = [numbers(0, 16) for _ in range(RANKS)]
    value = numbers(rank, 16)
    dist.all_reduce(value)
    dist.all_gather(gathered, value)
    if change == "input" and rank == 1:
        value.view(torch.int32)[5] ^= 1 << 20
    if rank < 2:
        dist.all_reduce(value, group=pair)
    if change == "output" and rank == 2:
        return  # it ends with its calls behind
    dist.broadcast(value, src=0, async_op=True).wait()
    if change == "call":
        dist.reduce(value, dst=2)
    else:
        dist.all_reduce(value)
    dist.all_reduce_coalesced([value, value.clone()])
    dist.barrier()


def run(folder, change="", **env):
    folder.mkdir()
    prefix = folder / "run"
    run_ranks(program, RANKS, change, env={"SYMM_AUDIT": str(prefix), **env})
    return prefix


def compare(first, second):
    done = run_module("torch_symm.audit", str(first), str(second), timeout=50)
    return done.returncode, done.stdout + done.stderr


def test_runs_are_equal_by_every_algorithm(tmp_path):
    runs = [
        run(tmp_path / name, SYMM_ALGO=name, SYMM_ISA=isa)
        for name, isa in (("one_shot", "baseline"), ("two_shot", "avx2"), ("ring", "baseline"))
    ]
    for other in runs[1:]:
        assert compare(runs[0], other) == (0, "equal: 23 calls of 3 ranks\n")
    assert compare(runs[0].parent, runs[1].parent)[0] == 0
    files = [[path.read_text() for path in sorted(each.parent.iterdir())] for each in runs]
    assert files[0] == files[1] == files[2]


def test_the_first_flipped_bit_is_named(tmp_path):
    first, second = run(tmp_path / "a"), run(tmp_path / "b", "input")
    status, text = compare(first, second)
    lines = text.splitlines()
    assert status == 1
    assert lines[0].startswith(
        "first difference: rank 1: all_reduce(float32, SUM, count 16) seq 1 on the "
    )
    assert 'of group "1": the input differs (' in lines[0]
    assert len(lines) == 2
    assert lines[1].startswith("  rank 0: only the output differs (")
    for path in ("run.1", "run.0"):
        assert compare(first.parent / path, second.parent / path)[0] == 1


def changed(path, number, key, value):
    """Line `number` of the file, from 0, gets `value` at `key`."""
    lines = path.read_text().splitlines()
    record = json.loads(lines[number])
    lines[number] = json.dumps(record | {key: value})
    path.write_text("\n".join(lines) + "\n")


def test_an_output_that_differs_from_equal_inputs(tmp_path):
    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    changed(second.with_name("run.2"), 2, "out", "0" * 16)
    status, text = compare(first, second)
    assert status == 1
    assert text.startswith("first difference: rank 2: all_gather(float32, count 16) seq 2 on the ")
    assert "the input is the same on every rank: the collective gave other bits" in text


def test_a_run_that_calls_something_else(tmp_path):
    status, text = compare(run(tmp_path / "a"), run(tmp_path / "b", "call"))
    assert status == 1
    assert "the runs called all_reduce(float32, SUM, count 16) and reduce(float32, SUM" in text
    assert "seq 4 on the " in text


def test_a_run_that_ends_early(tmp_path):
    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    kept = second.with_name("run.0").read_text().splitlines(keepends=True)[:-1]
    second.with_name("run.0").write_text("".join(kept) + '{"group": 0, "on": "ho')
    status, text = compare(first, second)
    assert status == 1
    assert re.match(r"first difference: rank 0: barrier seq \d on the host of group", text), text
    assert "the second run has not made this call" in text
    assert "the first run has not made this call" in compare(second, first)[1]


def test_lines_are_as_documented(tmp_path):
    lines = (run(tmp_path / "a").with_name("run.1")).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records[0] == {
        "audit": 1,
        "group": 0,
        "name": "0",
        "rank": 1,
        "world": 3,
        "global_ranks": [0, 1, 2],
    }
    calls = [record for record in records if "audit" not in record]
    assert all(set(call) == {"group", "on", "seq", "call", "in", "out"} for call in calls)
    assert all(len(call["in"]) == len(call["out"]) == 16 for call in calls)
    assert [call["seq"] for call in calls if call["group"] == 0][:3] == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no audit file of this name"),
        ("", "is no audit: it names no group"),
        ("symm\n", ":1 is no line of an audit"),
        ('{"group": 0, "on": "host", "seq": 1}\n', ":1 is no line of an audit"),
        ('{"audit": 9, "group": 0}\n', "expected format 1, got 9"),
    ],
)
def test_what_is_no_audit_is_refused(tmp_path, content, sentence):
    path = tmp_path / "run.0"
    if content is not None:
        path.write_text(content)
    status, text = compare(tmp_path / "run", tmp_path / "run")
    assert status == 2
    assert text.startswith("error: ")
    assert sentence in text


def test_runs_of_other_ranks_and_mixed_folders_are_refused(tmp_path):
    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    second.with_name("run.2").unlink()
    status, text = compare(first, second)
    assert (status, "give the files of the same ranks" in text) == (2, True)
    second.with_name("other.0").write_text("")
    status, text = compare(first, second.parent)
    assert (status, "has files of several runs, other, run" in text) == (2, True)
