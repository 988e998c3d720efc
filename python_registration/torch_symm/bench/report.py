"""Shows rows as they arrive, as tables on a wide terminal and as lines elsewhere; writes JSON."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from torch_symm.bench.config import BenchConfig
from torch_symm.bench.results import VARIANTS, Row, Timing

_LEADING = ("collective", "size", "count", "type", "redop", "root", "backend")
_MEASURED = ("time", "algbw", "busbw", "#wrong")
_UNITS = ("", "B", "elements", "", "", "", "") + ("us", "GB/s", "GB/s", "") * 2
_WIDTHS = (14, 11, 10, 14, 5, 5, 12) + (10, 8, 8, 7) * 2 + (7, 7)


def _timing_cells(timing: Timing | None) -> list[str]:
    if timing is None:
        return ["-"] * 4
    wrong = "N/A" if timing.wrong is None else str(timing.wrong)
    return [f"{timing.time_us:.2f}", f"{timing.algbw:.3f}", f"{timing.busbw:.3f}", wrong]


def _ratio_cell(row: Row, variant: str) -> str:
    ratio = row.ratio(variant)
    return "-" if ratio is None else f"{ratio:.2f}x"


def header(config: BenchConfig) -> list[str]:
    """Return the titles of the columns: out-of-place figures first, then in-place ones."""
    titles = [*_LEADING, *_MEASURED, *(f"in:{title}" for title in _MEASURED)]
    return titles if config.against is None else [*titles, "ratio", "in:rat."]


def cells(config: BenchConfig, row: Row) -> list[list[str]]:
    """Return one line of cells for each backend of ``row``; ratios stand in the first line."""
    lines = []
    for index, result in enumerate(row.results):
        line = [row.collective, str(row.size), str(row.count), row.dtype, row.redop, str(row.root)]
        line.append(result.backend)
        for variant in VARIANTS:
            line += _timing_cells(result.variant(variant))
        if config.against is not None:
            line += [_ratio_cell(row, name) if index == 0 else "" for name in VARIANTS]
        lines.append(line)
    return lines


def errors(row: Row) -> list[str]:
    """Return a sentence for each backend that refused the operation."""
    return [
        f"# {row.collective} {row.dtype} {row.redop}: {result.backend} refuses: {result.error}"
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
        self._tables = console.is_terminal and console.width >= sum(_WIDTHS)
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
            titles = header(self._config)
            self._line(titles)
            self._line([*_UNITS, "", ""][: len(titles)], comment=True)
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
        """Tell whether the backend under test gave a wrong element or refused an operation."""
        return any(row.wrong or row.results[0].error is not None for row in self.rows)

    def write_json(self, path: Path) -> None:
        """Write the machine, the options and every row to ``path``."""
        document = {
            "machine": self._machine,
            "config": asdict(self._config),
            "rows": [row.to_json() for row in self.rows],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")

    def _begin_table(self, title: str) -> None:
        self._table = Table(title=title, caption="in: marks the figures in place")
        for name, unit in zip(header(self._config), (*_UNITS, "", ""), strict=False):
            self._table.add_column(f"{name}\n{unit}", justify="right", no_wrap=True)

    def _finish_table(self) -> None:
        if self._table is not None:
            self._console.print(self._table)
            self._table = None

    def _line(self, line: list[str], comment: bool = False) -> None:
        padded = [text.rjust(width) for text, width in zip(line, _WIDTHS, strict=False)]
        text = " ".join(padded).rstrip()
        self._text("#" + text[1:] if comment else text)

    def _text(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        self._console.file.flush()
