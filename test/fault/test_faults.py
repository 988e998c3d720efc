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


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_fault(name, times):
    messages = []
    row = inject(name, FAULTS[name].short * times, report=messages.append)
    assert row["passed"] == row["trials"] > 0, f"{row}\n" + "\n".join(messages)
