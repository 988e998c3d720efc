"""Which of a call's tensors other ranks touch, by collective, algorithm and device.

By the same table the compiled engine decides which buffer locations it sends to the peers.
"""

from __future__ import annotations

import dataclasses
import functools

from torch_symm._registration import load

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")

# The rule by the name of the access in the compiled module.
_RULES = {
    "none": "no tensor of the caller is touched by peers: data goes through the group's own memory",
    "reads_input": "{whose} is read in place by peers if it is in symmetric memory of the group, "
    "else it is staged",
    "reads_input_apart": "the input is read in place by peers if it is in symmetric memory of the "
    "group and the output is another tensor, else it is staged",
    "reads_input_in_place": "where input and output are one tensor in symmetric memory of the "
    "group, peers read it, and the results in it, in place; else the input is staged",
    "writes_output": "the output is written by peers, so it must be in symmetric memory of the "
    "group, at the same offset on every rank; the input is read by its own rank",
    "needs_input": "the input is read by peers, and must be in symmetric memory of the group, at "
    "the same offset on every rank; the output is written by its own rank",
    "needs_both": "the input is read and the output written by peers, so both must be in symmetric "
    "memory of the group, each at the same offset on every rank",
}
_NOT_READ = ("none", "writes_output")
_REQUIRED = {
    "writes_output": ("output",),
    "needs_input": ("input",),
    "needs_both": ("input", "output"),
}
_WHOSE = {"broadcast": "the input of src", "reduce": "the input"}


@dataclasses.dataclass(frozen=True)
class Placement:
    """What peers may touch in a call.

    Attributes:
        collective: the name of the function.
        algorithm: the name in `Config`.
        device: "cpu" or "cuda".
        remotely_read: the arguments that peers may read where they stand. One that stands in other
            memory is staged by the call.
        remotely_written: the arguments that peers write.
        must_be_symmetric: the arguments that the algorithm cannot do with elsewhere: staged and
            copied back on every rank, or refused with ``strict=True``.
        rule: the same in a sentence, with its conditions.
    """

    collective: str
    algorithm: str
    device: str
    remotely_read: tuple[str, ...]
    remotely_written: tuple[str, ...]
    must_be_symmetric: tuple[str, ...]
    rule: str


@functools.cache
def placements() -> tuple[Placement, ...]:
    """Every algorithm of every collective of this module, on every device. Local."""
    table = []
    for collective, algorithm, device, access in load().placements():
        if collective not in COLLECTIVES:
            continue
        read = () if access in _NOT_READ else ("input",)
        required = _REQUIRED.get(access, ())
        written = tuple(argument for argument in required if argument == "output")
        rule = _RULES[access].format(whose=_WHOSE.get(collective, "the input"))
        table.append(Placement(collective, algorithm, device, read, written, required, rule))
    table.sort(key=lambda row: (row.device, COLLECTIVES.index(row.collective)))
    return tuple(table)


def algorithms(collective: str, device: str) -> tuple[str, ...]:
    """The algorithms that `collective` has on `device`, "cpu" or "cuda". Local.

    Raises ValueError for another collective or device, with the choices.
    """
    if collective not in COLLECTIVES:
        expected = ", ".join(COLLECTIVES)
        raise ValueError(f"algorithms: collective: expected one of {expected}; got {collective!r}")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"algorithms: device: expected one of cpu, cuda; got {device!r}")
    return tuple(
        row.algorithm
        for row in placements()
        if row.collective == collective and row.device == device
    )


def all_algorithms() -> list[str]:
    """Every name that some collective has on some device."""
    return list(dict.fromkeys(row.algorithm for row in placements()))


@functools.cache
def find(collective: str, algorithm: str, device: str) -> Placement | None:
    """None for "auto", and where there is no such algorithm."""
    key = (collective, algorithm, device)
    rows = (row for row in placements() if (row.collective, row.algorithm, row.device) == key)
    return next(rows, None)
