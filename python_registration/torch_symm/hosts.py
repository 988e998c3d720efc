"""The ranks of one host in a group over several."""

from __future__ import annotations

import weakref
from typing import Any

_made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def local_group(group: Any = None) -> Any:
    """The group of those ranks of `group` that are on this rank's host, in the same order: `group`
    itself where that is all of them, else a group of symm that is made by the first call and kept
    as long as `group`. Symmetric memory works in it. The first call is collective over the ranks
    of each host.

    Args:
        group: a ProcessGroup of the backend symm, a group's name, or None for the default one.
    """
    import torch
    import torch.distributed as dist

    from torch_symm import _groups, _registration

    group = _groups.resolve(group, "local_group")
    if group in _made:
        return _made[group]
    backend = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, _registration.load().ProcessGroupSymm):
        raise ValueError(
            "local_group: group: expected one whose backend for the CPU is symm, got "
            f"{backend.name()}"
        )
    own = dist.get_rank(group)
    mine = next((ranks for ranks in backend._hosts() if own in ranks), None)
    if mine is None:
        return group
    _made[group] = dist.new_group(
        [dist.get_global_rank(group, rank) for rank in mine],
        backend=_registration.BACKEND,
        timeout=backend.options.timeout,
        use_local_synchronization=True,
    )
    return _made[group]
