"""What the command lines of bench, probe and tune share: how a run is carried out and reported."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from torch_symm.tools.machine import describe_machine
from torch_symm.tools.ranks.job import Job, RunFailed, supervise
from torch_symm.tools.ranks.launched import launched_rank
from torch_symm.tools.ranks.process import Work
from torch_symm.tools.record_file import write_records

_EXIT_EARLY = 1
_EXIT_OPTIONS = 2
_EXIT_FAILED = 3


class Report(contextlib.AbstractContextManager):
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


def progress_bar(console: Console) -> Progress:
    """Return a bar for ``console``, which a log does not get."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
def options_checked() -> Iterator[None]:
    """End the program with one sentence where the value of an option raises ValueError."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_EXIT_OPTIONS) from None


def check_output(option: str, path: Path | None) -> None:
    """Raise ValueError unless the value of ``option``, if there is one, can be written as a file.

    Makes its folder. Nothing in processes that write nothing.
    """
    if path is None or launched_rank() != 0:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.exists()
        if there and not path.is_file() and not path.is_dir():
            return  # a pipe, which opens once, or a device
        path.open("a").close()
        if not there:
            path.unlink()
    except OSError as error:
        problem = f"{error.strerror}: {error.filename}"
        raise ValueError(f"{option}: {path} cannot be written: {problem}") from None


def carry_out(
    config: Any,
    work: Work,
    make_job: Callable[[Any, Callable[[Any], None]], Job],
    make_report: Callable[[Any, dict[str, str | int], Console], Report],
    json_file: Path | None,
) -> None:
    """Run ``config`` over its ranks; the process that leads shows and writes the results.

    Raises typer.Exit where the run ended early or the report says that the backend failed.
    """
    if launched_rank() != 0:
        supervise(work, make_job(config, lambda record: None), config.ranks)
        return
    machine = describe_machine(config.backends, config.ranks, config.device)
    failure: RunFailed | None = None
    with make_report(config, machine, Console()) as report:
        try:
            supervise(work, make_job(config, report.add), config.ranks)
        except RunFailed as error:
            failure = error
    report.write(json_file)
    if failure is not None:
        typer.echo(f"error: the run ended early: {failure}", err=True)
        raise typer.Exit(_EXIT_EARLY)
    if report.failed():
        raise typer.Exit(_EXIT_FAILED)
