"""What the tests of kernels share: memory, and launches on the device under test.

Ranks compile kernels on a GPU, which takes seconds the first time; a test that measures time, or
in which a rank ends, launches its kernel once before.
"""

import importlib.util

import pytest
import torch

from harness import DEVICE, ON_CUDA, synchronize

NEEDS_TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
TIME_LIMIT = 110.0 if ON_CUDA else 60.0  # seconds of a test's ranks


def symmetric(*shape, dtype=torch.int32, value=-1):
    """Poisoned: a word that nobody has written shows."""
    import torch_symm

    return torch_symm.full(shape, value, dtype=dtype, device=DEVICE)


def ordinary(*shape, dtype=torch.int32, value=-1):
    """The same in memory of this rank alone."""
    return torch.full(shape, value, dtype=dtype, device=DEVICE)


def launch(kernel, *arguments, programs=1, **constants):
    """Runs the kernel to its end, and raises what it has met: on a GPU the contexts tell, in the
    interpreter the launch itself."""
    kernel[(programs,)](*arguments, **constants)
    synchronize()
    for one in arguments:
        if hasattr(one, "check"):
            one.check()


def error_of(call, *arguments, **settings) -> tuple[str, str]:
    """The type and the text of what `call` raises; of a compiler's error the cause's, which names
    the line in the library."""
    try:
        call(*arguments, **settings)
    except Exception as error:
        while type(error).__name__ == "CompilationError" and error.__cause__ is not None:
            error = error.__cause__
        return type(error).__name__, str(error)
    return "", "nothing was raised"


def differs(what, got, expected) -> list[str]:
    got = got.cpu()
    expected = torch.as_tensor(expected, dtype=got.dtype)
    return [] if torch.equal(got, expected) else [f"{what}: got {got}, expected {expected}"]
