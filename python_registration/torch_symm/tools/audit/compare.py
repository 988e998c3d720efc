"""The first call at which two runs differ.

The calls of one rank have an order, those of two ranks only where they take part in a call
together. A difference spreads with the calls, so the first one is a call at which every rank that
differs there had none before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from torch_symm.tools.audit.files import Call, Key, RankFile


@dataclass(frozen=True)
class Difference:
    """What differs at a call on one rank. ``kind``: call, missing, input or output."""

    kind: str
    text: str


@dataclass(frozen=True)
class First:
    """The first call at which the runs differ, by rank, with what it was in either run."""

    key: Key
    calls: list[str]
    ranks: dict[int, Difference]

    @property
    def rank(self) -> int:
        """The rank to look at: one whose input or call differs, where there is one."""
        return min(self.ranks, key=lambda rank: (self.ranks[rank].kind == "output", rank))

    def lines(self) -> list[str]:
        """For people, the first rank and the call in the first line."""
        first = self.ranks[self.rank]
        lines = [
            f"first difference: rank {self.rank}: {' or '.join(self.calls)} {self.key}: "
            f"{first.text}"
        ]
        lines += [
            f"  rank {rank}: {difference.text}"
            for rank, difference in self.ranks.items()
            if rank != self.rank
        ]
        if all(difference.kind == "output" for difference in self.ranks.values()):
            lines.append("  the input is the same on every rank: the collective gave other bits")
        return lines


def _difference(key: Key, a: Call | None, b: Call | None) -> Difference | None:
    if a == b:
        return None
    if a is None or b is None:
        which = "first" if a is None else "second"
        return Difference("missing", f"the {which} run has not made this call")
    if a.call != b.call:
        return Difference("call", f"the runs called {a.call} and {b.call}")
    if a.input != b.input:
        return Difference("input", f"the input differs ({a.input} and {b.input})")
    return Difference("output", f"only the output differs ({a.output} and {b.output})")


def first_difference(a: dict[int, RankFile], b: dict[int, RankFile]) -> First | None:
    """None where the runs are equal. Raises ValueError where they have other ranks."""
    if a.keys() != b.keys():
        of = [", ".join(map(str, run)) for run in (a, b)]
        raise ValueError(
            f"the first run has files of ranks {of[0]}, the second of ranks {of[1]}: give the "
            "files of the same ranks"
        )

    def at(rank: int, key: Key) -> Difference | None:
        return _difference(key, a[rank].calls.get(key), b[rank].calls.get(key))

    first: dict[int, tuple[int, Key]] = {}
    for rank in a:
        keys = dict.fromkeys(chain(a[rank].calls, b[rank].calls))
        found = ((place, key) for place, key in enumerate(keys) if at(rank, key))
        if (earliest := next(found, None)) is not None:
            first[rank] = earliest
    if not first:
        return None

    def is_first(key: Key) -> bool:
        return all(first[rank][1] == key for rank in first if at(rank, key))

    candidates = sorted(first.values())
    key = next((key for _, key in candidates if is_first(key)), candidates[0][1])
    ranks = {rank: found for rank in a if (found := at(rank, key))}
    calls = dict.fromkeys(
        run[rank].calls[key].call for rank in ranks for run in (a, b) if key in run[rank].calls
    )
    return First(key, list(calls), ranks)
