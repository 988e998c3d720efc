"""Products fused with gathers and scatters, and what Inductor makes of symmetric memory.

What the operators give is compared with PyTorch's own fallbacks over the group's collectives.
"""

import contextlib
import functools
import re

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from harness import DEVICE, ON_CUDA, PROCESSES, WORLD_SIZE, synchronize
from provider import conforms, need, need_cuda, need_multicast, ops, share, world_name
from symmetric import TORCH, allocate

pytestmark = pytest.mark.timeout(180)

WAIT = torch.ops._c10d_functional.wait_tensor
FP8 = torch.float8_e4m3fn
NATIVE = {"TORCH_SYMM_MEM_ENABLE_NATIVE_ASYNC_TP": "1"}


def random(*shape, rank=0, salt=0, dtype=torch.float32) -> torch.Tensor:
    """In [0, 1), by rank and salt."""
    generator = torch.Generator().manual_seed(42 + 8 * salt + rank)
    return torch.rand(shape, generator=generator).to(dtype).to(DEVICE)


def need_scaled_products(by_row: bool) -> None:
    if ON_CUDA:
        need(torch.cuda.get_device_capability() >= (8, 9), "products of fp8 need sm_89")
    else:
        need(TORCH >= (2, 13) or not by_row, "this torch scales by one number alone on the CPU")


def close(got, expected, **tolerance) -> None:
    """Equal but for rounding, with the same strides and dtype."""
    torch.testing.assert_close(got.float(), expected.float(), **tolerance)
    assert (got.stride(), got.dtype) == (expected.stride(), expected.dtype)


# -- Gather, then multiply -----------------------------------------------------------------------


def gathers(rank, gather_dim):
    shape = [8, 64, 32]
    shape[gather_dim] //= dist.get_world_size()
    mine = random(*shape, rank=rank)
    factors = [random(32, 16, salt=salt) for salt in range(1, 4)]
    arguments = mine, factors, gather_dim, world_name()
    whole, products = symm_mem._fused_all_gather_matmul_fallback(*arguments)
    got_whole, got_products = ops.fused_all_gather_matmul(*arguments)
    close(got_whole, whole)
    assert len(got_products) == len(products)
    for got, product in zip(got_products, products, strict=True):
        torch.testing.assert_close(got, product)


@pytest.mark.parametrize("gather_dim", [0, 1, 2])
def test_fused_all_gather_matmul(gather_dim):
    conforms(gathers, WORLD_SIZE, gather_dim)


def large_gathers(rank, symmetric, row_major):
    """On GPUs of a size for which PyTorch has kernels of its own."""
    count, dtype = (4096 if ON_CUDA else 256) // dist.get_world_size(), torch.bfloat16
    mine = random(count, 1024, rank=rank, dtype=dtype)
    if symmetric:
        mine = allocate(count, 1024, dtype=dtype).copy_(mine)
    factor = random(1024, 1024, salt=1, dtype=dtype)
    arguments = mine, [factor if row_major else factor.t()], 0, world_name()
    whole, products = symm_mem._fused_all_gather_matmul_fallback(*arguments)
    got_whole, got_products = ops.fused_all_gather_matmul(*arguments)
    torch.testing.assert_close(got_whole, whole)
    torch.testing.assert_close(got_products[0], products[0])


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
def test_fused_all_gather_matmul_by_native_kernels(symmetric, row_major):
    conforms(large_gathers, 2, symmetric, row_major, env=NATIVE)


def gathers_without_a(rank):
    """Where only the products are asked for; PyTorch gathers by multicast where there is some."""
    count = (1024 if ON_CUDA else 256) // dist.get_world_size()
    mine = random(count, 1024, rank=rank, dtype=torch.bfloat16)
    arguments = mine, [random(1024, 1024, salt=1, dtype=torch.bfloat16)], 0, world_name()
    _, products = symm_mem._fused_all_gather_matmul_fallback(*arguments, return_A=False)
    whole, got = ops.fused_all_gather_matmul(*arguments, return_A=False)
    assert whole is None
    torch.testing.assert_close(got[0], products[0])


def test_fused_all_gather_matmul_without_its_first_result():
    conforms(gathers_without_a, 2)


def scaled_gathers(rank, gather_dim, scaling):
    by_row = scaling != "one"
    need_scaled_products(by_row)
    shape = [8, 64]
    rows = [*shape, 1]
    shape[gather_dim] //= dist.get_world_size()
    if scaling == "sharded":
        rows = [*shape, 1]
    scale = torch.full(rows if by_row else (), 0.1, device=DEVICE)
    factors = [random(16, 32, salt=salt).to(FP8).t() for salt in range(1, 4)]
    factor_scales = [torch.full((1, 16) if by_row else (), 0.1, device=DEVICE)] * 3
    dtypes = [torch.bfloat16] * 3 if by_row else [None, torch.bfloat16, torch.float32]
    arguments = {
        "A_shard": random(*shape, 32, rank=rank).to(FP8),
        "Bs": factors,
        "A_scale": scale,
        "B_scales": factor_scales,
        "gather_dim": gather_dim,
        "group_name": world_name(),
        "biases": [None] * 3,
        "result_scales": [None] * 3,
        "out_dtypes": dtypes,
        "use_fast_accum": [False] * 3,
    }
    whole, products = symm_mem._fused_all_gather_scaled_matmul_fallback(**arguments)
    arguments["A"] = arguments.pop("A_shard")
    got_whole, got_products = ops.fused_all_gather_scaled_matmul(**arguments)
    close(got_whole, whole)
    for got, product in zip(got_products, products, strict=True):
        close(got, product, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("scaling", ["one", "replicated", "sharded"])
@pytest.mark.parametrize("gather_dim", [0, 1])
def test_fused_all_gather_scaled_matmul(gather_dim, scaling):
    conforms(scaled_gathers, 2, gather_dim, scaling)


# -- Multiply, then scatter ----------------------------------------------------------------------


def scatters(rank, scatter_dim):
    arguments = random(8, 64, 1024, rank=rank), random(1024, 16, salt=1), "avg", scatter_dim
    expected = symm_mem._fused_matmul_reduce_scatter_fallback(*arguments, world_name())
    got = ops.fused_matmul_reduce_scatter(*arguments, world_name())
    close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scatter_dim", [0, 1, 2])
def test_fused_matmul_reduce_scatter(scatter_dim):
    conforms(scatters, WORLD_SIZE, scatter_dim)


def narrow_scatters(rank):
    """bfloat16, and on a GPU from a graph too."""
    matrix = random(64, 1024, rank=rank, dtype=torch.bfloat16)
    arguments = matrix, random(1024, 32, salt=1, dtype=torch.bfloat16), "avg", 0, world_name()
    expected = symm_mem._fused_matmul_reduce_scatter_fallback(*arguments)
    got = ops.fused_matmul_reduce_scatter(*arguments)
    close(got, expected, rtol=1e-2, atol=1e-2)
    if ON_CUDA:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = ops.fused_matmul_reduce_scatter(*arguments)
        graph.replay()
        synchronize()
        close(got, expected, rtol=1e-2, atol=1e-2)


def test_fused_matmul_reduce_scatter_of_bfloat16():
    conforms(narrow_scatters, 2, fresh=True)


def scaled_scatters(rank, scatter_dim, by_row):
    """The same with PyTorch's switch to the fallbacks as without it."""
    need_scaled_products(by_row)
    matrix = random(8, 64, 32, rank=rank).to(FP8)
    factor = random(16, 32, salt=1).to(FP8).t()
    scales = [torch.full(s if by_row else (), 0.1, device=DEVICE) for s in ((8, 64, 1), (1, 16))]
    results = []
    for context in (contextlib.nullcontext, symm_mem._test_mode):
        with context():
            results.append(
                ops.fused_scaled_matmul_reduce_scatter(
                    *(matrix, factor, *scales, "avg", scatter_dim, scatter_dim, world_name()),
                    [8, 64, 16],
                    out_dtype=torch.bfloat16,
                )
            )
    close(*results, rtol=1.6e-2, atol=1e-5)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("scatter_dim", [0, 1])
def test_fused_scaled_matmul_reduce_scatter(scatter_dim, by_row):
    conforms(scaled_scatters, 2, scatter_dim, by_row)


def layouts(rank, dim):
    """Of PyTorch alone: the same values, with `dim` outermost in memory."""
    tensor = torch.arange(8.0 * 64 * 32 * 16).view(8, 64, 32, 16)
    for restride in (
        symm_mem.restride_A_shard_for_fused_all_gather_matmul,
        symm_mem.restride_A_for_fused_matmul_reduce_scatter,
    ):
        got = restride(tensor, dim)
        assert got.movedim(dim, 0).is_contiguous()
        assert torch.equal(got, tensor)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_layouts_that_need_no_copy(dim):
    conforms(layouts, 1, dim)


# -- Inductor ------------------------------------------------------------------------------------


def compiled(function, *inputs):
    """(result, generated code). Two programs of a process can get one id for memory of different
    sizes (test_ids_do_not_depend_on_a_seed), so each test has processes of its own."""
    need_cuda("Inductor plans symmetric memory for CUDA")
    from torch._inductor.utils import fresh_inductor_cache, run_and_get_triton_code

    with torch._inductor.config.patch({"_collective.auto_select": True}), fresh_inductor_cache():
        program = torch.compile(function, fullgraph=True)
        code = run_and_get_triton_code(program, *inputs)
        return program(*inputs), code


def summed(tensor):
    return WAIT(torch.ops._c10d_functional.all_reduce(tensor, "sum", world_name()))


def one_shot(tensor):
    return ops.one_shot_all_reduce(tensor, "sum", world_name())


# Whether the all_reduce of it becomes one_shot_all_reduce: of memory that Inductor allocates.
LOWERED = {
    "sum": (lambda x: x + 1, True),
    "slice": (lambda x: (x + 1)[2:], True),
    "input": (lambda x: x, False),
    "product": (lambda x: x @ x, True),
}


def lowered(rank, which):
    prepare, becomes_one_shot = LOWERED[which]
    if hasattr(symm_mem, "_group_name_to_store"):
        symm_mem.enable_symm_mem_for_group(world_name())
    tensor = random(4, 4, rank=rank)
    got, code = compiled(lambda x: summed(prepare(x)), tensor.clone())
    assert ("one_shot_all_reduce" in code) == becomes_one_shot
    torch.testing.assert_close(got, summed(prepare(tensor)))


@pytest.mark.parametrize("which", LOWERED)
def test_all_reduces_are_lowered(which):
    conforms(lowered, 2, which, fresh=PROCESSES)


# The program, given an all_reduce; how many symmetric buffers its code allocates, and what the code
# has besides.
PLANNED = {
    "two at once": (lambda total, x, w: total(x @ w) + total(x @ w @ w), 2, []),
    "one again": (lambda total, x, w: total(total(x @ w) @ w @ w), 1, ["empty_strided_cuda"]),
    "outputs": (lambda total, x, w: total(total(x @ w) @ w), 1, [", out=", "# reuse"]),
    "an input": (lambda total, x, w: total(x), 1, []),
    "not in place": (lambda total, x, w: total((x @ w) * 2), 1, ["one_shot_all_reduce_out"]),
}


def planned(rank, which):
    need(TORCH >= (2, 13), "this torch plans the memory of these operators otherwise")
    program, buffers, parts = PLANNED[which]
    inputs = random(8, 8, rank=rank), random(8, 8, salt=1)
    got, code = compiled(functools.partial(program, one_shot), *inputs)
    assert len(re.findall(r"buf\d+ = empty_strided_p2p", code)) == buffers
    assert [part for part in parts if part not in code] == []
    torch.testing.assert_close(got, program(summed, *inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("which", PLANNED)
def test_symmetric_buffers_are_planned(which):
    conforms(planned, 2, which, fresh=PROCESSES)


def planned_copy(rank):
    need(TORCH >= (2, 13), "this torch plans the memory of these operators otherwise")
    buffer = allocate(8, 8)
    share(buffer)

    def program(buffer, x, w):
        return ops.one_shot_all_reduce_copy(buffer, x @ w, "sum", world_name())

    _, code = compiled(program, buffer, random(8, 8, rank=rank), random(8, 8, salt=1))
    assert "one_shot_all_reduce_copy_out" in code
    assert ", out=" in code


def test_the_copying_operator_gets_a_planned_output():
    conforms(planned_copy, 2, fresh=PROCESSES)


def ids_of_two_programs(rank):
    """Each compiled program has ids of its own, however the random module is seeded."""
    import random as python_random

    def id_in_code(count):
        python_random.seed(1234)
        _, code = compiled(lambda x: one_shot(x + 1), random(count, count))
        return re.search(r"alloc_id=(\d+)", code)[1]

    need(TORCH > (2, 14), "torch gives ids that cannot collide after 2.14 only")
    assert id_in_code(4) != id_in_code(8)


def test_ids_do_not_depend_on_a_seed():
    conforms(ids_of_two_programs, 2, fresh=PROCESSES)


def arguments_of_a_library(rank):
    """A library says which arguments of its operators have to be symmetric."""
    need_cuda("Inductor plans symmetric memory for CUDA")
    library = torch.library.Library("symm_conformance", "DEF")
    need(hasattr(library, "register_symm_mem_args"), "this torch has no register_symm_mem_args")
    library.define("gather(Tensor input, str group_name) -> Tensor")
    library.register_symm_mem_args("gather", ["input"])
    library.impl("gather", lambda tensor, name: torch.empty_like(tensor), "Meta")
    found = []

    def gather(tensor, name):
        found.append(symm_mem.is_symm_mem_tensor(tensor))
        return tensor.clone()

    library.impl("gather", gather, "CUDA")
    operator = torch.ops.symm_conformance.gather
    _, code = compiled(lambda x: operator(x + 1, world_name()), random(4, 4))
    assert code.count("empty_strided_p2p(") == 1
    assert found
    assert all(found)


def test_arguments_that_a_library_declares_symmetric():
    conforms(arguments_of_a_library, 2, fresh=PROCESSES)


def planned_gather(rank):
    name = "_low_contention_all_gather_ce_multicast"
    need(hasattr(ops, name), f"torch {torch.__version__} has no symm_mem::{name}")
    need_multicast()
    mine = torch.full((8, 8), float(rank), device=DEVICE)
    got, code = compiled(lambda x: getattr(ops, name)(x, world_name()), mine)
    assert all(part in code for part in ("empty_strided_p2p", "alloc_id=", name + "_out"))
    assert all(chunk.eq(peer).all() for peer, chunk in enumerate(got.chunk(dist.get_world_size())))


def test_the_gather_by_copy_engines_gets_a_planned_output():
    conforms(planned_gather, 2, fresh=PROCESSES)
