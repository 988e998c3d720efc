"""What a program tells its test: one line, from each rank."""

import json
import sys

import torch
import torch.distributed as dist


def report(**figures: float) -> None:
    """Write which backend served the CPU, and what was computed."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    line = {"rank": dist.get_rank(), "backend": type(backend).__name__, "figures": figures}
    # At once: lines of several ranks share a pipe.
    sys.stdout.flush()
    sys.stdout.write("\nreport " + json.dumps(line) + "\n")
    sys.stdout.flush()
