"""Collectives over two hosts of two ranks, which this machine plays, beside gloo over all four.

    python test/machine/hosts_speed.py [--sizes 256,65536] [--kinds all_reduce] [--copied]
        [--json FILE]

The two take turns of a few calls; a figure is the median of its turns, of the slowest rank. Every
result is compared with gloo's before anything is timed. `bytes` is the larger side of a rank.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS / "fault"), str(_TESTS / "python" / "support")]

HOSTS = ["left", "left", "right", "right"]
WORLD = len(HOSTS)
SIZES = [256, 4096, 65_536, 1 << 20, 16 << 20, 64 << 20]


def _values(count, rank):
    return (torch.arange(count) % 251 + rank).float()


def _calls(kind, size, rank, group):
    """(call, the tensors that hold its results)."""
    count = max(WORLD, size // 4) // WORLD * WORLD
    whole, share = _values(count, rank), _values(count // WORLD, rank)
    parts = list(whole.chunk(WORLD))
    if kind == "all_reduce":
        into = whole.clone()
        return lambda: dist.all_reduce(into, dist.ReduceOp.MAX, group=group), [into]
    if kind == "reduce":
        into = whole.clone()
        results = [into] if rank == 1 else []
        return lambda: dist.reduce(into, 1, dist.ReduceOp.MAX, group=group), results
    if kind == "broadcast":
        return lambda: dist.broadcast(whole, 1, group=group), [whole]
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, share, group=group), [whole]
    if kind == "reduce_scatter":
        into = torch.empty_like(share)
        return lambda: dist.reduce_scatter_tensor(into, whole, group=group), [into]
    if kind == "all_to_all":
        into = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(into, whole, group=group), [into]
    if kind == "gather":
        into = parts if rank == 1 else None
        return lambda: dist.gather(share, into, 1, group=group), into or []
    if kind == "scatter":
        from_root = parts if rank == 1 else None
        return lambda: dist.scatter(share, from_root, 1, group=group), [share]
    return lambda: dist.barrier(group), []


KINDS = ["all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter"]
KINDS += ["reduce_scatter", "all_to_all", "barrier"]


def _turn(call, times, flat):
    dist.barrier(flat)
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times * 1e6


def _slowest(value, flat):
    figure = torch.tensor([value])
    dist.all_reduce(figure, dist.ReduceOp.MAX, group=flat)
    return round(figure.item(), 1)


def _row(kind, size, rank, flat, turns):
    ours, results = _calls(kind, size, rank, dist.group.WORLD)
    theirs, expected = _calls(kind, size, rank, flat)
    ours(), theirs()
    for mine, other in zip(results, expected, strict=True):
        assert torch.equal(mine, other), f"{kind} of {size} bytes: another result than gloo's"
    times = 20 if size <= 1 << 16 else 5 if size <= 1 << 20 else 2
    symm, gloo = [], []
    for _ in range(turns):
        symm.append(_turn(ours, times, flat))
        gloo.append(_turn(theirs, times, flat))
    symm_us = _slowest(statistics.median(symm), flat)
    gloo_us = _slowest(statistics.median(gloo), flat)
    ratio = round(gloo_us / symm_us, 2)
    return {"kind": kind, "bytes": size, "symm_us": symm_us, "gloo_us": gloo_us, "ratio": ratio}


def _gloo_by_another_name():
    """Of which symm does not know when it has done with a tensor."""

    def make(store, rank, size, timeout):
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("copied", make, devices=["cpu"])
    os.environ["SYMM_INTER_HOST"] = "copied"


def rank_main(rank, store, arguments):
    os.environ["SYMM_HOST_ID"] = HOSTS[rank]
    torch.set_num_threads(1)
    if arguments.copied:
        _gloo_by_another_name()
    dist.init_process_group("symm", store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD)
    flat = dist.new_group(backend="gloo")
    rows = []
    for kind in arguments.kinds.split(","):
        for size in map(int, arguments.sizes.split(",")):
            rows.append(_row(kind, size, rank, flat, arguments.turns))
            if rank == 0:
                print("{kind:15} {bytes:10} {symm_us:10} {gloo_us:10} {ratio:6}".format(**rows[-1]))
            if kind == "barrier":
                break
    if rank == 0 and arguments.json:
        from machine_facts import machine
        from record_file import write_records

        record = {
            "command": "python test/machine/hosts_speed.py " + " ".join(sys.argv[1:]),
            "machine": machine(),
            "kernel": platform.release(),
            "what": "2 hosts of 2 ranks on one machine (SYMM_HOST_ID), gloo between them by "
            "loopback; microseconds, median of turns, slowest rank",
            "turns": arguments.turns,
            "rows": rows,
        }
        write_records(arguments.json, record)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--copied", action="store_true", help="no message in the user's tensors")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print("collective           bytes    symm us    gloo us  ratio")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (os.path.join(folder, "store"), arguments), nprocs=WORLD)


if __name__ == "__main__":
    main()
