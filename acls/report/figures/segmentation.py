"""Where in an image a segmentation network is too sure: pixel by pixel, and by distance to the boundary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics.bins import BINS, Bins, bin_of
from acls.predictions import Kind, Predictions
from acls.report.figures.style import ABOVE, PALETTE, SMALL, tidy
from acls.shapes import IGNORE_INDEX, flatten_logits

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class ResidualMap:
    """Confidence minus correctness of each pixel: near 1 it was sure and wrong; below 0 right, and not sure."""

    residual: Tensor
    """``(H, W)`` within -1..1; NaN where the label does not count."""
    confidence: float
    accuracy: float


def top_maps(
    scores: Tensor, labels: Tensor, *, kind: Kind = "logits", ignore_index: int = IGNORE_INDEX
) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence, correctness and which pixels count, ``(N, H, W)`` each, of scores ``(N, K, H, W)``."""
    if scores.ndim != 4 or labels.shape != scores.shape[:1] + scores.shape[2:]:
        raise InputError(
            f"expected scores (N, K, H, W) and labels (N, H, W), got {tuple(scores.shape)} and {tuple(labels.shape)}"
        )
    confidence, predicted = Predictions(flatten_logits(scores), labels.reshape(-1).long(), kind).top()
    right = predicted.view(labels.shape) == labels
    return confidence.view(labels.shape), right, labels != ignore_index


def prepare_map(
    scores: Tensor, labels: Tensor, *, kind: Kind = "logits", ignore_index: int = IGNORE_INDEX
) -> ResidualMap:
    """Compute the map of one image from scores ``(K, H, W)`` and labels ``(H, W)``."""
    confidence, right, counts = top_maps(scores[None], labels[None], kind=kind, ignore_index=ignore_index)
    residual = torch.where(counts, confidence - right.to(confidence), float("nan"))[0]
    n = max(int(counts.sum()), 1)
    return ResidualMap(residual, float(confidence[counts].sum()) / n, int(right[counts].sum()) / n)


def draw_map(data: ResidualMap, ax: Axes) -> None:
    """Draw the map: orange where too sure, purple where not sure enough, grey where the label does not count."""
    ax.set_facecolor("0.8")
    ax.imshow(data.residual.numpy(), cmap="PuOr_r", vmin=-1, vmax=1, interpolation="nearest")
    ax.set_axis_on()
    ax.set(xticks=[], yticks=[])
    ax.set_title(f"confidence {100 * data.confidence:.1f} %, accuracy {100 * data.accuracy:.1f} %", fontsize=SMALL)


EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Distances in pixels at which a group begins; the last one has no end."""
_Z = 1.959964


@dataclass(frozen=True)
class BoundaryGroup:
    """The pixels of one range of distances: ``start <= distance < end``."""

    start: float
    end: float
    n: int
    confidence: float
    accuracy: float
    half: float
    """Half the width of the accuracy's 95 % interval, with images as what was drawn: pixels are not independent."""
    ece: float


@dataclass(frozen=True)
class BoundaryReliability:
    """The groups that hold pixels, from the boundary inwards; pixels of images without a boundary are in none."""

    groups: tuple[BoundaryGroup, ...]
    images: int


def distance_to_boundary(labels: Tensor) -> Tensor:
    """Euclidean distance of each pixel of ``(H, W)`` to the nearest boundary pixel; inf where there is none.

    A boundary pixel has another label above, below, left or right of it, and distance 0. Void is a label like any
    other here: in VOC it is what separates objects. The squared distance is min over columns of dx² + g², with g the
    distance within the column, so the result is exact.
    """
    edge = torch.zeros_like(labels, dtype=torch.bool)
    vertical, horizontal = labels[1:] != labels[:-1], labels[:, 1:] != labels[:, :-1]
    edge[1:] |= vertical
    edge[:-1] |= vertical
    edge[:, 1:] |= horizontal
    edge[:, :-1] |= horizontal
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in labels.shape)
    rows = rows[:, None]
    above = torch.where(edge, rows, -torch.inf).cummax(0).values
    below = torch.where(edge, rows, torch.inf).flip(0).cummin(0).values.flip(0)
    within = torch.minimum(rows - above, below - rows).square()
    across = (columns[:, None] - columns).square()
    return torch.stack([(across + row).amin(1) for row in within]).sqrt()


def prepare_boundary(
    scores: Tensor,
    labels: Tensor,
    *,
    kind: Kind = "logits",
    ignore_index: int = IGNORE_INDEX,
    edges: Sequence[float] = EDGES,
) -> BoundaryReliability:
    """Compute the groups from scores ``(N, K, H, W)`` and labels ``(N, H, W)``."""
    confidence, right, counts = top_maps(scores, labels, kind=kind, ignore_index=ignore_index)
    distance = torch.stack([distance_to_boundary(one) for one in labels])
    groups = []
    for start, end in zip(edges, [*edges[1:], float("inf")], strict=True):
        inside = counts & (distance >= start) & (distance < end)
        n = int(inside.sum())
        if n == 0:
            continue
        sure, hit = confidence[inside], right[inside]
        ece, accuracy = Bins.sums(bin_of(sure, BINS), BINS, sure, hit).ece, int(hit.sum()) / n
        # The deviation of a ratio of sums over images: of hits less what their number of pixels lets expect.
        surplus = (right & inside).sum((1, 2)).double() - accuracy * inside.sum((1, 2))
        half = _Z * float(surplus.square().sum().sqrt()) / n
        groups.append(BoundaryGroup(start, end, n, float(sure.double().mean()), accuracy, half, ece))
    return BoundaryReliability(tuple(groups), labels.shape[0])


def draw_boundary(data: BoundaryReliability, ax: Axes) -> None:
    """Draw mean confidence and accuracy of each range of distances, and its ECE as bars."""
    places = list(range(len(data.groups)))
    ax.bar(places, [100 * group.ece for group in data.groups], color=PALETTE[4], width=0.6, label="ECE")
    accuracy, errors, confidence = (
        [100 * getattr(group, name) for group in data.groups] for name in ("accuracy", "half", "confidence")
    )
    style: dict[str, Any] = {"markersize": 4, "linewidth": 1.3}
    ax.errorbar(places, accuracy, yerr=errors, color=PALETTE[0], marker="o", capsize=2, label="accuracy", **style)
    ax.plot(places, confidence, color=PALETTE[1], marker="s", label="mean confidence", **style)
    ax.set_xticks(places, [_range_name(group) for group in data.groups])
    ax.set(xlabel="pixels from the boundary", ylabel="%", ylim=(0, 104))
    title = f"{sum(group.n for group in data.groups):,} pixels, {data.images} images"
    ax.legend(title=title, title_fontsize=SMALL, ncols=3, alignment="left", **ABOVE)
    tidy(ax)


def _range_name(group: BoundaryGroup) -> str:
    if group.end == float("inf"):
        return f"≥ {group.start:g}"
    return f"{group.start:g}" if group.end - group.start <= 1 else f"{group.start:g}-{group.end:g}"
