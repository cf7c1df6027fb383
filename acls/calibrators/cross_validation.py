"""Cross-validation of a calibrator: test whether it helps on data that it was not fitted on."""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import dataclass
from functools import reduce
from operator import add

from torch import Tensor

from acls.calibrators.base import Calibrator
from acls.calibrators.calibration_set import CalibrationSet, Score, ScoreTally, tally_scores
from acls.errors import InputError
from acls.metrics.catalogue import in_percent

KEEP = "keep the model as it is"


@dataclass(frozen=True)
class Judgement:
    """NLL and ECE on held-out folds before and after a calibrator, and the recommendation.

    The standard errors are those of the change from before to after, averaged over the folds.
    """

    calibrator: str
    before: Score
    after: Score
    nll_change_se: float
    ece_change_se: float
    use: bool
    why: str

    def __str__(self) -> str:
        return (
            f"{self.calibrator}: held-out NLL {self.before.nll:.4f} -> {self.after.nll:.4f} "
            f"(change {self.after.nll - self.before.nll:+.4f} ± {self.nll_change_se:.4f}), "
            f"ECE {in_percent(self.before.ece)} -> {in_percent(self.after.ece)}; {self.why}"
        )


def judge(
    calibrator: Calibrator,
    logits: Tensor,
    target: Tensor,
    sample_weight: Tensor | None = None,
    *,
    folds: int = 5,
    group: Tensor | None = None,
) -> Judgement:
    """Cross-validate a calibrator and recommend whether to use it.

    Each copy of the calibrator is fitted to all folds but one and measured on the remaining fold. The calibrator is
    recommended if three conditions hold: the held-out NLL falls by more than its standard error (half of it if the
    method learns a single value), the ECE does not rise by more than twice its standard error, and no fit ends at the
    boundary of its range. The positions of one map, and the samples of one ``group``, stay in one fold. Folds depend on
    the content of the rows, not on their order. Both the fits and the scores use the weights.
    """
    data = CalibrationSet(logits, target, sample_weight, group=group, ignore_index=calibrator.ignore_index)
    fold = data.sample_folds(folds)
    tallies: list[list[ScoreTally]] = []  # before and after, for each fold
    at_boundary = False
    for own in (fold == i for i in range(folds)):
        if not own.any() or own.all():
            raise InputError(
                f"{int(fold.max()) + 1} samples are too few for {folds} folds: pass fewer folds, or more data"
            )
        weight, rest = (None if column is None else column[~own] for column in (sample_weight, group))
        fitted = copy.deepcopy(calibrator).fit(logits[~own], target[~own], weight, group=rest)
        at_boundary |= fitted.report.at_boundary
        weight = None if sample_weight is None else sample_weight[own]
        held_out = [
            CalibrationSet(scores, target[own], weight, ignore_index=calibrator.ignore_index)
            for scores in (logits[own], fitted(logits[own]))
        ]
        tallies.append([tally_scores(one, stated=calibrator.stated) for one in held_out])
    first, last = (reduce(add, part).score() for part in zip(*tallies, strict=True))
    pairs = [(before.score(), after.score()) for before, after in tallies]
    nll_se = statistics.stdev(after.nll - before.nll for before, after in pairs) / math.sqrt(folds)
    ece_se = statistics.stdev(after.ece - before.ece for before, after in pairs) / math.sqrt(folds)
    if at_boundary:
        use, why = False, f"{KEEP}: a fit ends at the boundary of its range, so it does not generalise to other data"
    else:
        learned = sum(value.numel() for value in fitted.state_dict().values())
        use, why = _recommend(last.nll - first.nll, nll_se, last.ece - first.ece, ece_se, learned)
    return Judgement(type(calibrator).__name__, first, last, nll_se, ece_se, use, why)


def _recommend(nll_change: float, nll_se: float, ece_change: float, ece_se: float, learned: int) -> tuple[bool, str]:
    # A single value hardly overfits. In simulations with known truth (K = 10, n = 200, temperatures .67 to 1.5), the
    # NLL is at most .0072 above that of the better choice with one standard error as the hurdle, at T = .8, and .0043
    # with half of it.
    hurdle, named = (nll_se, "its standard error") if learned > 1 else (nll_se / 2, "half its standard error")
    if nll_change >= 0:
        return False, f"{KEEP}: the held-out NLL does not fall"
    if nll_change > -hurdle:
        return False, f"{KEEP}: the held-out NLL falls by less than {named}"
    # The ECE of few rows is mostly noise. With one standard error, the advice from 200 rows of 22 real networks costs
    # .0017 of NLL; with two, it costs .0007 (benchmarks/calibrators.py --only advice).
    if ece_change > 2 * ece_se:
        return False, f"{KEEP}: the held-out NLL falls, but the ECE rises by {100 * ece_change:.2f} points"
    return True, f"use it: the held-out NLL falls by more than {named}"
