"""What the operators refuse, in words that name the argument, before anything is launched.

The checks of shapes hold for fake tensors too, so a compiled program is refused while it is traced.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from torch_symm import _groups
from torch_symm.ccl import workspace
from torch_symm.errors import InvalidArgumentError, InvalidTypeError
from torch_symm.ops.pieces import OPS


@dataclasses.dataclass(frozen=True)
class Caller:
    """One call of an operator: its name for messages, its group and this rank in it."""

    name: str
    group: Any

    @classmethod
    def of(cls, name: str, group_name: str, tensor: Tensor, argument: str) -> Caller:
        """Refuses groups whose backend for the device of `tensor` is not symm, or that several
        hosts share."""
        group = _groups.resolve(group_name, name)
        if not has_no_data(tensor):
            backend = workspace.backend_of(group, tensor.device, name, argument)
            if backend._hosts():
                raise NotImplementedError(
                    f"{name}: group: {group.group_name!r} is over several hosts; the fused forms "
                    "are for ranks of one host, as torch_symm.local_group(group)"
                )
        return cls(name, group)

    @property
    def world_size(self) -> int:
        return self.group.size()

    def require(self, right: bool, argument: str, expected: str, got: object) -> None:
        if not right:
            raise InvalidArgumentError(f"{self.name}: {argument}: expected {expected}, got {got}")

    def dimension(self, argument: str, dim: int, tensor_dims: int) -> int:
        """`dim` counted from the front."""
        fits = -tensor_dims <= dim < tensor_dims
        expected = f"a dimension in [{-tensor_dims}, {tensor_dims})"
        self.require(fits, argument, expected, dim)
        return dim % tensor_dims

    def op(self, op: str) -> None:
        self.require(op in OPS, "op", "'sum' or 'avg'", repr(op))

    def pieces(self, pieces: int | None) -> None:
        self.require(pieces is None or pieces >= 1, "pieces", "None or at least 1", pieces)

    def dense(self, argument: str, tensor: Tensor) -> None:
        strided = tensor.layout == torch.strided and not tensor.is_quantized
        self.require(strided, argument, "a dense tensor (layout torch.strided)", tensor.layout)

    def alike(
        self, argument: str, tensor: Tensor, name: str, other: Tensor, one_dtype: bool = True
    ) -> None:
        """`tensor` must be dense, on the device of `other`, the argument `name`, and of its dtype
        where the call has one."""
        self.dense(argument, tensor)
        if one_dtype and tensor.dtype != other.dtype:
            raise InvalidTypeError(
                f"{self.name}: {argument}: expected dtype {other.dtype} as {name} has, got "
                f"{tensor.dtype}"
            )
        self.on_device(argument, tensor, name, other)

    def on_device(self, argument: str, tensor: Tensor, name: str, other: Tensor) -> None:
        same = tensor.device == other.device
        self.require(same, argument, f"a tensor on {other.device} as {name} is", tensor.device)

    def factors(
        self,
        a_name: str,
        a: Tensor,
        bs: Sequence[Tensor],
        b_name: str = "b",
        one_dtype: bool = True,
    ) -> None:
        """`a` must be one matrix or a stack of them, each of `bs` a matrix."""
        self.dense(a_name, a)
        self.require(a.dim() >= 2, a_name, "two dimensions or more", f"shape {tuple(a.shape)}")
        self.require(len(bs) > 0, b_name, "at least one matrix", "an empty list")
        for number, b in enumerate(bs):
            name = f"{b_name}[{number}]" if b_name == "bs" else b_name
            self.alike(name, b, a_name, a, one_dtype)
            self.require(b.dim() == 2, name, "a matrix", f"shape {tuple(b.shape)}")

    def inner(self, a_name: str, width: int, b_name: str, b: Tensor) -> None:
        expected = f"{width} rows, the size of the last dimension of {a_name}"
        self.require(b.shape[0] == width, b_name, expected, f"shape {tuple(b.shape)}")

    def multiplies(self, argument: str, tensor: Tensor) -> None:
        """Refuses dtypes that torch has no matmul for; not asked of fake tensors."""
        if not has_no_data(tensor) and not _multiplies(tensor.dtype, tensor.device):
            raise InvalidTypeError(
                f"{self.name}: {argument}: expected a dtype that torch multiplies on "
                f"{tensor.device.type}, got {tensor.dtype}"
            )


def has_no_data(tensor: Tensor) -> bool:
    """Whether a compiler or a program asks for the shape of a result alone."""
    return tensor.device.type == "meta" or is_fake(tensor)


# Of the device, whatever it is asked.
_DEVICE_ERRORS = (torch.OutOfMemoryError, torch.AcceleratorError)


def torch_does(call: Callable[[], object]) -> bool:
    """Whether torch has what `call` asks of it. An error of the device is raised: it says nothing
    of that, and may be gone the next time."""
    try:
        call()
    except _DEVICE_ERRORS:
        raise
    except RuntimeError:
        return False
    return True


@functools.cache
def _multiplies(dtype: torch.dtype, device: torch.device) -> bool:
    def multiply() -> None:
        one = torch.zeros(1, 1, dtype=torch.uint8, device=device).to(dtype)
        torch.mm(one, one, out=torch.empty_like(one))

    return torch_does(multiply)


def group_name(group: Any, caller: str) -> str:
    """Of a ProcessGroup, a group's name, or None for the default group, as operators take it."""
    if group is None:
        group = dist.group.WORLD
        if group is None:
            raise InvalidArgumentError(f"{caller}: group: call init_process_group first")
    return group if isinstance(group, str) else _name_of(group, caller)


def _name_of(group: Any, caller: str) -> str:
    name = getattr(group, "group_name", None)
    return name if name is not None else _groups.resolve(group, caller).group_name


def op_name(op: Any, caller: str) -> str:
    """ "sum" or "avg", of the same or of a torch.distributed.ReduceOp."""
    for name, reduce_op in OPS.items():
        if op is reduce_op:  # what Dynamo of torch 2.11 can compare
            return name
    for name, reduce_op in OPS.items():
        if op == name or (not isinstance(op, str) and op == reduce_op):
            return name
    raise InvalidArgumentError(f"{caller}: op: expected SUM, AVG, 'sum' or 'avg', got {op!r}")


@dataclasses.dataclass(frozen=True)
class Rows:
    """Tensors [..., columns] as matrices whose rows are those of dimension `dim` first."""

    dim: int
    inner: tuple[int, ...]  # the other dimensions but the last

    @classmethod
    def of(cls, tensor: Tensor, dim: int) -> Rows:
        return cls(dim, tuple(tensor.movedim(dim, 0).shape[1:-1]))

    def matrix(self, tensor: Tensor) -> Tensor:
        return tensor.movedim(self.dim, 0).flatten(0, -2)

    def tensor(self, matrix: Tensor, size: int) -> Tensor:
        """`matrix` [size * inner, columns] as a tensor again, `size` long in dimension `dim`."""
        return matrix.view(size, *self.inner, matrix.shape[-1]).movedim(0, self.dim)
