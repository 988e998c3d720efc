"""Callbacks of futures that issue operations and wait for them: at any depth, over several groups,
of collectives and of messages; and PyTorch's own DDP communication hooks, which do so."""

import threading

import pytest
import torch
import torch._dynamo  # optimizers import it: once here rather than in every rank
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.optim import as_functional_optim
from torch.nn.parallel import DistributedDataParallel as DDP

from harness import DEVICE, IS_SYMM, expect_no_mismatch, run_ranks

MANY = 1 << 18
DEPTH = 5


def summed(value, count=5, group=None):
    """The future of one all_reduce of tensors that are `value` on every rank."""
    tensor = torch.full((count,), float(value), device=DEVICE)
    return dist.all_reduce(tensor, group=group, async_op=True).get_future()


def first(tensors):
    """An element of a future's value."""
    return tensors[0][0].item()


def nested_sums(depth):
    """The results of all_reduces each of which is issued, and waited for, in the callback of the
    one before."""
    found = []

    def callback(future, level):
        found.append(first(future.value()))
        if level < depth:
            inner = summed(10 + level, MANY if level % 2 else 5)
            inner.then(lambda future: callback(future, level + 1)).wait()
        return found

    outer = summed(1, MANY)
    return outer.then(lambda future: callback(future, 0))


def nested(rank):
    expected = [2.0] + [2.0 * (10 + level) for level in range(DEPTH)]
    problems = []
    for _ in range(10):
        sums = nested_sums(DEPTH)
        # In flight while the callbacks run, and issued before or after them, as it happens.
        behind = [summed(100 + i) for i in range(3)]
        if sums.wait() != expected:
            problems.append(f"got {sums.value()}, expected {expected}")
        got = [first(future.wait()) for future in behind]
        if got != [200.0, 202.0, 204.0]:
            problems.append(f"behind the callbacks: {got}")
    return problems


def test_a_callback_waits_for_what_it_issues():
    expect_no_mismatch(run_ranks(nested, 2))


def synchronous_calls(rank):
    problems = []
    for _ in range(10):
        tensors = [torch.full((5,), float(i), device=DEVICE) for i in range(4)]

        def callback(future, tensors=tensors):
            dist.all_reduce(tensors[1])
            work = dist.all_reduce(tensors[2], async_op=True)
            work.wait()
            dist.barrier()
            return first(future.value())

        result = dist.all_reduce(tensors[0] + 7, async_op=True).get_future().then(callback)
        dist.all_reduce(tensors[3])
        got = [result.wait(), *(t[0].item() for t in tensors)]
        if got != [14.0, 0.0, 2.0, 4.0, 6.0]:
            problems.append(f"got {got}")
    return problems


def test_a_callback_makes_synchronous_calls():
    expect_no_mismatch(run_ranks(synchronous_calls, 2))


def results(rank):
    problems = []
    for _ in range(10):
        tensor = torch.ones(MANY, device=DEVICE)
        found = []

        def callback(future, level, tensor=tensor, found=found):
            found.append(future.wait())
            if level < DEPTH:
                inner = dist.all_reduce(tensor, async_op=True).get_future_result()
                inner.then(lambda future: callback(future, level + 1)).wait()

        outer = dist.all_reduce(tensor, async_op=True).get_future_result()
        outer.then(lambda future: callback(future, 0)).wait()
        if found != [0] * (DEPTH + 1) or tensor[-1].item() != 2 ** (DEPTH + 1):
            problems.append(f"results {found}, last element {tensor[-1].item()}")
    return problems


@pytest.mark.skipif(not IS_SYMM, reason="gloo has no future of a result")
def test_a_callback_of_a_result_waits_for_the_next_result():
    expect_no_mismatch(run_ranks(results, 2))


def two_groups(rank):
    """Sums in a group, then in another one, then in the first again, each in a callback of the one
    before, as a hierarchy of groups does."""
    other = dist.new_group([0, 1])
    problems = []
    for _ in range(10):
        sums = summed(1, MANY).then(
            lambda future: (
                summed(first(future.value()), MANY, other)
                .then(lambda future: first(summed(first(future.value())).wait()))
                .wait()
            )
        )
        behind = summed(5)  # in `other` it would race with the callbacks
        got = [sums.wait(), first(behind.wait())]
        if got != [8.0, 10.0]:
            problems.append(f"got {got}")
    dist.destroy_process_group(other)
    return problems


def test_callbacks_of_two_groups_wait_for_each_other():
    expect_no_mismatch(run_ranks(two_groups, 2))


def sum_with_callback(rank, callback, key):
    """The future of a callback that runs while the caller goes on: rank 1 joins the sum once rank 0
    has given the callback. Rank 1 gets the future of the sum."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait([key])
        return summed(1)
    future = summed(1).then(callback)
    store.set(key, "given")
    return future


def works_from_outside(rank):
    """What a callback waits for was issued outside of it, and is held while the callback runs."""
    problems = []
    for turn in range(5):
        works, issued = [], threading.Event()

        def callback(future, works=works, issued=issued):
            if not issued.wait(20):
                raise RuntimeError("the thread that issues did not go on")
            works[1].wait()
            return first(summed(4).wait())

        future = sum_with_callback(rank, callback, f"works from outside {turn}")
        tensors = [torch.full((5,), float(i + 1)) for i in range(3)]
        works += [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:2]]
        if rank == 1:
            future = summed(4).then(lambda future: first(future.value()))
        works.append(dist.all_reduce(tensors[2], async_op=True))
        issued.set()
        for work in works:
            work.wait()
        got = [future.wait(), *(tensor[0].item() for tensor in tensors)]
        if got != [8.0, 2.0, 4.0, 6.0]:
            problems.append(f"turn {turn}: got {got}")
    return problems


@pytest.mark.cpu("callbacks on a GPU run where they are given")
@pytest.mark.skipif(not IS_SYMM, reason="gloo lets the ranks' orders differ")
def test_a_callback_waits_for_works_from_outside():
    expect_no_mismatch(run_ranks(works_from_outside, 2))


def future_from_outside(rank):
    held, issued = [], threading.Event()

    def callback(future):
        issued.wait(20)
        return held[0].wait()

    future = sum_with_callback(rank, callback, "future from outside")
    held.append(summed(2))
    issued.set()
    try:
        (held[0] if rank else future).wait()
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.mark.cpu("callbacks on a GPU run where they are given")
@pytest.mark.skipif(not IS_SYMM, reason="gloo lets the ranks' orders differ")
def test_a_future_from_outside_ends_at_the_time_out():
    ours, peers = run_ranks(future_from_outside, 2, timeout=1)
    assert "did not begin within 1.0" in ours, ours
    assert "a callback" in ours, ours
    assert "symm [timeout]" in peers, peers


def messages(rank):
    peer = 1 - rank
    problems = []
    for _ in range(10):
        received = [torch.zeros(MANY) for _ in range(DEPTH + 1)]

        def callback(future, level, received=received):
            if level == DEPTH:
                return
            sent = dist.isend(torch.full((MANY,), level + 1.0), peer, tag=level + 1).get_future()
            inner = dist.irecv(received[level + 1], peer, tag=level + 1).get_future()
            inner.then(lambda future: callback(future, level + 1)).wait()
            sent.wait()

        # Before then(), which runs the callback itself where the message is there already: that
        # waits for what the peer sends only once it has this message.
        first = dist.isend(torch.zeros(MANY), peer, tag=0)
        future = dist.irecv(received[0], peer, tag=0).get_future()
        future = future.then(lambda future: callback(future, 0))
        future.wait()
        first.wait()
        got = [tensor[-1].item() for tensor in received]
        if got != [float(level) for level in range(DEPTH + 1)]:
            problems.append(f"received {got}")
    return problems


@pytest.mark.cpu("callbacks on a GPU run where they are given")
@pytest.mark.skipif(not IS_SYMM, reason="gloo has no future of a message")
def test_a_callback_of_a_message_waits_for_messages():
    expect_no_mismatch(run_ranks(messages, 2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.up = nn.Linear(12, 48)
        self.down = nn.Linear(48, 12)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


def power_state():
    return powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )


def overlapped(model):
    optimizer = as_functional_optim(torch.optim.SGD, lr=0.1)
    state = optimizer_overlap_hooks._OptimizerHookState(optimizer, list(model.parameters()))
    return optimizer_overlap_hooks._hook_then_optimizer(default_hooks.allreduce_hook, state)


# By name: what gives the state and the hook of a model. Of the others DDP refuses bfloat16 on a
# CPU, the hooks that quantize take an all_gather's future to hold one tensor, as nccl's alone does,
# and batched_powerSGD_hook fails in an assertion of its own over any backend.
HOOKS = {
    "allreduce": lambda model: (None, default_hooks.allreduce_hook),
    "fp16": lambda model: (None, default_hooks.fp16_compress_hook),
    "powerSGD": lambda model: (power_state(), powerSGD_hook.powerSGD_hook),
    "fp16 powerSGD": lambda model: (
        power_state(),
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    ),
    "post-local SGD": lambda model: (
        post_localSGD_hook.PostLocalSGDState(None, dist.new_group(), 2),
        post_localSGD_hook.post_localSGD_hook,
    ),
    "optimizer overlap": lambda model: (None, overlapped(model)),
    "no operation": lambda model: (None, noop_hook),
}


def train(rank, bucket_mb):
    """{hook: the parameters that a model has learned with it}, each model of some steps."""
    learned = {}
    for name, hook in HOOKS.items():
        model = DDP(Net(), bucket_cap_mb=bucket_mb)
        model.register_comm_hook(*hook(model))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            generator = torch.Generator().manual_seed(10 * step + rank)
            x = torch.randn(8, 12, generator=generator)
            optimizer.zero_grad()
            F.mse_loss(model(x), torch.roll(x, 1, 1)).backward()
            if name != "optimizer overlap":
                optimizer.step()
        learned[name] = [p.detach().clone() for p in model.parameters()]
    return learned


def expect_same_parameters(left, right, tolerance, leave_out=()):
    for name in left.keys() - set(leave_out):
        for a, b in zip(left[name], right[name], strict=True):
            assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), name


@pytest.mark.cpu("on a GPU futures are complete from the start, and test_models.py has hooks there")
def test_hooks_of_pytorch_learn_what_they_learn_over_gloo():
    ours = run_ranks(train, 2, 25, fresh=True)
    theirs = run_ranks(train, 2, 25, backend="gloo")
    expect_same_parameters(ours[0], ours[1], 0, ["no operation"])
    expect_same_parameters(ours[0], theirs[0], 1e-5)


@pytest.mark.cpu("on a GPU futures are complete from the start, and test_models.py has hooks there")
@pytest.mark.skipif(not IS_SYMM, reason="gloo lets the ranks' orders differ")
def test_hooks_of_several_buckets_keep_the_ranks_alike():
    """The calls that a hook makes for one bucket meet the first call of the next bucket."""
    ours = run_ranks(train, 2, 0.002, fresh=True)
    expect_same_parameters(ours[0], ours[1], 0, ["no operation"])
