"""Four processes of this machine as two hosts of two: symm inside each, Gloo between them.

    python docs/examples/two_hosts.py

Shows which ranks are on which host, checks an all_reduce by value and times it beside gloo over all
four. The "hosts" share processors and loopback, so the times are of this machine alone.
"""

import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HOSTS = ["left", "left", "right", "right"]
SIZES = [64 << 10, 1 << 20, 16 << 20]
TIMES = 9


def microseconds(group, tensor):
    taken = []
    for _ in range(TIMES):
        dist.barrier(group)
        begin = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        taken.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(taken)


def rank_main(rank, store):
    os.environ["SYMM_HOST_ID"] = HOSTS[rank]
    torch.set_num_threads(1)
    world = len(HOSTS)
    dist.init_process_group("symm", store=dist.FileStore(store, world), rank=rank, world_size=world)
    import torch_symm

    flat = dist.new_group(backend="gloo")
    here = dist.get_process_group_ranks(torch_symm.local_group())
    print(f"rank {rank} is on host {HOSTS[rank]} with ranks {here}", flush=True)
    tensor = torch.full((5,), rank + 1.0)
    dist.all_reduce(tensor)
    assert bool((tensor == 10).all()), tensor
    dist.barrier()
    if rank == 0:
        print("all_reduce        symm over two hosts    gloo over four ranks", flush=True)
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        ours = microseconds(dist.group.WORLD, tensor)
        theirs = microseconds(flat, tensor)
        if rank == 0:
            print(f"{size >> 10:8} KiB {ours:20.0f} us {theirs:20.0f} us", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (os.path.join(folder, "store"),), nprocs=len(HOSTS))
