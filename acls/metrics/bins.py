"""Calibration errors over bins of fixed width: ECE, MCE, RMSCE and their parts.

Bin b of B is (b/B, (b+1)/B], and 0 is in the first. The edges are `torch.linspace(0, 1, B + 1)` in the precision of the
confidences, compared as they are: so have it Guo et al. (ICML 2017) and those who followed them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics.batch import Batch
from acls.metrics.tally import Tally, ratio

BINS = 15
"""Bins of a calibration error unless said otherwise."""
_NAMES = ("ece", "overconfidence", "underconfidence", "mce", "rmsce", "rmsce_debiased", "top_brier")


def edges(bins: int, like: Tensor) -> Tensor:
    """The B + 1 edges of the bins of [0, 1], in the precision of ``like``."""
    if bins < 1:
        raise InputError(f"bins is {bins}, but at least 1 is called for")
    return torch.linspace(0, 1, bins + 1, dtype=like.dtype, device=like.device)


def bin_of(confidence: Tensor, bins: int) -> Tensor:
    """The number of the bin (lo, hi] that holds each confidence.

    >>> bin_of(torch.tensor([0.0, 0.1, 0.5, 0.51, 1.0]), 2).tolist()
    [0, 0, 0, 1, 1]
    """
    edge = edges(bins, confidence)
    # A product says which bin it is, give or take one where rounding matters; the edges decide. Faster than a search.
    index = (confidence * bins).ceil_().sub_(1).clamp_(0, bins - 1).long()
    index += confidence > edge[index + 1]
    index -= (confidence <= edge[index]).long()
    return index.clamp_(0, bins - 1)


@dataclass(frozen=True, eq=False)
class Reliability:
    """The data of a reliability diagram: a row a bin, NaN in what an empty bin does not have."""

    lower: Tensor
    upper: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor


@dataclass(frozen=True, eq=False)
class Bins(Tally):
    """How many samples, how much confidence and how many hits fell in each bin of confidence.

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
        top = batch.top
        return cls.sums(bin_of(top.confidence, bins), bins, top.confidence, top.right)

    @classmethod
    def sums(cls, index: Tensor, bins: int, confidence: Tensor, right: Tensor) -> Bins:
        """The sums over bins whose number is known for each sample."""
        wide, hits = confidence.double(), right.double()
        return cls(
            torch.bincount(index, minlength=bins),
            torch.bincount(index, weights=wide, minlength=bins),
            torch.bincount(index, weights=hits, minlength=bins).long(),
            wide.sub_(hits).square_().sum() if wide is not confidence else (wide - hits).square_().sum(),
        )

    def summary(self) -> dict[str, float]:
        overall = {"accuracy": ratio(self.right.sum(), self.n), "confidence": ratio(self.confidence.sum(), self.n)}
        return overall | {name: getattr(self, name) for name in _NAMES}

    @property
    def bins(self) -> int:
        return self.samples.shape[0]

    @cached_property
    def n(self) -> int:
        return int(self.samples.sum())

    @cached_property
    def residual(self) -> Tensor:
        """Confidence minus hits, summed over each bin: positive where the model is too sure."""
        return self.confidence - self.right

    @cached_property
    def gap(self) -> Tensor:
        """Mean confidence minus accuracy of each bin; 0 where the bin is empty."""
        return self.residual / self.samples.clamp(min=1)

    @property
    def ece(self) -> float:
        """Expected calibration error, Σ_b n_b/n |confidence_b - accuracy_b| (Naeini et al., AAAI 2015)."""
        return ratio(self.residual.abs().sum(), self.n)

    @property
    def overconfidence(self) -> float:
        """The part of the ECE from bins with more confidence than accuracy."""
        return ratio(self.residual.clamp(min=0).sum(), self.n)

    @property
    def underconfidence(self) -> float:
        """The part of the ECE from bins with less confidence than accuracy."""
        return ratio((-self.residual).clamp(min=0).sum(), self.n)

    @property
    def mce(self) -> float:
        """The largest gap of a bin, however few samples it holds; empty bins have none."""
        return float(self.gap.abs().max()) if self.n else float("nan")

    @property
    def rmsce(self) -> float:
        """Root mean square calibration error, √ Σ_b n_b/n gap_b²."""
        return math.sqrt(ratio((self.samples * self.gap**2).sum(), self.n))

    @property
    def rmsce_debiased(self) -> float:
        """`rmsce` without what noise alone adds to a squared gap, acc_b (1 - acc_b) / (n_b - 1); 0 where that is more.

        Bins with fewer than two samples tell nothing about their noise and are left out (Kumar et al., NeurIPS 2019).
        """
        accuracy = self.right / self.samples.clamp(min=1)
        noise = accuracy * (1 - accuracy) / (self.samples - 1).clamp(min=1)
        squared = torch.where(self.samples > 1, self.gap**2 - noise, 0.0)
        return math.sqrt(ratio((self.samples * squared).sum().clamp(min=0), self.n))

    @property
    def top_brier(self) -> float:
        """Mean (confidence - hit)²: the calibration part, `rmsce`², and the rest, refinement."""
        return ratio(self.squares, self.n)

    def reliability(self) -> Reliability:
        """The rows of a reliability diagram."""
        outer = torch.linspace(0, 1, self.bins + 1, dtype=torch.float64, device=self.samples.device)
        return Reliability(
            outer[:-1], outer[1:], self.samples, self.confidence / self.samples, self.right / self.samples
        )
