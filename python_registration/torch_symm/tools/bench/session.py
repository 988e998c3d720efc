"""What the measurements of one rank share: the groups, and agreement between the ranks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from torch_symm.tools.bench.config import BenchConfig
from torch_symm.tools.ranks.graph import CaptureError, first_line
from torch_symm.tools.ranks.process import Messenger


@dataclass(frozen=True)
class Excluded:
    """A backend is out of the case that is measured. ``index`` is its place in the backends."""

    index: int
    reason: str


class FreshRanksNeeded(Exception):
    """A backend failed in a way after which this process is not to be trusted; see ``excluded``.

    Raised on every rank at the same place.
    """

    def __init__(self, excluded: Excluded) -> None:
        super().__init__(excluded.reason)
        self.excluded = excluded


@dataclass
class Session:
    """The groups of one set of ranks. Each spans all ranks.

    ``groups`` has the group of each usable backend by its place in the configuration's backends;
    ``control`` (Gloo) carries the figures between the ranks and is never timed. ``excluded`` are
    the backends that failed in the case that is measured, with the reason. ``serials`` gives names
    in ``store`` that no earlier check has used; every rank draws from it equally often.
    """

    config: BenchConfig
    rank: int
    device: torch.device
    groups: dict[int, dist.ProcessGroup]
    control: dist.ProcessGroup
    store: dist.Store
    messenger: Messenger
    excluded: dict[int, str] = field(default_factory=dict)
    serials: Iterator[int] = field(default_factory=itertools.count)
    row_deadline: float = float("inf")

    def begin_row(self) -> None:
        """Give the row that begins its time."""
        self.row_deadline = time.monotonic() + self.config.case_s

    def begin(self, what: str, index: int | None) -> None:
        """Say what comes next and on which backend, so that a hang or crash is laid at its door."""
        backend = "" if index is None else f"{self.config.backends[index]} "
        limit_s = max(self.row_deadline - time.monotonic(), 0.0)
        self.messenger.begin(f"{backend}{what}", limit_s, index)

    def largest(self, values: list[float]) -> list[float]:
        """Return the largest over the ranks of every value. Collective."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return tensor.tolist()

    def total(self, value: int) -> int:
        """Return the sum over the ranks. Collective."""
        tensor = torch.tensor([value])
        dist.all_reduce(tensor, group=self.control)
        return int(tensor[0])

    def accepts(self, index: int, action: Callable[[], None]) -> bool:
        """Do ``action`` on backend ``index``; where a rank fails, exclude the backend. Collective.

        Raises FreshRanksNeeded where the processes may have been harmed: not every rank failed, a
        capture did, or a GPU was involved and the arguments were not what was wrong.
        """
        failure: tuple[str, bool] | None = None
        try:
            action()
        except (ValueError, TypeError, NotImplementedError) as error:
            failure = (first_line(error), False)
        except CaptureError as error:
            failure = (f"does not capture: {error}", True)
        except RuntimeError as error:
            failure = (first_line(error), self.device.type != "cpu")
        if failure is not None:
            self.messenger.complain(failure[0])
        seen: list[tuple[str, bool] | None] = [None] * self.config.ranks
        dist.all_gather_object(seen, failure, group=self.control)
        failures = [(rank, *one) for rank, one in enumerate(seen) if one is not None]
        if not failures:
            return True
        everywhere = len(failures) == len(seen)
        rank, reason, harmful = failures[0]
        reason = reason if everywhere else f"on rank {rank} of {len(seen)} only: {reason}"
        self.excluded[index] = reason
        if harmful or not everywhere:
            raise FreshRanksNeeded(Excluded(index, reason))
        return False
