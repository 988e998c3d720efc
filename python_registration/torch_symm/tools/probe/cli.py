"""The command line of the probe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torch_symm.tools.bench.config import ConfigError, parse_size
from torch_symm.tools.bench.machine import describe_machine
from torch_symm.tools.probe.config import ProbeConfig
from torch_symm.tools.probe.launch import run
from torch_symm.tools.probe.operations import OPERATIONS
from torch_symm.tools.probe.report import Report
from torch_symm.tools.ranks.device import default_ranks, device_problem
from torch_symm.tools.ranks.job import RunFailed
from torch_symm.tools.ranks.launched import launched_rank, rank_count

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_EXIT_BAD = 3


@app.command()
def probe(
    backend: Annotated[
        list[str], typer.Option("--backend", help="Backend to examine; may be repeated.")
    ] = ["symm"],  # noqa: B006 - typer copies the default
    operation: Annotated[
        list[str], typer.Option("--operation", "-o", help=f"{', '.join(OPERATIONS)}, or all.")
    ] = ["all"],  # noqa: B006
    device: Annotated[str, typer.Option(help="Device of the tensors: cuda.")] = "cuda",
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-n", help="Local processes to start (one a GPU, at least 2)."),
    ] = None,
    size: Annotated[
        list[str], typer.Option("--size", "-s", help="Bytes of the larger buffer; may be repeated.")
    ] = ["1K", "1M", "16M"],  # noqa: B006
    dtype: Annotated[str, typer.Option(help="A floating-point dtype.")] = "float32",
    replays: Annotated[int, typer.Option(help="Replays of every graph, each checked.")] = 5,
    timeout_s: Annotated[float, typer.Option(help="Time-out of every group.")] = 30.0,
    case_seconds: Annotated[
        float, typer.Option(help="Time of one operation on one backend.")
    ] = 60.0,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Fresh processes for every operation.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write results here.")] = None,
) -> None:
    """Examine which operations capture into a CUDA graph, with values checked at every replay.

    Under torchrun (``torchrun ... -m torch_symm.probe``) its ranks are used, on the GPU that
    LOCAL_RANK names; ranks beyond the GPUs share them. A backend symm also has its refusal of cold
    calls under capture examined. Exit code 3 says that an operation of the first backend has a bad
    verdict, 2 that nothing could be examined.
    """
    try:
        _check_device(device)
        config = ProbeConfig(
            backends=tuple(dict.fromkeys(backend)),
            operations=() if "all" in operation else tuple(dict.fromkeys(operation)),
            ranks=rank_count(ranks, default_ranks(device)),
            device=device,
            dtype=dtype,
            sizes=tuple(parse_size(text, "--size") for text in size),
            replays=replays,
            timeout_s=timeout_s,
            case_s=case_seconds,
            isolate=isolate,
        )
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if launched_rank() != 0:
        run(config, lambda result: None)
        return
    _lead(config, json_file)


def _check_device(device: str) -> None:
    if device == "cpu":
        raise ConfigError("--device: the CPU has no graphs, so nothing can be captured there")
    if device != "cuda":
        raise ConfigError(f"--device: expected cuda, got {device!r}")
    if problem := device_problem(device):
        raise ConfigError(f"--device: {device} cannot be used here: {problem}")


def _lead(config: ProbeConfig, json_file: Path | None) -> None:
    """Run, show and write the results, and choose the exit code."""
    machine = describe_machine(config.backends, config.ranks, config.device)
    report = Report(config, machine, Console())
    report.show_machine()
    failure: RunFailed | None = None
    try:
        run(config, report.add)
    except RunFailed as error:
        failure = error
    report.show_summary()
    if json_file is not None:
        report.write_json(json_file)
    if failure is not None:
        typer.echo(f"error: the run ended early: {failure}", err=True)
        raise typer.Exit(1)
    if report.failed():
        raise typer.Exit(_EXIT_BAD)
