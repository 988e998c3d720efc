"""What tests ask of their machine. As a program, prints how many GPUs this process may use."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

# Set by run_tests.py, which has counted: to begin with the driver takes a second, and more while
# other processes do.
COUNTED = "SYMM_TEST_GPUS"


def count_gpus() -> int:
    """Asked in a process of its own: the driver must not be initialised in one that forks."""
    if COUNTED in os.environ:
        return int(os.environ[COUNTED])
    result = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60)
    return int(result.stdout) if result.returncode == 0 else 0


def _ask_driver() -> int:
    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    for status in (cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count))):
        if status != 0:
            raise RuntimeError(f"CUDA error {status}")
    return count.value


_TICK = os.sysconf("SC_CLK_TCK")
_QUEUE = Path("/proc/thread-self/schedstat")  # not of every kernel


def _seconds_waited() -> float:
    """By this thread, for a processor; and what was stolen from a virtual machine's processors."""
    queued = int(_QUEUE.read_text().split()[1]) / 1e9 if _QUEUE.exists() else 0.0
    with open("/proc/stat") as file:
        stolen = int(file.readline().split()[8]) / _TICK
    return queued + stolen


class Pace:
    """`held_up`: seconds inside the with block in which this thread could have run and had no
    processor; what the program itself waits for does not count."""

    held_up = 0.0

    def __enter__(self):
        self._before = _seconds_waited()
        return self

    def __exit__(self, *_):
        self.held_up = _seconds_waited() - self._before


if __name__ == "__main__":
    print(_ask_driver())
