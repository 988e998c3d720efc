"""What every rank executes: the groups, then what is left of the cases, size by size."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field

import torch.distributed as dist

from torch_symm.tools.bench.config import BenchConfig
from torch_symm.tools.bench.measure import measure_row
from torch_symm.tools.bench.results import Matmul
from torch_symm.tools.bench.session import BackendExcluded, Session
from torch_symm.tools.ranks.process import Messenger, RankContext


@dataclass
class Start:
    """Where a set of ranks takes up the run.

    ``case`` is a place in ``BenchConfig.cases``, ``phase`` one in ``BenchConfig.phases``: where
    there are several, a set measures one case and ends. ``excluded`` are the backends that failed
    in that case and ``without`` those that failed before any; keys are places in the
    configuration's backends. ``left_s`` is what is left of the time for the run. ``matmuls`` are
    those that earlier phases have chosen for the rows of that case.
    """

    case: int = 0
    phase: int = 0
    row: int = 0
    excluded: dict[int, str] = field(default_factory=dict)
    without: dict[int, str] = field(default_factory=dict)
    left_s: float = float("inf")
    matmuls: tuple[Matmul | None, ...] = ()


def bench_rank(
    context: RankContext, assignment: tuple[BenchConfig, Start], messenger: Messenger
) -> None:
    """Be one rank of a set that the supervisor started."""
    config, start = assignment
    os.environ.update(config.phases[start.phase].environment)
    run_worker(config, context.rank, context.connect(config.timeout_s), messenger, start)


def run_worker(
    config: BenchConfig,
    rank: int,
    store: dist.Store,
    messenger: Messenger,
    start: Start,
    session_type: type[Session] = Session,
) -> None:
    """Measure as ``rank`` from ``start`` on and send each Row from rank 0. Collective.

    ``store`` reaches all ranks. The default group is made here and destroyed at the end. Returns
    early after sending a BackendExcluded, with the groups left alone: then a fresh set of ranks
    must take up the run.
    """
    session = session_type.join(config, rank, store, messenger)
    session.make_groups(config.phases[start.phase], start.without)
    sound = True
    try:
        _run_cases(session, start)
    except BackendExcluded as excluded:
        session.send(excluded)
        sound = False
    session.leave(sound)


def _run_cases(session: Session, start: Start) -> None:
    """Measure until all is done or the time for the run is spent."""
    started = time.monotonic()
    first_row, excluded = start.row, start.excluded
    cases = session.config.cases[start.case :]
    for name, mode in cases if len(session.config.phases) == 1 else cases[:1]:
        session.excluded = start.without | excluded
        session.open_memory(name)
        matmuls = dict(enumerate(start.matmuls))
        for row, count in list(enumerate(session.config.counts(name)))[first_row:]:
            if session.largest([time.monotonic() - started])[0] > start.left_s:
                if session.rank == 0:
                    text = "# --budget-seconds: spent before all rows were measured"
                    print(text, file=sys.stderr)
                return
            session.send(measure_row(session, name, mode, count, matmuls.get(row)))
        first_row, excluded = 0, {}
