"""Shows rows as they arrive, as tables on a wide terminal and as lines elsewhere; writes JSON."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from torch_symm.tools.bench.config import BenchConfig
from torch_symm.tools.bench.results import VARIANTS, Row, Timing
from torch_symm.tools.record_file import write_records


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
)
_MODE = _Column("mode", "", 6)
_BACKEND = _Column("backend", "", 12)
_TIME = _Column("time", "us", 10)
_LAUNCH = _Column("launch", "us", 9)
_BANDWIDTHS = (
    _Column("algbw", "GB/s", 8),
    _Column("busbw", "GB/s", 8),
    _Column("#wrong", "", 7),
)
_RATIOS = (_Column("ratio", "", 7), _Column("in:rat.", "", 7))


def _columns(config: BenchConfig) -> list[_Column]:
    """Return the columns: out-of-place figures first, then in-place ones.

    A device whose calls run on a thread of its own has the time that issuing a call took, too.
    """
    apart = config.device != "cpu"
    measured = (_TIME, _LAUNCH, *_BANDWIDTHS) if apart else (_TIME, *_BANDWIDTHS)
    in_place = [replace(column, title=f"in:{column.title}") for column in measured]
    leading = [*_LEADING, _MODE, _BACKEND] if apart else [*_LEADING, _BACKEND]
    ratios = () if config.against is None else _RATIOS
    return [*leading, *measured, *in_place, *ratios]


def _timing_cells(config: BenchConfig, timing: Timing | None) -> list[str]:
    apart = config.device != "cpu"
    if timing is None:
        return ["-"] * (5 if apart else 4)
    wrong = "N/A" if timing.wrong is None else str(timing.wrong)
    cells = [f"{timing.time_us:.2f}"]
    if apart:
        cells.append("-" if timing.launch_us is None else f"{timing.launch_us:.2f}")
    return [*cells, f"{timing.algbw:.3f}", f"{timing.busbw:.3f}", wrong]


def _ratio_cell(row: Row, variant: str) -> str:
    ratio = row.ratio(variant)
    return "-" if ratio is None else f"{ratio:.2f}x"


def header(config: BenchConfig) -> list[str]:
    """Return the titles of the columns."""
    return [column.title for column in _columns(config)]


def cells(config: BenchConfig, row: Row) -> list[list[str]]:
    """Return one line of cells for each backend of ``row``; ratios stand in the first line."""
    lines = []
    for index, result in enumerate(row.results):
        line = [row.collective, str(row.size), str(row.count), row.dtype, row.redop, str(row.root)]
        if config.device != "cpu":
            line.append(row.mode)
        line.append(result.backend)
        for variant in VARIANTS:
            line += _timing_cells(config, result.variant(variant))
        if config.against is not None:
            line += [_ratio_cell(row, name) if index == 0 else "" for name in VARIANTS]
        lines.append(line)
    return lines


def errors(row: Row) -> list[str]:
    """Return a sentence for each backend that refused the operation or failed in it."""
    return [
        f"# {row.collective} {row.mode} {row.dtype} {row.redop}: {result.backend} gives no result: "
        f"{result.error}"
        for result in row.results
        if result.error is not None
    ]


class Report(AbstractContextManager):
    """Collects the rows of one run and shows them. Used by one process only, as a context.

    A terminal that is wide enough gets a table for each collective, above a progress bar.
    """

    def __init__(
        self, config: BenchConfig, machine: dict[str, str | int], total: int, console: Console
    ) -> None:
        self.rows: list[Row] = []
        self._config = config
        self._machine = machine
        self._console = console
        self._columns = _columns(config)
        width = sum(column.width + 1 for column in self._columns)
        self._tables = console.is_terminal and console.width >= width
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("measuring", total=total)
        self._table: Table | None = None

    def __enter__(self) -> Report:
        for key, value in self._machine.items():
            self._text(f"# {key}: {value}")
        if not self._tables:
            self._line([column.title for column in self._columns])
            self._line([column.unit for column in self._columns], comment=True)
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finish_table()
        self._progress.stop()
        for text in dict.fromkeys(text for row in self.rows for text in errors(row)):
            self._text(text)

    def add(self, row: Row) -> None:
        """Show one more row."""
        begins = not self.rows or self.rows[-1].collective != row.collective
        self.rows.append(row)
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
        return any(row.wrong or row.results[0].error is not None for row in self.rows)

    def write_json(self, path: Path, complete: bool) -> None:
        """Write the machine, the options and every row to ``path``.

        ``complete`` tells whether every row of the options is there.
        """
        document = {
            "machine": self._machine,
            "config": self._config.to_json(),
            "complete": complete,
            "rows": [row.to_json() for row in self.rows],
        }
        write_records(path, document)

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

    def _text(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        self._console.file.flush()
