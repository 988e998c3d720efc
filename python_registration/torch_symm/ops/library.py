"""Makes the operators known to torch as ``torch.ops.symm``."""

from __future__ import annotations

import functools

import torch

from torch_symm.ops import gradients, norms, products

_SCHEMAS = (
    "all_gather_matmul(Tensor a_shard, Tensor[] bs, int gather_dim, str group_name, "
    "bool return_a=False, int? pieces=None) -> (Tensor, Tensor[])",
    "all_gather_scaled_matmul(Tensor a_shard, Tensor[] bs, Tensor a_scale, Tensor[] b_scales, "
    "int gather_dim, str group_name, ScalarType? out_dtype=None, bool return_a=False, "
    "int? pieces=None) -> (Tensor, Tensor[])",
    "matmul_reduce_scatter(Tensor a, Tensor b, str op, int scatter_dim, str group_name, "
    "int? pieces=None) -> Tensor",
    "scaled_matmul_reduce_scatter(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, str op, "
    "int scatter_dim, str group_name, ScalarType? out_dtype=None, int? pieces=None) -> Tensor",
    "matmul_all_reduce(Tensor a, Tensor b, str op, str group_name, int? pieces=None) -> Tensor",
    "all_reduce_rms_norm(Tensor x, Tensor weight, float eps, str group_name, "
    "Tensor? residual=None, int? pieces=None) -> (Tensor, Tensor)",
)
_KERNELS = (
    products.all_gather_matmul,
    products.all_gather_scaled_matmul,
    products.matmul_reduce_scatter,
    products.scaled_matmul_reduce_scatter,
    products.matmul_all_reduce,
    norms.all_reduce_rms_norm,
)
_GRADIENTS = {
    "all_gather_matmul": (gradients.of_gather, gradients.keep_gather),
    "matmul_reduce_scatter": (gradients.of_scatter, gradients.keep_scatter),
    "matmul_all_reduce": (gradients.of_reduce, gradients.keep_reduce),
    "all_reduce_rms_norm": (gradients.of_norm, gradients.keep_norm),
}


@functools.cache
def register() -> torch.library.Library:
    """Local, idempotent."""
    library = torch.library.Library("symm", "DEF")
    for schema, kernel in zip(_SCHEMAS, _KERNELS, strict=True):
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        # Of every device and layout, so that those without a kernel are refused in our words.
        library.impl(kernel.__name__, kernel, "CompositeExplicitAutograd")
        name = f"symm::{kernel.__name__}"
        torch.library.register_fake(name, kernel, lib=library)
        backward, keep = _GRADIENTS.get(kernel.__name__, (gradients.refuse(name), None))
        torch.library.register_autograd(name, backward, setup_context=keep, lib=library)
    return library
