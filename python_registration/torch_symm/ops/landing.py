"""Landing memory: symmetric memory on GPUs that the pieces of a call come into, by copy engines.

NOTE [Pieces by copy engines]
A kernel that moves a piece takes multiprocessors from the product that runs beside it; a copy
engine takes none. It writes into memory that is symmetric and at one offset on all ranks, which a
caller's tensors are not, so each group has such memory, made by the first call in pieces and kept
as long as the group. Ranks cut alike, so they make the same. A larger call makes more and keeps
what was there, as captured graphs may go on to use it; sizes are powers of two.

A peer writes into it when this rank has begun the same call on its stream. What an earlier call on
that stream has still to read is therefore read; one on another stream is waited for. Replays of
graphs are ordered by the program, as with any call of the group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torch_symm._registration import load

_ALIGNMENT = 256


@dataclasses.dataclass
class _Kept:
    """What a group has on this rank's GPU; `memories` from the smallest to the largest."""

    memories: list[Tensor] = dataclasses.field(default_factory=list)
    stream: torch.cuda.Stream | None = None  # of the last call
    ended: torch.cuda.Event | None = None


_of_group: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()


class Landing:
    """Hands out parts of a memory, one behind the other, in the same places on every rank."""

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        nbytes = _bytes(shape, dtype)
        part = self._memory[self._used : self._used + nbytes]
        self._used += aligned(nbytes)
        return part.view(dtype).view(shape)


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def aligned(nbytes: int) -> int:
    """What `Landing.take` uses of the memory."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@contextlib.contextmanager
def landing(group: Any, device: torch.device, nbytes: int, caller: str) -> Iterator[Landing]:
    """`nbytes` of the group's landing memory until the end of the block, for work on the current
    stream.

    Collective where there is not enough yet, and then it blocks.

    Raises:
        NotImplementedError: it would have to be made while a graph is captured.
    """
    kept = _of_group.setdefault(group, _Kept())
    stream, capturing = torch.cuda.current_stream(device), torch.cuda.is_current_stream_capturing()
    if not kept.memories or kept.memories[-1].numel() < nbytes:
        if capturing:
            raise NotImplementedError(
                f"{caller}: pieces: they need {nbytes} bytes of symmetric memory that the group "
                "has not made yet; call once with these sizes before capture"
            )
        memory = load().allocate_bytes(1 << (nbytes - 1).bit_length(), device)
        load().share(memory, group.group_name, False)
        kept.memories.append(memory)
    if not capturing and kept.ended is not None and kept.stream != stream:
        stream.wait_event(kept.ended)
    yield Landing(kept.memories[-1])
    if not capturing:
        kept.stream, kept.ended = stream, stream.record_event()
