"""Landing memory: symmetric memory on GPUs into which copy engines put the pieces of a call.

NOTE [Pieces by copy engines]
A kernel that moves a piece takes multiprocessors from the product that runs beside it, and what
waits beside a product waits until one is free. A copy engine needs none. So the ranks meet, on the
stream and before anything is computed; from then on each puts pieces into the memory of its peers,
on a stream for each of them, straight from where they are, and behind each piece the signal that it
is there, which is four more bytes by the same copy engine. The receiver takes the signal on its own
stream, between two products, when multiprocessors are free.

What a call reads of its landing memory it has read when its rank comes to the next meeting on that
stream, so that the next call may write there; a call on another stream waits for the one before.
Replays of graphs are ordered by the program, as with any call of the group.

Each group has such memory, made by the first call in pieces and kept as long as the group. Ranks
cut alike, so they make the same. A larger call makes more and keeps what was there, as captured
graphs go on to use it; sizes are powers of two.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_symm._registration import load
from torch_symm.ccl import workspace

_ALIGNMENT = 256
# Pieces of a rank that a call may have under way. Each has a channel of signals: of 64 ranks, the
# most that a group of symm has on GPUs, they are 4 KiB of the 9 that PyTorch's pads have.
MOST_PIECES = 16


def aligned(nbytes: int) -> int:
    """What `Places.take` uses of the memory."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@dataclasses.dataclass
class _Memory:
    """Landing memory of one size: the ranks' bytes and signals, by rank."""

    handle: Any
    ranks: list[Tensor]
    signals: list[Tensor]

    @classmethod
    def make(cls, group: Any, device: torch.device, nbytes: int) -> _Memory:
        """Collective, blocks."""
        own = load().allocate_bytes(nbytes, device)
        handle = load().own_handle(own, group.group_name)
        ranks = range(group.size())
        return cls(
            handle,
            [
                own if r == group.rank() else handle.get_buffer(r, [nbytes], own.dtype)
                for r in ranks
            ],
            [handle.get_signal_pad(r, [MOST_PIECES, group.size()], torch.int32) for r in ranks],
        )


@dataclasses.dataclass
class _Kept:
    """What a group has on this rank's GPU: memories from the smallest to the largest, a stream for
    each peer, what a signal is copied from, the last call."""

    streams: list[torch.cuda.Stream]
    signal: Tensor
    memories: list[_Memory] = dataclasses.field(default_factory=list)
    stream: torch.cuda.Stream | None = None
    ended: torch.cuda.Event | None = None

    @classmethod
    def of(cls, group: Any, device: torch.device) -> _Kept:
        if group not in _of_group:
            streams = [torch.cuda.Stream(device) for _ in range(group.size() - 1)]
            _of_group[group] = cls(streams, torch.ones(1, dtype=torch.int32, device=device))
        return _of_group[group]


_of_group: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()


class Places:
    """Hands out parts of the ranks' memories, one behind the other, in the same places in each."""

    def __init__(self, ranks: Sequence[Tensor]) -> None:
        self._ranks = ranks
        self._used = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
        """The place in each rank's memory, by rank."""
        nbytes = math.prod(shape) * dtype.itemsize
        place = slice(self._used, self._used + nbytes)
        self._used += aligned(nbytes)
        return [memory[place].view(dtype).view(shape) for memory in self._ranks]


class Exchange:
    """One call's pieces, on the current stream of the tensors' device, which is the current one."""

    def __init__(self, group: Any, kept: _Kept) -> None:
        self.rank = group.rank()
        # The others, beginning with the next one.
        self.peers = [(self.rank + step) % group.size() for step in range(1, group.size())]
        self._memory = kept.memories[-1]
        self._signal = kept.signal
        self._streams = dict(zip(self.peers, kept.streams, strict=True))
        self.places = Places(self._memory.ranks)

    def fork(self, peer: int) -> None:
        """What comes to `peer` next may read what the current stream has made so far."""
        self._streams[peer].wait_stream(torch.cuda.current_stream())

    def put(self, peer: int, number: int, pieces: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Piece `number` of this rank to `peer`: (place there, what to copy) of each tensor of it.
        To be read, unchanged, until `join`."""
        with torch.cuda.stream(self._streams[peer]):
            for place, piece in pieces:
                place.copy_(piece)
            self._memory.signals[peer][number, self.rank : self.rank + 1].copy_(self._signal)

    def take(self, peer: int, number: int) -> None:
        """The current stream waits for piece `number` of `peer`."""
        self._memory.handle.wait_signal(peer, number)

    def join(self) -> None:
        """The current stream waits until all that this rank has put is there."""
        for stream in self._streams.values():
            torch.cuda.current_stream().wait_stream(stream)


@contextlib.contextmanager
def exchange(
    group: Any, device: torch.device, nbytes: int, caller: str, alike: int
) -> Iterator[Exchange]:
    """An exchange in `nbytes` of the group's landing memory, for work on the current stream of
    `device` until the end of the block, in which that device is the current one; the ranks have
    met, and `alike` must be the same on all.

    Collective where there is not enough memory yet, and then it blocks.

    Raises:
        NotImplementedError: the memory would have to be made while a graph is captured.
    """
    backend = workspace.backend_of(group, device, caller, "group")
    with torch.cuda.device(device):
        kept, stream = _Kept.of(group, device), torch.cuda.current_stream()
        capturing = torch.cuda.is_current_stream_capturing()
        if not kept.memories or kept.memories[-1].ranks[0].numel() < nbytes:
            if capturing:
                raise NotImplementedError(
                    f"{caller}: pieces: they need {nbytes} bytes of symmetric memory that the "
                    "group has not made yet; call once with these sizes before capture"
                )
            kept.memories.append(_Memory.make(group, device, 1 << (nbytes - 1).bit_length()))
        if not capturing and kept.ended is not None and kept.stream != stream:
            stream.wait_event(kept.ended)
        load().device_barrier(backend, device, alike)
        yielded = Exchange(group, kept)
        for peer in yielded.peers:
            yielded.fork(peer)
        yield yielded
        yielded.join()
        if not capturing:
            kept.stream, kept.ended = stream, stream.record_event()
