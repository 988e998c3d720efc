"""Training programs over torch.distributed alone, for tests that compare what they learn over symm
with what they learn over another backend: gloo on the CPU; on CUDA nccl, or, where ranks share a
GPU, which nccl cannot, gloo on the CPU again."""

import pytest
import torch
import torch._dynamo  # optimizers import it: once here rather than in every rank
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from harness import DEVICE, ON_CUDA, WORLD_SIZE, crowded, run_ranks

STEPS = 4
SMALL = 1e-5 if ON_CUDA else 1e-6  # a GPU multiplies matrices of other shapes in another order
FOUR_RANKS = pytest.mark.skipif(WORLD_SIZE != 4, reason="a mesh of two by two needs four ranks")
_device = DEVICE  # of a rank: the reference may run elsewhere


def device_type():
    """Where this run of a program is."""
    return _device


def here(value):
    """A tensor or module on the device on which this run of a program is."""
    return value.to(_device)


class Net(nn.Module):
    def __init__(self, unused_layer=False):
        super().__init__()
        torch.manual_seed(7)
        self.up = nn.Linear(12, 48)
        self.norm = nn.LayerNorm(48)
        self.down = nn.Linear(48, 12)
        self.unused = nn.Linear(3, 3) if unused_layer else None

    def forward(self, x):
        return self.down(F.gelu(self.norm(self.up(x))))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 12, generator=generator)
    return here(x), here(torch.roll(x, 1, 1) * 2)


def train(model, rank, optimizer=None):
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def values(module):
    """Full parameters as plain tensors."""
    named = {}
    for name, p in module.named_parameters():
        p = p.full_tensor() if isinstance(p, DTensor) else p
        named[name.removeprefix("module.")] = p.detach().cpu().clone()
    return named


def on_the_cpu(rank, body):
    global _device
    before, _device = _device, "cpu"
    try:
        return body(rank)
    finally:
        _device = before


def reference(body, **set_up):
    """(results of rank 0 over another backend, tolerance that its arithmetic needs)"""
    settings = {"time_limit": 100, **set_up}
    if not ON_CUDA:
        return run_ranks(body, WORLD_SIZE, backend="gloo", **settings)[0], 0.0
    if not crowded(WORLD_SIZE):
        return run_ranks(body, WORLD_SIZE, backend="nccl", **settings)[0], 1e-4
    # Adam makes much of the last bits of small gradients.
    return run_ranks(on_the_cpu, WORLD_SIZE, body, backend="gloo", **settings)[0], 1e-2


def same_as_the_reference(body, tolerance=1e-5, **set_up):
    """Runs `body` over the backend under test and over another; its result is {name: tensor}."""
    ours = run_ranks(body, WORLD_SIZE, time_limit=100, fresh=True, **set_up)
    for rank, result in enumerate(ours[1:], start=1):
        for name, tensor in result.items():
            assert torch.equal(tensor, ours[0][name]), f"rank {rank} differs from 0 in {name}"
    set_up.pop("backend", None)
    theirs, needed = reference(body, **set_up)
    tolerance = max(tolerance, needed)
    assert ours[0].keys() == theirs.keys()
    for name, tensor in ours[0].items():
        assert torch.allclose(tensor, theirs[name], rtol=tolerance, atol=tolerance), name
    return ours[0]
