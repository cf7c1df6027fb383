"""The paper's Figure 1: which label each kind of method trains towards, and the parabola of MDCA and CRL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from acls.losses import ACLS, CRL, MDCA, LabelSmoothing, Loss, MbLS, effective_label
from acls.report.figures.style import PALETTE, SMALL, canvas, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEFAULT_LOGITS = (3.0, 0.0, -2.0, 7.0)
SURER = 2.0
"""What the logits are multiplied by in panel (e), where an adaptive method smooths less the surer the network is."""


@dataclass(frozen=True)
class SmoothingBehaviour:
    """What the figure shows: a prediction, its label, and the labels and smoothing amounts of the methods."""

    probabilities: list[float]
    onehot: list[float]
    labels: dict[str, list[float]]
    """By the title of the panel."""
    gap: list[float]
    """How far the predicted class's logit leads all the others, which are equal."""
    confidence: list[float]
    """The confidence at each gap."""
    lowered: dict[str, list[float]]
    """By method: what the predicted class's label is lowered by, at each gap."""


def prepare(logits: Sequence[float] = DEFAULT_LOGITS, label: int | None = None) -> SmoothingBehaviour:
    """Compute the labels by autograd, for an overconfident prediction: by default, of a correct one.

    MDCA sees the prediction in a batch where its class is predicted more often than it occurs, CRL beside a sample that
    was more often correct: the cases in which they act, and those of the paper.
    """
    z = torch.tensor(list(logits), dtype=torch.float64)
    y = int(z.argmax()) if label is None else label
    k = len(z)
    methods: dict[str, Loss] = {
        "LS": LabelSmoothing(epsilon=0.2),
        "AR (MDCA)": MDCA(),
        "CR (MbLS)": MbLS(weight=0.4, margin=6.0),
        "ACR (CRL)": CRL(),
        "ACR (ACLS)": ACLS(margin=6.0, lambda1=0.03, lambda2=0.05),
    }
    panels = {
        "LS": (methods["LS"], z),
        "AR (MDCA)": (methods["AR (MDCA)"], z),
        "AR at a surer prediction": (methods["AR (MDCA)"], SURER * z),
        "CR (MbLS)": (methods["CR (MbLS)"], z),
        "ACR (ACLS)": (methods["ACR (ACLS)"], z),
    }
    labels = {title: smoothed_label(loss, at, y).tolist() for title, (loss, at) in panels.items()}
    gap = torch.linspace(0.02, 12.0, 100, dtype=torch.float64)
    leading = torch.zeros(len(gap), k, dtype=torch.float64)
    leading[:, 0] = gap
    lowered = {
        name: [float(1 - smoothed_label(methods[name], row, 0)[0]) for row in leading]
        for name in ("AR (MDCA)", "ACR (CRL)", "ACR (ACLS)")
    }
    onehot = [float(c == y) for c in range(k)]
    confidence = leading.softmax(1)[:, 0].tolist()
    return SmoothingBehaviour(z.softmax(0).tolist(), onehot, labels, gap.tolist(), confidence, lowered)


def smoothed_label(loss: Loss, z: Tensor, y: int) -> Tensor:
    """Return the label ``(K,)`` that a method trains a prediction towards, in a batch in which it acts."""
    k = len(z)
    loss.prepare(n_train=k, n_classes=k)
    if isinstance(loss, CRL):
        loss.history.hits[1:] = 1.0
        loss.history.epochs.fill_(1)
    batch = z.expand(k, k)
    classes = (torch.arange(k) + y) % k  # the first is the sample itself; the classes occur once each
    return effective_label(loss, batch, classes, index=torch.arange(k) if loss.needs_index else None)[0]


def draw(data: SmoothingBehaviour, axes: Sequence[Axes]) -> None:
    """Draw the panels on nine axes: the paper's (a) to (f), ACLS, and the smoothing by confidence and by logit gap."""
    panels = {"Probabilities p": data.probabilities, "Labels q": data.onehot, **data.labels}
    for at, (ax, (title, values)) in enumerate(zip(axes, panels.items(), strict=False)):
        classes = range(1, len(values) + 1)
        ax.bar(classes, values, color=PALETTE[0] if at < 2 else PALETTE[2], width=0.7)
        if at >= 2:
            ax.bar(classes, data.onehot, fill=False, edgecolor=PALETTE[6], linewidth=0.6, linestyle="--", width=0.7)
        ax.set_title(f"({chr(97 + at)}) {title}", fontsize=SMALL + 1)
        ax.axhline(0, color=PALETTE[6], linewidth=0.5)
        ax.set_ylim(min(0, *values) - 0.02, 1.08)
        ax.set_xticks(list(classes))
        ax.set(xlabel="class", ylabel="probability" if at == 0 else "label")
        tidy(ax)
    by_confidence, by_gap = axes[len(panels) :]
    for colour, (name, amounts) in zip(PALETTE, data.lowered.items(), strict=False):
        by_gap.plot(data.gap, amounts, color=colour, label=name, linewidth=1.2)
        if "ACLS" not in name:  # which, in this view, is a wall at confidence 1
            by_confidence.plot(data.confidence, amounts, color=colour, linewidth=1.2)
    for at, ax, x in ((len(panels), by_confidence, "confidence"), (len(panels) + 1, by_gap, "logit gap")):
        ax.set_title(f"({chr(97 + at)}) Smoothing by {x}", fontsize=SMALL + 1)
        ax.set(xlabel=x, ylabel="label of ŷ lowered by")
        tidy(ax)
    by_gap.legend(fontsize=SMALL - 1, frameon=False)


def figure(logits: Sequence[float] = DEFAULT_LOGITS, label: int | None = None) -> Figure:
    """Return the whole figure."""
    drawn, axes = canvas(3, 3, width=7.2, height=5.2)
    draw(prepare(logits, label), axes)
    return drawn
