"""Accuracy as a smooth function of confidence, which knows of no bins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.metrics.cells import Cells
from acls.report.shares import wilson

ENOUGH = 10.0
"""Samples within the kernel that a point of the curve needs."""
_FARTHEST = 12.0  # log-odds beyond which confidences count as the same: 1 - 6e-6
_PLACES = 1201


@dataclass(frozen=True)
class Curve:
    """Points of the curve and of its pointwise 95 % band, from the least confidence to the largest."""

    confidence: list[float]
    accuracy: list[float]
    low: list[float]
    high: list[float]


def smooth_curve(cells: Cells, *, points: int = 201) -> Curve:
    """Smooth what confidence exceeds accuracy by, and take it from the diagonal.

    accuracy(t) = t - Σ (conf_i - hit_i) K(t, conf_i) / Σ K(t, conf_i), with a Gaussian K in the log-odds of confidence:
    networks put most of theirs close to 1, and in confidence itself that crowd would outweigh all the rest. Smoothing
    the residuals, not the hits, leaves the curve of a calibrated model on the diagonal. The bandwidth is Silverman's
    rule, 0.9 min(σ, IQR / 1.34) n^(-1/5) (1986); the band takes (Σ K)² / Σ K² as the number of samples near a point.
    """
    mean = (cells.confidence / cells.count.clamp(min=1)).double().flatten()
    place = (_odds(mean) / _FARTHEST + 1) / 2 * (_PLACES - 1)
    index = place.round().long()  # as many places as the eye can tell apart, however many samples
    count, residual = (
        torch.bincount(index, weights=part.flatten().double(), minlength=_PLACES)
        for part in (cells.count, cells.residual)
    )
    x = torch.linspace(-_FARTHEST, _FARTHEST, _PLACES, dtype=torch.float64)
    t = torch.linspace(float(mean.min()), float(mean.max()), points, dtype=torch.float64)
    kernel = torch.exp(-(((_odds(t)[:, None] - x) / _bandwidth(x, count)) ** 2) / 2)
    mass = kernel @ count
    near = mass**2 / (kernel**2 @ count).clamp(min=1e-300)
    seen = near >= ENOUGH
    t, accuracy = t[seen], (t - kernel @ residual / mass.clamp(min=1e-300)).clamp(0, 1)[seen]
    ends = [wilson(share, n) for share, n in zip(accuracy.tolist(), near[seen].tolist(), strict=True)]
    return Curve(t.tolist(), accuracy.tolist(), [low for low, _ in ends], [high for _, high in ends])


def _odds(confidence: Tensor) -> Tensor:
    return torch.logit(confidence.clamp(0, 1)).clamp(-_FARTHEST, _FARTHEST)


def _bandwidth(x: Tensor, count: Tensor) -> float:
    n = float(count.sum())
    held = count.cumsum(0) / n
    middle = float((x * count).sum()) / n
    deviation = float((count * (x - middle) ** 2).sum() / n) ** 0.5
    quarters = [float(x[int(torch.searchsorted(held, share))]) for share in (0.25, 0.75)]
    # Where half of all confidences are the same, the deviation alone tells.
    middle_half = (quarters[1] - quarters[0]) / 1.34 or deviation
    rule: float = 0.9 * min(deviation, middle_half) * n**-0.2
    return max(rule, 2 * float(x[1] - x[0]))
