"""The command line of the probe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_symm.tools.bench.config import ConfigError, parse_size
from torch_symm.tools.command import carry_out, check_output, options_checked
from torch_symm.tools.probe.config import ProbeConfig
from torch_symm.tools.probe.launch import ProbeJob
from torch_symm.tools.probe.operations import OPERATIONS
from torch_symm.tools.probe.report import ProbeReport
from torch_symm.tools.probe.worker import probe_rank
from torch_symm.tools.ranks.device import check_device, default_ranks
from torch_symm.tools.ranks.launched import rank_count

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


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
    with options_checked():
        if device == "cpu":
            raise ConfigError("--device: the CPU has no graphs, so nothing can be captured there")
        if device != "cuda":
            raise ConfigError(f"--device: expected cuda, got {device!r}")
        check_device(device)
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
        check_output("--json", json_file)
    carry_out(config, probe_rank, ProbeJob, ProbeReport, json_file)
