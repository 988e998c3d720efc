"""What a call could be carried out by, and the groups of which each tries one for all calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_symm._registration import load

# What no row of a table can name, and what has never run.
_LEFT_OUT = ("copy_engine", "multimem")
_WITHOUT_CHUNKS = ("ll", "ll_two_shot", "bulk")
# What a row of an algorithm without chunks says; also the chunk of one_shot on the host.
_LEAST_CHUNK = 64 << 10
_CHUNKS = {
    "cpu": tuple(_LEAST_CHUNK << power for power in range(5)),  # to 1 MiB
    "cuda": (_LEAST_CHUNK,),
}
_BLOCKS = {"cpu": (0,), "cuda": (8, 16, 32, 64)}


@dataclass(frozen=True)
class Candidate:
    """``chunk_bytes`` and ``channels`` are 0 where the algorithm has none."""

    algorithm: str
    chunk_bytes: int
    channels: int = 0

    def __str__(self) -> str:
        chunk = f" {self.chunk_bytes >> 10}K" if self.chunk_bytes else ""
        return f"{self.algorithm}{chunk}" + (f" x{self.channels}" if self.channels else "")

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Candidate:
        """Return what a row of a table names."""
        chunk = 0 if row["algorithm"] in _WITHOUT_CHUNKS else row["chunk_bytes"]
        return cls(row["algorithm"], chunk, row.get("channels", 0))

    def row_fields(self, device: str) -> dict[str, Any]:
        """Return what a row that names this says of it."""
        fields = {"algorithm": self.algorithm, "chunk_bytes": self.chunk_bytes or _LEAST_CHUNK}
        return fields | ({"channels": self.channels} if device == "cuda" else {})

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
        chunks = (0,) if algorithm in _WITHOUT_CHUNKS else _CHUNKS[device]
        if device == "cpu" and algorithm == "one_shot":
            chunks = (_LEAST_CHUNK,)
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
