"""Injections while CUDA graphs of collectives are replayed."""

import signal
import time

import torch
import torch.distributed as dist

from harness import WORLD_SIZE, Setup
from trials import COLLECTIVES, Ending, Progress, Trial, judge, looping_ranks, rebuild, settle

HANG = 20.0
COUNTS = [30, 40_000, 4_000_000]
CALLS_IN_A_GRAPH = 4


def _static_call(word: str, rank: int, world: int, count: int):
    """A call of the collective on tensors that stay where they are."""
    mine = torch.ones(count, device="cuda")
    out = torch.ones(count, device="cuda")
    whole = torch.ones(count * world, device="cuda")
    whole_out = torch.ones(count * world, device="cuda")
    right, left = (rank + 1) % world, (rank - 1) % world

    def exchange():
        operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, out, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(mine, op=dist.ReduceOp.MAX),
        "reduce": lambda: dist.reduce(mine, 0, op=dist.ReduceOp.MAX),
        "broadcast": lambda: dist.broadcast(mine, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(whole_out, mine),
        "gather": lambda: dist.gather(
            mine, list(whole_out.view(world, count)) if rank == 0 else None, dst=0
        ),
        "scatter": lambda: dist.scatter(
            out, list(whole.view(world, count)) if rank == 0 else None, src=0
        ),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(out, whole, op=dist.ReduceOp.MAX),
        "all_to_all": lambda: dist.all_to_all_single(whole_out, whole),
        "send|recv": exchange,
    }[word]


WORDS = [
    word.strip() for word in COLLECTIVES if word not in ("barrier", "all_reduce ")
]  # a barrier on the host is in no graph


def _replay(rank, setup: Setup, progress: Progress, word: str, count: int, victim) -> Ending:
    """Replays until an eager call raises, which it does as soon as the stream is free again."""
    torch.set_num_threads(1)
    setup.join(rank)
    call = _static_call(word, rank, setup.world_size, count)
    call()
    settle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_IN_A_GRAPH):
            call()
    iteration, started = 0, 0.0
    try:
        while iteration < progress.end():
            started = time.monotonic()
            for _ in range(3):
                graph.replay()
            torch.cuda.synchronize()
            call()  # raises once the group has failed
            iteration += 1
            progress.set(rank, iteration)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        ending = Ending(iteration, 0, started, time.monotonic(), text)
        del graph
        ending.rebuilt = rebuild(rank, setup, victim)
        return ending
    return Ending(iteration, 0, started, time.monotonic())


def killed_in_a_replay(index: int) -> Trial:
    word = WORDS[index % len(WORDS)]
    count = COUNTS[index // len(WORDS) % len(COUNTS)]
    victim, delay = index % WORLD_SIZE, (index * 37 % 23) * 0.0003
    ranks_and_progress = looping_ranks(WORLD_SIZE, word, count, victim=victim, body=_replay)
    with ranks_and_progress as (ranks, _):
        time.sleep(delay)
        killed = time.monotonic()
        ranks.signal(victim, signal.SIGKILL)
        reports = ranks.finish(HANG)
    # What a replay was doing when the peer died is known by number, not always by name.
    return judge(reports, victim, None, killed, limit=1.5)
