"""Names beside those of c10d's backends: a backend in processes of its own with other settings.

NCCL reads what pins its order of addition once a process, and PyTorch's symmetric memory has one
provider a process, so that ranks with other settings are other processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Contender:
    """What such a name stands for.

    ``c10d`` is the backend of its group and ``environment`` what its processes get, ``early`` where
    that must be there before torch is imported. ``memory`` says who makes the buffers (memory.py).
    Where ``forms`` is given, it has the variants of each collective or program that there are;
    ``dtypes`` and ``ops`` are then all that it takes.
    """

    c10d: str
    environment: Settings = ()
    early: bool = False
    memory: str | None = None
    forms: Mapping[str, tuple[str, ...]] | None = None
    dtypes: tuple[str, ...] | None = None
    ops: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Phase:
    """What one set of ranks measures of a case: the backends, by place, in one environment."""

    environment: Settings
    members: tuple[int, ...]
    early: bool = False
    memory: str | None = None


def _pinned(algorithm: str, channels: int) -> Contender:
    """Return NCCL with what programs set so that it adds in one order, whatever the size.

    Tree is an algorithm of all_reduce alone, which the form with a colon says.
    """
    environment = (
        ("NCCL_ALGO", f"allreduce:{algorithm}"),
        ("NCCL_PROTO", "Simple"),
        ("NCCL_MIN_NCHANNELS", str(channels)),
        ("NCCL_MAX_NCHANNELS", str(channels)),
    )
    return Contender("nccl", environment)


NCCL_DETERMINISTIC = "nccl-deterministic"  # stands for all of these
_PINNED = {
    f"nccl-{algorithm}-{channels}": _pinned(algorithm, channels)
    for algorithm in ("tree", "ring")
    for channels in (1, 8)
}

# The operators would take multicast where a GPU has it, and NCCL's kernels over windows as well.
_NO_MULTICAST = (("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"))

# Without symm's start-up hook, so that the operators and the memory are PyTorch's and nothing else.
TORCH_SYMM = Contender(
    "nccl",
    (("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"), *_NO_MULTICAST),
    early=True,
    memory="peers",
    forms={
        "all_reduce": ("in_place",),
        "reduce_scatter": ("out_of_place",),
        "all_gather": ("out_of_place", "in_place"),
        "barrier": ("out_of_place",),
        "decode": ("out_of_place",),
    },
    dtypes=("float32", "bfloat16"),
    ops=("sum",),
)

CONTENDERS = {
    **_PINNED,
    "torch-symm": TORCH_SYMM,
    "nccl-symm": Contender("nccl", _NO_MULTICAST, memory="windows"),
}
_PLAIN = Contender("")


def spelled_out(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``names`` with the four that ``nccl-deterministic`` stands for in its place."""
    return tuple(
        one for name in names for one in (_PINNED if name == NCCL_DETERMINISTIC else (name,))
    )


def c10d_name(name: str) -> str:
    """Return the name by which torch.distributed knows the backend ``name``."""
    return CONTENDERS[name].c10d if name in CONTENDERS else name


def offers(name: str, collective: str, variant: str | None = None) -> bool:
    """Tell whether the backend ``name`` has ``collective`` in that variant, or in any."""
    forms = CONTENDERS.get(name, _PLAIN).forms
    if forms is None or collective not in forms:
        return forms is None
    return variant is None or variant in forms[collective]


def phases(names: tuple[str, ...]) -> tuple[Phase, ...]:
    """Return the sets of ranks that ``names`` need: the first in the environment as it is."""
    phases = {"": Phase((), ())}
    for index, name in enumerate(names):
        one = CONTENDERS.get(name, _PLAIN)
        # Buffers in memory of its own are one backend's alone, though it may be named twice.
        key = f"{index}" if one.memory else "" if one == _PLAIN else name
        phase = phases.setdefault(key, Phase(one.environment, (), one.early, one.memory))
        phases[key] = replace(phase, members=(*phase.members, index))
    return tuple(phases.values())
