"""What a page and a ranking need of predictions beside the numbers, so that nobody reads the predictions again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from acls.metrics import Blocks
from acls.predictions import Predictions

MISTAKES = 24
"""Wrong predictions kept."""
RESAMPLES = 400
"""A standard deviation estimated from these is itself off by about 1 / √(2 · 400) = 3.5 %."""


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction."""

    row: int
    """Its place in the data."""
    label: int
    predicted: int
    confidence: float
    image: int | None = None

    @property
    def unit(self) -> int:
        """The number of its picture: the row or, for pixels, the image."""
        return self.row if self.image is None else self.image


@dataclass(frozen=True)
class Resampled:
    """The metrics of one network on resampled test samples; networks on the same samples have the same resamples."""

    metrics: Mapping[str, Tensor]
    """``(RESAMPLES,)`` each."""
    units: Tensor
    """Samples in each block."""


@dataclass(frozen=True)
class Details:
    """The most confident mistakes, the resamples, and what the file said of itself."""

    mistakes: tuple[Mistake, ...] = ()
    resamples: Resampled | None = None
    meta: Mapping[str, str] = field(default_factory=dict)


@torch.no_grad()
def resample(blocks: Blocks) -> Resampled:
    """The metrics on resampled blocks, SmoothECE apart, each block counted a random (Poisson) number of times.

    A resample of few blocks may come out without any sample, and then has no metrics: it is drawn again.
    """
    random = torch.Generator().manual_seed(0)
    ones = torch.ones(RESAMPLES, blocks.cells.shape[0], dtype=torch.float64)
    weights = torch.poisson(ones, generator=random)
    units = blocks.units
    while blocks.used and bool((empty := weights @ units.cpu() == 0).any()):
        weights[empty] = torch.poisson(ones[empty], generator=random)
    return Resampled(blocks.metrics(weights.to(blocks.cells)), units)


def worst_mistakes(worst: tuple[Mistake, ...], p: Predictions, first: int, ignore_index: int) -> tuple[Mistake, ...]:
    """The wrong predictions of most confidence, one per image, of those found before and those of one more slice."""
    by_unit: dict[int, Mistake] = {}
    for mistake in sorted([*worst, *_mistakes(p, first, ignore_index)], key=lambda one: (-one.confidence, one.row)):
        by_unit.setdefault(mistake.unit, mistake)
    return tuple(by_unit.values())[:MISTAKES]


def _mistakes(p: Predictions, first: int, ignore_index: int) -> Iterator[Mistake]:
    confidence, predicted = p.top()
    wrong = (predicted != p.labels) & (p.labels != ignore_index)
    sure = torch.where(wrong, confidence, -1.0)
    # Many pixels of one image are one mistake: more are looked at than kept.
    looked_at = MISTAKES * (1 if p.image is None else 50)
    for row in sure.topk(min(len(p), looked_at)).indices.tolist():
        if bool(wrong[row]):
            image = None if p.image is None else int(p.image[row])
            yield Mistake(first + row, int(p.labels[row]), int(predicted[row]), float(confidence[row]), image)
