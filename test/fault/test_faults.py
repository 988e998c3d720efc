"""A few injections of every fault; run_faults.py does them in numbers that carry percentiles."""

import pytest

from harness import ON_CUDA
from run_faults import FAULTS, inject

TRIALS = {"F1": 33, "F4": 4, "F5": 4, "F6": 8, "F7": 4, "F8": 14, "F9": 6, "F14": 8, "F15": 12}
if ON_CUDA:  # there every rank of every trial makes a context first
    TRIALS = {"F1": 11, "F2": 9, "F3": 2, "F4": 2, "F8": 7, "F9": 3}


@pytest.mark.alone
@pytest.mark.parametrize("name", FAULTS)
def test_fault(name):
    messages = []
    row = inject(name, TRIALS.get(name, 3), report=messages.append)
    assert row["passed"] == row["trials"], f"{row}\n" + "\n".join(messages)
