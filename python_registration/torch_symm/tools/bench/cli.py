"""The command line of the bench."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from torch_symm.tools import require
from torch_symm.tools.bench.config import (
    COLLECTIVES,
    DEFAULTS,
    DEVICES,
    MODES,
    MPI,
    BenchConfig,
    one_of,
    parse_size,
)
from torch_symm.tools.bench.contender import spelled_out
from torch_symm.tools.bench.launch import BenchJob
from torch_symm.tools.bench.mpi import start_by_mpirun
from torch_symm.tools.bench.pattern import DTYPES, OPS
from torch_symm.tools.bench.programs import PROGRAMS
from torch_symm.tools.bench.report import BenchReport
from torch_symm.tools.bench.worker import bench_rank
from torch_symm.tools.command import carry_out, check_output, options_checked
from torch_symm.tools.ranks.device import check_device, default_ranks
from torch_symm.tools.ranks.launched import launched_rank, rank_count

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _chosen(given: list[str], word: str, every: tuple[str, ...]) -> tuple[str, ...]:
    """Return the given names without repeats; ``word`` stands for every one."""
    names = [name for text in given for name in (every if text == word else (text,))]
    return tuple(dict.fromkeys(names))


def _programs(names: list[str]) -> tuple[str, ...]:
    for name in names:
        one_of("--program", name, PROGRAMS)
    return tuple(dict.fromkeys(names))


@app.command()
def bench(
    collective: Annotated[
        list[str], typer.Option("--collective", "-c", help=f"{', '.join(COLLECTIVES)}, or all.")
    ] = ["all"],  # noqa: B006 - typer copies the default
    program: Annotated[
        list[str],
        typer.Option(
            help=f"{', '.join(PROGRAMS)}: a program in place of collectives. A size is the bytes "
            "of one all_reduce; --against fake is the program without communication."
        ),
    ] = [],  # noqa: B006
    layers: Annotated[int, typer.Option(help="Layers of a program's model.")] = 32,
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
    against: Annotated[
        list[str],
        typer.Option(
            help="Backends to measure side by side, such as gloo,mpi (mpi4py, no c10d); "
            "nccl-deterministic: NCCL pinned to one order of addition, in four ways; torch-symm: "
            "PyTorch's operators over symmetric memory; nccl-symm: NCCL over symmetric windows."
        ),
    ] = [],  # noqa: B006
    device: Annotated[
        str, typer.Option(help=f"Device of the tensors: {', '.join(DEVICES)}.")
    ] = "cpu",
    mode: Annotated[
        list[str],
        typer.Option(
            help="eager, graph (replays of ten captured calls), both, or overlapped (beside a "
            "matmul of about the same time); may be repeated (eager; cuda: both)."
        ),
    ] = [],  # noqa: B006
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
    busy. Ratio is the time of a backend after --against over that of --backend: above 1, --backend
    is faster. What a backend has not is "not there". Under torchrun
    (``torchrun ... -m torch_symm.bench``) its ranks are measured; use -b and -e for the sizes
    there, or torchrun takes --max for its own. Ranks beyond the GPUs share them. A backend that
    fails is left out of the rest of that collective and mode, and the reason is reported. Exit
    code 3 says that --backend gave wrong elements, refused a call or failed.
    """
    default = DEFAULTS.get(device, DEFAULTS["cpu"])
    with options_checked():
        config = BenchConfig(
            collectives=_programs(program) or _chosen(collective, "all", COLLECTIVES),
            layers=layers,
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
            against=spelled_out(tuple(name for names in against for name in names.split(","))),
            device=device,
            modes=_chosen(mode or [default["--mode"]], "both", MODES),
            timeout_s=timeout_s,
            case_s=case_seconds,
            budget_s=budget_seconds,
        )
        check_device(device)
        check_output("--json", json_file)
        if plot is not None and launched_rank() == 0:
            require("python -m torch_symm.bench --plot", "matplotlib")
            from torch_symm.tools.bench.plot import check_format  # matplotlib is slow to import

            check_format(plot)
            check_output("--plot", plot)
    if MPI in config.backends:
        start_by_mpirun(config.ranks)
    make_report = functools.partial(BenchReport, plot=plot)
    carry_out(config, bench_rank, BenchJob, make_report, json_file)
