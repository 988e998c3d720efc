"""Timing blocks and correctness checks of one collective at one size.

Blocks of the backends alternate, so that a change of the machine's load meets all of them alike.
Before every block there is a barrier of the group that the block times. A block's time is wall
time of its synchronous calls.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
import torch.distributed as dist

from torch_symm.bench.bandwidth import bandwidths
from torch_symm.bench.collectives import CLASSES, Collective, Place
from torch_symm.bench.config import BenchConfig
from torch_symm.bench.pattern import Pattern
from torch_symm.bench.results import VARIANTS, BackendResult, Row, Timing

_MOST_ITERS = 2000
_ESTIMATE_CALLS = 3


class BenchError(RuntimeError):
    """A measurement could not be carried out; the message says on which rank and why."""


@dataclass(frozen=True)
class Session:
    """The groups of one run. Each spans all ranks.

    ``groups`` are those under test, in the order of the configuration's backends; ``control``
    (Gloo) carries the figures between the ranks and is never timed. ``serials`` gives names in
    ``store`` that no earlier check has used; every rank draws from it equally often.
    """

    config: BenchConfig
    rank: int
    groups: tuple[dist.ProcessGroup, ...]
    control: dist.ProcessGroup
    store: dist.Store
    serials: Iterator[int] = field(default_factory=itertools.count)

    def largest(self, values: list[float]) -> list[float]:
        """Return the largest over the ranks of every value. Collective."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return tensor.tolist()

    def total(self, value: int) -> int:
        """Return the sum over the ranks. Collective."""
        tensor = torch.tensor([value])
        dist.all_reduce(tensor, group=self.control)
        return int(tensor[0])

    def refusals(self, refusal: str | None) -> list[str | None]:
        """Return every rank's refusal. Collective."""
        seen: list[str | None] = [None] * self.config.ranks
        dist.all_gather_object(seen, refusal, group=self.control)
        return seen


def measure_row(session: Session, name: str, count: int) -> Row:
    """Measure and check collective ``name`` with ``count`` on every group. Collective."""
    config = session.config
    kind = CLASSES[name]
    itemsize = config.torch_dtype.itemsize
    size = kind.size_of(count, itemsize, config.ranks)
    place = Place(
        session.rank, config.ranks, config.root, config.op, config.torch_dtype, config.device
    )
    errors: list[str | None] = [None] * len(session.groups)
    timings: dict[tuple[int, str], Timing] = {}
    for variant in VARIANTS:
        if not getattr(kind, f"{variant}_exists"):
            continue
        operation = kind(place, count, variant == "in_place")
        usable = []
        for index, group in enumerate(session.groups):
            errors[index] = errors[index] or _refusal(session, operation, group)
            if errors[index] is None:
                usable.append(index)
        groups = [session.groups[index] for index in usable]
        for index, (time_us, iters, wrong) in zip(
            usable, _measure_variant(session, operation, groups), strict=True
        ):
            algbw, busbw = bandwidths(name, config.ranks, size, time_us)
            timings[index, variant] = Timing(time_us, algbw, busbw, wrong, iters, config.blocks)
    results = tuple(
        BackendResult(
            backend,
            timings.get((index, "out_of_place")),
            timings.get((index, "in_place")),
            errors[index],
        )
        for index, backend in enumerate(config.backends)
    )
    return Row(
        collective=name,
        size=size,
        count=count,
        dtype=config.dtype,
        redop=config.op if kind.has_op else "none",
        root=config.root if kind.has_root else -1,
        results=results,
    )


def _refusal(session: Session, operation: Collective, group: dist.ProcessGroup) -> str | None:
    """Call once and return why the backend refuses the operation, if all ranks say so."""
    refusal = None
    operation.clear()
    try:
        operation.call(group)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        refusal = str(error).splitlines()[0] or type(error).__name__
    seen = session.refusals(refusal)
    if any(seen) and not all(seen):
        rank = next(rank for rank, text in enumerate(seen) if text)
        raise BenchError(f"{type(operation).__name__} failed on rank {rank} only: {seen[rank]}")
    return seen[0]


def _measure_variant(
    session: Session, operation: Collective, groups: list[dist.ProcessGroup]
) -> list[tuple[float, int, int | None]]:
    """Return time in microseconds, calls per block and wrong elements for each group."""
    config = session.config
    wrong = [_check(session, operation, group, salt=2 * i) for i, group in enumerate(groups)]
    operation.clear()
    iters = [_calls_per_block(session, operation, group) for group in groups]
    times: list[list[float]] = [[] for _ in groups]
    for _ in range(config.blocks):
        for index, group in enumerate(groups):
            times[index].append(_block(operation, group, iters[index]))
    wrong_after = [
        _check(session, operation, group, salt=2 * i + 1) for i, group in enumerate(groups)
    ]
    results = []
    for index in range(len(groups)):
        time_us = median(session.largest(times[index])) * 1e6
        counted = wrong[index] + wrong_after[index] if config.check else None
        results.append((time_us, iters[index], counted))
    return results


def _block(operation: Collective, group: dist.ProcessGroup, iters: int) -> float:
    """Return this rank's seconds per call over one block."""
    dist.barrier(group=group)
    start = time.perf_counter()
    for _ in range(iters):
        operation.call(group)
    return (time.perf_counter() - start) / iters


def _calls_per_block(session: Session, operation: Collective, group: dist.ProcessGroup) -> int:
    """Warm up and return how many calls one block makes; the same on every rank."""
    config = session.config
    for _ in range(config.warmup):
        operation.call(group)
    if config.iters:
        return config.iters
    block_s = config.budget_ms * 1e-3 / config.blocks
    calls = _ESTIMATE_CALLS
    # The first calls are slow (cold caches, ranks not yet on cores of their own), so estimate again
    # with more of them until the estimate itself takes a good part of a block.
    while True:
        estimate_s = session.largest([_block(operation, group, calls)])[0]
        if estimate_s * calls > block_s / 4 or calls >= _MOST_ITERS:
            break
        calls = min(4 * calls, _MOST_ITERS)
    return min(max(int(block_s / max(estimate_s, 1e-9)), 1), _MOST_ITERS)


def _check(session: Session, operation: Collective, group: dist.ProcessGroup, salt: int) -> int:
    """Run once on fresh inputs and return the wrong elements over all ranks. Collective."""
    config = session.config
    if not config.check:
        return 0
    if operation.count == 0:
        return session.total(_check_barrier(session, operation, group))
    op = config.op if operation.has_op else "none"
    pattern = Pattern(config.torch_dtype, op, config.ranks, salt)
    operation.prepare_check(pattern)
    operation.call(group)
    return session.total(operation.wrong_elements(pattern))


def _check_barrier(session: Session, operation: Collective, group: dist.ProcessGroup) -> int:
    """Return in how many rounds this rank left the barrier before all had entered.

    In round r, rank r enters only after it has seen every other rank announce itself, so a
    barrier that does not block lets the others out too early.
    """
    ranks = range(session.config.ranks)
    early = 0
    for late in ranks:
        serial = next(session.serials)
        keys = [f"barrier/{serial}/{rank}" for rank in ranks]
        others = [key for rank, key in enumerate(keys) if rank != late]
        if session.rank == late and others:
            session.store.wait(others)
        # Not set(): that returns before the server has the key, so that a peer could miss it.
        session.store.add(keys[session.rank], 1)
        operation.call(group)
        early += not session.store.check(keys)
    return early
