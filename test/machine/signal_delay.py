"""How long a handler of a signal waits while its process waits inside an all_reduce.

    python test/machine/signal_delay.py [--signals 60] [--json FILE]

Rank 0 waits for rank 1, on its host and on another one, which this machine plays. A thread of
rank 0 sends signals at random moments; then rank 1 comes, and the sum is looked at.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / name) for name in ("fault", "python/support")
]

HOSTS = {"its host": ["one", "one"], "another host": ["one", "other"]}


def _send(signals, sent, heard, store):
    for _ in range(signals):
        time.sleep(0.1 + random.random() / 10)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(heard) < len(sent):
            time.sleep(0.001)
    store.set("all heard", "yes")


def rank_main(rank, folder, where, signals):
    os.environ["SYMM_HOST_ID"] = HOSTS[where][rank]
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("symm", store=store, rank=rank, world_size=2)
    value = torch.ones(4)
    dist.barrier()
    if rank == 0:
        sent, heard = [], []
        signal.signal(signal.SIGUSR1, lambda *_: heard.append(time.monotonic()))
        threading.Thread(target=_send, args=(signals, sent, heard, store)).start()
    else:
        store.wait(["all heard"])
    dist.all_reduce(value)
    assert value.eq(2).all(), value
    if rank == 0:
        delays = [1e3 * (end - begin) for begin, end in zip(sent, heard, strict=True)]
        Path(folder, "delays").write_text(" ".join(map(str, delays)))
    dist.destroy_process_group()


def measured(where, signals):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (folder, where, signals), nprocs=2)
        delays = sorted(map(float, Path(folder, "delays").read_text().split()))
    return {
        "waits for a rank of": where,
        "signals": len(delays),
        "least_ms": round(delays[0], 1),
        "median_ms": round(statistics.median(delays), 1),
        "most_ms": round(delays[-1], 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", type=int, default=60)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [measured(where, arguments.signals) for where in HOSTS]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if arguments.json:
        from machine_facts import machine
        from record_file import write_records

        command = f"python test/machine/signal_delay.py --signals {arguments.signals}"
        write_records(arguments.json, {"command": command, "machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
