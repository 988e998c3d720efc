"""Draws time_by_size.png, README's picture, from what the bench has written to docs/evidence.

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
    "4 H200 without multicast, bfloat16, in a graph": ("bench_cuda_4_ranks",),
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


def main() -> None:
    """Write the picture beside this file."""
    figure = plt.figure(figsize=(11, 3.2), layout="constrained")
    for part, (machine, names) in zip(figure.subfigures(1, 2), MACHINES.items(), strict=True):
        part.suptitle(machine)
        rows = rows_of(names)
        for axes, collective in zip(part.subplots(1, 2), COLLECTIVES, strict=True):
            draw(axes, rows, collective)
            axes.set_title(collective, fontsize="medium")
    figure.savefig(HERE / "time_by_size.png", dpi=100)


if __name__ == "__main__":
    main()
