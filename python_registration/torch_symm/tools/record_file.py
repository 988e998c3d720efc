"""JSON in which a record is a line, so that a diff of two results shows the records that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# A longer record takes a line for each of its items. One of the bench has up to 1100 characters.
_LONGEST = 1200


def to_text(value: Any, indent: int = 0, record: bool = False) -> str:
    """Return ``value`` as JSON in which each item of a list, and each object of plain values, is a
    line. ``record``: all of ``value`` is a line, unless it is too long for one."""
    text = json.dumps(value)
    if not isinstance(value, dict | list | tuple) or (record and len(text) <= _LONGEST):
        return text
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        opening, closing = "{}"
        items = [
            f"{inner}{json.dumps(str(name))}: {to_text(item, indent + 1, _is_record(item))}"
            for name, item in value.items()
        ]
    else:
        opening, closing = "[]"
        items = [inner + to_text(item, indent + 1, record=True) for item in value]
    return "\n".join([opening, ",\n".join(items), " " * indent + closing])


def _is_record(value: Any) -> bool:
    """Tell whether there is nothing but plain values and lists of them in it."""
    if isinstance(value, dict):
        return not any(isinstance(item, dict) or not _is_record(item) for item in value.values())
    return not isinstance(value, list | tuple) or not any(
        isinstance(item, dict | list | tuple) for item in value
    )


def write_records(path: Path, document: dict[str, Any] | list[Any]) -> None:
    """Write ``document`` to ``path``, whose folder is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text(document) + "\n")
