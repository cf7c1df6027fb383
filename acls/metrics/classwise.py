"""Calibration of every class's probability, not only of the largest: classwise ECE, and ACE and TACE of equal mass."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, bin_of, edges
from acls.metrics.quantiles import Cells, PairTally, adaptive_ece
from acls.metrics.tally import Tally

TACE_THRESHOLD = 0.01


@dataclass(frozen=True, eq=False)
class ClasswiseBins(Tally):
    """How many samples, how much probability and how many events fell in each bin, a row a class; ``(K, B)``.

    The bins are those of `Bins`. Class k's probability of every sample counts; the event is that k is its label.
    """

    whole = True

    samples: Tensor
    probability: Tensor
    events: Tensor

    @classmethod
    def count(cls, batch: Batch, bins: int = BINS) -> ClasswiseBins:
        scores = batch.scores
        n_classes, device = scores.shape[1], scores.device
        size = n_classes * bins
        samples, probability, events = (torch.zeros(size, dtype=torch.float64, device=device) for _ in range(3))
        total = torch.zeros(n_classes, dtype=torch.float64, device=device)
        second = edges(bins, scores)[1]
        for p, target in batch.probabilities():
            total += p.sum(0)
            # At most B - 1 of a row's probabilities are above 1/B: the rest, in the first bin, follow from the total.
            row, column = (p > second).nonzero().unbind(1)
            above = p[row, column]
            index = column * bins + bin_of(above, bins)
            samples.index_add_(0, index, torch.ones_like(above, dtype=torch.float64))
            probability.index_add_(0, index, above.double())
            own = target * bins + bin_of(p.gather(1, target[:, None])[:, 0], bins)
            events.index_add_(0, own, torch.ones_like(own, dtype=torch.float64))
        samples, probability = samples.view(n_classes, bins), probability.view(n_classes, bins)
        samples[:, 0] = len(batch) - samples[:, 1:].sum(1)
        # A total of float32 sums can be a rounding below the rest of it.
        probability[:, 0] = (total - probability[:, 1:].sum(1)).clamp(min=0)
        return cls(samples.long(), probability, events.view(n_classes, bins).long())

    @property
    def n(self) -> int:
        return int(self.samples[0].sum())

    @property
    def residual(self) -> Tensor:
        return self.probability - self.events

    def ece_by_class(self) -> Tensor:
        """Σ_b |Σ p_k - Σ [y = k]| / n for each class k, over all n samples; ``(K,)``."""
        return self.residual.abs().sum(1) / self.n

    @property
    def ece(self) -> float:
        """Classwise ECE, also SCE: the mean over all K classes, present or not (Nixon et al., CVPR workshops 2019)."""
        return float(self.ece_by_class().mean()) if self.n else float("nan")

    @property
    def brier_calibration(self) -> float:
        """The part of the Brier score that recalibrating each bin would remove, Σ_k Σ_b n_kb/n (mean p - mean [y=k])².

        The rest of the Brier score is refinement, with what varies inside the bins: how well classes are told apart.
        """
        if not self.n:
            return float("nan")
        return float((self.residual**2 / self.samples.clamp(min=1)).sum() / self.n)


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

    def ace(self, bins: int) -> tuple[float, float]:
        """Adaptive calibration error: the mean over classes of the error over bins of equal mass, and its error bound.

        With a threshold it is TACE, which leaves the many tiny probabilities aside; its bins have equal shares of the
        rest, and are weighed against all n samples (Nixon et al., 2019).
        """
        cells = self.cells()
        kept = cells.n / self.n
        value, bound = (torch.where(kept > 0, part * kept, 0.0) for part in adaptive_ece(cells, bins))
        return float(value.mean()), float(bound.mean())
