"""torch_symm.ops on GPUs: captured into a graph, and right at every replay."""

import pytest
import torch
import torch.distributed as dist

from fused import product, same, small
from harness import DEVICE, WORLD_SIZE, check, synchronize

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(120)]

ROWS, K, N = 12, 6, 32


def forms(ops, size, rank, a, b, dtype):
    """(the call, what a rank expects of all ranks' `a`)"""

    def share(total):
        return total.chunk(size)[rank]

    weight = torch.ones(N, dtype=dtype, device=DEVICE)
    for pieces in (1, 3):
        yield (
            lambda pieces=pieces: ops.all_gather_matmul(a, [b], 0, pieces=pieces)[0],
            lambda every: product(torch.cat(every), b.cpu()),
        )
        yield (
            lambda pieces=pieces: ops.matmul_reduce_scatter(a, b, pieces=pieces),
            lambda every: share(sum(product(one, b.cpu()) for one in every)),
        )
        yield (
            lambda pieces=pieces: ops.matmul_all_reduce(a, b, pieces=pieces),
            lambda every: sum(product(one, b.cpu()) for one in every),
        )
        yield (
            lambda pieces=pieces: ops.all_reduce_rms_norm(
                a @ b, weight, 0.0, residual=torch.zeros_like(a @ b), pieces=pieces
            )[1],
            lambda every: sum(product(one, b.cpu()) for one in every),
        )


def captured(rank, dtype):
    from torch_symm import ops

    size, problems = dist.get_world_size(), []
    a = torch.zeros(ROWS * size, K, dtype=dtype, device=DEVICE)
    b = small((K, N), 9, 0, dtype).to(DEVICE)
    for number, (call, expected) in enumerate(forms(ops, size, rank, a, b, dtype)):
        call()
        synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()
        for salt in range(4):
            every = [small(a.shape, r, salt + number, dtype) for r in range(size)]
            a.copy_(every[rank])
            result.fill_(-1)
            graph.replay()
            synchronize()
            problems += same(f"form {number}, replay {salt}", result, expected(every))
        dist.barrier()
    return problems


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_captured(dtype):
    check(captured, WORLD_SIZE, dtype)
