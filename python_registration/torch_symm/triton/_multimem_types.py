"""Which operations multimem instructions have for which elements; see multimem.py."""

from __future__ import annotations

from typing import Any

_FLOATS = {
    "fp32": {"add": "add.v4.f32"},
    "fp64": {"add": "add.f64"},
    "fp16": {"add": "add.acc::f32.v8.f16", "min": "min.v8.f16", "max": "max.v8.f16"},
    "bf16": {"add": "add.acc::f32.v8.bf16", "min": "min.v8.bf16", "max": "max.v8.bf16"},
}
VECTORS = {"fp32": 4, "fp16": 8, "bf16": 8}  # elements of 16 bytes that go together


def load_suffix(operation: str, element: Any) -> str:
    """Of PTX's multimem.ld_reduce.

    Raises:
        ValueError: there is no such operation.
    """
    return _suffix("multimem_load_reduce", _operations(element), operation, element)


def reduce_suffix(operation: str, element: Any) -> str:
    """Of PTX's multimem.red, of one element.

    Raises:
        ValueError: there is no such operation.
    """
    name = str(element)
    words = {"add": f"add.f{name[2:]}"} if name in ("fp32", "fp64") else _operations(element)
    return _suffix("multimem_reduce", {} if name in ("fp16", "bf16") else words, operation, element)


def check_store(element: Any) -> None:
    """
    Raises:
        ValueError: no multimem instruction stores such elements.
    """
    if not _operations(element):
        raise ValueError(f"multimem_store: ptr: no multimem instruction stores {element}")


def vector_of(element: Any, name: str, elements: int, block: bool) -> int:
    """How many elements of a block of so many go together.

    Raises:
        ValueError: a block does not consist of whole pieces.
    """
    vector = VECTORS.get(str(element), 1)
    if elements % vector or (vector > 1 and not block):
        raise ValueError(
            f"{name}: ptr: expected a block of whole pieces of {vector} elements of {element}, "
            f"got {elements}"
        )
    return vector


def _operations(element: Any) -> dict[str, str]:
    name = str(element)
    if name in _FLOATS:
        return _FLOATS[name]
    if not element.is_int() or element.primitive_bitwidth not in (32, 64):
        return {}
    bits, letter = element.primitive_bitwidth, "u" if element.is_int_unsigned() else "s"
    # There is no signed addition of 64 bits; the bits are the same.
    added = f"u{bits}" if bits == 64 else f"{letter}{bits}"
    ordered = {word: f"{word}.{letter}{bits}" for word in ("min", "max")}
    return {"add": f"add.{added}", **ordered, "and": f"and.b{bits}", "or": f"or.b{bits}"}


def _suffix(caller: str, operations: dict[str, str], operation: str, element: Any) -> str:
    if operation not in operations:
        expected = " or ".join(operations) or "another dtype"
        raise ValueError(f"{caller}: OPERATION: expected {expected} for {element}, got {operation}")
    return operations[operation]
