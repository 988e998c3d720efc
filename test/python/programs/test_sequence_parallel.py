"""Programs that cut the sequence: attention whose keys and values go round the ranks (context
parallelism), and matmuls that PyTorch's compiler joins with their collectives (async tensor
parallelism over symmetric memory)."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import _functional_collectives as funcol

from harness import DEVICE, IS_SYMM, WORLD_SIZE, check
from training import same_as_the_reference

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def whole_attention(causal):
    """(inputs, output, gradients) of all ranks' sequence in one piece."""
    torch.manual_seed(17)
    inputs = [torch.randn(2, 3, 8 * WORLD_SIZE, 16, requires_grad=True) for _ in range(3)]
    output = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    weights = torch.randn(output.shape)
    return inputs, output, weights, torch.autograd.grad(output, inputs, weights)


def ring_attention(rank, causal, rotation):
    from torch.distributed.tensor.experimental._context_parallel import _attention as context

    context._cp_options.enable_load_balance = False
    context.set_rotate_method(rotation)
    inputs, output, weights, gradients = whole_attention(causal)

    def mine(tensor):
        return tensor.detach().chunk(WORLD_SIZE, dim=2)[rank].contiguous()

    parts, group = [mine(tensor) for tensor in inputs], dist.group.WORLD
    got, sums = context._templated_ring_attention(group, 2, FLASH, *parts, is_causal=causal)
    assert torch.allclose(got, mine(output), rtol=1e-4, atol=1e-5)
    back = context._templated_ring_attention_backward(
        *(group, 2, FLASH_BACKWARD, mine(weights), "grad_out"),
        *(*parts, got, sums),
        is_causal=causal,
        dropout_p=0.0,
    )
    results = {"output": got}
    for name, gradient, expected in zip("qkv", back, gradients, strict=False):
        assert torch.allclose(gradient, mine(expected), rtol=1e-4, atol=1e-5), name
        results[name] = gradient
    gathered = {
        name: [torch.empty_like(part) for _ in range(WORLD_SIZE)] for name, part in results.items()
    }
    for name, part in results.items():
        dist.all_gather(gathered[name], part.contiguous())
    return {name: torch.cat(every, 2) for name, every in gathered.items()}


@pytest.mark.cpu(
    "context_parallel() itself takes CUDA's attention, which has a test of PyTorch's own"
)
@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
def test_attention_round_the_ranks(causal, rotation):
    pytest.importorskip("torch.distributed.tensor.experimental._context_parallel")
    same_as_the_reference(lambda rank: ring_attention(rank, causal, rotation))


def tensor_parallel_layer(rank):
    """Two matmuls with their collectives, as sequence parallelism has them."""
    from torch._inductor import config
    from torch.distributed import _symmetric_memory as symm_mem
    from torch.profiler import profile

    import torch_symm

    torch_symm.memory_provider("native")
    # micro_pipeline_tp.py leaves the graph alone where PyTorch was built without NCCL.
    torch.distributed.is_nccl_available = lambda: True
    group, size = dist.group.WORLD, dist.get_world_size()
    if not symm_mem.is_symm_mem_enabled_for_group(group.group_name):
        symm_mem.enable_symm_mem_for_group(group.group_name)
    torch.manual_seed(23)
    up, down = (torch.randn(shape, device=DEVICE) for shape in ((16, 32), (32, 24)))

    def program(x):
        hidden = torch.relu(funcol.all_gather_tensor(x, 0, group) @ up)
        return funcol.reduce_scatter_tensor(hidden @ down, "sum", 0, group)

    problems, compiled = [], torch.compile(program, fullgraph=True)
    parts = [torch.randn(8, 16) for _ in range(size)]
    mine = parts[rank].to(DEVICE)
    with config.patch({"_micro_pipeline_tp": True}):
        compiled(mine)
        with profile() as watched:
            got = compiled(mine)
    names = {event.name for event in watched.events()}
    joined = {"symm_mem::fused_all_gather_matmul", "symm_mem::fused_matmul_reduce_scatter"}
    if not joined <= names:
        problems.append(f"what was compiled calls {sorted(names)}")
    # Every rank has the same weights, so the sum is as many times one.
    expected = (torch.relu(torch.cat(parts) @ up.cpu()) @ down.cpu()).chunk(size)[rank] * size
    if not torch.allclose(got.cpu(), expected, rtol=1e-4, atol=1e-4):
        problems.append(f"{got} is not {expected}")
    if not torch.equal(got, program(mine) + 0):
        problems.append("the compiled program has other bits than the plain one")
    return problems


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.cpu("compiled for GPUs it has not been tried")
@pytest.mark.skipif(not IS_SYMM, reason="over symm's memory")
def test_matmuls_that_are_joined_with_their_collectives():
    env = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    check(tensor_parallel_layer, 2, env=env, time_limit=240, timeout=200)
