"""Shows results as they arrive, then a summary with reasons."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from torch_symm.tools.command import Report
from torch_symm.tools.probe.config import ProbeConfig
from torch_symm.tools.probe.verdict import Result

_NOT_EXAMINED = "-"


class ProbeReport(Report):
    """Shows each result, and at its end the summary. Its records are the results."""

    name = "results"

    def __init__(
        self, config: ProbeConfig, machine: dict[str, str | int], console: Console
    ) -> None:
        super().__init__(config, machine, len(config.cases), console)

    def __exit__(self, *exception: object) -> None:
        """Print the table, then the reason of every bad verdict."""
        self._console.print(self.summary())
        for result in self.records:
            if not result.verdict.good:
                self._text(f"{result.backend} {result.operation}: {_in_words(result)}")

    def add(self, result: Result) -> None:
        """Show one more result."""
        self.records.append(result)
        number = f"{len(self.records)}/{self._total}"
        self._text(f"[{number}] {result.backend} {result.operation}: {_in_words(result)}")

    def failed(self) -> bool:
        """Tell whether an operation of the first backend has a bad verdict, or none."""
        first = self._config.backends[0]
        good = [r for r in self.records if r.backend == first and r.verdict.good]
        return len(good) < sum(backend == first for backend, _ in self._config.cases)

    def summary(self) -> Table:
        """Return the table of operations against backends."""
        table = Table(title="capture into a CUDA graph, values checked at every replay")
        table.add_column("operation", no_wrap=True)
        for backend in self._config.backends:
            table.add_column(backend)
        cells = {(r.backend, r.operation): r.verdict.value for r in self.records}
        for name in dict.fromkeys(name for _, name in self._config.cases):
            row = (cells.get((backend, name), _NOT_EXAMINED) for backend in self._config.backends)
            table.add_row(name, *row)
        return table


def _in_words(result: Result) -> str:
    if result.verdict.good:
        return result.verdict.value
    return f"{result.verdict.value} (rank {result.rank}: {result.reason})"
