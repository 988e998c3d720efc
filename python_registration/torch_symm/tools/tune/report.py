"""A line a size, and at the end what changes and the file that says so."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torch_symm._registration import load
from torch_symm.tools.bench.config import format_size
from torch_symm.tools.command import Report, progress_bar
from torch_symm.tools.record_file import write_records
from torch_symm.tools.tune.candidates import Candidate
from torch_symm.tools.tune.config import TuneConfig
from torch_symm.tools.tune.job import Measured
from torch_symm.tools.tune.table import (
    VARIABLE,
    Point,
    choose,
    document,
    least_times,
    merged,
    new_rows,
    tuning_file,
)


class TuneReport(Report):
    """Shows the points of one run. Its records are Measured."""

    name = "points"

    def __init__(
        self,
        config: TuneConfig,
        machine: dict[str, str | int],
        console: Console,
        before: Sequence[Measured],
        output: Path,
        json_file: Path | None,
    ) -> None:
        total = sum(len(config.counts(collective)) for collective, _ in config.cases)
        super().__init__(config, machine, total, console)
        self._output = output
        self._json_file = json_file
        self._progress = progress_bar(console)
        self._task = self._progress.add_task("measuring", total=total, completed=len(before))
        self.records += before

    def __enter__(self) -> TuneReport:
        super().__enter__()
        if self.records:
            self._text(f"# {len(self.records)} of {self._total} sizes were measured before")
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def add(self, record: Measured) -> None:
        """Show one more point, and keep it."""
        self.records.append(record)
        self._text(_line(record))
        for name, error in record.errors.items():
            self._text(f"# {record.collective} by {name} gives no result: {error}")
        self._progress.update(self._task, advance=1, description=record.collective)
        super().write(self._json_file)

    def failed(self) -> bool:
        """Tell whether any candidate gave a wrong element."""
        return any(record.wrong for record in self.records)

    def write(self, json_file: Path | None) -> None:
        """Write what was measured and, where something is to change, the tuning file."""
        super().write(json_file)
        config: TuneConfig = self._config
        tables = json.loads(load().plan_tables())
        changed = {}
        for collective in config.collectives:
            records = [one for one in self.records if one.collective == collective]
            points = least_times(one.point for one in records)
            if len(points) < len(config.counts(collective)):
                self._text(f"# {collective}: not measured to the end, so it stays as it is")
                continue
            if any(one.wrong for one in records):
                self._text(f"# {collective}: wrong elements, so it stays as it is")
                continue
            if any(point.table_us is None for point in points):
                self._text(f"# {collective}: no result of the table, so it stays as it is")
                continue
            chosen = choose(points, config.gain)
            if chosen == [point.table for point in points]:
                continue
            self._show(collective, points, chosen)
            tuned = new_rows(collective, config.ranks, points, chosen)
            rows = tables[config.rows_key]
            changed[collective] = merged(rows, collective, config.ranks, tuned)
        if not changed:
            self._text("# nothing is to change, so no file was written")
            return
        self._write_table(document(_file_in_force(), tables, config.rows_key, changed))

    def _show(self, collective: str, points: Sequence[Point], chosen: Sequence[Candidate]) -> None:
        table = Table(title=collective)
        for title in ("size", "table", "us", "now", "us", "times faster"):
            table.add_column(title, justify="right")
        for point, candidate in zip(points, chosen, strict=True):
            if candidate.at(point.staged) != point.table.at(point.staged):
                before, after = point.time(point.table), point.time(candidate)
                names = (format_size(point.size), str(point.table), f"{before:.1f}")
                table.add_row(*names, str(candidate), f"{after:.1f}", f"{before / after:.2f}")
        self._console.print(table)

    def _write_table(self, content: dict[str, Any]) -> None:
        write_records(self._output, content)
        with tuning_file(str(self._output)):
            load().plan_tables()  # raises where a group would
        self._text(f"# written; to use it: {VARIABLE}={self._output}")


def _line(record: Measured) -> str:
    point = record.point
    text = f"{record.collective:14} {format_size(point.size):>5}  table {point.table}: "
    text += "no result" if point.table_us is None else f"{point.table_us:.1f} us"
    if point.times:
        best = point.best
        text += f", best of {len(point.times)} {best}: {point.times[best]:.1f} us"
    return text + (f", {record.wrong} WRONG ELEMENTS" if record.wrong else "")


def _file_in_force() -> dict[str, Any]:
    path = os.environ.get(VARIABLE)
    return {} if path is None else json.loads(Path(path).read_text())
