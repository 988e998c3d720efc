"""c10d's registry of works in flight, which torch.compile takes as inputs of graphs. A Work that
was waited for leaves it."""

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _get_work_registry_size as registered
from torch.distributed._functional_collectives import allow_inflight_collective_as_graph_input_ctx

from harness import DEVICE, check, synchronize


def waited_for(rank):
    size, problems, before = dist.get_world_size(), [], registered()
    one = torch.ones(4, device=DEVICE)
    parts = torch.zeros(size, 4, device=DEVICE)
    with allow_inflight_collective_as_graph_input_ctx():
        for repeat in range(3):
            works = [
                dist.all_reduce(one.clone(), async_op=True),
                dist.broadcast(one.clone(), 0, async_op=True),
                dist.all_gather_into_tensor(parts, one, async_op=True),
                dist.reduce_scatter_tensor(one.clone(), parts.clone(), async_op=True),
                dist.isend(one, (rank + 1) % size),
                dist.irecv(one.clone(), (rank - 1) % size),
            ]
            if registered() <= before:
                problems.append("nothing is registered, so that nothing is tested")
            for work in works:
                work.wait()
            if registered() != before:
                problems.append(f"{registered() - before} works are left, repeat {repeat}")
    synchronize()
    return problems


def test_a_work_that_was_waited_for_leaves_the_registry():
    check(waited_for, 2)
