"""The probe's examination finds what a faulty graph leaves, and faults no sound one.

Runs without a GPU: a stand-in for the capture replays a function on a thread, soundly or with a
fault, over Gloo. It is the examination that is tested here and not the backend under it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from torch_symm.tools.probe.config import ProbeConfig
from torch_symm.tools.probe.examine import Surroundings, examine
from torch_symm.tools.probe.fused import FUSED
from torch_symm.tools.probe.operations import OPERATIONS, AllReduce
from torch_symm.tools.probe.verdict import Result, Verdict, worst
from torch_symm.tools.ranks.graph import CaptureError
from torch_symm.tools.ranks.process import Messenger

pytestmark = pytest.mark.timeout(120)

WORLD_SIZE = 3
SIZES = (64, 4096)
# The Gloo of older versions of torch has neither.
NOT_IN_EVERY_GLOO = ("all_reduce_avg", "all_to_all_list")
RUN_BY_GLOO = [
    name
    for name, operation in OPERATIONS.items()
    if not operation.of_symm and name not in NOT_IN_EVERY_GLOO
]


class Replayed:
    """Stands in for Recording: a replay runs the function again, on a thread as on a stream."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self._error: list[Exception] = []
        self._thread = threading.Thread()

    def run(self) -> None:
        self.function()

    def _run(self) -> None:
        try:
            self.run()
        except Exception as error:
            self._error.append(error)

    def replay(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()
        if self._error:
            raise self._error.pop()

    def ends_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        pass


class DoesNothing(Replayed):
    """A graph that captured no work."""

    def run(self) -> None:
        pass


class ReplaysStaleResult(Replayed):
    """A graph that gives again what the operation gave before the capture."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(function)
        self._buffers = function.__self__._buffers
        self._kept = self._buffers.output.clone()

    def run(self) -> None:
        self._buffers.output.copy_(self._kept)


class WrongFromThirdReplay(Replayed):
    """A graph whose last element on rank 1 is wrong from the third replay on."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(function)
        self._buffers = function.__self__._buffers
        self._replays = 0

    def run(self) -> None:
        self._replays += 1
        self.function()
        if self._replays >= 3 and dist.get_rank() == 1:
            self._buffers.output[-1:] += 1


class ChangesInput(Replayed):
    """A graph that is right but for one element of rank 2's input."""

    def run(self) -> None:
        self.function()
        if dist.get_rank() == 2:
            self.function.__self__._buffers.input[1] = -1


class RaisesAtReplay(Replayed):
    """A graph whose replay fails on rank 0."""

    def run(self) -> None:
        self.function()
        if dist.get_rank() == 0:
            raise RuntimeError("an illegal address")


def refuses_on_rank_one(function: Callable[[], Any]) -> Replayed:
    if dist.get_rank() == 1:
        raise CaptureError("operation not permitted when stream is capturing")
    return Replayed(function)


class Silent(Messenger):
    """Tells nobody anything."""

    def __init__(self) -> None:
        pass

    def send(self, content: object) -> None:
        pass


def surroundings(rank: int, path: str, recorder: Callable) -> Surroundings:
    store = dist.FileStore(path, WORLD_SIZE)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("groups", store), rank=rank, world_size=WORLD_SIZE
    )
    return Surroundings(
        config=ProbeConfig(backends=("gloo",), ranks=WORLD_SIZE, device="cpu", sizes=SIZES),
        rank=rank,
        device=torch.device("cpu"),
        control=dist.group.WORLD,
        store=dist.PrefixStore("checks", store),
        recorder=recorder,
        messenger=Silent(),
    )


def examining_rank(
    rank: int,
    path: str,
    recorder: Callable,
    names: list[str],
    results: mp.SimpleQueue,
    backend: str = "gloo",
) -> None:
    """Examine each of ``names`` at every size; rank 0 keeps the results in ``results``."""
    torch.set_num_threads(1)
    around = surroundings(rank, path, recorder)
    group = dist.new_group(backend=backend)
    for name in names:
        for size in SIZES:
            result = worst("gloo", name, examine(around, OPERATIONS[name], size, group))
            if rank == 0:
                results.put(result)
    dist.barrier()
    dist.destroy_process_group()


def examined(path: Path, rank_main: Callable, *arguments: Any) -> list[Result]:
    """Run ``rank_main`` as all ranks; the results that rank 0 has put."""
    results = mp.get_context("fork").SimpleQueue()
    mp.start_processes(
        rank_main,
        args=(str(path / "store"), *arguments, results),
        nprocs=WORLD_SIZE,
        start_method="fork",
    )
    kept = []
    while not results.empty():
        kept.append(results.get())
    return kept


def test_a_sound_graph_captures(tmp_path: Path) -> None:
    results = examined(tmp_path, examining_rank, Replayed, RUN_BY_GLOO)
    assert len(results) == len(RUN_BY_GLOO) * len(SIZES)
    for result in results:
        assert (result.operation, result.verdict, result.reason) == (
            result.operation,
            Verdict.CAPTURES,
            "",
        )


def test_a_graph_without_work_is_wrong_for_every_operation(tmp_path: Path) -> None:
    for result in examined(tmp_path, examining_rank, DoesNothing, RUN_BY_GLOO):
        assert result.verdict is Verdict.WRONG_AT_REPLAY, result
        what = "left the barrier" if result.operation == "barrier" else "output element"
        assert result.reason.startswith("replay 1, "), result
        assert what in result.reason, result


def over_symm(
    rank: int, path: str, recorder: Callable, names: list[str], results: mp.SimpleQueue
) -> None:
    examining_rank(rank, path, recorder, names, results, "symm")


@pytest.mark.parametrize(
    ("recorder", "verdict"),
    [
        (Replayed, Verdict.CAPTURES),
        (DoesNothing, Verdict.WRONG_AT_REPLAY),
        (WrongFromThirdReplay, Verdict.WRONG_AT_REPLAY),
    ],
)
def test_fused_forms(tmp_path: Path, recorder: Callable, verdict: Verdict) -> None:
    results = examined(tmp_path, over_symm, recorder, list(FUSED))
    assert len(results) == len(FUSED) * len(SIZES)
    for result in results:
        assert result.verdict is verdict, result


def test_a_stale_result_is_wrong_for_every_operation(tmp_path: Path) -> None:
    names = [name for name in RUN_BY_GLOO if name != "barrier"]
    for result in examined(tmp_path, examining_rank, ReplaysStaleResult, names):
        assert result.verdict is Verdict.WRONG_AT_REPLAY, result


def test_one_wrong_element_of_a_late_replay_is_told_with_its_rank(tmp_path: Path) -> None:
    names = ["all_reduce_max", "all_to_all_single", "all_reduce_coalesced"]
    results = examined(tmp_path, examining_rank, WrongFromThirdReplay, names)
    for result in results:
        assert (result.verdict, result.rank) == (Verdict.WRONG_AT_REPLAY, 1), result
        assert result.reason.startswith("replay 3, "), result
    # 4096 bytes are 1024 elements, so the last has the index 1023.
    assert "output element 1023 is " in results[1].reason


def test_a_changed_input_is_wrong(tmp_path: Path) -> None:
    names = ["all_gather_into_tensor", "several_in_one_graph"]
    for result in examined(tmp_path, examining_rank, ChangesInput, names):
        assert (result.verdict, result.rank) == (Verdict.WRONG_AT_REPLAY, 2), result
        assert "input was changed: element 1 is -1.0" in result.reason


def test_a_replay_that_raises_is_told(tmp_path: Path) -> None:
    for result in examined(tmp_path, examining_rank, RaisesAtReplay, ["broadcast"]):
        assert (result.verdict, result.rank) == (Verdict.WRONG_AT_REPLAY, 0)
        assert "raised RuntimeError: an illegal address" in result.reason


def test_a_capture_that_fails_on_one_rank_counts(tmp_path: Path) -> None:
    for result in examined(tmp_path, examining_rank, refuses_on_rank_one, ["reduce"]):
        assert (result.verdict, result.rank) == (Verdict.NO_CAPTURE, 1)
        assert result.reason == "operation not permitted when stream is capturing"


def refusing_rank(rank: int, path: str, results: mp.SimpleQueue) -> None:
    def refuse(operation: AllReduce, group: dist.ProcessGroup) -> None:
        raise NotImplementedError("all_reduce: not for this dtype\nand a trace")

    AllReduce.call = refuse
    examining_rank(rank, path, Replayed, ["all_reduce_avg"], results)


def test_an_operation_that_does_not_run_is_told(tmp_path: Path) -> None:
    for result in examined(tmp_path, refusing_rank):
        assert result.verdict is Verdict.NO_CALL
        assert result.reason == "NotImplementedError: all_reduce: not for this dtype"


def miscalculating_rank(rank: int, path: str, results: mp.SimpleQueue) -> None:
    call = AllReduce.call

    def miscalculate(operation: AllReduce, group: dist.ProcessGroup) -> None:
        call(operation, group)
        operation.output[0] += rank

    AllReduce.call = miscalculate
    examining_rank(rank, path, Replayed, ["all_reduce_sum"], results)


def test_an_operation_that_is_wrong_eagerly_is_told(tmp_path: Path) -> None:
    for result in examined(tmp_path, miscalculating_rank):
        assert (result.verdict, result.rank) == (Verdict.WRONG_EAGERLY, 1)
        assert "eager call, " in result.reason
        assert "output element 0 is" in result.reason


class Cold:
    """A backend that knows whether its stream is captured, and refuses the first call then.

    ``manner`` is how: "well", "not", "in other words" or "losing the capture".
    """

    def __init__(self, manner: str) -> None:
        self.manner = manner
        self.capturing = False
        self.recordings = 0

    def call(self, operation: AllReduce, group: dist.ProcessGroup) -> None:
        if not self.capturing:
            dist.all_reduce(operation.output, group=group)
        elif self.manner == "in other words":
            raise RuntimeError("not now")
        elif self.manner != "not":
            raise RuntimeError("symm: no memory on this device yet; call once before capture")

    def record(self, function: Callable[[], Any]) -> Replayed:
        self.recordings += 1
        if self.recordings > 1:
            return Replayed(function)
        self.capturing = True
        function()
        self.capturing = False
        if self.manner == "losing the capture":
            raise CaptureError("the capture was invalidated")

        def captured() -> None:
            self.capturing = True
            function()
            self.capturing = False

        return Replayed(captured)


def cold_rank(rank: int, path: str, manner: str, results: mp.SimpleQueue) -> None:
    cold = Cold(manner)
    AllReduce.call = lambda operation, group: cold.call(operation, group)
    around = surroundings(rank, path, cold.record)
    group = dist.new_group(backend="gloo")
    findings = examine(around, OPERATIONS["cold_all_reduce"], 64, group)
    if rank == 0:
        results.put(worst("symm", "cold_all_reduce", findings))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("manner", "verdict", "reason"),
    [
        ("well", Verdict.COLD_REFUSED, ""),
        ("not", Verdict.COLD_NOT_REFUSED, "the first call of a group was captured"),
        (
            "in other words",
            Verdict.COLD_NOT_REFUSED,
            "it does not ask for a call before capture: not now",
        ),
        (
            "losing the capture",
            Verdict.COLD_NOT_REFUSED,
            "the capture was lost after 'symm: no memory on this device yet; call once before "
            "capture': the capture was invalidated",
        ),
    ],
)
def test_the_refusal_of_a_cold_call_is_examined(
    tmp_path: Path, manner: str, verdict: Verdict, reason: str
) -> None:
    (result,) = examined(tmp_path, cold_rank, manner)
    assert (result.verdict, result.reason) == (verdict, reason)
