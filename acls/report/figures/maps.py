"""Where in an image a segmentation network is too sure: confidence minus correctness, pixel by pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from acls.errors import InputError
from acls.predictions import Kind, Predictions
from acls.report.figures.style import SMALL, canvas
from acls.shapes import IGNORE_INDEX, flatten_logits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def prepare(scores: Tensor, labels: Tensor, *, kind: Kind = "logits", ignore_index: int = IGNORE_INDEX) -> ResidualMap:
    """Compute the map of one image from scores ``(K, H, W)`` and labels ``(H, W)``."""
    confidence, right, counts = top_maps(scores[None], labels[None], kind=kind, ignore_index=ignore_index)
    residual = torch.where(counts, confidence - right.to(confidence), float("nan"))[0]
    n = max(int(counts.sum()), 1)
    return ResidualMap(residual, float(confidence[counts].sum()) / n, int(right[counts].sum()) / n)


def draw(data: ResidualMap, ax: Axes) -> None:
    """Draw the map: orange where too sure, purple where not sure enough, grey where the label does not count."""
    ax.set_facecolor("0.8")
    ax.imshow(data.residual.numpy(), cmap="PuOr_r", vmin=-1, vmax=1, interpolation="nearest")
    ax.set_axis_on()
    ax.set(xticks=[], yticks=[])
    ax.set_title(f"confidence {100 * data.confidence:.1f} %, accuracy {100 * data.accuracy:.1f} %", fontsize=SMALL)


def figure(data: ResidualMap, image: Tensor | None = None) -> Figure:
    """Return the map with its scale and, where it is given, ``(H, W[, 3])`` in 0..1 or 0..255, the image beside it."""
    both = image is not None
    drawn, axes = canvas(1, 1 + both, width=7.2 if both else 3.9, height=3.2)
    if image is not None:
        axes[0].imshow(image.numpy(), cmap="gray")
        axes[0].set(xticks=[], yticks=[])
        axes[0].set_title("image", fontsize=SMALL)
    draw(data, axes[-1])
    scale = drawn.colorbar(axes[-1].images[0], ax=axes, shrink=0.85, ticks=[-1, -0.5, 0, 0.5, 1])
    scale.set_label("confidence minus correctness", fontsize=SMALL + 1)
    scale.ax.tick_params(labelsize=SMALL)
    return drawn
