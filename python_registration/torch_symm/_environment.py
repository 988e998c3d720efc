"""The environment variables that the Python part reads; the compiled part checks its own.

A wrong value raises ValueError where a process group is made, and never at ``import torch``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator


def flag(name: str) -> bool:
    """True for "1", False for "0", "" or unset; raises ValueError for anything else."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
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


@contextlib.contextmanager
def variables_set(values: dict[str, str]) -> Iterator[None]:
    """Has ``values`` in the environment of this process, and of what it starts, for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


CHECKS = {
    "SYMM_CHECK": flag,
    "SYMM_DEFAULT_BACKEND": flag,
    "SYMM_RACE_CHECK": flag,
    "SYMM_REPLACE_BACKEND": backend_name,
    "SYMM_TIMELINE": flag,
}


def check() -> None:
    """Raises ValueError, naming the variable, if any has a value that it cannot have."""
    for name, parse in CHECKS.items():
        parse(name)
