"""What the timelines of kernels have, as records and as a file for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from torch_symm.triton import layout
from torch_symm.triton.context import Context


class Event(NamedTuple):
    """One put, get, signal, wait or barrier of a kernel.

    Times are nanoseconds of the device's clock. Those of ranks on the CPU of one host are the same
    clock; those of two GPUs may be apart. `peer` is -1 where there is none.
    """

    kind: str
    peer: int
    bytes: int
    program: int
    begin: int
    end: int


def events(ctx: Context) -> list[Event]:
    """The last 4096 events of the kernels that this rank has run with `ctx`, oldest first. Local;
    on a GPU synchronise with the kernels before.

    Raises:
        RuntimeError: SYMM_TIMELINE was not 1 when torch_symm.triton was imported.
    """
    ring = ctx.ring()
    count, most = int(ring[0]), layout.RING_EVENTS.value
    rows = ring[1:].view(most, layout.EVENT_WORDS.value)
    kept = [rows[number % most].tolist() for number in range(max(0, count - most), count)]
    return [Event(layout.EVENT_NAMES[kind], *rest) for kind, *rest in kept]


def write_timeline(path: str, ctx: Context) -> None:
    """Rank 0 writes the events of all ranks as a Chrome trace. Collective over the context's group.

    A process of the trace is a rank, a thread of it a program of a kernel.
    """
    everybody: list[Any] = [None] * ctx.world_size
    dist.all_gather_object(everybody, [tuple(one) for one in events(ctx)], group=ctx.group)
    if ctx.rank == 0:
        Path(path).write_text(json.dumps({"traceEvents": _records(everybody)}) + "\n")


def _records(everybody: list[list[tuple[Any, ...]]]) -> list[dict[str, Any]]:
    origin = min((one[4] for rank in everybody for one in rank), default=0)
    records: list[dict[str, Any]] = []
    for rank, mine in enumerate(everybody):
        name = {"name": f"rank {rank}"}
        records.append({"ph": "M", "pid": rank, "name": "process_name", "args": name})
        for event in (Event(*one) for one in mine):
            whom = "" if event.peer < 0 else f" rank {event.peer}"
            records.append(
                {
                    "ph": "X",
                    "pid": rank,
                    "tid": event.program,
                    "name": f"{event.kind}{whom}",
                    "cat": event.kind,
                    "ts": (event.begin - origin) / 1000,
                    "dur": (event.end - event.begin) / 1000,
                    "args": {"bytes": event.bytes, "peer": event.peer},
                }
            )
    return records
