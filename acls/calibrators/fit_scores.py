"""NLL and ECE before and after a calibrator, added up chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from acls.calibrators.calibration_set import NOTHING_LEFT, Chunks
from acls.errors import InputError
from acls.metrics.bins import BINS, bin_of


@dataclass(frozen=True)
class Score:
    """How well log-probabilities fit labels: mean NLL, and top-label ECE over 15 equal-width bins ``(lo, hi]``."""

    nll: float
    ece: float


class ScoreTally:
    """The sums behind a `Score`, and the number of rows of each class."""

    def __init__(self, n_classes: int) -> None:
        self.counts = torch.zeros(n_classes, dtype=torch.int64)
        self._weight = self._nll = 0.0
        self._residuals = torch.zeros(BINS, dtype=torch.float64)
        """Of each bin, the weighted sum of confidence minus hit."""

    def add(self, nll: Tensor, confidence: Tensor, hit: Tensor, labels: Tensor, weight: Tensor) -> None:
        """Add some rows: the NLL, the confidence and whether the top class is right, one of each per row."""
        residual = (confidence.double() - hit.double()) * weight
        self.counts += labels.bincount(minlength=len(self.counts)).cpu()
        self._weight += float(weight.sum(dtype=torch.float64))
        self._nll += float((nll * weight).sum(dtype=torch.float64))
        self._residuals += torch.bincount(bin_of(confidence, BINS), residual, minlength=BINS).cpu()

    def add_log_probs(self, log_probs: Tensor, labels: Tensor, weight: Tensor, *, stated: bool = False) -> None:
        """Add the predictions of some rows; ``stated``: class 1 is always predicted."""
        top, predicted = (log_probs[:, 1], torch.ones_like(labels)) if stated else log_probs.max(1)
        self.add(-log_probs.gather(1, labels[:, None])[:, 0], top.exp(), predicted == labels, labels, weight)

    def __add__(self, other: ScoreTally) -> ScoreTally:
        both = ScoreTally(len(self.counts))
        for name, own in vars(self).items():
            setattr(both, name, own + getattr(other, name))
        return both

    def score(self) -> Score:
        """Return the means."""
        return Score(self._nll / self._weight, float(self._residuals.abs().sum()) / self._weight)


def uncalibrated(logits: Tensor) -> Tensor:
    """Return the log-probabilities of the model as it is."""
    return logits.log_softmax(1)


def tally_scores(data: Chunks, transform: Callable[[Tensor], Tensor], *, stated: bool = False) -> ScoreTally:
    """Measure log-probabilities ``transform(logits)`` chunk by chunk; ``stated`` as in `ScoreTally.add_log_probs`."""
    tally: ScoreTally | None = None
    for logits, labels, weight in data:
        tally = tally or ScoreTally(logits.shape[1])
        tally.add_log_probs(transform(logits), labels, weight, stated=stated)
    if tally is None:
        raise InputError(NOTHING_LEFT)
    return tally
