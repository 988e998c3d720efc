"""The command line: ``python -m torch_symm.audit first second``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_symm.tools.audit.compare import first_difference
from torch_symm.tools.audit.files import read_run

_EXIT_DIFFERENT = 1
_EXIT_INPUT = 2

app = typer.Typer(add_completion=False)
Run = Annotated[
    Path, typer.Argument(help="What SYMM_AUDIT was in that run, one of its files, or their folder.")
]


@app.command()
def main(first: Run, second: Run) -> None:
    """Names the first call at which two runs differ, and the ranks.

    The exit status is 0 where they are equal, 1 where they differ, 2 where a file cannot be used.
    """
    try:
        runs = [read_run(path) for path in (first, second)]
        found = first_difference(*runs)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_EXIT_INPUT) from None
    if found is None:
        calls = sum(len(rank.calls) for rank in runs[0].values())
        typer.echo(f"equal: {calls} calls of {len(runs[0])} ranks")
        return
    for line in found.lines():
        typer.echo(line)
    raise typer.Exit(_EXIT_DIFFERENT)
