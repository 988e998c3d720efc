"""Process groups as users name them, and what the ranks of one learn of each other."""

from __future__ import annotations

import json
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


def global_ranks(group: Any) -> list[int]:
    """By group rank. Those of a group of ``_dist2``, which has all ranks, are its own."""
    import torch.distributed as dist

    if group in dist.distributed_c10d._world.pg_group_ranks:
        return dist.get_process_group_ranks(group)
    return list(range(group.size()))


def all_gather_facts(
    group: Any, caller: str, facts: dict[str, Any], same: dict[str, str]
) -> list[dict[str, Any]]:
    """Everybody's `facts` by group rank, whatever the group's backend is. Collective over `group`,
    a ProcessGroup.

    Raises on every rank: RuntimeError where `caller` differs; ValueError, which begins with
    `same[name]`, where the fact `name` of `same` does.
    """
    message = json.dumps({"caller": caller, **facts}).encode()
    everybody = [json.loads(text) for text in load().all_gather_message(group.group_name, message)]
    if any(rank["caller"] != caller for rank in everybody):
        raise RuntimeError(
            f"{caller}: every rank of group {group.group_name!r} must call it at this point, got "
            f"{_by_rank(everybody, 'caller')}"
        )
    for name, expected in same.items():
        if any(rank[name] != facts[name] for rank in everybody):
            raise ValueError(
                f"{caller}: {expected} on every rank of group {group.group_name!r}, got "
                f"{_by_rank(everybody, name)}"
            )
    return everybody


def _by_rank(everybody: list[dict[str, Any]], name: str) -> str:
    """ "[3] on ranks 0, 1; [4] on rank 2": what each rank brought, for a message."""
    ranks: dict[str, list[str]] = {}
    for rank, facts in enumerate(everybody):
        ranks.setdefault(str(facts[name]), []).append(str(rank))
    return "; ".join(
        f"{value} on {'rank' if len(who) == 1 else 'ranks'} {', '.join(who)}"
        for value, who in ranks.items()
    )
