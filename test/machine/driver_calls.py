"""Counts the driver calls of warm collectives on CUDA and says which of them should not be there.

    python test/machine/driver_calls.py [--world 2] [--calls 1000] [--json calls.json]

Each collective is called a few times, then --calls times between two marks. In that time there may
be no allocation, no synchronisation, no copy and no loading of code; asynchronous calls may record
and await events; and there must be as many kernel launches as calls (two for a send with its recv).
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["SYMM_TEST_DEVICE"] = "cuda"
_here = Path(__file__).resolve().parent
sys.path.insert(0, str(_here.parent / "python" / "support"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from harness import GPUS, crowded, run_ranks  # noqa: E402
from record_file import write_records  # noqa: E402

WARM_CALLS = 5
# Parts of names of what a warm call may not do.
FORBIDDEN = {
    "allocates": ("MemAlloc", "MemFree", "MemCreate", "MemRelease", "MemMap", "MemUnmap"),
    "allocates host memory": ("HostAlloc", "HostRegister", "HostUnregister", "MemHostGet"),
    "synchronises": ("Synchronize",),
    "copies": ("Memcpy",),
    "loads code": ("ModuleLoad", "LibraryLoad", "LibraryGet", "ModuleGetFunction"),
    "queries memory": ("PointerGetAttribute", "MemGetAddressRange", "MemRetain"),
}
# barrier() is there to hold up the host.
MAY_SYNCHRONISE = {"barrier"}


def cases(rank: int, world: int, count: int) -> dict:
    """{name: (call, launches of one call)}; every tensor is made here."""
    mine = torch.ones(count, device="cuda")
    out = torch.ones(count, device="cuda")
    whole = torch.ones(count * world, device="cuda")
    whole_out = torch.ones(count * world, device="cuda")
    parts, parts_out = list(whole.view(world, count)), list(whole_out.view(world, count))
    right, left = (rank + 1) % world, (rank - 1) % world

    def exchange():
        works = [dist.isend(mine, right), dist.irecv(out, left)]
        for work in works:
            work.wait()

    to_oneself = [dist.P2POp(dist.isend, mine, rank), dist.P2POp(dist.irecv, parts_out[0], rank)]

    def batch(*more):
        operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, out, left), *more]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return {
        "all_reduce": (lambda: dist.all_reduce(mine), 1),
        "all_reduce async": (lambda: dist.all_reduce(mine, async_op=True).wait(), 1),
        "reduce": (lambda: dist.reduce(mine, 0), 1),
        "broadcast": (lambda: dist.broadcast(mine, 0), 1),
        "all_gather": (lambda: dist.all_gather(parts_out, mine), 1),
        "all_gather_into_tensor": (lambda: dist.all_gather_into_tensor(whole_out, mine), 1),
        "gather": (lambda: dist.gather(mine, parts_out if rank == 0 else None, 0), 1),
        "scatter": (lambda: dist.scatter(out, parts if rank == 0 else None, 0), 1),
        "reduce_scatter": (lambda: dist.reduce_scatter(out, parts), 1),
        "reduce_scatter_tensor": (lambda: dist.reduce_scatter_tensor(out, whole), 1),
        "all_to_all": (lambda: dist.all_to_all(parts_out, parts), 1),
        "all_to_all_single": (lambda: dist.all_to_all_single(whole_out, whole), 1),
        "isend and irecv": (exchange, 2),
        "batch_isend_irecv": (batch, 1),
        "batch with oneself": (lambda: batch(*to_oneself), 1),
        "barrier": (dist.barrier, 0),  # meets the ranks on the host
    }


class Counter:
    """The library of driver_call_counter.cpp in this process."""

    def __init__(self, path: str):
        self._library = ctypes.CDLL(path)
        self._library.driver_calls_report.restype = ctypes.c_size_t
        self._library.driver_calls_report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        if status := self._library.driver_calls_subscribe():
            raise RuntimeError(f"CUPTI refuses to tell of driver calls: error {status}")

    def count(self, call, times: int) -> dict[str, int]:
        self._library.driver_calls_start()
        for _ in range(times):
            call()
        self._library.driver_calls_stop()
        text = ctypes.create_string_buffer(1 << 16)
        self._library.driver_calls_report(text, len(text))
        lines = [line.split() for line in text.value.decode().splitlines()]
        return {name: int(calls) for name, calls in lines}


def findings(name: str, counted: dict[str, int], expected_launches: int) -> list[str]:
    """What should not have been, in words."""
    found = []
    for what, parts in FORBIDDEN.items():
        if what == "synchronises" and name in MAY_SYNCHRONISE:
            continue
        guilty = {n: c for n, c in counted.items() if any(part in n for part in parts)}
        if guilty:
            found.append(f"{what}: {guilty}")
    launches = sum(calls for called, calls in counted.items() if "Launch" in called)
    if launches != expected_launches:
        found.append(f"{launches} launches, expected {expected_launches}")
    return found


def body(rank, world, calls, counts, counter_path):
    torch.ones(1, device="cuda")  # a context first
    counter = Counter(counter_path)
    rows = []
    for count in counts:
        for name, (call, launches) in cases(rank, world, count).items():
            for _ in range(WARM_CALLS):
                call()
            torch.cuda.synchronize()
            dist.barrier()
            counted = counter.count(call, calls)
            torch.cuda.synchronize()
            wrong = findings(name, counted, calls * launches)
            rows.append({"collective": name, "count": count, "driver_calls": counted})
            rows[-1]["findings"] = wrong
    return rows


def build_counter(folder: str) -> str:
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    path = f"{folder}/driver_call_counter.so"
    command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC"]
    for place in (f"{cuda}/include", f"{cuda}/extras/CUPTI/include"):
        command += ["-I", place]
    command += [str(_here / "driver_call_counter.cpp"), "-o", path]
    for place in (f"{cuda}/lib64", f"{cuda}/extras/CUPTI/lib64"):
        command += [f"-L{place}", f"-Wl,-rpath,{place}"]
    # torch has loaded a libcupti of the same name by then, and the loader takes that one.
    subprocess.run([*command, "-lcupti"], check=True, timeout=120)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--world", type=int, default=max(2, min(GPUS, 4)))
    parser.add_argument("--calls", type=int, help="default: 1000, or 50 where ranks share a GPU")
    parser.add_argument("--counts", default="256,65536,8388608", help="float32 elements, by commas")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.calls = arguments.calls or (50 if crowded(arguments.world) else 1000)
    counts = [int(text) for text in arguments.counts.split(",")]
    with tempfile.TemporaryDirectory(prefix="symm_calls_") as folder:
        path = build_counter(folder)
        results = run_ranks(
            body, arguments.world, arguments.world, arguments.calls, counts, path, time_limit=500
        )
    report = {"world": arguments.world, "gpus": GPUS, "calls": arguments.calls, "ranks": results}
    if arguments.json:
        write_records(arguments.json, report)
    bad = 0
    for rank, rows in enumerate(results):
        for row in rows:
            bad += bool(row["findings"])
            if rank == 0 or row["findings"]:
                shown = "; ".join(row["findings"]) or "as it should be"
                print(f"rank {rank} {row['collective']:24} {row['count']:9}  {shown}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
