"""Runs Spin on programs: translates and compiles the search once for each size of a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from program import Program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Messages of a location that the machine keeps: the first that is enough for the program, or the
# last; machine.pml has as many lines.
HISTORIES = (4, 8, 20)
# What a search is compiled for: a compilation takes as long as most searches, and a machine that
# is a little too large does not make them slower.
LOCATIONS = (2, 4, 6, 8, 10, 12, 16)
BARRIERS = (1, 4)
# Of one command; the largest search takes a few seconds.
SECONDS = 60


def missing_tools() -> list[str]:
    """What the check needs and this machine lacks."""
    return [tool for tool in ("spin", "gcc", "g++") if shutil.which(tool) is None]


@dataclass(frozen=True)
class Verdict:
    """What a search found; `fault` is empty where all of the states were seen and none is bad."""

    fault: str
    states: int
    transitions: int
    seconds: float


class Checker:
    """Compiles into `folder`, and keeps what it compiled for the next program of that size."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._searches: dict[tuple[int, ...], Path] = {}

    def trace(self) -> str:
        """The operations of the algorithms, printed by trace_algorithms.cpp."""
        binary = self._folder / "trace_algorithms"
        source = HERE / "trace_algorithms.cpp"
        flags = ["-std=c++20", "-O0", f"-I{ROOT}"]
        self._compile(["g++", *flags, str(source), "-o", str(binary)])
        return subprocess.run(
            [binary], check=True, capture_output=True, text=True, timeout=SECONDS
        ).stdout

    def check(self, program: Program) -> Verdict:
        """Searches all states of the program, up to the first bad one.

        The fault "bound" says that the search went beyond what the machine holds, and is none of
        the program's. Raises where there is no verdict.
        """
        search = self._search_of(program)
        path = self._folder / "program.txt"
        path.write_text(program.text())
        start = time.monotonic()
        done = subprocess.run(
            [search, "-m1000000", "-w20"],
            cwd=self._folder,
            env={**os.environ, "SYMM_MODEL_PROGRAM": str(path)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        seconds = time.monotonic() - start
        output = done.stdout
        counts = re.search(r"(\d+) states, stored", output)
        moves = re.search(r"(\d+) transitions", output)
        errors = re.search(r"errors: (\d+)", output)
        if not counts or not moves or not errors or "max search depth too small" in output:
            raise RuntimeError(f"{program.name}: no verdict\n{output}\n{done.stderr}")
        return Verdict(fault_of(output), int(counts[1]), int(moves[1]), seconds)

    def _search_of(self, program: Program) -> Path:
        """The search for machines of the program's size."""
        size = (
            len(program.threads),
            least(LOCATIONS, len(program.locations)),
            -(-max(len(program.cells), 1) // 32) * 32,
            least(BARRIERS, len(program.barriers)),
            least(HISTORIES, min(program.most_messages(), HISTORIES[-1])),
        )
        if size not in self._searches:
            folder = self._folder / "_".join(map(str, size))
            folder.mkdir()
            names = ("THREADS", "LOCATIONS", "CELLS", "BARRIERS", "HISTORY")
            sizes = [f"-D{name}={n}" for name, n in zip(names, size, strict=True)]
            model = str(HERE / "machine.pml")
            self._run(["spin", sizes[0], "-a", model], folder)
            flags = ["-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-DCOLLAPSE", "-DVECTORSZ=32768"]
            self._compile(["gcc", *flags, *sizes, f"-I{HERE}", "pan.c", "-o", "pan"], folder)
            self._searches[size] = folder / "pan"
        return self._searches[size]

    def _compile(self, command: list[str], folder: Path | None = None) -> None:
        self._run(command, folder or self._folder)

    @staticmethod
    def _run(command: list[str], folder: Path) -> None:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def least(sizes: tuple[int, ...], needed: int) -> int:
    """The smallest of `sizes` that holds `needed`."""
    return next(size for size in sizes if size >= needed)


def fault_of(output: str) -> str:
    """The fault that pan has printed; empty where there is none."""
    fault = re.search(r"^fault: ([a-z ]+)", output, re.MULTILINE)
    if fault:
        return fault[1].strip()
    if re.search(r"^pan:\d+: invalid end state", output, re.MULTILINE):
        return "deadlock"
    return "" if "errors: 0" in output else "unknown"
