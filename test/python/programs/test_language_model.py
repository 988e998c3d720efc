"""A small language model, trained as such programs do: tied embeddings, causal attention, gradients
accumulated over micro-batches, clipped by their norm, a learning rate that warms up and decays, a
loss that is averaged over the ranks for the log, a checkpoint that rank 0 writes and all resume
from. Over symm it learns what it learns over gloo."""

import io
import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from harness import WORLD_SIZE, device_of_rank
from training import FOUR_RANKS, device_type, here, same_as_the_reference, values

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 29, 16, 32, 4, 2
STEPS, MICRO_BATCHES, WARM_UP = 6, 2, 2
TEXT = "the ranks of a group meet, and none of them waits for ever. " * 40


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries, self.values = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        # A bias of the keys changes no attention: its gradient is what rounding leaves, and Adam
        # makes steps of it.
        self.keys = nn.Linear(WIDTH, WIDTH, bias=False)
        self.merge = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x):
        def heads(tensor):
            return tensor.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

        parts = [heads(layer(x)) for layer in (self.queries, self.keys, self.values)]
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.merge(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class LanguageModel(nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        torch.manual_seed(11)
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def text_batch(reader: int, step: int):
    ids = torch.tensor([ord(letter) % VOCABULARY for letter in TEXT])
    draw = torch.Generator().manual_seed(100 * step + reader)
    starts = torch.randint(len(ids) - CONTEXT - 1, (4,), generator=draw)
    x = torch.stack([ids[start : start + CONTEXT] for start in starts])
    y = torch.stack([ids[start + 1 : start + CONTEXT + 1] for start in starts])
    return here(x), here(y)


def learning_rate(step: int) -> float:
    if step < WARM_UP:
        return 3e-3 * (step + 1) / WARM_UP
    return 3e-4 + 2.7e-3 * 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP)))


def accumulate(model, reader, step, last_only):
    """The mean loss of a step's micro-batches; gradients meet in the last one."""
    total = 0.0
    for micro in range(MICRO_BATCHES):
        last_only(micro == MICRO_BATCHES - 1)
        loss = model(*text_batch(reader, MICRO_BATCHES * step + micro)) / MICRO_BATCHES
        loss.backward()
        total += loss.detach()
    return total


def pretrain(model, reader, optimizer, last_only, steps) -> list[float]:
    """The losses of `steps`, averaged over the ranks."""
    losses = []
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        loss = accumulate(model, reader, step, last_only)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    return losses


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1)


def learned(model, losses):
    assert losses[-1] < losses[0] - 0.3, losses
    return values(model) | {"losses": torch.tensor(losses)}


def data_parallel(rank):
    """With a checkpoint half way, from which a second model goes on."""
    model, second = DDP(here(LanguageModel())), DDP(here(LanguageModel()))
    optimizer = adam(model)

    def last_only(last, of=model):
        of.require_backward_grad_sync = last

    half = STEPS // 2
    losses = pretrain(model, rank, optimizer, last_only, range(half))
    saved = [None]
    if rank == 0:
        file = io.BytesIO()
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, file)
        saved = [file.getvalue()]
    dist.broadcast_object_list(saved, src=0)
    state = torch.load(io.BytesIO(saved[0]), map_location=device_of_rank())
    again = adam(second)
    second.module.load_state_dict(state["model"])
    again.load_state_dict(state["optimizer"])

    rest = range(half, STEPS)
    losses += pretrain(model, rank, optimizer, last_only, rest)
    resumed = pretrain(second, rank, again, lambda last: last_only(last, second), rest)
    assert resumed == losses[half:], (resumed, losses)
    return learned(model, losses)


def test_data_parallel():
    same_as_the_reference(data_parallel)


@pytest.mark.cpu("the ranks' checks of each other are gloo's, which want tensors of the CPU")
def test_data_parallel_with_pytorchs_checks():
    same_as_the_reference(data_parallel, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


def fully_sharded(rank, shape):
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh(device_type(), shape, mesh_dim_names=names)
    model = here(LanguageModel(tied=False))
    for part in [*model.blocks, model]:
        fully_shard(part, mesh=mesh)
    model.set_allocate_memory_from_process_group_for_comm(True)
    last_only = model.set_requires_gradient_sync
    return learned(model, pretrain(model, rank, adam(model), last_only, range(STEPS)))


def test_fully_sharded():
    same_as_the_reference(lambda rank: fully_sharded(rank, (WORLD_SIZE,)))


@FOUR_RANKS
def test_sharded_in_each_half_of_the_ranks():
    same_as_the_reference(lambda rank: fully_sharded(rank, (2, 2)))
