"""A picture of the results: time of a call against size, one panel for each collective and mode."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # A picture file needs no display.
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase

from torch_symm.tools.bench.results import VARIANTS, Row

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink")
_STYLES = {"out_of_place": "-", "in_place": "--"}


def check_format(path: Path) -> None:
    """Raise ValueError unless the suffix of ``path`` names a format; without one it is png."""
    known, suffix = FigureCanvasBase.get_supported_filetypes(), path.suffix.lower().lstrip(".")
    if suffix and suffix not in known:
        raise ValueError(f"--plot: expected a suffix of {', '.join(sorted(known))}, got {path}")


def title(row: Row) -> str:
    """Return the name of the panel that ``row`` belongs to."""
    return row.collective if row.mode == "eager" else f"{row.collective}, {row.mode}"


def draw_collective(axes: Axes, rows: list[Row]) -> None:
    """Draw the times of one panel's rows, a line for each backend and variant."""
    for index, result in enumerate(rows[0].results):
        for variant in VARIANTS:
            points = [
                (row.size, timing.time_us)
                for row in rows
                if (timing := row.results[index].variant(variant)) is not None
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    _STYLES[variant],
                    marker="o",
                    markersize=3,
                    color=_COLOURS[index % len(_COLOURS)],
                    label=f"{result.backend} {variant.replace('_', ' ')}",
                )
    axes.set_title(title(rows[0]))
    axes.set_yscale("log")
    if rows[0].size:
        axes.set_xscale("log", base=2)
    axes.set_xlabel("bytes")
    axes.set_ylabel("us per call")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize="x-small")


def write_plot(rows: list[Row], path: Path) -> None:
    """Write the picture of ``rows`` to ``path``; the suffix chooses the format."""
    by_collective = [list(of_one) for _, of_one in itertools.groupby(rows, title)]
    columns = min(len(by_collective), 3)
    lines = math.ceil(len(by_collective) / columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(5 * columns, 3.6 * lines), squeeze=False, layout="constrained"
    )
    for axes in panels.flat[len(by_collective) :]:
        axes.set_visible(False)
    for axes, of_collective in zip(panels.flat, by_collective, strict=False):
        draw_collective(axes, of_collective)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
