"""A training step of DistributedDataParallel over symm beside the same over gloo, on the CPU.

    torchrun --nproc-per-node 2 test/machine/speed/ddp_step.py [--json FILE]

Two models: the demo's classifier of digits, and a perceptron of ten million parameters. A step is a
forward pass, a backward pass with its all_reduces, and SGD. Both backends train replicas of the
same model in the same processes, on the same data, in turns of some steps; `alone` is the same
without any all_reduce. A figure is the median of the turns in microseconds a step, of the slowest
rank. After the first steps the replicas over both backends must have the same values but for
rounding, and in the end those of a backend the same bits on all ranks.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "examples"))
from train_digits import build_model

TURNS = 9
SECONDS = 0.15  # of a turn, at least
SEED = 0

Step = Callable[[], None]


def perceptron(seed: int) -> nn.Sequential:
    """10.0 million parameters in six layers."""
    torch.manual_seed(seed)
    widths = [512, 1536, 1536, 1536, 1536, 1280, 128]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


# Model, batch of a rank.
MODELS: dict[str, tuple[Callable[[int], nn.Sequential], int]] = {
    "digits": (build_model, 32),
    "perceptron": (perceptron, 8),
}


def step_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def seconds_of(step: Step, steps: int, control: dist.ProcessGroup) -> float:
    """The slowest rank's, of one step."""
    dist.barrier(group=control)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    found = torch.tensor([(time.perf_counter() - start) / steps], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=control)
    return float(found)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def check_same_bits(replicas: dict[str, nn.Module], control: dist.ProcessGroup) -> None:
    for name, replica in replicas.items():
        mine = weights(replica)
        least, most = mine.clone(), mine.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN, group=control)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=control)
        if not (least.equal(mine) and most.equal(mine)):
            raise AssertionError(f"the ranks' replicas over {name} differ")


def measure(name: str, groups: dict[str, dist.ProcessGroup]) -> dict:
    build, batch = MODELS[name]
    alone = build(SEED)
    count = sum(one.numel() for one in alone.parameters())
    torch.manual_seed(dist.get_rank())
    images = torch.randn(batch, alone[0].in_features)
    labels = torch.randint(alone[-1].out_features, (batch,))
    replicas = {
        backend: DistributedDataParallel(build(SEED), process_group=group)
        for backend, group in groups.items()
    }
    ways = {key: step_of(one, images, labels) for key, one in (replicas | {"alone": alone}).items()}
    control = groups["gloo"]
    for step in ways.values():
        for _ in range(3):  # the second step makes DDP's buckets anew
            step()
    torch.testing.assert_close(*(weights(one) for one in replicas.values()), rtol=1e-4, atol=1e-5)
    steps = max(2, int(SECONDS / seconds_of(ways["gloo"], 3, control)))
    turns: dict[str, list[float]] = {key: [] for key in ways}
    for _ in range(TURNS):
        for key, step in ways.items():
            turns[key].append(seconds_of(step, steps, control))
    check_same_bits(replicas, control)
    row = {"ranks": dist.get_world_size(), "model": name, "parameters": count, "batch": batch}
    row |= {key: round(statistics.median(of) * 1e6, 1) for key, of in turns.items()}
    return row | {"ratio": round(row["gloo"] / row["symm"], 2), "steps": steps, "turns": TURNS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"symm": dist.new_group(backend="symm"), "gloo": dist.group.WORLD}
    rows = []
    for name in MODELS:
        rows.append(measure(name, groups))
        if dist.get_rank() == 0:
            print(rows[-1], flush=True)
    if arguments.json and dist.get_rank() == 0:
        from torch_symm.tools.machine import describe_machine
        from torch_symm.tools.record_file import write_records

        ranks = dist.get_world_size()
        command = f"torchrun --nproc-per-node {ranks} test/machine/speed/ddp_step.py"
        machine = describe_machine(["symm", "gloo"], ranks, "cpu")
        write_records(arguments.json, {"command": command, "machine": machine, "rows": rows})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
