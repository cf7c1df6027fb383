"""Metrics per class: the confusion matrix, and the calibration of the probability of every class."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from acls.metrics.batch import Batch, sums
from acls.metrics.bins import BINS, bin_of, edges
from acls.metrics.confidences import PairTally
from acls.metrics.ordered import adaptive_ece
from acls.metrics.tally import Tally, ratio

TACE_THRESHOLD = 0.01


@dataclass(frozen=True, eq=False)
class Confusion(Tally):
    """The confusion matrix ``(K, K)``: how often the true class (row) was predicted as each class (column)."""

    whole = True

    matrix: Tensor

    @classmethod
    def count(cls, batch: Batch) -> Confusion:
        n_classes = batch.scores.shape[1]
        index = batch.target * n_classes + batch.predicted
        return cls(sums(index, n_classes**2, None, batch.weight).view(n_classes, n_classes))

    def summary(self) -> dict[str, float]:
        return {"miou": self.miou(), "class_accuracy": self.class_accuracy}

    def iou(self) -> Tensor:
        """Return the intersection over union of each class; NaN for a class that is neither true nor predicted."""
        hits = self.matrix.diagonal().double()
        return hits / (self.matrix.sum(0) + self.matrix.sum(1) - hits)

    def miou(self, *, without: int | None = None) -> float:
        """Return the mean IoU over the classes that occur. ``without`` leaves out one class, such as the background."""
        iou = self.iou()
        if without is not None:
            iou = iou[torch.arange(iou.shape[0], device=iou.device) != without]
        return float(iou.nanmean())

    @property
    def class_accuracy(self) -> float:
        """The mean of the accuracies of the classes that occur as true class."""
        return float((self.matrix.diagonal().double() / self.matrix.sum(1)).nanmean())


@dataclass(frozen=True, eq=False)
class BinnedProbabilities:
    """Some rows of probabilities, with the place (class · B + bin) of each label and of each value above 1/B."""

    rows: slice
    p: Tensor
    row: Tensor
    """The row of each probability above 1/B. A row has at most B - 1 of them, for any number of classes."""
    index: Tensor
    """The places of these probabilities."""
    above: Tensor
    """The values of these probabilities, in float64. All others are in the first bin of their class."""
    own: Tensor
    """The place of each row's label."""
    own_p: Tensor
    """The probability of each row's label, in float64."""
    weight: Tensor
    """The weight of each row, in float64."""


def binned_probabilities(batch: Batch, bins: int) -> Iterator[BinnedProbabilities]:
    """Yield the bins of the probabilities of all classes. Those in the first bin are not processed one by one.

    The probabilities are not multiplied by the weights.
    """
    second = edges(bins, batch.scores)[1]
    ones = torch.ones(len(batch), dtype=torch.float64, device=batch.target.device)
    weights = ones if batch.weight is None else batch.weight.double()
    for rows, p in batch.probabilities():
        row, column = (p > second).nonzero().unbind(1)
        target, weight = batch.target[rows], weights[rows]
        above, own_p = p[row, column], p.gather(1, target[:, None])[:, 0]
        index, own = column * bins + bin_of(above, bins), target * bins + bin_of(own_p, bins)
        yield BinnedProbabilities(rows, p, row, index, above.double(), own, own_p.double(), weight)


@dataclass(frozen=True, eq=False)
class ClasswiseBins(Tally):
    """The number of samples, the sum of probabilities and the number of events per class and bin; ``(K, B)``.

    The bins are those of `Bins`. Each sample counts with its probability of every class k. The event is that its label
    is k.
    """

    whole = True

    samples: Tensor
    probability: Tensor
    squares: Tensor
    """The sums of squared probabilities."""
    events: Tensor
    event_probability: Tensor
    """The sums of the probabilities of the label."""

    @classmethod
    def count(cls, batch: Batch, bins: int = BINS) -> ClasswiseBins:
        scores = batch.scores
        n_classes, device = scores.shape[1], scores.device
        totals = torch.zeros(5, n_classes * bins, dtype=torch.float64, device=device)
        samples, probability, squares, events, event_probability = totals
        first = torch.zeros(2, n_classes, dtype=torch.float64, device=device)
        n = 0.0
        for part in binned_probabilities(batch, bins):
            weight, above = part.weight[part.row], part.above
            for total, value in ((samples, weight), (probability, weight * above), (squares, weight * above.square())):
                total.index_add_(0, part.index, value)
            low = part.p.index_put((part.row, part.index // bins), part.p.new_zeros(()))  # those in the first bin
            for power in first:
                power += low.sum(0, dtype=torch.float64) if batch.weight is None else part.weight @ low.double()
                low.square_()
            events.index_add_(0, part.own, part.weight)
            event_probability.index_add_(0, part.own, part.weight * part.own_p)
            n += float(part.weight.sum())
        samples, probability, squares, events, event_probability = totals.view(5, n_classes, bins)
        samples[:, 0] = n - samples[:, 1:].sum(1)
        probability[:, 0] += first[0]
        squares[:, 0] += first[1]
        if batch.weight is None or not batch.weight.is_floating_point():
            samples, events = samples.long(), events.long()
        return cls(samples, probability, squares, events, event_probability)

    def summary(self) -> dict[str, float]:
        return {"classwise_ece": self.ece, "brier_calibration": self.brier_calibration}

    @property
    def n(self) -> float:
        return float(self.samples[0].sum())

    @property
    def residual(self) -> Tensor:
        return self.probability - self.events

    @property
    def noise(self) -> Tensor:
        """The variance of each `residual`: the larger of the observed one and that of calibrated probabilities.

        The observed variance, Σ (p - [y = k])², is not reliable in cells without an event.
        """
        observed = self.squares - 2 * self.event_probability + self.events
        return torch.maximum(observed, self.probability - self.squares).clamp(min=0)

    def ece_by_class(self) -> Tensor:
        """Return Σ_b |Σ p_k - Σ [y = k]| / n for each class k, over all n samples; ``(K,)``."""
        return self.residual.abs().sum(1) / self.n

    @property
    def ece(self) -> float:
        """Classwise ECE, also SCE: the mean over all K classes, present or not (Nixon et al., CVPR workshops 2019)."""
        return ratio(self.residual.abs().sum() / self.samples.shape[0], self.n)

    @property
    def brier_calibration(self) -> float:
        """The part of the Brier score that recalibrating each bin would remove, Σ_k Σ_b n_kb/n (mean p - mean [y=k])².

        The rest of the Brier score is refinement (how well the classes are separated) and the variation inside bins.
        """
        return ratio((self.residual**2 / self.samples.double().clamp(min=1e-300)).sum(), self.n)


@dataclass(frozen=True, eq=False)
class ClassProbabilities(PairTally):
    """The probability of every class for every sample, and whether it was the label, for ACE and TACE.

    Like `Confidences`, it stores single values for small sets and a histogram per class for larger sets.
    """

    whole = True

    threshold: float = 0.0
    """Probabilities below this threshold are left out."""

    @classmethod
    def count(cls, batch: Batch, threshold: float = 0.0) -> ClassProbabilities:
        n_classes, weighted = batch.scores.shape[1], batch.weight is not None
        result = cls((), n_classes, weighted, threshold=threshold)
        for rows, p in batch.probabilities():
            own = batch.target[rows, None]
            signed = (-p).scatter(1, own, p.gather(1, own))
            if threshold > 0:
                signed = torch.where(p < threshold, -0.0, signed)
            result += cls.keep(signed, None if batch.weight is None else batch.weight[rows], threshold=threshold)
        return result

    def summary(self, bins: int = BINS) -> dict[str, float]:
        """Return the adaptive calibration error, a mean over classes of errors over equal-mass bins, and its bound.

        With a threshold it is TACE, which leaves out the many tiny probabilities. Its bins contain equal numbers
        of the remaining ones, and are weighted relative to all n samples (Nixon et al., 2019).
        """
        if self.rows == 0:
            return {}
        cells = every = self.cells()
        if self.threshold:  # probabilities that were left out are stored as 0
            cells = dataclasses.replace(every, count=torch.where(every.confidence > 0, every.count, 0.0))
        kept = cells.n / every.n
        value, bound = (torch.where(kept > 0, part * kept, 0.0) for part in adaptive_ece(cells, bins))
        name = "tace" if self.threshold else "ace"
        return {name: float(value.mean()), f"{name}_bound": float(bound.mean())}
