"""What the measurements of one rank share: the groups, and agreement between the ranks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from torch_symm.tools.bench.config import KINDS, MPI
from torch_symm.tools.bench.contender import Phase, c10d_name
from torch_symm.tools.bench.memory import MEMORIES, PLAIN, Memory, OwnMemory, PeerMemory
from torch_symm.tools.bench.mpi import MpiGroup
from torch_symm.tools.bench.pattern import DTYPES
from torch_symm.tools.bench.timing import Group
from torch_symm.tools.bench.torch_symm_mem import TorchSymmGroup
from torch_symm.tools.ranks.graph import CaptureError, first_line
from torch_symm.tools.ranks.session import SET_UP_S, RankSession


class BackendExcluded(Exception):
    """A backend failed in a way after which this process is not to be trusted.

    Raised on every rank at the same place. ``index`` is its place in the backends.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason


@dataclass
class Session(RankSession):
    """The groups of one set of ranks. Each spans all ranks.

    ``groups`` has the group of each usable backend by its place in the configuration's backends,
    ``fake`` is one of PyTorch's fake backend.
    ``excluded`` are the backends that failed in the case that is measured, with the reason.
    ``memory`` is where the buffers of operations are.
    """

    groups: dict[int, Group] = field(default_factory=dict)
    fake: dist.ProcessGroup | None = None
    excluded: dict[int, str] = field(default_factory=dict)
    memory: Memory = PLAIN

    def make_groups(self, phase: Phase, without: dict[int, str]) -> None:
        """Make the groups of the phase's backends that are not in ``without``. Collective."""
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers it
        self.fake = dist.new_group(backend="fake")
        timeout = timedelta(seconds=self.config.timeout_s)
        for index in phase.members:
            if index not in without:
                backend = self.config.backends[index]
                # A list, so that the place is known as the group's making and not as a case's part.
                self.messenger.begin(f"making the group of {backend}", SET_UP_S, [index])
                if backend == MPI:
                    self.groups[index] = MpiGroup(self.config.ranks)
                    continue
                group = dist.new_group(backend=c10d_name(backend), timeout=timeout)
                if phase.memory is not None:
                    self.memory = MEMORIES[phase.memory](group, self.device)
                peers = isinstance(self.memory, PeerMemory)
                self.groups[index] = TorchSymmGroup(group, self.memory) if peers else group

    def open_memory(self, collective: str) -> None:
        """Make the memory for all sizes of ``collective``, where it is a backend's own. Collective.

        Raises BackendExcluded, see accepts.
        """
        if not isinstance(self.memory, OwnMemory):
            return
        kind, dtype = KINDS[collective], DTYPES[self.config.dtype]
        most = max(self.config.counts(collective)) * kind.shares(self.config.ranks)
        self.begin_case()
        for index in set(self.groups) - set(self.excluded):
            self.begin(f"{collective}, its memory", index)
            self.accepts(index, lambda: self.memory.open(most, kind.buffers, dtype))

    def members(self, collective: str, size: int) -> Iterator[tuple[int, Group]]:
        """Yield the place and the group of each backend that measures ``size`` bytes."""
        for index, group in self.groups.items():
            if index not in self.excluded:
                yield index, group

    def leave(self, sound: bool) -> None:
        """End the work; leave the groups alone where they may be harmed."""
        if sound and isinstance(self.memory, OwnMemory):
            self.memory.close()
        super().leave(sound)
        for group in self.groups.values():
            if sound and isinstance(group, MpiGroup):
                group.finish()

    def begin(self, what: str, index: int) -> None:
        """Say what comes next and on which backend, so that a hang or crash is laid at its door."""
        self.say(f"{self.config.backends[index]} {what}", index)

    def largest(self, values: list[float]) -> list[float]:
        """Return the largest over the ranks of every value. Collective."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return tensor.tolist()

    def accepts(self, index: int, action: Callable[[], None]) -> bool:
        """Do ``action`` on backend ``index``; where a rank fails, exclude the backend. Collective.

        Raises BackendExcluded where the processes may have been harmed: not every rank failed, a
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
        seen = self.gather(failure)
        failures = [(rank, *one) for rank, one in enumerate(seen) if one is not None]
        if not failures:
            return True
        everywhere = len(failures) == len(seen)
        rank, reason, harmful = failures[0]
        reason = reason if everywhere else f"on rank {rank} of {len(seen)} only: {reason}"
        self.excluded[index] = reason
        if harmful or not everywhere:
            raise BackendExcluded(index, reason)
        return False
