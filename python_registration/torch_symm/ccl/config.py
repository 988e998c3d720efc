"""How one call is to be carried out."""

from __future__ import annotations

import dataclasses

from torch_symm.ccl import placement


@dataclasses.dataclass(frozen=True)
class Config:
    """The plan of one call, the same on every rank of the group.

    What is left out is decided as for calls without a config: by the plan tables, or by what the
    group was told to force. Ranks that give different configs for one call raise, on every rank,
    an error that names both.

    Attributes:
        algorithm: one of ``ccl.algorithms(collective, device)``, or "auto".
        channels: how many blocks of a GPU's kernel share the call, 1 to 64; only on CUDA, and not
            for "copy_engine" and all_to_all.
        chunk_bytes: how many bytes a step moves at most: a multiple of 128 from 16384, or the
            group's slot where that is smaller, to the group's slot (an eighth of
            ``workspace_bytes``, 65536 for "one_shot"); only on the CPU.

    Raises:
        TypeError: a value of another type.
        ValueError: an algorithm that no collective has, or a number below 1. What depends on the
            collective and its device raises ValueError in the call, before anything is sent.
    """

    algorithm: str = "auto"
    channels: int | None = None
    chunk_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, str):
            raise TypeError(f"Config: algorithm: expected a str, got {self.algorithm!r}")
        known = placement.all_algorithms()
        if self.algorithm != "auto" and self.algorithm not in known:
            raise ValueError(
                f"Config: algorithm: expected one of auto, {', '.join(known)}; "
                f"got {self.algorithm!r}"
            )
        for name in ("channels", "chunk_bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"Config: {name}: expected an int or None, got {value!r}")
            if not 1 <= value <= _MOST:
                raise ValueError(f"Config: {name}: expected 1 to {_MOST}, got {value}")

    def request(self) -> tuple[str, int, int]:
        """As the compiled module takes it: 0 for what is left out."""
        return self.algorithm, self.channels or 0, self.chunk_bytes or 0


_MOST = 2**31 - 1

AUTO = ("auto", 0, 0)
