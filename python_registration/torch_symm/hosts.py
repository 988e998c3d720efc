"""On which host each rank of a group is."""

from __future__ import annotations

import weakref
from typing import Any

# By the group whose part it is. c10d keeps a group until it is destroyed.
_made: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def local_group(group: Any = None) -> Any:
    """The group of those ranks of `group` that are on this rank's host, in the same order: `group`
    itself where that is all of them, else a group of symm that is made by the first call. Symmetric
    memory works in it. c10d keeps it until ``destroy_process_group`` is called with it or for all
    groups; it does not end with `group`. The first call, and the first one after it was destroyed,
    are collective over the ranks of each host.

    Args:
        group: a ProcessGroup of the backend symm, a group's name, or None for the default one.

    Raises:
        NotImplementedError: `group` is over several hosts and was made by ``_dist2.new_group``.
    """
    import torch.distributed as dist

    from torch_symm import _registration

    group, backend = _resolved(group, "local_group")
    known = dist.distributed_c10d._world.pg_map
    made = _made[group]() if group in _made else None
    if made is not None and made in known:
        return made
    own = group.rank()
    mine = next((ranks for ranks in backend._hosts() if own in ranks), None)
    if mine is None:
        return group
    if group not in known:
        raise NotImplementedError(
            f"local_group: group: {group.group_name!r} is over several hosts and of _dist2; "
            "torch.distributed.new_group(), which would make its part, knows no such groups"
        )
    local = dist.new_group(
        [dist.get_global_rank(group, rank) for rank in mine],
        backend=_registration.BACKEND,
        timeout=backend.options.timeout,
        use_local_synchronization=True,
    )
    _made[group] = weakref.ref(local)
    return local


def host_layout(group: Any = None) -> dict[str, Any]:
    """Which ranks of `group` are on which host, and what carries bytes inside a host and between
    two. Local.

    Args:
        group: a ProcessGroup of the backend symm, a group's name, or None for the default one.

    Returns:
        ``group``, its name; ``hosts``, the group ranks by what they say that their host is, in the
        order of the hosts' lowest ranks; ``inside_hosts``, "symm"; ``between_hosts``, the name of
        a backend, or None where all ranks are on one host; ``gpus_between_hosts``, the same for
        CUDA tensors, None before their first collective too.
    """
    group, backend = _resolved(group, "host_layout")
    members = backend._hosts() or [list(range(group.size()))]
    return {
        "group": group.group_name,
        "hosts": dict(zip(backend._host_names(), members, strict=True)),
        "inside_hosts": "symm",
        "between_hosts": backend._between_hosts() or None,
        "gpus_between_hosts": backend._gpus_between_hosts() or None,
    }


def _resolved(group: Any, caller: str) -> tuple[Any, Any]:
    """The ProcessGroup and its backend; ValueError for one of another backend."""
    import torch

    from torch_symm import _groups, _registration

    group = _groups.resolve(group, caller)
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    if isinstance(backend, _registration.load().ProcessGroupSymm):
        return group, backend
    raise ValueError(
        f"{caller}: group: expected one whose backend for the CPU is symm, got {backend.name()}"
    )
