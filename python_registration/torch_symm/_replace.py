"""Gives symm to programs that ask for another backend by name.

Every path by which torch.distributed takes a backend's name (``init_process_group``, ``new_group``,
DeviceMesh, the per-device default) goes through ``Backend(name)``, so that is the one place where
the name is exchanged. The constants, such as ``Backend.GLOO``, keep their values.
"""

from __future__ import annotations

from torch_symm._registration import BACKEND

_installed_for: str | None = None


def replace_name(backend: str, replaced: str) -> str:
    """``backend`` with ``replaced`` exchanged for symm: "gloo", or inside "cpu:gloo,cuda:nccl"."""
    parts = []
    for part in backend.split(","):
        device, colon, name = part.rpartition(":")
        parts.append(device + colon + (BACKEND if name.strip().lower() == replaced else name))
    return ",".join(parts)


def install(replaced: str) -> None:
    """Makes ``Backend(replaced)`` mean symm in this process. Local, idempotent."""
    global _installed_for
    from torch.distributed.distributed_c10d import Backend

    replaced = replaced.lower()
    if _installed_for == replaced:
        return
    if _installed_for is not None:
        raise ValueError(
            f"symm already stands in for {_installed_for} in this process; it cannot also stand "
            f"in for {replaced}"
        )
    original = Backend.__new__

    def new(cls: type, name: str) -> str:
        if isinstance(name, str):
            name = replace_name(name, replaced)
        return original(cls, name)

    Backend.__new__ = staticmethod(new)
    _installed_for = replaced
