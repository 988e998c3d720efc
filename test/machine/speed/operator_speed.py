"""How fast PyTorch's operators over symmetric memory, and a handle's signals, are over the memory
of symm and over that of PyTorch's own provider; values checked.

    torchrun --nproc-per-node 2 test/machine/speed/operator_speed.py --json symm.json
    torchrun --nproc-per-node 2 test/machine/speed/operator_speed.py --provider --json torch.json

One program for both: with --provider nothing of symm is in the processes. Without a GPU the memory
is the CPU's, and every call eager. A row is a call, eager
and in replays of a graph, in microseconds of the slowest rank, the median of rounds. `wrong` counts
elements of all ranks that are not the exact ones. Signals go from rank to rank and back: two calls
on a rank, of which a row has the mean.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
_parser.add_argument("--provider", action="store_true", help="PyTorch's own, with groups of nccl")
_parser.add_argument("--json", type=Path)
arguments = _parser.parse_args()
os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
if arguments.provider:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as symm_mem  # noqa: E402
from speed_timing import Timing, differing, errors_in, tell  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16
BYTES = [1024, 8 * 1024, 64 * 1024, 512 * 1024]
CALLS, ROUNDS = 100, 9

# (name, bytes, call, (what it gives, what it must give) or None where it gives nothing)
Row = tuple[str, int, Callable[[], object], Callable[[], tuple[torch.Tensor, torch.Tensor]] | None]


def reductions(nbytes: int, group: str) -> Iterator[Row]:
    operators = torch.ops.symm_mem
    rank, size = dist.get_rank(), dist.get_world_size()
    count = nbytes // DTYPE.itemsize
    buffer = symm_mem.empty(count, dtype=DTYPE, device=DEVICE)
    symm_mem.rendezvous(buffer, group)
    numbers = torch.arange(count, device=DEVICE) % 7
    total = (size * numbers + sum(range(size))).to(DTYPE)
    zeros = torch.zeros_like(buffer)

    def one_shot() -> tuple[torch.Tensor, torch.Tensor]:
        buffer.copy_(numbers + rank)
        return operators.one_shot_all_reduce(buffer, "sum", group), total

    def two_shot() -> tuple[torch.Tensor, torch.Tensor]:
        buffer.copy_(numbers + rank)
        return operators.two_shot_all_reduce_(buffer, "sum", group), total

    yield (
        "one_shot_all_reduce",
        nbytes,
        lambda: operators.one_shot_all_reduce(buffer, "sum", group),
        one_shot,
    )
    buffer.copy_(zeros)  # which stay what they are, however often they are added up
    yield (
        "two_shot_all_reduce_",
        nbytes,
        lambda: operators.two_shot_all_reduce_(buffer, "sum", group),
        two_shot,
    )


def signals(group: str) -> Iterator[Row]:
    handle = symm_mem.rendezvous(symm_mem.empty(64, dtype=DTYPE, device=DEVICE), group)
    rank, size = handle.rank, handle.world_size
    after, before = (rank + 1) % size, (rank - 1) % size

    def there_and_back() -> None:
        handle.put_signal(after, channel=1)
        handle.wait_signal(before, channel=1)

    yield "barrier", 0, lambda: handle.barrier(channel=0), None
    yield "put_signal, wait_signal", 0, there_and_back, None


def measured(timing: Timing, row: Row) -> dict:
    name, nbytes, call, values = row
    found: dict = {"call": name, "bytes": nbytes}
    found["provider"] = "CUDA" if arguments.provider else "SYMM"
    found["eager_us"] = timing.eager(call, CALLS)
    found["graph_us"] = timing.captured(call, CALLS)
    if values is not None:
        found["wrong"] = differing(*values())
    return found


def main() -> None:
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if arguments.provider else "symm"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=30))
    if DEVICE == "cuda" and not arguments.provider:  # whose own is the choice of who makes none
        symm_mem.set_backend("SYMM")
    group = dist.group.WORLD.group_name
    timing, rows = Timing(DEVICE, ROUNDS), []
    for nbytes in BYTES:
        for row in reductions(nbytes, group):
            with errors_in(rows, call=row[0], bytes=nbytes):
                rows.append(measured(timing, row))
                tell(rows[-1])
    for row in signals(group):
        with errors_in(rows, call=row[0]):
            rows.append(measured(timing, row))
            tell(rows[-1])
    if arguments.json and dist.get_rank() == 0:
        lines = ",\n".join(" " + json.dumps(row) for row in rows)
        arguments.json.write_text(f"[\n{lines}\n]\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
