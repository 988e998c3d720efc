"""The flight record: the last collectives and messages of this process."""

from __future__ import annotations

import pickle
from typing import Any


def flight_record() -> dict[str, Any]:
    """The record as PyTorch's flight recorder has it: `entries`, oldest first, `pg_config`, ...

    Local; any thread. Raises RuntimeError where TORCH_FR_BUFFER_SIZE=0 switches the record off.
    """
    from torch_symm._registration import load

    record = load().flight_record()
    if record is None:
        raise RuntimeError(
            "flight_record: nothing is recorded because TORCH_FR_BUFFER_SIZE is 0; set it to the "
            "number of calls to keep"
        )
    return pickle.loads(record)
