"""A linear layer whose weight is sharded over the ranks, computed without gathering the weight.

Every rank holds some rows of the weight, as FSDP shards it, and needs ``x @ weight.T`` for its own
batch. The usual way gathers all rows into a buffer of their own and multiplies then. Here the rows
are read where they stand, through `torch_symm.contiguous_view`: no buffer, no ring, no steps. On a
GPU one Triton kernel does it all, on the CPU it is plain torch.

    torchrun --nproc-per-node 4 docs/examples/all_gather_matmul.py
    torchrun --nproc-per-node 4 docs/examples/all_gather_matmul.py --device cuda

Rank 0 prints how far the two ways are apart and how long each takes; the exit status is 1 where
they differ by more than rounding.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import torch_symm

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with torch for GPUs only
    triton = None


def shard_of_weight(rows: int, features: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """This rank's rows of the weight, in memory that the other ranks can read."""
    generator = torch.Generator().manual_seed(dist.get_rank() + 1)
    shard = torch_symm.empty(rows, features, dtype=dtype, device=device)
    return shard.copy_(torch.randn(rows, features, generator=generator) / features**0.5)


def linear_over_shards(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ w.T``, where ``weight`` [ranks, rows, features] are the rows of ``w`` by rank.

    The ranks must have met since the weight was written, and must meet before it is written again.
    """
    if x.is_cuda:
        return _linear_by_triton(x, weight)
    ranks, rows, _ = weight.shape
    y = x.new_empty(x.shape[0], ranks, rows)
    # Each rank begins with its own rows, so that not all read the same rank's at once.
    for step in range(ranks):
        owner = (dist.get_rank() + step) % ranks
        y[:, owner] = x @ weight[owner].t()
    return y.flatten(1)


if triton is not None:

    @triton.jit
    def _linear_kernel(
        x,  # [batch, features]
        weight,  # [ranks, rows, features]
        y,  # [batch, ranks * rows]
        batch,
        rows,
        columns,  # ranks * rows
        features,
        x_stride,
        owner_stride,  # from one rank's rows to the next rank's: a gap may lie between
        row_stride,
        y_stride,
        first_column,
        BATCH_BLOCK: tl.constexpr,
        COLUMN_BLOCK: tl.constexpr,
        FEATURE_BLOCK: tl.constexpr,
    ):
        """One block of y. A column of y is a row of the weight, wherever that stands."""
        batch_index = tl.program_id(0) * BATCH_BLOCK + tl.arange(0, BATCH_BLOCK)
        column = tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)
        in_y = column < columns
        column = (column + first_column) % columns
        owner = (column // rows).to(tl.int64)
        row = (column % rows).to(tl.int64)
        weight_rows = weight + owner * owner_stride + row * row_stride
        x_rows = x + batch_index.to(tl.int64) * x_stride
        total = tl.zeros((BATCH_BLOCK, COLUMN_BLOCK), dtype=tl.float32)
        for start in range(0, features, FEATURE_BLOCK):
            feature = start + tl.arange(0, FEATURE_BLOCK)
            in_features = feature < features
            x_part = tl.load(
                x_rows[:, None] + feature[None, :],
                mask=(batch_index < batch)[:, None] & in_features[None, :],
                other=0.0,
            )
            weight_part = tl.load(
                weight_rows[None, :] + feature[:, None],
                mask=in_y[None, :] & in_features[:, None],
                other=0.0,
            )
            total = tl.dot(x_part, weight_part, total, input_precision="ieee")
        tl.store(
            y + batch_index.to(tl.int64)[:, None] * y_stride + column[None, :],
            total.to(y.dtype.element_ty),
            mask=(batch_index < batch)[:, None] & in_y[None, :],
        )


def _linear_by_triton(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if triton is None:
        raise RuntimeError("this example needs Triton for tensors on a GPU")
    batch, features = x.shape
    ranks, rows, _ = weight.shape
    columns = ranks * rows
    y = x.new_empty(batch, columns)
    grid = (triton.cdiv(batch, 64), triton.cdiv(columns, 64))
    _linear_kernel[grid](
        x,
        weight,
        y,
        batch,
        rows,
        columns,
        features,
        x.stride(0),
        weight.stride(0),
        weight.stride(1),
        y.stride(0),
        dist.get_rank() * rows,
        BATCH_BLOCK=64,
        COLUMN_BLOCK=64,
        FEATURE_BLOCK=32,
    )
    return y


def linear_by_all_gather(x: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """The same by a collective and one multiplication. Collective."""
    gathered = shard.new_empty(dist.get_world_size() * shard.shape[0], shard.shape[1])
    dist.all_gather_into_tensor(gathered, shard)
    return x @ gathered.t()


def compare(
    batch: int, rows: int, features: int, dtype: torch.dtype, device: str, repeats: int
) -> dict[str, float]:
    """The largest difference, what rounding explains of it, and both ways' seconds. Collective."""
    generator = torch.Generator().manual_seed(1000 + dist.get_rank())
    x = torch.randn(batch, features, generator=generator).to(device, dtype)
    shard = shard_of_weight(rows, features, dtype, device)
    weight = torch_symm.contiguous_view(shard)
    dist.barrier()  # every shard is there
    got, expected = linear_over_shards(x, weight), linear_by_all_gather(x, shard)
    seconds = {
        "view_s": seconds_of(lambda: linear_over_shards(x, weight), device, repeats),
        "all_gather_s": seconds_of(lambda: linear_by_all_gather(x, shard), device, repeats),
    }
    dist.barrier()  # nobody reads any more
    # Sums of `features` products whose total is about 1, in any order, rounded to dtype at the end.
    allowed = 4 * (features**0.5 * torch.finfo(torch.float32).eps + torch.finfo(dtype).eps)
    difference = (got.double() - expected.double()).abs().max().item()
    scale = max(1.0, expected.double().abs().max().item())
    return {"difference": difference, "allowed": allowed * scale, **seconds}


def seconds_of(call: Callable[[], torch.Tensor], device: str, repeats: int) -> float:
    """The mean time of a call, after one that is not counted."""

    def finish() -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()

    call()
    finish()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    finish()
    return (time.perf_counter() - start) / repeats


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="symm")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--rows", type=int, default=100, help="of the weight, on each rank")
    parser.add_argument("--features", type=int, default=257)
    parser.add_argument("--repeats", type=int, default=10)
    return parser.parse_args()


def main() -> int:
    """Compare the two ways and print what came out."""
    arguments = parse_arguments()
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        # Products in full precision, so that the two ways can be compared.
        torch.backends.cuda.matmul.allow_tf32 = False
    else:
        torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    result = compare(
        arguments.batch,
        arguments.rows,
        arguments.features,
        getattr(torch, arguments.dtype),
        arguments.device,
        arguments.repeats,
    )
    fine = result["difference"] <= result["allowed"]
    if dist.get_rank() == 0:
        print(
            f"largest difference {result['difference']:.2e} (rounding explains "
            f"{result['allowed']:.2e}); through the view {result['view_s'] * 1e3:.3f} ms, "
            f"all_gather and matmul {result['all_gather_s'] * 1e3:.3f} ms"
        )
    dist.destroy_process_group()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
