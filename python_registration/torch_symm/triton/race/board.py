"""What the ranks of a group tell each other apart from any tensor: their clocks where a collective
orders them, and the names of their lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from torch_symm._registration import load
from torch_symm.memory import allocate
from torch_symm.triton.race import clock

_SITES, _NAME_BYTES = 1024, 120
_boards: dict[str, Board] = {}


class Shared:
    """Zeros of each rank of `group`, as arrays by group rank. Collective."""

    def __init__(self, group: dist.ProcessGroup, shape: tuple[int, ...], dtype: torch.dtype):
        self._own = allocate(shape, dtype, torch.device("cpu"), "SYMM_RACE_CHECK").zero_()
        self._handle = load().rendezvous(self._own, group.group_name, "SYMM_RACE_CHECK")
        ranks = range(group.size())
        self.of = [self._handle.get_buffer(rank, shape, dtype).numpy() for rank in ranks]
        self.meet()  # everybody's are zero

    def meet(self) -> None:
        """Collective."""
        self._handle.barrier()


class Board:
    """Of one group. Collective."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank = group.rank()
        self.global_ranks = np.array(dist.get_process_group_ranks(group))
        clocks = (2, dist.get_world_size(), clock.LANES)
        self._clocks = Shared(group, clocks, torch.int64)
        self._names = Shared(group, (_SITES, _NAME_BYTES), torch.uint8)
        self._named = 0
        self._turn = 0

    def enter(self) -> int:
        """Before a collective: tells the clock. By turns in two places: a rank that is one
        collective ahead does not overwrite what a slow one has still to read."""
        turn = self._turn
        self._turn = 1 - turn
        clock.clock().tell(self._clocks.of[self.rank][turn])
        return turn

    def leave(self, turn: int) -> None:
        """Behind it: takes in everybody's clocks."""
        for theirs in self._clocks.of:
            clock.clock().take_in(theirs[turn])

    def tell_names(self) -> None:
        """Writes the names of the lines that were met since."""
        if self._named == clock.sites():
            return
        names = clock.site_names()
        for number in range(self._named, len(names)):
            text = names[number].encode()[:_NAME_BYTES]
            self._names.of[self.rank][number, : len(text)] = np.frombuffer(text, dtype=np.uint8)
        self._named = len(names)

    def name(self, rank: int, site: int) -> str:
        return bytes(self._names.of[rank][site]).rstrip(b"\0").decode(errors="replace")


def board_of(group: dist.ProcessGroup) -> Board:
    """Made by the first context of the group: collective then."""
    key = group.group_name
    if key not in _boards:
        _boards[key] = Board(group)
    return _boards[key]


def known(group: Any) -> Board | None:
    """The board of a group that has had a context. Local."""
    try:
        name = (dist.group.WORLD if group is None else group).group_name
    except (AttributeError, ValueError):
        return None
    return _boards.get(name)


def forget_destroyed() -> None:
    """Drops the boards of groups that are gone, whose names others may get. Local."""
    from torch.distributed import distributed_c10d as c10d

    alive = {group.group_name for group in c10d._world.pg_map}
    for name in [name for name in _boards if name not in alive]:
        del _boards[name]
