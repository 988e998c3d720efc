"""The command line of the bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from torch.multiprocessing.spawn import ProcessException

from torch_symm.bench.config import (
    COLLECTIVES,
    DTYPES,
    OPS,
    BenchConfig,
    ConfigError,
    parse_size,
)
from torch_symm.bench.launch import (
    launched_rank,
    launched_world_size,
    run_launched,
    run_spawned,
)
from torch_symm.bench.machine import describe_machine
from torch_symm.bench.report import Report
from torch_symm.bench.worker import row_total

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_DEFAULT_RANKS = 2
_EXIT_WRONG = 3


def _chosen(collectives: list[str]) -> tuple[str, ...]:
    """Return the named collectives without repeats; ``all`` stands for every one."""
    names = [name for text in collectives for name in (COLLECTIVES if text == "all" else (text,))]
    return tuple(dict.fromkeys(names))


def _ranks(asked: int | None) -> int:
    """Return the number of ranks; under torchrun it is what torchrun started."""
    launched = launched_world_size()
    if launched is None:
        return _DEFAULT_RANKS if asked is None else asked
    if asked is not None and asked != launched:
        raise ConfigError(f"--ranks: the launcher started {launched} ranks, got {asked}")
    return launched


@app.command()
def bench(
    collective: Annotated[
        list[str], typer.Option("--collective", "-c", help=f"{', '.join(COLLECTIVES)}, or all.")
    ] = ["all"],  # noqa: B006 - typer copies the default
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", help="Local processes to start (2).")
    ] = None,
    smallest: Annotated[
        str, typer.Option("--min", "-b", help="Smallest size, such as 8 or 64K.")
    ] = "8",
    largest: Annotated[str, typer.Option("--max", "-e", help="Largest size, such as 1M.")] = "1M",
    factor: Annotated[int, typer.Option(help="Each size is this many times the last.")] = 4,
    step: Annotated[str, typer.Option(help="Add this size instead of multiplying.")] = "0",
    dtype: Annotated[str, typer.Option(help=", ".join(DTYPES))] = "float32",
    op: Annotated[str, typer.Option(help=", ".join(OPS))] = "sum",
    root: Annotated[int, typer.Option(help="Root rank of rooted collectives.")] = 0,
    iters: Annotated[int, typer.Option(help="Calls per block; 0 follows --budget-ms.")] = 0,
    warmup: Annotated[int, typer.Option(help="Calls before the timed blocks.")] = 2,
    blocks: Annotated[int, typer.Option(help="Timed blocks; the median counts.")] = 5,
    budget_ms: Annotated[
        float, typer.Option(help="Time for the blocks of one size, variant and backend.")
    ] = 100.0,
    check: Annotated[bool, typer.Option(help="Compare every result with the exact one.")] = True,
    backend: Annotated[str, typer.Option(help="Backend under test.")] = "symm",
    against: Annotated[str | None, typer.Option(help="Backend to measure side by side.")] = None,
    device: Annotated[str, typer.Option(help="Device of the tensors: cpu.")] = "cpu",
    timeout_s: Annotated[float, typer.Option(help="Time-out of every group.")] = 60.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write results here.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture here.")] = None,
) -> None:
    """Measure and check the collectives of a c10d backend, in nccl-tests' columns.

    A time is the median over blocks; a block's time is the largest over the ranks of the mean of
    its calls. Ratio is the time of the backend after --against over that of --backend: above 1,
    --backend is faster. Under torchrun (``torchrun ... -m torch_symm.bench``) its ranks are
    measured; use -b and -e for the sizes there, or torchrun takes --max for its own. Exit code 3
    says that --backend gave wrong elements or refused a call.
    """
    try:
        config = BenchConfig(
            collectives=_chosen(collective),
            ranks=_ranks(ranks),
            min_bytes=parse_size(smallest, "--min"),
            max_bytes=parse_size(largest, "--max"),
            factor=factor,
            step=parse_size(step, "--step"),
            dtype=dtype,
            op=op,
            root=root,
            iters=iters,
            warmup=warmup,
            blocks=blocks,
            budget_ms=budget_ms,
            check=check,
            backend=backend,
            against=against,
            device=device,
            timeout_s=timeout_s,
        )
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if launched_rank() != 0:
        run_launched(config, lambda row: None)
        return
    run = run_spawned if launched_world_size() is None else run_launched
    report = Report(config, describe_machine(config), row_total(config), Console())
    try:
        with report:
            run(config, report.add)
    except ProcessException as error:
        typer.echo(f"error: a rank failed\n{error}", err=True)
        raise typer.Exit(1) from None
    if json_file is not None:
        report.write_json(json_file)
    if plot is not None:
        from torch_symm.bench.plot import write_plot  # matplotlib is slow to import

        write_plot(report.rows, plot)
    if report.failed():
        raise typer.Exit(_EXIT_WRONG)
