"""Inputs whose result is exact whatever the order of reduction, and the expected results.

A value depends on the rank and on the position in the rank's vector, so that a wrong rank, a
wrong offset and a missing contribution all show. Positions repeat with a period that is prime
and larger than 65536: a shift by any smaller distance, or by a power of two, changes the values,
while the expected result needs to be worked out for one period only. Expected results are
computed with numpy in 64-bit integers and never touch a collective.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.distributed as dist

PERIOD = 65537
_PRODUCT_RANKS_THAT_DOUBLE = 6

_DTYPE_NAMES = (
    "float32 float64 float16 bfloat16 float8_e4m3fn float8_e5m2 uint8 int8 int16 int32 int64"
)
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _DTYPE_NAMES.split()}

# The reduction of torch.distributed and numpy's; avg is the sum divided by the number of ranks.
_REDUCTIONS: dict[str, tuple[dist.ReduceOp.RedOpType, np.ufunc]] = {
    "sum": (dist.ReduceOp.SUM, np.add),
    "prod": (dist.ReduceOp.PRODUCT, np.multiply),
    "min": (dist.ReduceOp.MIN, np.minimum),
    "max": (dist.ReduceOp.MAX, np.maximum),
    "avg": (dist.ReduceOp.AVG, np.add),
    "band": (dist.ReduceOp.BAND, np.bitwise_and),
    "bor": (dist.ReduceOp.BOR, np.bitwise_or),
    "bxor": (dist.ReduceOp.BXOR, np.bitwise_xor),
}
OPS = {name: op for name, (op, _) in _REDUCTIONS.items()}
BITWISE_OPS = ("band", "bor", "bxor")


def exact_limit(dtype: torch.dtype) -> int:
    """Return the largest integer to use: ``dtype`` holds all up to it, and it is at most 2^20.

    For integers it is half of the range and one below a power of two, so that no bitwise result
    of two inputs reaches the poison value.
    """
    if dtype.is_floating_point:
        return min(int(2 / torch.finfo(dtype).eps), 1 << 20)
    return min(torch.iinfo(dtype).max // 2, (1 << 20) - 1)


def is_signed(dtype: torch.dtype) -> bool:
    """Tell whether ``dtype`` holds negative values."""
    return dtype.is_floating_point or torch.iinfo(dtype).min < 0


@functools.lru_cache(maxsize=16)
def _position_hash(salt: int) -> np.ndarray:
    """Return one period of well mixed non-negative integers below 2^31."""
    mixed = np.arange(PERIOD, dtype=np.uint64) + np.uint64(1 + salt * 7919)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(33)).astype(np.int64)


class Pattern:
    """The inputs of every rank for one dtype, operation and group size.

    ``salt`` selects different values, so that a result left over from an earlier call with
    another salt is wrong. Local; holds one period of integers.
    """

    def __init__(self, dtype: torch.dtype, op: str, world_size: int, salt: int) -> None:
        self.dtype = dtype
        self.op = op
        self.world_size = world_size
        self._hash = _position_hash(salt)

    def input_period(self, rank: int) -> np.ndarray:
        """Return one period of the integers that ``rank`` contributes."""
        n = self.world_size
        if self.op == "prod":
            doubles = (self._hash >> (rank % 24)) & 1 if rank < _PRODUCT_RANKS_THAT_DOUBLE else 0
            magnitude = np.left_shift(np.ones_like(self._hash), doubles)
            negative = (self._hash >> (6 + rank % 20)) & 1
            return magnitude * (1 - 2 * negative) if is_signed(self.dtype) else magnitude
        # A sum of n values, or of n multiples of n, must stay below the exact limit.
        summands = {"sum": n, "avg": n * n}.get(self.op, 1)
        modulus = max(exact_limit(self.dtype) // summands, 1) + 1
        values = (self._hash + rank) % modulus
        return values * n if self.op == "avg" else values

    def reduced_period(self) -> np.ndarray:
        """Return one period of the exact reduction over all ranks."""
        stack = np.stack([self.input_period(rank) for rank in range(self.world_size)])
        reduced = _REDUCTIONS[self.op][1].reduce(stack)
        return reduced // self.world_size if self.op == "avg" else reduced

    def tensor(
        self, period: np.ndarray, offset: int, count: int, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """Return ``count`` values of ``period`` from position ``offset`` on, in the dtype.

        The values are made on the host; ``device`` only repeats them.
        """
        values = torch.from_numpy(np.roll(period, -(offset % PERIOD))).to(self.dtype).to(device)
        if count <= PERIOD:
            return values[:count].clone()
        return values.repeat(-(-count // PERIOD))[:count]


def poison(tensor: torch.Tensor) -> None:
    """Fill ``tensor`` with a value that no pattern and no expected result contains."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max - 2)


def count_wrong(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """Return how many elements of ``actual`` differ from ``expected`` (NaN is always wrong)."""
    return int(_differs(actual, expected).sum())


def first_wrong(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Say which element of ``actual`` is the first wrong one in flat order, None if none is."""
    differs = _differs(actual, expected).flatten()
    if not bool(differs.any()):
        return None
    index = int(differs.nonzero()[0])
    seen, right = (tensor.flatten()[index].item() for tensor in (actual, expected))
    return f"element {index} is {seen}, expected {right}"


def _differs(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return where ``actual`` differs, on the device of ``expected``; NaN always does."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise ValueError(
            f"comparison: expected {expected.dtype} {tuple(expected.shape)}, "
            f"got {actual.dtype} {tuple(actual.shape)}"
        )
    if actual.dtype.is_floating_point and actual.element_size() == 1:
        actual, expected = actual.float(), expected.float()
    return actual.to(expected.device) != expected
