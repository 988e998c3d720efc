"""all_reduce of sparse tensors: the entries of all ranks, with the bits of the dense all_reduce."""

import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import model
from errors import ERRORS, message_of, unsaid
from harness import DEVICE, IS_SYMM, ON_CUDA, check, expect_no_mismatch, run_ranks, synchronize
from hosts import check_on

pytestmark = pytest.mark.skipif(not IS_SYMM, reason="of what symm promises beyond gloo")

# (shape, number of its sparse dimensions).
SHAPES = [((7,), 1), ((50, 3), 1), ((11, 13), 2), ((5, 1, 9, 2), 3), ((1000, 64), 1), ((6, 0), 1)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
# Between hosts their places, and their values, are more than the leaders exchange.
LARGE = [((300_001,), 1), ((9000, 64), 1)]


def entries(shape, sparse_dimensions, dtype, rank, salt):
    """Of a rank: some indices more than once, and none at all on some ranks."""
    numbers = torch.Generator().manual_seed(1000 * salt + rank)
    most = 1 + int(torch.tensor(shape[:sparse_dimensions]).prod()) // 2
    count = 0 if (rank + salt) % 3 == 0 else int(torch.randint(most, (1,), generator=numbers)) + 1
    indices = torch.stack(
        [torch.randint(size, (count,), generator=numbers) for size in shape[:sparse_dimensions]]
    )
    values = torch.randint(-40, 40, (count, *shape[sparse_dimensions:]), generator=numbers)
    values = (values / 7).to(dtype) if dtype.is_floating_point else values.to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape).to(DEVICE)


def problems_of(what, got, dense, mine, size, shape_of):
    """`dense`: what the dense all_reduce of the same numbers gives."""
    problems = model.mismatch(what, got.to_dense(), dense)
    everybody = [entries(*shape_of, r, mine).coalesce().indices().cpu() for r in range(size)]
    union = torch.unique(torch.cat(everybody, dim=1), dim=1)
    if not got.is_coalesced():
        problems.append(f"{what}: not coalesced")
    elif not torch.equal(got.indices().cpu(), union):
        problems.append(f"{what}: indices {got.indices().tolist()}, not {union.tolist()}")
    return problems


def like_the_dense_one(rank, shapes=SHAPES, dtypes=DTYPES):
    size, problems = dist.get_world_size(), []
    for salt, (shape, dimensions) in enumerate(shapes):
        for dtype in dtypes:
            of_shape = (shape, dimensions, dtype)
            what = f"{shape} {dtype}"
            given = entries(*of_shape, rank, salt)
            dense = given.coalesce().to_dense()  # which adds what stands twice in another order
            dist.all_reduce(dense)
            works = []
            for asynchronous in (False, True):
                tensor = given.clone()
                works.append((tensor, dist.all_reduce(tensor, async_op=asynchronous)))
            # Calls behind it keep their place.
            after = torch.full((3,), rank + 1.0, device=DEVICE)
            dist.all_reduce(after)
            for tensor, work in works:
                if work is not None:
                    work.wait()
                problems += problems_of(what, tensor, dense, salt, size, of_shape)
            synchronize()
            if not bool((after == size * (size + 1) / 2).all()):
                problems.append(f"{what}: the call after it")
    return problems


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_sparse_all_reduce_has_the_bits_of_the_dense_one(world_size):
    check(like_the_dense_one, world_size)


def shapes_that_differ(rank):
    """Every rank raises, names both shapes, and goes on."""
    wrong = {
        "shape": torch.ones(4 + rank, 3).to_sparse(1),
        "sparse dimensions": torch.ones(4, 3).to_sparse(1 + rank % 2),
        "dtype": torch.ones(4, dtype=torch.float32 if rank else torch.float64).to_sparse(),
    }
    words = {
        "shape": [r"\[4, 3\]", r"\[5, 3\]", "rank 1"],
        "sparse dimensions": ["with 1 sparse", "with 2 sparse", "rank 1"],
        "dtype": ["Float", "Double", "rank 1"],
    }
    problems = []
    for what, tensor in wrong.items():
        tensor = tensor.to(DEVICE)
        before = tensor.to_dense().clone()
        problems += unsaid(message_of(ValueError, dist.all_reduce, tensor), words[what])
        problems += model.mismatch(f"{what}: left alone", tensor.to_dense(), before)
        right = torch.eye(3, device=DEVICE).to_sparse()
        dist.all_reduce(right)
        problems += model.mismatch("after it", right.to_dense().cpu(), 3 * torch.eye(3))
    return problems


def test_shapes_that_differ_are_named_on_every_rank():
    expect_no_mismatch(run_ranks(shapes_that_differ, 3, fresh=True))


def sparse_against_dense(rank):
    """Ranks that call different things raise, and none waits. A dense call returns before its GPU
    has met the other rank: one behind it raises."""
    tensor = torch.eye(3, device=DEVICE)

    def calls():
        dist.all_reduce(tensor.to_sparse() if rank == 0 else tensor)
        until = time.monotonic() + 10
        while ON_CUDA and time.monotonic() < until:
            dist.all_reduce(tensor)
            time.sleep(0.01)

    text = message_of(ERRORS, calls)
    return unsaid(text, ["different calls|gave up", "all_gather", "all_reduce"])


def test_a_sparse_and_a_dense_call_do_not_mix():
    expect_no_mismatch(run_ranks(sparse_against_dense, 2, fresh=True))


class Words(torch.nn.Module):
    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = torch.nn.Embedding(200, 16, sparse=sparse)
        self.head = torch.nn.Linear(16, 1)

    def forward(self, words):
        return self.head(self.embedding(words).mean(1))


def trained(rank, sparse, group=None):
    network = DistributedDataParallel(Words(sparse).to(DEVICE), process_group=group)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    words = torch.Generator().manual_seed(rank)
    for _step in range(4):
        optimizer.zero_grad()
        network(torch.randint(200, (8, 5), generator=words).to(DEVICE)).square().sum().backward()
        gradient = network.module.embedding.weight.grad
        optimizer.step()
    assert gradient.is_sparse == sparse
    return [p.detach().cpu().clone() for p in network.parameters()]


def differences(some, others):
    return [
        f"differs by {(one - other).abs().max()}"
        for one, other in zip(some, others, strict=True)
        if not torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    ]


def trains_alike(rank):
    return differences(trained(rank, True), trained(rank, False))


def test_data_parallel_training_with_sparse_gradients():
    check(trains_alike, 2)


def on_hosts(rank, hosts, function, *args):
    return function(rank, *args)


SAME_NOTES = pytest.mark.skipif(ON_CUDA, reason="NCCL compares no calls between hosts")


@pytest.mark.uncrowded  # of GPUs: NCCL between them
class TestOverHosts:
    @pytest.mark.parametrize("hosts", ["aabb", "aab", "abab", "ab"])
    def test_it_has_the_bits_of_the_dense_one_there(self, hosts):
        check_on(hosts, on_hosts, like_the_dense_one)
        check_on(hosts, on_hosts, like_the_dense_one, LARGE, [torch.float32])

    @SAME_NOTES
    def test_shapes_that_differ_are_named_on_every_rank(self):
        check_on("aab", on_hosts, shapes_that_differ)

    @SAME_NOTES
    def test_a_sparse_and_a_dense_call_do_not_mix(self):
        check_on("ab", on_hosts, sparse_against_dense, timeout=5.0)

    @pytest.mark.parametrize("hosts", ["aabb", "aba"])
    def test_training_is_like_over_gloo(self, hosts):
        check_on(hosts, on_hosts, trains_as_over_gloo)


def trains_as_over_gloo(rank):
    gloo = dist.new_group(backend="gloo")
    return differences(trained(rank, True), trained(rank, True, gloo))
