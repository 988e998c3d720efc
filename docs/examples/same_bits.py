"""Counts the bits that depend on what shares a batch, a bucket or a layer's wrapping.

    torchrun --nproc-per-node 4 docs/examples/same_bits.py --backend symm --out symm.json

An ordinary PyTorch program: the backend is a name on the command line. Each question is answered by
doing the same arithmetic twice, with messages of other sizes, and comparing bit by bit:

- a transformer, tensor parallel: the logits of a prompt that is prefilled in chunks of several
  lengths, and of sequences that are decoded in batches of several sizes;
- a mixture of experts, one expert a rank: the combined output of tokens in batches of other tokens;
- training by DistributedDataParallel with buckets of other sizes, and by FSDP2 with every layer or
  the whole model in one group of parameters, 30 steps from the same weights and data;
- the same with gradients that are added up over 2 or 3 batches before they are reduced: in buckets,
  a parameter at a time, and all parameters in one tensor.

Matrix products are made row by row, so that they do not depend on the batch by themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import rms_norm, softmax
from torch.nn.parallel import DistributedDataParallel

HIDDEN, HEADS, LAYERS, VOCABULARY = 128, 8, 2, 256
PROMPT = 24  # tokens
STEPS = 30


@dataclass
class Answer:
    """What was done in another way, and how many of the elements have other bits."""

    question: str
    elements: int
    different: int


def rows_times(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight, each row by itself."""
    return torch.stack([row @ weight for row in x])


def bits_that_differ(one: torch.Tensor, other: torch.Tensor) -> int:
    integer = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return int((one.contiguous().view(integer) != other.contiguous().view(integer)).sum())


class Layer:
    """This rank's heads and its part of the hidden units of one layer."""

    def __init__(self, seed: int, device: str, dtype: torch.dtype) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        generator = torch.Generator().manual_seed(seed)

        def part(*shape: int, dim: int) -> torch.Tensor:
            whole = torch.randn(*shape, generator=generator) / shape[0] ** 0.5
            return whole.chunk(world, dim)[rank].contiguous().to(device, dtype)

        self.qkv = [part(HIDDEN, HIDDEN, dim=1) for _ in range(3)]
        self.out = part(HIDDEN, HIDDEN, dim=0)
        self.up = part(HIDDEN, 4 * HIDDEN, dim=1)
        self.down = part(4 * HIDDEN, HIDDEN, dim=0)

    def attend(self, x: torch.Tensor, cache: list[list], places: list[int]) -> torch.Tensor:
        """Row i of `x` is the next token of the sequence whose keys and values are in
        cache[places[i]]."""
        queries, keys, values = (rows_times(x, weight) for weight in self.qkv)
        width = HIDDEN // HEADS
        rows = []
        for query, key, value, place in zip(queries, keys, values, places, strict=True):
            cache[place].append((key, value))
            heads = []
            for begin in range(0, query.numel(), width):
                head = slice(begin, begin + width)
                scores = torch.stack([past[head] @ query[head] for past, _ in cache[place]])
                weights = softmax(scores / width**0.5, dim=0)
                seen = torch.stack([past[head] for _, past in cache[place]])
                heads.append(weights @ seen)
            rows.append(torch.cat(heads))
        return rows_times(torch.stack(rows), self.out)


class Transformer:
    """Heads and hidden units are divided over the ranks; two all_reduces a layer."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(1)
        embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator)
        self.embedding = embedding.to(device, dtype)
        self.layers = [Layer(100 + number, device, dtype) for number in range(LAYERS)]

    def new_cache(self, sequences: int) -> list[list[list]]:
        return [[[] for _ in range(sequences)] for _ in self.layers]

    def logits(self, tokens: list[int], cache: list[list[list]], places: list[int]) -> torch.Tensor:
        """Of tokens[i], the next one of sequence places[i]."""
        x = self.embedding[tokens]
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            attended = layer.attend(rms_norm(x, (HIDDEN,)), layer_cache, places)
            dist.all_reduce(attended)
            x = x + attended
            inner = torch.relu(rows_times(rms_norm(x, (HIDDEN,)), layer.up))
            moved = rows_times(inner, layer.down)
            dist.all_reduce(moved)
            x = x + moved
        return rows_times(rms_norm(x, (HIDDEN,)), self.embedding.T.contiguous())


def ask_prefill(device: str, dtype: torch.dtype) -> Iterator[Answer]:
    model = Transformer(device, dtype)
    prompt = [(7 * i * i + 3) % VOCABULARY for i in range(PROMPT)]

    def prefilled(chunk: int) -> torch.Tensor:
        cache, parts = model.new_cache(1), []
        for begin in range(0, PROMPT, chunk):
            tokens = prompt[begin : begin + chunk]
            parts.append(model.logits(tokens, cache, [0] * len(tokens)))
        return torch.cat(parts)

    whole = prefilled(PROMPT)
    for chunk in (1, 5, 16):
        yield Answer(
            f"logits, prefill in chunks of {chunk}",
            whole.numel(),
            bits_that_differ(whole, prefilled(chunk)),
        )


def ask_decode(device: str, dtype: torch.dtype) -> Iterator[Answer]:
    model, sequences = Transformer(device, dtype), 8
    tokens = [[(31 * s + 17 * t) % VOCABULARY for t in range(6)] for s in range(sequences)]

    def decoded(batch: int) -> torch.Tensor:
        results = []
        for first in range(0, sequences, batch):
            chosen = list(range(first, min(first + batch, sequences)))
            cache = model.new_cache(sequences)
            steps = [model.logits([tokens[s][t] for s in chosen], cache, chosen) for t in range(6)]
            results.append(torch.stack(steps, dim=1))
        return torch.cat(results)

    whole = decoded(sequences)
    for batch in (1, 3):
        yield Answer(
            f"logits, decode in batches of {batch} instead of {sequences}",
            whole.numel(),
            bits_that_differ(whole, decoded(batch)),
        )


def ask_experts(device: str, dtype: torch.dtype) -> Iterator[Answer]:
    """Each token goes to three experts; what they give is summed over the ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(5)
    experts = torch.randn(world, HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5
    expert = experts[rank].to(device, dtype)
    tokens = torch.randn(40, HIDDEN, generator=generator).to(device, dtype)
    gates = torch.rand(40, world, generator=generator).to(device, dtype)

    def combined(chosen: torch.Tensor) -> torch.Tensor:
        mine = rows_times(tokens[chosen], expert) * gates[chosen, rank : rank + 1]
        is_chosen = (gates[chosen].argsort(dim=1)[:, -3:] == rank).any(dim=1, keepdim=True)
        mine = torch.where(is_chosen, mine, torch.zeros_like(mine))
        dist.all_reduce(mine)
        return mine

    whole = combined(torch.arange(40))
    for batch in (1, 7):
        parts = [combined(part) for part in torch.arange(40).split(batch)]
        yield Answer(
            f"mixture of experts, {batch} tokens a batch instead of 40",
            whole.numel(),
            bits_that_differ(whole, torch.cat(parts)),
        )


def new_network() -> nn.Sequential:
    torch.manual_seed(3)
    sizes = [256, 512, 512, 512, 256]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def train(model: nn.Module, device: str) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(50 + dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(8, 256, generator=generator).to(device)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def ask_ddp(device: str) -> Iterator[Answer]:
    def trained(bucket_mb: float) -> torch.Tensor:
        model = DistributedDataParallel(new_network().to(device), bucket_cap_mb=bucket_mb)
        train(model, device)
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    whole = trained(25)
    for bucket_mb in (25, 1, 0.25):
        question = f"parameters, DDP with buckets of {bucket_mb} MB instead of 25"
        if bucket_mb == 25:
            question = "parameters, DDP trained a second time"
        yield Answer(question, whole.numel(), bits_that_differ(whole, trained(bucket_mb)))


def ask_accumulation(device: str) -> Iterator[Answer]:
    """A rank adds up the gradients of several batches, then the ranks theirs."""

    def reduce_alone(gradients: list[torch.Tensor]) -> None:
        for gradient in gradients:
            dist.all_reduce(gradient.div_(dist.get_world_size()))

    def reduce_together(gradients: list[torch.Tensor]) -> None:
        whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
        sizes = [gradient.numel() for gradient in gradients]
        dist.all_reduce(whole.div_(dist.get_world_size()))
        for gradient, part in zip(gradients, whole.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))

    def trained(batches: int, reduce: Callable | None) -> torch.Tensor:
        model = new_network().to(device)
        replica = DistributedDataParallel(model, bucket_cap_mb=1) if reduce is None else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(50 + dist.get_rank())
        for _ in range(STEPS):
            for batch in range(batches):
                is_last = batch == batches - 1
                x = torch.randn(8, 256, generator=generator).to(device)
                with contextlib.nullcontext() if reduce or is_last else replica.no_sync():
                    (replica(x) - x.roll(1, dims=1)).square().mean().backward()
            if reduce is not None:
                reduce([p.grad for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    for batches in (2, 3):
        in_buckets = trained(batches, None)
        for words, reduce in (
            ("each parameter alone", reduce_alone),
            ("all in one tensor", reduce_together),
        ):
            yield Answer(
                f"parameters, gradients of {batches} batches reduced {words}, not in DDP's buckets",
                in_buckets.numel(),
                bits_that_differ(in_buckets, trained(batches, reduce)),
            )


def ask_fsdp(device: str) -> Iterator[Answer]:
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))

    def trained(each_layer: bool) -> torch.Tensor:
        model = new_network().to(device)
        if each_layer:
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, device)
        return torch.cat([p.detach().full_tensor().reshape(-1) for p in model.parameters()])

    whole = trained(each_layer=True)
    yield Answer(
        "parameters, FSDP2 trained a second time",
        whole.numel(),
        bits_that_differ(whole, trained(each_layer=True)),
    )
    yield Answer(
        "parameters, FSDP2 with the whole model in one group instead of each layer",
        whole.numel(),
        bits_that_differ(whole, trained(each_layer=False)),
    )


def ask_all(device: str, dtype: torch.dtype) -> list[Answer]:
    """Collective over the default group; the same answers on every rank."""
    answers = [
        *ask_prefill(device, dtype),
        *ask_decode(device, dtype),
        *ask_experts(device, dtype),
        *ask_ddp(device),
        *ask_accumulation(device),
        *ask_fsdp(device),
    ]
    # Of all ranks together: no rank may differ.
    counts = torch.tensor([[a.elements, a.different] for a in answers], device=device)
    dist.all_reduce(counts)
    return [
        Answer(answer.question, int(elements), int(different))
        for answer, (elements, different) in zip(answers, counts.tolist(), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", default="symm")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--out", type=Path, help="where rank 0 writes the answers as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group(arguments.backend)
    answers = ask_all(arguments.device, getattr(torch, arguments.dtype))
    if dist.get_rank() == 0:
        print(f"{arguments.backend}, {dist.get_world_size()} ranks, {arguments.dtype}")
        for answer in answers:
            print(f"{answer.different:>10} of {answer.elements:>9}  {answer.question}")
        if arguments.out:
            report = {"backend": arguments.backend, "ranks": dist.get_world_size()}
            report |= {"device": arguments.device, "dtype": arguments.dtype}
            report |= {"torch": torch.__version__, "answers": [asdict(a) for a in answers]}
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
