"""NLL and ECE before and after a calibrator, added up chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from acls.calibrators.rows import NOTHING_LEFT
from acls.errors import InputError
from acls.metrics.bins import BINS, Bins, bin_of


@dataclass(frozen=True)
class Score:
    """How well log-probabilities fit labels: mean NLL, and top-label ECE over 15 equal-width bins ``(lo, hi]``."""

    nll: float
    ece: float


class ScoreTally:
    """The sums behind a `Score`, and the number of rows of each class."""

    def __init__(self, n_classes: int) -> None:
        self.counts = torch.zeros(n_classes, dtype=torch.int64)
        self._nll = 0.0
        self._bins: Bins | None = None

    def add(self, nll: Tensor, confidence: Tensor, hit: Tensor, labels: Tensor) -> None:
        """Add some rows: the NLL, the confidence and whether the top class is right, one of each per row."""
        self.counts += labels.bincount(minlength=len(self.counts)).cpu()
        self._nll += float(nll.sum(dtype=torch.float64))
        part = Bins.sums(bin_of(confidence, BINS), BINS, confidence, hit)
        self._bins = part if self._bins is None else self._bins + part

    def __add__(self, other: ScoreTally) -> ScoreTally:
        both = ScoreTally(len(self.counts))
        both.counts = self.counts + other.counts
        both._nll = self._nll + other._nll
        both._bins = (
            self._bins if other._bins is None else other._bins if self._bins is None else self._bins + other._bins
        )
        return both

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def score(self) -> Score:
        """Return the means."""
        if self._bins is None:
            raise InputError(NOTHING_LEFT)
        return Score(self._nll / self.n, self._bins.ece)


def uncalibrated(logits: Tensor) -> Tensor:
    """Return the log-probabilities of the model as it is."""
    return logits.log_softmax(1)


def tally_scores(
    rows: Iterable[tuple[Tensor, Tensor]], transform: Callable[[Tensor], Tensor], *, stated: bool = False
) -> ScoreTally:
    """Measure log-probabilities ``transform(logits)`` chunk by chunk; ``stated``: class 1 is always predicted."""
    tally: ScoreTally | None = None
    for logits, labels in rows:
        log_probs = transform(logits)
        top, predicted = (log_probs[:, 1], torch.ones_like(labels)) if stated else log_probs.max(1)
        tally = tally or ScoreTally(logits.shape[1])
        tally.add(-log_probs.gather(1, labels[:, None])[:, 0], top.exp(), predicted == labels, labels)
    if tally is None:
        raise InputError(NOTHING_LEFT)
    return tally
