"""Unchanged training programs: the same functions run over symm and over another backend must learn
the same parameters (up to rounding), and the ranks of symm must agree bit for bit where they hold
copies. The other backend is gloo on the CPU; on CUDA it is nccl, or, where ranks share a GPU, which
nccl cannot, gloo on the CPU again."""

import copy

import pytest
import torch
import torch._dynamo  # optimizers import it: once here rather than in every rank
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import _functional_collectives as funcol
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel as DDP

from harness import DEVICE, IS_SYMM, ON_CUDA, WORLD_SIZE, crowded, device_of_rank, run_ranks

STEPS = 4
SMALL = 1e-5 if ON_CUDA else 1e-6  # a GPU multiplies matrices of other shapes in another order
FOUR_RANKS = pytest.mark.skipif(WORLD_SIZE != 4, reason="a mesh of two by two needs four ranks")
_device = DEVICE  # of a rank: the reference may run elsewhere


def here(value):
    """A tensor or module on the device on which this run of a program is."""
    return value.to(_device)


class Net(nn.Module):
    def __init__(self, unused_layer=False):
        super().__init__()
        torch.manual_seed(7)
        self.up = nn.Linear(12, 48)
        self.norm = nn.LayerNorm(48)
        self.down = nn.Linear(48, 12)
        self.unused = nn.Linear(3, 3) if unused_layer else None

    def forward(self, x):
        return self.down(F.gelu(self.norm(self.up(x))))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 12, generator=generator)
    return here(x), here(torch.roll(x, 1, 1) * 2)


def train(model, rank, optimizer=None):
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def values(module):
    """Full parameters as plain tensors."""
    named = {}
    for name, p in module.named_parameters():
        p = p.full_tensor() if isinstance(p, DTensor) else p
        named[name.removeprefix("module.")] = p.detach().cpu().clone()
    return named


def on_the_cpu(rank, body):
    global _device
    _device = "cpu"
    return body(rank)


def reference(body, **set_up):
    """(results of rank 0 over another backend, tolerance that its arithmetic needs)"""
    settings = {"time_limit": 100, **set_up}
    if not ON_CUDA:
        return run_ranks(body, WORLD_SIZE, backend="gloo", **settings)[0], 0.0
    if not crowded(WORLD_SIZE):
        return run_ranks(body, WORLD_SIZE, backend="nccl", **settings)[0], 1e-4
    # Adam makes much of the last bits of small gradients.
    return run_ranks(on_the_cpu, WORLD_SIZE, body, backend="gloo", **settings)[0], 1e-2


def same_as_the_reference(body, tolerance=1e-5, **set_up):
    """Runs `body` over the backend under test and over another; its result is {name: tensor}."""
    ours = run_ranks(body, WORLD_SIZE, time_limit=100, fresh=True, **set_up)
    for rank, result in enumerate(ours[1:], start=1):
        for name, tensor in result.items():
            assert torch.equal(tensor, ours[0][name]), f"rank {rank} differs from 0 in {name}"
    set_up.pop("backend", None)
    theirs, needed = reference(body, **set_up)
    tolerance = max(tolerance, needed)
    assert ours[0].keys() == theirs.keys()
    for name, tensor in ours[0].items():
        assert torch.allclose(tensor, theirs[name], rtol=tolerance, atol=tolerance), name
    return ours[0]


def test_ddp_learns_what_one_process_learns():
    def alone():
        model = here(Net())
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(STEPS):
            parts = zip(*(batch(r, step) for r in range(WORLD_SIZE)), strict=True)
            x, y = (torch.cat(part) for part in parts)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        return values(model)

    def body(rank):
        model = DDP(here(Net()))
        train(model, rank)
        learned = values(model)
        tolerance = 1e-3 if ON_CUDA else 1e-5
        for name, tensor in alone().items():
            assert torch.allclose(learned[name], tensor, rtol=1e-4, atol=tolerance), name
        return learned

    same_as_the_reference(body)


@pytest.mark.cuda
@pytest.mark.skipif(not IS_SYMM, reason="names symm itself")
def test_ddp_over_symm_beside_gloo():
    def body(rank):
        model = DDP(here(Net()))
        train(model, rank)
        return values(model)

    same_as_the_reference(body, backend="cpu:gloo,cuda:symm")


@pytest.mark.parametrize(
    "settings",
    [
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
        {"broadcast_buffers": False, "bucket_cap_mb": 0.002},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_ddp_settings(settings):
    def body(rank):
        model = DDP(here(Net("find_unused_parameters" in settings)), **settings)
        train(model, rank)
        return values(model)

    same_as_the_reference(body)


def _all_gather_hook(group, bucket):
    """Averages in a callback of all_gather's future."""
    size = dist.get_world_size(group)
    pieces = [torch.empty_like(bucket.buffer()) for _ in range(size)]
    gathered = dist.all_gather(pieces, bucket.buffer(), group=group, async_op=True).get_future()
    return gathered.then(lambda future: sum(pieces) / size)


HOOKS = {
    "allreduce": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "all_gather": _all_gather_hook,
}


@pytest.mark.parametrize("hook", HOOKS)
def test_ddp_comm_hooks(hook):
    def body(rank):
        model = DDP(here(Net()))
        model.register_comm_hook(dist.group.WORLD, HOOKS[hook])
        train(model, rank)
        return values(model)

    # float16 gradients round in another order, and Adam divides by small ones.
    same_as_the_reference(body, tolerance=2e-2 if hook == "fp16" else 1e-5)


def test_ddp_no_sync_and_uneven_inputs():
    def body(rank):
        model = DDP(here(Net()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with model.join():
            for step in range(2 + rank):
                with model.no_sync() if step == 0 else torch.enable_grad():
                    x, y = batch(rank, step)
                    F.mse_loss(model(x), y).backward()
                if step:
                    optimizer.step()
                    optimizer.zero_grad()
        return values(model)

    same_as_the_reference(body)


def test_zero_redundancy_optimizer():
    def body(rank):
        model = DDP(here(Net()))
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2
        )
        train(model, rank, optimizer)
        return values(model)

    same_as_the_reference(body)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_fsdp2(precision):
    def body(rank):
        model = here(Net())
        mesh = init_device_mesh(_device, (WORLD_SIZE,))
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        if precision == "bfloat16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in (model.up, model.down):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(STEPS):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            F.mse_loss(model(x).float(), y).backward()
            optimizer.step()
        return values(model)

    same_as_the_reference(body, tolerance=1e-5 if precision == "float32" else 1e-3)


@FOUR_RANKS
def test_hybrid_sharding_on_a_two_dimensional_mesh():
    def body(rank):
        mesh = init_device_mesh(_device, (2, 2), mesh_dim_names=("replicate", "shard"))
        model = fully_shard(here(Net()), mesh=mesh)
        train(model, rank, torch.optim.SGD(model.parameters(), lr=0.05))
        return values(model)

    same_as_the_reference(body)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel(sequence_parallel):
    def body(rank):
        mesh = init_device_mesh(_device, (WORLD_SIZE,))
        alone, model = here(Net()), here(Net())
        if sequence_parallel:
            plan = {
                "up": ColwiseParallel(output_layouts=Shard(0)),
                "norm": SequenceParallel(sequence_dim=0),
                "down": RowwiseParallel(input_layouts=Shard(0)),
            }
        else:
            plan = {
                "up": ColwiseParallel(output_layouts=Replicate()),
                "down": RowwiseParallel(input_layouts=Replicate()),
            }
        parallelize_module(model, mesh, plan)
        x, y = batch(0, 0)
        for net in (alone, model):
            F.mse_loss(net(x), y).backward()
        gradients = {}
        for name, p in model.named_parameters():
            gradient = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            expected = dict(alone.named_parameters())[name].grad
            if not sequence_parallel or "norm" not in name:
                assert torch.allclose(gradient, expected, rtol=1e-4, atol=SMALL), name
            gradients[name] = gradient.cpu()
        return gradients

    same_as_the_reference(body)


@FOUR_RANKS
def test_redistribute():
    """Every pair of placements on a two-dimensional mesh gives the whole tensor back."""

    def body(rank):
        mesh = init_device_mesh(_device, (2, 2))
        whole = here(torch.arange(7 * 10, dtype=torch.float32).reshape(7, 10))
        placements = [Replicate(), Shard(0), Shard(1)]
        results = {}
        for source in placements:
            for target in placements:
                tensor = distribute_tensor(whole, mesh, [source, Shard(0)])
                moved = tensor.redistribute(mesh, [target, Replicate()])
                assert torch.equal(moved.full_tensor(), whole), (source, target)
        partial = DTensor.from_local(whole * (rank + 1), mesh, [Partial(), Partial("sum")])
        results["sum"] = partial.redistribute(mesh, [Shard(1), Shard(0)]).full_tensor()
        assert torch.equal(results["sum"], whole * 10)
        partial = DTensor.from_local(whole * (rank + 1), mesh, [Partial("max"), Partial("max")])
        results["max"] = partial.full_tensor()
        assert torch.equal(results["max"], whole * 4)
        return {name: tensor.cpu() for name, tensor in results.items()}

    same_as_the_reference(body)


def _functional(rank):
    group = dist.group.WORLD
    x = torch.arange(8, dtype=torch.float32, device=DEVICE) + rank * 100
    total = funcol.all_reduce(x, "sum", group)
    gathered = funcol.all_gather_tensor(x + 1, 0, group)
    part = funcol.reduce_scatter_tensor(x * 2, "sum", 0, group)
    swapped = funcol.all_to_all_single(x - 1, None, None, group)
    several = funcol.all_reduce_coalesced([x * 3, x * 5], "max", group)
    return total, gathered, part, swapped, *several


def _functional_expected(rank):
    every = [torch.arange(8, dtype=torch.float32) + r * 100 for r in range(WORLD_SIZE)]
    share = 8 // WORLD_SIZE
    mine = slice(rank * share, (rank + 1) * share)
    return [
        sum(every),
        torch.cat([t + 1 for t in every]),
        sum(every)[mine] * 2,
        torch.cat([t[mine] - 1 for t in every]),
        every[-1] * 3,
        every[-1] * 5,
    ]


def test_functional_collectives():
    def body(rank):
        for _ in range(3):
            got = _functional(rank)
            for tensor, expected in zip(got, _functional_expected(rank), strict=True):
                assert torch.equal((tensor + 0).cpu(), expected)

    run_ranks(body, WORLD_SIZE, fresh=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)]
)
def test_functional_collectives_compiled(compiler):
    """The whole function is one graph, with the collectives in it."""

    def program(x, rank):
        total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        gathered = funcol.all_gather_tensor(total[:2] + rank, 0, dist.group.WORLD)
        return funcol.reduce_scatter_tensor(gathered - 1, "sum", 0, dist.group.WORLD) * 0.5

    def body(rank):
        compiled = torch.compile(program, fullgraph=True, backend=compiler)
        for repeat in range(3):
            x = torch.arange(4, dtype=torch.float32, device=DEVICE) + 10 * rank + repeat
            expected = program(x, rank) + 0
            assert torch.equal(compiled(x, rank) + 0, expected)
            total = sum((torch.arange(4.0) + 10 * r + repeat) * 2 for r in range(2))
            assert torch.equal(expected.cpu(), total[:2] + rank - 1)

    env = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    run_ranks(body, 2, env=env, time_limit=240, timeout=200)


def test_gradients_through_collectives():
    """torch.distributed.nn.functional: autograd across ranks."""

    def body(rank):
        from torch.distributed.nn import functional as nnf

        x = (torch.arange(6, dtype=torch.float32, device=DEVICE) + rank).requires_grad_()
        weight, total = rank + 1.0, WORLD_SIZE * (WORLD_SIZE + 1) / 2
        (nnf.all_reduce(x * 1.0) * weight).sum().backward()
        assert torch.equal(x.grad.cpu(), torch.full((6,), total))
        y = copy.deepcopy(x.detach()).requires_grad_()
        sum((part * weight).sum() for part in nnf.all_gather(y * 1.0)).backward()
        assert torch.equal(y.grad.cpu(), torch.full((6,), total))

    run_ranks(body, WORLD_SIZE, fresh=True)


def test_pipeline_parallel():
    """torch.distributed.pipelining over send and recv."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def body(rank):
        torch.manual_seed(3)
        layers = [here(nn.Linear(10, 10)) for _ in range(WORLD_SIZE)]
        stage = PipelineStage(layers[rank], rank, WORLD_SIZE, device_of_rank())
        schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.MSELoss())
        x, y = here(torch.randn(8, 10)), here(torch.randn(8, 10))
        if rank == 0:
            schedule.step(x)
        elif rank == WORLD_SIZE - 1:
            schedule.step(target=y)
        else:
            schedule.step()
        got = layers[rank].weight.grad
        layers = [copy.deepcopy(layer) for layer in layers]
        for layer in layers:
            layer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
            out = part
            for layer in layers:
                out = layer(out)
            (F.mse_loss(out, target) / 4).backward()
        assert torch.allclose(got, layers[rank].weight.grad, rtol=1e-4, atol=SMALL)

    run_ranks(body, WORLD_SIZE, fresh=True)
