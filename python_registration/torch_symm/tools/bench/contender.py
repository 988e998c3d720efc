"""Names beside those of c10d's backends: a backend in processes of its own with other settings.

NCCL reads what pins its order of addition once a process, so that ranks with other settings are
other processes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """What one set of ranks measures of a case: the backends, by place, in one environment."""

    environment: tuple[tuple[str, str], ...]
    members: tuple[int, ...]


def _pinned(algorithm: str, channels: int) -> tuple[tuple[str, str], ...]:
    """Return what programs set so that NCCL adds in one order, whatever the size.

    Tree is an algorithm of all_reduce alone, which the form with a colon says.
    """
    return (
        ("NCCL_ALGO", f"allreduce:{algorithm}"),
        ("NCCL_PROTO", "Simple"),
        ("NCCL_MIN_NCHANNELS", str(channels)),
        ("NCCL_MAX_NCHANNELS", str(channels)),
    )


NCCL_DETERMINISTIC = "nccl-deterministic"  # stands for all of these
PINNED = {
    f"nccl-{algorithm}-{channels}": _pinned(algorithm, channels)
    for algorithm in ("tree", "ring")
    for channels in (1, 8)
}


def spelled_out(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``names`` with the four that ``nccl-deterministic`` stands for in its place."""
    return tuple(
        one for name in names for one in (PINNED if name == NCCL_DETERMINISTIC else (name,))
    )


def c10d_name(name: str) -> str:
    """Return the name by which torch.distributed knows the backend ``name``."""
    return name.partition("-")[0] if name in PINNED else name


def phases(names: tuple[str, ...]) -> tuple[Phase, ...]:
    """Return the sets of ranks that ``names`` need: the first in the environment as it is."""
    members: dict[tuple[tuple[str, str], ...], list[int]] = {(): []}
    for index, name in enumerate(names):
        members.setdefault(PINNED.get(name, ()), []).append(index)
    return tuple(Phase(environment, tuple(places)) for environment, places in members.items())
