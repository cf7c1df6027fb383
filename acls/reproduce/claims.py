"""What the paper claims, and whether our runs bear it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from acls.study.ranking import Difference, Resamples, difference
from acls.study.store import Row

Verdict = Literal["reproduced", "not reproduced", "cannot be told at this n"]
_VERDICTS: tuple[Verdict, ...] = ("reproduced", "cannot be told at this n", "not reproduced")
KEPT = 0.01
"""The accuracy that a method may lose: the paper's own tables show a loss of up to 0.94 points beside a lower error."""


@dataclass(frozen=True)
class Claim:
    """``lower`` has a smaller calibration error than ``higher``, or keeps its accuracy; both are rows of one table."""

    lower: str
    higher: str
    metric: str = "ece"

    @property
    def of_accuracy(self) -> bool:
        return self.metric not in ("ece", "aece")

    def __str__(self) -> str:
        if self.of_accuracy:
            name = "accuracy" if self.metric == "accuracy" else "mIoU"
            return f"{self.lower} keeps the {name} of {self.higher} to within {100 * KEPT:g} point"
        return f"{self.lower} has a lower {self.metric.upper()} than {self.higher}"


@dataclass(frozen=True)
class Judged:
    """A claim with the differences that our runs show, ``lower`` minus ``higher``, in the metric's own unit."""

    claim: Claim
    difference: Difference
    accuracy: Difference | None = None

    @property
    def loses_accuracy(self) -> bool:
        return self.accuracy is not None and self.accuracy.high < -KEPT

    @property
    def verdict(self) -> Verdict:
        """By the interval of the difference; an error that is lower at the cost of accuracy reproduces nothing."""
        found = self.difference
        if self.claim.of_accuracy:
            return _VERDICTS[(found.high < -KEPT) - (found.low > -KEPT) + 1]
        return "not reproduced" if found.sign < 0 and self.loses_accuracy else _VERDICTS[found.sign + 1]


def within(found: Difference, tolerance: float) -> Verdict:
    """Whether a number is the paper's to within a tolerance, from the interval of ours minus the paper's."""
    if -tolerance <= found.low and found.high <= tolerance:
        return "reproduced"
    return "not reproduced" if found.low > tolerance or found.high < -tolerance else "cannot be told at this n"


def judge(
    claim: Claim,
    lower: Sequence[Row],
    higher: Sequence[Row],
    resampled: Resamples | None = None,
    accuracy: str = "accuracy",
) -> Judged | None:
    """Compare two methods' rows; None where they have no number of the same seed."""
    found = difference(lower, higher, claim.metric, resampled)
    lost = None if claim.of_accuracy else difference(lower, higher, accuracy, resampled)
    return None if found is None else Judged(claim, found, lost)
