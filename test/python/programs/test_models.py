"""Unchanged training programs: the same functions run over symm and over another backend must learn
the same parameters (up to rounding), and the ranks of symm must agree bit for bit where they hold
copies."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
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

from harness import DEVICE, IS_SYMM, ON_CUDA, WORLD_SIZE, run_ranks
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
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
        mesh = init_device_mesh(device_type(), (WORLD_SIZE,))
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


@pytest.mark.cpu("a group allocates tensors of the CPU alone")
def test_fsdp2_with_staging_memory_of_the_process_group():
    def body(rank):
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import ProcessGroupAllocMixin

        staging = []
        allocate = ProcessGroupAllocMixin.allocate
        ProcessGroupAllocMixin.allocate = lambda *args, **kwargs: (
            staging.append(allocate(*args, **kwargs)) or staging[-1]
        )
        model = here(Net())
        for layer in (model.up, model.down, model):
            fully_shard(layer).set_allocate_memory_from_process_group_for_comm(True)
        train(model, rank, torch.optim.SGD(model.parameters(), lr=0.05))
        if IS_SYMM and dist.get_backend() != "gloo":
            import torch_symm

            assert len(staging) >= STEPS
            assert all(torch_symm.is_symmetric(tensor) for tensor in staging)
        return values(model)

    same_as_the_reference(body)


@FOUR_RANKS
def test_hybrid_sharding_on_a_two_dimensional_mesh():
    def body(rank):
        mesh = init_device_mesh(device_type(), (2, 2), mesh_dim_names=("replicate", "shard"))
        model = fully_shard(here(Net()), mesh=mesh)
        train(model, rank, torch.optim.SGD(model.parameters(), lr=0.05))
        return values(model)

    same_as_the_reference(body)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel(sequence_parallel):
    def body(rank):
        mesh = init_device_mesh(device_type(), (WORLD_SIZE,))
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
        mesh = init_device_mesh(device_type(), (2, 2))
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
