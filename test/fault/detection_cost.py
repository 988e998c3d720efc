"""What it costs that failures are noticed.

    python test/fault/detection_cost.py [--repeats 5] [--json cost.json]
    python test/fault/detection_cost.py --device cuda

Two figures: the latency of all_reduce with the watchdog and without (SYMM_WATCHDOG=0), by the
bench, in turns; and the CPU time of a rank that waits for another one, which looks after its peers
meanwhile. On the host there is no watchdog, and the first shows what the machine's noise is.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
_here = Path(__file__).resolve().parent
sys.path[:0] = [str(_here), str(_here.parent / "python" / "support")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from harness import run_ranks  # noqa: E402
from machine_facts import machine  # noqa: E402
from record_file import write_records  # noqa: E402

WAIT = 3.0  # seconds that a rank is waited for


def bench(device: str, on: bool) -> list[dict]:
    """[{"size", "mode", "time_us"}] of one run; the mode is eager, and on a GPU graph too."""
    sizes = ["-b", "256", "-e", "64K"] if device == "cuda" else ["-b", "16", "-e", "64K"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench.json")
        command = [sys.executable, "-m", "torch_symm.bench", "-n", "2", "-c", "all_reduce", *sizes]
        command += ["--factor", "16", "--budget-ms", "300", "--device", device, "--json", str(path)]
        env = {**os.environ, "SYMM_WATCHDOG": str(int(on))}
        subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=300)
        rows = json.loads(path.read_text())["rows"]
    return [
        {key: row[key] for key in ("size", "mode")}
        | {"time_us": row["results"][0]["in_place"]["time_us"]}
        for row in rows
    ]


def compare(device: str, repeats: int) -> list[dict]:
    """Medians a size and mode, on and off."""
    runs = {True: [], False: []}
    for repeat in range(repeats):
        for on in (True, False) if repeat % 2 == 0 else (False, True):
            runs[on].append(bench(device, on))
    rows = []
    for index, first in enumerate(runs[True][0]):
        times = {on: [run[index]["time_us"] for run in runs[on]] for on in runs}
        row = {key: first[key] for key in ("size", "mode")}
        row |= {"on_us": statistics.median(times[True])}
        row |= {"off_us": statistics.median(times[False])}
        row |= {"on_all_us": times[True], "off_all_us": times[False]}
        rows.append(row)
    return rows


def waiting(world: int) -> dict:
    """What rank 0 of `world` spends while it waits for the last rank."""

    def body(rank):
        dist.all_reduce(torch.ones(10))
        if rank == world - 1:
            time.sleep(WAIT)
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        dist.all_reduce(torch.ones(10))
        took = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return spent, took

    spent, took = run_ranks(body, world, fresh=True)[0]
    return {"ranks": world, "waited_s": took, "cpu_s": spent, "share": spent / took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report = {"command": f"python test/fault/detection_cost.py --repeats {arguments.repeats}"}
    report["command"] += " --device cuda" * (arguments.device == "cuda")
    report |= {"machine": machine(), "all_reduce": compare(arguments.device, arguments.repeats)}
    report["waiting"] = [waiting(world) for world in (2, 4)]
    for row in report["all_reduce"]:
        print(
            f"{row['size']:8} bytes, {row['mode']}: {row['on_us']:8.2f} us with,"
            f" {row['off_us']:8.2f} without"
        )
    for row in report["waiting"]:
        words = f"{row['cpu_s'] * 1e3:.1f} ms of CPU time in {row['waited_s']:.1f} s of waiting"
        print(f"{row['ranks']} ranks: {words}, {100 * row['share']:.2f} %")
    if arguments.json:
        write_records(arguments.json, report)


if __name__ == "__main__":
    main()
