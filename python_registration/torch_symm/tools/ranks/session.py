"""What the work of one rank shares: its device, the control group."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_symm.tools.ranks.device import open_device
from torch_symm.tools.ranks.process import Messenger

if TYPE_CHECKING:
    from typing import Self

SET_UP_S = 120.0


@dataclass
class RankSession:
    """One rank of a set that works on ``config``, which has ranks, device, timeout_s and case_s.

    ``control`` (Gloo) spans all ranks and is never measured. ``serials`` gives names in ``store``
    that no earlier check has used; every rank draws from it equally often.
    """

    config: Any
    rank: int
    device: torch.device
    control: dist.ProcessGroup
    store: dist.Store
    messenger: Messenger
    serials: Iterator[int] = field(default_factory=itertools.count)
    deadline: float = float("inf")

    @classmethod
    def join(
        cls, config: Any, rank: int, store: dist.Store, messenger: Messenger, **more: Any
    ) -> Self:
        """Open the rank's device and make ``control``, the default group. Collective.

        ``store`` reaches all ranks; ``more`` are the fields of a subclass.
        """
        torch.set_num_threads(1)
        device = open_device(config.device)
        messenger.begin("connecting the ranks", SET_UP_S)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("groups", store),
            rank=rank,
            world_size=config.ranks,
            # A rank that waits here for one whose backend hangs must not be the one that complains.
            timeout=timedelta(seconds=2 * config.case_s + config.timeout_s),
        )
        checks = dist.PrefixStore("checks", store)
        return cls(config, rank, device, dist.group.WORLD, checks, messenger, **more)

    def begin_case(self) -> None:
        """Give what begins the time of ``config.case_s``."""
        self.deadline = time.monotonic() + self.config.case_s

    def say(self, what: str, tag: Any) -> None:
        """Say what comes next, and that the rest of the case's time is left for it."""
        self.messenger.begin(what, max(self.deadline - time.monotonic(), 0.0), tag)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's ``value`` by rank. Collective."""
        values = [None] * self.config.ranks
        dist.all_gather_object(values, value, group=self.control)
        return values

    def send(self, content: Any) -> None:
        """Hand ``content`` to the job, from rank 0."""
        if self.rank == 0:
            self.messenger.send(content)

    def leave(self, sound: bool) -> None:
        """End the work; leave the groups alone where they may be harmed."""
        self.messenger.finish()
        if sound:
            dist.destroy_process_group()
