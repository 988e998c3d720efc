"""The backend as ``torch.distributed._dist2.new_group("symm", ...)`` makes it."""

from __future__ import annotations

import datetime
import itertools
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _register_process_group, _unregister_process_group

from torch_symm import _environment
from torch_symm._registration import BACKEND, DEVICES, load
from torch_symm.memory import with_index

# new_group() hands out one Store for all groups, whose ranks make them in the same order.
_numbers = itertools.count()


def register() -> None:
    """Local, idempotent."""
    from torch.distributed import _dist2

    if BACKEND not in _dist2._BACKENDS:
        _dist2.register_backend(BACKEND, create)


def create(
    store: dist.Store,
    rank: int,
    world_size: int,
    timeout: datetime.timedelta,
    device: torch.device,
    **fields: Any,
) -> dist.ProcessGroup:
    """A group of all ranks, which serves the CPU and GPUs. Collective; on a GPU, which `device`
    names then, its half there is connected too. It has a name by which c10d finds it, as long as
    it is there, for symmetric memory and what takes groups by name.

    Args:
        fields: of `torch_symm.Options`.

    Raises:
        KeyError: the options have no field of that name.
        ValueError: a wrong value of an option or of an environment variable.
    """
    _environment.check()
    process_group = load().ProcessGroupSymm
    options = process_group.Options()
    for name, value in {"timeout": timeout, **fields}.items():
        if not hasattr(options, name):
            raise KeyError(f"symm has no option {name!r}")
        setattr(options, name, value)
    number = next(_numbers)
    options.group_name = f"dist2 {number}"
    own_store = dist.PrefixStore(f"symm/dist2/{number}", store)
    backend = process_group(own_store, rank, world_size, options)
    group = dist.ProcessGroup(own_store, rank, world_size)
    custom = dist.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(custom)
    for kind in DEVICES:
        group._register_backend(torch.device(kind), custom, backend)
    group._set_group_name(options.group_name)
    _register_process_group(options.group_name, group)  # which keeps no reference
    weakref.finalize(group, _unregister_process_group, options.group_name).atexit = False
    if device.type != "cpu":
        backend.eager_connect_single_device(with_index(device))
    return group
