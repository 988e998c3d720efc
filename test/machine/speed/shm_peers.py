"""all_reduce over symm beside DeepSpeed's shared-memory all_reduce for inference on CPUs.

    pip download --no-deps --no-binary :all: deepspeed; tar xzf deepspeed-*.tar.gz
    torchrun --nproc-per-node 2 test/machine/speed/shm_peers.py --sources deepspeed-0.19.8
        [--json FILE]

Compiles the peer's two sources with its own flags. The two take turns of some calls on the same
tensors; a figure is the median of the turns in microseconds, of the slowest rank. symm is called by
torch.distributed, the peer as its operator. Every result is compared with the exact one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

SIZES = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20, 4 << 20]
DTYPES = [torch.float32, torch.bfloat16]
TURNS = 15
SECONDS = 0.01  # of a turn, at least


def peer(sources: Path) -> None:
    """Registers torch.ops.deepspeed.inference_all_reduce_, which rank 0 compiles. Collective."""
    folder = sources / "csrc" / "cpu"
    if dist.get_rank() != 0:
        dist.barrier()
    module = cpp_extension.load(
        "deepspeed_shm_comm",
        [str(folder / "comm" / name) for name in ("shm_interface.cpp", "shm.cpp")],
        extra_include_paths=[str(folder / "includes"), str(folder / "comm")],
        extra_cflags=["-O2", "-fopenmp"],
    )
    if dist.get_rank() == 0:
        dist.barrier()
    os.environ["LOCAL_SIZE"] = str(dist.get_world_size())  # else it has no shared memory
    module.initialize(dist.get_world_size(), dist.get_rank())


def seconds_of(call, calls: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def slowest(seconds: float) -> float:
    found = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def medians_in_turns(ways: dict) -> dict[str, float]:
    """Microseconds a call of each way, which take turns. Collective."""
    calls = {
        name: max(3, int(SECONDS / slowest(seconds_of(call, 5)))) for name, call in ways.items()
    }
    turns: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, call in ways.items():
            turns[name].append(slowest(seconds_of(call, calls[name])))
    return {name: round(statistics.median(of) * 1e6, 2) for name, of in turns.items()}


def wrong(call, tensor: torch.Tensor) -> int:
    """Elements of this rank that are not the sum of small whole numbers."""
    places = torch.arange(tensor.numel()) % 13
    tensor.copy_(places + dist.get_rank())
    call()
    ranks = dist.get_world_size()
    return int((tensor != (places * ranks + ranks * (ranks - 1) // 2).to(tensor.dtype)).sum())


def measure() -> list[dict]:
    rows = []
    for dtype in DTYPES:
        for nbytes in SIZES:
            tensor = torch.zeros(nbytes // dtype.itemsize, dtype=dtype)
            ways = {
                "symm": lambda tensor=tensor: dist.all_reduce(tensor),
                "deepspeed": lambda tensor=tensor: torch.ops.deepspeed.inference_all_reduce_(
                    tensor
                ),
            }
            bad = torch.tensor([wrong(call, tensor) for call in ways.values()])
            dist.all_reduce(bad)
            tensor.zero_()
            medians = medians_in_turns(ways)
            row = {"dtype": str(dtype).removeprefix("torch."), "bytes": nbytes}
            rows.append(row | medians | {"wrong": bad.tolist()})
            if dist.get_rank() == 0:
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sources", type=Path, required=True, help="DeepSpeed's, unpacked")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    dist.init_process_group("symm")
    peer(arguments.sources)
    rows = measure()
    if arguments.json and dist.get_rank() == 0:
        from torch_symm.tools.machine import describe_machine
        from torch_symm.tools.record_file import write_records

        command = (
            f"torchrun --nproc-per-node {dist.get_world_size()} test/machine/speed/shm_peers.py"
        )
        machine = describe_machine(["symm"], dist.get_world_size(), "cpu")
        write_records(
            arguments.json,
            {"command": command, "peer": arguments.sources.name, "machine": machine, "rows": rows},
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
