"""SYMM_RACE_CHECK=1: the examples are clean, and none is with one of its signals taken away."""

import os
import re
import subprocess
import sys

import example_kernels
import pytest
import torch
import torch.distributed as dist
from kernel_runs import NEEDS_TRITON

from harness import run_ranks

pytestmark = [
    pytest.mark.long,
    pytest.mark.cpu("the checker is Triton's interpreter's"),
    NEEDS_TRITON,
]

ENV = {"SYMM_RACE_CHECK": "1", "TRITON_INTERPRET": "1"}
RANKS = 3


def run_example(rank, name, folder="", removed=()):
    """How far the example is from torch.distributed, or the type and the text of its error."""
    try:
        return example_kernels.load(name, folder, removed).example("cpu")
    except Exception as error:
        return type(error).__name__, str(error)


def run_in_a_row(rank, name, folder, removed):
    """Calls with nothing of torch.distributed between them, which would order them. Three, since a
    rank that is a call ahead may have told more than was asked for (race/__init__.py)."""
    try:
        module = example_kernels.load(name, folder, removed)
        if name == "all_reduce_one_shot":
            call, arguments = module.AllReduce(300, "cpu"), (torch.ones(300),)
        elif name == "all_gather_matmul_ring":
            call = module.RingMatmul(16, 64, 64, "cpu", torch.float32, module.TINY_TILES)
            arguments = (torch.ones(16, 64), torch.ones(64, 64))
        elif name == "moe_dispatch_combine":
            expert = torch.arange(9, dtype=torch.int32) % RANKS
            call = module.Experts(9, 32, "cpu")
            arguments = (torch.ones(9, 32), expert, torch.ones(32))
        else:
            call = module.Decode(3, 32, "cpu")
            arguments = (torch.ones(3, 32), *(torch.ones(3, 16, 32),) * 2)
        for _ in range(3):
            call(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return 0.0


@pytest.mark.parametrize("name", example_kernels.NAMES)
def test_the_examples_are_clean(name):
    for result in run_ranks(run_example, RANKS, name, env=ENV):
        assert isinstance(result, float), result
        assert result <= 1e-5


def nothing(*lines):
    """What is taken away, each with its own place to look for."""
    return tuple((line, "pass") for line in lines)


WAIT_MATMUL = (
    'symm.wait_until(arrived + owner * row_tiles + top, "ge", turn * parts, ctx, source=left)'
)
WAIT_MOE = 'symm.wait_until(counts + source, "ge", turn * 65536, ctx, source=source) % 65536'
WAIT_DECODE = 'symm.wait_until(arrived + head * ranks + peer, "ge", turn, ctx, source=peer)'
HALO_DOWN = "symm.signal_set(ready, turn, rank + 1, ctx)"
# (example, what is removed, a line of the kernel that the report names)
REMOVED = {
    "all_reduce before": (
        "all_reduce_one_shot",
        nothing("symm.barrier(ctx, program)  # everybody's block is there"),
        "symm.load(place, peer, ctx, mask=inside)",
    ),
    "all_reduce by turns": (
        "all_reduce_one_shot",
        (("(turn % 2) * most", "0"),),
        "tl.store(place, mine, mask=inside)",
    ),
    "matmul wait": (
        "all_gather_matmul_ring",
        nothing(WAIT_MATMUL),
        "total = tl.dot(a.load([row, k]), w.load([k, column]), total",
    ),
    "matmul signal on": (
        "all_gather_matmul_ring",
        nothing('symm.wait_until(flag, "ge", turn * parts, ctx, source=left)'),
        "tl.store(there + index, tl.load(source + index))",
    ),
    "matmul by turns": (
        "all_gather_matmul_ring",
        (("(turn % 2) * ranks * rows", "0 * ranks"),),
        "tl.store(there + index, tl.load(source + index))",
    ),
    "moe counts": (
        "moe_dispatch_combine",
        ((WAIT_MOE, "tokens"), (", turn * 65536 + slot", ", slot")),
        "token = tl.load(origin + slot)",
    ),
    "moe done": (
        "moe_dispatch_combine",
        nothing(
            'symm.wait_until(done, "ge", turn * ranks, ctx)',
            "symm.signal_add(done, 1, source, ctx)",
        ),
        "symm.put(inbox + slot * WIDTH + column",
    ),
    "decode arrived": (
        "flash_decode_combine",
        nothing(WAIT_DECODE, "symm.signal_set(arrived + head * ranks + rank, turn, peer, ctx)"),
        "theirs = tl.load(row + WIDTH + 1)",
    ),
    "decode barrier": (
        "flash_decode_combine",
        nothing("symm.barrier(ctx, head)  # the partial results are read"),
        "symm.store(row + column, own, peer, ctx)",
    ),
    "halo, a relaxed signal": (
        "halo_exchange",
        ((HALO_DOWN, HALO_DOWN.replace("ctx", 'ctx, SEM="relaxed"')),),
        "symm.store(old + column, bottom, rank + 1, ctx)",
    ),
    "halo from above": (
        "halo_exchange",
        nothing(
            HALO_DOWN,
            'symm.wait_until(ready, "ge", turn, ctx, source=rank - 1)',
        ),
        "symm.store(old + column, bottom, rank + 1, ctx)",
    ),
}

BETWEEN_CALLS = ("all_reduce by turns", "matmul by turns", "moe done", "decode barrier")


@pytest.mark.parametrize("name", [name for name in example_kernels.NAMES if name[:4] != "halo"])
def test_calls_in_a_row_are_clean(name, tmp_path):
    assert run_ranks(run_in_a_row, RANKS, name, str(tmp_path), (), env=ENV) == [0.0] * RANKS


def line_of(name, text, removed):
    """The number of the line that has `text` in the example."""
    lines = (example_kernels.FOLDER / f"{name}.py").read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if text in line]
    assert len(found) == 1, (text, found)
    return found[0]


@pytest.mark.parametrize("case", REMOVED)
def test_a_signal_that_is_missing_is_found(case, tmp_path):
    name, removed, line = REMOVED[case]
    way = run_in_a_row if case in BETWEEN_CALLS else run_example
    results = run_ranks(way, RANKS, name, str(tmp_path), removed, env=ENV)
    texts = [result[1] for result in results if isinstance(result, tuple)]
    races = [text for text in texts if text.startswith("SYMM_RACE_CHECK: no signal, barrier or")]
    assert races, f"nobody has found it: {results}"
    pair = rf"rank \d (reads|writes) byte \d+ of rank \d's memory at {name}_\d+\.py:\d+ \(\w+\), "
    assert re.search(pair + rf"rank \d (reads|writes) it at {name}_\d+\.py:\d+ \(\w+\)", races[0])
    assert re.search(rf"{name}_\d+\.py:{line_of(name, line, removed)} ", "".join(races)), races


def by_a_collective(rank, ordered):
    """Ranks write to each other in one kernel and read in the next; a barrier of torch.distributed
    between them is an order."""
    import library_kernels as kernels

    import torch_symm

    box = torch_symm.full((8,), -1, dtype=torch.int32, device="cpu")
    ctx = kernels.symm.context(box)
    out, ranks = torch.zeros(8, dtype=torch.int32), dist.get_world_size()
    for _ in range(2):
        try:
            kernels.peer_kernel[(1,)](box, (rank + 1) % ranks, ctx)
            if ordered:
                dist.barrier()
            kernels.read_kernel[(1,)](box, out, BLOCK=8)
            if ordered:
                dist.all_reduce(out)
        except Exception as error:
            return type(error).__name__
    return ""


def test_a_collective_is_an_order():
    assert run_ranks(by_a_collective, 3, True, env=ENV) == [""] * 3
    assert "RaceError" in run_ranks(by_a_collective, 3, False, env=ENV)


def test_it_needs_the_interpreter():
    env = {**os.environ, "SYMM_RACE_CHECK": "1"}
    env.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", "import torch_symm.triton"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert result.returncode == 1
    assert "SYMM_RACE_CHECK=1 checks kernels in Triton's interpreter" in result.stderr
