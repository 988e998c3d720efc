"""The ways in which a scatter by copy engines ends, without a GPU: ranks are threads, and an
exchange of theirs has the memory of all and says when a piece has come."""

import contextlib
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import model
from model import name

WIDTH = 5
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LIMIT_S = 20


class Ranks:
    """What all ranks see: their landing memories, and which pieces have come."""

    def __init__(self, size: int, nbytes: int) -> None:
        self.size = size
        self.memories = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(size)]
        self._came: dict[tuple[int, int, int], threading.Event] = {}
        self._lock = threading.Lock()

    def came(self, sender: int, receiver: int, number: int) -> threading.Event:
        with self._lock:
            return self._came.setdefault((sender, receiver, number), threading.Event())

    def left(self) -> list[tuple[int, int, int]]:
        """Pieces that nobody has taken."""
        return [key for key, event in self._came.items() if event.is_set()]


class Group:
    """Of one rank, for one call; with what it has made for peers and for itself, in this order."""

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.ranks, self._rank = ranks, rank
        self.for_peers: list[weakref.ref] = []
        self.own: list[weakref.ref] = []

    def size(self) -> int:
        return self.ranks.size

    def rank(self) -> int:
        return self._rank

    def product(self, peer: int, rows: torch.Tensor) -> torch.Tensor:
        """A new one, of these values."""
        made = rows.clone()
        (self.own if peer == self._rank else self.for_peers).append(weakref.ref(made))
        return made


class Exchange:
    """What beside.py asks of landing.Exchange. What other streams would read must be there, and
    unchanged, at `join`."""

    def __init__(self, group: Group) -> None:
        from torch_symm.ops.landing import Places

        self._group, self._ranks, self.rank = group, group.ranks, group.rank()
        self.peers = [(self.rank + step) % group.size() for step in range(1, group.size())]
        self.places = Places(self._ranks.memories)
        self._forked: set[int] = set()
        self._put: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.aside_count = 0

    def fork(self, peer: int) -> None:
        self._forked.add(peer)

    def put(self, peer: int, number: int, pieces) -> None:
        assert peer in self._forked
        self._forked.remove(peer)
        for place, piece in pieces:
            place.copy_(piece)
            self._put.append((piece, piece.clone()))
        event = self._ranks.came(self.rank, peer, number)
        assert not event.is_set()
        event.set()

    def take(self, peer: int, number: int) -> None:
        event = self._ranks.came(peer, self.rank, number)
        assert event.wait(LIMIT_S)
        event.clear()

    @contextlib.contextmanager
    def aside(self, priority: int):
        assert priority in (0, -1)
        self.aside_count += 1
        yield

    def join(self) -> None:
        for piece, before in self._put:
            assert torch.equal(piece, before)
        read = [*self._group.for_peers, *self._group.own[: self.aside_count]]
        assert all(product() is not None for product in read)


@pytest.fixture
def exchanges(monkeypatch):
    """Those that were made, of every rank."""
    from torch_symm.ops import beside

    made, alike = [], set()

    @contextlib.contextmanager
    def exchange(group, device, nbytes, caller, number):
        alike.add((nbytes, caller, number))
        assert len(alike) == 1
        assert nbytes <= group.ranks.memories[0].numel()
        pieces = Exchange(group)
        made.append(pieces)
        yield pieces
        pieces.join()

    monkeypatch.setattr(beside, "exchange", exchange)
    return made


def problems_of(size: int, rank_of) -> list[str]:
    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(rank_of, rank) for rank in range(size)]
        return [problem for rank in ranks for problem in rank.result(LIMIT_S)]


def contributions(size: int, rows: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Of each rank to all rows of all shares. They round in every sum."""
    generator = torch.Generator().manual_seed(size * rows)
    shape = (size, rows, WIDTH)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(size)]


def cases() -> list:
    from torch_symm.ops import beside

    return [
        *(pytest.param(tail, id=way) for way, tail in beside.TAILS.items()),
        pytest.param(beside.Tail(own=(3, 1), aside=0), id="beside:3:1"),
        pytest.param(beside.Tail(own=(1, 2, 1), onward=True), id="onward:1:2:1"),
    ]


@pytest.mark.parametrize("tail", cases())
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(
    ("size", "rows", "count"),
    [(2, 1, 2), (2, 70, 2), (2, 70, 3), (3, 33, 3), (5, 9, 5), (8, 64, 20)],
)
def test_sums_are_those_of_the_ranks(monkeypatch, exchanges, tail, dtype, size, rows, count):
    from torch_symm.ops import beside, pieces

    monkeypatch.setattr(beside, "TAIL", tail)
    every = contributions(size, rows, dtype)
    totals = model.reduced(every, "SUM")
    bounds = pieces.travelling(rows, count)
    own = pieces.own_ranges(bounds)
    assert [row for part in own for row in range(rows)[part]] == list(range(rows))
    assert all(len(range(rows)[part]) for part in own)
    ranks = Ranks(size, 4 * size * rows * WIDTH * 8 + 1024)

    def scatter(rank: int) -> list[str]:
        asked, group = [], Group(ranks, rank)

        def share(peer: int, part: slice) -> torch.Tensor:
            asked.append((peer == rank, part))
            return group.product(peer, every[rank][peer, part])

        output = torch.full((rows, WIDTH), -1, dtype=dtype)
        beside.multiply_and_scatter(group, output, share, bounds, own, "scatter")
        assert [part for of_mine, part in asked if not of_mine] == bounds * (size - 1)
        assert [part for of_mine, part in asked[-len(own) :] if of_mine] == own
        return model.mismatch(f"rank {rank}", output, totals[rank])

    assert problems_of(size, scatter) == []
    assert ranks.left() == []
    asides = 0 if tail.aside is None else len(own) - 1
    assert [made.aside_count for made in exchanges] == [asides] * size


@pytest.mark.parametrize("tail", cases())
@pytest.mark.parametrize(("size", "rows", "count"), [(2, 70, 3), (3, 33, 4), (4, 40, 16)])
def test_every_rank_gets_the_sums(monkeypatch, exchanges, tail, size, rows, count):
    from torch_symm.ops import beside, pieces

    every = contributions(size, rows, torch.bfloat16)
    totals = model.reduced(every, "SUM")
    bounds = pieces.travelling(rows, count)
    monkeypatch.setattr(beside, "TAIL", tail)
    own = pieces.own_ranges(bounds)
    ranks, gathered = Ranks(size, 1 << 16), [None] * size
    met = threading.Barrier(size, timeout=LIMIT_S)

    def all_gather(output, mine, group):
        gathered[group.rank()] = mine
        met.wait()
        for part, one in zip(output.chunk(size), gathered, strict=True):
            if one.data_ptr() != part.data_ptr():
                part.copy_(one)
        met.wait()

    monkeypatch.setattr(beside.ccl, "all_gather", all_gather)

    def reduce(rank: int) -> list[str]:
        output = torch.full((size * rows, WIDTH), -1, dtype=torch.bfloat16)
        mine = every[rank].flatten(0, 1)
        group = Group(ranks, rank)

        def multiply(part: slice) -> torch.Tensor:
            return group.product(part.start // rows, mine[part])

        beside.multiply_and_reduce(group, output, multiply, bounds, own)
        return model.mismatch(f"rank {rank}", output, totals.flatten(0, 1))

    assert problems_of(size, reduce) == []
    assert ranks.left() == []
    fits = len(bounds) + len(own) <= 16
    assert (gathered[0] is None) == (tail.onward and fits)
