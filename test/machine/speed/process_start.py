"""What the start of a rank on a GPU costs, alone and beside others that start at once.

    python test/machine/speed/process_start.py NUMBER_OF_GPUS [--json FILE]

Seconds; of each phase the median over the processes of a row.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

import torch_symm

_parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
_parser.add_argument("gpus", type=int)
_parser.add_argument("--json", type=Path)

# (groups that begin at once, ranks of each, environment)
FEWER_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
STARTS = [(1, 1, {}), (1, 1, {}), (1, 2, {}), (1, 4, {}), (1, 2, FEWER_QUEUES), (11, 1, {})]
STARTS += [(11, 2, {}), (11, 2, FEWER_QUEUES), (6, 2, {}), (3, 2, {})]


def life(rank: int, ranks: int, store: str, gpus: int) -> dict[str, float]:
    """Seconds by phase."""
    spent: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        spent[f"{name}_s"] = round(time.monotonic() - begin, 3)

    torch.set_num_threads(1)
    with phase("cuda_init"):
        torch.cuda.init()
    with phase("context"):
        torch.cuda.set_device(rank % gpus)
        x = torch.empty(4, device="cuda")
    with phase("first_kernel"):
        x.fill_(1.0)
        torch.cuda.synchronize()
    with phase("init_process_group"):
        limit = datetime.timedelta(seconds=60)
        file = dist.FileStore(store, ranks)
        dist.init_process_group("symm", store=file, rank=rank, world_size=ranks, timeout=limit)
    for name, calls in (("first_all_reduce", 1), ("second_all_reduce", 1), ("ten_all_reduce", 10)):
        with phase(name):
            for _ in range(calls):
                dist.all_reduce(x)
            torch.cuda.synchronize()
    with phase("first_symmetric_tensor"):
        torch_symm.zeros(1024, device="cuda")
    with phase("barrier"):
        dist.barrier()
        torch.cuda.synchronize()
    with phase("destroy"):
        dist.destroy_process_group()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return spent | {"user_s": used.ru_utime, "system_s": used.ru_stime}


def start(groups: int, ranks: int, env: dict[str, str], gpus: int) -> dict[str, object]:
    """One row: the processes are forks of this one, which has imported what they need."""
    os.environ.update(env)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        running = set()
        for number in range(groups * ranks):
            pid = os.fork()
            if pid == 0:
                code = 1
                with contextlib.suppress(Exception):
                    group, rank = divmod(number, ranks)
                    phases = life(rank, ranks, f"{folder}/store{group}", gpus)
                    Path(folder, f"{number}.json").write_text(json.dumps(phases))
                    code = 0
                os._exit(code)
            running.add(pid)
        while running:
            running.discard(os.wait()[0])
        wall = time.monotonic() - begin
        lives = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    for name in env:
        del os.environ[name]
    row = {"groups": groups, "ranks": ranks, **({"env": env} if env else {})}
    row |= {"ended": len(lives), "wall_s": round(wall, 2)}
    return row | {
        name: round(statistics.median(each[name] for each in lives), 3)
        for name in (lives[0] if lives else ())
    }


def main() -> int:
    arguments = _parser.parse_args()
    rows = []
    for groups, ranks, env in STARTS:
        rows.append(start(groups, ranks, env, arguments.gpus))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"starts": rows}, indent=1) + "\n")
    return 0 if all(row["ended"] == row["groups"] * row["ranks"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
