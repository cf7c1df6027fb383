"""Calibration errors over bins of fixed width: ECE, MCE, RMSCE and their parts.

Bin b of B is (b/B, (b+1)/B], and 0 is in the first. The edges are `torch.linspace(0, 1, B + 1)` in the precision of the
confidences, compared without rounding. Guo et al. (ICML 2017) and later papers use the same convention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics.batch import Batch, pieces, sums
from acls.metrics.tally import Tally, ratio

BINS = 15
"""The default number of bins of a calibration error."""
MOST_BINS = 10_000
_ROUNDING = 1e-15  # a mean square below this is rounding error
_NAMES = ("ece", "overconfidence", "underconfidence", "mce", "rmsce", "rmsce_debiased", "top_brier")


def edges(bins: int, like: Tensor) -> Tensor:
    """Return the B + 1 edges of the bins of [0, 1], in the precision of ``like``."""
    if not 1 <= bins <= MOST_BINS:
        raise InputError(f"expected 1 to {MOST_BINS} bins, got {bins}: the usual number is {BINS}")
    return torch.linspace(0, 1, bins + 1, dtype=like.dtype, device=like.device)


def bin_of(confidence: Tensor, bins: int) -> Tensor:
    """Return the index of the bin (lo, hi] that contains each confidence.

    >>> bin_of(torch.tensor([0.0, 0.1, 0.5, 0.51, 1.0]), 2).tolist()
    [0, 0, 0, 1, 1]
    """
    edge = edges(bins, confidence)
    # A product gives the bin up to rounding (one bin too low or too high). The edges then decide. This is faster than
    # a search.
    index = (confidence * bins).ceil_().sub_(1).clamp_(0, bins - 1).long()
    index += confidence > edge[index + 1]
    index -= (confidence <= edge[index]).long()
    return index.clamp_(0, bins - 1)


@dataclass(frozen=True, eq=False)
class Reliability:
    """The data of a reliability diagram: one row per bin, with NaN for values that an empty bin does not have."""

    lower: Tensor
    upper: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor


@dataclass(frozen=True, eq=False)
class Bins(Tally):
    """The number of samples, the sum of confidences and the number of hits in each bin of confidence.

    >>> bins = Bins.of_triples(torch.tensor([0.9, 0.9, 0.6]), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), bins=10)
    >>> round(bins.ece, 4)  # (|1.8 - 1| + |0.6 - 1|) / 3
    0.4
    """

    samples: Tensor
    confidence: Tensor
    right: Tensor
    squares: Tensor
    """Σ (confidence - hit)² over all samples: the Brier score of "my prediction is right"."""

    @classmethod
    def count(cls, batch: Batch, bins: int = BINS) -> Bins:
        found = []
        for rows in pieces(len(batch), batch.top.confidence):
            part = batch[rows]
            index = bin_of(part.top.confidence, bins)
            found.append(cls.sums(index, bins, part.top.confidence, part.top.right, part.weight))
        return reduce(add, found)

    @classmethod
    def sums(cls, index: Tensor, bins: int, confidence: Tensor, right: Tensor, weight: Tensor | None = None) -> Bins:
        """Return the sums per bin, if the bin of each sample is known."""
        confidence = confidence.double()
        squares = (confidence - right.double()).square_()
        samples, sure, hits = (sums(index, bins, part, weight) for part in (None, confidence, right))
        return cls(samples, sure, hits, squares.sum() if weight is None else (squares * weight).sum())

    def summary(self) -> dict[str, float]:
        overall = {"accuracy": ratio(self.right.sum(), self.n), "confidence": ratio(self.confidence.sum(), self.n)}
        known = (name for name in _NAMES if name != "rmsce_debiased" or not self.samples.is_floating_point())
        return overall | {name: getattr(self, name) for name in known}

    @property
    def bins(self) -> int:
        return self.samples.shape[0]

    @cached_property
    def n(self) -> float:
        """The number of samples (an int), or the sum of their weights."""
        return sum(count for count, _, _ in self._rows)

    @cached_property
    def _rows(self) -> list[tuple[float, float, float]]:
        """Return the count, confidence minus hits, and hits of each bin that is not empty."""
        rows = zip(self.samples.tolist(), self.confidence.tolist(), self.right.tolist(), strict=True)
        return [(count, confidence - right, right) for count, confidence, right in rows if count]

    def _mean(self, values: Iterable[float]) -> float:
        return ratio(math.fsum(values), self.n)

    @property
    def ece(self) -> float:
        """Expected calibration error, Σ_b n_b/n |confidence_b - accuracy_b| (Naeini et al., AAAI 2015)."""
        return self._mean(abs(residual) for _, residual, _ in self._rows)

    @property
    def overconfidence(self) -> float:
        """The part of the ECE from bins with more confidence than accuracy."""
        return self._mean(max(residual, 0.0) for _, residual, _ in self._rows)

    @property
    def underconfidence(self) -> float:
        """The part of the ECE from bins with less confidence than accuracy."""
        return self._mean(max(-residual, 0.0) for _, residual, _ in self._rows)

    @property
    def mce(self) -> float:
        """Maximum calibration error: the largest gap of any bin that is not empty, even if it has few samples."""
        return max((abs(residual) / count for count, residual, _ in self._rows), default=float("nan"))

    @property
    def rmsce(self) -> float:
        """Root mean square calibration error, √ Σ_b n_b/n gap_b²."""
        return math.sqrt(self._mean(residual**2 / count for count, residual, _ in self._rows))

    @property
    def rmsce_debiased(self) -> float:
        """`rmsce` minus the bias that noise adds to each squared gap, acc_b (1 - acc_b) / (n_b - 1); at least 0.

        Bins with fewer than two samples are left out, because their noise is unknown (Kumar et al., NeurIPS 2019). The
        metric is not available with fractional weights, which do not determine how many samples a bin contains.
        """
        enough = [row for row in self._rows if row[0] > 1]
        noise = (right / count * (count - right) / (count - 1) for count, _, right in enough)
        squared = (residual**2 / count for count, residual, _ in enough)
        mean = self._mean(signal - chance for signal, chance in zip(squared, noise, strict=True))
        return math.sqrt(mean) if mean > _ROUNDING or not self.n else 0.0

    @property
    def top_brier(self) -> float:
        """Mean (confidence - hit)². It is the sum of a calibration part, `rmsce`², and a refinement part."""
        return ratio(self.squares, self.n)

    def reliability(self) -> Reliability:
        """Return the rows of a reliability diagram."""
        outer = edges(self.bins, self.confidence)
        confidence, accuracy = self.confidence / self.samples, self.right / self.samples
        return Reliability(outer[:-1], outer[1:], self.samples, confidence, accuracy)
