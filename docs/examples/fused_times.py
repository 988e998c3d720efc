"""Times of matmul and collective, one after the other and as one call.

    torchrun --nproc-per-node 2 docs/examples/fused_times.py --device cpu --json fused.json

For each shape, milliseconds of the slowest rank, the median of rounds in which every way has its
turn: the matmul alone; the collective and the matmul in one piece, one after the other; the call as
it cuts itself; the call in four pieces. `cut` is into how many pieces the call cut itself, and
`wrong` says how many elements differ from one after the other by more than the dtype rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from torch_symm import ops
from torch_symm.ops import pieces

# Rows, what a product sums over, columns; of the whole, and of a model's layers with two ranks.
SHAPES = [(64, 512, 512), (512, 4096, 1024), (2048, 1024, 256), (4096, 256, 256), (8192, 512, 512)]


def ways(m: int, k: int, n: int, dtype: torch.dtype, device: str) -> dict[str, tuple]:
    """By form: (the matmul alone, the call in so many pieces, what is cut: kind, rows, bytes)"""
    size, options = dist.get_world_size(), {"dtype": dtype, "device": device}
    a, b = torch.randn(m // size, k, **options), torch.randn(k, n, **options)
    left, right = torch.randn(m, k // size, **options), torch.randn(k // size, n, **options)
    whole = torch.randn(m, k, **options)
    return {
        "all_gather_matmul": (
            lambda: whole @ b,
            lambda count: ops.all_gather_matmul(a, [b], 0, pieces=count)[0],
            ("gather", m // size, a.nbytes),
        ),
        "matmul_reduce_scatter": (
            lambda: left @ right,
            lambda count: ops.matmul_reduce_scatter(left, right, pieces=count),
            ("reduce", m // size, m // size * n * dtype.itemsize),
        ),
        "matmul_all_reduce": (
            lambda: left @ right,
            lambda count: ops.matmul_all_reduce(left, right, pieces=count),
            ("reduce", m, m * n * dtype.itemsize // size),
        ),
    }


def medians(functions: list[Callable[[], object]], rounds: int, device: str) -> list[float]:
    """Milliseconds of the slowest rank, for each."""
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(rounds + 1):
        for function, own in zip(functions, times, strict=True):
            dist.barrier()
            start = time.perf_counter()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            everybody: list = [None] * dist.get_world_size()
            dist.all_gather_object(everybody, float(seconds))
            if turn:  # the first one is cold
                own.append(max(everybody) * 1e3)
    return [round(statistics.median(own), 3) for own in times]


def measure(arguments: argparse.Namespace) -> list[dict]:
    rows = []
    dtype = getattr(torch, arguments.dtype)
    for m, k, n in SHAPES:
        for form, (matmul, call, cut) in ways(m, k, n, dtype, arguments.device).items():
            count = pieces.count(None, *cut, arguments.device, dist.get_world_size())
            expected, got = call(1), call(None)
            allowed = 2 * k * torch.finfo(dtype).eps
            wrong = int(((got - expected).abs() > allowed * expected.abs().max()).sum())
            calls = [lambda call=call, pieces=number: call(pieces) for number in (1, None, 4)]
            times = medians([matmul, *calls], arguments.rounds, arguments.device)
            alone, after, fused, in_four = times
            rows.append(
                {"form": form, "m": m, "k": k, "n": n, "cut": count, "matmul": alone}
                | {"one_after_the_other": after, "fused": fused, "in_four": in_four, "wrong": wrong}
            )
            if dist.get_rank() == 0:
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("symm")
    rows = measure(arguments)
    if arguments.json and dist.get_rank() == 0:
        from torch_symm.tools.machine import describe_machine
        from torch_symm.tools.record_file import write_records

        command = f"fused_times.py --device {arguments.device} --dtype {arguments.dtype}"
        machine = describe_machine(["symm"], dist.get_world_size(), arguments.device)
        write_records(arguments.json, {"command": command, "machine": machine, "rows": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
