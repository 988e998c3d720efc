"""Programs that use more of torch.distributed than training does: pipelines by every schedule of
PyTorch, checkpoints in PyTorch's distributed format, compiled models, optimizers that average
models, losses over sharded vocabularies. What they compute is compared with one process, or with
another backend."""

import copy

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel as DDP

from harness import ON_CUDA, WORLD_SIZE, device_of_rank, run_ranks
from training import (
    FOUR_RANKS,
    SMALL,
    STEPS,
    Net,
    batch,
    device_type,
    here,
    same_as_the_reference,
    train,
    values,
)

# Stages of a rank, by schedule: one, two that follow the last rank's, two that turn back there.
SCHEDULES = {
    "GPipe": lambda rank: [rank],
    "1F1B": lambda rank: [rank],
    "LoopedBFS": lambda rank: [rank, rank + WORLD_SIZE],
    "Interleaved1F1B": lambda rank: [rank, rank + WORLD_SIZE],
    "InterleavedZeroBubble": lambda rank: [rank, rank + WORLD_SIZE],
    "ZBVZeroBubble": lambda rank: [rank, 2 * WORLD_SIZE - 1 - rank],
    "DualPipeV": lambda rank: [rank, 2 * WORLD_SIZE - 1 - rank],
}


def long_unless(condition):
    return () if condition else pytest.mark.long


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=long_unless(name in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")))
        for name in SCHEDULES
    ],
)
def test_pipeline_schedules(name):
    """Gradients of every layer, over send and recv, against the model in one piece."""
    microbatches = 2 * WORLD_SIZE

    def body(rank):
        torch.manual_seed(3)
        mine = SCHEDULES[name](rank)
        layers = [here(nn.Linear(10, 10)) for _ in range(WORLD_SIZE * len(mine))]
        alone = copy.deepcopy(layers)
        stages = [
            PipelineStage(layers[number], number, len(layers), device_of_rank()) for number in mine
        ]
        schedule = get_schedule_class(name)(
            stages if len(mine) > 1 else stages[0], microbatches, loss_fn=nn.MSELoss()
        )
        x, y = here(torch.randn(microbatches, 10)), here(torch.randn(microbatches, 10))
        for _ in range(2):  # the first step also exchanges shapes
            for layer in layers:
                layer.zero_grad()
            inputs = [x] if 0 in mine else []
            targets = {"target": y} if len(layers) - 1 in mine else {}
            schedule.step(*inputs, **targets)
        for part, target in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            for layer in alone:
                part = layer(part)
            (F.mse_loss(part, target) / microbatches).backward()
        for number in mine:
            for got, expected in zip(
                layers[number].parameters(), alone[number].parameters(), strict=True
            ):
                assert torch.allclose(got.grad, expected.grad, rtol=1e-4, atol=SMALL), number

    run_ranks(body, WORLD_SIZE, fresh=True)


def sharded(mesh):
    model = here(Net())
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def saved_state(model, optimizer):
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments}


@FOUR_RANKS
@pytest.mark.parametrize(
    "save",
    [
        pytest.param(dcp.save, id="save"),
        pytest.param(dcp.async_save, id="async_save", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=["as saved", "on another mesh"])
def test_a_checkpoint_is_loaded_on_any_mesh(save, shape, tmp_path):
    """Training goes on from it as if it had never stopped."""
    if ON_CUDA and save is dcp.async_save:
        pytest.skip("async_save wants a group that serves the CPU too, which is gloo's then")

    def body(rank):
        mesh = init_device_mesh(device_type(), (WORLD_SIZE,))
        model = sharded(mesh)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        train(model, rank, optimizer)
        saving = save(saved_state(model, optimizer), checkpoint_id=tmp_path)
        if save is dcp.async_save:
            saving.result()
        dist.barrier()

        names = ("replicate", "shard")[-len(shape) :]
        other = sharded(init_device_mesh(device_type(), shape, mesh_dim_names=names))
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        again = torch.optim.Adam(other.parameters(), lr=1e-2)
        state = saved_state(other, again)
        dcp.load(state, checkpoint_id=tmp_path)
        set_state_dict(
            other, again, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        for name, loaded in values(other).items():
            assert torch.equal(loaded, values(model)[name]), name
        train(model, rank, optimizer)
        train(other, rank, again)
        for name, learned in values(other).items():
            assert torch.allclose(learned, values(model)[name], rtol=1e-4, atol=1e-5), name

    run_ranks(body, WORLD_SIZE, fresh=True)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2"])
def test_a_compiled_model(wrapper):
    def body(rank):
        if wrapper == "DDP":
            model = DDP(here(Net()))
        else:
            model = sharded(init_device_mesh(device_type(), (WORLD_SIZE,)))
        compiled = torch.compile(model, backend="aot_eager")
        train(compiled, rank, torch.optim.SGD(model.parameters(), lr=0.05))
        return values(model)

    same_as_the_reference(body)


def test_models_that_are_averaged():
    """Post-local SGD: gradients stay local after the first steps, models are averaged at times."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    def body(rank):
        model = DDP(here(Net()))
        subgroup, _ = dist.new_subgroups(2)
        state = hook.PostLocalSGDState(dist.group.WORLD, subgroup, start_localSGD_iter=1)
        model.register_comm_hook(state, hook.post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(
            optim=torch.optim.SGD(model.parameters(), lr=0.05),
            averager=PeriodicModelAverager(period=2, warmup_steps=1),
        )
        train(model, rank, optimizer)
        return values(model)

    assert STEPS % 2 == 0, "the last step averages"
    same_as_the_reference(body)


def test_joined_ranks_of_uneven_inputs_shadow_model_and_optimizer():
    def body(rank):
        model = DDP(here(Net()))
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.SGD, lr=0.05
        )
        with Join([model, optimizer]):
            for step in range(1 + rank):
                x, y = batch(rank, step)
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
        return values(model)

    same_as_the_reference(body)


def test_a_loss_over_a_sharded_vocabulary():
    """loss_parallel: the maximum and the sum of a softmax are all_reduces of DTensor's."""
    vocabulary, width = 6 * WORLD_SIZE, 12

    def body(rank):
        torch.manual_seed(5)
        head = here(nn.Linear(width, vocabulary))
        alone = copy.deepcopy(head)
        mesh = init_device_mesh(device_type(), (WORLD_SIZE,))
        style = ColwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False
        )
        parallelize_module(head, mesh, style)
        x = here(torch.randn(9, width))
        labels = here(torch.randint(vocabulary, (9,)))
        with loss_parallel():
            loss = F.cross_entropy(head(x), labels)
            loss.backward()
        expected = F.cross_entropy(alone(x), labels)
        expected.backward()
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        assert torch.allclose(loss, expected, rtol=1e-5)
        for got, wanted in zip(head.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(got.grad.full_tensor(), wanted.grad, rtol=1e-4, atol=SMALL)
        return {"loss": loss.detach().cpu()}

    same_as_the_reference(body)
