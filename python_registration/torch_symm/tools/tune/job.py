"""Where a run stands: what has been measured, in this run or before."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch_symm.tools.bench.config import ConfigError
from torch_symm.tools.bench.launch import BenchJob
from torch_symm.tools.bench.results import VARIANTS, BackendResult, Row
from torch_symm.tools.tune.candidates import Candidate
from torch_symm.tools.tune.config import TuneConfig
from torch_symm.tools.tune.table import Point, present, staged_bytes

# Options by which a run may go on with what another one has measured.
_FREE = ("budget_s", "case_s", "gain", "timeout_s")


@dataclass(frozen=True)
class Measured:
    """What one size of a collective gave; ``errors`` says why candidates gave nothing."""

    collective: str
    point: Point
    wrong: int
    errors: dict[str, str]

    @classmethod
    def of_row(cls, row: Row, config: TuneConfig, rows: list[dict[str, Any]]) -> Measured:
        """Return what the bench's row says; ``rows`` are those of the table in force."""
        staged = staged_bytes(row.collective, config.ranks, row.size)
        table = present(rows, row.collective, config.ranks, staged)
        times, errors, wrong = {}, {}, 0
        for index, result in enumerate(row.results):
            candidate = config.tried[index - 1].get(row.collective) if index else table
            if candidate is None:
                continue
            wrong += sum(one.wrong or 0 for one in _timings(result))
            if result.error is not None:
                errors[str(candidate)] = result.error
            elif _timings(result) and (index == 0 or candidate.at(staged) != table.at(staged)):
                times[candidate] = _time_us(result)
        return cls(row.collective, Point(row.size, staged, table, times), wrong, errors)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON-ready values."""
        point = self.point
        names = list(point.times)
        return {
            "collective": self.collective,
            "size": point.size,
            "staged": point.staged,
            "table": list(vars(point.table).values()),
            "candidates": [list(vars(one).values()) for one in names],
            "times_us": [round(point.times[one], 3) for one in names],
            "wrong": self.wrong,
            "errors": self.errors,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Measured:
        """Return what to_json() was made of."""
        names = [Candidate(*one) for one in record["candidates"]]
        times = dict(zip(names, record["times_us"], strict=True))
        point = Point(record["size"], record["staged"], Candidate(*record["table"]), times)
        return cls(record["collective"], point, record["wrong"], record["errors"])


def _timings(result: BackendResult) -> list[Any]:
    return [one for name in VARIANTS if (one := result.variant(name)) is not None]


def _time_us(result: BackendResult) -> float:
    """Return the geometric mean of what there is of out of place and in place."""
    times = [one.time_us for one in _timings(result)]
    return math.prod(times) ** (1 / len(times))


def measured_before(file: Path | None, config: TuneConfig) -> list[Measured]:
    """Return what an earlier run has left in ``file``; nothing where there is no such file.

    Raises ConfigError where it was a run with other options.
    """
    if file is None or not file.exists():
        return []
    try:
        document = json.loads(file.read_text())
        theirs, records = document["config"], document["points"]
        found = [Measured.from_json(record) for record in records]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--json: {file} is no record of a tuner: {error}") from None
    mine = json.loads(json.dumps(asdict(config)))
    others = [name for name in mine if name not in _FREE and mine[name] != theirs.get(name)]
    if others:
        raise ConfigError(
            f"--json: {file} is of a run with other options ({', '.join(others)}); name another "
            "file, or delete it"
        )
    return found


class TuneJob(BenchJob):
    """Goes on behind what was measured before."""

    def __init__(
        self,
        config: TuneConfig,
        on_point: Callable[[Measured], None],
        rows: list[dict[str, Any]],
        before: Sequence[Measured],
    ) -> None:
        super().__init__(
            config, lambda row: on_point(Measured.of_row(row, config, rows)), len(before)
        )
