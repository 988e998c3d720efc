"""Which variant of the fused all_gather and matmul is the fastest, by shape: `--sweep` of
kernel_speed.py.

Every row has a variant, its time captured in graphs, what of it is wrong, and beside it the same
product without communication (`alone`), torch.matmul and PyTorch's operator. Kernels are compiled
first, by threads, and both ranks share what they have compiled. No variant starts when `limit`
seconds have passed, and one that fails or whose waits end is a row that says so.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from fused_variants import Fused, Variant
from speed_timing import Timing, differing, everybody, tell

from torch_symm.tools.record_file import write_records

WAIT = datetime.timedelta(seconds=3)
# Tiles, warps and stages, and whether tiles of out are written by a descriptor too, which needs
# room in shared memory beside the stages.
LARGE = [
    Variant((128, 256, 64), 8, 3, 8),
    Variant((128, 256, 64), 8, 4, 8, stores=False),
    Variant((128, 256, 64), 8, 3, 8, stores=False),
    Variant((128, 256, 64), 8, 3, 8, descriptors=False, stores=False),
    Variant((128, 256, 64), 8, 3, 8, copy_stages=3, chunk=16384),
    Variant((256, 128, 64), 8, 3, 8),
    Variant((256, 128, 64), 8, 4, 8, stores=False),
    Variant((128, 128, 64), 8, 4, 8),
    Variant((128, 128, 64), 4, 4, 8, chunk=16384),
    Variant((128, 128, 64), 8, 4, 8, descriptors=False, stores=False),
    Variant((128, 128, 128), 8, 3, 8, stores=False),
    Variant((128, 128, 64), 4, 3, 16, chunk=8192, stores=False, residents=2),
    Variant((64, 256, 64), 4, 4, 8, chunk=16384),
]
SMALL = [
    Variant((64, 64, 64), 4, 4, 8, chunk=8192),
    Variant((64, 64, 128), 4, 4, 8, chunk=8192),
    Variant((64, 32, 128), 4, 4, 8, chunk=8192),
    Variant((64, 64, 64), 4, 4, 8, chunk=8192, descriptors=False, stores=False),
    Variant((64, 64, 128), 4, 4, 8, chunk=8192, stores=False),
    Variant((64, 128, 64), 4, 4, 8, chunk=8192),
]
QUICK = [
    Variant((16, 32, 32), 4, 1, 1, chunk=256),
    Variant((16, 32, 32), 4, 1, 1, 2, chunk=256, descriptors=False, stores=False),
]


def variants(shape: tuple[int, int, int], ranks: int, quick: bool) -> list[Variant]:
    """Of a shape: each with all numbers of senders and parts that fit it."""
    if quick:
        return QUICK
    rows, inner, _ = shape
    found = []
    for base in SMALL if rows * inner < 1 << 20 else LARGE:
        tiles = rows // ranks // base.tile[0]
        for senders, parts in itertools.product((4, 8, 16, 32), (1, 2, 4)):
            pieces, size = tiles * parts, base.tile[0] * inner // parts
            idle = pieces < senders or pieces % senders
            few = senders == 4 and tiles * base.tile[0] * inner > 1 << 22
            fine = parts > 1 and pieces > 2 * senders
            if tiles and size % base.chunk == 0 and not (idle or few or fine):
                found.append(dataclasses.replace(base, senders=senders, parts=parts))
    return found


class Sweep:
    """`factors` and `operator` are kernel_speed.py's, of a shape. Collective."""

    def __init__(self, timing: Timing, device: str, quick: bool, limit: float):
        self.timing, self.device, self.quick, self.limit = timing, device, quick, limit
        self.start, self.rows, self.calls = time.monotonic(), [], 2 if quick else 10
        self.processors = 4
        if device == "cuda":
            self.processors = torch.cuda.get_device_properties(device).multi_processor_count

    def late(self) -> bool:
        return max(everybody(time.monotonic() - self.start)) > self.limit

    def agreed(self, call: Callable[[], object]) -> str:
        """What has failed in `call` at any rank, "" where nothing has."""
        problem = ""
        try:
            call()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"[:500]
        return next((one for one in everybody(problem) if one), "")

    def run(self, shapes, factors: Callable, operator: Callable, path: Path | None) -> list[dict]:
        """The rows so far are in `path`, since a kernel that fails may end the process."""
        for shape in shapes:
            fused = self.prepared(shape, *factors(shape))
            self.compile(fused)
            self.baselines(fused, operator)
            for base in dict.fromkeys(one.compiled() for one in fused.variants):
                self.alone(fused, base)
            for variant in fused.variants:
                if self.late():
                    self.add(fused, what="late", left=len(fused.variants))
                    break
                self.one(fused, variant)
            self.best(fused)
            if path and dist.get_rank() == 0:
                write_records(path, {"so far": self.rows})
        return self.rows

    def prepared(self, shape, x, w, expected) -> Fused:
        fused = Fused(x.shape[0], x.shape[1], self.device, x.dtype, self.processors)
        fused.shape, fused.x, fused.w, fused.expected = shape, x, w, expected
        fused.variants = variants(shape, dist.get_world_size(), self.quick)
        whole = x.new_empty(shape[0], shape[1])
        dist.all_gather_into_tensor(whole, x)
        fused.whole = whole
        return fused

    def add(self, fused: Fused, **row: object) -> dict:
        m, k, n = fused.shape
        self.rows.append({"m": m, "k": k, "n": n, **row})
        tell(self.rows[-1])
        return self.rows[-1]

    def compile(self, fused: Fused) -> None:
        """Rank by rank from another end: what one rank has compiled the others find on the disk."""
        if self.device == "cpu":
            return
        begin = time.monotonic()
        bases = list(dict.fromkeys(one.compiled() for one in fused.variants))
        for base in bases:
            fused.context(base, WAIT)
        if dist.get_rank() % 2:
            bases.reverse()
        device = torch.cuda.current_device()

        def compile_one(base: Variant) -> str:
            try:
                fused.compile(base, fused.x, fused.w)
            except Exception as error:
                return f"{type(error).__name__}: {error}"[:500]
            return ""

        with ThreadPoolExecutor(8, initializer=torch.cuda.set_device, initargs=(device,)) as pool:
            problems = dict(zip(bases, pool.map(compile_one, bases), strict=True))
        failed = {base for found in everybody(problems) for base in found if found[base]}
        for base in sorted(failed, key=str):
            error = problems.get(base) or "at another rank"
            self.add(fused, what="not compiled", **base.described(), error=error)
        fused.variants = [one for one in fused.variants if one.compiled() not in failed]
        seconds = round(time.monotonic() - begin, 1)
        self.add(fused, what="compiled", number=len(bases), seconds=seconds)

    def baselines(self, fused: Fused, operator: Callable) -> None:
        product = fused.whole, fused.w
        calls = {
            "matmul alone": lambda: product[0] @ product[1],
            "operator over SYMM": operator(fused.shape, fused.x, fused.w),
        }
        for what, call in calls.items():
            us = self.timing.captured(call, self.calls)
            self.add(fused, what=what, us=us, wrong=differing(call(), fused.expected))
            setattr(fused, "matmul_us" if what == "matmul alone" else "operator_us", us)

    def alone(self, fused: Fused, base: Variant) -> None:
        self.timing.meet()
        fused.box.view(2, -1).copy_(fused.whole.view(1, -1).expand(2, -1))
        self.timing.meet()
        self.one(fused, dataclasses.replace(base, senders=0, sends=False), "alone")

    def one(self, fused: Fused, variant: Variant, what: str = "variant") -> None:
        ctx, row = fused.context(variant, WAIT), variant.described()

        def call() -> torch.Tensor:
            return fused(variant, fused.x, fused.w)

        def first() -> None:
            call()
            self.timing.synchronize()
            ctx.check()

        error = self.agreed(first)
        if error:
            self.add(fused, what=what, **row, error=error)
            return
        wrong = differing(call(), fused.expected)
        us = self.timing.captured(call, self.calls)
        wrong += differing(call(), fused.expected)
        of = {"of_matmul": us / fused.matmul_us, "of_operator": us / fused.operator_us}
        row |= {"us": us, "wrong": wrong, **{key: round(one, 3) for key, one in of.items()}}
        error = self.agreed(ctx.check)
        self.add(fused, what=what, **row, **({"error": error} if error else {}))

    def best(self, fused: Fused) -> None:
        m, k, n = fused.shape
        for what in ("alone", "variant"):
            rows = [row for row in self.rows if (row["m"], row["k"], row["n"]) == (m, k, n)]
            rows = [row for row in rows if row["what"] == what and row.get("wrong") == 0]
            rows = sorted((row for row in rows if "error" not in row), key=lambda row: row["us"])
            for place, row in enumerate(rows[:3], 1):
                self.rows.append(row | {"what": f"best {what}", "place": place})
                tell(self.rows[-1])
        spent = round(time.monotonic() - self.start, 1)
        self.add(fused, what="spent", seconds=spent)
