"""Shows rows as they arrive, as tables on a wide terminal and as lines elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torch_symm.tools.bench.config import OVERLAPPED, BenchConfig
from torch_symm.tools.bench.results import Row
from torch_symm.tools.command import Report, progress_bar


@dataclass(frozen=True)
class _Column:
    title: str
    unit: str
    width: int


_LEADING = (
    _Column("collective", "", 14),
    _Column("size", "B", 11),
    _Column("count", "elements", 10),
    _Column("type", "", 14),
    _Column("redop", "", 5),
    _Column("root", "", 5),
    _Column("mode", "", 10),
    _Column("backend", "", 12),
)
_MEASURED = (
    _Column("time", "us", 10),
    _Column("launch", "us", 9),
    _Column("algbw", "GB/s", 8),
    _Column("busbw", "GB/s", 8),
    _Column("#wrong", "", 7),
)
_FLOOR = _Column("floor", "us", 8)  # of an eager call, whatever the backend
_MATMUL = _Column("matmul", "us", 10)  # of an overlapped call: what goes beside it, alone
_RATIOS = (_Column("ratio", "", 7), _Column("in:rat.", "", 7))
# Of a device whose calls run on a thread of its own: only there issuing a call takes another time.
_DEVICE_ONLY = ("mode", "launch", "in:launch")


def _columns(config: BenchConfig) -> list[_Column]:
    """Return the columns: out-of-place figures first, then in-place ones."""
    in_place = [replace(column, title=f"in:{column.title}") for column in _MEASURED]
    ratios = _RATIOS if config.against else ()
    floors = [replace(_FLOOR, title=f"{prefix}{_FLOOR.title}") for prefix in ("", "in:")]
    matmul = [_MATMUL] if OVERLAPPED in config.modes else []
    columns = [*_LEADING, *matmul, *_MEASURED, floors[0], *in_place, floors[1], *ratios]
    left_out = _DEVICE_ONLY if config.device == "cpu" else ()
    return [column for column in columns if column.title not in left_out]


def header(config: BenchConfig) -> list[str]:
    """Return the titles of the columns."""
    return [column.title for column in _columns(config)]


def _figures(row: Row, index: int) -> dict[str, Any]:
    """Return what there is to show of backend ``index``, by title; floors with the first one."""
    figures = vars(row) | {"type": row.dtype, "backend": row.results[index].backend}
    figures["matmul"] = f"{row.matmul.us:.2f}" if row.matmul is not None and index == 0 else "-"
    if not row.results[index].there:
        figures["time"] = "not there"
    for variant, prefix, ratio in (("out_of_place", "", "ratio"), ("in_place", "in:", "in:rat.")):
        if (timing := row.results[index].variant(variant)) is not None:
            figures[f"{prefix}time"] = f"{timing.time_us:.2f}"
            if timing.launch_us is not None:
                figures[f"{prefix}launch"] = f"{timing.launch_us:.2f}"
            figures[f"{prefix}algbw"] = f"{timing.algbw:.3f}"
            figures[f"{prefix}busbw"] = f"{timing.busbw:.3f}"
            figures[f"{prefix}#wrong"] = "N/A" if timing.wrong is None else timing.wrong
        if index > 0:
            figures[f"{prefix}floor"] = ""
            if (times := row.ratio(variant, index)) is not None:
                figures[ratio] = f"{times:.2f}x"
            continue
        figures[ratio] = ""
        if (floor := row.floors.get(variant)) is not None:
            figures[f"{prefix}floor"] = f"{floor.us:.2f}"
    return figures


def cells(config: BenchConfig, row: Row) -> list[list[str]]:
    """Return one line of cells for each backend of ``row``."""
    lines = [_figures(row, index) for index in range(len(row.results))]
    return [[str(line.get(title, "-")) for title in header(config)] for line in lines]


def errors(row: Row) -> list[str]:
    """Return a sentence for each backend that refused the operation or failed in it."""
    return [
        f"# {row.collective} {row.mode} {row.dtype} {row.redop}: {result.backend} gives no result: "
        f"{result.error}"
        for result in row.results
        if result.error is not None
    ]


class BenchReport(Report):
    """Shows the rows of one run; then the errors. Its records are the rows.

    A terminal that is wide enough gets a table for each collective, above a progress bar.
    """

    name = "rows"

    def __init__(
        self,
        config: BenchConfig,
        machine: dict[str, str | int],
        console: Console,
        plot: Path | None = None,
    ) -> None:
        total = sum(len(config.counts(collective)) for collective, _ in config.cases)
        super().__init__(config, machine, total, console)
        self._plot = plot
        self._columns = _columns(config)
        width = sum(column.width + 1 for column in self._columns)
        self._tables = console.is_terminal and console.width >= width
        self._progress = progress_bar(console)
        self._task = self._progress.add_task("measuring", total=total)
        self._table: Table | None = None

    def __enter__(self) -> BenchReport:
        super().__enter__()
        if not self._tables:
            self._line([column.title for column in self._columns])
            self._line([column.unit for column in self._columns], comment=True)
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._finish_table()
        self._progress.stop()
        for text in dict.fromkeys(text for row in self.records for text in errors(row)):
            self._text(text)

    def add(self, row: Row) -> None:
        """Show one more row."""
        begins = not self.records or self.records[-1].collective != row.collective
        self.records.append(row)
        if self._tables and begins:
            self._finish_table()
            self._begin_table(row.collective)
        for line in cells(self._config, row):
            if self._table is None:
                self._line(line)
            else:
                self._table.add_row(*line)
        self._progress.update(self._task, advance=1, description=row.collective)

    def failed(self) -> bool:
        """Tell whether the backend under test gave a wrong element, refused or failed."""
        return any(row.wrong or row.results[0].error is not None for row in self.records)

    def write(self, json_file: Path | None) -> None:
        super().write(json_file)
        if self._plot is not None and self.records:
            from torch_symm.tools.bench.plot import write_plot  # matplotlib is slow to import

            write_plot(self.records, self._plot)

    def _begin_table(self, title: str) -> None:
        self._table = Table(title=title, caption="in: marks the figures in place")
        for column in self._columns:
            title = f"{column.title}\n{column.unit}"
            self._table.add_column(title, justify="right", no_wrap=True)

    def _finish_table(self) -> None:
        if self._table is not None:
            self._console.print(self._table)
            self._table = None

    def _line(self, line: list[str], comment: bool = False) -> None:
        padded = [
            text.rjust(column.width) for text, column in zip(line, self._columns, strict=True)
        ]
        text = " ".join(padded).rstrip()
        self._text("#" + text[1:] if comment else text)
