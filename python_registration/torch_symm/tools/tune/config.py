"""What one run measures: the bench's options, of which the tuner has its own few."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch_symm.tools.bench.config import BenchConfig, ConfigError, at_least, one_of
from torch_symm.tools.tune.candidates import Candidate, candidates, shared_out

_EVERYWHERE = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter"),
)
# Messages and a barrier have nothing to choose from, and all_to_all on GPUs goes one way.
TUNED = {"cpu": (*_EVERYWHERE, "all_to_all"), "cuda": _EVERYWHERE}

DEFAULTS: dict[str, dict[str, str]] = {
    "cpu": {"--min": "1K", "--max": "64M", "--dtype": "float32", "--mode": "eager"},
    "cuda": {"--min": "1K", "--max": "256M", "--dtype": "bfloat16", "--mode": "graph"},
}
# Where the bench has the names of backends: the table as it is, which is the reference.
TABLE = "table"


@dataclass(frozen=True)
class TuneConfig(BenchConfig):
    """One run: a bench in which what is measured side by side are groups with other tables.

    A change of the table must save ``gain``, a part of the time. All sizes of all collectives are
    measured ``passes`` times, and of each the least time counts: what else the machine does only
    adds to it. ``wire`` is that of the groups, on GPUs.
    """

    gain: float = 0.05
    passes: int = 2
    wire: str = "ll"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.collectives:
            one_of("--collective", name, TUNED[self.device])
        one_of("SYMM_WIRE", self.wire, ("ll", "line"))
        at_least("--ranks", self.ranks, 2)
        at_least("--passes", self.passes, 1)
        if not 0 <= self.gain < 1:
            raise ConfigError(f"--gain: expected from 0 to below 1, got {self.gain}")

    @functools.cached_property
    def tried(self) -> list[dict[str, Candidate]]:
        """Return what the groups behind the first one try, by collective."""
        every = candidates(self.device)
        return shared_out({name: every[name] for name in self.collectives})

    @property
    def backends(self) -> tuple[str, ...]:
        """Return the names of the groups, by place."""
        return (TABLE, *(f"candidate {place + 1}" for place in range(len(self.tried))))

    @property
    def cases(self) -> tuple[tuple[str, str], ...]:
        """Return every collective in every mode, once a pass."""
        return super().cases * self.passes

    @property
    def rows_key(self) -> str:
        """Return the name of the table's rows that are tuned."""
        if self.device == "cpu":
            return "rows"
        return "gpu_rows" if self.wire == "ll" else "gpu_line_rows"
