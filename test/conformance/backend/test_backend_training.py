"""DistributedDataParallel and FSDP2: what a step gives is what one process with all data gets."""

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from backend import WORLD_SIZE, conforms, here, mesh_of, need, need_cuda, need_ranks, numbers, same
from harness import DEVICE


class Model(nn.Module):
    """Layers whose sizes the ranks do not divide; one that may be unused; a buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 7)
        self.second = nn.Linear(7, 5, bias=False)
        self.extra = nn.Linear(5, 5)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x, with_extra=True):
        x = self.second(torch.tanh(self.first(x)))
        return self.extra(x) if with_extra else x


def make_model(seed=0) -> Model:
    torch.manual_seed(seed)
    return Model()


def batch(rank, step=0) -> torch.Tensor:
    return numbers(rank, 4, 6, salt=step)


def loss_of(model, x, *args) -> torch.Tensor:
    return model(x, *args).square().mean()


def all_data(step=0) -> torch.Tensor:
    return torch.cat([batch(peer, step) for peer in range(WORLD_SIZE)])


def gradients_of(model, *args, step=0) -> None:
    """Those of the mean over all ranks' data, in this process."""
    loss_of(model, all_data(step), *args).backward()


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def close(got, expected, what, tolerance=1e-5) -> None:
    for (name, left), right in zip(got, expected, strict=True):
        left = None if left is None else whole(left).detach().cpu()
        torch.testing.assert_close(
            left, right, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{what} {n}: {m}"
        )


def same_gradients(model, reference, tolerance=1e-5) -> None:
    got = [(name, parameter.grad) for name, parameter in model.named_parameters()]
    close(got, [p.grad for p in reference.parameters()], "gradient of", tolerance)


def same_parameters(model, reference, tolerance=1e-5) -> None:
    expected = [parameter.detach() for parameter in reference.parameters()]
    close(model.named_parameters(), expected, "parameter", tolerance)


def learn_alike(rank, model, reference, make_optimizer) -> None:
    """Steps of `model` over its ranks' data, and of `reference` over all data in this process."""
    theirs, ours = make_optimizer(reference.parameters()), make_optimizer(model.parameters())
    for step in range(3):
        ours.zero_grad(), theirs.zero_grad()
        loss_of(model, here(batch(rank, step))).backward()
        gradients_of(reference, step=step)
        same_gradients(model, reference)
        ours.step(), theirs.step()
    same_parameters(model, reference)


# -- DistributedDataParallel ----------------------------------------------------------------------


def ddp_of(model, **settings):
    return DistributedDataParallel(copy.deepcopy(model).to(DEVICE), **settings)


DDP_SETTINGS = {
    "default": {},
    "small buckets": {"bucket_cap_mb": 1e-4},
    "views": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "looks for unused": {"find_unused_parameters": True},
}


def trains_ddp(rank, settings):
    reference = make_model()
    model = ddp_of(reference, **settings)
    make = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    learn_alike(rank, model, reference, make)


@pytest.mark.parametrize("name", DDP_SETTINGS)
def test_ddp_averages_gradients(name):
    conforms(trains_ddp, DDP_SETTINGS[name])


def leaves_some_unused(rank):
    reference = make_model()
    model = ddp_of(reference, find_unused_parameters=True)
    for with_extra in (False, True, False):
        model.zero_grad(), reference.zero_grad()
        loss_of(model, here(batch(rank)), with_extra).backward()
        gradients_of(reference, with_extra)
        same_gradients(model, reference)


def test_ddp_with_unused_parameters():
    conforms(leaves_some_unused)


def starts_from_rank_0(rank):
    model = make_model(seed=rank)
    model.steps.fill_(rank)
    model = ddp_of(model)
    same_parameters(model, make_model(seed=0))
    model.module.steps.fill_(rank + 5.0)
    model(here(batch(rank)))
    same(model.module.steps, torch.full((1,), 5.0), "the buffer of rank 0")


def test_ddp_broadcasts_parameters_and_buffers():
    conforms(starts_from_rank_0)


def accumulates(rank):
    reference = make_model()
    model = ddp_of(reference)
    with model.no_sync():
        loss_of(model, here(batch(rank, 0))).backward()
    loss_of(model, here(batch(rank, 1))).backward()
    gradients_of(reference, step=0)
    gradients_of(reference, step=1)
    same_gradients(model, reference)


def test_ddp_accumulates_without_reducing():
    conforms(accumulates)


def double(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] * (2 / WORLD_SIZE))


HOOKS = {
    "of this test": (double, 2, 1e-5),
    "allreduce": (default_hooks.allreduce_hook, 1, 1e-5),
    "fp16": (default_hooks.fp16_compress_hook, 1, 5e-3),
    "bf16": (default_hooks.bf16_compress_hook, 1, 5e-2),
}


def runs_a_hook(rank, name):
    hook, factor, tolerance = HOOKS[name]
    reference = make_model()
    model = ddp_of(reference)
    model.register_comm_hook(None, hook)
    loss_of(model, here(batch(rank))).backward()
    gradients_of(reference)
    for parameter in reference.parameters():
        parameter.grad *= factor
    same_gradients(model, reference, tolerance)


@pytest.mark.parametrize("name", HOOKS)
def test_ddp_hook(name):
    if name == "bf16":
        need_cuda("bf16_compress_hook wants CUDA and NCCL or their like")
    conforms(runs_a_hook, name)


def synchronizes_statistics(rank):
    torch.manual_seed(0)
    reference = nn.BatchNorm1d(6)
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference)).to(DEVICE)
    given = here(batch(rank)).requires_grad_()
    everything = all_data().requires_grad_()
    norm(given).square().mean().backward()
    reference(everything).square().mean().backward()
    same(norm.running_mean, reference.running_mean, "the mean")
    same(norm.running_var, reference.running_var, "the variance")


def test_sync_batch_norm():
    need_cuda("SyncBatchNorm takes their tensors")
    conforms(synchronizes_statistics)


def has_uneven_data(rank):
    """Rank r has r + 1 batches: a step is the mean over all ranks, of which some give nothing, and
    in the end all have what the last one has learned."""
    reference = make_model()
    model = ddp_of(reference)
    ours = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
    with model.join():
        for step in range(1 + rank):
            ours.zero_grad()
            loss_of(model, here(batch(rank, step))).backward()
            ours.step()
    for step in range(WORLD_SIZE):
        theirs.zero_grad()
        losses = [loss_of(reference, batch(peer, step)) for peer in range(step, WORLD_SIZE)]
        (sum(losses) / WORLD_SIZE).backward()
        theirs.step()
    same_parameters(model, reference)


def test_ddp_join_of_uneven_inputs():
    conforms(has_uneven_data)


# -- FSDP2 ----------------------------------------------------------------------------------------


def fsdp_of(model, mesh=None, **settings):
    model = copy.deepcopy(model).to(DEVICE)
    mesh = mesh or mesh_of(WORLD_SIZE)
    for layer in (model.first, model.second, model.extra, model):
        fully_shard(layer, mesh=mesh, **settings)
    return model


FSDP_SETTINGS = {
    "resharded": {},
    "kept": {"reshard_after_forward": False},
    "resharded to some": {"reshard_after_forward": 2},
}


def trains_fsdp(rank, settings, shape=(WORLD_SIZE,), names=None):
    reference = make_model()
    model = fsdp_of(reference, mesh_of(*shape, names=names), **settings)
    learn_alike(rank, model, reference, functools.partial(torch.optim.Adam, lr=0.01))


@pytest.mark.parametrize("name", FSDP_SETTINGS)
def test_fsdp_step_is_that_of_one_process(name):
    conforms(trains_fsdp, FSDP_SETTINGS[name])


def test_hsdp_step_is_that_of_one_process():
    need_ranks(4)
    conforms(trains_fsdp, {}, (2, 2), ("replicate", "shard"))


def reduces_in(rank, dtype):
    reference = make_model()
    model = fsdp_of(reference, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
    loss_of(model, here(batch(rank))).backward()
    gradients_of(reference)
    same_gradients(model, reference, 2e-2)
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_fsdp_reduces_in_another_dtype(dtype):
    conforms(reduces_in, dtype)


def computes_in_bfloat16(rank):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    reference = make_model()
    model = fsdp_of(reference, mp_policy=policy)
    loss_of(model, here(batch(rank))).backward()
    gradients_of(reference)
    same_gradients(model, reference, 0.1)


def test_fsdp_computes_in_bfloat16():
    conforms(computes_in_bfloat16)


def accumulates_sharded(rank, reduces):
    reference = make_model()
    model = fsdp_of(reference)
    model.set_requires_gradient_sync(reduces)
    loss_of(model, here(batch(rank, 0))).backward()
    model.set_requires_gradient_sync(True)
    loss_of(model, here(batch(rank, 1))).backward()
    gradients_of(reference, step=0)
    gradients_of(reference, step=1)
    same_gradients(model, reference)


@pytest.mark.parametrize("reduces", [False, True], ids=["once", "each time"])
def test_fsdp_accumulates(reduces):
    conforms(accumulates_sharded, reduces)


def divides_by(rank):
    reference = make_model()
    model = fsdp_of(reference)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(WORLD_SIZE * 2.0)
    loss_of(model, here(batch(rank))).backward()
    gradients_of(reference)
    for parameter in reference.parameters():
        parameter.grad /= 2
    same_gradients(model, reference)


def test_fsdp_divides_gradients_by_a_factor():
    need("PREMUL_SUM")
    conforms(divides_by)


def clips(rank):
    reference = make_model()
    model = fsdp_of(reference)
    loss_of(model, here(batch(rank))).backward()
    gradients_of(reference)
    ours = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    theirs = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    same(whole(ours), theirs, "the norm")
    same_gradients(model, reference)


def test_fsdp_clips_by_the_norm_of_all_shards():
    conforms(clips)


def saves_and_loads(rank):
    reference = make_model()
    model = fsdp_of(reference)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        expected = reference.state_dict()
        assert set(state) == set(expected)
        for name, tensor in expected.items():
            torch.testing.assert_close(state[name].cpu(), tensor)
    other = fsdp_of(make_model(seed=1))
    given = make_model(seed=2).state_dict() if rank == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, given, options=options)
    same_parameters(other, make_model(seed=2))


def test_fsdp_state_dict_whole_and_broadcast():
    conforms(saves_and_loads)
