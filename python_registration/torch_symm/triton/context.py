"""What a kernel needs to know of a group and of tensors that its ranks share."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_symm import _groups
from torch_symm._registration import load
from torch_symm.memory import allocate
from torch_symm.triton import layout, registry
from torch_symm.triton.settings import INTERPRETED, RACE_CHECK, TIMELINE
from torch_symm.views import SymmetricTensor

_CALLER = "triton.context"


def context(
    *tensors: torch.Tensor | SymmetricTensor | dist.ProcessGroup,
    group: Any = None,
    timeout: datetime.timedelta | None = None,
    channels: int = 64,
    multicast: bool = False,
) -> Context:
    """The one argument `ctx` of a kernel that uses `torch_symm.triton`. Collective.

    It is made once, before any capture, and passed to any number of kernels, also captured ones;
    those of one group that run at the same time need a context each. Keep it until the last of them
    is done. On return every rank has made its own, and has what the others wrote to the tensors
    before.

    Args:
        tensors: symmetric tensors, of the same sizes in the same order on every rank. Kernels may
            reach all of the allocation in which each of them is. Without any: the group alone, or a
            group in their place.
        group: a ProcessGroup or its name; the default group where it is None, or that of the first
            SymmetricTensor.
        timeout: of each wait; the group's where it is None.
        channels: of `barrier`.
        multicast: kernels call multimem functions (multimem.py), which need a multicast address of
            each tensor. In the interpreter these work without one.

    Raises:
        NotImplementedError: `multicast`, and a tensor has no multicast address; the message says
            why.
        ValueError: a tensor is not symmetric, or this rank is not in the group.
        TypeError: `tensors` has something else.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (dist.ProcessGroup, str)):
        if group is not None:
            raise ValueError(f"{_CALLER}: group: expected one, got {tensors[0]!r} and {group!r}")
        tensors, group = (), tensors[0]
    locals_, group = _plain(tensors, group)
    process_group = _groups.resolve(group, _CALLER)
    if channels < 1:
        raise ValueError(f"{_CALLER}: channels: expected at least 1, got {channels}")
    handles = [_handle(tensor, index, process_group) for index, tensor in enumerate(locals_)]
    rows = [_row(handle) for handle in handles]
    if multicast:
        for index, (tensor, row) in enumerate(zip(locals_, rows, strict=True)):
            row[layout.MULTICAST.value] = _multicast_distance(tensor, index, process_group)
    return Context.make(locals_, handles, rows, process_group, timeout, channels)


def _plain(tensors: Sequence[Any], group: Any) -> tuple[list[torch.Tensor], Any]:
    found = []
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, SymmetricTensor):
            group = tensor.group if group is None else group
            tensor = tensor.local
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{_CALLER}: tensors[{index}]: expected a tensor, a SymmetricTensor or, alone, a "
                f"ProcessGroup, got a {type(tensor).__name__}"
            )
        found.append(tensor)
    devices = {tensor.device for tensor in found}
    if len(devices) > 1:
        raise ValueError(
            f"{_CALLER}: tensors: expected one device, got {', '.join(sorted(map(str, devices)))}"
        )
    if INTERPRETED and any(device.type != "cpu" for device in devices):
        raise ValueError(
            f"{_CALLER}: tensors: expected tensors on the CPU, as TRITON_INTERPRET=1 runs kernels "
            f"there, got {devices.pop()}"
        )
    return found, group


def _handle(tensor: torch.Tensor, index: int, group: dist.ProcessGroup) -> Any:
    handle = None
    if tensor.numel() > 0:
        handle = load().rendezvous(tensor, group.group_name, _CALLER)
    if handle is None:
        raise ValueError(
            f"{_CALLER}: tensors[{index}]: expected a tensor with elements in symmetric memory, "
            f"such as torch_symm.empty() makes, got one of shape {tuple(tensor.shape)} in ordinary "
            f"memory on {tensor.device} of rank {group.rank()}"
        )
    return handle


def _multicast_distance(tensor: torch.Tensor, index: int, group: dist.ProcessGroup) -> int:
    """From this rank's memory. In the interpreter anything but 0: it goes rank by rank."""
    if INTERPRETED:
        return 1
    try:
        address = load().SymmetricTensor(tensor, group.group_name).multicast_pointer()
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{_CALLER}: multicast: expected tensors with a multicast address, and tensors[{index}]"
            f" has none: {error}"
        ) from None
    return address - tensor.data_ptr()


def _on_host(words: int, device: torch.device) -> torch.Tensor:
    """Zeros that the host and kernels on `device` read and write at one address."""
    return torch.zeros(words, dtype=torch.int64, pin_memory=device.type == "cuda")


class Context(torch.Tensor):
    """What `context` returns: the table of `layout`, with what must live as long as it does.

    Attributes:
        group: the ProcessGroup.
        rank, world_size: in it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def make(
        cls,
        tensors: Sequence[torch.Tensor],
        handles: Sequence[Any],
        rows: list[list[int]],
        group: dist.ProcessGroup,
        timeout: datetime.timedelta | None,
        channels: int,
    ) -> Context:
        """Collective; see `context`."""
        device = tensors[0].device if tensors else _device_of(group)
        ranks = group.size()
        arrivals = allocate(
            (channels * ranks,), torch.int64, device, _CALLER
        ).zero_()  # zeros before anybody can know of it
        own = load().rendezvous(arrivals, group.group_name, _CALLER)
        status = _on_host(layout.FIRST_RANK.value + ranks, device)
        watch = load().KernelWatch(group.group_name, status)
        epochs = torch.zeros(channels, dtype=torch.int64, device=device)
        ring = None
        if TIMELINE:
            events = 1 + layout.RING_EVENTS.value * layout.EVENT_WORDS.value
            ring = torch.zeros(events, dtype=torch.int64, device=device)
        limit_ms = watch.timeout_ms(arrivals) if timeout is None else timeout.total_seconds() * 1000
        words = [0] * layout.HEADER_WORDS.value
        words[layout.RANK.value] = group.rank()
        words[layout.WORLD_SIZE.value] = ranks
        words[layout.STATUS.value] = status.data_ptr()
        words[layout.TIMEOUT_NS.value] = int(limit_ms * 1_000_000)
        words[layout.TENSORS.value] = len(handles)
        words[layout.ARRIVALS.value] = arrivals.data_ptr()
        words[layout.EPOCHS.value] = epochs.data_ptr()
        words[layout.RING.value] = 0 if ring is None else ring.data_ptr()
        words[layout.CHANNELS.value] = channels
        rows = [*rows, _row(own)]
        table = torch.tensor(
            words + [word for row in rows for word in row], dtype=torch.int64, device=device
        )
        made = torch.Tensor._make_subclass(cls, table)
        made.group, made.rank, made.world_size = group, group.rank(), ranks
        made._rows, made._status, made._watch, made._ring = rows, status, watch, ring
        made._limit_ms, made._channels = limit_ms, channels
        made._alive = (tensors, handles, arrivals, own, epochs)
        if RACE_CHECK:
            from torch_symm.triton.race import RaceCheck

            made._race = RaceCheck(made, rows, [*tensors, arrivals])
        registry.add(torch.Tensor.data_ptr(made), made)
        own.barrier()
        return made

    def __repr__(self) -> str:
        return (
            f"torch_symm.triton.context(rank {self.rank} of {self.world_size}, "
            f"{len(self._rows) - 1} tensors, group {self.group.group_name!r})"
        )

    def data_ptr(self) -> int:
        """The address for a kernel. Triton asks for it at each launch.

        Raises:
            torch.distributed.DistBackendError: see `check`.
        """
        self.check()
        return torch.Tensor.data_ptr(self)

    def ring(self) -> torch.Tensor:
        """The timeline's (layout.py). Waits for the device where there is one.

        Raises:
            RuntimeError: this process has no timelines.
        """
        if self._ring is None:
            raise RuntimeError(
                "ctx: it has no timeline: set SYMM_TIMELINE=1 before torch_symm.triton is imported"
            )
        return self._ring.cpu()

    def check(self) -> None:
        """Raises what has gone wrong so far, and returns at once. Local.

        Behind a synchronisation with the device that is what the kernels up to there have met. Each
        launch with the context checks too.

        Raises:
            torch.distributed.DistBackendError: a wait of a kernel has ended without its signal (the
                message names the rank waited for), or the context's group has been destroyed or has
                failed. It stays so: make another context.
            ValueError: a kernel has called a multimem function with a context made without
                `multicast`; with SYMM_CHECK=1, a kernel has named a peer that is not there.
        """
        self.check_waits()
        try:
            self._watch.check_usable()
        except dist.DistBackendError as error:
            raise dist.DistBackendError(
                f"ctx: the context's group cannot be used: {error}"
            ) from None

    def check_waits(self) -> None:
        """`check`, without the group's state."""
        record = int(self._status[layout.GAVE_UP.value])
        if record:
            raise self._error(record % 256, record // 256 - 1)

    def check_access(self, ptr: Any, peer: Any, mask: Any) -> None:
        """Of the interpreter: raises ValueError for a peer, or an address, that is not there."""
        rank = int(peer.handle.data.flat[0]) if hasattr(peer, "handle") else int(peer)
        if not 0 <= rank < self.world_size:
            raise self._error(layout.BAD_PEER.value, rank)
        addresses = ptr.handle.data
        if hasattr(mask, "handle"):
            addresses = addresses[mask.handle.data.astype(bool) & (addresses == addresses)]
        if addresses.size == 0:
            return
        low, high = int(addresses.min()), int(addresses.max())
        if not any(first <= low and high < last for first, last, *_ in self._rows):
            raise ValueError(
                f"ptr: expected addresses in one tensor of the context, got {low:#x} to {high:#x} "
                f"on rank {self.rank}; its allocations are "
                f"{', '.join(f'{first:#x} to {last:#x}' for first, last, *_ in self._rows)}"
            )

    def check_multicast(self, ptr: Any) -> None:
        """Of the interpreter: raises ValueError where a GPU would have no multicast address."""
        address = int(ptr.handle.data.flat[0])
        for first, last, multicast, *_ in self._rows:
            if first <= address < last and not multicast:
                raise self._error(layout.NO_MULTICAST.value, -1)

    def _error(self, reason: int, source: int) -> Exception:
        if reason == layout.BAD_PEER.value:
            return ValueError(
                f"peer: expected a rank from 0 to {self.world_size - 1}, got {source} on rank "
                f"{self.rank}"
            )
        if reason == layout.NO_MULTICAST.value:
            return ValueError(
                "ctx: expected a context that was made with multicast=True, as a kernel calls a "
                f"multimem function on rank {self.rank}"
            )
        where = f"group {self.group.group_name!r}: rank {self.rank}: a kernel's wait"
        whom = "any rank" if source < 0 else self._watch.rank_report(source)
        if reason == layout.TIMED_OUT.value:
            return dist.DistBackendError(
                f"{where}: Timed out after {self._limit_ms:.0f} ms waiting for {whom}"
            )
        return dist.DistBackendError(
            f"{where} for {whom} has ended without the signal: "
            f"{self._watch.problem() or 'an earlier wait had given up'}"
        )


def _row(handle: Any) -> list[int]:
    bases = list(handle.buffer_ptrs)
    here = bases[handle.rank]
    return [here, here + handle.buffer_size, 0, *(base - here for base in bases)]


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Of a context without tensors: where kernels of this process run."""
    if INTERPRETED or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
