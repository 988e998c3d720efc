"""The command line of the bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torch_symm.tools import require
from torch_symm.tools.bench.config import (
    COLLECTIVES,
    DEFAULTS,
    DEVICES,
    DTYPES,
    MODES,
    OPS,
    BenchConfig,
    ConfigError,
    parse_size,
)
from torch_symm.tools.bench.launch import run
from torch_symm.tools.bench.machine import describe_machine
from torch_symm.tools.bench.report import Report
from torch_symm.tools.bench.worker import row_total
from torch_symm.tools.ranks.device import default_ranks, device_problem
from torch_symm.tools.ranks.job import RunFailed
from torch_symm.tools.ranks.launched import launched_rank, rank_count

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_EXIT_WRONG = 3


def _chosen(collectives: list[str]) -> tuple[str, ...]:
    """Return the named collectives without repeats; ``all`` stands for every one."""
    names = [name for text in collectives for name in (COLLECTIVES if text == "all" else (text,))]
    return tuple(dict.fromkeys(names))


def _modes(mode: str) -> tuple[str, ...]:
    return MODES if mode == "both" else (mode,)


@app.command()
def bench(
    collective: Annotated[
        list[str], typer.Option("--collective", "-c", help=f"{', '.join(COLLECTIVES)}, or all.")
    ] = ["all"],  # noqa: B006 - typer copies the default
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-n", help="Local processes to start (2; cuda: one a GPU)."),
    ] = None,
    smallest: Annotated[
        str | None, typer.Option("--min", "-b", help="Smallest size, such as 64K (8; cuda: 256).")
    ] = None,
    largest: Annotated[
        str | None, typer.Option("--max", "-e", help="Largest size (1M; cuda: 256M).")
    ] = None,
    factor: Annotated[int, typer.Option(help="Each size is this many times the last.")] = 4,
    step: Annotated[str, typer.Option(help="Add this size instead of multiplying.")] = "0",
    dtype: Annotated[
        str | None, typer.Option(help=f"{', '.join(DTYPES)} (float32; cuda: bfloat16).")
    ] = None,
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
    device: Annotated[
        str, typer.Option(help=f"Device of the tensors: {', '.join(DEVICES)}.")
    ] = "cpu",
    mode: Annotated[
        str | None,
        typer.Option(
            help="eager, graph (replays of ten captured calls) or both (eager; cuda: both)."
        ),
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Time-out of every group.")] = 60.0,
    case_seconds: Annotated[
        float, typer.Option(help="Time of one row; a backend that outruns it is left out.")
    ] = 120.0,
    budget_seconds: Annotated[
        float | None, typer.Option(help="End the run after the row in which this is spent.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write results here.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture here.")] = None,
) -> None:
    """Measure and check the collectives of a c10d backend, in nccl-tests' columns.

    A time is the median over blocks; a block's time is the largest over the ranks of the mean of
    its calls. On a GPU, events take the time, and launch is what a call keeps the launching thread
    busy. Ratio is the time of the backend after --against over that of --backend: above 1,
    --backend is faster. Under torchrun (``torchrun ... -m torch_symm.bench``) its ranks are
    measured; use -b and -e for the sizes there, or torchrun takes --max for its own. Ranks beyond
    the GPUs share them. A backend that fails is left out of the rest of that collective and mode,
    and the reason is reported. Exit code 3 says that --backend gave wrong elements, refused a call
    or failed.
    """
    default = DEFAULTS.get(device, DEFAULTS["cpu"])
    try:
        config = BenchConfig(
            collectives=_chosen(collective),
            ranks=rank_count(ranks, default_ranks(device)),
            min_bytes=parse_size(smallest or default["--min"], "--min"),
            max_bytes=parse_size(largest or default["--max"], "--max"),
            factor=factor,
            step=parse_size(step, "--step"),
            dtype=dtype or default["--dtype"],
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
            modes=_modes(mode or default["--mode"]),
            timeout_s=timeout_s,
            case_s=case_seconds,
            budget_s=budget_seconds,
        )
        if problem := device_problem(device):
            raise ConfigError(f"--device: {device} cannot be used here: {problem}")
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if launched_rank() != 0:
        run(config, lambda row: None)
        return
    if plot is not None:
        require("python -m torch_symm.bench --plot", "matplotlib")
    _lead(config, json_file, plot)


def _lead(config: BenchConfig, json_file: Path | None, plot: Path | None) -> None:
    """Run, show and write the results, and choose the exit code."""
    machine = describe_machine(config.backends, config.ranks, config.device)
    report = Report(config, machine, row_total(config), Console())
    failure: RunFailed | None = None
    complete = False
    with report:
        try:
            complete = run(config, report.add)
        except RunFailed as error:
            failure = error
    if json_file is not None:
        report.write_json(json_file, complete)
    if plot is not None:
        from torch_symm.tools.bench.plot import write_plot  # matplotlib is slow to import

        write_plot(report.rows, plot)
    if failure is not None:
        typer.echo(f"error: the run ended early: {failure}", err=True)
        raise typer.Exit(1)
    if not complete:
        typer.echo("# --budget-seconds: spent before all rows were measured", err=True)
    if report.failed():
        raise typer.Exit(_EXIT_WRONG)
