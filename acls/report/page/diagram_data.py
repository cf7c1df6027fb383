"""Compute the exact sums for interactive diagrams, for every number of bins that the page offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from acls.metrics.bins import edges
from acls.metrics.classwise import ClasswiseBins
from acls.metrics.confidences import Confidences

OFFERED = (5, 10, 15, 20, 25, 30, 50)
"""Numbers of bins that a reader can choose."""
OFFERED_OF_MANY = (10, 15, 25)
"""The same for a page with many networks, which must stay small."""

Floats = NDArray[np.float64]


def binned(found: Confidences, offered: Sequence[int] = OFFERED) -> dict[str, dict[int, dict[str, list[float]]]]:
    """Return counts, sums of confidence and hits for bins of equal width and of equal mass, for each number of bins.

    With equal width, the ECE equals `Bins.ece`, and with equal mass it equals `aece`: the edges and the split of ties
    are the same. If there are more samples than `Confidences` keeps individually, the edge of a bin may cut one of its
    fine cells. The cell is then assigned to the bin of its mean, or divided between bins.
    """
    cells = found.cells()
    count, confidence, right = (part[0].double().cpu().numpy() for part in (cells.count, cells.confidence, cells.right))
    mean = confidence / np.maximum(count, 1)
    reached = [np.concatenate([[0.0], np.cumsum(part)]) for part in (count, confidence, right)]
    precision = found.parts[0] if found.parts else torch.zeros(0, dtype=torch.float64)
    total = found.n
    width, mass = {}, {}
    for bins in offered:
        edge = edges(bins, precision[:0]).double().numpy()
        place = np.searchsorted(mean, edge, side="right")
        place[0], place[-1] = 0, len(mean)  # 0 is in the first bin; rounding must not exceed the last bin
        width[bins] = _rows([part[place] for part in reached], edge)
        split = np.array([b * (total // bins) + min(b, total % bins) for b in range(bins + 1)], dtype=np.float64)
        ends = _ends(mean, np.searchsorted(reached[0], split, side="left"))
        mass[bins] = _rows([np.interp(split, reached[0], part) for part in reached], ends)
    return {"width": width, "mass": mass}


def by_class(found: ClasswiseBins, most: int) -> list[dict[str, Any]]:
    """Return the bins of each class's probability; at most ``most`` classes, those with the largest classwise ECE."""
    ece = found.ece_by_class()
    order = ece.argsort(descending=True)[:most].sort().values.tolist()
    return [
        {
            "class": k,
            "ece": short(float(ece[k])),
            "labels": int(found.events[k].sum()),
            "expected": short(float(found.probability[k].sum())),
            "count": found.samples[k].tolist(),
            "confidence": [short(value) for value in found.probability[k].tolist()],
            "right": found.events[k].tolist(),
        }
        for k in order
    ]


def short(value: float, digits: int = 7) -> float:
    """Round a number to seven significant digits, which is enough for a page."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _rows(reached: list[Floats], edge: Floats) -> dict[str, list[float]]:
    """Return the differences of the cumulative sums between consecutive edges."""
    names = ("count", "confidence", "right")
    rows = {name: [short(value) for value in np.diff(part)] for name, part in zip(names, reached, strict=True)}
    return {"edge": [short(value) for value in edge], **rows}


def _ends(mean: Floats, index: NDArray[np.int64]) -> Floats:
    """Return the edges of bins of equal mass: the midpoints between the samples on both sides of a split."""
    if len(mean) == 0:
        return np.linspace(0, 1, len(index))
    left, right = mean[np.clip(index - 1, 0, None)], mean[np.clip(index, None, len(mean) - 1)]
    ends: Floats = (left + right) / 2
    ends[0], ends[-1] = mean[0], mean[-1]
    return ends
