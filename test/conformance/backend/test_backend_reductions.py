"""Collectives that compute: all_reduce, reduce, reduce_scatter; coalesced and sparse ones."""

import pytest
import torch
import torch.distributed as dist

from backend import (
    WORLD_SIZE,
    conforms,
    here,
    mine,
    need,
    numbers,
    of_all,
    reduced,
    same,
)
from harness import DEVICE

OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
BITS = ["BAND", "BOR", "BXOR"]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int32, torch.int64, torch.uint8, torch.int8]
SHAPES = [(), (1,), (3, 5), (1001,), (70, 1000)]


def op_of(name: str):
    return getattr(dist.ReduceOp, name)


def need_for(op: str, dtype: torch.dtype) -> None:
    need(op)
    if op == "AVG" and not (dtype.is_floating_point or dtype.is_complex):
        need("AVG of integers")


def cases(*pairs):
    """Parameters (op, dtype) of the products of pairs (ops, dtypes)."""
    return pytest.mark.parametrize(
        ("op", "dtype"),
        [(op, dtype) for ops, dtypes in pairs for op in ops for dtype in dtypes],
        ids=lambda value: str(value).removeprefix("torch."),
    )


# -- all_reduce -----------------------------------------------------------------------------------


def all_reduces(rank, op, dtype):
    for salt, shape in enumerate(SHAPES):
        tensor = mine(rank, *shape, dtype=dtype, salt=salt)
        dist.all_reduce(tensor, op=op_of(op))
        same(tensor, reduced(op, of_all(*shape, dtype=dtype, salt=salt)), f"{shape}")


@cases((OPS, FLOATS + INTS), (BITS, INTS))
def test_all_reduce_of_each_operation(op, dtype):
    need_for(op, dtype)
    conforms(all_reduces, op, dtype)


@cases((["SUM", "MAX"], [torch.int16]))
def test_all_reduce_of_int16(op, dtype):
    need("int16")
    conforms(all_reduces, op, dtype)


@cases((["SUM", "MAX"], [torch.float8_e4m3fn]), (["MAX"], [torch.float8_e5m2]))
def test_all_reduce_of_float8(op, dtype):
    need("float8")
    conforms(all_reduces, op, dtype)


@cases((OPS[:1] + OPS[2:] + BITS, [torch.bool]))
def test_all_reduce_of_bool(op, dtype):
    need(op)
    conforms(all_reduces, op, dtype)


@cases((["SUM", "AVG"], [torch.complex64, torch.complex128]))
def test_all_reduce_of_complex(op, dtype):
    conforms(all_reduces, op, dtype)


def complex_is_refused(rank, op):
    with pytest.raises(ValueError, match="complex"):
        dist.all_reduce(mine(rank, 3, dtype=torch.complex64), op=op_of(op))


@pytest.mark.parametrize("op", ["PRODUCT", "MIN", "MAX", *BITS])
def test_all_reduce_of_complex_has_sums_alone(op):
    conforms(complex_is_refused, op)


def multiplies_first(rank, dtype, as_tensor):
    factor = torch.tensor([5.0], dtype=dtype, device=DEVICE) if as_tensor else 3.0
    tensor = mine(rank, 1001, dtype=dtype)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
    same(tensor, reduced("SUM", of_all(1001, dtype=dtype)) * (5 if as_tensor else 3))


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_all_reduce_of_multiplied_inputs(dtype, as_tensor):
    need("PREMUL_SUM")
    conforms(multiplies_first, dtype, as_tensor)


def multiplies_first_elsewhere(rank):
    op = dist._make_nccl_premul_sum(2.0)
    total = reduced("SUM", of_all(6 * WORLD_SIZE)) * 2
    tensor = mine(rank, 6 * WORLD_SIZE)
    output = torch.empty(6, device=DEVICE)
    dist.reduce_scatter_tensor(output, tensor, op=op)
    same(output, total.chunk(WORLD_SIZE)[rank], "reduce_scatter")
    dist.reduce(tensor, dst=1, op=op)
    if rank == 1:
        same(tensor, total, "reduce")


def test_reduce_and_reduce_scatter_of_multiplied_inputs():
    need("PREMUL_SUM")
    conforms(multiplies_first_elsewhere)


def stays_in_its_place(rank):
    memory = torch.full((40,), -7.0, device=DEVICE)
    view = memory[8:24].view(4, 4)
    view.copy_(mine(rank, 4, 4))
    assert dist.all_reduce(view) is None
    same(view, reduced("SUM", of_all(4, 4)), "the view")
    same(memory[:8], torch.full((8,), -7.0), "in front of it")
    same(memory[24:], torch.full((16,), -7.0), "behind it")


def test_all_reduce_is_in_place_and_leaves_what_is_around():
    conforms(stays_in_its_place)


def reduces_other_layouts(rank):
    transposed = mine(rank, 6, 7).t()
    dist.all_reduce(transposed)
    same(transposed, reduced("SUM", of_all(6, 7)).t(), "transposed")
    channels = mine(rank, 2, 3, 4, 5).to(memory_format=torch.channels_last)
    dist.all_reduce(channels)
    same(channels, reduced("SUM", of_all(2, 3, 4, 5)), "channels last")


def test_all_reduce_of_dense_tensors_of_any_order_of_dimensions():
    need("transposed tensors")
    conforms(reduces_other_layouts)


def reduces_nothing(rank):
    for op in ["SUM", "MAX"]:
        tensor = torch.empty(0, 3, device=DEVICE)
        dist.all_reduce(tensor, op=op_of(op))
        dist.reduce(tensor, dst=0, op=op_of(op))
        assert tensor.shape == (0, 3)
    output = torch.empty(0, device=DEVICE)
    dist.reduce_scatter(output, [torch.empty(0, device=DEVICE) for _ in range(WORLD_SIZE)])
    assert output.numel() == 0


def test_reductions_of_nothing():
    conforms(reduces_nothing)


def reduces_much(rank):
    tensor = mine(rank, 1 << 20)
    dist.all_reduce(tensor)
    same(tensor, reduced("SUM", of_all(1 << 20)))


def test_all_reduce_of_a_million():
    conforms(reduces_much)


def propagates(rank):
    tensor = torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
    if rank == WORLD_SIZE - 1:
        tensor[1], tensor[2] = float("nan"), float("inf")
    dist.all_reduce(tensor)
    expected = torch.tensor([WORLD_SIZE * 1.0, float("nan"), float("inf")])
    torch.testing.assert_close(tensor.cpu(), expected, equal_nan=True)


def test_sums_keep_nan_and_infinity():
    conforms(propagates)


# -- reduce ---------------------------------------------------------------------------------------


def reduces_to_each(rank, op, dtype):
    for root in range(WORLD_SIZE):
        for shape in SHAPES:
            tensor = mine(rank, *shape, dtype=dtype, salt=root)
            dist.reduce(tensor, dst=root, op=op_of(op))
            if rank == root:
                same(tensor, reduced(op, of_all(*shape, dtype=dtype, salt=root)), f"{shape}")


@cases((OPS, [torch.float32]), (["SUM", *BITS], [torch.int64]))
def test_reduce_to_each_root(op, dtype):
    need_for(op, dtype)
    conforms(reduces_to_each, op, dtype)


def others_keep_theirs(rank):
    for root in range(WORLD_SIZE):
        tensor = mine(rank, 1001)
        dist.reduce(tensor, dst=root)
        if rank != root:
            same(tensor, numbers(rank, 1001), f"the tensor of rank {rank}")


def test_reduce_leaves_the_tensors_of_other_ranks():
    need("reduce keeps inputs")
    conforms(others_keep_theirs)


# -- reduce_scatter -------------------------------------------------------------------------------


def share_of(op, rank, *shape, dtype=torch.float32):
    """What reduce_scatter gives to `rank`, whose inputs are numbers(its rank, salt=the taker's)."""
    return reduced(op, of_all(*shape, dtype=dtype, salt=rank))


def reduce_scatters_lists(rank, op, dtype):
    for shape in SHAPES:
        inputs = [mine(rank, *shape, dtype=dtype, salt=taker) for taker in range(WORLD_SIZE)]
        output = torch.empty(shape, dtype=dtype, device=DEVICE)
        dist.reduce_scatter(output, inputs, op=op_of(op))
        same(output, share_of(op, rank, *shape, dtype=dtype), f"{shape}")
        for taker, tensor in enumerate(inputs):
            same(tensor, numbers(rank, *shape, dtype=dtype, salt=taker), "the input")


@cases((OPS, [torch.float32, torch.bfloat16]), (["SUM", "MIN", *BITS], [torch.int64]))
def test_reduce_scatter_of_a_list(op, dtype):
    need_for(op, dtype)
    conforms(reduce_scatters_lists, op, dtype)


def reduce_scatters_uneven(rank):
    inputs = [mine(rank, 3 * taker + 1, salt=taker) for taker in range(WORLD_SIZE)]
    output = torch.empty(3 * rank + 1, device=DEVICE)
    dist.reduce_scatter(output, inputs)
    same(output, share_of("SUM", rank, 3 * rank + 1))


def test_reduce_scatter_of_tensors_of_different_sizes():
    conforms(reduce_scatters_uneven)


def reduce_scatters_tensors(rank, op, dtype, joined=torch.cat):
    for count in (1, 6, 20000):
        parts = [numbers(rank, count, 2, dtype=dtype, salt=taker) for taker in range(WORLD_SIZE)]
        output = torch.empty(count, 2, dtype=dtype, device=DEVICE)
        dist.reduce_scatter_tensor(output, here(joined(parts)), op=op_of(op))
        same(output, share_of(op, rank, count, 2, dtype=dtype), f"{count}")


@cases((OPS, [torch.float32, torch.float16, torch.int32]), (BITS, [torch.int32]))
def test_reduce_scatter_of_a_tensor(op, dtype):
    need_for(op, dtype)
    conforms(reduce_scatters_tensors, op, dtype)


def test_reduce_scatter_of_a_stacked_tensor():
    conforms(reduce_scatters_tensors, "SUM", torch.float32, torch.stack)


# -- Several at once ------------------------------------------------------------------------------


def several(rank, salt=0):
    return [mine(rank, 5, salt=salt), mine(rank, 3, 4, salt=salt), mine(rank, 1001, salt=salt)]


def sums_of_several(salt=0):
    shapes = [(5,), (3, 4), (1001,)]
    return [reduced("SUM", of_all(*shape, salt=salt)) for shape in shapes]


def all_reduces_coalesced(rank):
    tensors = several(rank)
    dist.all_reduce_coalesced(tensors)
    same(tensors, sums_of_several(), "waited for inside")
    tensors = several(rank, salt=1)
    dist.all_reduce_coalesced(tensors, async_op=True).wait()
    same(tensors, sums_of_several(salt=1), "asynchronous")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_all_reduce_coalesced():
    conforms(all_reduces_coalesced)


def all_gathers_coalesced(rank):
    inputs = several(rank)
    outputs = [[torch.empty_like(t) for t in inputs] for _ in range(WORLD_SIZE)]
    dist.all_gather_coalesced(outputs, inputs)
    for peer in range(WORLD_SIZE):
        expected = [numbers(peer, 5), numbers(peer, 3, 4), numbers(peer, 1001)]
        same(outputs[peer], expected, f"of rank {peer}")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_all_gather_coalesced():
    need("all_gather_coalesced")
    conforms(all_gathers_coalesced)


def coalesces(rank, kind, async_ops):
    manager = dist.distributed_c10d._coalescing_manager
    inputs, outputs = several(rank), []
    with manager(async_ops=async_ops) as works:
        for tensor in inputs:
            if kind == "all_reduce":
                dist.all_reduce(tensor)
            elif kind == "all_gather":
                outputs.append(tensor.new_empty(WORLD_SIZE * tensor.numel()))
                dist.all_gather_into_tensor(outputs[-1], tensor.flatten())
            else:
                outputs.append(tensor.new_empty(tensor.shape))
                dist.reduce_scatter_tensor(outputs[-1], torch.cat([tensor] * WORLD_SIZE))
    if async_ops:
        works.wait()
    if kind == "all_gather":
        shapes = [(5,), (12,), (1001,)]
        same(outputs, [torch.cat(of_all(*shape)) for shape in shapes])
    else:
        same(inputs if kind == "all_reduce" else outputs, sums_of_several())


@pytest.mark.parametrize("async_ops", [False, True], ids=["waits", "async"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_coalescing_manager(kind, async_ops):
    conforms(coalesces, kind, async_ops)


def coalesces_by_device(rank):
    device = torch.device(DEVICE, torch.cuda.current_device()) if DEVICE == "cuda" else DEVICE
    tensors = several(rank)
    with dist.distributed_c10d._coalescing_manager(device=torch.device(device)):
        for root, tensor in enumerate(tensors):
            dist.broadcast(tensor, src=root % WORLD_SIZE)
    roots = [number % WORLD_SIZE for number in range(3)]
    same(tensors, [numbers(roots[0], 5), numbers(roots[1], 3, 4), numbers(roots[2], 1001)])


def test_coalescing_manager_of_a_device():
    need("coalescing by device")
    conforms(coalesces_by_device)


# -- Sparse ---------------------------------------------------------------------------------------


def sparse_of(rank, kind) -> torch.Tensor:
    """A sparse 6 x 4 tensor on the CPU; indices of ranks overlap in part."""
    if kind == "nothing":
        return torch.sparse_coo_tensor(torch.empty(2, 0), torch.empty(0), (6, 4))
    rows = torch.tensor([rank % 6, (rank + 1) % 6, 5])
    if kind == "rows":
        return torch.sparse_coo_tensor(rows[None], numbers(rank, 3, 4), (6, 4))
    if kind == "one rank has nothing" and rank == 0:
        return sparse_of(rank, "nothing")
    columns = torch.tensor([0, 1, 3])
    if kind == "repeated":
        rows, columns = rows[[0, 0, 2]], columns[[0, 0, 2]]
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), numbers(rank, 3), (6, 4))


def all_reduces_sparse(rank, kind):
    tensor = here(sparse_of(rank, kind))
    dist.all_reduce(tensor)
    expected = sum(sparse_of(peer, kind).to_dense() for peer in range(WORLD_SIZE))
    assert tensor.is_sparse
    same(tensor.to_dense(), expected)


@pytest.mark.parametrize("kind", ["cells", "rows", "repeated", "one rank has nothing", "nothing"])
def test_all_reduce_of_sparse_tensors(kind):
    need("sparse")
    conforms(all_reduces_sparse, kind)
