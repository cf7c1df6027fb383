"""What the paper claims, and whether our runs bear it out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from acls.study.store import Row

Verdict = Literal["reproduced", "not reproduced", "cannot be told at this n"]

# Two-sided 97.5 % quantiles of Student's t by degrees of freedom; beyond, the normal's.
_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
_NORMAL = 1.96


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
    """A claim with the difference that our runs show, in the metric's own unit, and its 95 % interval."""

    claim: Claim
    difference: float
    low: float
    high: float
    seeds: int

    @property
    def verdict(self) -> Verdict:
        if self.high < 0:
            return "reproduced"
        return "not reproduced" if self.low > 0 else "cannot be told at this n"


def judge(claim: Claim, lower: Sequence[Row], higher: Sequence[Row]) -> Judged | None:
    """Compare two methods' rows, by seed; None where one of them has no number.

    Two things make a difference uncertain: seeds, of which the spread of the differences tells (Student's t), and the
    test samples, of which the rows' own intervals tell. The variances are added. That counts the samples' share as if
    the two methods had been tested on different samples, so the interval errs to the wide side; with one seed, the
    seeds' share is unknown and the claim cannot be told.
    """
    first, second = ({row.seed: row.metrics.get(claim.metric) for row in rows} for rows in (lower, higher))
    differences, widths = [], []
    for seed in first.keys() & second.keys():
        one, other = first[seed], second[seed]
        if one is None or other is None or one["value"] is None or other["value"] is None:
            continue
        differences.append(one["value"] - other["value"])
        ends = [(number["low"], number["high"]) for number in (one, other)]
        widths += [(high - low) / (2 * _NORMAL) for low, high in ends if low is not None and high is not None]
    if not differences:
        return None
    n = len(differences)
    mean = statistics.fmean(differences)
    if n == 1:
        return Judged(claim, mean, -math.inf, math.inf, n)
    by_seeds = _STUDENT.get(n - 1, _NORMAL) * statistics.stdev(differences) / math.sqrt(n)
    by_samples = _NORMAL * math.sqrt(2 * statistics.fmean(width**2 for width in widths)) if widths else 0.0
    margin = math.hypot(by_seeds, by_samples)
    return Judged(claim, mean, mean - margin, mean + margin, n)
