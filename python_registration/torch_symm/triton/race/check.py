"""What is noted beside the memory of one context's tensors, and what contradicts it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from torch_symm.triton._interpreter import fence_system
from torch_symm.triton.race import board, clock

if TYPE_CHECKING:
    from torch_symm.triton.context import Context

READ, WRITE, ATOMIC = 0, 1, 2
_VERBS = {READ: "reads", WRITE: "writes", ATOMIC: "changes by an atomic"}
# What each kind of access may not meet.
_MEETS = {READ: [WRITE, ATOMIC], WRITE: [READ, WRITE, ATOMIC], ATOMIC: [READ, WRITE]}
_MOST_WORDS = 4096  # whose clocks are kept apart, in one tensor
_MOST_BYTES = 1 << 30

_checks: list[RaceCheck] = []


class RaceError(RuntimeError):
    """Two accesses of a rank's memory that no signal, barrier or collective orders."""


class _Notes:
    """Of one row of the context's table: an allocation of which each rank has a part. Collective.

    Attributes:
        notes: by owner, [granule, READ, WRITE or ATOMIC, rank]: the stamp of the last such access.
        clocks: by owner, [word, rank]: the clock of that rank's last release there,
            with lanes.
    """

    def __init__(self, row: list[int], granule: int, group: dist.ProcessGroup) -> None:
        first, last, _, *distances = row
        self.granule, self.bytes = granule, last - first
        self.firsts = np.array([first + distance for distance in distances], dtype=np.int64)
        granules, ranks = -(-self.bytes // granule), group.size()
        if granules * 24 * ranks > _MOST_BYTES:
            raise ValueError(
                f"SYMM_RACE_CHECK: expected tensors whose notes take at most {_MOST_BYTES} bytes on"
                f" a rank, got one of {self.bytes} bytes, which needs {granules * 24 * ranks}"
            )
        self.words = min(granules, _MOST_WORDS)
        self.notes = board.Shared(group, (granules, 3, ranks), torch.int64)
        shape = (self.words, ranks, dist.get_world_size(), clock.LANES)
        self.clocks = board.Shared(group, shape, torch.int64)

    def find(self, low: int, high: int) -> list[int]:
        """The owners whose part has some of these addresses."""
        hit = (self.firsts <= high) & (self.firsts + self.bytes > low)
        return np.flatnonzero(hit).tolist()

    def granules(self, addresses: np.ndarray, size: int, owner: int) -> np.ndarray:
        """That accesses of `size` bytes at these addresses touch."""
        offsets = addresses.astype(np.int64).ravel() - self.firsts[owner]
        offsets = offsets[(offsets >= 0) & (offsets + size <= self.bytes)]
        more = np.arange(0, size, self.granule)
        ends = (offsets + size - 1) // self.granule
        places = np.minimum((offsets[:, None] + more) // self.granule, ends[:, None])
        return np.unique(places)


class RaceCheck:
    """Of one context. Collective."""

    def __init__(
        self, context: Context, rows: list[list[int]], tensors: Sequence[torch.Tensor]
    ) -> None:
        board.forget_destroyed()
        group = context.group
        self._board = board.board_of(group)
        self._rank = group.rank()
        sizes = [max(1, tensor.element_size()) for tensor in tensors]
        pairs = zip(rows, sizes, strict=True)
        self._all = [_Notes(row, size, group) for row, size in pairs]
        self._found: dict[tuple[int, int, int, int], str] = {}
        _checks.append(self)
        weakref.finalize(context, _checks.remove, self)
        # Making a context orders what was before it.
        turn = self._board.enter()
        self._all[0].notes.meet()
        self._board.leave(turn)

    def note(self, addresses: np.ndarray, size: int, kind: int) -> None:
        low, high = int(addresses.min()), int(addresses.max())
        for notes in self._all:
            for owner in notes.find(low, high):
                self._note(notes, owner, notes.granules(addresses, size, owner), kind)

    def _note(self, notes: _Notes, owner: int, granules: np.ndarray, kind: int) -> None:
        if granules.size == 0:
            return
        there = notes.notes.of[owner]
        mine = clock.clock().stamp(clock.site())
        self._board.tell_names()
        there[granules, kind, self._rank] = mine
        fence_system()
        others = there[granules][:, _MEETS[kind], :]
        known = clock.clock().known[self._board.global_ranks]
        known[self._rank] = np.iinfo(np.int64).max  # a copy: the index is an array
        limits = known[np.arange(len(known)), clock.lane_of(others)]
        unknown = clock.step_of(others) > limits
        if not unknown.any():
            return
        granule, which, rank = (int(one[0]) for one in np.nonzero(unknown))
        theirs = int(others[granule, which, rank])
        key = (clock.site_of(mine), clock.site_of(theirs), rank, owner)
        if key not in self._found:
            offset = int(granules[granule]) * notes.granule
            self._found[key] = self._describe(key, kind, _MEETS[kind][which], offset)

    def _describe(self, key: tuple[int, int, int, int], kind: int, other: int, offset: int) -> str:
        mine, theirs, rank, owner = key
        return (
            f"rank {self._rank} {_VERBS[kind]} byte {offset} of rank {owner}'s memory at "
            f"{self._board.name(self._rank, mine)}, rank {rank} {_VERBS[other]} it at "
            f"{self._board.name(rank, theirs)}"
        )

    def release(self, address: int) -> None:
        """Leaves this rank's clock beside the word."""
        for notes, owner, word in self._words(address):
            notes.clocks.of[owner][word, self._rank] = clock.clock().known

    def acquire(self, address: int) -> None:
        """Takes in the clocks that stand beside the word."""
        for notes, owner, word in self._words(address):
            clock.clock().take_in(notes.clocks.of[owner][word].max(axis=0))

    def _words(self, address: int) -> list[tuple[_Notes, int, int]]:
        return [
            (notes, owner, (address - int(notes.firsts[owner])) // notes.granule % notes.words)
            for notes in self._all
            for owner in notes.find(address, address)
        ]

    def report(self) -> None:
        """Raises RaceError for what was found since the last time."""
        if self._found:
            found, self._found = list(self._found.values()), {}
            raise RaceError(
                f"SYMM_RACE_CHECK: no signal, barrier or collective orders {len(found)} pair(s) of "
                "accesses:\n" + "\n".join(found[:20])
            )


def checks() -> list[RaceCheck]:
    """Of the contexts that live. Local."""
    return _checks


def report() -> None:
    """Raises RaceError for what was found since the last time, by any of them. Local."""
    for check in _checks:
        check.report()
