"""Symmetric memory on GPUs from which copy engines fetch the pieces of a call.

NOTE [Pieces by copy engines]
A kernel that moves a piece takes multiprocessors from the product that runs beside it, and a
barrier beside it waits until one is free; a copy engine needs none. So a rank puts what its peers
need into memory that they can read, the ranks meet, on the stream and before the product is
launched, and each fetches pieces on a stream for each peer. When a fetch has ended is known here,
without a signal. The ranks meet once more at the end: then the memory may be written again.

Each group has such memory, made by the first call in pieces and kept as long as the group. Ranks
cut alike, so they make the same. A larger call makes more and keeps what was there, as captured
graphs go on to use it; sizes are powers of two. Calls on two streams of a rank follow each other;
replays of graphs are ordered by the program, as with any call of the group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torch_symm import ccl
from torch_symm._registration import load

_ALIGNMENT = 256


def aligned(nbytes: int) -> int:
    """What Boxes.take uses of the memory."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@dataclasses.dataclass
class _Memory:
    """What a group has on this rank's GPU, from the smallest to the largest, as bytes of each rank;
    a stream for each peer; the last call."""

    sizes: list[list[Tensor]] = dataclasses.field(default_factory=list)
    fetching: list[torch.cuda.Stream] = dataclasses.field(default_factory=list)
    stream: torch.cuda.Stream | None = None
    ended: torch.cuda.Event | None = None


_of_group: weakref.WeakKeyDictionary[Any, _Memory] = weakref.WeakKeyDictionary()


class Boxes:
    """The memory of one call: places one behind the other, the same on every rank."""

    def __init__(self, group: Any, memory: list[Tensor], fetching: list[torch.cuda.Stream]) -> None:
        self._group = group
        self._memory = memory
        self._fetching = fetching
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """A place: of each rank, by rank."""
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        place = slice(self._used, self._used + nbytes)
        self._used += aligned(nbytes)
        return [of_rank[place].view(dtype).view(shape) for of_rank in self._memory]

    def meet(self) -> None:
        """What this rank has put into its places can be fetched, and what the others have."""
        ccl.device_barrier(self._group, self._memory[0].device)
        for stream in self._fetching:
            stream.wait_stream(torch.cuda.current_stream())

    def fetch(self, step: int, to: Tensor, source: Tensor) -> torch.cuda.Event:
        """Copies from a place of the peer `step` ranks on, behind what was fetched from it before.
        `to` is free until the event."""
        stream = self._fetching[step - 1]
        with torch.cuda.stream(stream):
            to.copy_(source)
            return stream.record_event()


@contextlib.contextmanager
def boxes(group: Any, device: torch.device, nbytes: int, caller: str) -> Iterator[Boxes]:
    """`nbytes` of the group's memory until the end of the block, for work on the current stream.
    Collective; blocks where there is not enough yet.

    Raises:
        NotImplementedError: it would have to be made while a graph is captured.
    """
    made = _of_group.setdefault(group, _Memory())
    stream, capturing = torch.cuda.current_stream(device), torch.cuda.is_current_stream_capturing()
    if not made.sizes or made.sizes[-1][0].numel() < nbytes:
        if capturing:
            raise NotImplementedError(
                f"{caller}: pieces: they need {nbytes} bytes of symmetric memory that the group "
                "has not made yet; call once with these sizes before capture"
            )
        made.sizes.append(_make(group, device, 1 << (nbytes - 1).bit_length(), caller))
        made.fetching = made.fetching or [
            torch.cuda.Stream(device) for _ in range(group.size() - 1)
        ]
    if not capturing and made.ended is not None and made.stream != stream:
        stream.wait_event(made.ended)
    of_call = Boxes(group, made.sizes[-1], made.fetching)
    yield of_call
    ccl.device_barrier(group, device)
    if not capturing:
        made.stream, made.ended = stream, stream.record_event()


def _make(group: Any, device: torch.device, nbytes: int, caller: str) -> list[Tensor]:
    memory = load().allocate_bytes(nbytes, device)
    handle = load().rendezvous(memory, group.group_name, caller)
    ranks = range(group.size())
    return [
        memory if rank == group.rank() else handle.get_buffer(rank, [nbytes], torch.uint8)
        for rank in ranks
    ]
