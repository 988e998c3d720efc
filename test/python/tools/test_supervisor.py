"""The supervisor of a set of ranks: what it is told, and how a set ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_symm.tools.ranks.process import Messenger
from torch_symm.tools.ranks.supervisor import Supervisor

METHODS = ["fork", "forkserver"]


# What torch reads while it is imported; without it the hook of symm's start is there.
OFF = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def add_up(rank: int, messenger: Messenger, *numbers: int) -> Any:
    messenger.begin("adding", 1.0)
    return rank, sum(numbers), torch.full((3,), float(rank))


@pytest.mark.parametrize("method", METHODS)
def test_values_come_back_by_rank(method: str) -> None:
    reports = Supervisor(add_up, [0, 3], (5, 6), method).finish(60.0)
    assert [report.rank for report in reports] == [0, 3]
    for report in reports:
        rank, total, tensor = report.value
        assert (rank, total, tensor.tolist()) == (report.rank, 11, [float(rank)] * 3)
        assert report.returned
        assert report.error is None
        assert not report.stacks


def variable(rank: int, messenger: Messenger) -> tuple[str | None, bool]:
    return os.environ.get(OFF), "torch_symm._import_hook" in sys.modules


def test_new_programs_import_torch_in_their_environment() -> None:
    reports = Supervisor(variable, range(2), method="spawn", environment={OFF: "0"}).finish(60.0)
    assert [report.value for report in reports] == [("0", False)] * 2
    assert os.environ.get(OFF) != "0"


def test_a_fork_runs_a_closure() -> None:
    numbers = [7]
    reports = Supervisor(lambda rank, messenger: numbers[rank] + 1, [0]).finish(10.0)
    assert reports[0].value == 8


def echo(rank: int, messenger: Messenger) -> None:
    while (content := messenger.receive()) is not None:
        messenger.send(content * 2)


@pytest.mark.parametrize("method", METHODS)
def test_messages_go_both_ways(method: str) -> None:
    ranks = Supervisor(echo, range(2), method=method)
    for rank in range(2):
        ranks.send(rank, [rank])
        ranks.send(rank, "x" * 1_000_000)
    messages: list[tuple[int, Any]] = []
    deadline = time.monotonic() + 60.0
    while len(messages) < 4 and time.monotonic() < deadline:
        messages += ranks.listen()
    for rank in range(2):
        assert [m for r, m in messages if r == rank] == [[rank, rank], "x" * 2_000_000]
        ranks.send(rank, None)
    assert all(report.returned for report in ranks.finish(10.0))
    with pytest.raises(OSError, match="closed"):
        ranks.send(0, None)


def end_as_told(rank: int, messenger: Messenger, deeds: dict[int, str]) -> None:
    messenger.send("last words")
    if deeds[rank] == "raise":
        raise ValueError("no such thing\nand more")
    if deeds[rank] == "exit":
        sys.exit(3)
    if deeds[rank] == "end":
        os._exit(7)
    if deeds[rank] == "wait":
        time.sleep(3600.0)


@pytest.mark.parametrize("method", METHODS)
def test_every_end_is_told(method: str) -> None:
    deeds = {0: "raise", 1: "exit", 2: "end", 3: "wait"}
    ranks = Supervisor(end_as_told, deeds, (deeds,), method)
    messages: list[tuple[int, Any]] = []
    deadline = time.monotonic() + 60.0
    while (ranks.running(), len(messages)) != ([3], 4) and time.monotonic() < deadline:
        messages += ranks.listen()
    assert sorted(messages) == [(rank, "last words") for rank in deeds]
    ranks.signal(3, signal.SIGSTOP)
    raised, left, ended, killed = ranks.finish(0.0)
    assert raised.reason == "raised ValueError: no such thing"
    assert raised.error.endswith("ValueError: no such thing\nand more\n")
    assert (left.exit_code, left.reason) == (1, "raised SystemExit: 3")
    assert (ended.exit_code, ended.error, ended.value) == (7, None, None)
    assert killed.exit_code == -signal.SIGKILL
    assert "in end_as_told" in killed.stacks
    assert "run_rank" not in killed.stacks
    assert not any(report.returned for report in (raised, left, ended, killed))


def test_one_rank_is_killed_and_the_others_go_on() -> None:
    deeds = {0: "wait", 1: "wait"}
    ranks = Supervisor(end_as_told, deeds, (deeds,))
    ranks.kill([1])
    assert ranks.running() == [0]
    messages: list[tuple[int, Any]] = []
    deadline = time.monotonic() + 60.0
    while not messages and time.monotonic() < deadline:
        messages = ranks.listen()
    assert messages == [(0, "last words")]
    start = time.monotonic()
    ranks.collect(start + 30.0, leave_out=0)
    ranks.collect(start + 0.2, stop_on_failure=True)
    assert 0.2 <= time.monotonic() - start < 10.0
    assert [report.exit_code for report in ranks.finish(0.0)] == [-signal.SIGKILL] * 2


ABANDONED = """
import os, time
from torch_symm.tools.ranks.supervisor import Supervisor

ranks = Supervisor(lambda rank, messenger: (messenger.send(os.getpid()), time.sleep(3600)), [0])
while not (messages := ranks.listen()):
    pass
print(messages[0][1])
"""


def test_an_abandoned_set_ends_with_its_process() -> None:
    command = [sys.executable, "-c", ABANDONED]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert not Path("/proc", result.stdout.strip()).exists()


def test_a_failure_ends_the_others_after_the_grace() -> None:
    deeds = {0: "wait", 1: "raise"}
    start = time.monotonic()
    first, second = Supervisor(end_as_told, deeds, (deeds,)).finish(60.0, grace=0.2)
    assert time.monotonic() - start < 20.0
    assert first.stacks
    assert second.error is not None
