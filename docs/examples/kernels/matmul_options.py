"""How all_gather_matmul_ring.py cuts its work: the options, and those that were the fastest."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Options(NamedTuple):
    """`tile`: rows and columns of a piece of the result, which a program sums over so many of inner
    at once. `senders` programs send before they multiply; a row tile goes in `parts`, each with a
    signal, and `chunk` elements of it are copied at once."""

    tile: tuple[int, int, int]
    warps: int
    stages: int
    senders: int
    parts: int
    chunk: int

    def check(self, rows: int, inner: int, columns: int) -> None:
        """Raises ValueError where a shard [rows, inner] or the columns are no whole pieces."""
        (height, width, depth), size = self.tile, self.tile[0] * inner
        rest = rows % height + columns % width + inner % depth + size % (self.parts * self.chunk)
        if rest:
            raise ValueError(f"expected whole pieces of {self}, got {rows} x {inner} x {columns}")


# For a look at small float32 matrices.
TINY_TILES = Options((16, 32, 32), warps=4, stages=1, senders=1, parts=2, chunk=256)
# bfloat16 on two H100, microseconds beside PyTorch's operator over symm's memory:
# 256 x 1024 x 1024, 10.0 beside 31.0
SMALL_TILES = Options((64, 32, 128), warps=4, stages=4, senders=8, parts=4, chunk=8192)
# 1024 x 4096 x 4096, 54.6 beside 72.2
WIDE_TILES = Options((64, 256, 64), warps=4, stages=4, senders=8, parts=1, chunk=16384)
# 4096 x 4096 x 4096, 177.0 beside 194.6
LARGE_TILES = Options((128, 256, 64), warps=8, stages=3, senders=16, parts=1, chunk=32768)


def programs_of(device: str) -> int:
    """They wait for each other: no more than run at once, one on a multiprocessor."""
    on_gpu = device != "cpu"
    return torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 8


def fastest(rows: int, columns: int, ranks: int, device: str) -> Options:
    """For shards of `rows`, in bfloat16: large tiles where every program has one. In the
    interpreter one program sends, since they run one after another."""
    height, width, _ = LARGE_TILES.tile
    enough = ranks * rows // height * (columns // width) >= programs_of(device)
    found = SMALL_TILES if rows <= 256 else LARGE_TILES if enough else WIDE_TILES
    return found._replace(senders=1) if device == "cpu" else found
