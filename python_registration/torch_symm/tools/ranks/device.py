"""The device of a rank."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def open_device(kind: str) -> torch.device:
    """Return this rank's device of ``kind`` and make it the current one.

    A GPU is chosen by LOCAL_RANK modulo the GPUs that the process sees: ranks beyond them share,
    and a process that sees one GPU uses that one.
    """
    if kind == "cpu":
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def check_device(kind: str) -> None:
    """Raise ValueError, with the reason, where ``kind`` cannot be used here."""
    if kind == "cpu" or torch.cuda.is_available():
        return
    problem = "torch sees no GPU"
    if torch.version.cuda is None and torch.version.hip is None:
        problem = f"torch {torch.__version__} is built without CUDA"
    raise ValueError(f"--device: {kind} cannot be used here: {problem}")


def default_ranks(kind: str) -> int:
    """Return the ranks to start where nothing else is asked for: one a GPU, and at least two."""
    return max(2, torch.cuda.device_count() if kind == "cuda" else 0)


def synchronize(device: torch.device) -> None:
    """Wait for everything queued on ``device``; errors of earlier work show here."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def group_barrier(group: dist.ProcessGroup, device: torch.device) -> None:
    """Run a barrier of ``group`` on ``device``. Collective; blocks the host."""
    if device.type == "cuda":
        # Naming the device keeps torch from guessing it, and from using the CPU of a backend that
        # serves both.
        dist.barrier(group=group, device_ids=[device.index])
    else:
        dist.barrier(group=group)
