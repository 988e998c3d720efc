"""How many GPUs this process may use; as a program, prints it."""

import ctypes
import os
import subprocess
import sys

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


if __name__ == "__main__":
    print(_ask_driver())
