"""What the tools tell about this machine: its processor and its GPUs."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torch_symm._registration import load

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
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        {
            "name": gpu.name,
            "memory_bytes": gpu.total_memory,
            "capability": f"{gpu.major}.{gpu.minor}",
        }
        for gpu in map(torch.cuda.get_device_properties, range(count))
    ]


def nccl_version() -> str | None:
    """Return the version of the NCCL that torch uses, None where it has none."""
    if not torch.cuda.is_available():
        return None
    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):
        return None


def cpu_model() -> str:
    """Return the processor's name as Linux reports it, or its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def describe_machine(backends: Sequence[str], ranks: int, device: str) -> dict[str, str | int]:
    """Return what a reader needs to judge the figures; nothing that identifies the host."""
    machine: dict[str, str | int] = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "backends": " against ".join(backends),
        "ranks": ranks,
        "device": device,
    }
    if device == "cuda":
        machine |= _describe_gpus()
    return machine


def _describe_gpus() -> dict[str, str | int]:
    names = [gpu["name"] for gpu in visible_gpus()]
    switches = ("NCCL_NVLS_ENABLE", *load().multicast_switches())
    return {
        "gpus": ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)),
        "driver": driver_version() or "unknown",
        "cuda": torch.version.cuda or torch.version.hip or "none",
        "nccl": nccl_version() or "none",
        "switches": ", ".join(
            f"{name}={os.environ[name]}" for name in switches if name in os.environ
        ),
    }
