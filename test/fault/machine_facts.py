"""The machine, as the figures of the faults name it."""

import os
import platform
import re
from pathlib import Path

import torch

from harness import GPUS, ON_CUDA, WORLD_SIZE


def cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def machine() -> dict:
    found = {"cpu": cpu_model(), "cores": os.cpu_count()}
    found |= {"python": platform.python_version(), "torch": torch.__version__}
    found |= {"load": round(os.getloadavg()[0], 1)}
    return found | ({"gpus": GPUS, "ranks": WORLD_SIZE} if ON_CUDA else {})
