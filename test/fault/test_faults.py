"""A few injections of every fault; run_faults.py does them in numbers that carry percentiles."""

import pytest

from catalogue import FAULTS
from harness import ON_CUDA
from run_faults import inject

# The soaks in builds with sanitizers are tests of those builds.
NAMES = [
    pytest.param(name, marks=[pytest.mark.alone] * (ON_CUDA or fault.p99_limit is not None))
    for name, fault in FAULTS.items()
    if fault.short
]


# Three times as many in all; those that depend on each other begin again.
@pytest.mark.parametrize("more", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_fault(name, more):
    messages, fault, first = [], FAULTS[name], 0
    trials = fault.short * (3 if more else 1)
    if more and fault.is_independent:
        first = fault.short
        trials -= first
    row = inject(name, trials, report=messages.append, first=first)
    assert row["passed"] == row["trials"] > 0, f"{row}\n" + "\n".join(messages)
