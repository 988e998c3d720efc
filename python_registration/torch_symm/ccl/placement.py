"""Which of a call's tensors other ranks touch, by collective, algorithm and device.

By the same table the compiled engine decides which buffer locations it sends to the peers.
"""

from __future__ import annotations

import dataclasses
import functools

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")

# By the name of the access in the compiled module: arguments read by peers, written by peers, and
# required in symmetric memory; the rule.
_RULES = {
    "none": (
        (),
        (),
        (),
        "no tensor of the caller is touched by peers: data goes through the group's own memory",
    ),
    "reads_input": (
        ("input",),
        (),
        (),
        "{whose} is read in place by peers if it is in symmetric memory of the group, else it is "
        "staged",
    ),
    "reads_input_apart": (
        ("input",),
        (),
        (),
        "the input is read in place by peers if it is in symmetric memory of the group and the "
        "output is another tensor, else it is staged",
    ),
    "reads_input_in_place": (
        ("input",),
        (),
        (),
        "where input and output are one tensor in symmetric memory of the group, peers read it, "
        "and the results in it, in place; else the input is staged",
    ),
    "writes_output": (
        (),
        ("output",),
        ("output",),
        "the output is written by peers, so it must be in symmetric memory of the group, at the "
        "same offset on every rank; the input is read by its own rank",
    ),
    "needs_input": (
        ("input",),
        (),
        ("input",),
        "the input is read by peers, and must be in symmetric memory of the group, at the same "
        "offset on every rank; the output is written by its own rank",
    ),
    "needs_both": (
        ("input",),
        ("output",),
        ("input", "output"),
        "the input is read and the output written by peers, so both must be in symmetric memory "
        "of the group, each at the same offset on every rank",
    ),
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
    from torch_symm._registration import load

    table = []
    for collective, algorithm, device, access in load().placements():
        if collective not in COLLECTIVES:
            continue
        *arguments, rule = _RULES[access]
        rule = rule.format(whose=_WHOSE.get(collective, "the input"))
        table.append(Placement(collective, algorithm, device, *arguments, rule))
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


def find(collective: str, algorithm: str, device: str) -> Placement | None:
    """None for "auto", and where there is no such algorithm."""
    key = (collective, algorithm, device)
    for row in placements():
        if (row.collective, row.algorithm, row.device) == key:
            return row
    return None
