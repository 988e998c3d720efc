"""What the examples share: the group, the device, and how a result is compared.

TRITON_INTERPRET=1 torchrun --nproc-per-node 4 docs/examples/kernels/halo_exchange.py
torchrun --nproc-per-node 4 docs/examples/kernels/halo_exchange.py --device cuda
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist


def random(*shape: int, device: str, seed: int) -> torch.Tensor:
    """The same numbers on every device; another seed, other numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest one, relative to the largest value; a poison that is left is infinitely far."""
    distance = (got - expected).abs().max() / expected.abs().max().clamp(min=1.0)
    return float(torch.nan_to_num(distance, nan=float("inf")))


def gathered(x: torch.Tensor) -> torch.Tensor:
    """The rows of all ranks, by torch.distributed. Collective."""
    whole = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(whole, x)
    return whole


def run(example: Callable[[str], float], allowed: float = 1e-5) -> int:
    """Runs `example(device)`, which returns how far it is from torch.distributed. Collective."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="symm")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group(arguments.backend)
    distance = example(arguments.device)
    if dist.get_rank() == 0:
        print(f"{example.__doc__} Differs by {distance:.1e}, allowed {allowed:.0e}.")
    dist.destroy_process_group()
    return 0 if distance <= allowed else 1
