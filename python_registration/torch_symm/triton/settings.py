"""What is decided once, when torch_symm.triton is imported, since compiled kernels depend on it."""

from __future__ import annotations

import triton
import triton.language as tl

from torch_symm import _environment

# Triton's own switch, read by @triton.jit at the same time.
INTERPRETED = bool(triton.knobs.runtime.interpret)
_CHECK = _environment.flag("SYMM_CHECK")
RACE_CHECK = _environment.flag("SYMM_RACE_CHECK")
_TIMELINE = _environment.flag("SYMM_TIMELINE")
# For kernels.
CHECK = tl.constexpr(_CHECK)
TIMELINE = tl.constexpr(_TIMELINE)

if INTERPRETED and isinstance(tl.sum, triton.JITFunction):
    raise ImportError(
        "torch_symm.triton: TRITON_INTERPRET=1 must be set before triton is first imported, by "
        "whatever package: Triton's own functions have been prepared for a GPU"
    )
if RACE_CHECK and not INTERPRETED:
    raise ValueError(
        "SYMM_RACE_CHECK=1 checks kernels in Triton's interpreter: set TRITON_INTERPRET=1 too"
    )
