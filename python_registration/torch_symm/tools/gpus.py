"""What the tools tell about the GPUs of this machine."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_VERSION_BYTES = 80


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, None where there is none to be found."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        library = None
    if library is not None and library.nvmlInit_v2() == 0:
        text = ctypes.create_string_buffer(_VERSION_BYTES)
        failed = library.nvmlSystemGetDriverVersion(text, _VERSION_BYTES)
        library.nvmlShutdown()
        if not failed:
            return text.value.decode()
    if _KERNEL_MODULE.exists():
        if match := re.search(r"Module\D*([\d.]+)", _KERNEL_MODULE.read_text()):
            return match[1]
    return None


def visible_gpus() -> list[dict[str, Any]]:
    """Return name, memory and compute capability of every GPU that torch can use, in its order."""
    import torch

    gpus: list[dict[str, Any]] = []
    if not torch.cuda.is_available():
        return gpus
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return gpus


def nccl_version() -> str | None:
    """Return the version of the NCCL that torch uses, None where it has none."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):
        return None
