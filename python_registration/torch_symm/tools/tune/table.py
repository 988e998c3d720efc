"""Which candidate gets which sizes, and the rows that say so.

A row is a fact of the collective, the number of ranks and the bytes of the message alone, which is
all that may decide (NOTE [What may decide] in kernels/plan/plan.hpp).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_symm.tools.tune.candidates import Candidate

Row = dict[str, Any]
VARIABLE = "SYMM_TUNING_FILE"

# What a further boundary between sizes must save, as a part of one size's time.
_BOUNDARY = 0.02


@dataclass(frozen=True)
class Point:
    """What was measured at one size of a collective.

    ``size`` is the bench's, ``staged`` what a row's max_bytes counts; ``table`` is the candidate
    that the table names. ``times``, in microseconds, are of those that gave a result.
    """

    size: int
    staged: int
    table: Candidate
    times: dict[Candidate, float]

    def time(self, candidate: Candidate) -> float:
        """Return its time, or that of the one that makes the same call; infinite without."""
        for same in (candidate, candidate.at(self.staged)):
            if same in self.times:
                return self.times[same]
        return math.inf

    def with_least_of(self, other: Point) -> Point:
        """Return this point with the lesser time of each candidate."""
        times = self.times | {
            candidate: min(time, self.times.get(candidate, math.inf))
            for candidate, time in other.times.items()
        }
        return replace(self, times=times)

    @property
    def table_us(self) -> float | None:
        """Return the time of the table's candidate, None where it gave no result."""
        return self.times.get(self.table)

    @property
    def best(self) -> Candidate:
        """Return the fastest of those that gave a result, of which there must be one."""
        return min(self.times, key=self.times.__getitem__)


def least_times(points: Iterable[Point]) -> list[Point]:
    """Return one point a size, by size, with the least time of each candidate."""
    merged_points: dict[int, Point] = {}
    for point in points:
        known = merged_points.get(point.size, point)
        merged_points[point.size] = known.with_least_of(point)
    return [merged_points[size] for size in sorted(merged_points)]


@contextlib.contextmanager
def tuning_file(path: str) -> Iterator[None]:
    """Have what reads the tables inside, such as groups that are made, read the file ``path``."""
    given = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = path
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        os.environ.update({} if given is None else {VARIABLE: given})


def staged_bytes(collective: str, world_size: int, size: int) -> int:
    """Return what one rank stages in a call of ``size`` bytes as the bench counts them.

    As staged_bytes() in kernels/plan/plan.hpp: one share of all_gather and gather, all shares of
    the others.
    """
    return size // world_size if collective in ("all_gather", "gather") else size


def present(rows: Iterable[Row], collective: str, world_size: int, staged: int) -> Candidate:
    """Return what the table names for a call."""
    fitting = [
        row
        for row in rows
        if row["collective"] == collective
        and row["min_world"] <= world_size <= row["max_world"]
        and staged <= _limit(row)
    ]
    return Candidate.of_row(min(fitting, key=_limit))


def choose(points: Sequence[Point], gain: float) -> list[Candidate]:
    """Return a candidate for each point, at each of which the table's gave a result.

    Those of the least sum of the logarithms of their times, where one that is not the table's pays
    ``gain`` at each point, and a boundary _BOUNDARY, so that noise moves nothing. By dynamic
    programming over (point, candidate).
    """
    every = list(dict.fromkeys(one for point in points for one in (point.table, *point.times)))
    toll = -math.log1p(-gain)
    cost = [0.0] * len(every)
    came_from: list[list[int]] = []
    for place, point in enumerate(points):
        best = min(range(len(every)), key=cost.__getitem__)
        previous, total = [], []
        for index, candidate in enumerate(every):
            stays = place == 0 or cost[index] <= cost[best] + _BOUNDARY
            previous.append(index if stays else best)
            before = cost[index] if stays else cost[best] + _BOUNDARY
            own = 0.0 if candidate == point.table else toll
            total.append(before + math.log(point.time(candidate)) + own)
        cost = total
        came_from.append(previous)
    index = min(range(len(every)), key=cost.__getitem__)
    chosen = []
    for previous in reversed(came_from):
        chosen.append(every[index])
        index = previous[index]
    return chosen[::-1]


def new_rows(
    collective: str, world_size: int, points: Sequence[Point], chosen: Sequence[Candidate]
) -> list[Row]:
    """Return rows of ``world_size`` ranks: ``chosen`` up to each point, the last without limit."""
    rows = []
    for place, (point, candidate) in enumerate(zip(points, chosen, strict=True)):
        last = place + 1 == len(points)
        if last or chosen[place + 1] != candidate:
            worlds = {"min_world": world_size, "max_world": world_size}
            limit = {"max_bytes": None if last else point.staged}
            device = "cuda" if candidate.channels else "cpu"
            rows.append(
                {"collective": collective, **worlds, **limit, **candidate.row_fields(device)}
            )
    return rows


def merged(rows: Iterable[Row], collective: str, world_size: int, tuned: list[Row]) -> list[Row]:
    """Return all rows of ``collective``: ``tuned`` for ``world_size`` ranks, ``rows`` beside."""
    result = list(tuned)
    for row in rows:
        if row["collective"] != collective:
            continue
        if not row["min_world"] <= world_size <= row["max_world"]:
            result.append(row)
            continue
        if row["min_world"] < world_size:
            result.append(row | {"max_world": world_size - 1})
        if row["max_world"] > world_size:
            result.append(row | {"min_world": world_size + 1})
    return sorted(result, key=lambda row: (row["min_world"], _limit(row)))


def document(
    base: dict[str, Any], tables: dict[str, Any], key: str, changed: dict[str, list[Row]]
) -> dict[str, Any]:
    """Return a tuning file: ``base``, and in its rows ``key`` those of ``changed``, by collective.

    ``base`` is the file that was in force, or empty; ``tables`` what ranks have with it. Rows that
    are for both wires, and are tuned for one, leave the other as it is.
    """
    rows = [row for row in base.get(key, []) if row["collective"] not in changed]
    result = base | {key: rows + [row for one in changed.values() for row in one]}
    if key == "gpu_rows":
        line = list(base.get("gpu_line_rows", []))
        named = {row["collective"] for row in line}
        line += [
            row
            for row in tables["gpu_line_rows"]
            if row["collective"] in changed and row["collective"] not in named
        ]
        result["gpu_line_rows"] = line
    return {name: value for name, value in result.items() if value != []}


def _limit(row: Row) -> float:
    return math.inf if row["max_bytes"] is None else row["max_bytes"]
