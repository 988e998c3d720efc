"""The results of one size, in the form that is shown, written as JSON and plotted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

VARIANTS = ("out_of_place", "in_place")


@dataclass(frozen=True)
class Timing:
    """One variant on one backend.

    ``time_us`` is the time of one call: a block's time is the largest over the ranks of the mean
    over its calls, and the median over the blocks is taken. ``launch_us`` is what a call kept the
    launching thread busy, taken the same way; None on a device that runs the calls on that thread.
    ``wrong`` counts wrong elements over all ranks, None where nothing was checked.
    """

    time_us: float
    launch_us: float | None
    algbw: float
    busbw: float
    wrong: int | None
    iters: int
    blocks: int


@dataclass(frozen=True)
class Floor:
    """What a call costs without its backend, taken as the times are.

    ``c10d_us`` is the call on PyTorch's fake backend, ``launch_us`` a bare launch on a GPU,
    None on the CPU.
    """

    c10d_us: float
    launch_us: float | None

    @property
    def us(self) -> float:
        """Return the sum."""
        return self.c10d_us + (self.launch_us or 0.0)


@dataclass(frozen=True)
class Matmul:
    """What runs beside an overlapped call: ``count`` products of square matrices, which take
    ``us`` alone."""

    side: int
    count: int
    us: float


@dataclass(frozen=True)
class BackendResult:
    """Both variants on one backend; None where the operation has no such variant.

    ``error`` says why a backend refused the operation; its variants are None then, and where the
    operation is not ``there``: the backend has no such.
    """

    backend: str
    out_of_place: Timing | None
    in_place: Timing | None
    error: str | None = None
    there: bool = True

    def variant(self, name: str) -> Timing | None:
        """Return the timing of ``out_of_place`` or ``in_place``."""
        return getattr(self, name)


@dataclass(frozen=True)
class Row:
    """One collective at one size, on the backend under test and on those it is against.

    ``mode`` is eager, or graph where the calls were replayed from a captured graph, or overlapped
    where times are those of a call beside ``matmul``. ``floors`` has the floor of each variant that
    was called eagerly, by its name.
    """

    collective: str
    mode: str
    size: int
    count: int
    dtype: str
    redop: str
    root: int
    results: tuple[BackendResult, ...]
    floors: dict[str, Floor]
    matmul: Matmul | None = None

    @property
    def wrong(self) -> int:
        """Return the wrong elements of the backend under test."""
        timings = [self.results[0].variant(name) for name in VARIANTS]
        return sum(timing.wrong or 0 for timing in timings if timing is not None)

    def with_results_of(self, other: Row, members: tuple[int, ...]) -> Row:
        """Return this row with ``other``'s results at the places in ``members``."""
        results = tuple(
            theirs if index in members else mine
            for index, (mine, theirs) in enumerate(zip(self.results, other.results, strict=True))
        )
        return replace(self, results=results)

    def ratio(self, variant: str, index: int) -> float | None:
        """Return time of backend ``index`` over time of the one under test.

        Above 1 the backend under test is the faster one. None without both times.
        """
        first, other = (self.results[i].variant(variant) for i in (0, index))
        return None if first is None or other is None else other.time_us / first.time_us

    def to_json(self) -> dict:
        """Return the row as JSON-ready values, with the ratios of each variant by backend."""
        others = range(1, len(self.results))
        ratios = {
            name: {self.results[i].backend: self.ratio(name, i) for i in others}
            for name in VARIANTS
        }
        return asdict(self) | {"ratio": ratios}
