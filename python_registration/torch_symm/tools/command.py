"""What the command lines of bench and probe share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from torch_symm.tools.bench.machine import describe_machine
from torch_symm.tools.ranks.job import Job, RunFailed, supervise
from torch_symm.tools.ranks.launched import launched_rank
from torch_symm.tools.ranks.process import Work
from torch_symm.tools.report import Report

_EXIT_EARLY = 1
_EXIT_OPTIONS = 2
_EXIT_FAILED = 3


@contextlib.contextmanager
def options_checked() -> Iterator[None]:
    """End the program with one sentence where the value of an option raises ValueError."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_EXIT_OPTIONS) from None


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
