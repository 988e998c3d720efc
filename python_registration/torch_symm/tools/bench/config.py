"""What one run measures: the validated options, the sizes, and the names of dtypes and ops."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from torch_symm.tools.bench.collectives import CLASSES
from torch_symm.tools.bench.contender import CONTENDERS, Phase, phases
from torch_symm.tools.bench.pattern import BITWISE_OPS, DTYPES, OPS
from torch_symm.tools.bench.programs import HIDDEN, PROGRAMS

COLLECTIVES = tuple(CLASSES)
# What a run measures, by name: collectives, or programs.
KINDS = CLASSES | PROGRAMS
DEVICES = ("cpu", "cuda")
# The one name among the backends that is none of c10d's: the MPI library behind mpi4py.
MPI = "mpi"
MODES = ("eager", "graph")
OVERLAPPED = "overlapped"  # a mode too, which nothing else stands for

# What is measured on a device where nothing else is asked for.
DEFAULTS: dict[str, dict[str, str]] = {
    "cpu": {"--min": "8", "--max": "1M", "--dtype": "float32", "--mode": "eager"},
    "cuda": {"--min": "256", "--max": "256M", "--dtype": "bfloat16", "--mode": "both"},
}

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class ConfigError(ValueError):
    """An option has a value that cannot be measured; the message names the option."""


def parse_size(text: str, option: str) -> int:
    """Return the bytes that ``text`` says: a whole number with an optional suffix K, M or G."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:I?B)?", text.strip().upper())
    if match is None:
        raise ConfigError(
            f"{option}: expected a number of bytes such as 8, 64K or 1M, got {text!r}"
        )
    return int(match[1]) * _SUFFIXES[match[2]]


def format_size(size: int) -> str:
    """Return ``size`` in the shortest exact form that ``parse_size`` reads."""
    for suffix in ("G", "M", "K"):
        if size and size % _SUFFIXES[suffix] == 0:
            return f"{size // _SUFFIXES[suffix]}{suffix}"
    return str(size)


@dataclass(frozen=True)
class BenchConfig:
    """One run. Construction validates every field and raises ConfigError.

    ``case_s`` limits one row: one collective at one size in one mode, on every backend.
    ``budget_s`` ends the run after the row in which it is spent.
    ``iters`` zero chooses the calls per block so that the blocks of one size, variant and backend
    take about ``budget_ms`` together. ``step`` zero means a geometric series with ``factor``.
    """

    collectives: tuple[str, ...] = COLLECTIVES
    ranks: int = 2
    min_bytes: int = 8
    max_bytes: int = 1 << 20
    factor: int = 4
    step: int = 0
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    iters: int = 0
    warmup: int = 2
    blocks: int = 5
    budget_ms: float = 100.0
    check: bool = True
    backend: str = "symm"
    against: tuple[str, ...] = ()
    device: str = "cpu"
    modes: tuple[str, ...] = ("eager",)
    timeout_s: float = 60.0
    case_s: float = 120.0
    budget_s: float | None = None
    layers: int = 32
    sizes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        for name in self.collectives:
            if name in PROGRAMS:
                self._check_program(name)
            else:
                one_of("--collective", name, COLLECTIVES)
        one_of("--dtype", self.dtype, DTYPES)
        one_of("--op", self.op, OPS)
        one_of("--device", self.device, DEVICES)
        for mode in self.modes:
            one_of("--mode", mode, (*MODES, OVERLAPPED))
        if "graph" in self.modes and self.device == "cpu":
            raise ConfigError("--mode: the CPU has no graphs; graph needs --device cuda")
        if OVERLAPPED in self.modes and self.device == "cpu":
            raise ConfigError("--mode: the CPU has no streams; overlapped needs --device cuda")
        at_least("--ranks", self.ranks, 1)
        at_least("--min", self.min_bytes, 1)
        at_least("--max", self.max_bytes, self.min_bytes)
        at_least("--step", self.step, 0)
        at_least("--factor", self.factor, 1 if self.step else 2)
        at_least("--iters", self.iters, 0)
        at_least("--warmup", self.warmup, 0)
        at_least("--layers", self.layers, 1)
        at_least("--blocks", self.blocks, 1)
        if not 0 <= self.root < self.ranks:
            raise ConfigError(f"--root: expected a rank below {self.ranks}, got {self.root}")
        above_zero("--budget-ms", self.budget_ms)
        above_zero("--timeout-s", self.timeout_s)
        above_zero("--case-seconds", self.case_s)
        if self.budget_s is not None:
            above_zero("--budget-seconds", self.budget_s)
        if self.op in BITWISE_OPS and DTYPES[self.dtype].is_floating_point:
            raise ConfigError(f"--op: {self.op} needs an integer --dtype, got {self.dtype}")
        if MPI in self.backends and self.device != "cpu":
            raise ConfigError(
                f"--against: {MPI} is measured on the CPU, got --device {self.device}"
            )
        for name in self.against:
            if name in CONTENDERS:
                self._check_contender(name)
        if self.backend in CONTENDERS:
            raise ConfigError(f"--backend: {self.backend} is a name for --against alone")
        if "sendrecv" in self.collectives and self.ranks < 2:
            raise ConfigError(f"--ranks: sendrecv needs at least 2 ranks, got {self.ranks}")
        object.__setattr__(self, "sizes", tuple(self._sizes()))

    @property
    def backends(self) -> tuple[str, ...]:
        """Return the backend under test, then those it is compared with."""
        return (self.backend, *self.against)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the sets of ranks that measure a case, one after the other."""
        return phases(self.backends)

    def counts(self, collective: str) -> list[int]:
        """Return the counts of one collective; sizes that round to the same count are one."""
        kind, itemsize = KINDS[collective], DTYPES[self.dtype].itemsize
        return list(dict.fromkeys(kind.count_of(size, itemsize, self.ranks) for size in self.sizes))

    @property
    def cases(self) -> tuple[tuple[str, str], ...]:
        """Return every collective in every mode, in the order in which they are measured."""
        return tuple((name, mode) for name in self.collectives for mode in self.modes)

    def _check_program(self, name: str) -> None:
        if HIDDEN % self.ranks != 0:
            raise ConfigError(
                f"--ranks: {name} needs a number that divides {HIDDEN}, got {self.ranks}"
            )
        if not DTYPES[self.dtype].is_floating_point or DTYPES[self.dtype].itemsize == 1:
            raise ConfigError(
                f"--dtype: {name} multiplies float16, bfloat16, float32 or float64, "
                f"got {self.dtype}"
            )
        if OVERLAPPED in self.modes:
            raise ConfigError(f"--mode: {name} is measured eager or as graph, got {OVERLAPPED}")
        if MPI in self.backends:
            raise ConfigError(f"--against: {name} runs over backends of c10d, got {MPI}")

    def _check_contender(self, name: str) -> None:
        one = CONTENDERS[name]
        if one.c10d == "nccl" and self.device == "cpu":
            raise ConfigError(f"--against: {name} is measured on GPUs, got --device cpu")
        if one.dtypes is not None and self.dtype not in one.dtypes:
            expected = " and ".join(one.dtypes)
            raise ConfigError(f"--against: {name} takes {expected}, got --dtype {self.dtype}")
        reduces = any(KINDS[collective].has_op for collective in self.collectives)
        if one.ops is not None and reduces and self.op not in one.ops:
            expected = " and ".join(one.ops)
            raise ConfigError(f"--against: {name} reduces by {expected}, got --op {self.op}")

    def _sizes(self) -> Iterator[int]:
        size = self.min_bytes
        while size <= self.max_bytes:
            yield size
            size = size + self.step if self.step else size * self.factor


def one_of(option: str, value: str, choices: Collection[str]) -> None:
    """Raise ConfigError unless ``value`` of ``option`` is one of ``choices``."""
    if value not in choices:
        raise ConfigError(f"{option}: expected one of {', '.join(choices)}, got {value!r}")


def at_least(option: str, value: int, least: int) -> None:
    """Raise ConfigError unless ``value`` of ``option`` is ``least`` or more."""
    if value < least:
        raise ConfigError(f"{option}: expected at least {least}, got {value}")


def above_zero(option: str, value: float) -> None:
    """Raise ConfigError unless ``value`` of ``option`` is more than 0."""
    if value <= 0:
        raise ConfigError(f"{option}: expected more than 0, got {value}")
