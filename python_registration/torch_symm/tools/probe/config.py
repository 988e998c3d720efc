"""What one run examines: the validated options."""

from __future__ import annotations

from dataclasses import dataclass

from torch_symm.tools.bench.config import ConfigError, above_zero, at_least, one_of
from torch_symm.tools.bench.pattern import DTYPES
from torch_symm.tools.probe.operations import OPERATIONS


@dataclass(frozen=True)
class ProbeConfig:
    """One run. Construction validates every field and raises ConfigError.

    ``operations`` empty means all. ``case_s`` limits one operation on one backend. With
    ``isolate`` every operation has processes of its own, also after a good verdict.
    """

    backends: tuple[str, ...] = ("symm",)
    operations: tuple[str, ...] = ()
    ranks: int = 2
    device: str = "cuda"
    dtype: str = "float32"
    sizes: tuple[int, ...] = (1 << 10, 1 << 20, 1 << 24)
    replays: int = 5
    timeout_s: float = 30.0
    case_s: float = 60.0
    isolate: bool = False

    def __post_init__(self) -> None:
        for name in self.operations:
            one_of("--operation", name, OPERATIONS)
        floating = [name for name, dtype in DTYPES.items() if dtype.is_floating_point]
        one_of("--dtype", self.dtype, floating)
        if self.ranks < 2:
            raise ConfigError(
                "--ranks: a collective of one rank shows nothing; expected at least 2, "
                f"got {self.ranks}"
            )
        at_least("--replays", self.replays, 2)
        above_zero("--timeout-s", self.timeout_s)
        above_zero("--case-seconds", self.case_s)
        for size in self.sizes:
            at_least("--size", size, DTYPES[self.dtype].itemsize)

    @property
    def cases(self) -> tuple[tuple[str, str], ...]:
        """Return every backend with every operation, in the order of examination."""
        names = self.operations or tuple(OPERATIONS)
        return tuple(
            (backend, name)
            for backend in self.backends
            for name in names
            if not OPERATIONS[name].of_symm or is_symm(backend)
        )


def is_symm(backend: str) -> bool:
    """Tell whether GPU tensors go to symm: "symm", or as in "cpu:gloo,cuda:symm"."""
    return any(part.split(":")[-1] == "symm" for part in backend.split(","))
