"""The contexts of this process, found by the address that a kernel was given."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_symm.triton.context import Context

_contexts: weakref.WeakValueDictionary[int, Context] = weakref.WeakValueDictionary()


def add(address: int, context: Context) -> None:
    _contexts[address] = context


def of(pointer: Any) -> Context:
    """The context of a kernel's argument, in the interpreter.

    Raises:
        ValueError: `pointer` is no context of this process.
    """
    handle = getattr(pointer, "handle", None)
    address = int(handle.data.flat[0]) if handle is not None else None
    found = _contexts.get(address) if address is not None else None
    if found is None:
        raise ValueError(
            "ctx: expected what torch_symm.triton.context() has returned, as the kernel's argument,"
            f" got {pointer!r}"
        )
    return found
