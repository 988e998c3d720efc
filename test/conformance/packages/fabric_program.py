"""Lightning Fabric: set-up of model and data, its collectives, a checkpoint."""

import os
import tempfile

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from report import report

fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
fabric.launch()
fabric.seed_everything(1, verbose=False)
plain = nn.Linear(4, 1)
model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4))
for (inputs,) in loader:
    optimizer.zero_grad()
    fabric.backward((model(inputs) - 1).square().mean())
    optimizer.step()
ranks = fabric.all_gather(torch.tensor([float(fabric.global_rank)])).flatten().tolist()
assert ranks == list(range(fabric.world_size)), ranks
folder = fabric.broadcast(tempfile.mkdtemp() if fabric.global_rank == 0 else None)
state = {"model": model, "optimizer": optimizer}
fabric.save(f"{folder}/state", state)
fabric.barrier()
before = [p.detach().clone() for p in model.parameters()]
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
fabric.load(f"{folder}/state", state)
assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))
total = fabric.all_reduce(torch.tensor(1.0), reduce_op="sum").item()
report(sum=total, parameters=sum(p.sum().item() for p in model.parameters()))
