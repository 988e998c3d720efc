"""Timing blocks and correctness checks of one collective at one size in one mode.

Blocks of the backends alternate, so that a change of the machine's load meets all of them alike.
Before every block there is a barrier of the group that the block times.
"""

from __future__ import annotations

from statistics import median

from torch_symm.tools.bench.barrier import times_left_early
from torch_symm.tools.bench.collectives import CLASSES, CallContext, Collective
from torch_symm.tools.bench.config import BenchConfig, format_size
from torch_symm.tools.bench.pattern import Pattern
from torch_symm.tools.bench.results import VARIANTS, BackendResult, Row, Timing
from torch_symm.tools.bench.session import Session
from torch_symm.tools.bench.timing import Runner, Sample, runner_for
from torch_symm.tools.ranks.device import synchronize

_MOST_ITERS = 2000
_ESTIMATE_CALLS = 3


def row_frame(config: BenchConfig, name: str, mode: str, count: int) -> dict:
    """Return the fields of a row that do not depend on the measurement."""
    kind = CLASSES[name]
    return {
        "collective": name,
        "mode": mode,
        "size": kind.size_of(count, config.torch_dtype.itemsize, config.ranks),
        "count": count,
        "dtype": config.dtype,
        "redop": config.op if kind.has_op else "none",
        "root": config.root if kind.from_root or kind.to_root else -1,
    }


def measure_row(session: Session, name: str, mode: str, count: int) -> Row:
    """Measure and check ``name`` with ``count`` on every usable backend. Collective.

    Raises BackendExcluded, see Session.accepts.
    """
    config = session.config
    kind = CLASSES[name]
    frame = row_frame(config, name, mode, count)
    context = CallContext(
        session.rank, config.ranks, config.root, config.op, config.torch_dtype, session.device
    )
    session.begin_case()
    timings: dict[tuple[int, str], Timing] = {}
    for variant in VARIANTS:
        if not getattr(kind, f"{variant}_exists"):
            continue
        operation = kind(context, count, variant == "in_place")
        what = f"{name} {format_size(frame['size'])} {mode} {variant}"
        runners = _runners(session, operation, mode, what)
        try:
            measured = _measure_variant(session, runners, what)
        finally:
            for runner in runners.values():
                runner.close()
        for index, (sample, iters, wrong) in measured.items():
            time_us = sample.time_s * 1e6
            launch_us = None if sample.launch_s is None else sample.launch_s * 1e6
            algbw, busbw = kind.bandwidths(config.ranks, frame["size"], time_us)
            timings[index, variant] = Timing(
                time_us, launch_us, algbw, busbw, wrong, iters, config.blocks
            )
    results = tuple(
        BackendResult(
            backend,
            timings.get((index, "out_of_place")),
            timings.get((index, "in_place")),
            session.excluded.get(index),
        )
        for index, backend in enumerate(config.backends)
    )
    return Row(**frame, results=results)


def _runners(session: Session, operation: Collective, mode: str, what: str) -> dict[int, Runner]:
    """Return a ready runner for every backend that accepts the operation. Collective."""
    runners: dict[int, Runner] = {}
    for index, group in session.groups.items():
        if index in session.excluded:
            continue
        runner = runner_for(mode, operation, group)

        def first_call(group=group) -> None:
            operation.call(group)
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
    session: Session, runners: dict[int, Runner], what: str
) -> dict[int, tuple[Sample, int, int | None]]:
    """Return the median sample, the calls per block and the wrong elements for each backend."""
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
    for index, runner in runners.items():
        session.begin(f"{what}, check after timing", index)
        wrong[index] += _check(session, runner, salt=2 * index + 1)
    return {
        index: (
            _slowest(session, samples[index]),
            steps[index] * runner.calls_per_step,
            wrong[index] if config.check else None,
        )
        for index, runner in runners.items()
    }


def _slowest(session: Session, samples: list[Sample]) -> Sample:
    """Return the median over the blocks of the largest over the ranks. Collective."""
    time_s = median(session.largest([sample.time_s for sample in samples]))
    if samples[0].launch_s is None:
        return Sample(time_s, None)
    return Sample(time_s, median(session.largest([sample.launch_s for sample in samples])))


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
    config = session.config
    operation = runner.operation
    if not config.check:
        return 0
    if operation.count == 0:
        return sum(session.gather(times_left_early(runner, session)))
    op = config.op if operation.has_op else "none"
    pattern = Pattern(config.torch_dtype, op, config.ranks, salt)
    operation.prepare_check(pattern)
    runner.run_once()
    return sum(session.gather(operation.wrong_elements(pattern)))
