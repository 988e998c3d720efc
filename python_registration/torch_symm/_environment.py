"""The environment variables that the Python part reads.

A wrong value raises ValueError where a process group is made, and never at ``import torch``.
"""

from __future__ import annotations

import os
import re


def flag(name: str) -> bool:
    """True for "1", False for "0", "" or unset; raises ValueError for anything else."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{name} must be 0 or 1, but is {value!r}")
    return value == "1"


def deterministic(name: str) -> bool:
    """False for "0", True for "1" or unset; raises ValueError for anything else."""
    value = os.environ.get(name, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{name} must be 0 or 1, but is {value!r}")
    return value == "1"


def backend_name(name: str) -> str:
    """The name of a backend other than symm, in lower case, or "" where it is unset."""
    value = os.environ.get(name, "").lower()
    if value and (not re.fullmatch(r"[a-z][a-z0-9_-]*", value) or value == "symm"):
        raise ValueError(
            f"{name} must be the name of another backend, for instance gloo, but is {value!r}"
        )
    return value


# Who can make symmetric memory; provider.py says what each is.
MEMORY_PROVIDERS = ("native", "cuda", "nccl", "nvshmem")


def memory_provider(name: str) -> str:
    """One of MEMORY_PROVIDERS, or "" where it is unset."""
    value = os.environ.get(name, "")
    if value and value not in MEMORY_PROVIDERS:
        raise ValueError(f"{name} must be one of {', '.join(MEMORY_PROVIDERS)}, but is {value!r}")
    return value


# How GPU memory is handed to other processes.
HANDLE_TYPES = ("auto", "posix", "fabric")


def handle_type(name: str) -> str:
    """One of HANDLE_TYPES, "auto" where it is unset."""
    value = os.environ.get(name, "auto")
    if value not in HANDLE_TYPES:
        raise ValueError(f"{name} must be one of {', '.join(HANDLE_TYPES)}, but is {value!r}")
    return value


CHECKS = {
    "SYMM_DETERMINISTIC": deterministic,
    "SYMM_DEFAULT_BACKEND": flag,
    "SYMM_DISABLE_MULTICAST": flag,
    "SYMM_HANDLE_TYPE": handle_type,
    "SYMM_MEMORY_PROVIDER": memory_provider,
    "SYMM_REPLACE_BACKEND": backend_name,
}

# Any of them at 1 keeps symm from making multicast objects. The last two belong to torch and to
# NVSHMEM, whose other values mean nothing to symm.
MULTICAST_SWITCHES = (
    "SYMM_DISABLE_MULTICAST",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
)


def multicast_disabled_by() -> list[str]:
    """The variables that turn multicast off in this process."""
    return [name for name in MULTICAST_SWITCHES if os.environ.get(name) == "1"]


def check() -> None:
    """Raises ValueError, naming the variable, if any has a value that it cannot have."""
    for name, parse in CHECKS.items():
        parse(name)
