"""What torchrun, or another launcher that sets the same variables, has started."""

from __future__ import annotations

import os


def launched_world_size() -> int | None:
    """Return the number of ranks that the launcher has started, None outside of one."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return None


def launched_rank() -> int:
    """Return the rank that this process was started for, 0 outside of a launcher."""
    return int(os.environ.get("RANK", "0"))


def rank_count(asked: int | None, default: int) -> int:
    """Return the number of ranks: what the launcher started, else ``asked``, else ``default``.

    Raises ValueError where ``asked`` contradicts the launcher.
    """
    launched = launched_world_size()
    if launched is None:
        return default if asked is None else asked
    if asked is not None and asked != launched:
        raise ValueError(f"--ranks: the launcher started {launched} ranks, got {asked}")
    return launched
