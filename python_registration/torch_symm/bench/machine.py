"""The description of the machine that stands at the head of every result."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from torch_symm.bench.config import BenchConfig


def _cpu_model() -> str:
    """Return the processor's name as Linux reports it, or its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def describe_machine(config: BenchConfig) -> dict[str, str | int]:
    """Return what a reader needs to judge the figures; nothing that identifies the host."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "backends": " against ".join(config.backends),
        "ranks": config.ranks,
        "device": config.device,
    }
