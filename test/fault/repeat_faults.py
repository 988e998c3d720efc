"""Reductions repeated in other processes, by other algorithms, in other chunks, and on CUDA in
replayed graphs: every bit must be the one that it was."""

import functools
import random
import time

import torch
import torch.distributed as dist

import model
from digests import ALGORITHMS, copy_here, run_set_up
from harness import ON_CUDA, WORLD_SIZE, options_with, run_ranks
from trials import Trial

COUNTS = [1, 1027, 70_001, 400_003]
WORKSPACES = [4096, 8192, 131_072] if ON_CUDA else [512, 1024, 4096, 32_768]  # KiB
WORLDS = [2] if WORLD_SIZE == 2 else [2, 3, 4]


def _instruction_sets() -> list[str | None]:
    with open("/proc/cpuinfo") as file:
        flags = file.read()
    needs = {"baseline": "", "avx2": " avx2 ", "avx512": " avx512bw "}
    return [None, *(isa for isa, flag in needs.items() if flag in flags)]


@functools.cache
def _reference(world):
    return run_set_up(world, counts=COUNTS)


def _in_graphs(rank, counts):
    """{label: digest} of all_reduce: eager, and five replays of a graph of it."""
    digests, problems = {}, []
    for dtype, op in ((torch.float32, "SUM"), (torch.bfloat16, "AVG"), (torch.float16, "SUM")):
        for count in counts:
            mine = copy_here(model.make_input(dtype, count, rank, 5, op))
            tensor = mine.clone()
            dist.all_reduce(tensor, op=model.reduce_op(op, rank))
            torch.cuda.synchronize()
            label = f"all_reduce {model.name(dtype)} {op} {count}"
            digests[label] = model.digest(tensor)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                dist.all_reduce(tensor, op=model.reduce_op(op, rank))
            for _ in range(5):
                tensor.copy_(mine)
                graph.replay()
                if model.digest(tensor) != digests[label]:
                    problems.append(f"{label}: a replay differs from the eager call")
    return digests, problems


def _replayed(world, settings) -> list[str]:
    results = run_ranks(_in_graphs, world, COUNTS, fresh=True, time_limit=100, **settings)
    problems = [line for _, lines in results for line in lines]
    for rank, (digests, _) in enumerate(results):
        expected = _reference(world)[rank]
        problems += [
            f"rank {rank}: {label}" for label in digests if digests[label] != expected[label]
        ]
    return problems


def _differences(world, digests) -> list[str]:
    return [
        f"rank {rank}: {label}"
        for rank, (ours, reference) in enumerate(zip(digests, _reference(world), strict=True))
        for label in reference
        if ours[label] != reference[label]
    ]


def same_bits(index: int) -> Trial:
    """One run with settings of its own; each of its results is compared with the sequential model
    too."""
    rng = random.Random(index)
    world = WORLDS[index % len(WORLDS)]
    chosen = {
        "algorithm": rng.choice(["auto", *ALGORITHMS]),
        "workspace_bytes": rng.choice(WORKSPACES) << 10,
    }
    isa = rng.choice(_instruction_sets())
    settings = {"options": options_with(**chosen), "env": {"SYMM_ISA": isa} if isa else None}
    start = time.monotonic()
    if ON_CUDA and index % 2:
        problems = _replayed(world, settings)
    else:
        asynchronous = rng.random() < 0.5
        digests = run_set_up(world, async_op=asynchronous, counts=COUNTS, **settings)
        problems = _differences(world, digests)
    label = f"{world} ranks, {chosen}, {isa}: differ: "
    return Trial(not problems, [time.monotonic() - start], label + ", ".join(problems[:10]))
