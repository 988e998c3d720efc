"""How fast kernels of torch_symm.triton are, beside symm's own calls and PyTorch's; values checked.

    torchrun --nproc-per-node 2 test/machine/speed/kernel_speed.py --json kernel_speed.json
    torchrun --nproc-per-node 2 test/machine/speed/kernel_speed.py --device cpu --quick

Parts: `signal`, half of a round of ping-pong in one kernel; `all_reduce`, the one-shot example
beside dist.all_reduce; `copy`, puts and gets beside symm's send, broadcast and all_gather; `fused`,
the example of a ring all_gather with a matmul beside symm_mem::fused_all_gather_matmul over SYMM
and, in processes of their own, over PyTorch's CUDA provider. Times are microseconds of the slowest
rank, the median of rounds, from replays of graphs where no other is named. `wrong` counts the
elements of all ranks that are not what they must be. With `--sweep` the part `fused` is the search
of fused_sweep.py. `of_own` and the like are ratios of times, above 1
where the kernel is slower. On a CPU, by the interpreter, the times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

PARTS = ("signal", "all_reduce", "copy", "fused")
_parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
_parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
_parser.add_argument("--quick", action="store_true", help="small and few: a check of this script")
_parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
_parser.add_argument("--json", type=Path)
_parser.add_argument("--sweep", action="store_true", help="options of the fused example")
_parser.add_argument("--limit", type=float, default=90.0, help="seconds of a sweep")
_parser.add_argument("--provider", action="store_true", help="PyTorch's CUDA provider alone")
arguments = _parser.parse_args()
# Multicast stays off: the comparison is of stores and loads.
os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
if arguments.device == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples" / "kernels"
sys.path[:0] = [str(Path(__file__).resolve().parent), str(EXAMPLES)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as symm_mem  # noqa: E402
from speed_timing import Timing, differing, errors_in, everybody, tell  # noqa: E402

DEVICE, QUICK = arguments.device, arguments.quick
TIMEOUT = datetime.timedelta(seconds=20)
timing = Timing(DEVICE, rounds=2 if QUICK else 7)
# Rows of all ranks, what a product sums over, columns.
SHAPES = [(64, 64, 64)] if QUICK else [(256, 1024, 1024), (1024, 4096, 4096), (4096, 4096, 4096)]


def signal() -> list[dict]:
    import speed_kernels as kernels

    import torch_symm

    rows: list[dict] = []
    flag = torch_symm.zeros(1, dtype=torch.int32, device=DEVICE)
    turns = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    ctx = kernels.symm.context(flag, timeout=TIMEOUT)
    rounds = 10 if QUICK else 1000
    for way in ("signal", "remote", "relaxed"):
        for warps in (1, 4):
            with errors_in(rows, way=way, warps=warps):
                timing.meet()

                def call(way=way, warps=warps):
                    options = {"WAY": way, "num_warps": warps}
                    kernels.ping_pong_kernel[(1,)](flag, turns, rounds, ctx, **options)

                us = timing.captured(call, 1)
                ctx.check()
                # Every round counts twice; the one who signals last is rank 1.
                wrong = differing(flag + dist.get_rank(), turns)
                rows.append({"way": way, "warps": warps, "rounds": rounds})
                rows[-1] |= {"one_way_us": round(us / rounds / 2, 4), "wrong": wrong}
                tell(rows[-1])
    return rows


def numbers(*shape: int, seed: int, most: int = 1) -> torch.Tensor:
    """Whole numbers, so small that their sums are exact in any order, and of products in bfloat16
    too, as a rule."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator)


def all_reduce() -> list[dict]:
    import all_reduce_one_shot as example

    rows: list[dict] = []
    count, calls = (1024 if QUICK else 16384), (2 if QUICK else 20)
    x = torch.zeros(count, device=DEVICE)
    own = timing.captured(lambda: dist.all_reduce(x), calls)
    rows.append({"what": "dist.all_reduce", "bytes": 4 * count, "us": own})
    tell(rows[-1])
    variants = (
        [(512, 4)] if QUICK else [(256, 2), (256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 8)]
    )
    for block, warps in variants:
        with errors_in(rows, what="example", block=block, warps=warps):
            call = example.AllReduce(count, DEVICE, block, warps)
            us = timing.captured(lambda call=call: call(x), calls)
            wrong = 0
            for turn in range(3):
                every = [
                    numbers(count, seed=10 * turn + r, most=100)
                    for r in range(dist.get_world_size())
                ]
                x.copy_(every[dist.get_rank()])
                wrong += differing(call(x), sum(every).to(x))
            call.ctx.check()
            rows.append({"what": "example", "bytes": 4 * count, "us": us, "block": block})
            rows[-1] |= {"warps": warps, "wrong": wrong, "of_own": round(us / own, 3)}
            tell(rows[-1])
            x.zero_()
    return rows


# Bytes, and the numbers of programs.
COPY_SIZES = {1 << 14: (2,)}
if not QUICK:
    COPY_SIZES = {64 << 20: (4, 8, 16, 32), 16 << 20: (16,), 1 << 20: (16,)}
# (elements of 4 bytes a tile, warps, stages)
COPY_VARIANTS = [(1024, 4, 1)]
if not QUICK:
    COPY_VARIANTS = [(8192, 8, 1), (16384, 16, 1), (32768, 16, 1), (32768, 32, 1), (16384, 16, 3)]


def own_copies(bytes_: int) -> list[dict]:
    """symm's ways to move as much, in tensors of either kind: the memory in `kind`."""
    import torch_symm

    rows: list[dict] = []
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), bytes_ // 4
    calls = 2 if QUICK else max(2, (64 << 20) // bytes_ * 4)
    makers = {"plain": torch.zeros, "symmetric": torch_symm.zeros}
    for kind, zeros in makers.items():
        here, every = (
            zeros(number, dtype=torch.int32, device=DEVICE) for number in (count, ranks * count)
        )
        ways = {
            ("send", "one"): functools.partial(dist.recv if rank else dist.send, here, 1 - rank),
            ("broadcast", "one"): functools.partial(dist.broadcast, here, 0),
            ("all_gather", "both"): functools.partial(dist.all_gather_into_tensor, every, here),
        }
        for (way, direction), call in ways.items():
            row = {"way": way, "memory": kind, "direction": direction, "bytes": bytes_}
            with errors_in(rows, **row):
                here.fill_(rank + 5)
                us = timing.captured(call, calls)
                if way == "all_gather":
                    expected = torch.arange(5, 5 + ranks, device=DEVICE, dtype=torch.int32)
                    wrong = differing(every, expected.repeat_interleave(count))
                else:
                    wrong = differing(here, torch.full_like(here, 5))
                row |= {"us": us, "gb_s": round(bytes_ / us / 1e3, 1), "wrong": wrong}
                rows.append(row)
                tell(row)
    return rows


def one_copy(call, form: str, direction: str, box, plain, bytes_: int) -> tuple[float, int]:
    """(microseconds, how many elements of all ranks are wrong)."""
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), bytes_ // 4
    source, target = (plain, box) if form.startswith("put") else (box, plain)
    index = torch.arange(count, dtype=torch.int32, device=DEVICE)
    source[:count] = index + 1000 * rank
    target.fill_(-1)
    timing.meet()
    call()
    timing.meet()
    # A put comes from the rank before, a get asks the next one; rank 0 alone is active in "one".
    other = (rank - 1) % ranks if form.startswith("put") else (rank + 1) % ranks
    done = direction == "both" or (other == 0 if form.startswith("put") else rank == 0)
    expected = torch.full_like(target, -1)
    if done:
        expected[:count] = index + 1000 * other
    wrong = differing(target, expected)
    return timing.captured(call, 2 if QUICK else max(2, (64 << 20) // bytes_ * 3)), wrong


def copy() -> list[dict]:
    import speed_kernels as kernels

    import torch_symm

    rows: list[dict] = []
    most = max(COPY_SIZES) // 4
    box = torch_symm.zeros(most, dtype=torch.int32, device=DEVICE)
    plain = torch.zeros(most, dtype=torch.int32, device=DEVICE)
    ctx = kernels.symm.context(box, timeout=TIMEOUT)
    for bytes_, numbers_of_programs in COPY_SIZES.items():
        own = own_copies(bytes_)
        rows += own
        for direction in ("one", "both"):
            times = [row["us"] for row in own if row.get("us") and row["direction"] == direction]
            for form in ("put", "get", "put by remote", "get by remote"):
                for programs in numbers_of_programs:
                    found: list[dict] = []
                    for block, warps, stages in COPY_VARIANTS:
                        what = {"way": form, "direction": direction, "bytes": bytes_}
                        what |= {"programs": programs, "block": block, "warps": warps}
                        what |= {"stages": stages}
                        if bytes_ // 4 // block < programs:
                            continue
                        active = 0 if direction == "one" else -1
                        call = functools.partial(
                            kernels.copy_kernel[(programs,)],
                            *(box, plain, bytes_ // 4, active, ctx),
                            **{"FORM": form, "BLOCK": block, "STAGES": stages},
                            num_warps=warps,
                        )
                        with errors_in(rows, **what):
                            us, wrong = one_copy(call, form, direction, box, plain, bytes_)
                            ctx.check()
                            what |= {"us": us, "gb_s": round(bytes_ / us / 1e3, 1), "wrong": wrong}
                            found.append(what)
                    if found:
                        best = min(found, key=lambda row: row["us"])
                        best["wrong"] = sum(row["wrong"] for row in found)
                        best["of_own"] = round(best["us"] / min(times), 3) if times else None
                        best["all_us"] = [row["us"] for row in found]
                        rows.append(best)
                        tell(best)
    return rows


def factors(shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(this rank's rows, the weights, the product of all rows, rounded once)."""
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    rows, inner, columns = shape
    whole = numbers(rows, inner, seed=1).to(DEVICE, torch.float32)
    w = numbers(inner, columns, seed=2).to(DEVICE, torch.float32)
    mine = whole.chunk(dist.get_world_size())[dist.get_rank()]
    return mine.to(dtype).contiguous(), w.to(dtype), (whole @ w).to(dtype)


def timed_product(rows: list[dict], what: str, shape, call, expected, **more: object) -> None:
    """A row: eager and captured, and what is wrong before and after."""
    row = {"what": what, "m": shape[0], "k": shape[1], "n": shape[2], **more}
    with errors_in(rows, **row):
        row["wrong"] = differing(call(), expected)
        row["eager_us"] = timing.eager(call, 2 if QUICK else 20)
        rows.append(row)
        with errors_in(rows, what=what, m=shape[0], way="captured"):
            row["captured_us"] = timing.captured(call, 2 if QUICK else 10)
        row["wrong"] += differing(call(), expected)
        tell(row)


def operator(shape, x, w):
    name = dist.group.WORLD.group_name
    fused = torch.ops.symm_mem.fused_all_gather_matmul
    return lambda: fused(x, [w], 0, name, return_A=False)[1][0]


def fused() -> list[dict]:
    import all_gather_matmul_ring as example
    from matmul_options import TINY_TILES

    if symm_mem.get_backend(DEVICE) != "SYMM":
        symm_mem.set_backend("SYMM")
    if arguments.sweep:
        import fused_sweep

        search = fused_sweep.Sweep(timing, DEVICE, QUICK, arguments.limit)
        return search.run(SHAPES, factors, operator, arguments.json)
    rows: list[dict] = provider_rows() if DEVICE == "cuda" else []
    for shape in SHAPES:
        x, w, expected = factors(shape)
        whole = x.new_empty(shape[0], shape[1])
        dist.all_gather_into_tensor(whole, x)

        def one_after_the_other(whole=whole, x=x, w=w):
            dist.all_gather_into_tensor(whole, x)
            return whole @ w

        timed_product(rows, "matmul alone", shape, lambda whole=whole, w=w: whole @ w, expected)
        timed_product(rows, "all_gather, then matmul", shape, one_after_the_other, expected)
        timed_product(rows, "operator over SYMM", shape, operator(shape, x, w), expected)
        options = TINY_TILES if QUICK else None  # of None the example chooses by shape
        with errors_in(rows, what="example", m=shape[0]):
            call = example.RingMatmul(*x.shape, w.shape[1], DEVICE, x.dtype, options)
            one, what = functools.partial(call, x, w), call.options._asdict()
            timed_product(rows, "example", shape, one, expected, **what)
            call.ctx.check()
        compare(rows, shape)
    return rows


def compare(rows: list[dict], shape: tuple[int, int, int]) -> None:
    """Adds how much longer the example takes than the operator of either provider."""
    found = {"SYMM": {}, "CUDA": {}}
    for row in rows:
        if (row.get("m"), row.get("k")) == shape[:2] and "error" not in row:
            if row["what"].startswith("operator over "):
                found[row["what"][14:]] = row
            elif row["what"] == "example":
                for provider, other in found.items():
                    for way in ("eager_us", "captured_us"):
                        if way in row and way in other:
                            ratio = round(row[way] / other[way], 3)
                            row[f"{way[:-3]}_of_{provider}"] = ratio
                tell(row)


def provider_rows() -> list[dict]:
    """What this script finds with --provider, in a process of each rank's own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = everybody(free.getsockname()[1])[0]
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, __file__, "--provider", *(["--quick"] if QUICK else [])]
    try:
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        found, problem = result.stdout, result.stderr
    except subprocess.TimeoutExpired as error:
        found, problem = (error.stdout or b"").decode(), "timed out"
    lines = [line[5:] for line in found.splitlines() if line.startswith("ROWS ")]
    rows = json.loads(lines[-1]) if lines else []
    return rows or [{"what": "operator over CUDA", "error": problem[-600:]}]


def provider() -> None:
    """The operator over PyTorch's own provider; nothing of symm is in this process."""
    dist.init_process_group("nccl", timeout=TIMEOUT)
    rows: list[dict] = []
    with errors_in(rows, what="operator over CUDA"):
        symm_mem.enable_symm_mem_for_group(dist.group.WORLD.group_name)
        for shape in SHAPES:
            x, w, expected = factors(shape)
            timed_product(rows, "operator over CUDA", shape, operator(shape, x, w), expected)
            print("ROWS " + json.dumps(rows), flush=True)
    print("ROWS " + json.dumps(rows), flush=True)


def measure() -> int:
    dist.init_process_group("symm", timeout=TIMEOUT)
    from torch_symm.tools.machine import describe_machine
    from torch_symm.tools.record_file import write_records

    machine = describe_machine(["symm"], dist.get_world_size(), DEVICE)
    command = "torchrun --nproc-per-node 2 test/machine/speed/kernel_speed.py " + " ".join(
        sys.argv[1:]
    )
    results: dict = {"command": command.strip(), "machine": machine}
    wrong = 0
    for part in arguments.parts:
        results[part] = []
        with errors_in(results[part], what=part):
            results[part] = globals()[part]()
        wrong += sum(row.get("wrong", 0) + ("error" in row) for row in results[part])
        if arguments.json and dist.get_rank() == 0:
            write_records(arguments.json, results)
    dist.destroy_process_group()
    return 1 if wrong else 0


def main() -> int:
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if arguments.provider:
        provider()
        return 0
    return measure()


if __name__ == "__main__":
    sys.exit(main())
