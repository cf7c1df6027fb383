"""Confidence histogram: where the confidences of right and of wrong predictions are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from acls.metrics.bins import bin_of
from acls.metrics.cells import Cells
from acls.report.figures.style import LEGEND, PALETTE, SMALL, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class ConfidenceHistogram:
    """Right and wrong predictions of each bin of confidence, and the means of the whole."""

    edges: Sequence[float]
    right: Sequence[int]
    wrong: Sequence[int]
    confidence: float
    accuracy: float


def prepare(cells: Cells, bins: int = 30) -> ConfidenceHistogram:
    """Count right and wrong predictions, from ``suite.confidences.cells()``."""
    count, confidence, right = (part.flatten().double() for part in (cells.count, cells.confidence, cells.right))
    n = max(float(count.sum()), 1.0)
    index = bin_of(confidence / count.clamp(min=1), bins)
    hits, all_of_them = (torch.bincount(index, weights=part, minlength=bins).round() for part in (right, count))
    return ConfidenceHistogram(
        edges=[at / bins for at in range(bins + 1)],
        right=[int(value) for value in hits.tolist()],
        wrong=[int(value) for value in (all_of_them - hits).tolist()],
        confidence=float(confidence.sum()) / n,
        accuracy=float(right.sum()) / n,
    )


def draw(data: ConfidenceHistogram, ax: Axes) -> None:
    """Draw both histograms over each other, counts on a logarithmic axis: few are wrong, and those matter."""
    ax.stairs(data.right, data.edges, fill=True, color=PALETTE[5], label="right")
    ax.stairs(data.wrong, data.edges, color=PALETTE[1], linewidth=1.3, hatch="////", label="wrong")
    ax.axvline(data.confidence, color=PALETTE[1], linewidth=1.2, label=f"mean confidence {100 * data.confidence:.1f} %")
    ax.axvline(
        data.accuracy, color=PALETTE[0], linewidth=1.2, linestyle="--", label=f"accuracy {100 * data.accuracy:.1f} %"
    )
    most = max(*data.right, *data.wrong, 1)
    ax.set(xlim=(0, 1), yscale="log", ylim=(0.7, 20 * most), xlabel="confidence", ylabel="n")
    ax.legend(loc="upper left", fontsize=SMALL, ncols=2, **LEGEND)
    tidy(ax)
