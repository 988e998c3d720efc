"""Accelerate: what it prepares learns, gradients are accumulated and clipped, metrics gathered."""

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from report import report

EXAMPLES = 70  # no multiple of the ranks' batches: the last ones are made even

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(3)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
x = torch.randn(EXAMPLES, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(3):
    seen = 0
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        seen += accelerator.gather_for_metrics(loss.detach().repeat(len(inputs))).numel()
    assert seen == EXAMPLES, seen

rank, ranks = accelerator.process_index, accelerator.num_processes
assert accelerator.pad_across_processes(torch.ones(rank + 1)).numel() == ranks
assert gather_object([rank]) == list(range(ranks))
total = accelerator.reduce(torch.tensor([float(rank)]), reduction="sum")
with accelerator.split_between_processes(list(range(2 * ranks))) as part:
    assert part == [2 * rank, 2 * rank + 1]
learned = accelerator.unwrap_model(model).parameters()
report(sum=total.item(), parameters=sum(p.sum().item() for p in learned))
accelerator.end_training()
