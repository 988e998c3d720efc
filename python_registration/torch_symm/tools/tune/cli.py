"""The command line of the tuner."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from torch_symm._registration import load
from torch_symm.tools.bench.config import DEVICES, ConfigError, parse_size
from torch_symm.tools.bench.pattern import DTYPES
from torch_symm.tools.command import carry_out, check_output, options_checked
from torch_symm.tools.machine import cpu_model, visible_gpus
from torch_symm.tools.ranks.device import check_device, default_ranks
from torch_symm.tools.ranks.launched import rank_count
from torch_symm.tools.tune.config import DEFAULTS, TUNED, TuneConfig
from torch_symm.tools.tune.job import TuneJob, measured_before
from torch_symm.tools.tune.report import TuneReport
from torch_symm.tools.tune.worker import tune_rank

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def default_output(device: str, ranks: int) -> Path:
    """Return the name of the file for what is here: the GPU's or processor's, and the ranks."""
    gpus = visible_gpus() if device == "cuda" else []
    model = gpus[0]["name"] if gpus else cpu_model()
    words = re.sub(r"[^A-Za-z0-9]+", "_", model).strip("_")
    return Path(f"symm_tuning_{words}_{ranks}_ranks.json")


def chosen_wire(device: str) -> str:
    """The wire whose rows are tuned; the groups of the run use it too, or say that they cannot."""
    wire = os.environ.get("SYMM_WIRE", "auto")
    if device == "cuda" and wire == "auto":
        wire = os.environ["SYMM_WIRE"] = "line"
    return wire if device == "cuda" else "ll"


def check_choice_is_free() -> None:
    """Raise ConfigError where the environment forces an algorithm, so that no other is measured."""
    forced = os.environ.get("SYMM_ALGO", "")
    if forced not in ("", "auto"):
        raise ConfigError(
            f"SYMM_ALGO: expected none or auto, as every algorithm is measured, got {forced!r}"
        )


@app.command()
def tune(
    collective: Annotated[
        list[str] | None,
        typer.Option("--collective", "-c", help=f"{', '.join(TUNED['cpu'])} (all there are)."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-n", help="Local processes to start (2; cuda: one a GPU)."),
    ] = None,
    smallest: Annotated[
        str | None, typer.Option("--min", "-b", help="Smallest size, such as 64K (1K).")
    ] = None,
    largest: Annotated[
        str | None, typer.Option("--max", "-e", help="Largest size (64M; cuda: 256M).")
    ] = None,
    factor: Annotated[int, typer.Option(help="Each size is this many times the last.")] = 2,
    dtype: Annotated[
        str | None, typer.Option(help=f"{', '.join(DTYPES)} (float32; cuda: bfloat16).")
    ] = None,
    device: Annotated[
        str, typer.Option(help=f"Device of the tensors: {', '.join(DEVICES)}.")
    ] = "cpu",
    mode: Annotated[str | None, typer.Option(help="eager or graph (eager; cuda: graph).")] = None,
    gain: Annotated[
        float, typer.Option(help="What a change must save, as a part of the time.")
    ] = 0.05,
    passes: Annotated[
        int, typer.Option(help="How often everything is measured; the least time counts.")
    ] = 2,
    budget_ms: Annotated[
        float, typer.Option(help="Time for the blocks of one size by one candidate.")
    ] = 20.0,
    budget_seconds: Annotated[
        float | None, typer.Option(help="End the run after the size in which this is spent.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Time-out of every group.")] = 60.0,
    case_seconds: Annotated[
        float, typer.Option(help="Time of one size; a candidate that outruns it is left out.")
    ] = 120.0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="What is measured; a run goes on behind what is in it."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The tuning file (by processor or GPU, and ranks).")
    ] = None,
) -> None:
    """Measure every algorithm, chunk and number of blocks here, and write a tuning file.

    Each size is measured by the plan table as it is and by every candidate, side by side as by
    torch_symm.bench, and every value is compared with the exact one. The table changes where that
    saves --gain or more; what is measured to the end counts, collective by collective. Other
    numbers of ranks keep their rows, so that runs for several can be merged: set SYMM_TUNING_FILE
    to what the last one wrote. Exit code 3 says that a candidate gave wrong elements.
    """
    default = DEFAULTS.get(device, DEFAULTS["cpu"])
    with options_checked():
        config = TuneConfig(
            collectives=tuple(dict.fromkeys(collective or TUNED.get(device, ()))),
            ranks=rank_count(ranks, default_ranks(device)),
            min_bytes=parse_size(smallest or default["--min"], "--min"),
            max_bytes=parse_size(largest or default["--max"], "--max"),
            factor=factor,
            dtype=dtype or default["--dtype"],
            budget_ms=budget_ms,
            device=device,
            modes=(mode or default["--mode"],),
            timeout_s=timeout_s,
            case_s=case_seconds,
            budget_s=budget_seconds,
            gain=gain,
            passes=passes,
            wire=chosen_wire(device),
        )
        check_device(device)
        check_choice_is_free()
        output = output or default_output(device, config.ranks)
        check_output("--output", output)
        check_output("--json", json_file)
        before = measured_before(json_file, config)
        rows = json.loads(load().plan_tables())[config.rows_key]
    make_report = functools.partial(
        TuneReport,
        before=before,
        output=output,
        json_file=json_file,
    )
    make_job = functools.partial(TuneJob, rows=rows, before=before)
    carry_out(config, tune_rank, make_job, make_report, json_file)
