"""The sequential model that collectives are checked against, and the inputs it is checked with.

Contributions are combined one rank after the other, 0..N-1, in the accumulate type; narrow floats
accumulate in float32 and are rounded once, AVG divides before that rounding. Results are compared
bit by bit, except that any NaN equals any NaN.
"""

import functools
import hashlib

import torch
import torch.distributed as dist

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOAT8S = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
INTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [*FLOATS, *FLOAT8S, *INTS, torch.bool, *COMPLEX]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]

# What gloo has of this, so that the model can be checked against a second implementation.
GLOO_DTYPES = [torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32]
GLOO_DTYPES += [torch.int64]
GLOO_OPS = ["SUM", "PRODUCT", "MIN", "MAX"]


def meaningful(op: str, dtype: torch.dtype) -> bool:
    """Whether `op` is defined for `dtype`."""
    if op in ("BAND", "BOR", "BXOR"):
        return dtype in INTS or dtype == torch.bool
    if op in ("MIN", "MAX"):
        return dtype not in COMPLEX
    if op == "AVG":
        return dtype != torch.bool
    if op == "PREMUL_SUM":
        return dtype in FLOATS or dtype in FLOAT8S or dtype in COMPLEX
    return True


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_PERIOD = 16381  # prime: no chunking falls in step with it


@functools.cache
def _noise() -> torch.Tensor:
    """Pseudo-random int64 in [0, 2^31) that depend on the position."""
    mixed = torch.arange(_PERIOD, dtype=torch.int64) * 2654435761 + 40503 * 65537
    mixed = (mixed ^ (mixed >> 15)) * 2246822519
    mixed = mixed ^ (mixed >> 13)
    return mixed & 0x7FFFFFFF


def _values(dtype, op: str) -> torch.Tensor:
    """One period of inputs of a size that `op` does not overflow."""
    bits = _noise()
    if dtype == torch.bool:
        return bits % 7 < (1 if op in ("SUM", "MAX", "BOR") else 5)
    if dtype in INTS:
        if op == "AVG" and dtype in (torch.int32, torch.int64):
            return (bits % 2000003 - 1000001).to(dtype)
        if dtype == torch.int64:
            bits = bits * 4294967311
        return (bits - (1 << 30)).to(dtype)
    if dtype in COMPLEX:
        # Gaussian integers: products are exact, so no rounding mode of a complex product matters.
        real = (bits % 13 - 6).to(torch.float64)
        imag = (bits // 13 % 11 - 5).to(torch.float64)
        if op != "PRODUCT":
            real, imag = real / 3 * 10.0 ** (bits % 5), imag / 7
        return torch.complex(real, imag).to(dtype)
    value = (bits % 2039 - 1019).to(torch.float64) / 300 + 0.01
    if dtype in FLOAT8S:
        return (value.clamp(-1.7, 1.7) if op == "PRODUCT" else value).to(torch.float32).to(dtype)
    if op in ("SUM", "AVG", "PREMUL_SUM"):
        value = value * 10.0 ** (bits // 2039 % 4 - 1)
    return value.to(dtype)


@functools.cache
def _table(dtype, op: str) -> torch.Tensor:
    """_values() twice: any _PERIOD elements of it in a row are one period."""
    return _values(dtype, op).repeat(2)


def make_input(dtype, count: int, rank: int, salt: int, op: str = "SUM") -> torch.Tensor:
    """What `rank` contributes: distinct by rank and position, of a size that `op` does not
    overflow, and with sums and products of floats that depend on the order of addition.
    Repeats after _PERIOD elements."""
    start = ((rank + 1) * 40503 + salt * 97003) % _PERIOD
    period = _table(dtype, op)[start : start + min(count, _PERIOD)]
    if count <= _PERIOD:
        return period.clone()
    return period.repeat(-(-count // _PERIOD))[:count]


def premul_factor(rank: int) -> float:
    """This rank's PREMUL_SUM factor: no power of two, exact in every float type."""
    return (-1.5, 0.75, 1.25, -0.625, 3.0, 0.375, -2.5, 1.75)[rank % 8]


def reduce_op(op: str, rank: int = 0, factor_tensor_dtype=None):
    """The torch.distributed op. `rank` (in the group) gives PREMUL_SUM's factor."""
    if op != "PREMUL_SUM":
        return getattr(dist.ReduceOp, op)
    factor = premul_factor(rank)
    if factor_tensor_dtype is not None:
        factor = torch.tensor([factor], dtype=factor_tensor_dtype)
    return dist._make_nccl_premul_sum(factor)


def _accumulate_dtype(dtype, op):
    if dtype in FLOAT8S or dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    if op == "AVG" and dtype in (torch.int8, torch.uint8, torch.int16):
        return torch.int32
    return dtype


def _combine(op, a, b, dtype):
    if dtype == torch.bool:
        if op in ("SUM", "MAX", "BOR"):
            return a | b
        return a ^ b if op == "BXOR" else a & b
    if op in ("SUM", "AVG", "PREMUL_SUM"):
        return a + b
    if op == "PRODUCT":
        return a * b
    if op == "MIN":
        return torch.minimum(a, b)
    if op == "MAX":
        return torch.maximum(a, b)
    return {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op](a, b)


def _scaled(tensor, factor, operation):
    """Component by component, so that no complex arithmetic rounds or makes signed zeros."""
    if tensor.is_complex():
        return torch.view_as_complex(operation(torch.view_as_real(tensor), factor))
    return operation(tensor, factor)


def reduced(contributions: list[torch.Tensor], op: str) -> torch.Tensor:
    """What every rank must get from reducing `contributions`, given in group-rank order."""
    dtype = contributions[0].dtype
    wide = _accumulate_dtype(dtype, op)
    total = None
    for rank, contribution in enumerate(contributions):
        term = contribution.to(wide)
        if op == "PREMUL_SUM":
            term = _scaled(term, premul_factor(rank), torch.mul)
        total = term if total is None else _combine(op, total, term, dtype)
    if op == "AVG":
        world = len(contributions)
        if dtype in INTS:
            total = torch.div(total, world, rounding_mode="trunc")
        else:
            total = _scaled(total, world, torch.div)
    return total.to(dtype)


_INT_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor):
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(_INT_OF_SIZE[flat.element_size()])


def _one_nan(tensor):
    """A flat copy of real numbers in which every NaN has one bit pattern."""
    flat = tensor.detach().reshape(-1).clone()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.is_floating_point():
        _bits(flat)[torch.isnan(flat.to(torch.float64))] = 0x7F
    return flat


def same_bits(got: torch.Tensor, expected: torch.Tensor) -> bool:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if got.numel() == 0 or torch.equal(_bits(got), _bits(expected)):
        return True
    return torch.equal(_bits(_one_nan(got)), _bits(_one_nan(expected)))


def mismatch(what: str, got: torch.Tensor, expected: torch.Tensor, exact: bool = True) -> list[str]:
    """[] where equal, else one line that says where the first difference stands. `got` may stand
    on a GPU; the comparison is made on the CPU."""
    got, expected = got.detach().cpu(), expected.detach().cpu()
    if same_bits(got, expected):
        return []
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return [f"{what}: {got.dtype}{list(got.shape)} for {expected.dtype}{list(expected.shape)}"]
    if not exact and expected.is_floating_point():
        if torch.allclose(got, expected, rtol=1e-2, atol=1e-1, equal_nan=True):
            return []
    a, b = _one_nan(got), _one_nan(expected)
    wrong = (_bits(a) != _bits(b)).nonzero().reshape(-1)
    first = int(wrong[0])
    at = f"element {first} is {a[first].item()!r}, expected {b[first].item()!r}"
    return [f"{what}: {len(wrong)} of {a.numel()} wrong, {at}"]


def digest(tensor: torch.Tensor) -> str:
    """Of the bits; equal digests are equal tensors."""
    on_cpu = tensor.detach().cpu().contiguous()
    return hashlib.sha256(on_cpu.view(torch.uint8).numpy().tobytes()).hexdigest()
