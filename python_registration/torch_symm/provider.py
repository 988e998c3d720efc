"""Who makes symmetric memory: symm itself, or one of the libraries inside torch.

torch's symmetric memory (``torch.distributed._symmetric_memory``) keeps one allocator a device type
for the whole process, and lets nobody exchange it once memory was allocated. So a provider is a
choice of the process: make it before the first allocation, by `memory_provider`, by the environment
variable SYMM_MEMORY_PROVIDER, or not at all, which means ``native``. Choosing selects it in torch
as well, so that ``torch.distributed._symmetric_memory.empty`` gives the same memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from torch_symm import _environment, _registration


@dataclasses.dataclass(frozen=True)
class Provider:
    """A maker of symmetric memory and what it can do, apart from memory that peers can map."""

    name: str
    torch_name: str  # as torch.distributed._symmetric_memory.set_backend() takes it
    devices: tuple[str, ...]
    any_backend: bool  # serves groups whatever their backend is
    signals: bool  # put_signal, wait_signal; see can()
    barrier: bool
    views: bool  # contiguous views over all ranks
    groups_known: bool  # can be asked which groups have mapped a tensor's memory

    def can(self, capability: str) -> bool:
        """Whether it has one of the above in this process."""
        if self.name == "nccl" and capability == "signals":
            import torch

            # Older ones have no signals of their own, and torch's error does not say so.
            return torch.cuda.is_available() and torch.cuda.nccl.version() >= (2, 29)
        return bool(getattr(self, capability))

    def problem(self) -> str:
        """Why it cannot be used in this process, or ""."""
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symm_mem

        if self.name == "native":
            return ""
        if not torch.backends.cuda.is_built():
            return f"torch {torch.__version__} was built without CUDA"
        if self.name == "nccl" and not dist.is_nccl_available():
            return f"torch {torch.__version__} was built without NCCL"
        if self.name == "nvshmem" and not symm_mem.is_nvshmem_available():
            return "torch does not find NVSHMEM, or was built without it"
        return ""


# torch's NCCL has no barrier on its pads and its NVSHMEM none of the three; neither says so by
# itself in every version.
KNOWN = {
    p.name: p
    for p in (
        Provider("native", "SYMM", ("cpu", "cuda"), True, True, True, True, True),
        Provider("cuda", "CUDA", ("cuda",), True, True, True, False, False),
        Provider("nccl", "NCCL", ("cuda",), False, True, False, False, False),
        Provider("nvshmem", "NVSHMEM", ("cuda",), False, False, False, False, False),
    )
}
assert tuple(KNOWN) == _environment.MEMORY_PROVIDERS


# Held while a choice is made. The record of it stands in libsymm, which C++ programs use too.
_choosing = threading.RLock()


def _choice() -> tuple[str, bool]:
    """(what was chosen, by memory_provider() or at the first allocation by default, else "";
    whether memory was allocated, so that it stands). Does not load libsymm only to be told."""
    compiled = _registration.loaded()
    return compiled.memory_provider_choice() if compiled else ("", False)


def _record(name: str, used: bool) -> None:
    _registration.load().record_memory_provider(name, used)


def memory_provider(name: str | None = None) -> str:
    """Chooses who makes symmetric memory in this process, and returns the name of the choice.

    Local. Without `name` it only tells: what was chosen, else SYMM_MEMORY_PROVIDER, else "native".

    Args:
        name: "native" (symm; CPU and CUDA), or "cuda", "nccl", "nvshmem" (torch's own; CUDA).

    Raises:
        ValueError: an unknown name; the message lists the known ones.
        RuntimeError: this machine's torch does not have it, or another one is in use already. The
            former choice stands, and choosing can be tried again.
    """
    with _choosing:
        if name is None:
            return _choice()[0] or _default()
        if name not in KNOWN:
            raise ValueError(
                f"memory_provider: name: expected one of {', '.join(KNOWN)}, got {name!r}"
            )
        _registration.load()
        chosen, used = _choice()
        if used and name != chosen:
            raise RuntimeError(
                f"memory_provider: {chosen!r} is in use since the first allocation of "
                f"symmetric memory, so {name!r} cannot be chosen; choose before the first one"
            )
        _select(KNOWN[name], "memory_provider")
        _record(name, used)
        return name


def providers() -> dict[str, str]:
    """Every known provider with the reason why it cannot be used here, "" where it can. Local."""
    return {name: provider.problem() for name, provider in KNOWN.items()}


def current() -> Provider:
    return KNOWN[memory_provider()]


def able(capability: str) -> str:
    """The names of the providers that have it, for a message."""
    return " and ".join(name for name, p in KNOWN.items() if p.can(capability))


def require(capability: str, what: str, caller: str) -> None:
    """Raises NotImplementedError unless the provider in force can do `what`."""
    provider = current()
    if not provider.can(capability):
        raise NotImplementedError(
            f"{caller}: the memory provider {provider.name!r} has no {what}; {able(capability)} "
            "can do it: choose one by memory_provider() or SYMM_MEMORY_PROVIDER"
        )


@contextlib.contextmanager
def allocating(device: Any, caller: str) -> Iterator[Provider]:
    """Around an allocation on `device`: the provider is selected first, and stands afterwards.

    An allocation that raises leaves the choice open.
    """
    with _choosing:
        _registration.load()
        provider = current()
        if device.type not in provider.devices:
            others = [p.name for p in KNOWN.values() if device.type in p.devices]
            raise NotImplementedError(
                f"{caller}: device: the memory provider {provider.name!r} has no memory on "
                f"{device.type}; providers that have: {', '.join(others) or 'none'}"
            )
        if not _choice()[0]:
            _refuse_a_choice_made_in_torch(provider, caller)
        # For memory of the CPU as well, since torch exchanges nothing after any first use.
        _select(provider, caller)
        if provider.name == "native" and device.type == "cuda" and (problem := _gpu_problem()):
            raise NotImplementedError(f"{caller}: device: {problem}")
        yield provider
        _record(provider.name, used=True)


def rendezvous(tensor: Any, group: Any, caller: str) -> Any:
    """torch's handle of the memory that `tensor` stands in, None where that cannot be shared.

    Collective over `group`, the first time for this memory and group; raises as the provider does.
    """
    import torch.distributed._symmetric_memory as symm_mem

    if tensor.device.type == "cuda":
        _prepare_group(current(), group, caller)
    return symm_mem.rendezvous(tensor, group.group_name)


def _prepare_group(provider: Provider, group: Any, caller: str) -> None:
    """What torch's NCCL provider needs before a group's first rendezvous: a communicator.

    A group counts as prepared only once that has succeeded, so a failure can be tried again.
    """
    import torch
    import torch.distributed as dist

    if provider.name != "nccl" or group in _prepared_groups:
        return
    backend = group._get_backend(torch.device("cuda"))
    if backend.name() != "nccl":
        raise NotImplementedError(
            f"{caller}: group: the memory provider 'nccl' serves groups whose backend is nccl, "
            f"got {group.group_name!r} with {backend.name()}; {able('any_backend')} serve any"
        )
    dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    _prepared_groups.add(group)


_prepared_groups: weakref.WeakSet[Any] = weakref.WeakSet()


def _refuse_a_choice_made_in_torch(provider: Provider, caller: str) -> None:
    if _environment.memory_provider("SYMM_MEMORY_PROVIDER"):
        return
    selected = _selected_in_torch()
    # torch starts out with "CUDA", so that one need not be anybody's choice.
    if selected not in (None, "CUDA", provider.torch_name):
        raise RuntimeError(
            f"{caller}: torch's symmetric memory was set to {selected}, while the memory provider "
            f"of torch_symm is {provider.name!r} by default; say which is meant by "
            "memory_provider() or SYMM_MEMORY_PROVIDER"
        )


def _default() -> str:
    return _environment.memory_provider("SYMM_MEMORY_PROVIDER") or "native"


def _gpu_problem() -> str:
    """Why symm has no memory of GPUs, or ""."""
    import torch

    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} was built without CUDA"
    return _registration.load().device_library_problem("cuda")


def _selected_in_torch() -> str | None:
    import torch.distributed._symmetric_memory as symm_mem

    return symm_mem.get_backend("cuda")


def _select(provider: Provider, caller: str) -> None:
    """Makes torch's symmetric memory come from `provider`; raises where it does not."""
    import torch.distributed._symmetric_memory as symm_mem

    if problem := provider.problem():
        usable = [name for name, reason in providers().items() if not reason]
        raise RuntimeError(
            f"{caller}: the memory provider {provider.name!r} cannot be used here: {problem}; "
            f"usable: {', '.join(usable) or 'none'}"
        )
    if provider.name == "native":
        _registration.load()
        if _gpu_problem():
            return  # what is left is memory of the CPU, which no other provider has
    before = _selected_in_torch()
    if before == provider.torch_name:
        return  # torch refuses to select the one that it started out with, "CUDA" as a rule
    try:
        symm_mem.set_backend(provider.torch_name)
    except RuntimeError as error:
        raise RuntimeError(
            f"{caller}: torch refuses the memory provider {provider.name!r} "
            f"({provider.torch_name}) and keeps {before}: {str(error).splitlines()[0]}"
        ) from error
    after = _selected_in_torch()
    if after != provider.torch_name:
        raise RuntimeError(
            f"{caller}: torch keeps {after} although {provider.torch_name} was selected"
        )
