"""Collectives and messages of ranks of the CPU on ordinary tensors beside symmetric ones.

    torchrun --nproc-per-node 2 test/machine/speed/symmetric_tensors.py [--json FILE]

The two take turns of some calls; a figure is the median of the turns in microseconds, of the
slowest rank. A size is the larger side of a rank. Every result of symmetric tensors is compared
with that of ordinary ones.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from shm_peers import medians_in_turns

SIZES = [64 << 10, 1 << 20, 16 << 20, 64 << 20]

Call = Callable[[torch.Tensor, torch.Tensor], object]


def sendrecv(output: torch.Tensor, given: torch.Tensor) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    works = [dist.isend(given, (rank + 1) % world), dist.irecv(output, (rank - 1) % world)]
    for work in works:
        work.wait()


def shares(tensor: torch.Tensor) -> list[torch.Tensor]:
    return list(tensor.chunk(dist.get_world_size()))


def at_root(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    return shares(tensor) if dist.get_rank() == 0 else None


def share(tensor: torch.Tensor) -> torch.Tensor:
    return shares(tensor)[0]


CALLS: dict[str, Call] = {
    "all_gather": lambda out, given: dist.all_gather_into_tensor(out, share(given)),
    "all_to_all": lambda out, given: dist.all_to_all_single(out, given),
    "gather": lambda out, given: dist.gather(share(given), at_root(out)),
    "scatter": lambda out, given: dist.scatter(share(out), at_root(given)),
    "reduce_scatter": lambda out, given: dist.reduce_scatter_tensor(share(out), given),
    "sendrecv": sendrecv,
}


def tensors(nbytes: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and input of that size; collective for symmetric ones."""
    count = nbytes // 4
    if not symmetric:
        return torch.zeros(count), torch.arange(count) % 1009 + float(dist.get_rank())
    both = symm_mem.empty(2 * count, dtype=torch.float32, device="cpu")
    symm_mem.rendezvous(both, dist.group.WORLD.group_name)
    both[:count].zero_()
    both[count:].copy_(torch.arange(count) % 1009 + float(dist.get_rank()))
    return both[:count], both[count:]


def measure() -> list[dict]:
    rows = []
    for nbytes in SIZES:
        ordinary, symmetric = tensors(nbytes, False), tensors(nbytes, True)
        for name, call in CALLS.items():
            for output, given in (ordinary, symmetric):
                output.zero_()
                call(output, given)
            wrong = torch.tensor([int((ordinary[0] != symmetric[0]).sum())])
            dist.all_reduce(wrong)
            ways = {
                "ordinary": lambda call=call, of=ordinary: call(*of),
                "symmetric": lambda call=call, of=symmetric: call(*of),
            }
            rows.append(
                {"call": name, "bytes": nbytes, **medians_in_turns(ways), "wrong": int(wrong)}
            )
            if dist.get_rank() == 0:
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    dist.init_process_group("symm")
    symm_mem.set_backend("SYMM")
    rows = measure()
    if arguments.json and dist.get_rank() == 0:
        from torch_symm.tools.machine import describe_machine
        from torch_symm.tools.record_file import write_records

        ranks = dist.get_world_size()
        command = f"torchrun --nproc-per-node {ranks} test/machine/speed/symmetric_tensors.py"
        machine = describe_machine(["symm"], ranks, "cpu")
        write_records(arguments.json, {"command": command, "machine": machine, "rows": rows})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
