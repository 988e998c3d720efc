"""What the reports of bench and probe share: the head, the text, and the JSON."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from torch_symm.tools.record_file import write_records


class Report(AbstractContextManager):
    """Collects the records of one run and shows them. Used by one process only, as a context.

    ``total`` is how many records a complete run has, and ``name`` what the JSON calls them.
    """

    name: str

    def __init__(
        self, config: Any, machine: dict[str, str | int], total: int, console: Console
    ) -> None:
        self.records: list[Any] = []
        self._config = config
        self._machine = machine
        self._total = total
        self._console = console

    def __enter__(self) -> Report:
        for key, value in self._machine.items():
            self._text(f"# {key}: {value}")
        return self

    @abstractmethod
    def add(self, record: Any) -> None:
        """Show one more record."""

    @abstractmethod
    def failed(self) -> bool:
        """Tell whether the backend under test has failed."""

    def write(self, json_file: Path | None) -> None:
        """Write the machine, the options and every record to ``json_file``, if there is one."""
        if json_file is None:
            return
        document = {
            "machine": self._machine,
            "config": asdict(self._config),
            "complete": len(self.records) == self._total,
            self.name: [record.to_json() for record in self.records],
        }
        write_records(json_file, document)

    def _text(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        self._console.file.flush()
