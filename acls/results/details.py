"""Data for a page and a ranking beside the metrics, kept so that the predictions are not read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from acls.metrics import Blocks
from acls.predictions import Predictions

MISTAKES = 24
"""Number of wrong predictions that are kept."""
RESAMPLES = 400
"""Number of resamples; a standard deviation estimated from them has an error of about 1 / √(2 · 400) = 3.5 %."""


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction."""

    row: int
    """The row number in the data."""
    label: int
    predicted: int
    confidence: float
    image: int | None = None

    @property
    def unit(self) -> int:
        """The number of its picture: the row number or, for pixels, the image number."""
        return self.row if self.image is None else self.image


@dataclass(frozen=True)
class Resampled:
    """The metrics of one network on resampled test samples; networks on the same samples share the same resamples."""

    metrics: Mapping[str, Tensor]
    """By name, each of shape ``(RESAMPLES,)``."""
    units: Tensor
    """Number of samples in each block."""


@dataclass(frozen=True)
class Details:
    """The most confident mistakes, the resamples, and the ``meta`` of the predictions."""

    mistakes: tuple[Mistake, ...] = ()
    resamples: Resampled | None = None
    meta: Mapping[str, str] = field(default_factory=dict)


@torch.no_grad()
def resample(blocks: Blocks) -> Resampled:
    """Compute all metrics except SmoothECE on resamples, in which each block has a random (Poisson) count.

    With few blocks, a resample may contain no sample. It then has no metrics, and it is drawn again.
    """
    units = blocks.units
    return Resampled(blocks.metrics(counts_of(units).to(blocks.cells)), units)


def counts_of(units: Tensor) -> Tensor:
    """Draw how often each block occurs in every resample; none is without samples, if there are any."""
    random = torch.Generator().manual_seed(0)
    ones = torch.ones(RESAMPLES, len(units), dtype=torch.float64)
    counts = torch.poisson(ones, generator=random)
    while bool(units.any()) and bool((empty := counts @ units.cpu().double() == 0).any()):
        counts[empty] = torch.poisson(ones[empty], generator=random)
    return counts


def worst_mistakes(worst: tuple[Mistake, ...], p: Predictions, first: int, ignore_index: int) -> tuple[Mistake, ...]:
    """Return the most confident wrong predictions, at most one per image, of the previous ones and one more slice."""
    by_unit: dict[int, Mistake] = {}
    for mistake in sorted([*worst, *_mistakes(p, first, ignore_index)], key=lambda one: (-one.confidence, one.row)):
        by_unit.setdefault(mistake.unit, mistake)
    return tuple(by_unit.values())[:MISTAKES]


def _mistakes(p: Predictions, first: int, ignore_index: int) -> Iterator[Mistake]:
    confidence, predicted = p.top()
    wrong = (predicted != p.labels) & (p.labels != ignore_index)
    sure = torch.where(wrong, confidence, -1.0)
    # Wrong pixels of one image count as one mistake, so consider more candidates than are kept.
    looked_at = MISTAKES * (1 if p.image is None else 50)
    for row in sure.topk(min(len(p), looked_at)).indices.tolist():
        if bool(wrong[row]):
            image = None if p.image is None else int(p.image[row])
            yield Mistake(first + row, int(p.labels[row]), int(predicted[row]), float(confidence[row]), image)
