"""Where the buffers of an operation are: anywhere, or in memory that every rank has made known.

A backend that wants its own memory gets one tensor for a case, made before anything is timed, of
which operations get parts. A part stands at the same place on all ranks, also where another rank
needs less of it or nothing.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from typing import Any

import torch
import torch.distributed as dist

from torch_symm.tools.ranks.device import group_barrier

_ALIGNMENT = 1024  # elements

# Up to here PyTorch's compiler takes one_shot for an all_reduce among GPUs that see each other's
# memory (torch._inductor.config._collective.one_shot_all_reduce_threshold_bytes).
ONE_SHOT_BYTES = 128 * 1024


class Memory:
    """Ordinary memory of the device."""

    def begin(self) -> None:
        """Take back all that was handed out: a new operation begins."""

    def empty(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a vector for an operation."""
        return torch.empty(count, dtype=dtype, device=device)

    def reduces_apart(self, size: int) -> bool:
        """Tell whether an all_reduce of ``size`` bytes leaves its sum beside what it adds up."""
        del size
        return False


PLAIN = Memory()


class OwnMemory(Memory):
    """One tensor that all ranks of ``group`` know. Not thread safe."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.device = device
        self._tensor = torch.empty(0)
        self._part = self._parts = 0

    def open(self, count: int, parts: int, dtype: torch.dtype) -> None:
        """Make room for operations of ``parts`` vectors of at most ``count`` elements. Collective.

        Raises NotImplementedError where the torch at hand cannot.
        """
        self._part = -(-max(count, 1) // _ALIGNMENT) * _ALIGNMENT
        self._tensor = self._make(parts * self._part, dtype)

    @abstractmethod
    def _make(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a vector that all ranks know. Collective."""

    def close(self) -> None:
        """Undo ``open``. Collective."""

    def begin(self) -> None:
        self._parts = 0

    def empty(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if count > self._part or dtype != self._tensor.dtype:
            raise RuntimeError(
                f"expected at most {self._part} of {self._tensor.dtype}, got {count} of {dtype}"
            )
        start = self._parts * self._part
        self._parts += 1
        return self._tensor[start : start + count]


class PeerMemory(OwnMemory):
    """torch's symmetric memory, which ``handle`` is for; on GPUs that of torch's CUDA provider."""

    handle: Any = None

    def _make(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        symm_mem = importlib.import_module("torch.distributed._symmetric_memory")
        if self.device.type == "cuda" and symm_mem.get_backend(self.device) != "CUDA":
            symm_mem.set_backend("CUDA")
        tensor = symm_mem.empty(count, dtype=dtype, device=self.device)
        self.handle = symm_mem.rendezvous(tensor, self.group.group_name)
        return tensor

    def reduces_apart(self, size: int) -> bool:
        return size <= ONE_SHOT_BYTES


class WindowMemory(OwnMemory):
    """A pool of NCCL's allocator, registered with the group's communicator as symmetric windows."""

    _pool: Any = None

    def _backend(self) -> Any:
        return self.group._get_backend(self.device)

    def _make(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        backend = self._backend()
        missing = NotImplementedError(
            f"torch {torch.__version__} cannot register symmetric windows with NCCL; 2.9 can"
        )
        if not hasattr(backend, "register_mem_pool") or not hasattr(backend, "mem_allocator"):
            raise missing
        group_barrier(self.group, self.device)  # there is a communicator after that
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.empty(count, dtype=dtype, device=self.device)
        try:
            # Behind the allocation: newer torch does not register what is allocated later.
            backend.register_mem_pool(pool, symm=True)
        except TypeError:
            raise missing from None
        self._pool = pool
        return tensor

    def close(self) -> None:
        if self._pool is not None:
            torch.cuda.synchronize(self.device)
            self._backend().deregister_mem_pool(self._pool)
            self._pool = None


MEMORIES: dict[str, type[OwnMemory]] = {"peers": PeerMemory, "windows": WindowMemory}
