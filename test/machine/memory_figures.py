"""Times what makes memory symmetric: allocation, rendezvous, contiguous_view; first and again.

    python test/machine/memory_figures.py [--device cuda] [--world 4] [--backends SYMM CUDA]
                                         [--mebibytes 1 64 1024] [--repeats 7] [--json figures.json]

Each repetition allocates anew and frees at its end. A time is that of the slowest rank, the ranks
having met before; of the repetitions the median is told, and the first one beside it, which also
makes what lasts as long as the group.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

_here = Path(__file__).resolve().parent
sys.path.insert(0, str(_here.parent / "python" / "support"))
_parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
_parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
_parser.add_argument("--world", type=int, default=4)
_parser.add_argument("--backends", nargs="+", default=["SYMM"], help="of PyTorch's API")
_parser.add_argument("--mebibytes", nargs="+", type=int, default=[1, 64, 1024])
_parser.add_argument("--repeats", type=int, default=7)
_parser.add_argument("--json", type=Path)
arguments = _parser.parse_args()
os.environ["SYMM_TEST_DEVICE"] = arguments.device  # before harness is imported

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as symm_mem  # noqa: E402

import torch_symm  # noqa: E402
from harness import DEVICE, device_of_rank, run_ranks, synchronize  # noqa: E402
from record_file import write_records  # noqa: E402
from torch_symm.tools.machine import describe_machine  # noqa: E402


def timed(call):
    """(what `call` returns, its seconds)."""
    start = time.perf_counter()
    value = call()
    return value, time.perf_counter() - start


def one_repetition(size: int, views: bool) -> dict[str, float]:
    """Seconds of each step on this rank. The bytes that the ranks show each other are checked."""
    rank, world, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    seconds = {}

    def step(name, call):
        dist.barrier()
        value, seconds[name] = timed(call)
        return value

    def allocate():
        tensor = symm_mem.empty(size, dtype=torch.uint8, device=device_of_rank())
        synchronize()
        return tensor

    tensor = step("allocation", allocate)
    tensor[-1:].fill_(rank + 1)
    synchronize()
    handle = step("rendezvous", lambda: symm_mem.rendezvous(tensor, group))
    step("rendezvous again", lambda: symm_mem.rendezvous(tensor, group))
    peer = (rank + 1) % world
    last = handle.get_buffer(peer, (1,), torch.uint8, size - 1)
    assert int(last) == peer + 1, "the peer's memory does not show what the peer wrote"
    if views:
        view = step("contiguous_view", lambda: torch_symm.contiguous_view(tensor))
        step("contiguous_view again", lambda: torch_symm.contiguous_view(tensor))
        assert view[:, -1].tolist() == list(range(1, world + 1)), "a slice is another rank's"
        del view
    dist.barrier()
    del last, handle

    def free():
        nonlocal tensor
        del tensor
        synchronize()

    step("free", free)
    return seconds


def body(rank: int, backend: str) -> dict[int, list[dict[str, float]]]:
    if symm_mem.get_backend(DEVICE) != backend:
        symm_mem.set_backend(backend)
    if backend == "CUDA":
        symm_mem.enable_symm_mem_for_group(dist.group.WORLD.group_name)
    dist.all_reduce(torch.ones(1, device=DEVICE))  # context and workspace are not counted
    synchronize()
    return {
        mebibytes: [
            one_repetition(mebibytes << 20, backend == "SYMM") for _ in range(arguments.repeats)
        ]
        for mebibytes in arguments.mebibytes
    }


def summarize(by_rank: list[dict]) -> list[dict]:
    """One row for each size and step, in milliseconds."""
    rows = []
    for mebibytes in arguments.mebibytes:
        for step in by_rank[0][mebibytes][0]:
            slowest = [
                1e3 * max(rank[mebibytes][repeat][step] for rank in by_rank)
                for repeat in range(arguments.repeats)
            ]
            rows.append(
                {
                    "mebibytes": mebibytes,
                    "step": step,
                    "first_ms": round(slowest[0], 4),
                    "median_ms": round(statistics.median(slowest[1:] or slowest), 4),
                }
            )
    return rows


def machine_of(rank: int) -> dict:
    return describe_machine(arguments.backends, arguments.world, arguments.device)


def keep(results: dict) -> None:
    """Writes what there is; another backend may be slow."""
    if not arguments.json:
        return
    # Asked in a process of its own: this one forks ranks, and must not have used a GPU.
    machine = run_ranks(machine_of, 1)[0]
    command = "test/machine/memory_figures.py " + " ".join(sys.argv[1:])
    report = {"command": command, "machine": machine, "results": results}
    write_records(arguments.json, report)


def main() -> int:
    results = {}
    for backend in arguments.backends:
        group = "symm" if backend == "SYMM" else "nccl"
        by_rank = run_ranks(body, arguments.world, backend, backend=group, time_limit=240)
        results[backend] = summarize(by_rank)
        print(f"{backend}, {arguments.world} ranks, {arguments.device}")
        for row in results[backend]:
            print(
                f"  {row['mebibytes']:5} MiB  {row['step']:22} first {row['first_ms']:10.3f} ms"
                f"  median {row['median_ms']:10.3f} ms"
            )
        keep(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
