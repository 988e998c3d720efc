"""What the tests of torch_symm.ops share: operands whose products and sums are exact in their dtype
whatever the order, and what one after the other gives for them, worked out on the CPU."""

import torch

import model
from harness import DEVICE, ON_CUDA
from operators import whole_numbers

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
INTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
# What torch multiplies; on a GPU no whole numbers, and 8 bits only with scales.
DTYPES = [*FLOATS, *COMPLEX] if ON_CUDA else [*FLOATS, *COMPLEX, *INTS, torch.float8_e4m3fn]
# Those of ranks that call, one group after the other; strided ones among them.
GROUPS = {
    2: [[0, 1], [1]],
    3: [[0, 1, 2], [2, 0]],
    4: [[0, 1, 2, 3], [0, 2], [1, 3]],
}


def small(shape, rank: int, salt: int, dtype=torch.float32) -> torch.Tensor:
    """Whole numbers from 1 to 3, so that no sum is a zero with a sign."""
    count = int(torch.tensor(shape).prod())
    values = whole_numbers(count, rank, salt).remainder(3) + 1
    if dtype.is_complex:
        values = torch.complex(values, values.roll(1))
    return values.to(dtype).view(shape)


def placed(tensor: torch.Tensor, kind: str, group) -> torch.Tensor:
    """On the device under test, in memory of a `kind`. Collective over `group`."""
    import torch_symm

    if kind == "symmetric":
        memory = torch_symm.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)
        return torch_symm.as_symmetric(memory.copy_(tensor), group)
    if kind == "turned":  # the same values behind other strides
        return tensor.to(DEVICE).transpose(0, -1).contiguous().transpose(0, -1)
    return tensor.to(DEVICE)


KINDS = ["plain", "symmetric", "turned"]


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """In the dtype of `a`, which holds it exactly, or wraps around."""
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    whole = a.to(wide) @ b.to(wide)
    return (whole if a.dtype.is_floating_point or a.dtype.is_complex else whole.long()).to(a.dtype)


def near(what: str, got: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """The bits on the CPU. On a GPU symm's kernel adds up the squares, and torch's may round
    otherwise: by a unit or two of the last place."""
    if not ON_CUDA:
        return same(what, got, expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    wide, right = got.double(), expected.double()
    slack = 4 * torch.finfo(got.dtype).eps
    wrong = int((~((wide - right).abs() <= slack * right.abs() + 1e-12)).sum())
    return [f"{what}: {wrong} elements are not near"] if wrong else []


def same(what: str, got: torch.Tensor, expected: torch.Tensor) -> list[str]:
    return model.mismatch(what, got, expected.contiguous())
