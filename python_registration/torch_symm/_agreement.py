"""Small facts that every rank of a group learns of every other, whatever the group's backend is."""

from __future__ import annotations

import json
from typing import Any

from torch_symm._registration import load


def all_gather_facts(group: Any, caller: str, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Everybody's `facts` by group rank. Collective over `group`, a ProcessGroup.

    Raises RuntimeError, on every rank, where `caller` differs.
    """
    message = json.dumps({"caller": caller, **facts}).encode()
    everybody = [json.loads(text) for text in load().all_gather_message(group.group_name, message)]
    callers = [rank["caller"] for rank in everybody]
    if any(name != caller for name in callers):
        raise RuntimeError(
            f"{caller}: every rank of group {group.group_name!r} must call it at this point, got "
            f"{by_rank(callers)}"
        )
    return everybody


def by_rank(values: list[Any]) -> str:
    """ "[3] on ranks 0, 1; [4] on rank 2": what each rank brought, for a message."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(str(value), []).append(str(rank))
    return "; ".join(
        f"{value} on {'rank' if len(who) == 1 else 'ranks'} {', '.join(who)}"
        for value, who in ranks.items()
    )
