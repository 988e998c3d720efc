"""Shows results as they arrive, then a summary with reasons; writes JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torch_symm.tools.probe.config import ProbeConfig
from torch_symm.tools.probe.verdict import Result
from torch_symm.tools.record_file import write_records

_NOT_EXAMINED = "-"


class Report:
    """Collects the results of one run. Used by one process only."""

    def __init__(
        self, config: ProbeConfig, machine: dict[str, str | int], console: Console
    ) -> None:
        self.results: list[Result] = []
        self._config = config
        self._machine = machine
        self._console = console

    def show_machine(self) -> None:
        """Print what the results were found on."""
        for key, value in self._machine.items():
            self._text(f"# {key}: {value}")

    def add(self, result: Result) -> None:
        """Show one more result."""
        self.results.append(result)
        number = f"{len(self.results)}/{len(self._config.cases)}"
        self._text(f"[{number}] {result.backend} {result.operation}: {_in_words(result)}")

    def failed(self) -> bool:
        """Tell whether an operation of the first backend has a bad verdict, or none."""
        first = self._config.backends[0]
        good = [r for r in self.results if r.backend == first and r.verdict.good]
        return len(good) < sum(backend == first for backend, _ in self._config.cases)

    def summary(self) -> Table:
        """Return the table of operations against backends."""
        table = Table(title="capture into a CUDA graph, values checked at every replay")
        table.add_column("operation", no_wrap=True)
        for backend in self._config.backends:
            table.add_column(backend)
        verdicts = {(r.backend, r.operation): r.verdict for r in self.results}
        for name in dict.fromkeys(name for _, name in self._config.cases):
            cells = []
            for backend in self._config.backends:
                verdict = verdicts.get((backend, name))
                cells.append(_NOT_EXAMINED if verdict is None else verdict.value)
            table.add_row(name, *cells)
        return table

    def show_summary(self) -> None:
        """Print the table, then the reason of every bad verdict."""
        self._console.print(self.summary())
        for result in self.results:
            if not result.verdict.good:
                self._text(f"{result.backend} {result.operation}: {_in_words(result)}")

    def write_json(self, path: Path) -> None:
        """Write the machine, the options and every result to ``path``."""
        document: dict[str, Any] = {
            "machine": self._machine,
            "config": self._config.to_json(),
            "complete": len(self.results) == len(self._config.cases),
            "results": [result.to_json() for result in self.results],
        }
        write_records(path, document)

    def _text(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        self._console.file.flush()


def _in_words(result: Result) -> str:
    if result.verdict.good:
        return result.verdict.value
    return f"{result.verdict.value} (rank {result.rank}: {result.reason})"
