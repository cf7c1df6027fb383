"""Judge: whether a calibrator helps on data it was not fitted on."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator
from acls.calibrators.rows import Rows
from acls.calibrators.scores import Score, tally_scores, uncalibrated
from acls.errors import InputError

KEEP = "keep the model as it is"


@dataclass(frozen=True)
class Judgement:
    """NLL and ECE before and after a calibrator on held-out folds, and what to do.

    The standard errors are those of the mean over folds of the change from before to after.
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
            f"ECE {100 * self.before.ece:.2f} % -> {100 * self.after.ece:.2f} %; {self.why}"
        )


def judge(
    calibrator: Calibrator, logits: Tensor, target: Tensor, *, folds: int = 5, group: Tensor | None = None
) -> Judgement:
    """Fit copies of a calibrator to all folds but one, measure each on the one left out, and recommend.

    The recommendation is to keep the model as it is unless the held-out NLL falls by more than its standard error and
    the ECE does not rise by more than its own, and where a fit ends at the boundary of its range. Positions of one
    map, or samples of one ``group``, stay in one fold; folds depend on the content of the rows, not on their order.
    """
    if not calibrator.pointwise:
        return _judge_maps(calibrator, logits, target, folds, group)
    rows = Rows(logits, target, group=group, ignore_index=calibrator.ignore_index)
    z, y = rows.all()
    fold = rows.folds(folds)
    pairs = []
    for own in (fold == i for i in range(folds)):
        if not own.any() or own.all():
            raise InputError(
                f"{int(fold.max()) + 1} samples or maps do not make {folds} folds: pass fewer folds, or more data"
            )
        pairs.append(((z[~own], y[~own]), (z[own], y[own])))
    return _judge_pairs(calibrator, pairs)


def _judge_maps(calibrator: Calibrator, logits: Tensor, target: Tensor, folds: int, group: Tensor | None) -> Judgement:
    number = torch.arange(len(logits), device=logits.device) if group is None else group
    group = torch.unique(number, return_inverse=True)[1]
    if int(group.max()) + 1 < folds:
        raise InputError(f"{int(group.max()) + 1} maps do not make {folds} folds: pass fewer folds, or more maps")
    order = Rows(logits, target, group=group, ignore_index=calibrator.ignore_index).sample_folds(folds)[group]
    pairs = [((logits[order != i], target[order != i]), (logits[order == i], target[order == i])) for i in range(folds)]
    return _judge_pairs(calibrator, pairs)


def _judge_pairs(calibrator: Calibrator, pairs: list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]) -> Judgement:
    whole_before = whole_after = None
    changes = []
    at_boundary = False
    for rest, own in pairs:
        fitted = copy.deepcopy(calibrator).fit(*rest)
        at_boundary |= fitted.report.at_boundary
        held_out = Rows(*own, group=None, ignore_index=calibrator.ignore_index)
        before = tally_scores(held_out, uncalibrated, stated=calibrator.stated)
        calibrated = Rows(fitted(own[0]), own[1], group=None, ignore_index=calibrator.ignore_index)
        after = tally_scores(calibrated, lambda log_probs: log_probs, stated=calibrator.stated)
        changes.append((after.score().nll - before.score().nll, after.score().ece - before.score().ece))
        whole_before = before if whole_before is None else whole_before + before
        whole_after = after if whole_after is None else whole_after + after
    assert whole_before is not None
    assert whole_after is not None
    nll_se, ece_se = (
        float(torch.tensor(column, dtype=torch.float64).std()) / math.sqrt(len(column))
        for column in zip(*changes, strict=True)
    )
    first, last = whole_before.score(), whole_after.score()
    if at_boundary:
        use, why = False, f"{KEEP}: a fit ends where nothing but the range stops it, and says nothing of other data"
    else:
        use, why = _recommend(last.nll - first.nll, nll_se, last.ece - first.ece, ece_se)
    return Judgement(type(calibrator).__name__, first, last, nll_se, ece_se, use, why)


def _recommend(nll_change: float, nll_se: float, ece_change: float, ece_se: float) -> tuple[bool, str]:
    if nll_change >= 0:
        return False, f"{KEEP}: the held-out NLL does not fall"
    if nll_change > -nll_se:
        return False, f"{KEEP}: the held-out NLL falls by less than its standard error"
    if ece_change > ece_se:
        return False, f"{KEEP}: the held-out NLL falls, but the ECE rises by {100 * ece_change:.2f} points"
    return True, "use it: the held-out NLL falls by more than its standard error"
