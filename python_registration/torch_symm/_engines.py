"""Makes the backends that carry bytes between the hosts of a group, for the compiled part.

An engine is any backend that torch.distributed knows by name and that takes tensors on the CPU, or
on GPUs. It is made here, beside c10d's own groups, and moves bytes only.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

from torch_symm import _environment

# How ProcessGroupNCCL is made: a failure aborts its communicators and nothing else, so that the
# group can raise; the process goes on, no call waits on the CPU, and nothing is written for a
# debugger first, which would take a minute.
_NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "10",
}


def by_device(wish: str) -> tuple[str, str]:
    """The engines of tensors on the CPU and of CUDA tensors that a right value of the option
    inter_host other than "none" asks for: of CUDA tensors NCCL, unless something else is said. A
    name for both is for those that it can serve. Local."""
    named = dict(entry.split(":") for entry in wish.split(",")) if ":" in wish else {}
    if named or wish == "auto":
        cpu, cuda = named.get("cpu", "auto"), named.get("cuda", "auto")
        return ("gloo" if cpu == "auto" else cpu), ("nccl" if cuda == "auto" else cuda)
    if problem(wish) and not gpu_problem(wish):
        return "gloo", wish
    return wish, wish


def problem(name: str) -> str:
    """Why a group cannot use the backend `name` between hosts; "" where it can. Local."""
    import torch.distributed as dist

    if name == "gloo":
        return "" if dist.is_gloo_available() else "this build of torch has no gloo"
    return _plugin_problem(name, "cpu", "tensors that are on the CPU")


def gpu_problem(name: str) -> str:
    """The same for CUDA tensors. Local; starts no GPU."""
    import torch
    import torch.distributed as dist

    if name == "nccl":
        if not dist.is_nccl_available():
            return "this build of torch has no nccl"
        return "" if torch.cuda.device_count() > 0 else "this process sees no GPU"
    return _plugin_problem(name, "cuda", "CUDA tensors by send and recv")


def _plugin_problem(name: str, device: str, what: str) -> str:
    from torch.distributed.distributed_c10d import Backend

    if name.upper() not in Backend._plugins and name not in Backend.backend_list:
        return f"torch.distributed knows no backend {name!r}; register it first"
    able = name.upper() in Backend._plugins and device in Backend.backend_capability.get(name, [])
    return "" if able else f"{name} carries no {what}"


def releases_memory(name: str) -> bool:
    """Whether send and recv leave their tensor alone once their Work is destroyed. Local.

    Gloo's Work owns a buffer whose destructor waits for the threads that use it, over TCP (see
    ShareableNonOwningPtr in gloo/common/memory.h); its other transports have not been looked at.
    """
    return name == "gloo" and os.environ.get("GLOO_DEVICE_TRANSPORT", "") in ("", "TCP", "TCP_TLS")


def make(name: str, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """The backend over all ranks of a group; `store` is its own. Collective."""
    from torch.distributed import distributed_c10d as c10d

    if name == "gloo":
        return c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
    return _make_plugin(name, store, rank, size, timeout)


def make_for_gpu(
    name: str, store: Any, rank: int, size: int, timeout: datetime.timedelta, device: int
) -> Any:
    """The backend between this process's GPU `device` and those of the other ranks. Local for NCCL,
    which connects with the first message."""
    import torch
    from torch.distributed import distributed_c10d as c10d

    with torch.cuda.device(device):
        if name != "nccl":
            return _make_plugin(name, store, rank, size, timeout)
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.global_ranks_in_group = list(range(size))
        options.group_name = "symm between hosts"
        with _environment.variables_set(_NCCL_ENVIRONMENT):
            return c10d.ProcessGroupNCCL(store, rank, size, options)


def _make_plugin(name: str, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    from torch.distributed import distributed_c10d as c10d

    plugin = c10d.Backend._plugins[name.upper()]
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, timeout)
    options = c10d._DistributedBackendOptions()
    options.store = store
    options.group_rank = rank
    options.group_size = size
    options.timeout = timeout
    options.group_id = "symm between hosts"
    options.global_ranks_in_group = list(range(size))
    return plugin.creator_fn(options, None)
