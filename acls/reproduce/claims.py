"""What the paper claims, and whether our runs bear it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from acls.study.ranking import Difference, Resampled, difference
from acls.study.store import Row

Verdict = Literal["reproduced", "not reproduced", "cannot be told at this n"]


@dataclass(frozen=True)
class Claim:
    """``lower`` has a smaller calibration error than ``higher``, both rows of one table."""

    lower: str
    higher: str
    metric: str = "ece"

    def __str__(self) -> str:
        return f"{self.lower} has a lower {self.metric.upper()} than {self.higher}"


@dataclass(frozen=True)
class Judged:
    """A claim with the difference that our runs show, in the metric's own unit."""

    claim: Claim
    difference: Difference

    @property
    def verdict(self) -> Verdict:
        return ("reproduced", "cannot be told at this n", "not reproduced")[self.difference.sign + 1]


def judge(
    claim: Claim, lower: Sequence[Row], higher: Sequence[Row], resampled: Callable[[Row], Resampled] | None = None
) -> Judged | None:
    """Compare two methods' rows; None where they have no number of the same seed."""
    found = difference(lower, higher, claim.metric, resampled)
    return None if found is None else Judged(claim, found)
