"""What one run examines: the validated options."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from torch_symm.tools.bench.config import ConfigError, format_size
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
            if name not in OPERATIONS:
                raise ConfigError(
                    f"--operation: expected one of {', '.join(OPERATIONS)}, got {name!r}"
                )
        if self.dtype not in DTYPES or not self.torch_dtype.is_floating_point:
            names = [name for name, dtype in DTYPES.items() if dtype.is_floating_point]
            raise ConfigError(f"--dtype: expected one of {', '.join(names)}, got {self.dtype!r}")
        if self.ranks < 2:
            raise ConfigError(
                "--ranks: a collective of one rank shows nothing; expected at least 2, "
                f"got {self.ranks}"
            )
        if self.replays < 2:
            raise ConfigError(f"--replays: expected at least 2, got {self.replays}")
        for option, value in (("--timeout-s", self.timeout_s), ("--case-seconds", self.case_s)):
            if value <= 0:
                raise ConfigError(f"{option}: expected more than 0, got {value}")
        for size in self.sizes:
            if size < self.torch_dtype.itemsize:
                raise ConfigError(
                    f"--size: expected at least {self.torch_dtype.itemsize}, "
                    f"got {format_size(size)}"
                )

    @property
    def torch_dtype(self) -> torch.dtype:
        """Return the element type of the tensors."""
        return DTYPES[self.dtype]

    @property
    def cases(self) -> tuple[tuple[str, str], ...]:
        """Return every backend with every operation, in the order of examination."""
        names = self.operations or tuple(OPERATIONS)
        return tuple(
            (backend, name)
            for backend in self.backends
            for name in names
            if not OPERATIONS[name].cold or is_symm(backend)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON-ready values, from which ``from_json`` makes an equal one."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ProbeConfig:
        """Return the configuration whose ``to_json`` is ``values``."""
        listed = ("backends", "operations", "sizes")
        return cls(**{k: tuple(v) if k in listed else v for k, v in values.items()})


def is_symm(backend: str) -> bool:
    """Tell whether GPU tensors go to symm: "symm", or as in "cpu:gloo,cuda:symm"."""
    return any(part.split(":")[-1] == "symm" for part in backend.split(","))
