"""Trains a digit classifier with DistributedDataParallel, then with FSDP2, on CPU ranks.

An ordinary PyTorch program: the backend is a name on the command line and nothing else differs.

    torchrun --nproc-per-node 4 docs/examples/train_digits.py --backend symm --out symm.json

Rank 0 writes the loss of every step, the accuracy on the held-out digits and the step times as
JSON. With the same seed and number of ranks, every run sees the same batches and starts from the
same weights.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass(frozen=True)
class Data:
    """This rank's part of the digits."""

    train: DataLoader
    sampler: DistributedSampler
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_data(seed: int, batch_size: int) -> Data:
    """Split the bundled digits the same way on every rank and take this rank's share."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16.0, dtype=torch.float32)
    labels = torch.tensor(labels, dtype=torch.int64)
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, stratify=labels, random_state=seed
    )
    dataset = TensorDataset(images[train], labels[train])
    sampler = DistributedSampler(dataset, shuffle=True, seed=seed, drop_last=True)
    mine = test[dist.get_rank() :: dist.get_world_size()]
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=True)
    return Data(loader, sampler, images[mine], labels[mine])


def build_model(seed: int) -> nn.Sequential:
    """Return a small classifier whose initial weights depend on the seed alone."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def wrap_ddp(model: nn.Sequential) -> nn.Module:
    """Replicate the model; gradients are averaged by all-reduce."""
    return DistributedDataParallel(model)


def wrap_fsdp(model: nn.Sequential) -> nn.Module:
    """Shard every layer; weights are gathered for use, gradients are reduced and scattered."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


PHASES = {"ddp": wrap_ddp, "fsdp": wrap_fsdp}


def mean_over_ranks(value: torch.Tensor) -> float:
    """Return the mean of a scalar over the ranks. Collective."""
    total = value.detach().to(torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def accuracy(model: nn.Module, data: Data) -> float:
    """Return the share of all held-out digits that the model names correctly. Collective."""
    with torch.no_grad():
        right = (model(data.test_images).argmax(dim=1) == data.test_labels).sum()
    counts = torch.stack([right, torch.tensor(len(data.test_labels))])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def train(phase: str, data: Data, arguments: argparse.Namespace) -> dict:
    """Train one model and return its losses, accuracy and step times. Collective."""
    model = PHASES[phase](build_model(arguments.seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    losses: list[float] = []
    step_ms: list[float] = []
    steps = arguments.epochs * len(data.train)
    for epoch in range(arguments.epochs):
        data.sampler.set_epoch(epoch)
        for images, labels in data.train:
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step_ms.append((time.perf_counter() - start) * 1e3)
            losses.append(mean_over_ranks(loss))
            report_progress(phase, len(losses), steps, losses[-1], arguments)
    return {"losses": losses, "accuracy": accuracy(model, data), "step_ms": step_ms}


def report_progress(
    phase: str, step: int, steps: int, loss: float, arguments: argparse.Namespace
) -> None:
    """Print one line from rank 0: JSON for a program that watches, or text now and then."""
    if dist.get_rank() != 0:
        return
    if arguments.progress:
        line = {"phase": phase, "step": step, "steps": steps, "loss": loss}
        print(json.dumps(line), flush=True)
    elif step % 20 == 0 or step == steps:
        print(f"{phase} step {step}/{steps} loss {loss:.4f}", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="symm")
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=32, help="digits per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    parser.add_argument("--progress", action="store_true", help="print every step as JSON")
    return parser.parse_args()


def main() -> None:
    """Train both ways over the named backend and write what rank 0 saw."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    data = load_data(arguments.seed, arguments.batch_size)
    results = {phase: train(phase, data, arguments) for phase in PHASES}
    if dist.get_rank() == 0:
        results["backend"] = arguments.backend
        results["ranks"] = dist.get_world_size()
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(results))
        for phase in PHASES:
            print(f"{phase}: accuracy {results[phase]['accuracy']:.4f}", flush=True)
    # PyTorch 2.13 ends a process with SIGABRT in which Python ends while gloo's thread has not let
    # go of the last call's tensors yet; behind DDP and FSDP2 that thread outlives its group.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
