"""Draws the pictures of README and docs from what measurements have written to docs/evidence:
time_by_size.png and floors.png (the bench), and same_bits.png (docs/examples/same_bits.py).

python docs/figures/draw.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # A picture file needs no display.
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).parent
EVIDENCE = HERE.parent / "evidence"
COLLECTIVES = ("all_reduce", "all_gather")
MACHINES = {
    "4 ranks on 2 CPU cores, float32": ("bench_cpu_4_ranks_small", "bench_cpu_4_ranks_large"),
    "2 H200 without multicast, bfloat16, in a graph": ("bench_cuda_2_h200",),
}
COLOURS = {"symm": "tab:blue", "gloo": "tab:orange", "nccl": "tab:green"}


def rows_of(names: tuple[str, ...]) -> list[dict]:
    """Return the rows of these files, of a GPU's those that were measured in graphs."""
    rows = [
        row for name in names for row in json.loads((EVIDENCE / f"{name}.json").read_text())["rows"]
    ]
    return [row for row in rows if row.get("mode", "graph") == "graph"]


def draw(axes: Axes, rows: list[dict], collective: str) -> None:
    """Draw the time of a call against the size, a line for each backend."""
    times: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for result in row["results"]:
            timing = result["in_place"] or result["out_of_place"]
            if row["collective"] == collective and timing:
                times.setdefault(result["backend"], []).append((row["size"], timing["time_us"]))
    for backend, points in times.items():
        axes.plot(*zip(*points, strict=True), "o-", ms=3, color=COLOURS[backend], label=backend)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([256, 64 << 10, 16 << 20], ["256 B", "64 KiB", "16 MiB"])
    axes.set_ylabel("us a call")
    axes.grid(alpha=0.3)
    axes.legend()


def draw_times() -> None:
    """Write time_by_size.png."""
    figure = plt.figure(figsize=(11, 3.2), layout="constrained")
    for part, (machine, names) in zip(figure.subfigures(1, 2), MACHINES.items(), strict=True):
        part.suptitle(machine)
        rows = rows_of(names)
        for axes, collective in zip(part.subplots(1, 2), COLLECTIVES, strict=True):
            draw(axes, rows, collective)
            axes.set_title(collective, fontsize="medium")
    figure.savefig(HERE / "time_by_size.png", dpi=100)


# Of N ranks: what crosses the busiest link in one direction, in parts of the size, and the hops.
FLOORS = {
    "all_reduce": (lambda n: 2 * (n - 1) / n, 2),
    "reduce": (lambda n: 1, 1),
    "broadcast": (lambda n: 1, 1),
    "all_gather": (lambda n: (n - 1) / n, 1),
    "reduce_scatter": (lambda n: (n - 1) / n, 1),
    "all_to_all": (lambda n: (n - 1) / n, 1),
    "gather": (lambda n: (n - 1) / n, 1),
    "scatter": (lambda n: (n - 1) / n, 1),
    "sendrecv": (lambda n: 1, 1),
}


def floor_us(collective: str, ranks: int, size: int) -> float:
    """Return a start, hops, and the bytes at what a kernel stores over NVLink, in microseconds."""
    part, hops = FLOORS[collective]
    return 1.5 + 0.69 * hops + part(ranks) * size / 340e3


def draw_floors() -> None:
    """Write floors.png: times of GPUs in parts of the floor."""
    figure = plt.figure(figsize=(11, 5.4), layout="constrained")
    gpus = ((2, "H200"), (4, "H200"))
    for part, (ranks, gpu) in zip(figure.subfigures(2, 1), gpus, strict=True):
        part.suptitle(f"{ranks} {gpu}, bfloat16, in a graph: times the floor")
        rows = rows_of((f"bench_cuda_{ranks}_{gpu.lower()}",))
        grid = part.subplots(1, len(FLOORS), sharey=True)
        for axes, collective in zip(grid, FLOORS, strict=True):
            lines: dict[str, list[tuple[int, float]]] = {}
            for row in rows:
                for result in row["results"]:
                    timing = result["in_place"] or result["out_of_place"]
                    if row["collective"] == collective and timing:
                        floor = floor_us(collective, ranks, row["size"])
                        point = (row["size"], timing["time_us"] / floor)
                        lines.setdefault(result["backend"], []).append(point)
            for backend, points in lines.items():
                axes.plot(*zip(*points, strict=True), "-", color=COLOURS[backend], label=backend)
            axes.axhline(1, color="black", lw=0.8)
            axes.set_xscale("log", base=2)
            axes.set_xticks([1 << 10, 1 << 20], ["1 KiB", "1 MiB"])
            axes.set_ylim(0, 5)
            axes.grid(alpha=0.3)
            axes.set_title(collective, fontsize="small")
        grid[0].legend(fontsize="small")
    figure.savefig(HERE / "floors.png", dpi=100)


def draw_same_bits() -> None:
    """Write same_bits.png: which part of the elements has other bits, by question and backend."""
    runs = json.loads((EVIDENCE / "same_bits_cpu.json").read_text())["runs"]
    shares = {
        run["backend"]: {
            a["question"]: 100 * a["different"] / a["elements"] for a in run["answers"]
        }
        for run in runs
        if run["dtype"] == "float32"
    }
    figure, axes = plt.subplots(figsize=(11, 4.2), layout="constrained")
    # Questions from the top down, and of each the backends.
    for place, (backend, by_question) in enumerate(sorted(shares.items(), reverse=True)):
        heights = [-number - 0.4 * place for number in range(len(by_question))]
        bars = axes.barh(heights, by_question.values(), 0.38, color=COLOURS[backend], label=backend)
        axes.bar_label(
            bars, ["0" if not bar.get_width() else "" for bar in bars], padding=2, size=7
        )
    axes.set_yticks([-number - 0.2 for number in range(len(by_question))], by_question)
    axes.tick_params(axis="y", labelsize="small")
    axes.set_xlabel("% of the elements with other bits; 4 ranks on 2 CPU cores, float32")
    axes.legend()
    figure.savefig(HERE / "same_bits.png", dpi=100)


def main() -> None:
    """Write the pictures beside this file."""
    draw_times()
    draw_floors()
    draw_same_bits()


if __name__ == "__main__":
    main()
