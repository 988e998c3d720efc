"""Makes the backends that carry bytes between the hosts of a group, for the compiled part.

An engine is any backend that torch.distributed knows by name and that takes tensors on the CPU. It
is made here, beside c10d's own groups, and moves bytes only.
"""

from __future__ import annotations

import datetime
import os
from typing import Any


def problem(name: str) -> str:
    """Why a group cannot use the backend `name` between hosts; "" where it can. Local."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import Backend

    if name == "gloo":
        return "" if dist.is_gloo_available() else "this build of torch has no gloo"
    if name.upper() not in Backend._plugins:
        if name in Backend.backend_list:
            return f"{name} carries no tensors that are on the CPU"
        return f"torch.distributed knows no backend {name!r}; register it first"
    devices = Backend.backend_capability.get(name, [])
    return "" if "cpu" in devices else f"{name} carries no tensors that are on the CPU"


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
