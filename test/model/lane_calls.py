"""What one lane does in each collective that goes by lanes (NOTE [Routes] in wire_params.hpp)."""

from __future__ import annotations

from dataclasses import dataclass, field

Pairs = dict[tuple[int, int], int]


@dataclass(frozen=True)
class LaneCall:
    """What one lane does in a call; a piece of no chunks gives the lane nothing to do.

    `first`: the chunks of the piece from a to b in hop 1. `passed`: those of the pieces that ranks
    pass on, having combined them with their own or as they are. `second`: from whom to whom.
    `same`: a rank sends one piece to all.
    """

    first: Pairs
    passed: dict[int, int] = field(default_factory=dict)
    second: list[tuple[int, int]] = field(default_factory=list)
    combines: bool = False
    same: bool = False

    def placed(self) -> Pairs:
        """The pieces of the last hop that are placed, by sender and receiver."""
        if not self.passed:
            return self.first
        return {pair: self.passed[pair[0]] for pair in self.second}


def all_pairs(ranks: range | list[int]) -> list[tuple[int, int]]:
    """Everybody to everybody else."""
    return [(a, b) for a in ranks for b in ranks if a != b]


def all_reduce(chunks: list[int], owners: list[int] | None = None) -> LaneCall:
    """Slice b has chunks[b]. `owners`: whose slices are followed; slices share no slot."""
    pairs = all_pairs(range(len(chunks)))
    owners = list(range(len(chunks))) if owners is None else owners
    first = {(a, b): chunks[b] for a, b in pairs if b in owners}
    second = [(a, b) for a, b in pairs if a in owners]
    return LaneCall(first, {r: chunks[r] for r in owners}, second, combines=True)


def reduce_scatter(chunks: list[int]) -> LaneCall:
    """As all_reduce, of which nothing is sent on."""
    call = all_reduce(chunks)
    return LaneCall(call.first, call.passed, combines=True)


def all_reduce_of_one_hop(chunks: list[int]) -> LaneCall:
    """Each rank sends its input to all and combines them; no launch of lanes has it."""
    sent = all_gather(chunks).first
    return LaneCall(sent, dict(enumerate(chunks)), combines=True, same=True)


def reduce(chunks: list[int], root: int) -> LaneCall:
    """As all_reduce, and to the root alone."""
    call = all_reduce(chunks)
    second = [(a, b) for a, b in call.second if b == root]
    return LaneCall(call.first, call.passed, second, combines=True)


def reduce_to_root(chunks: list[int], root: int) -> LaneCall:
    """The others combine and send it what becomes of it; the root has no slice."""
    others = [r for r in range(len(chunks)) if r != root]
    call = all_reduce(chunks, others)
    second = [(a, b) for a, b in call.second if b == root]
    return LaneCall(call.first, call.passed, second, combines=True)


def reduce_of_pair(chunks: int) -> LaneCall:
    """Rank 1 sends its input to rank 0, which combines both and tells nobody."""
    return LaneCall({(1, 0): chunks}, {0: chunks}, combines=True)


def all_gather(chunks: list[int]) -> LaneCall:
    """The piece of rank a has chunks[a]."""
    return LaneCall({(a, b): chunks[a] for a, b in all_pairs(range(len(chunks)))}, same=True)


def gather(chunks: list[int], root: int) -> LaneCall:
    """The same to the root alone."""
    return LaneCall({(a, root): n for a, n in enumerate(chunks) if a != root}, same=True)


def scatter(chunks: list[int], root: int) -> LaneCall:
    """The root sends chunks[b] to rank b."""
    return LaneCall({(root, b): n for b, n in enumerate(chunks) if b != root})


def broadcast(chunks: list[int], root: int) -> LaneCall:
    """In two hops: the root sends slice b to rank b, which passes it on to the others."""
    others = [r for r in range(len(chunks)) if r != root]
    passed = {r: chunks[r] for r in others}
    return LaneCall(scatter(chunks, root).first, passed, all_pairs(others))
