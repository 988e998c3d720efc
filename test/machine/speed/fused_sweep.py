"""Which options of the example of a fused all_gather and matmul are the fastest, by shape: what
kernel_speed.py does with `--sweep`.

Every row has the options, their time captured in graphs, what of the product is wrong, and how that
time compares with torch.matmul of the gathered rows and with PyTorch's operator. None starts when
`limit` seconds have passed, and a kernel that fails or whose waits end is a row that says so.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from speed_timing import Timing, differing, everybody, tell

import all_gather_matmul_ring as example
from matmul_options import LARGE_TILES, SMALL_TILES, TINY_TILES, WIDE_TILES, Options
from torch_symm.tools.record_file import write_records

# Each with all numbers of senders and parts that fit.
LARGE = [
    LARGE_TILES,
    WIDE_TILES,
    Options((256, 128, 64), warps=8, stages=3, senders=8, parts=1, chunk=32768),
    Options((128, 128, 64), warps=8, stages=4, senders=8, parts=1, chunk=32768),
    Options((128, 128, 64), warps=4, stages=4, senders=8, parts=1, chunk=16384),
]
SMALL = [
    SMALL_TILES,
    Options((64, 64, 128), warps=4, stages=4, senders=8, parts=4, chunk=8192),
    Options((64, 64, 64), warps=4, stages=4, senders=8, parts=4, chunk=8192),
    Options((64, 128, 64), warps=4, stages=4, senders=8, parts=4, chunk=8192),
]


def variants(shape: tuple[int, int, int], ranks: int, quick: bool) -> list[Options]:
    if quick:
        return [TINY_TILES, TINY_TILES._replace(parts=1)]
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
                found.append(base._replace(senders=senders, parts=parts))
    return found


class Sweep:
    """`factors` and `operator` are kernel_speed.py's, of a shape. Collective."""

    def __init__(self, timing: Timing, device: str, quick: bool, limit: float):
        self.timing, self.device, self.quick, self.limit = timing, device, quick, limit
        self.start, self.rows, self.calls = time.monotonic(), [], 2 if quick else 10

    def late(self) -> bool:
        return max(everybody(time.monotonic() - self.start)) > self.limit

    def run(self, shapes, factors: Callable, operator: Callable, path: Path | None) -> list[dict]:
        """The rows so far are in `path`, since a kernel that fails may end the process."""
        for shape in shapes:
            x, w, expected = factors(shape)
            whole = x.new_empty(shape[0], shape[1])
            dist.all_gather_into_tensor(whole, x)
            beside = {
                "matmul alone": functools.partial(whole.matmul, w),
                "operator over SYMM": operator(shape, x, w),
            }
            times = {}
            for what, call in beside.items():
                times[what] = self.timing.captured(call, self.calls)
                self.add(shape, what=what, us=times[what], wrong=differing(call(), expected))
            chosen = variants(shape, dist.get_world_size(), self.quick)
            for number, options in enumerate(chosen):
                if self.late():
                    self.add(shape, what="late", left=len(chosen) - number)
                    break
                self.one(shape, options, (x, w, expected), list(times.values()))
            self.best(shape)
            if path and dist.get_rank() == 0:
                write_records(path, {"so far": self.rows})
        return self.rows

    def add(self, shape: tuple[int, int, int], **row: object) -> None:
        self.rows.append(dict(zip("mkn", shape, strict=True)) | row)
        tell(self.rows[-1])

    def one(self, shape, options: Options, factors, times: list[float]) -> None:
        x, w, expected = factors
        row = options._asdict() | {"tile": list(options.tile)}
        fused = example.RingMatmul(*x.shape, w.shape[1], self.device, x.dtype, options)
        call = functools.partial(fused, x, w)
        error = self.agreed(fused, call)
        if not error:
            wrong = differing(call(), expected)
            us = self.timing.captured(call, self.calls)
            row |= {"us": us, "wrong": wrong + differing(call(), expected)}
            row |= {"of_matmul": round(us / times[0], 3), "of_operator": round(us / times[1], 3)}
            error = self.agreed(fused)
        self.add(shape, what="variant", **row, **({"error": error} if error else {}))

    def agreed(self, fused: example.RingMatmul, call: Callable = lambda: None) -> str:
        """What has failed at any rank in `call` or in waits, "" where nothing has."""
        problem = ""
        try:
            call()
            self.timing.synchronize()
            fused.ctx.check()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"[:500]
        return next((one for one in everybody(problem) if one), "")

    def best(self, shape: tuple[int, int, int]) -> None:
        found = [row for row in self.rows if (row["m"], row["k"], row["n"]) == tuple(shape)]
        found = [row for row in found if row["what"] == "variant" and row.get("wrong") == 0]
        fine = sorted((row for row in found if "error" not in row), key=lambda row: row["us"])
        for place, row in enumerate(fine[:3], 1):
            self.rows.append(row | {"what": "best variant", "place": place})
            tell(self.rows[-1])
        self.add(shape, what="spent", seconds=round(time.monotonic() - self.start, 1))
