"""The bits of every reduction, as digests that can be compared between runs and set-ups."""

import torch
import torch.distributed as dist

import model
from harness import DEVICE, ON_CUDA, run_ranks

REDUCTIONS = [
    (torch.float16, "SUM"),
    (torch.bfloat16, "AVG"),
    (torch.float32, "SUM"),
    (torch.float32, "PREMUL_SUM"),
    (torch.float64, "AVG"),
    (torch.float8_e4m3fn, "SUM"),
    (torch.float8_e5m2fnuz, "AVG"),
    (torch.int8, "AVG"),
    (torch.complex64, "SUM"),
]
COUNTS = [1, 1027, 70001, 1200003]
# That some reduction has on the device.
ALGORITHMS = ["ll", "ll_two_shot", "bulk"]
if not ON_CUDA:
    ALGORITHMS = ["one_shot", "two_shot", "ring", "pipelined"]


def copy_here(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the device under test."""
    return tensor.to(DEVICE, copy=True)


def reduce_everything(counts, async_op=False):
    """({(dtype, op, count, collective): digest}, mismatches with the model) of this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    digests, problems = {}, []

    def finish(work):
        if async_op:
            work.wait()

    def note(what, count, dtype, op, got, expected):
        label = f"{what} {model.name(dtype)} {op} {count}"
        digests[label] = model.digest(got)
        problems.extend(model.mismatch(label, got, expected))

    for dtype, op in REDUCTIONS:
        for count in counts:
            every = [model.make_input(dtype, count, r, 5, op) for r in range(world)]
            expected = model.reduced(every, op)
            tensor = copy_here(every[rank])
            finish(dist.all_reduce(tensor, op=model.reduce_op(op, rank), async_op=async_op))
            note("all_reduce", count, dtype, op, tensor, expected)

            tensor = copy_here(every[rank])
            finish(dist.reduce(tensor, 0, op=model.reduce_op(op, rank), async_op=async_op))
            if rank == 0:
                note("reduce", count, dtype, op, tensor, expected)

            share = count // world
            mine = torch.empty(share, dtype=dtype, device=DEVICE)
            whole = copy_here(every[rank])[: share * world]
            finish(
                dist.reduce_scatter_tensor(
                    mine, whole, op=model.reduce_op(op, rank), async_op=async_op
                )
            )
            part = expected[rank * share : (rank + 1) * share]
            note("reduce_scatter", count, dtype, op, mine, part)
    return digests, problems


def run_set_up(world_size, async_op=False, counts=COUNTS, **set_up):
    results = run_ranks(
        lambda rank: reduce_everything(counts, async_op),
        world_size,
        time_limit=100,
        fresh=True,
        **set_up,
    )
    problems = [line for _, rank_problems in results for line in rank_problems]
    assert not problems, "\n".join(problems[:20])
    return [digests for digests, _ in results]
