"""What every rank executes: the groups, then what is left of the cases, size by size."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from torch_symm.tools.bench.collectives import CLASSES
from torch_symm.tools.bench.config import BenchConfig
from torch_symm.tools.bench.measure import measure_row
from torch_symm.tools.bench.session import FreshRanksNeeded, Session
from torch_symm.tools.ranks.device import open_device
from torch_symm.tools.ranks.process import Messenger, RankContext

_SET_UP_S = 120.0


@dataclass(frozen=True)
class CaseBegins:
    """The case at this place of ``BenchConfig.cases`` begins."""

    case: int


@dataclass(frozen=True)
class OutOfTime:
    """The time of ``BenchConfig.budget_s`` is spent."""


@dataclass(frozen=True)
class Start:
    """Where a set of ranks takes up the run.

    ``excluded`` are the backends that failed in the first case and ``without`` those that failed
    before any; keys are places in the configuration's backends. ``left_s`` is what is left of the
    time for the run.
    """

    case: int = 0
    row: int = 0
    excluded: dict[int, str] = field(default_factory=dict)
    without: dict[int, str] = field(default_factory=dict)
    left_s: float | None = None


def counts(config: BenchConfig, name: str) -> list[int]:
    """Return the counts of one collective; sizes that round to the same count are one."""
    kind = CLASSES[name]
    itemsize = config.torch_dtype.itemsize
    return list(dict.fromkeys(kind.count_of(size, itemsize, config.ranks) for size in config.sizes))


def row_total(config: BenchConfig) -> int:
    """Return how many rows a run has."""
    return sum(len(counts(config, name)) for name, _ in config.cases)


def bench_rank(context: RankContext, assignment: dict, messenger: Messenger) -> None:
    """Be one rank of a set that the supervisor started."""
    config = BenchConfig.from_json(assignment["config"])
    start = assignment["start"]
    excluded, without = (
        {int(index): reason for index, reason in start[name].items()}
        for name in ("excluded", "without")
    )
    begin = Start(start["case"], start["row"], excluded, without, start["left_s"])
    run_worker(config, context.rank, context.connect(config.timeout_s), messenger, begin)


def run_worker(
    config: BenchConfig, rank: int, store: dist.Store, messenger: Messenger, start: Start
) -> None:
    """Measure as ``rank`` from ``start`` on and send what comes of it. Collective.

    ``store`` reaches all ranks. The default group is made here and destroyed at the end. Sends
    CaseBegins, Row, Excluded and OutOfTime from rank 0. Returns early after Excluded, with the
    groups left alone: then a fresh set of ranks must take up the run.
    """
    torch.set_num_threads(1)
    device = open_device(config.device)
    timeout = timedelta(seconds=config.timeout_s)
    messenger.begin("connecting the ranks", _SET_UP_S)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("bench_groups", store),
        rank=rank,
        world_size=config.ranks,
        # A rank that waits here for one whose backend hangs must not be the one that complains.
        timeout=timedelta(seconds=2 * config.case_s + config.timeout_s),
    )
    session = Session(
        config=config,
        rank=rank,
        device=device,
        groups=_groups(config, messenger, start, timeout),
        control=dist.group.WORLD,
        store=dist.PrefixStore("bench_checks", store),
        messenger=messenger,
    )
    sound = _run_cases(session, start)
    messenger.finish()
    if sound:
        dist.destroy_process_group()


def _groups(
    config: BenchConfig, messenger: Messenger, start: Start, timeout: timedelta
) -> dict[int, dist.ProcessGroup]:
    groups = {}
    for index, backend in enumerate(config.backends):
        if index not in start.without:
            # A list, so that the place is known as the group's making and not as a case's part.
            messenger.begin(f"making the group of {backend}", _SET_UP_S, [index])
            groups[index] = dist.new_group(backend=backend, timeout=timeout)
    return groups


def _run_cases(session: Session, start: Start) -> bool:
    """Measure; tell whether the processes are as sound as they were before."""
    started = time.monotonic()
    for case in range(start.case, len(session.config.cases)):
        name, mode = session.config.cases[case]
        session.excluded = dict(start.without)
        first_row = 0
        if case == start.case:
            session.excluded |= start.excluded
            first_row = start.row
        _send(session, CaseBegins(case))
        for row, count in enumerate(counts(session.config, name)):
            if row < first_row:
                continue
            spent_s = time.monotonic() - started
            if start.left_s is not None and session.largest([spent_s])[0] > start.left_s:
                _send(session, OutOfTime())
                return True
            try:
                measured = measure_row(session, name, mode, count)
            except FreshRanksNeeded as needed:
                _send(session, needed.excluded)
                return False
            _send(session, measured)
    return True


def _send(session: Session, content: object) -> None:
    if session.rank == 0:
        session.messenger.send(content)
