"""The audit files of a run, one a rank; docs/diagnostics.md describes their lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FORMAT = 1
_RANK = re.compile(r"(.*)\.(\d+)")


class Key(NamedTuple):
    """Which call of a run: the same on every rank that takes part, and in both runs."""

    group: str
    instance: int  # groups of one name are counted, from 0
    on: str  # "host" or "device"
    seq: int

    def __str__(self) -> str:
        again = f" (number {self.instance + 1} of that name)" if self.instance else ""
        return f'seq {self.seq} on the {self.on} of group "{self.group}"{again}'


class Call(NamedTuple):
    """What a rank called, and the hashes of what went in and what came out."""

    call: str
    input: str
    output: str


@dataclass
class RankFile:
    """One rank's calls, in the order in which they ended."""

    path: Path
    calls: dict[Key, Call] = field(default_factory=dict)


def read_run(path: Path) -> dict[int, RankFile]:
    """The files of a run by global rank.

    ``path`` is what SYMM_AUDIT was, one of its files, or a folder that has the files of one run.
    Raises ValueError where there are none, and where a file is no audit.
    """
    if path.is_file():
        named = _RANK.fullmatch(path.name)
        files = {int(named[2]) if named else 0: path}
    elif path.is_dir():
        files = _in_folder(path)
    else:
        parts = path.parent.glob("*") if path.parent.is_dir() else []
        files = {
            int(named[2]): each
            for each in parts
            if (named := _RANK.fullmatch(each.name)) and named[1] == path.name
        }
    if not files:
        raise ValueError(f"{path}: there is no audit file of this name, nor {path}.0")
    return {rank: _read(files[rank]) for rank in sorted(files)}


def _in_folder(folder: Path) -> dict[int, Path]:
    names = [(named, each) for each in folder.iterdir() if (named := _RANK.fullmatch(each.name))]
    runs = sorted({named[1] for named, _ in names})
    if len(runs) > 1:
        raise ValueError(f"{folder} has files of several runs, {', '.join(runs)}: name one of them")
    return {int(named[2]): each for named, each in names}


def _read(path: Path) -> RankFile:
    rank = RankFile(path)
    instances: Counter[str] = Counter()
    groups: dict[int, tuple[str, int]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line.endswith("\n"):
            break  # the process ended while it wrote
        try:
            record: dict[str, Any] = json.loads(line)
            if "audit" in record:
                if record["audit"] != FORMAT:
                    raise ValueError(f"expected format {FORMAT}, got {record['audit']}")
                name = record["name"]
                groups[record["group"]] = (name, instances[name])
                instances[name] += 1
            else:
                key = Key(*groups[record["group"]], record["on"], record["seq"])
                rank.calls[key] = Call(record["call"], record["in"], record["out"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number} is no line of an audit: {error}") from None
    if not groups:
        raise ValueError(f"{path} is no audit: it names no group")
    return rank
