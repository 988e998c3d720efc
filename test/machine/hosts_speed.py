"""Collectives over two hosts of two ranks, which this machine plays, beside gloo over all four.

    python test/machine/hosts_speed.py [--sizes 256,65536] [--kinds all_reduce] [--copied]
        [--legs] [--device cuda] [--json FILE]

The two take turns of a few calls; a figure is the median of its turns, of the slowest rank. Every
result is compared with gloo's before anything is timed. `bytes` is the larger side of a rank.

With `--legs` a call's legs alone take turns with it: what the ranks of a host do among each other
(`local_us`), and the messages of a rail, one of a whole share each, by the engine (`engine_us`).
They are those of a call over rails, also where the call goes by leaders. Beside each time is, as
`.._cpu_us`, that of the processors in all four processes.

With `--device cuda` each rank has a GPU of its own where there are four, else each host, whose two
ranks share it, and NCCL is between the hosts: two GPUs are needed. Ranks that share one take turns
on it, some milliseconds each, so that then only bytes that take longer say anything. The legs are
beside a call there too, and `ratio` is that of the call to the longer of the two.
"""

import argparse
import os
import platform
import resource
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


_device = "cpu"  # of this process


def _values(count, rank):
    return (torch.arange(count) % 251 + rank).float().to(_device)


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
LEG_KINDS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
GPU_SIZES = [64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]


def _turn(call, times, flat):
    """(microseconds a call, those of processors in this process)"""
    _settle()
    dist.barrier(flat)
    begin, used = time.perf_counter(), _processor_s()
    for _ in range(times):
        call()
    _settle()
    spent = time.perf_counter() - begin, _processor_s() - used
    return tuple(each / times * 1e6 for each in spent)


def _processor_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _settle():
    if _device != "cpu":
        torch.cuda.synchronize()


def _local_legs(kind, size, inside):
    """The collectives that the ranks of a host carry out among each other, in one call."""
    count = max(WORLD, size // 4) // WORLD * WORLD
    whole, half = _values(count, 0), _values(count // 2, 0)
    quarter = _values(count // 4, 0)
    if kind == "all_reduce":

        def legs():
            dist.reduce_scatter_tensor(half, whole, group=inside)
            dist.all_gather_into_tensor(whole, half, group=inside)

    elif kind == "broadcast":

        def legs():  # the root's host; the other one has an all_gather
            dist.broadcast(whole, dist.get_global_rank(inside, 0), group=inside)

    elif kind == "all_gather":

        def legs():
            for _ in range(2):
                dist.all_gather_into_tensor(half, quarter, group=inside)

    else:

        def legs():
            for _ in range(2):
                dist.reduce_scatter_tensor(quarter, half, group=inside)

    return legs


def _engine_leg(kind, size, rank, rail):
    """The messages of a rank of a rail, whole, by the engine alone."""
    share = size // 4 // (2 if kind in ("all_reduce", "broadcast") else 4)
    to, came = _values(share, 0), _values(share, 0)
    peer = (rank + 2) % WORLD
    both = kind != "broadcast"

    def leg():
        operations = []
        if both or rank < 2:
            operations.append(dist.P2POp(dist.isend, to, peer, group=rail))
        if both or rank >= 2:
            operations.append(dist.P2POp(dist.irecv, came, peer, group=rail))
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return leg


def _row_with_legs(kind, size, rank, groups, turns):
    global _device
    flat, inside, rail = groups
    on_cpu = _device == "cpu"
    ours, results = _calls(kind, size, rank, dist.group.WORLD)
    device, _device = _device, "cpu"
    theirs, expected = _calls(kind, size, rank, flat)
    _device = device
    ours(), theirs(), _settle()
    for mine, other in zip(results, expected, strict=True):
        assert torch.equal(mine.cpu(), other), f"{kind} of {size} bytes: another result than gloo's"
    bodies = {
        "symm": ours,
        "local": _local_legs(kind, size, inside),
        "engine": _engine_leg(kind, size, rank, rail),
    }
    if on_cpu:
        bodies["gloo"] = theirs
    times = 20 if size <= 1 << 20 else 5
    spent = {name: [] for name in bodies}
    processors = dict.fromkeys(bodies, 0.0)
    for turn in range(turns + 1):
        for name, body in bodies.items():
            each, processor = _turn(body, times, flat)
            if turn > 0:  # the first one warms up
                spent[name].append(each)
                processors[name] += processor / turns
    row = {"kind": kind, "bytes": size}
    for name, each in spent.items():
        row[f"{name}_us"] = _slowest(statistics.median(each), flat)
        if on_cpu:
            row[f"{name}_cpu_us"] = _of_all(processors[name], dist.ReduceOp.SUM, flat)
    if on_cpu:
        ratio = row["gloo_us"] / row["symm_us"]
    else:
        ratio = row["symm_us"] / max(row["local_us"], row["engine_us"])
    return row | {"ratio": round(ratio, 2)}


def _of_all(value, op, flat):
    figure = torch.tensor([value])
    dist.all_reduce(figure, op, group=flat)
    return round(figure.item(), 1)


def _slowest(value, flat):
    return _of_all(value, dist.ReduceOp.MAX, flat)


def _row(kind, size, rank, flat, turns):
    ours, results = _calls(kind, size, rank, dist.group.WORLD)
    theirs, expected = _calls(kind, size, rank, flat)
    ours(), theirs()
    for mine, other in zip(results, expected, strict=True):
        assert torch.equal(mine, other), f"{kind} of {size} bytes: another result than gloo's"
    times = 20 if size <= 1 << 16 else 5 if size <= 1 << 20 else 2
    symm, gloo = [], []
    for _ in range(turns):
        symm.append(_turn(ours, times, flat)[0])
        gloo.append(_turn(theirs, times, flat)[0])
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


def _groups_of_legs(flat, engine):
    """(over gloo of all ranks, over symm of this host's, over the engine of this rail's)"""
    rank = dist.get_rank()
    inside = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    rails = [dist.new_group(ranks, backend=engine) for ranks in ([0, 2], [1, 3])]
    return flat, inside[rank // 2], rails[rank % 2]


def _has_gpu_a_rank():
    return torch.cuda.device_count() >= WORLD


def _gpus_in_words():
    return f"a GPU for each {'rank' if _has_gpu_a_rank() else 'host'}, nccl between the hosts"


def rank_main(rank, store, arguments):
    global _device
    os.environ["SYMM_HOST_ID"] = HOSTS[rank]
    torch.set_num_threads(1)
    on_gpus = arguments.device == "cuda"
    if on_gpus:
        _device = "cuda"
        os.environ["SYMM_INTER_HOST"] = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(rank if _has_gpu_a_rank() else rank // 2)
    if arguments.copied:
        _gloo_by_another_name()
    dist.init_process_group("symm", store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD)
    flat = dist.new_group(backend="gloo")
    has_legs = on_gpus or arguments.legs
    groups = _groups_of_legs(flat, "nccl" if on_gpus else "gloo") if has_legs else None
    rows = []
    for kind in arguments.kinds.split(","):
        for size in map(int, arguments.sizes.split(",")):
            if has_legs:
                rows.append(_row_with_legs(kind, size, rank, groups, arguments.turns))
            else:
                rows.append(_row(kind, size, rank, flat, arguments.turns))
            if rank == 0:
                print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
            if kind == "barrier":
                break
    if rank == 0 and arguments.json:
        from machine_facts import machine
        from record_file import write_records

        record = {
            "command": "python test/machine/hosts_speed.py " + " ".join(sys.argv[1:]),
            "machine": machine(),
            "kernel": platform.release(),
            "what": "2 hosts of 2 ranks on one machine (SYMM_HOST_ID), "
            + (_gpus_in_words() if on_gpus else "gloo between them by loopback")
            + "; microseconds, median of turns, slowest rank",
            "turns": arguments.turns,
            "device": torch.cuda.get_device_name() if on_gpus else "cpu",
            "rows": rows,
        }
        write_records(arguments.json, record)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--kinds", help="all; with legs those that have them here")
    parser.add_argument("--sizes", help="bytes")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--legs", action="store_true", help="the legs of a call beside it")
    parser.add_argument("--copied", action="store_true", help="no message in the user's tensors")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    on_gpus = arguments.device == "cuda"
    with_legs = on_gpus or arguments.legs
    arguments.kinds = arguments.kinds or ",".join(LEG_KINDS if with_legs else KINDS)
    arguments.sizes = arguments.sizes or ",".join(map(str, GPU_SIZES if on_gpus else SIZES))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (os.path.join(folder, "store"), arguments), nprocs=WORLD)


if __name__ == "__main__":
    main()
