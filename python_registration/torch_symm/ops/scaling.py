"""The scales of 8 bit operands."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_symm.errors import InvalidTypeError
from torch_symm.ops.arguments import Caller, has_no_data, torch_does
from torch_symm.ops.pieces import Multiply

FLOAT8S = (
    *(torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
)
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Of a matrix's dimensions, on a GPU.
_MULTIPLE = 16


@dataclasses.dataclass(frozen=True)
class Scales:
    """Of a left operand and of one or more right ones: a factor for each matrix, or one for each
    row of the left and for each column of the right. float32."""

    a: Tensor
    bs: Sequence[Tensor]
    out_dtype: torch.dtype

    @property
    def by_row(self) -> bool:
        return any(scale.numel() != 1 for scale in (self.a, *self.bs))

    def multiply(self, matrices: Sequence[Tensor]) -> Multiply:
        def multiply(lefts: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
            a_scale = lefts[1] if self.by_row else self.a
            for b, b_scale, output in zip(matrices, self.bs, outputs, strict=True):
                _scaled_mm(lefts[0], b, a_scale, b_scale, output)

        return multiply

    def check(self, call: Caller, a_name: str, a: Tensor, matrices: Sequence[Tensor]) -> None:
        several = a_name == "a_shard"
        if self.out_dtype not in OUT_DTYPES:
            raise InvalidTypeError(
                f"{call.name}: out_dtype: expected bfloat16, float16 or float32, got "
                f"{self.out_dtype}"
            )
        count = len(self.bs)
        call.require(count == len(matrices), "b_scales", f"{len(matrices)} of them", count)
        self._check_scale(call, "a_scale", self.a, (*a.shape[:-1], 1), a_name, a)
        for number, (b, scale) in enumerate(zip(matrices, self.bs, strict=True)):
            b_name = f"bs[{number}]" if several else "b"
            scale_name = f"b_scales[{number}]" if several else "b_scale"
            columns = b.stride(0) == 1 or b.shape[0] == 1 or b.numel() == 0
            expected = "columns that are contiguous, as of a contiguous matrix's .t()"
            call.require(columns, b_name, expected, f"strides {b.stride()}")
            self._check_scale(call, scale_name, scale, (1, b.shape[1]), b_name, b)
            if b.device.type == "cuda":
                fits = not any(size % _MULTIPLE for size in b.shape)
                call.require(fits, b_name, f"multiples of {_MULTIPLE}", f"shape {tuple(b.shape)}")
            if not has_no_data(a) and not _multiplies(
                a.dtype, b.dtype, self.out_dtype, self.by_row, a.device
            ):
                raise InvalidTypeError(
                    f"{call.name}: {a_name}: expected dtypes that torch multiplies scaled "
                    f"{'by rows' if self.by_row else 'by one factor'} on {a.device.type}, got "
                    f"{a.dtype} and {b.dtype} to {self.out_dtype}"
                )

    def _check_scale(
        self,
        call: Caller,
        argument: str,
        scale: Tensor,
        by_row: tuple[int, ...],
        name: str,
        scaled: Tensor,
    ) -> None:
        if scaled.dtype not in FLOAT8S:
            raise InvalidTypeError(
                f"{call.name}: {name}: expected a float8 dtype, got {scaled.dtype}"
            )
        call.on_device(argument, scale, name, scaled)
        if scale.dtype != torch.float32:
            raise InvalidTypeError(f"{call.name}: {argument}: expected float32, got {scale.dtype}")
        shape = tuple(scale.shape)
        if self.by_row:
            call.require(shape == by_row, argument, f"shape {by_row}", shape)
        else:
            call.require(scale.numel() == 1, argument, "one element as a_scale has", shape)


def _scaled_mm(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: Tensor) -> None:
    torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=out.dtype, out=out)


@functools.cache
def _multiplies(
    a: torch.dtype, b: torch.dtype, out: torch.dtype, by_row: bool, device: torch.device
) -> bool:
    """Whether torch does, asked of the smallest matrices that it takes."""
    size = _MULTIPLE
    left, right = (torch.zeros(size, size, device=device).to(dtype) for dtype in (a, b))
    shapes = ((size, 1), (1, size)) if by_row else ((), ())
    scales = (torch.ones(shape, device=device) for shape in shapes)
    output = torch.empty(size, size, dtype=out, device=device)
    return torch_does(lambda: _scaled_mm(left, right.t(), *scales, output))
