"""Process groups as users name them."""

from __future__ import annotations

from typing import Any

from torch_symm._registration import load


def resolve(group: Any, caller: str) -> Any:
    """The ProcessGroup that `group` names: one itself, a group's name, or None for the default one.

    Raises ValueError where this rank is not in it, or there is no such group, and TypeError for
    anything else. The messages begin with `caller`, the function that the user has called.
    """
    import torch.distributed as dist

    if group is None:
        if not dist.is_initialized():
            raise ValueError(
                f"{caller}: group: there is no default group; call init_process_group first"
            )
        return dist.group.WORLD
    # What new_group() returns on a rank that it leaves out is a number.
    if isinstance(group, int) or group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            f"{caller}: group: global rank {dist.get_rank()} is not in it; only ranks of the group "
            "may call this"
        )
    if isinstance(group, str):
        return load().group_named(group, caller)
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"{caller}: group: expected a ProcessGroup, a group's name or None, got a "
            f"{type(group).__name__}"
        )
    if load().group_named(group.group_name, caller) is not group:
        raise ValueError(
            f"{caller}: group: this group {group.group_name!r} has been destroyed, and another one "
            "has its name now"
        )
    return group
