"""A few injections of every fault; run_faults.py does them in numbers that carry percentiles."""

import pytest

from harness import ON_CUDA
from run_faults import FAULTS, inject

TRIALS = {"F1": 11, "F3": 1, "F4": 2, "F5": 2, "F6": 4, "F7": 4, "F8": 7, "F9": 3}
TRIALS |= {"F14": 8, "F15": 12}
if ON_CUDA:  # there every rank of every trial makes a context first
    TRIALS = {"F1": 11, "F2": 9, "F3": 2, "F4": 2, "F8": 7, "F9": 3}


@pytest.mark.alone
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FAULTS)
def test_fault(name, times):
    messages = []
    row = inject(name, TRIALS[name] * times, report=messages.append)
    assert row["passed"] == row["trials"], f"{row}\n" + "\n".join(messages)
