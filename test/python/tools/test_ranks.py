"""Jobs of the tools: sets of ranks follow each other, whatever a rank does."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from torch_symm.tools.ranks.graph import CaptureError, capture
from torch_symm.tools.ranks.job import Gravity, Job, Trouble, supervise
from torch_symm.tools.ranks.launched import rank_count
from torch_symm.tools.ranks.process import Messenger, RankContext

pytestmark = pytest.mark.timeout(120)

FOREVER_S = 3600.0


class Steps(Job):
    """A job that gives one assignment after the other and keeps what it is told."""

    def __init__(self, assignments: list[Any], told: mp.SimpleQueue) -> None:
        self._assignments = iter(assignments)
        self._told = told

    def assignment(self) -> Any | None:
        return next(self._assignments, None)

    def received(self, content: Any) -> None:
        self._told.put(content)

    def ended(self, trouble: Trouble | None) -> None:
        self._told.put(trouble)


def do_as_told(place: RankContext, assignment: dict[str, str], messenger: Messenger) -> None:
    """Meet the other ranks, then do what ``assignment`` says for this rank, else finish."""
    messenger.begin("meeting", FOREVER_S, "meeting")
    store = place.connect(60.0)
    store.set(f"here/{place.rank}", os.environ["LOCAL_RANK"])
    ranks = range(place.world_size)
    store.wait([f"here/{rank}" for rank in ranks])
    messenger.send([store.get(f"here/{rank}").decode() for rank in ranks])
    deed = assignment.get(str(place.rank), "finish")
    messenger.begin(deed, 1.0 if deed == "hang" else FOREVER_S, place.rank)
    if deed == "abort":
        os.abort()
    if deed == "exit":
        os._exit(7)
    if deed == "complain":
        messenger.complain("is in doubt")
        threading.Event().wait()
    if deed == "raise":
        raise ValueError("no such thing\nand more")
    if deed in ("hang", "wait"):
        threading.Event().wait()
    messenger.finish()


def watch(assignments: list[dict], told: mp.SimpleQueue) -> None:
    supervise(do_as_told, Steps(assignments, told), 2)
    told.put("over")


def outcome(*assignments: dict[str, str]) -> list[Any]:
    """Run the assignments and return what the job was told."""
    context = mp.get_context("fork")
    told = context.Queue()
    watcher = context.Process(target=watch, args=(list(assignments), told))
    watcher.start()
    told_until_over = list(iter(lambda: told.get(timeout=60), "over"))
    watcher.join(timeout=30)
    assert watcher.exitcode == 0
    return told_until_over


@pytest.mark.parametrize(
    ("deed", "gravity", "reason"),
    [
        ("abort", Gravity.DIED, "was ended by SIGABRT"),
        ("exit", Gravity.DIED, "ended with exit code 7"),
        ("raise", Gravity.RAISED, "raised ValueError: no such thing"),
        ("hang", Gravity.LATE, "did not finish within 1 s"),
    ],
)
def test_a_trouble_ends_its_set_and_the_next_is_fresh(
    deed: str, gravity: Gravity, reason: str
) -> None:
    both = ["0", "1"]
    # The other rank would wait for ever: it must be ended, and not be waited for.
    assert outcome({"0": "wait", "1": deed}, {}) == [
        both,
        Trouble(1, gravity, reason, deed, 1),
        both,
        None,
    ]


def test_the_graver_trouble_counts() -> None:
    told = outcome({"0": "raise", "1": "abort"})
    assert (told[1].rank, told[1].gravity) == (1, Gravity.DIED)


def test_a_complaint_explains_why_another_rank_hangs() -> None:
    told = outcome({"0": "hang", "1": "complain"})
    assert told[1] == Trouble(1, Gravity.RAISED, "is in doubt", "complain", 1)


def test_a_rank_that_finished_is_no_trouble() -> None:
    assert outcome({}) == [["0", "1"], None]


def test_the_launcher_decides_the_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert rank_count(None, 3) == 3
    assert rank_count(4, 3) == 4
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rank_count(None, 3) == 8
    with pytest.raises(ValueError, match="the launcher started 8 ranks, got 4"):
        rank_count(4, 3)


class FakeGraphs:
    """What capture() uses of torch.cuda; as in torch, a failing end leaves the side stream."""

    CUDAGraph = object

    def __init__(self, end_fails: bool) -> None:
        self.stream = "before"
        self._end_fails = end_fails

    def current_stream(self) -> str:
        return self.stream

    def set_stream(self, stream: str) -> None:
        self.stream = stream

    @contextlib.contextmanager
    def graph(self, graph: object, stream: str) -> Iterator[None]:
        self.stream = stream
        yield
        if self._end_fails:
            raise RuntimeError("the capture was invalidated")
        self.stream = "before"


@pytest.mark.parametrize("end_fails", [False, True])
@pytest.mark.parametrize("call_fails", [False, True])
def test_a_failing_capture_leaves_the_stream(
    monkeypatch: pytest.MonkeyPatch, end_fails: bool, call_fails: bool
) -> None:
    graphs = FakeGraphs(end_fails)
    monkeypatch.setattr(torch, "cuda", graphs)
    streams = []

    def call() -> None:
        streams.append(graphs.stream)
        if call_fails:
            raise RuntimeError("not permitted\nand more")

    if end_fails or call_fails:
        reason = "not permitted" if call_fails else "the capture was invalidated"
        with pytest.raises(CaptureError, match=f"^{reason}$"):
            capture(call, "side")
    else:
        assert type(capture(call, "side")) is object
    assert streams == ["side"]
    assert graphs.stream == "before"
