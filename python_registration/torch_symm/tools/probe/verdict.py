"""What can come of an examination, and which rank's result counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    """What came of one operation on one backend, from good to bad."""

    CAPTURES = "captures"
    COLD_REFUSED = "cold call refused"
    NO_CAPTURE = "does not capture"
    COLD_NOT_REFUSED = "cold call not refused cleanly"
    NO_CALL = "does not run eagerly"
    WRONG_EAGERLY = "wrong value eagerly"
    WRONG_AT_REPLAY = "wrong value at replay"
    NOT_FINISHED = "did not finish"
    DIED = "died"

    @property
    def good(self) -> bool:
        """Tell whether this is what a backend should give."""
        return self in (Verdict.CAPTURES, Verdict.COLD_REFUSED)

    @property
    def gravity(self) -> int:
        """Return how bad it is; more is worse."""
        return list(Verdict).index(self)


@dataclass(frozen=True)
class Finding:
    """What one rank found. ``reason`` is empty where the verdict is good."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Result:
    """What all ranks found of one operation on one backend.

    ``rank`` is the one whose finding counts, -1 where all is well.
    """

    backend: str
    operation: str
    verdict: Verdict
    reason: str = ""
    rank: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self) | {"verdict": self.verdict.value, "good": self.verdict.good}


def worst(backend: str, operation: str, findings: Sequence[Finding]) -> Result:
    """Return the result of the ranks' ``findings``, in rank order: the worst one counts."""
    rank = max(range(len(findings)), key=lambda rank: (findings[rank].verdict.gravity, -rank))
    finding = findings[rank]
    if finding.verdict.good:
        return Result(backend, operation, finding.verdict)
    return Result(backend, operation, finding.verdict, finding.reason, rank)
