"""What torchrun, or another launcher that sets the same variables, has started.

Open MPI's mpirun has names of its own for a process's rank; where torch's are missing, those count.
"""

from __future__ import annotations

import os

# torch's name, and Open MPI's.
_NAMES = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}


def _adopt_names() -> None:
    """Give mpirun's variables torch's names, where mpirun has started this and knows a store."""
    if "RANK" in os.environ or "MASTER_PORT" not in os.environ:
        return
    if all(name in os.environ for name in _NAMES.values()):
        os.environ |= {name: os.environ[theirs] for name, theirs in _NAMES.items()}


def launched_world_size() -> int | None:
    """Return the number of ranks that the launcher has started, None outside of one."""
    _adopt_names()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return None


def launched_rank() -> int:
    """Return the rank that this process was started for, 0 outside of a launcher."""
    _adopt_names()
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
