"""Compiles kernels that use each function of torch_symm.triton, and those of the examples, and
prints the assembly.

    python codegen_kernels.py cuda 90      # PTX
    python codegen_kernels.py hip gfx942   # AMD's assembly
    python codegen_kernels.py cuda 90 put_kernel fence_kernel   # of these alone
    python codegen_kernels.py cuda 90 load_reduce_kernel:bf16:min   # multimem's: element, operation
    python codegen_kernels.py cuda 90 ring_matmul_kernel:bf16:WIDE_TILES   # with these options

No GPU is needed. A process of its own, since the tests' ranks have Triton's interpreter.
"""

import importlib
import json
import sys
from pathlib import Path

import multimem_kernels
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import torch_symm.triton as symm

BLOCK = 1024


@triton.jit
def put_kernel(box, flag, source, ctx, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    symm.put_signal(box + index, source + index, flag, 1, 1, ctx)


@triton.jit
def remote_kernel(box, flag, source, ctx, BLOCK: tl.constexpr):
    """Of several tensors: the scalar pointer is looked up, the block's offsets come after."""
    index = tl.arange(0, BLOCK)
    there = symm.remote(box, 1, ctx)
    tl.store(there + index, tl.load(source + index))
    symm.signal_add(flag, 1, 1, ctx)


@triton.jit
def relaxed_signals_kernel(box, flag, source, ctx, BLOCK: tl.constexpr):
    symm.signal_set(flag, 1, 1, ctx, SEM="relaxed")
    symm.signal_add(flag, 1, 1, ctx, SEM="relaxed")


@triton.jit
def wait_kernel(box, flag, source, ctx, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    symm.wait_until(flag, "ge", 1, ctx, source=1)
    symm.get(source + index, box + index, 1, ctx)


@triton.jit
def fence_kernel(box, flag, source, ctx, BLOCK: tl.constexpr):
    symm.store(box, 1.0, 1, ctx)
    symm.fence()
    symm.store(box + 1, 2.0, 1, ctx)
    symm.quiet()


@triton.jit
def barrier_kernel(box, flag, source, ctx, BLOCK: tl.constexpr):
    symm.barrier(ctx)


@triton.jit
def atomics_kernel(box, flag, source, ctx, BLOCK: tl.constexpr):
    symm.atomic_add(flag, 1, 1, ctx, SEM="relaxed")
    tl.store(flag + 1, symm.atomic_exch(flag, 2, 1, ctx, SEM="acquire"))
    symm.atomic_min(flag, 3, 1, ctx, SEM="release")
    symm.atomic_max(flag, 4, 1, ctx)
    symm.atomic_and(flag, 5, 1, ctx, SCOPE="gpu")
    symm.atomic_or(flag, 6, 1, ctx)
    tl.store(flag + 2, symm.atomic_cas(flag, 7, 8, 1, ctx))
    tl.store(box, symm.load(box, symm.my_rank(ctx) % symm.world_size(ctx), ctx))


KERNELS = [
    *(put_kernel, remote_kernel, relaxed_signals_kernel, wait_kernel, fence_kernel),
    *(barrier_kernel, atomics_kernel),
]
FOLDER = Path(__file__).resolve().parents[3] / "docs" / "examples" / "kernels"
EXAMPLES = {
    "all_reduce_one_shot": "all_reduce_kernel",
    "all_gather_matmul_ring": "ring_matmul_kernel",
    "moe_dispatch_combine": "moe_kernel",
    "flash_decode_combine": "decode_kernel",
    "halo_exchange": "heat_kernel",
}
# By the names of the arguments; the others are float32 tensors.
NUMBERS = (
    "count",
    "most",
    "turn",
    "tokens",
    "steps",
    "rows",
    "inner",
    "columns",
    "senders",
    "parts",
)
INTEGERS = ("flag", "arrived", "expert", "origin", "counts", "done", "ready", "turns")
CONSTANTS = {
    "OPERATION": "add",
    "BLOCK": BLOCK,
    "ROWS": 16,
    "COLUMNS": 32,
    "WIDTH": 32,
    "KEYS": 16,
}


# By the kernel of tiles alone: which sizes of its tile a block of the descriptor has.
BLOCKS = {"x_tiles": (0, 2), "box_tiles": (0, 2), "w": (2, 1), "out": (0, 1)}


def type_of(argument: str, element: str, tile: tuple[int, ...] | None) -> str:
    if tile and argument in BLOCKS:
        first, second = (tile[size] for size in BLOCKS[argument])
        return f"tensordesc<{element}[{first}, {second}]>"
    if argument in CONSTANTS or argument in ("TILE", "CHUNK"):
        return "constexpr"
    if argument in NUMBERS:
        return "i32"
    if argument == "value":
        return element
    return "*i64" if argument == "ctx" else "*i32" if argument in INTEGERS else f"*{element}"


def assembly(
    kernel, target: GPUTarget, element: str = "fp32", operation: str = "add", chosen=None
) -> str:
    values, options = CONSTANTS | {"OPERATION": operation}, {}
    if chosen:
        values |= {"TILE": chosen.tile, "CHUNK": chosen.chunk}
        options = {"num_warps": chosen.warps, "num_stages": chosen.stages}
    tile = values.get("TILE")
    signature = {name: type_of(name, element, tile) for name in kernel.arg_names}
    constants = {name: value for name, value in values.items() if name in signature}
    pointers = [index for index, kind in enumerate(signature.values()) if kind.startswith("*")]
    counts = ("count", "rows", "inner", "columns") if chosen else ("count",)
    counts = [index for index, name in enumerate(signature) if name in counts]
    aligned = {(index,): [["tt.divisibility", 16]] for index in (*pointers, *counts)}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=target, options=options)
    return compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]


def main() -> None:
    backend, arch, *names = sys.argv[1:]
    target = GPUTarget("cuda", int(arch), 32) if backend == "cuda" else GPUTarget("hip", arch, 64)
    sys.path.insert(0, str(FOLDER))
    examples = [getattr(importlib.import_module(file), name) for file, name in EXAMPLES.items()]
    wanted = names or [kernel.fn.__name__ for kernel in (*KERNELS, *examples)]
    everything = {kernel.fn.__name__: kernel for kernel in (*KERNELS, *examples)} | {
        name: kernel for name, kernel in vars(multimem_kernels).items() if name.endswith("_kernel")
    }
    found = {}
    for name in wanted:
        kernel, *settings = name.split(":")
        chosen = None
        if kernel == "ring_matmul_kernel":
            tiles = settings.pop() if len(settings) == 2 else "TINY_TILES"
            chosen = getattr(importlib.import_module("matmul_options"), tiles)
        found[name] = assembly(everything[kernel], target, *settings, chosen=chosen)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
