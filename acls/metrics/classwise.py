"""Calibration of every class's probability, not only of the largest: classwise ECE, and ACE and TACE of equal mass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, bin_of, edges
from acls.metrics.cells import Cells, adaptive_ece
from acls.metrics.quantiles import PairTally
from acls.metrics.tally import Tally, ratio

TACE_THRESHOLD = 0.01


@dataclass(frozen=True, eq=False)
class BinnedProbabilities:
    """Some rows of probabilities with the places, class times B plus bin, of those that matter."""

    p: Tensor
    row: Tensor
    """The rows of the probabilities above 1/B: at most B - 1 a row, however many classes there are."""
    index: Tensor
    """Their places."""
    above: Tensor
    """Themselves, in float64. All others are in their class's first bin."""
    own: Tensor
    """The place of each row's label."""
    own_p: Tensor
    """The probability of each row's label, in float64."""
    second: float
    """The lower edge of the second bin."""


def binned_probabilities(batch: Batch, bins: int) -> Iterator[BinnedProbabilities]:
    """Find the bin of every class's probability without looking at those in the first bin one by one."""
    second = float(edges(bins, batch.scores)[1])
    for p, target in batch.probabilities():
        row, column = (p > second).nonzero().unbind(1)
        above, own_p = p[row, column], p.gather(1, target[:, None])[:, 0]
        index, own = column * bins + bin_of(above, bins), target * bins + bin_of(own_p, bins)
        yield BinnedProbabilities(p, row, index, above.double(), own, own_p.double(), second)


@dataclass(frozen=True, eq=False)
class ClasswiseBins(Tally):
    """How many samples, how much probability and how many events fell in each bin, a row a class; ``(K, B)``.

    The bins are those of `Bins`. Class k's probability of every sample counts; the event is that k is its label.
    """

    whole = True

    samples: Tensor
    probability: Tensor
    squares: Tensor
    """Sums of squared probabilities."""
    events: Tensor
    event_probability: Tensor
    """Sums of the probabilities of those that were the label."""

    @classmethod
    def count(cls, batch: Batch, bins: int = BINS) -> ClasswiseBins:
        scores = batch.scores
        n_classes, device = scores.shape[1], scores.device
        sums = torch.zeros(5, n_classes * bins, dtype=torch.float64, device=device)
        samples, probability, squares, events, event_probability = sums
        first = torch.zeros(2, n_classes, dtype=torch.float64, device=device)
        for part in binned_probabilities(batch, bins):
            one = torch.ones_like(part.above)
            for total, value in ((samples, one), (probability, part.above), (squares, part.above.square())):
                total.index_add_(0, part.index, value)
            low = part.p.masked_fill(part.p > part.second, 0)  # what is in the first bin
            first[0] += low.sum(0, dtype=torch.float64)
            first[1] += low.square_().sum(0, dtype=torch.float64)
            events.index_add_(0, part.own, torch.ones_like(part.own, dtype=torch.float64))
            event_probability.index_add_(0, part.own, part.own_p)
        samples, probability, squares, events, event_probability = sums.view(5, n_classes, bins)
        samples[:, 0] = len(batch) - samples[:, 1:].sum(1)
        probability[:, 0] += first[0]
        squares[:, 0] += first[1]
        return cls(samples.long(), probability, squares, events.long(), event_probability)

    def summary(self) -> dict[str, float]:
        return {"classwise_ece": self.ece, "brier_calibration": self.brier_calibration}

    @property
    def n(self) -> int:
        return int(self.samples[0].sum())

    @property
    def residual(self) -> Tensor:
        return self.probability - self.events

    @property
    def noise(self) -> Tensor:
        """The variance of each `residual`: the larger of the observed and of what calibrated probabilities have.

        The observed one, Σ (p - [y = k])², knows nothing of cells in which no event has been seen.
        """
        observed = self.squares - 2 * self.event_probability + self.events
        return torch.maximum(observed, self.probability - self.squares).clamp(min=0)

    def ece_by_class(self) -> Tensor:
        """Σ_b |Σ p_k - Σ [y = k]| / n for each class k, over all n samples; ``(K,)``."""
        return self.residual.abs().sum(1) / self.n

    @property
    def ece(self) -> float:
        """Classwise ECE, also SCE: the mean over all K classes, present or not (Nixon et al., CVPR workshops 2019)."""
        return ratio(self.residual.abs().sum() / self.samples.shape[0], self.n)

    @property
    def brier_calibration(self) -> float:
        """The part of the Brier score that recalibrating each bin would remove, Σ_k Σ_b n_kb/n (mean p - mean [y=k])².

        The rest of the Brier score is refinement, with what varies inside the bins: how well classes are told apart.
        """
        return ratio((self.residual**2 / self.samples.clamp(min=1)).sum(), self.n)


@dataclass(frozen=True, eq=False)
class ClassProbabilities(PairTally):
    """The probability of every class for every sample with whether it was the label: what ACE and TACE need.

    Kept one by one for small sets, in a histogram a class beyond, as `Confidences`.
    """

    whole = True

    threshold: float = 0.0
    """Probabilities below it are left out."""

    @classmethod
    def count(cls, batch: Batch, threshold: float = 0.0) -> ClassProbabilities:
        n_classes = batch.scores.shape[1]
        result = cls((), n_classes, threshold=threshold)
        for p, target in batch.probabilities():
            own = target[:, None]
            signed = (-p).scatter(1, own, p.gather(1, own))
            if threshold > 0:
                signed = torch.where(p < threshold, -0.0, signed)
            result += cls((signed,), n_classes, threshold=threshold)
        return result

    def cells(self) -> Cells:
        """As they are without a threshold; with one, what was left out is there, but empty."""
        cells = super().cells()
        if self.threshold == 0:
            return cells
        return dataclasses.replace(cells, count=torch.where(cells.confidence > 0, cells.count, 0.0))

    def summary(self, bins: int = BINS) -> dict[str, float]:
        """Adaptive calibration error: the mean over classes of the error over bins of equal mass, and its error bound.

        With a threshold it is TACE, which leaves the many tiny probabilities aside; its bins have equal shares of the
        rest, and are weighed against all n samples (Nixon et al., 2019).
        """
        if self.n == 0:
            return {}
        cells = self.cells()
        kept = cells.n / self.n
        value, bound = (torch.where(kept > 0, part * kept, 0.0) for part in adaptive_ece(cells, bins))
        name = "tace" if self.threshold else "ace"
        return {name: float(value.mean()), f"{name}_bound": float(bound.mean())}
