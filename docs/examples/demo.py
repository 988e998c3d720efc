"""Shows one training program over two backends, and the times of their collectives.

    python docs/examples/demo.py                      # symm beside gloo
    python docs/examples/demo.py --backends gloo gloo # any two names

Runs train_digits.py with 4 ranks (2 where there are fewer cores) over each backend, compares
losses, accuracy and step times, measures the collectives through ``python -m torch_symm.bench``,
and draws all of it. The exit code is 1 if the losses differ by more than the order of
floating-point additions explains, if the accuracy is off, or if a collective gave a wrong result.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")  # A picture file needs no display.
from matplotlib import pyplot as plt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PHASES = {"ddp": "DistributedDataParallel", "fsdp": "FSDP2 fully_shard"}
BENCH_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
BENCH_SIZES = (256, 4096, 65536, 1048576)
BENCH_FACTOR = 16
BENCH_EXIT_WRONG = 3  # The bench ran to its end and saw wrong results, which we report.
LOSSES_SHOWN = 7

# DDP and FSDP2 over one backend sum the same gradients in different orders; over this training
# their losses differ by about 1e-7. A wrong or missing contribution moves them by 1e-2 and more.
LOSS_TOLERANCE = 1e-5
LEAST_ACCURACY = 0.93
ACCURACY_TOLERANCE = 0.006  # two of the 360 held-out digits

DIGITS_A_STEP = 128  # of all ranks

TRAIN_PROGRAM = Path(__file__).with_name("train_digits.py")


class DemoError(RuntimeError):
    """A program that the demo started has failed; the message holds the end of its output."""


def output_lines(command: list[str], accepted: tuple[int, ...] = (0,)) -> Iterator[str]:
    """Run ``command`` and yield its output line by line.

    Raises DemoError with the end of the output if the exit code is not an accepted one.
    """
    # More threads than one in every rank would fight for the cores that the ranks share.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    tail: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        for line in process.stdout:
            tail = [*tail[-39:], line.rstrip()]
            yield line
    if process.returncode not in accepted:
        said = "\n".join(tail)
        raise DemoError(f"{' '.join(command)} ended with {process.returncode}:\n{said}")


def run_training(backend: str, ranks: int, out: Path, progress: Progress) -> dict:
    """Train over ``backend`` with a progress bar that rank 0 feeds, and return its results."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1"]
    command += [f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    command += ["--local-addr=127.0.0.1", str(TRAIN_PROGRAM)]
    command += [f"--backend={backend}", f"--out={out}", "--progress"]
    command += [f"--batch-size={DIGITS_A_STEP // ranks}"]
    task = progress.add_task(f"{backend}: starting {ranks} ranks", total=None)
    phases = list(PHASES)
    out.unlink(missing_ok=True)
    try:
        for line in output_lines(command):
            if not line.startswith("{"):
                continue
            seen = json.loads(line)
            done = phases.index(seen["phase"]) * seen["steps"] + seen["step"]
            progress.update(
                task,
                total=len(phases) * seen["steps"],
                completed=done,
                description=f"{backend}: {PHASES[seen['phase']]}, loss {seen['loss']:.4f}",
            )
    except DemoError as error:
        # PyTorch's ProcessGroupGloo has threads that outlive destroy_process_group where FSDP2 was
        # used, as DTensor's caches keep the mesh; one that lets go of a tensor while Python ends
        # aborts the process (torch 2.13). The results were written before.
        if backend != "gloo" or "SIGABRT" not in str(error) or not out.exists():
            raise
        progress.console.print("gloo: trained to the end; then PyTorch aborted a process at exit")
    return json.loads(out.read_text())


def run_bench(backends: list[str], ranks: int, out: Path, progress: Progress) -> dict:
    """Measure the collectives of both backends side by side and return the bench's results."""
    command = [sys.executable, "-m", "torch_symm.bench", f"--backend={backends[0]}"]
    command += [f"--against={backends[1]}", f"--ranks={ranks}", f"--json={out}"]
    command += [f"--min={BENCH_SIZES[0]}", f"--max={BENCH_SIZES[-1]}", f"--factor={BENCH_FACTOR}"]
    command += ["--budget-ms=30"]
    command += [f"--collective={name}" for name in BENCH_COLLECTIVES]
    task = progress.add_task("collectives", total=2 * len(BENCH_SIZES) * len(BENCH_COLLECTIVES))
    for line in output_lines(command, accepted=(0, BENCH_EXIT_WRONG)):
        words = line.split()
        if words and words[0] in BENCH_COLLECTIVES:
            progress.update(task, advance=1, description=f"collectives: {words[0]} {words[1]} B")
    return json.loads(out.read_text())


def largest_difference(first: list[float], second: list[float]) -> float:
    """Return the largest distance between losses of the same step, infinite where one is NaN."""
    differences = [abs(a - b) for a, b in zip(first, second, strict=True)]
    return max(math.inf if math.isnan(difference) else difference for difference in differences)


def problems(runs: list[dict], bench: dict) -> list[str]:
    """Return a sentence for everything that is not as it must be."""
    found = []
    for phase in PHASES:
        losses = [run[phase]["losses"] for run in runs]
        difference = largest_difference(*losses)
        if difference > LOSS_TOLERANCE:
            found.append(f"{phase}: losses differ by {difference:.3g}, above {LOSS_TOLERANCE:.0e}")
        accuracies = [run[phase]["accuracy"] for run in runs]
        for run, accuracy in zip(runs, accuracies, strict=True):
            if accuracy < LEAST_ACCURACY:
                found.append(f"{phase}: {run['backend']} has accuracy {accuracy:.4f}")
        if abs(accuracies[0] - accuracies[1]) > ACCURACY_TOLERANCE:
            found.append(f"{phase}: accuracies differ: {accuracies[0]:.4f}, {accuracies[1]:.4f}")
    for row in bench["rows"]:
        for result in row["results"]:
            timings = [result[name] for name in ("out_of_place", "in_place") if result[name]]
            wrong = sum(timing["wrong"] for timing in timings)
            if wrong or result["error"]:
                reason = result["error"] or f"{wrong} wrong elements"
                found.append(f"{row['collective']} {row['size']} B {result['backend']}: {reason}")
    return found


def loss_table(phase: str, runs: list[dict]) -> Table:
    """Return losses side by side at evenly spaced steps, then accuracy and step times."""
    table = Table(title=PHASES[phase])
    for title in ("", *(run["backend"] for run in runs), "difference"):
        table.add_column(title, justify="right")
    losses = [run[phase]["losses"] for run in runs]
    last = len(losses[0]) - 1
    for index in sorted({round(k * last / (LOSSES_SHOWN - 1)) for k in range(LOSSES_SHOWN)}):
        pair = [series[index] for series in losses]
        difference = f"{abs(pair[0] - pair[1]):.1e}"
        table.add_row(f"loss, step {index + 1}", *(f"{loss:.7f}" for loss in pair), difference)
    table.add_row("largest", "", "", f"{largest_difference(*losses):.1e}", end_section=True)
    table.add_row("test accuracy", *(f"{run[phase]['accuracy']:.4f}" for run in runs), "")
    table.add_row("median step", *(f"{median(run[phase]['step_ms']):.2f} ms" for run in runs), "")
    return table


def timing_of(row: dict, index: int) -> dict | None:
    """Return a row's timing on one backend: out of place where that exists, else in place."""
    result = row["results"][index]
    return result["out_of_place"] or result["in_place"]


def bench_table(bench: dict, backends: list[str]) -> Table:
    """Return the time of every collective and size on both backends."""
    table = Table(title=f"Collectives, {bench['machine']['ranks']} ranks, float32")
    for title in ("collective", "bytes", *(f"{name} us" for name in backends), "ratio", "#wrong"):
        table.add_column(title, justify="left" if title == "collective" else "right")
    rows = bench["rows"]
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        timings = [timing_of(row, index) for index in range(2)]
        times = ["-" if timing is None else f"{timing['time_us']:.1f}" for timing in timings]
        ratio = "-"
        if None not in timings:
            ratio = f"{timings[1]['time_us'] / timings[0]['time_us']:.2f}x"
        wrong = "-" if timings[0] is None else str(timings[0]["wrong"])
        ends = following is None or following["collective"] != row["collective"]
        table.add_row(row["collective"], str(row["size"]), *times, ratio, wrong, end_section=ends)
    return table


def draw(runs: list[dict], bench: dict, backends: list[str], path: Path) -> None:
    """Write loss curves (above) and collective times (below) to ``path``."""
    columns = len(BENCH_COLLECTIVES)
    figure = plt.figure(figsize=(3.6 * columns, 7.5), layout="constrained")
    above, below = figure.subfigures(2, 1)
    styles = ("-", "--")
    for axes, phase in zip(above.subplots(1, len(PHASES)), PHASES, strict=True):
        for run, style in zip(runs, styles, strict=True):
            axes.plot(run[phase]["losses"], style, label=run["backend"])
        axes.set(title=PHASES[phase], xlabel="step", ylabel="training loss")
        axes.legend()
        axes.grid(alpha=0.3)
    for axes, name in zip(below.subplots(1, columns), BENCH_COLLECTIVES, strict=True):
        for index, backend in enumerate(backends):
            points = [
                (row["size"], timing["time_us"])
                for row in bench["rows"]
                if row["collective"] == name and (timing := timing_of(row, index)) is not None
            ]
            if points:
                axes.plot(*zip(*points, strict=True), styles[index], marker="o", label=backend)
        axes.set(title=name, xlabel="bytes", ylabel="us per call", yscale="log")
        axes.set_xscale("log", base=2)
        axes.legend()
        axes.grid(which="both", alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs=2, default=["symm", "gloo"], metavar="NAME")
    default_ranks = 4 if (os.cpu_count() or 1) >= 4 else 2
    parser.add_argument("--ranks", type=int, default=default_ranks)
    parser.add_argument("--out", type=Path, default=Path("demo_out"), help="folder to write to")
    return parser.parse_args()


def main() -> int:
    """Run everything, show it, and return the exit code."""
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    columns = (TextColumn("{task.description:<44}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            runs = []
            for index, backend in enumerate(arguments.backends):
                out = arguments.out / f"train_{index}_{backend}.json"
                runs.append(run_training(backend, arguments.ranks, out, progress))
            out = arguments.out / "bench.json"
            bench = run_bench(arguments.backends, arguments.ranks, out, progress)
    except DemoError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    for phase in PHASES:
        console.print(loss_table(phase, runs))
    console.print(bench_table(bench, arguments.backends))
    machine = ", ".join(f"{key} {value}" for key, value in bench["machine"].items())
    console.print(f"machine: {machine}", highlight=False)
    console.print("ratio: time of the second backend over that of the first", highlight=False)
    picture = arguments.out / "demo.png"
    draw(runs, bench, arguments.backends, picture)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    found = problems(runs, bench)
    for text in found:
        console.print(f"FAILED {text}", style="red", markup=False, highlight=False)
    if not found:
        console.print("Losses and accuracies agree; every collective is exact.", style="green")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
