"""What a call could be carried out by, and the groups of which each tries one for all calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_symm._registration import load

# What no row of a table can name, and what has never run.
_LEFT_OUT = ("copy_engine", "multimem")
_LEAST_CHUNK = 64 << 10  # the only one of one_shot
_CHUNKS = {"cpu": tuple(_LEAST_CHUNK << power for power in range(5)), "cuda": (0,)}  # to 1 MiB
_BLOCKS = {"cpu": (0,), "cuda": (8, 16, 32, 64)}


@dataclass(frozen=True)
class Candidate:
    """``chunk_bytes`` is 0 on a GPU, ``channels`` on the host."""

    algorithm: str
    chunk_bytes: int
    channels: int = 0

    def __str__(self) -> str:
        chunk = f" {self.chunk_bytes >> 10}K" if self.chunk_bytes else ""
        return f"{self.algorithm}{chunk}" + (f" x{self.channels}" if self.channels else "")

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Candidate:
        """Return what a row of a table names."""
        return cls(row["algorithm"], row.get("chunk_bytes", 0), row.get("channels", 0))

    def row_fields(self, device: str) -> dict[str, Any]:
        """Return what a row that names this says of it."""
        size = (
            {"channels": self.channels} if device == "cuda" else {"chunk_bytes": self.chunk_bytes}
        )
        return {"algorithm": self.algorithm, **size}

    def at(self, staged: int) -> Candidate:
        """Return the candidate with the least chunk that makes the same call of ``staged`` bytes.

        A message that fits into a smaller chunk goes as with that one.
        """
        chunk = self.chunk_bytes
        while chunk > _LEAST_CHUNK and staged <= chunk // 2:
            chunk //= 2
        return Candidate(self.algorithm, chunk, self.channels)


def candidates(device: str) -> dict[str, list[Candidate]]:
    """Return everything that is tried, by collective."""
    found: dict[str, list[Candidate]] = {}
    for collective, algorithm, where, _ in load().placements():
        if where != device or algorithm in _LEFT_OUT:
            continue
        chunks = (_LEAST_CHUNK,) if algorithm == "one_shot" else _CHUNKS[device]
        found.setdefault(collective, []).extend(
            Candidate(algorithm, chunk, blocks) for chunk in chunks for blocks in _BLOCKS[device]
        )
    return found


def shared_out(by_collective: dict[str, list[Candidate]]) -> list[dict[str, Candidate]]:
    """Return what each of as few groups as possible tries, by collective: the n-th the n-th."""
    most = max(map(len, by_collective.values()))
    return [
        {name: tried[place] for name, tried in by_collective.items() if place < len(tried)}
        for place in range(most)
    ]
