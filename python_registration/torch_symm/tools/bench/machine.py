"""The description of the machine that stands at the head of every result."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from torch_symm._registration import load
from torch_symm.tools.gpus import driver_version, nccl_version, visible_gpus


def _cpu_model() -> str:
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
        "cpu": _cpu_model(),
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
