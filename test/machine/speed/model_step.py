"""Training steps of transformers over symm beside the same over NCCL, a GPU a rank.

    torchrun --nproc-per-node 2 test/machine/speed/model_step.py [--json FILE] [--model NAME] ...

Two transformers of 0.6 and 1.6 thousand million parameters in bfloat16, sharded by FSDP2 layer by
layer, or replicated by DistributedDataParallel. A step is a forward pass, a backward pass and a
fused AdamW. Every way trains the same model in the same processes on the same tokens, in turns of
some steps that begin with a barrier; a figure is the median of the turns in milliseconds a step, of
the slowest rank. The ways:

    nccl, symm    FSDP2 or DDP, and nothing else
    symm_memory   FSDP2 with set_allocate_memory_from_process_group_for_comm: what it gathers and
                  scatters lies in symmetric memory
    alone         the same model without any communication: DDP's without DDP

The first step's loss must be the same over all of them; the losses of the later ones are told.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

# Width, layers.
MODELS = {"0.6G": (2048, 8), "1.6G": (2560, 14)}
VOCABULARY, BATCH, TOKENS, HEAD = 32000, 2, 1024, 128

Step = Callable[[], torch.Tensor]


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.mixed = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 8 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.norms[0](x)).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        heads = scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.mixed(heads.transpose(1, 2).flatten(-2))
        gate, up = self.gate(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * up)


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(name: str) -> Transformer:
    """The same on every rank and each time."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Transformer(*MODELS[name]).bfloat16()


def sharded(name: str, group: dist.ProcessGroup, in_symmetric_memory: bool) -> nn.Module:
    model = build(name)
    mesh = DeviceMesh.from_group(group, "cuda")
    for part in [*model.layers, model]:
        shard = fully_shard(part, mesh=mesh)
        if in_symmetric_memory:
            shard.set_allocate_memory_from_process_group_for_comm(True)
    return model


def ways_of(name: str, form: str, groups: dict[str, dist.ProcessGroup]) -> dict[str, nn.Module]:
    if form == "fsdp":
        ways = {key: sharded(name, group, False) for key, group in groups.items()}
        return ways | {"symm_memory": sharded(name, groups["symm"], True)}
    ways = {
        key: DistributedDataParallel(build(name), process_group=group, gradient_as_bucket_view=True)
        for key, group in groups.items()
    }
    return ways | {"alone": build(name)}


def step_of(model: nn.Module, tokens: torch.Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def slowest(seconds: float) -> float:
    found = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def turn(step: Step, steps: int) -> tuple[float, float]:
    """Milliseconds of a step, and the last loss."""
    torch.cuda.synchronize()
    dist.all_reduce(torch.zeros(1))
    start = time.perf_counter()
    for _ in range(steps):
        loss = step()
    torch.cuda.synchronize()
    return slowest((time.perf_counter() - start) / steps) * 1e3, float(loss)


def measure(name: str, form: str, groups: dict[str, dist.ProcessGroup], turns: int) -> dict:
    models = ways_of(name, form, groups)
    torch.manual_seed(1 + dist.get_rank())
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), device="cuda")
    steps = {key: step_of(model, tokens) for key, model in models.items()}
    first = {key: float(step()) for key, step in steps.items()}
    if len(set(first.values())) != 1:
        raise AssertionError(f"the first step's losses differ: {first}")
    for step in steps.values():
        turn(step, 3)  # the second step makes DDP's buckets anew
    times: dict[str, list[float]] = {key: [] for key in steps}
    losses = {}
    for _ in range(turns):
        for key, step in steps.items():
            took, losses[key] = turn(step, 5)
            times[key].append(round(took, 2))
    return {
        "model": name,
        "form": form,
        "parameters": sum(one.numel() for one in models["symm"].parameters()),
        "milliseconds": {key: round(statistics.median(of), 2) for key, of in times.items()},
        "turns": times,
        "losses": losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", action="append", choices=MODELS, help="all by default")
    parser.add_argument("--form", action="append", choices=["fsdp", "ddp"], help="both by default")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    ranks = list(range(dist.get_world_size()))
    groups = {name: dist.new_group(ranks, backend=name) for name in ("nccl", "symm")}
    rows = []
    for name in arguments.model or MODELS:
        for form in arguments.form or ["fsdp", "ddp"]:
            rows.append(measure(name, form, groups, arguments.turns))
            gc.collect()
            torch.cuda.empty_cache()
            if dist.get_rank() == 0:
                print(rows[-1]["model"], form, rows[-1]["milliseconds"], flush=True)
            if arguments.json and dist.get_rank() == 0:
                from torch_symm.tools.machine import describe_machine
                from torch_symm.tools.record_file import write_records

                command = f"torchrun --nproc-per-node {len(ranks)} test/machine/speed/model_step.py"
                machine = describe_machine(["symm", "nccl"], len(ranks), "cuda")
                write_records(
                    arguments.json, {"command": command, "machine": machine, "rows": rows}
                )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
