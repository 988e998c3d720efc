"""Timing blocks and correctness checks of one collective at one size in one mode.

Blocks of the backends alternate, so that a change of the machine's load meets all of them alike.
Before every block there is a barrier of the group that the block times.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from torch_symm.tools.bench.barrier import times_left_early
from torch_symm.tools.bench.collectives import CallContext, Collective
from torch_symm.tools.bench.config import KINDS, OVERLAPPED, format_size
from torch_symm.tools.bench.contender import offers
from torch_symm.tools.bench.floor import FloorBlocks
from torch_symm.tools.bench.pattern import DTYPES
from torch_symm.tools.bench.programs import PROGRAMS
from torch_symm.tools.bench.results import VARIANTS, BackendResult, Floor, Matmul, Row, Timing
from torch_symm.tools.bench.session import Session
from torch_symm.tools.bench.timing import (
    Group,
    Products,
    Runner,
    Sample,
    fitting,
    runner_for,
)
from torch_symm.tools.ranks.device import synchronize

_MOST_ITERS = 2000
_ESTIMATE_CALLS = 3


def measure_row(
    session: Session, name: str, mode: str, count: int, matmul: Matmul | None = None
) -> Row:
    """Measure and check ``name`` with ``count`` on every usable backend. Collective.

    Overlapped, it goes beside ``matmul``, or beside one that is chosen here. Raises
    BackendExcluded, see Session.accepts.
    """
    config = session.config
    kind = KINDS[name]
    dtype = DTYPES[config.dtype]
    size = kind.size_of(count, dtype.itemsize, config.ranks)
    context = CallContext(
        session.rank,
        config.ranks,
        config.root,
        config.op,
        dtype,
        session.device,
        config.layers,
        session.memory,
    )
    session.begin_case()
    timings: dict[tuple[int, str], Timing] = {}
    floors: dict[str, Floor] = {}
    for variant in VARIANTS:
        if not getattr(kind, f"{variant}_exists"):
            continue
        session.memory.begin()
        operation = kind(context, count, variant == "in_place")
        what = f"{name} {format_size(size)} {mode} {variant}"
        members = [
            (index, group)
            for index, group in session.members(name, size)
            if offers(config.backends[index], name, variant)
        ]
        products = None
        if mode == OVERLAPPED and members:
            matmul = matmul or _matmul(session, operation, what, members)
            products = Products(matmul.side, matmul.count, session.device)
        runners = _runners(session, operation, mode, what, members, products)
        has_floor = mode == "eager" and runners and name not in PROGRAMS
        floor = FloorBlocks(session, operation) if has_floor else None
        try:
            measured = _measure_variant(session, runners, what, size, floor)
        finally:
            for runner in runners.values():
                runner.close()
        timings |= {(index, variant): timing for index, timing in measured.items()}
        if floor is not None:
            floors[variant] = floor.result(lambda seconds: _slowest_us(session, seconds))
    results = tuple(
        BackendResult(
            backend,
            *(timings.get((index, variant)) for variant in VARIANTS),
            session.excluded.get(index),
            offers(backend, name),
        )
        for index, backend in enumerate(config.backends)
    )
    redop = config.op if kind.has_op else "none"
    root = config.root if kind.from_root or kind.to_root else -1
    return Row(name, mode, size, count, config.dtype, redop, root, results, floors, matmul)


def _matmul(
    session: Session, operation: Collective, what: str, members: list[tuple[int, Group]]
) -> Matmul:
    """Return products that take about as long as the first member's call alone. Collective."""

    def seconds_of(side: int, count: int = 1) -> float:
        return session.largest([Products(side, count, session.device).seconds()])[0]

    alone = _runners(session, operation, "eager", what, members[:1])
    block_s = 0.0
    for index, runner in alone.items():
        session.begin(f"{what}, alone", index)
        operation.clear()
        block_s = session.largest([runner.block(_steps_per_block(session, runner)).time_s])[0]
    side, count = fitting(block_s, seconds_of)
    return Matmul(side, count, seconds_of(side, count) * 1e6)


def _runners(
    session: Session,
    operation: Collective,
    mode: str,
    what: str,
    members: Iterable[tuple[int, Group]],
    products: Products | None = None,
) -> dict[int, Runner]:
    """Return a ready runner for each of ``members`` that accepts the operation. Collective."""
    runners: dict[int, Runner] = {}
    for index, group in members:
        runner = runner_for(mode, operation, group, products)

        def first_call(runner=runner) -> None:
            runner.call()
            synchronize(session.device)

        operation.clear()
        session.begin(f"{what}, first call", index)
        if not session.accepts(index, first_call):
            continue
        session.begin(f"{what}, preparing", index)
        if session.accepts(index, runner.prepare):
            runners[index] = runner
    return runners


def _measure_variant(
    session: Session, runners: dict[int, Runner], what: str, size: int, floor: FloorBlocks | None
) -> dict[int, Timing]:
    """Time and check an operation of ``size`` bytes on each backend, with its floor. Collective."""
    config = session.config
    wrong = dict.fromkeys(runners, 0)
    steps: dict[int, int] = {}
    samples: dict[int, list[Sample]] = {index: [] for index in runners}
    for index, runner in runners.items():
        session.begin(f"{what}, check before timing", index)
        wrong[index] += _check(session, runner, salt=2 * index)
    for index, runner in runners.items():
        session.begin(f"{what}, warming up", index)
        runner.operation.clear()
        steps[index] = _steps_per_block(session, runner)
    for _ in range(config.blocks):
        for index, runner in runners.items():
            session.begin(f"{what}, timing", index)
            samples[index].append(runner.block(steps[index]))
        if floor is not None:
            floor.block()
    for index, runner in runners.items():
        session.begin(f"{what}, check after timing", index)
        wrong[index] += _check(session, runner, salt=2 * index + 1)
    timings = {}
    for index, runner in runners.items():
        time_us = _slowest_us(session, [sample.time_s for sample in samples[index]])
        launches = [sample.launch_s for sample in samples[index]]
        timings[index] = Timing(
            time_us,
            None if launches[0] is None else _slowest_us(session, launches),
            *runner.operation.bandwidths(config.ranks, size, time_us),
            wrong[index] if config.check else None,
            steps[index] * runner.calls_per_step,
            config.blocks,
        )
    return timings


def _slowest_us(session: Session, seconds: list[float]) -> float:
    """Return the median over the blocks of the largest over the ranks. Collective."""
    return median(session.largest(seconds)) * 1e6


def _steps_per_block(session: Session, runner: Runner) -> int:
    """Warm up and return how many steps one block makes; the same on every rank."""
    config = session.config
    per_step = runner.calls_per_step
    if config.warmup:
        runner.block(-(-config.warmup // per_step))
    if config.iters:
        return -(-config.iters // per_step)
    block_s = config.budget_ms * 1e-3 / config.blocks
    most = -(-_MOST_ITERS // per_step)
    steps = -(-_ESTIMATE_CALLS // per_step)
    # The first calls are slow (cold caches, ranks not yet on cores of their own), so estimate again
    # with more of them until the estimate itself takes a good part of a block.
    while True:
        estimate_s = session.largest([runner.block(steps).time_s])[0] * per_step
        if estimate_s * steps > block_s / 4 or steps >= most:
            break
        steps = min(4 * steps, most)
    return min(max(int(block_s / max(estimate_s, 1e-9)), 1), most)


def _check(session: Session, runner: Runner, salt: int) -> int:
    """Run once on fresh inputs and return the wrong elements over all ranks. Collective."""
    operation = runner.operation
    if not session.config.check:
        return 0
    if operation.count == 0:
        return sum(session.gather(times_left_early(runner, session)))
    pattern = operation.pattern(salt)
    operation.prepare_check(pattern)
    runner.run_once()
    return sum(session.gather(operation.wrong_elements(pattern)))
