"""CPU kernels of the ``torch.ops.symm_mem`` operators that PyTorch itself writes in Python.

They have PyTorch's schemas and give what its CUDA kernels give. Over a group of symm the fused ones
are those of torch_symm.ops, which overlap computing and copying; the others, and those over groups
of other backends, take one after the other: the data goes through a workspace in symmetric memory,
one a group. A tensor that is symmetric already takes that way too, because only its own rank knows
that it is, and no rank may choose another way than its peers.

Sums of floating-point values are made in group-rank order, accumulated wide and rounded once, so
they have the same bits as a ``reduce_scatter`` of a symm group. Every function here is collective
over the group that it names, returns when its result is there, and needs nothing of the group but
its Store. The other operators of the namespace are in symm_mem/c10d/operators/cpu_operators.cpp.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed._symmetric_memory as symm_mem
from torch.distributed import distributed_c10d as c10d

from torch_symm.ccl import workspace
from torch_symm.ops.arguments import Caller
from torch_symm.ops.products import Gather, Scatter

# The memory of a group lives as long as the group; a later group of the same name has its own.
_workspaces: weakref.WeakKeyDictionary[c10d.ProcessGroup, torch.Tensor] = (
    weakref.WeakKeyDictionary()
)


@functools.cache
def register() -> torch.library.Library:
    """Registers the kernels, where torch has the operator and no CPU kernel for it. Local,
    idempotent; the compiled module must have been loaded."""
    library = torch.library.Library("symm_mem", "IMPL", "CPU")
    for kernel in _KERNELS:
        name = kernel.__name__
        if not hasattr(torch.ops.symm_mem, name):
            continue
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"symm_mem::{name}", "CPU"):
            library.impl(name, kernel)
    return library


def _workspace(group_name: str, size: int) -> Any:
    """The group's handle to at least `size` bytes. All ranks must ask for the same size."""
    group = c10d._resolve_process_group(group_name)
    memory = _workspaces.get(group)
    if memory is None or memory.numel() < size:
        memory = symm_mem.empty(size, dtype=torch.uint8, device="cpu")
        _workspaces[group] = memory
    return symm_mem.rendezvous(memory, group)


def _world_size(group_name: str) -> int:
    return c10d._resolve_process_group(group_name).size()


def _in_pieces(operator: str, group_name: str) -> Caller | None:
    """For groups of symm on one host, whose calls torch_symm.ops cuts into pieces."""
    group = c10d._resolve_process_group(group_name)
    backend = workspace.symm_backend(group, torch.device("cpu"))
    return None if backend is None or backend._hosts() else Caller(operator, group)


def _gather(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    """[world_size, *tensor.shape]: every rank's tensor by rank."""
    gathered = tensor.new_empty(_world_size(group_name), *tensor.shape)
    if tensor.numel() == 0:
        return gathered
    handle = _workspace(group_name, tensor.nbytes)

    def buffer(rank: int) -> torch.Tensor:
        return handle.get_buffer(rank, tensor.shape, tensor.dtype)

    buffer(handle.rank).copy_(tensor)
    handle.barrier()
    for rank in range(handle.world_size):
        gathered[rank].copy_(buffer(rank))
    handle.barrier()
    return gathered


def _reduce_scatter(stacked: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    """The reduction of slice `rank` of all ranks' `stacked` [world_size, *share]."""
    share = stacked.shape[1:]
    if stacked.numel() == 0:
        return stacked.new_empty(share)
    handle = _workspace(group_name, stacked.nbytes)
    handle.get_buffer(handle.rank, stacked.shape, stacked.dtype).copy_(stacked)
    handle.barrier()
    offset = handle.rank * math.prod(share)
    parts = [
        handle.get_buffer(rank, share, stacked.dtype, offset) for rank in range(handle.world_size)
    ]
    if stacked.dtype.is_floating_point or stacked.dtype.is_complex:
        result = torch.ops.torch_symm.reduce_parts(parts, reduce_op)
        handle.barrier()
        return result
    copies = torch.stack(parts)
    handle.barrier()
    return copies.sum(dim=0) if reduce_op == "sum" else copies.mean(dim=0)


def _check_reduce_op(operator: str, reduce_op: str) -> None:
    if reduce_op not in ("sum", "avg"):
        raise ValueError(f"{operator}: reduce_op must be 'sum' or 'avg', got {reduce_op!r}")


def _check_dimension(operator: str, name: str, dim: int, tensor_dims: int) -> None:
    if not 0 <= dim < tensor_dims:
        raise ValueError(f"{operator}: {name} must be in [0, {tensor_dims}), got {dim}")


def _check_matrices(operator: str, a: torch.Tensor, bs: Sequence[torch.Tensor]) -> None:
    if a.dim() < 2:
        raise ValueError(f"{operator}: A must have two dimensions or more, got {tuple(a.shape)}")
    for b in bs:
        if b.dim() != 2:
            raise ValueError(f"{operator}: B must be a matrix, got shape {tuple(b.shape)}")


def _check_divides(operator: str, shape: Sequence[int], dim: int, group_name: str) -> int:
    """Returns the world size."""
    world_size = _world_size(group_name)
    if len(shape) == 0 or shape[dim] % world_size != 0:
        raise ValueError(
            f"{operator}: the size along dimension {dim} must be a multiple of the world size "
            f"{world_size}, got shape {tuple(shape)}"
        )
    return world_size


def _split(operator: str, tensor: torch.Tensor, dim: int, group_name: str) -> torch.Tensor:
    """[world_size, *share]: what goes to each rank when `tensor` is scattered along `dim`."""
    world_size = _check_divides(operator, tensor.shape, dim, group_name)
    size = tensor.shape[dim] // world_size
    return tensor.unflatten(dim, (world_size, size)).movedim(dim, 0)


def get_remote_tensors(x: torch.Tensor, group_name: str) -> tuple[torch.Tensor, ...]:
    """By rank, the tensors that stand in the ranks' memory where `x` stands in this rank's."""
    handle = symm_mem.rendezvous(x, group_name)
    if handle is None:
        raise ValueError(
            "get_remote_tensors: x must be in symmetric memory, got an ordinary tensor"
        )
    offset = x.data_ptr() - handle.buffer_ptrs[handle.rank] if x.numel() else 0
    extent = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    extent = extent if x.numel() else 0
    return tuple(
        handle.get_buffer(rank, (extent,), x.dtype, offset // x.element_size()).as_strided(
            x.shape, x.stride()
        )
        for rank in range(handle.world_size)
    )


def _low_contention_all_gather(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    gathered = _gather(tensor, group_name)
    return gathered if tensor.dim() == 0 else gathered.flatten(0, 1)


def _low_contention_reduce_scatter(
    tensor: torch.Tensor, reduce_op: str, group_name: str
) -> torch.Tensor:
    operator = "_low_contention_reduce_scatter"
    _check_reduce_op(operator, reduce_op)
    return _reduce_scatter(_split(operator, tensor, 0, group_name), reduce_op, group_name)


def fused_all_gather_matmul(
    A: torch.Tensor,
    Bs: list[torch.Tensor],
    gather_dim: int,
    group_name: str,
    *,
    return_A: bool = True,
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """`A`: this rank's shard. The products have the strides that PyTorch's kernels give them."""
    if symm_mem._is_test_mode:
        return symm_mem._fused_all_gather_matmul_fallback(
            A, Bs, gather_dim, group_name, return_A=return_A
        )
    operator = "fused_all_gather_matmul"
    _check_matrices(operator, A, Bs)
    _check_dimension(operator, "gather_dim", gather_dim, A.dim())
    if gather_dim < A.dim() - 1 and (call := _in_pieces(operator, group_name)):
        whole, products = Gather(call, A, Bs, gather_dim, None).carry_out(return_A)
        return whole if return_A else None, products
    if gather_dim == A.dim() - 1:
        whole = _gather(A, group_name).movedim(0, -2).flatten(-2)
        return whole if return_A else None, [whole @ b for b in Bs]
    whole = _gather(A.movedim(gather_dim, 0), group_name).flatten(0, 1)
    products = [(whole @ b).movedim(0, gather_dim) for b in Bs]
    return whole.movedim(0, gather_dim) if return_A else None, products


def _gathered_scale(
    scale: torch.Tensor, shard: torch.Tensor, gather_dim: int, group_name: str
) -> torch.Tensor:
    """The scale of the gathered matrix's rows: sharded as the rows are, there for all rows on
    every rank, or one for all of them."""
    whole_rows = list(shard.shape[:-1])
    whole_rows[gather_dim] *= _world_size(group_name)
    if scale.shape[:-1] == shard.shape[:-1] and scale.shape[-1] == 1:
        return _gather(scale.movedim(gather_dim, 0), group_name).flatten(0, -2)
    if scale.numel() == 1:
        return scale
    if list(scale.shape[:-1]) == whole_rows:
        return scale.movedim(gather_dim, 0).flatten(0, -2)
    raise ValueError(
        "fused_all_gather_scaled_matmul: A_scale must have one element, or one for each row of A "
        f"or of the gathered A, got shape {tuple(scale.shape)} for A {tuple(shard.shape)}"
    )


def fused_all_gather_scaled_matmul(
    A: torch.Tensor,
    Bs: list[torch.Tensor],
    A_scale: torch.Tensor,
    B_scales: list[torch.Tensor],
    gather_dim: int,
    group_name: str,
    biases: list[torch.Tensor | None],
    result_scales: list[torch.Tensor | None],
    out_dtypes: list[torch.dtype | None],
    use_fast_accum: list[bool],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """`A`: this rank's shard."""
    operator = "fused_all_gather_scaled_matmul"
    out_dtypes = symm_mem._maybe_convert_scalar_types_to_dtypes(out_dtypes)
    options = (biases, result_scales, out_dtypes, use_fast_accum)
    names = ("B_scales", "biases", "result_scales", "out_dtypes", "use_fast_accum")
    for name, values in zip(names, (B_scales, *options), strict=True):
        if len(values) != len(Bs):
            raise ValueError(f"{operator}: {name} must have {len(Bs)} elements, got {len(values)}")
    if symm_mem._is_test_mode:
        return symm_mem._fused_all_gather_scaled_matmul_fallback(
            A, Bs, A_scale, B_scales, gather_dim, group_name, *options
        )
    _check_matrices(operator, A, Bs)
    # A row that is gathered from several ranks has no one scale.
    _check_dimension(operator, "gather_dim", gather_dim, A.dim() - 1)
    scale = _gathered_scale(A_scale, A, gather_dim, group_name)
    whole = _gather(A.movedim(gather_dim, 0), group_name).flatten(0, 1)
    rows = whole.flatten(0, -2)
    products = [
        torch._scaled_mm(rows, b, scale, b_scale, bias, result_scale, out_dtype, bool(fast))
        for b, b_scale, bias, result_scale, out_dtype, fast in zip(
            Bs, B_scales, *options, strict=True
        )
    ]
    leading = whole.shape[:-1]
    return whole.movedim(0, gather_dim), [
        product.unflatten(0, leading).movedim(0, gather_dim) for product in products
    ]


def fused_matmul_reduce_scatter(
    A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str
) -> torch.Tensor:
    if symm_mem._is_test_mode:
        return symm_mem._fused_matmul_reduce_scatter_fallback(
            A, B, reduce_op, scatter_dim, group_name
        )
    operator = "fused_matmul_reduce_scatter"
    _check_matrices(operator, A, [B])
    _check_dimension(operator, "scatter_dim", scatter_dim, A.dim())
    _check_reduce_op(operator, reduce_op)
    _check_divides(operator, (*A.shape[:-1], B.shape[1]), scatter_dim, group_name)
    if A.dtype.is_floating_point and (call := _in_pieces(operator, group_name)):
        return Scatter(call, A, B, reduce_op, scatter_dim, None).carry_out().contiguous()
    partial = _split(operator, A @ B, scatter_dim, group_name)
    return _reduce_scatter(partial, reduce_op, group_name)


def fused_scaled_matmul_reduce_scatter(
    A: torch.Tensor,
    B: torch.Tensor,
    A_scale: torch.Tensor,
    B_scale: torch.Tensor,
    reduce_op: str,
    orig_scatter_dim: int,
    scatter_dim_after_maybe_reshape: int,
    group_name: str,
    output_shape: list[int] | None,
    bias: torch.Tensor | None = None,
    result_scale: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """`output_shape`: of the product before it is scattered; None for the shape of A @ B."""
    shape = [*A.shape[:-1], B.shape[-1]] if output_shape is None else list(output_shape)
    dims = (orig_scatter_dim, scatter_dim_after_maybe_reshape)
    options = (bias, result_scale, out_dtype, use_fast_accum)
    if symm_mem._is_test_mode:
        return symm_mem._fused_scaled_matmul_reduce_scatter_fallback(
            A, B, A_scale, B_scale, reduce_op, *dims, group_name, shape, *options
        )
    operator = "fused_scaled_matmul_reduce_scatter"
    _check_matrices(operator, A, [B])
    _check_dimension(
        operator, "scatter_dim_after_maybe_reshape", scatter_dim_after_maybe_reshape, A.dim()
    )
    _check_dimension(operator, "orig_scatter_dim", orig_scatter_dim, len(shape))
    _check_reduce_op(operator, reduce_op)
    if A_scale.numel() != 1:
        if A_scale.shape[:-1] != A.shape[:-1]:
            raise ValueError(
                f"{operator}: A_scale must have one element or one for each row of A "
                f"{tuple(A.shape)}, got shape {tuple(A_scale.shape)}"
            )
        A_scale = A_scale.flatten(0, -2).contiguous()
    product = torch._scaled_mm(A.flatten(0, -2).contiguous(), B, A_scale, B_scale, *options)
    partial = _split(operator, product.view(shape), orig_scatter_dim, group_name)
    return _reduce_scatter(partial, reduce_op, group_name)


_KERNELS: tuple[Callable[..., Any], ...] = (
    get_remote_tensors,
    _low_contention_all_gather,
    _low_contention_reduce_scatter,
    fused_all_gather_matmul,
    fused_all_gather_scaled_matmul,
    fused_matmul_reduce_scatter,
    fused_scaled_matmul_reduce_scatter,
)
