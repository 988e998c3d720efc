"""How fast matmul and collective as one are on GPUs, beside one after the other; values checked.

    torchrun --nproc-per-node 2 test/machine/speed/fused_speed.py --json fused_speed.json
    torchrun --nproc-per-node 2 test/machine/speed/fused_speed.py --provider --json torch.json

A row is a form at one shape of the whole product [m, k] @ [k, n], in microseconds of the slowest
rank, the median of rounds of graph replays: the rank's matmul alone; matmul and collective one
after the other, over NCCL and over symm; the form in 2, 3 and 5 pieces and as it cuts itself
(`rule`).
`wrong` counts elements of all ranks that are not the exact ones. With --provider the form is
PyTorch's own operator over PyTorch's provider, and nothing of symm is in the processes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable
from pathlib import Path

_parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
_parser.add_argument("--provider", action="store_true", help="PyTorch's operators and provider")
_parser.add_argument("--quick", action="store_true", help="small and few: a check of this script")
_parser.add_argument("--form", help="this one alone, as matmul_all_reduce")
_parser.add_argument("--json", type=Path)
arguments = _parser.parse_args()
os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
if arguments.provider:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as symm_mem  # noqa: E402
from speed_timing import Timing, differing, errors_in, tell  # noqa: E402

DTYPE = torch.bfloat16
TIMEOUT = datetime.timedelta(seconds=30)
ROWS = [256] if arguments.quick else [512, 1024, 2048, 4096, 8192, 16384]
FEW_ROWS = [1, 8, 64]
# k and n of projections of models of 7 and of 70 G parameters; two ranks share one of them.
LAYERS = [(256, 256)] if arguments.quick else [(4096, 4096), (4096, 11008), (8192, 8192)]
LAYERS += [] if arguments.quick else [(8192, 28672)]
PIECES = [2, 3, 5]

Ways = dict[str, Callable[[], torch.Tensor]]


def numbers(*shape: int, seed: int, share: float = 1.0) -> torch.Tensor:
    """-1, 0 and 1, of which so many are 0 that sums of products are exact in bfloat16."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    options = {"generator": generator, "device": "cuda"}
    signs = torch.randint(0, 2, shape, **options) * 2 - 1
    return (signs * (torch.rand(shape, **options) < share)).to(DTYPE)


def gather_ways(m: int, k: int, n: int, nccl) -> tuple[Ways, torch.Tensor]:
    size, rank = dist.get_world_size(), dist.get_rank()
    every = [numbers(m // size, k, seed=r, share=0.05) for r in range(size)]
    a, b = every[rank], numbers(k, n // size, seed=100 + rank)
    whole = torch.cat(every)
    expected = whole @ b

    def after(group) -> torch.Tensor:
        dist.all_gather_into_tensor(whole, a, group=group)
        return whole @ b

    ways: Ways = {"matmul": lambda: whole @ b}
    if arguments.provider:
        operator = torch.ops.symm_mem.fused_all_gather_matmul
        name = dist.group.WORLD.group_name
        ways["after nccl"] = lambda: after(None)
        ways["torch"] = lambda: operator(a, [b], 0, name, return_A=False)[1][0]
        return ways, expected
    from torch_symm import ops

    ways["after nccl"] = lambda: after(nccl)
    ways["after symm"] = lambda: after(None)
    for count in PIECES:
        ways[f"{count} pieces"] = lambda count=count: ops.all_gather_matmul(
            a, [b], 0, pieces=count
        )[0]
    ways["rule"] = lambda: ops.all_gather_matmul(a, [b], 0)[0]
    return ways, expected


def scatter_ways(m: int, k: int, n: int, nccl) -> tuple[Ways, torch.Tensor]:
    size, rank = dist.get_world_size(), dist.get_rank()
    every = [
        (numbers(m, k // size, seed=r, share=0.05), numbers(k // size, n, seed=100 + r))
        for r in range(size)
    ]
    a, b = every[rank]
    part = slice(rank * m // size, (rank + 1) * m // size)
    expected = sum(((x[part] @ y).float() for x, y in every)).to(DTYPE)
    del every
    result = torch.empty(m // size, n, dtype=DTYPE, device="cuda")

    def after(group) -> torch.Tensor:
        dist.reduce_scatter_tensor(result, a @ b, group=group)
        return result

    ways: Ways = {"matmul": lambda: a @ b}
    if arguments.provider:
        operator = torch.ops.symm_mem.fused_matmul_reduce_scatter
        name = dist.group.WORLD.group_name
        ways["after nccl"] = lambda: after(None)
        ways["torch"] = lambda: operator(a, b, "sum", 0, name)
        return ways, expected
    from torch_symm import ops

    ways["after nccl"] = lambda: after(nccl)
    ways["after symm"] = lambda: after(None)
    for count in PIECES:
        ways[f"{count} pieces"] = lambda count=count: ops.matmul_reduce_scatter(a, b, pieces=count)
    ways["rule"] = lambda: ops.matmul_reduce_scatter(a, b)
    return ways, expected


def reduce_ways(m: int, k: int, n: int, nccl) -> tuple[Ways, torch.Tensor]:
    size, rank = dist.get_world_size(), dist.get_rank()
    every = [
        (numbers(m, k // size, seed=r, share=0.05), numbers(k // size, n, seed=100 + r))
        for r in range(size)
    ]
    a, b = every[rank]
    expected = sum(((x @ y).float() for x, y in every)).to(DTYPE)
    del every

    def after(group) -> torch.Tensor:
        product = a @ b
        dist.all_reduce(product, group=group)
        return product

    ways: Ways = {"matmul": lambda: a @ b}
    if arguments.provider:
        ways["after nccl"] = lambda: after(None)
        return ways, expected
    from torch_symm import ops

    ways["after nccl"] = lambda: after(nccl)
    ways["after symm"] = lambda: after(None)
    for count in PIECES if m >= 1024 else []:
        ways[f"{count} pieces"] = lambda count=count: ops.matmul_all_reduce(a, b, pieces=count)
    ways["rule"] = lambda: ops.matmul_all_reduce(a, b)
    return ways, expected


def norm_ways(m: int, k: int, n: int, nccl) -> tuple[Ways, torch.Tensor]:
    """all_reduce and RMSNorm of [m, n], with a residual; exact where every sum is."""
    from torch_symm import ops

    size, rank = dist.get_world_size(), dist.get_rank()
    every = [numbers(m, n, seed=r) for r in range(size)]
    x, residual = every[rank], numbers(m, n, seed=50)
    weight = torch.ones(n, dtype=DTYPE, device="cuda")
    total = (sum(t.float() for t in every) + residual.float()).to(DTYPE)
    expected = torch.rms_norm(total, (n,), weight, 1e-6)
    y = x.clone()

    def all_reduce(group) -> torch.Tensor:
        dist.all_reduce(y, group=group)
        return expected

    def after(group) -> torch.Tensor:
        y.copy_(x)
        dist.all_reduce(y, group=group)
        y.add_(residual)
        return torch.rms_norm(y, (n,), weight, 1e-6)

    return {
        "all_reduce over symm": lambda: all_reduce(None),
        "after nccl": lambda: after(nccl),
        "after symm": lambda: after(None),
        "rule": lambda: ops.all_reduce_rms_norm(x, weight, 1e-6, residual=residual)[0],
    }, expected


FORMS = {
    "all_gather_matmul": (gather_ways, ROWS),
    "matmul_reduce_scatter": (scatter_ways, ROWS),
    "matmul_all_reduce": (reduce_ways, FEW_ROWS + ROWS[:4]),
    "all_reduce_rms_norm": (norm_ways, FEW_ROWS),
}


def measure(nccl) -> list[dict]:
    rows: list[dict] = []
    timing = Timing("cuda", rounds=5)
    for form, (ways_of, sizes) in FORMS.items():
        if arguments.provider and form == "all_reduce_rms_norm":
            continue
        if arguments.form not in (None, form):
            continue
        for k, n in LAYERS:
            for m in sizes:
                row: dict = {"form": form, "m": m, "k": k, "n": n, "wrong": 0}
                ways, expected = ways_of(m, k, n, nccl)
                calls = max(2, min(20, (1 << 36) // (m * k * n)))
                for name, call in ways.items():
                    with errors_in(rows, form=form, m=m, k=k, n=n, way=name):
                        checked = name != "matmul"  # a part of the result
                        row["wrong"] += checked and differing(call(), expected)
                        row[name] = timing.captured(call, calls)
                        row["wrong"] += checked and differing(call(), expected)
                rows.append(row)
                tell(row)
    return rows


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if arguments.provider else "symm", timeout=TIMEOUT)
    nccl = None
    if arguments.provider:
        symm_mem.enable_symm_mem_for_group(dist.group.WORLD.group_name)
    elif torch.cuda.device_count() >= dist.get_world_size():
        nccl = dist.new_group(backend="nccl", timeout=TIMEOUT)
    rows = measure(nccl)
    if arguments.json and dist.get_rank() == 0:
        import json

        command = "torchrun --nproc-per-node 2 test/machine/speed/fused_speed.py " + " ".join(
            sys.argv[1:]
        )
        results: dict = {"command": command.strip(), "rows": rows}
        if arguments.provider:
            arguments.json.write_text(json.dumps(results))
        else:
            from torch_symm.tools.machine import describe_machine
            from torch_symm.tools.record_file import write_records

            results["machine"] = describe_machine(["symm", "nccl"], dist.get_world_size(), "cuda")
            write_records(arguments.json, results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
